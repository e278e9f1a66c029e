package iouring

import (
	"errors"
	"math/bits"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// States of a [Ring] that Push reports.
var (
	ErrSQFull = errors.New("iouring: the submission queue is full") // Submit makes room
	ErrCQFull = errors.New("iouring: too much is in flight")        // taking completions makes room
)

// DefaultEntries is the length of the submission queue of a ring whose config
// names none.
const DefaultEntries = 256

// maxEntries is the kernel's limit for the submission queue.
const maxEntries = 32768

// maxKernelVec is the kernel's limit for the vector of one operation.
const maxKernelVec = 1024

// RingConfig configures [NewRing]. The zero value is a plain ring.
type RingConfig struct {
	// Entries is the length of the submission queue, rounded up to a power of two
	// and cut at 32768. 0 means DefaultEntries.
	Entries int

	// CQEntries is the length of the completion queue and bounds what is in
	// flight. 0 means twice Entries.
	CQEntries int

	// Flags are optional. With SetupSingleIssuer and SetupDeferTaskrun every call
	// must come from one thread: use runtime.LockOSThread.
	Flags SetupFlags

	// SQThreadIdle is how long the kernel's thread of SetupSQPoll spins. 0 is the
	// kernel's default, a second.
	SQThreadIdle time.Duration
}

// A Ring is one io_uring. It is for one goroutine at a time; an [Engine] shares
// one. Operations are queued by Push, begin with Submit and end with a [CQE].
//
// Close it, or its descriptor and its memory stay.
type Ring struct {
	fd       int
	file     *os.File // when the descriptor is in Go's netpoller, its owner
	params   ringParams
	features Features

	ringMem, sqeMem  []byte
	sqHead, sqTail   *uint32
	sqFlags          *uint32
	cqHead, cqTail   *uint32
	sqes, cqes       unsafe.Pointer
	sqMask, cqMask   uint32
	tail             uint32 // of the submission queue, not yet shown to the kernel
	shown            uint32 // what the kernel was shown
	closed           bool
	slots            []ringSlot
	freeSlot         int32
	inFlight         int
	waitArg          geteventsArg
	waitTime         [2]int64
	enters           int64
	overflows, stale int64
}

// A ringSlot is what an operation in flight needs kept.
type ringSlot struct {
	userData uint64
	buf      Buffer
	bufs     []Buffer
	keep     any
	op       *Op
	gen      uint32
	next     int32 // free list, -1 ends
	busy     bool
}

// What the kernel gets as user data is a token, userDataOurs|gen<<32|slot. The
// generation makes a completion that nobody waits for harmless. User data
// without the upper bit is another ring's message.
const (
	userDataOurs    = 1 << 63
	userDataDiscard = 1<<64 - 1
	genMask         = 1<<30 - 1
)

// A CQE is a completion.
type CQE struct {
	UserData uint64 // of the SQE
	Res      int32  // result, or a negated errno
	Flags    CQEFlags
	Message  bool // sent by another ring
}

// Err returns the errno of a failed operation, a unix.Errno, or nil.
func (c CQE) Err() error {
	if c.Res < 0 {
		return syscall.Errno(-c.Res)
	}
	return nil
}

// More reports whether the operation goes on.
func (c CQE) More() bool { return c.Flags&CQEMore != 0 }

// BufferID returns the number of the buffer that a completion took from a
// group, and whether it took one.
func (c CQE) BufferID() (uint16, bool) {
	return uint16(c.Flags >> cqeBufferShift), c.Flags&CQEBuffer != 0
}

// NewRing sets a ring up. The error is an *os.SyscallError: EPERM or ENOSYS
// where io_uring is forbidden or missing, ENOMEM when RLIMIT_MEMLOCK is too low.
// Or a *ConfigError.
func NewRing(cfg RingConfig) (*Ring, error) {
	if cfg.Entries < 0 {
		return nil, &ConfigError{Field: "RingConfig.Entries", Value: cfg.Entries, Want: "0 or more"}
	}
	if cfg.CQEntries < 0 || cfg.CQEntries > 2*maxEntries {
		return nil, &ConfigError{Field: "RingConfig.CQEntries", Value: cfg.CQEntries, Want: "0 to 65536"}
	}
	if cfg.Entries == 0 {
		cfg.Entries = DefaultEntries
	}
	entries := min(cfg.Entries, maxEntries)
	r := &Ring{}
	p := ringParams{flags: cfg.Flags | setupClamp | setupSubmitAll}
	if cfg.CQEntries > 0 {
		p.flags |= setupCQSize
		p.cqEntries = uint32(max(cfg.CQEntries, 1<<bits.Len(uint(entries-1))))
	}
	p.sqThreadIdle = uint32(cfg.SQThreadIdle / time.Millisecond)
	var fd int
	err := lockingMemory(func() (err error) {
		fd, err = ringSetup(entries, &p)
		return err
	})
	if err == unix.EINVAL { // a kernel before 5.18
		p.flags &^= setupSubmitAll
		fd, err = ringSetup(entries, &p)
	}
	if err != nil {
		return nil, os.NewSyscallError("io_uring_setup", err)
	}
	r.fd, r.params, r.features = fd, p, p.features
	if err := r.mmap(); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("mmap of io_uring", err)
	}
	r.slots = make([]ringSlot, p.cqEntries)
	for i := range r.slots {
		r.slots[i].next = int32(i) + 1
	}
	r.slots[len(r.slots)-1].next = -1
	return r, nil
}

// lastClose is when a ring of this process was closed, in Unix nanoseconds.
var lastClose atomic.Int64

// lockingMemory tries f again for about a second when it fails with ENOMEM soon
// after a ring was closed: the kernel takes rings down in the background and
// counts their memory against RLIMIT_MEMLOCK until then.
func lockingMemory(f func() error) error {
	err := f()
	for pause := time.Millisecond; errors.Is(err, unix.ENOMEM) && pause < time.Second; pause *= 2 {
		if time.Since(time.Unix(0, lastClose.Load())) > 2*time.Second {
			break
		}
		time.Sleep(pause)
		err = f()
	}
	return err
}

func ringSetup(entries int, p *ringParams) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// mmap maps the queues. Kernels since 5.4 have both in one mapping; older ones
// lack what else we need.
func (r *Ring) mmap() (err error) {
	p := &r.params
	if p.features&FeatSingleMmap == 0 {
		return unix.ENOSYS
	}
	size := max(p.cq.cqes+p.cqEntries*sizeofCQE, p.sq.array+p.sqEntries*4)
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	if r.ringMem, err = unix.Mmap(r.fd, offSQRing, int(size), prot, flags); err != nil {
		return err
	}
	if r.sqeMem, err = unix.Mmap(r.fd, offSQEs, int(p.sqEntries*sizeofSQE), prot, flags); err != nil {
		unix.Munmap(r.ringMem)
		return err
	}
	base := unsafe.Pointer(unsafe.SliceData(r.ringMem))
	at := func(off uint32) *uint32 { return (*uint32)(unsafe.Add(base, off)) }
	r.sqHead, r.sqTail, r.sqFlags = at(p.sq.head), at(p.sq.tail), at(p.sq.flags)
	r.cqHead, r.cqTail = at(p.cq.head), at(p.cq.tail)
	r.sqMask, r.cqMask = *at(p.sq.mask), *at(p.cq.mask)
	r.sqes = unsafe.Pointer(unsafe.SliceData(r.sqeMem))
	r.cqes = unsafe.Add(base, p.cq.cqes)
	// The submission queue holds indices; ours stay what they are.
	index := unsafe.Slice(at(p.sq.array), p.sqEntries)
	for i := range index {
		index[i] = uint32(i)
	}
	return nil
}

// FD returns the ring's descriptor, for [SQE.PrepMsgRing] and poll.
func (r *Ring) FD() int { return r.fd }

// Features returns what the kernel can do.
func (r *Ring) Features() Features { return r.features }

// Entries returns the lengths of the submission and the completion queue.
func (r *Ring) Entries() (sq, cq int) { return int(r.params.sqEntries), int(r.params.cqEntries) }

// InFlight returns how many operations have been pushed and not yet ended.
func (r *Ring) InFlight() int { return r.inFlight }

// Push queues an operation and pins its buffers; s may be used again at once.
// The error is ErrSQFull, ErrCQFull, ErrClosed or a *BufferError.
//
// Operations that are linked have to be submitted together: push them without a
// Submit in between.
func (r *Ring) Push(s *SQE) (Token, error) {
	if r.closed {
		return 0, ErrClosed
	}
	if r.room() == 0 {
		return 0, ErrSQFull
	}
	if r.freeSlot < 0 {
		return 0, ErrCQFull
	}
	if err := s.check(); err != nil {
		return 0, err
	}
	if err := s.pin(); err != nil {
		return 0, err
	}
	return r.push(s, nil), nil
}

// push queues an operation whose buffers are pinned and for which there is room.
func (r *Ring) push(s *SQE, op *Op) Token {
	i := r.freeSlot
	slot := &r.slots[i]
	r.freeSlot = slot.next
	slot.userData, slot.buf, slot.bufs, slot.keep, slot.op, slot.busy = s.UserData, s.buf, s.bufs, s.keep, op, true
	r.inFlight++
	token := r.token(i)
	r.put(&s.raw, uint64(token))
	return token
}

func (r *Ring) token(slot int32) Token {
	return Token(userDataOurs | uint64(r.slots[slot].gen)<<32 | uint64(slot))
}

// cancel queues the cancellation of t. Nobody waits for its own completion: that
// of t tells all.
func (r *Ring) cancel(t Token) error {
	if r.room() == 0 {
		return ErrSQFull
	}
	var s SQE
	s.PrepCancel(t)
	r.put(&s.raw, userDataDiscard)
	return nil
}

func (r *Ring) put(raw *rawSQE, userData uint64) {
	sqe := (*rawSQE)(unsafe.Add(r.sqes, uintptr(r.tail&r.sqMask)*sizeofSQE))
	*sqe = *raw
	sqe.userData = userData
	r.tail++
}

// room returns how many entries the submission queue has room for.
func (r *Ring) room() uint32 {
	return r.params.sqEntries - (r.tail - atomic.LoadUint32(r.sqHead))
}

// ready returns how many completions wait to be taken.
func (r *Ring) ready() uint32 { return atomic.LoadUint32(r.cqTail) - atomic.LoadUint32(r.cqHead) }

// Submit hands what was pushed to the kernel, without waiting, and returns how
// many operations that were. After an error, an *os.SyscallError, the rest stays
// queued; EAGAIN and EBUSY want completions to be taken first.
func (r *Ring) Submit() (int, error) { return r.submit(0, 0) }

// SubmitAndWait is Submit, and waits until n completions can be taken, or all if
// fewer are in flight. Signals do not end the wait.
func (r *Ring) SubmitAndWait(n int) (int, error) { return r.submit(n, 0) }

// SubmitAndWaitTimeout is SubmitAndWait for at most d. When the time is over the
// error is ETIME.
func (r *Ring) SubmitAndWaitTimeout(n int, d time.Duration) (int, error) {
	return r.submit(n, max(d, 1))
}

func (r *Ring) submit(wait int, limit time.Duration) (int, error) {
	if r.closed {
		return 0, ErrClosed
	}
	var deadline time.Time
	if limit > 0 {
		deadline = time.Now().Add(limit)
	}
	submitted := 0
	for {
		var flags, pending uint32
		if r.params.flags&SetupSQPoll != 0 {
			submitted += int(r.show())
			if atomic.LoadUint32(r.sqFlags)&sqNeedWakeup != 0 && r.tail != atomic.LoadUint32(r.sqHead) {
				flags |= enterSQWakeup
			}
			if r.room() == 0 {
				flags |= enterSQWait
			}
		} else {
			r.show()
			pending = r.tail - atomic.LoadUint32(r.sqHead)
		}
		// A signal makes the kernel return early, and it tells only what it
		// submitted. What is in flight also bounds what can come.
		var want uint32
		if n := uint32(min(wait, r.inFlight)); r.ready() < n {
			want = n
			flags |= enterGetEvents
		} else if r.behind() {
			flags |= enterGetEvents
		}
		if pending == 0 && flags == 0 {
			return submitted, nil
		}
		n, errno := r.enter(pending, want, flags, deadline)
		submitted += n
		switch errno {
		case 0, unix.EINTR:
			if want == 0 && errno == 0 && (n == int(pending) || r.params.flags&SetupSQPoll != 0) {
				return submitted, nil
			}
		default:
			return submitted, os.NewSyscallError("io_uring_enter", errno)
		}
	}
}

// show makes the kernel see what was pushed and returns how much is new.
func (r *Ring) show() uint32 {
	n := r.tail - r.shown
	if n > 0 {
		r.shown = r.tail
		atomic.StoreUint32(r.sqTail, r.tail)
	}
	return n
}

// behind reports whether completions lie in the kernel that only an enter
// brings out: because the queue overflowed, or because work of ours waits.
func (r *Ring) behind() bool {
	return r.params.flags&SetupDeferTaskrun != 0 && r.inFlight > 0 ||
		atomic.LoadUint32(r.sqFlags)&(sqCQOverflow|sqTaskrun) != 0
}

func (r *Ring) enter(submit, want, flags uint32, deadline time.Time) (int, syscall.Errno) {
	r.enters++
	var arg unsafe.Pointer
	var size uintptr
	if want > 0 && !deadline.IsZero() {
		left := time.Until(deadline)
		if left <= 0 {
			return 0, unix.ETIME
		}
		r.waitTime = *kernelTime(left)
		r.waitArg = geteventsArg{ts: uint64(uintptr(unsafe.Pointer(&r.waitTime)))}
		arg, size = unsafe.Pointer(&r.waitArg), unsafe.Sizeof(r.waitArg)
		flags |= enterExtArg
	}
	n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(submit), uintptr(want), uintptr(flags), uintptr(arg), size)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// PeekCQE takes a completion if there is one.
func (r *Ring) PeekCQE() (CQE, bool) {
	_, c, ok := r.take()
	return c, ok
}

// WaitCQE submits what was pushed and takes a completion, waiting for it if
// something is in flight. Otherwise the error is ErrNothingInFlight.
func (r *Ring) WaitCQE() (CQE, error) {
	for {
		if c, ok := r.PeekCQE(); ok {
			return c, nil
		}
		if r.inFlight == 0 && !r.closed {
			return CQE{}, ErrNothingInFlight
		}
		if _, err := r.SubmitAndWait(1); err != nil {
			return CQE{}, err
		}
	}
}

// ErrNothingInFlight is a wait for nothing.
var ErrNothingInFlight = errors.New("iouring: nothing is in flight")

// take takes a completion and returns whose it is.
func (r *Ring) take() (*Op, CQE, bool) {
	if r.closed {
		return nil, CQE{}, false
	}
	for {
		head := atomic.LoadUint32(r.cqHead)
		if head == atomic.LoadUint32(r.cqTail) {
			flags := atomic.LoadUint32(r.sqFlags)
			if flags&(sqCQOverflow|sqTaskrun) == 0 {
				return nil, CQE{}, false
			}
			if flags&sqCQOverflow != 0 {
				r.overflows++
			}
			if _, errno := r.enter(0, 0, enterGetEvents, time.Time{}); errno != 0 && errno != unix.EINTR {
				return nil, CQE{}, false
			}
			if r.ready() == 0 {
				return nil, CQE{}, false
			}
			continue
		}
		raw := *(*rawCQE)(unsafe.Add(r.cqes, uintptr(head&r.cqMask)*sizeofCQE))
		atomic.StoreUint32(r.cqHead, head+1)
		if op, c, ok := r.match(raw); ok {
			return op, c, true
		}
	}
}

// match finds the operation of a completion and, if it is its last one, lets go
// of what the operation used.
func (r *Ring) match(raw rawCQE) (*Op, CQE, bool) {
	c := CQE{Res: raw.res, Flags: raw.flags}
	if raw.userData&userDataOurs == 0 {
		c.UserData, c.Message = raw.userData, true
		return nil, c, true
	}
	if raw.userData == userDataDiscard {
		return nil, c, false
	}
	i := uint32(raw.userData)
	if i >= uint32(len(r.slots)) {
		r.stale++
		return nil, c, false
	}
	slot := &r.slots[i]
	if !slot.busy || uint64(r.token(int32(i))) != raw.userData {
		r.stale++
		return nil, c, false
	}
	c.UserData = slot.userData
	op := slot.op
	if !c.More() {
		slot.buf.unpin()
		unpinAll(slot.bufs)
		*slot = ringSlot{gen: (slot.gen + 1) & genMask, next: r.freeSlot}
		r.freeSlot = int32(i)
		r.inFlight--
	}
	return op, c, true
}

// holds reports whether the operation t is in flight.
func (r *Ring) holds(t Token) bool {
	i := uint32(t)
	return i < uint32(len(r.slots)) && r.slots[i].busy && r.token(int32(i)) == t
}

// retract takes back what was pushed and the kernel has not taken, as if it had
// completed with errno.
func (r *Ring) retract(errno syscall.Errno, done func(*Op, CQE)) {
	if r.params.flags&SetupSQPoll != 0 {
		return // the kernel's thread may be reading them
	}
	head := atomic.LoadUint32(r.sqHead)
	for t := head; t != r.tail; t++ {
		sqe := (*rawSQE)(unsafe.Add(r.sqes, uintptr(t&r.sqMask)*sizeofSQE))
		if op, c, ok := r.match(rawCQE{userData: sqe.userData, res: -int32(errno)}); ok && op != nil {
			done(op, c)
		}
	}
	r.tail, r.shown = head, head
	atomic.StoreUint32(r.sqTail, head)
}

// Close cancels what is in flight, waits until the kernel has let go of every
// buffer and frees the ring. An operation that cannot be cancelled, on a disk
// for example, is waited for. Closing twice is fine.
func (r *Ring) Close() error {
	if r.closed {
		return nil
	}
	err := r.drain(nil)
	r.closed = true
	lastClose.Store(time.Now().UnixNano())
	// The kernel has its own mapping of the queues.
	err = errors.Join(err, unix.Munmap(r.ringMem), unix.Munmap(r.sqeMem))
	if r.file != nil {
		return errors.Join(err, r.file.Close())
	}
	return errors.Join(err, os.NewSyscallError("close", unix.Close(r.fd)))
}

// drain cancels everything and takes all completions, handing those that belong
// to an operation of an engine to done.
func (r *Ring) drain(done func(*Op, CQE)) error {
	take := func() {
		for {
			op, c, ok := r.take()
			if !ok {
				return
			}
			if op != nil && done != nil {
				done(op, c)
			}
		}
	}
	for i := range r.slots {
		if !r.slots[i].busy {
			continue
		}
		for r.cancel(r.token(int32(i))) != nil {
			if _, err := r.Submit(); err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EAGAIN) {
				return err
			}
			take()
		}
	}
	for r.inFlight > 0 {
		if _, err := r.SubmitAndWait(1); err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
		take()
	}
	return nil
}

func (r *Ring) register(op uint32, arg unsafe.Pointer, n int) (int, error) {
	if r.closed {
		return 0, ErrClosed
	}
	v, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), uintptr(op), uintptr(arg), uintptr(n), 0, 0)
	if errno != 0 {
		return 0, os.NewSyscallError("io_uring_register", errno)
	}
	return int(v), nil
}

// A Probe says which operations a kernel has.
type Probe struct{ ops [256]bool }

// Supports reports whether the kernel has the operation.
func (p *Probe) Supports(op Opcode) bool { return p.ops[op] }

// Probe asks the kernel which operations it has.
func (r *Ring) Probe() (*Probe, error) {
	raw := new(probe)
	if _, err := r.register(registerProbe, unsafe.Pointer(raw), len(raw.ops)); err != nil {
		return nil, err
	}
	p := new(Probe)
	for _, o := range raw.ops[:raw.opsLen] {
		p.ops[o.op] = o.flags&opSupported != 0
	}
	return p, nil
}

// RegisterArenas registers the memory of arenas, so that the kernel need not
// look its pages up for every operation: arena i is then bufIndex i of
// [SQE.PrepReadFixed]. All their pages become resident and, without
// CAP_IPC_LOCK, count against RLIMIT_MEMLOCK (ENOMEM). It can be done once.
func (r *Ring) RegisterArenas(arenas ...*Arena) error {
	iov := make([]unix.Iovec, len(arenas))
	for i, a := range arenas {
		iov[i].Base = (*byte)(a.base)
		iov[i].SetLen(int(a.Bytes()))
	}
	return lockingMemory(func() error {
		_, err := r.register(registerBuffers, unsafe.Pointer(unsafe.SliceData(iov)), len(iov))
		return err
	})
}

// UnregisterArenas undoes RegisterArenas.
func (r *Ring) UnregisterArenas() error {
	_, err := r.register(unregisterBuffers, nil, 0)
	return err
}

// RegisterFilesSparse makes a table of n registered files, all of them empty.
// SQEFixedFile then takes indices into it. It saves looking the descriptor up
// for every operation.
func (r *Ring) RegisterFilesSparse(n int) error {
	reg := &rsrcRegister{nr: uint32(n), flags: registerSparse}
	_, err := r.register(registerFiles2, unsafe.Pointer(reg), int(unsafe.Sizeof(*reg)))
	return err
}

// UpdateFiles puts descriptors into the table of registered files from index off
// on; -1 empties a place. The table holds the files open, operations in flight
// keep theirs.
func (r *Ring) UpdateFiles(off int, fds []int32) error {
	fds = slices.Clone(fds) // the kernel sees their address only as a number
	u := &struct {
		filesUpdate
		keep []int32
	}{filesUpdate{offset: uint32(off), fds: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(fds))))}, fds}
	n, err := r.register(registerFilesUpdate, unsafe.Pointer(u), len(fds))
	if err == nil && n != len(fds) {
		return os.NewSyscallError("io_uring_register", unix.EBADF)
	}
	return err
}

// UnregisterFiles drops the table.
func (r *Ring) UnregisterFiles() error {
	_, err := r.register(unregisterFiles, nil, 0)
	return err
}

// SetMaxWorkers limits the kernel's worker threads of the ring for each thread
// that submits: bounded ones for files and block devices, unbounded ones for
// everything else. 0 leaves a limit as it is. It returns the limits before.
func (r *Ring) SetMaxWorkers(bounded, unbounded int) (oldBounded, oldUnbounded int, err error) {
	limits := &[2]uint32{uint32(bounded), uint32(unbounded)}
	if _, err := r.register(registerIOWQMaxWorkers, unsafe.Pointer(limits), 2); err != nil {
		return 0, 0, err
	}
	return int(limits[0]), int(limits[1]), nil
}
