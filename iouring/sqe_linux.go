package iouring

import (
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An SQE is an operation to submit. Its Prep methods fill it in, named as in
// liburing; each of them overwrites what was there, UserData excepted. The zero
// SQE is a no-op.
//
// Memory of an operation is an arena's. The ring keeps every [Buffer] from being
// reused until the operation's last completion, whoever releases it. Small
// structures of the kernel's interface (a vector, a path, a time) are allocated
// by Prep and kept alive by the ring.
type SQE struct {
	// UserData comes back in the completions.
	UserData uint64

	raw  rawSQE
	buf  Buffer
	bufs []Buffer
	keep any // what raw points at in the Go heap, which does not move
}

func (s *SQE) prep(op Opcode, fd int, addr unsafe.Pointer, n int, off uint64) {
	*s = SQE{UserData: s.UserData, raw: rawSQE{opcode: op, fd: int32(fd), off: off, addr: uint64(uintptr(addr)), len: uint32(n)}}
}

func (s *SQE) prepBuffer(op Opcode, fd int, b Buffer, off uint64) {
	s.prep(op, fd, b.kernelAddr(), b.Len(), off)
	s.buf = b
}

// kernelAddr is addr, and nil for the zero Buffer.
func (b Buffer) kernelAddr() unsafe.Pointer {
	if b.arena == nil {
		return nil
	}
	return b.addr()
}

// pin pins the buffers of the operation.
func (s *SQE) pin() error {
	if err := s.buf.pin(); err != nil {
		return err
	}
	if _, err := pinAll(s.bufs); err != nil {
		s.buf.unpin()
		return err
	}
	return nil
}

func (s *SQE) unpin() {
	s.buf.unpin()
	unpinAll(s.bufs)
}

// check rejects what the ring's bookkeeping cannot follow: every operation has
// to have a last completion.
func (s *SQE) check() error {
	if s.raw.flags&sqeCQESkip != 0 {
		return &ConfigError{Field: "SQE flags", Value: s.raw.flags, Want: "no CQE_SKIP_SUCCESS"}
	}
	return nil
}

// linked reports whether the next operation belongs to the same chain.
func (s *SQE) linked() bool { return s.raw.flags&(SQEIOLink|SQEIOHardlink) != 0 }

// Opcode returns the operation that was prepared.
func (s *SQE) Opcode() Opcode { return s.raw.opcode }

// SetFlags sets flags in addition to what Prep did.
func (s *SQE) SetFlags(f SQEFlags) { s.raw.flags |= f }

// PrepNop prepares an operation that does nothing.
func (s *SQE) PrepNop() { s.prep(OpNop, -1, nil, 0, 0) }

// PrepRead prepares a pread. Offset -1 is the file's own position, and what
// sockets and pipes want.
func (s *SQE) PrepRead(fd int, b Buffer, off int64) { s.prepBuffer(OpRead, fd, b, uint64(off)) }

// PrepWrite prepares a pwrite.
func (s *SQE) PrepWrite(fd int, b Buffer, off int64) { s.prepBuffer(OpWrite, fd, b, uint64(off)) }

// PrepReadFixed prepares a pread into memory that is registered, under the index
// bufIndex, see [Ring.RegisterArena].
func (s *SQE) PrepReadFixed(fd int, b Buffer, off int64, bufIndex int) {
	s.prepBuffer(OpReadFixed, fd, b, uint64(off))
	s.raw.bufIndex = uint16(bufIndex)
}

// PrepWriteFixed prepares a pwrite from memory that is registered.
func (s *SQE) PrepWriteFixed(fd int, b Buffer, off int64, bufIndex int) {
	s.prepBuffer(OpWriteFixed, fd, b, uint64(off))
	s.raw.bufIndex = uint16(bufIndex)
}

// PrepReadv prepares a preadv into all of bs, at most 1024.
func (s *SQE) PrepReadv(fd int, bs []Buffer, off int64) {
	s.prepVector(OpReadv, fd, bs, 0, off)
	s.bufs = slices.Clone(bs)
}

// PrepWritev prepares a pwritev of all of bs, at most 1024.
func (s *SQE) PrepWritev(fd int, bs []Buffer, off int64) {
	s.prepVector(OpWritev, fd, bs, 0, off)
	s.bufs = slices.Clone(bs)
}

// prepVector prepares a vector of what is left of bs after skip bytes. It leaves
// the pinning to the caller.
func (s *SQE) prepVector(op Opcode, fd int, bs []Buffer, skip int, off int64) []unix.Iovec {
	iov := vector(make([]unix.Iovec, 0, min(len(bs), maxKernelVec)), bs, skip)
	s.prep(op, fd, unsafe.Pointer(unsafe.SliceData(iov)), len(iov), uint64(off))
	s.keep = iov
	return iov
}

// PrepFsync prepares an fsync, or an fdatasync. Do not link it to a write whose
// data it is to make durable, unless a short write is written anew as a whole:
// what is left of it would come after the sync. And the kernel does not always
// end a chain after a short write.
func (s *SQE) PrepFsync(fd int, dataOnly bool) {
	s.prep(OpFsync, fd, nil, 0, 0)
	if dataOnly {
		s.raw.opFlags = fsyncDatasync
	}
}

// PrepFallocate prepares a fallocate with mode from fallocate(2).
func (s *SQE) PrepFallocate(fd int, mode uint32, off, n int64) {
	s.prep(OpFallocate, fd, nil, int(mode), uint64(off))
	s.raw.addr = uint64(n)
}

// PrepOpenat prepares an openat. The result is a descriptor, opened with
// O_CLOEXEC. A path with a NUL byte ends there.
func (s *SQE) PrepOpenat(dirfd int, path string, flags int, perm uint32) {
	p := append([]byte(path), 0)
	s.prep(OpOpenat, dirfd, unsafe.Pointer(&p[0]), int(perm), 0)
	s.raw.opFlags = uint32(flags) | unix.O_CLOEXEC | unix.O_LARGEFILE
	s.keep = p
}

// PrepClose prepares the close of a descriptor.
func (s *SQE) PrepClose(fd int) { s.prep(OpClose, fd, nil, 0, 0) }

// PrepStatx prepares a statx into st, which must not be looked at before the
// completion. An empty path with unix.AT_EMPTY_PATH is dirfd itself.
func (s *SQE) PrepStatx(dirfd int, path string, flags int, mask uint32, st *unix.Statx_t) {
	p := append([]byte(path), 0)
	s.prep(OpStatx, dirfd, unsafe.Pointer(&p[0]), int(mask), uint64(uintptr(unsafe.Pointer(st))))
	s.raw.opFlags = uint32(flags)
	s.keep = [2]unsafe.Pointer{unsafe.Pointer(&p[0]), unsafe.Pointer(st)}
}

// PrepRecv prepares a recv with the flags of recv(2).
func (s *SQE) PrepRecv(fd int, b Buffer, flags int) {
	s.prepBuffer(OpRecv, fd, b, 0)
	s.raw.opFlags = uint32(flags)
}

// PrepRecvMultishot prepares a recv that completes again and again, every time
// with a buffer from group, see [BufRing]. It ends when a completion lacks
// [CQEMore], at the end of the stream, when the group is empty (ENOBUFS) or
// when it is cancelled.
func (s *SQE) PrepRecvMultishot(fd int, group uint16, flags int) {
	s.prep(OpRecv, fd, nil, 0, 0)
	s.raw.ioprio = recvMultishot
	s.raw.flags = SQEBufferSelect
	s.raw.bufIndex = group
	s.raw.opFlags = uint32(flags)
}

// PrepSend prepares a send with the flags of send(2).
func (s *SQE) PrepSend(fd int, b Buffer, flags int) {
	s.prepBuffer(OpSend, fd, b, 0)
	s.raw.opFlags = uint32(flags)
}

// PrepSendZC prepares a send without a copy. Two completions come: the result,
// with [CQEMore], and one with [CQENotif] when the buffer is free. Sockets that
// cannot do it say EOPNOTSUPP, multipath TCP among them.
func (s *SQE) PrepSendZC(fd int, b Buffer, flags int) {
	s.prepBuffer(OpSendZC, fd, b, 0)
	s.raw.opFlags = uint32(flags)
}

// PrepSplice prepares a splice of n bytes; offsets of -1 are the files' own
// positions, and what pipes want.
func (s *SQE) PrepSplice(in int, inOff int64, out int, outOff int64, n, flags int) {
	s.prep(OpSplice, out, nil, n, uint64(outOff))
	s.raw.addr = uint64(inOff)
	s.raw.spliceFdIn = int32(in)
	s.raw.opFlags = uint32(flags)
}

// PrepShutdown prepares the shutdown of a socket, how as in shutdown(2).
func (s *SQE) PrepShutdown(fd, how int) { s.prep(OpShutdown, fd, nil, how, 0) }

// PrepAccept prepares an accept. The result is a descriptor, opened with
// SOCK_CLOEXEC.
func (s *SQE) PrepAccept(fd int, flags int) {
	s.prep(OpAccept, fd, nil, 0, 0)
	s.raw.opFlags = uint32(flags) | unix.SOCK_CLOEXEC
}

// PrepMultishotAccept prepares an accept that completes with every connection
// until it is cancelled or a completion lacks [CQEMore].
func (s *SQE) PrepMultishotAccept(fd int, flags int) {
	s.PrepAccept(fd, flags)
	s.raw.ioprio = acceptMultishot
}

// PrepPollAdd prepares a wait for the events of poll(2), once.
func (s *SQE) PrepPollAdd(fd int, events uint32) {
	s.prep(OpPollAdd, fd, nil, 0, 0)
	s.raw.opFlags = pollEvents(events)
}

// PrepPollMultishot prepares a wait that completes with every event until it is
// cancelled.
func (s *SQE) PrepPollMultishot(fd int, events uint32) {
	s.PrepPollAdd(fd, events)
	s.raw.len = pollAddMulti
}

// PrepPollRemove prepares the end of the poll t.
func (s *SQE) PrepPollRemove(t Token) {
	s.prep(OpPollRemove, -1, nil, 0, 0)
	s.raw.addr = uint64(t)
}

// PrepTimeout prepares a timer. It completes with ETIME after d, or with 0 when
// count other operations have completed before, if count is not 0.
func (s *SQE) PrepTimeout(d time.Duration, count int) {
	ts := kernelTime(d)
	s.prep(OpTimeout, -1, unsafe.Pointer(ts), 1, uint64(count))
	s.keep = ts
}

// PrepTimeoutRemove prepares the end of the timer t.
func (s *SQE) PrepTimeoutRemove(t Token) {
	s.prep(OpTimeoutRm, -1, nil, 0, 0)
	s.raw.addr = uint64(t)
}

// PrepLinkTimeout prepares a time limit for the operation before it, which has
// to have [SQEIOLink]. If time runs out that one completes with ECANCELED and
// the limit with ETIME, otherwise the limit completes with ECANCELED.
func (s *SQE) PrepLinkTimeout(d time.Duration) {
	ts := kernelTime(d)
	s.prep(OpLinkTimeout, -1, unsafe.Pointer(ts), 1, 0)
	s.keep = ts
}

// PrepCancel prepares the cancellation of t. The completion of t comes all the
// same: with ECANCELED, or with its result if it was too late.
func (s *SQE) PrepCancel(t Token) {
	s.prep(OpAsyncCancel, -1, nil, 0, 0)
	s.raw.addr = uint64(t)
}

// PrepCancelFD prepares the cancellation of everything that uses a descriptor.
// The result is how many there were.
func (s *SQE) PrepCancelFD(fd int) {
	s.prep(OpAsyncCancel, fd, nil, 0, 0)
	s.raw.opFlags = asyncCancelFD | asyncCancelAll
}

// PrepMsgRing prepares a message to another ring of the process: a completion
// with res and userData appears there, with [CQE.Message] set. The upper bit of
// userData must be clear.
func (s *SQE) PrepMsgRing(ringFD int, res int32, userData uint64) {
	s.prep(OpMsgRing, ringFD, nil, int(res), userData)
}

// A Token stands for an operation in flight, to cancel it. It is good until the
// operation's last completion; later it matches nothing.
type Token uint64

// kernelTime is struct __kernel_timespec, 64 bits wide everywhere.
func kernelTime(d time.Duration) *[2]int64 {
	return &[2]int64{int64(d / time.Second), int64(d % time.Second)}
}

// pollEvents swaps the halves of the mask on big-endian machines, where the
// kernel wants them so.
func pollEvents(events uint32) uint32 {
	if bigEndian {
		return events<<16 | events>>16
	}
	return events
}

var bigEndian = func() bool {
	x := uint16(1)
	return *(*byte)(unsafe.Pointer(&x)) == 0
}()
