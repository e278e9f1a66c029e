// Package iouring does file and socket I/O through io_uring in pure Go, with
// memory that the garbage collector keeps its hands off, and by plain system
// calls where those are cheaper or io_uring is not to be had.
//
// There are three layers. Most programs want the first:
//
//   - [Open] returns a [Backend]: reads, writes and syncs of a [File] that are
//     done in full or fail, each the way that measured cheapest. It is the same
//     on every system; [Capabilities] says what was chosen and why.
//   - An [Engine] lets many goroutines share a ring: single operations, batches,
//     linked chains, multishot accept and receive. Linux only.
//   - A [Ring] is one io_uring, for one goroutine at a time, with names as in
//     liburing: Push, Submit, PeekCQE. Linux only.
//
// # Who owns memory
//
// The kernel writes into a buffer while the program runs on. Memory of the Go
// heap or of a stack will not do: a stack moves when it grows, and a buffer that
// nobody refers to is reused. Buffers therefore come from an [Arena], mapped
// outside the heap, and the rules are:
//
//  1. A [Buffer] is yours from Get to Release. A copy or a slice of it is the same
//     allocation; release it once, through any of them.
//  2. An operation owns its buffers from Submit (or from the call of a Backend)
//     until its last completion. Do not look at them in between.
//  3. The end of a context asks for the end of an operation, no more. Calls that
//     take a context return when the kernel has let go.
//  4. Releasing too early is harmless: the memory goes back when the kernel is
//     done with it. Releasing twice is an error and changes nothing. Bytes of a
//     buffer that was released panics.
//  5. Close of a Ring, an Engine or a Backend returns when nothing is in flight
//     any more, and Close of a File when no operation uses it.
//
// # When a ring helps
//
// Time and CPU time against plain system calls, medians of alternating runs on
// two CPUs of an AMD Zen 5 (virtual machine, Linux 6.18, ext4 on virtio, Go 1.26;
// go -C bench run . uring):
//
//	                                        time   CPU    Backend uses
//	cached read, 4 KiB, one at a time       2.6x   2.8x   pread
//	cached read, 4 KiB, 32 in one submit    1.3x   1.3x   pread
//	cached read, 64 KiB, 32 in one submit   1.3x   1.3x   pread
//	buffered write, 64 KiB, one at a time   10x    9x     pwrite, pwritev
//	buffered write, 64 KiB, 32 in a submit  2.9x   3.8x   pwrite, pwritev
//	O_DIRECT read, 4 KiB, one at a time     1.3x   1.8x   pread
//	O_DIRECT read, 4 KiB, 8 in one submit   0.35x  0.36x  the ring
//	O_DIRECT read, 4 KiB, 32 in one submit  0.25x  0.21x  the ring
//	O_DIRECT read, 4 KiB, 256 goroutines    0.33x  0.41x  the ring
//	the same with Dedicated                 0.31x  0.28x  the ring
//	O_DIRECT read, 64 KiB, 32 in a submit   0.58x  0.31x  the ring
//	O_DIRECT write, 64 KiB, 32 in a submit  0.43x  0.35x  the ring
//	O_DIRECT write, 1 MiB, 4 at once,
//	  against pwrite of 1 MiB               0.81x  1.1x   the ring
//	fdatasync of 16 files,
//	  one after another                     0.34x  0.80x  the ring
//	  against 16 goroutines                 0.81x  1.1x   the ring
//
// So a ring helps where operations wait for a device and there are several of
// them: the device gets them all, no thread is blocked (8 threads instead of 260
// with 256 readers), and one system call submits many. It does not help where
// the kernel only copies: it copies through the ring too, and buffered writes of
// most file systems it hands to a thread of its own. What helps there is fewer
// and larger calls. A no-op costs 1.1 to 1.4 times a bare io_uring_enter alone,
// and 0.75 times one with 64 goroutines.
//
// # Errors
//
// Completions carry an errno, [CQE.Err], and short results are results. A
// Backend goes on after a short result, retries EINTR and EAGAIN a bounded number
// of times and reports the rest as an *[IOError]. A failed datasync sticks to its
// [File]. Where there is no ring for the asking, [RingBackend] gives an
// *[UnavailableError]; [AutoBackend] takes system calls and says why.
package iouring
