// Package iouring does file I/O for a block store on memory that may be handed
// to the kernel, through io_uring where that helps and by plain system calls
// where it does not.
//
// An [Arena] holds that memory, a [Buffer] is a part of it, a [File] is an open
// file and a [Backend], made by [Open], moves bytes between the two. Underneath,
// on Linux, are [Ring], one io_uring in pure Go, and [Engine], a ring that many
// goroutines share.
package iouring
