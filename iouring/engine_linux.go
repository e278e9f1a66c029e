package iouring

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/blockpath/blockpath/stripedcounter"
	"golang.org/x/sys/unix"
)

// maxTurns bounds how long a caller serves others before it hands the ring on.
const maxTurns = 32

// An Op is an operation for an [Engine]: prepare it, submit it, wait for it. The
// zero Op is a no-op. An Op may be used again, without allocating, after Wait
// has returned; until then it must not be touched.
type Op struct {
	SQE

	cqe   CQE
	err   error // of the engine, not of the operation
	token Token
	call  func() // run this where the ring may be used, instead
	next  *Op
	state atomic.Uint32
	wake  chan struct{} // capacity 1
	multi *Multishot
}

const (
	opIdle    = iota
	opQueued  // the engine has it
	opWaiting // and the owner sleeps until it is done
	opDone
)

// CQE returns the completion, after Wait.
func (o *Op) CQE() CQE { return o.cqe }

// finish hands the operation back to its owner. It must not be touched after.
func (o *Op) finish(c CQE, err error) {
	o.cqe, o.err = c, err
	if o.state.Swap(opDone) == opWaiting {
		o.wake <- struct{}{}
	}
}

// EngineConfig configures [NewEngine]. The zero value suits most.
type EngineConfig struct {
	Ring RingConfig

	// Dedicated gives the ring a thread of its own, with SetupSingleIssuer and
	// SetupDeferTaskrun. It is the cheapest for many operations in flight all the
	// time (64 and more), and much slower for few.
	Dedicated bool

	// Register are arenas to register with the ring. Reads and writes of a
	// [Backend] then use registered memory. See [Ring.RegisterArenas].
	Register []*Arena
}

// An Engine lets many goroutines share one ring.
//
// A caller that submits puts its operations on a list and, if nobody else has
// the ring, takes it: it submits what is on the list with one system call,
// takes the completions that are there already, and wakes their owners (flat
// combining: Hendler, Incze, Shavit, Tzafrir, SPAA 2010). An operation that the
// kernel completes at once costs no switch of goroutine or thread. For what
// stays in flight a goroutine waits on the ring's descriptor in Go's netpoller,
// so that no thread is blocked. Owners are woken without waiting for them,
// whatever they do.
//
// What is in flight is bounded by the completion queue; the rest waits in the
// order it came.
//
// A goroutine that ends while it is locked to its thread takes the thread along,
// and the kernel cancels what that thread has submitted, for others too. Such an
// operation ends with ECANCELED; a [Backend] tries it again.
type Engine struct {
	head atomic.Pointer[Op] // newest first
	stat *stripedcounter.Set

	maxChain int // what fits into the ring

	lead    sync.Mutex // guards the ring and what follows
	ring    *Ring
	queue   opQueue // waits for room in the ring
	closed  bool
	polling bool
	retry   bool
	crowd   bool // letting others come first brought more
	turns   uint

	// A shared ring, once something has stayed in flight.
	raw    syscall.RawConn
	blind  bool // the netpoller does not take the ring
	kick   chan struct{}
	polled chan struct{}

	owner *owner // of a dedicated ring, or nil
}

// opQueue is a list of operations, first in first out.
type opQueue struct {
	first, last *Op
}

func (q *opQueue) push(o *Op) {
	o.next = nil
	if q.last == nil {
		q.first = o
	} else {
		q.last.next = o
	}
	q.last = o
}

func (q *opQueue) pop() *Op {
	o := q.first
	q.first = o.next
	if q.first == nil {
		q.last = nil
	}
	o.next = nil
	return o
}

// remove takes o out and reports whether it was there.
func (q *opQueue) remove(o *Op) bool {
	var before *Op
	for at := q.first; at != nil; before, at = at, at.next {
		if at != o {
			continue
		}
		if before == nil {
			q.first = o.next
		} else {
			before.next = o.next
		}
		if q.last == o {
			q.last = before
		}
		o.next = nil
		return true
	}
	return false
}

// NewEngine sets up a ring to share. Errors are those of [NewRing] and
// [Ring.RegisterArenas].
func NewEngine(cfg EngineConfig) (*Engine, error) {
	return newEngine(cfg, stripedcounter.NewSet(statNames[:engineStats]...))
}

// newEngine counts in stat, which begins with an engine's counters.
func newEngine(cfg EngineConfig, stat *stripedcounter.Set) (*Engine, error) {
	e := &Engine{stat: stat}
	if cfg.Dedicated {
		if err := e.startOwner(cfg); err != nil {
			return nil, err
		}
		return e, nil
	}
	ring, err := newEngineRing(cfg)
	if err != nil {
		return nil, err
	}
	e.setRing(ring)
	return e, nil
}

func (e *Engine) setRing(r *Ring) {
	e.ring = r
	e.maxChain = len(r.slots)
	if sq, _ := r.Entries(); sq < e.maxChain {
		e.maxChain = sq
	}
}

func newEngineRing(cfg EngineConfig) (*Ring, error) {
	ring, err := NewRing(cfg.Ring)
	if err != nil {
		return nil, err
	}
	if len(cfg.Register) > 0 {
		if err := ring.RegisterArenas(cfg.Register...); err != nil {
			return nil, errors.Join(err, ring.Close())
		}
	}
	return ring, nil
}

// Stats returns the engine's counters: sqe, enter, cqe, inline, cancel,
// cq_overflow, stale_cqe, busy.
func (e *Engine) Stats() *stripedcounter.Set { return e.stat }

// Submit begins operations, all of them with one system call if there is room.
// Those that are linked must be in one Submit. It fails with a *BufferError or
// *ConfigError, and then begins none of them; a closed engine is reported by
// Wait. It panics if an operation is already under way.
func (e *Engine) Submit(ops ...*Op) error {
	if len(ops) == 0 {
		return nil
	}
	if err := e.prepare(ops); err != nil {
		return err
	}
	e.enqueue(ops)
	e.drive()
	return nil
}

// prepare checks ops and pins their buffers, all or none.
func (e *Engine) prepare(ops []*Op) error {
	chain := 0
	for _, o := range ops {
		if err := o.check(); err != nil {
			return err
		}
		if chain++; !o.linked() {
			chain = 0
		}
		if chain == e.maxChain {
			return &ConfigError{Field: "linked operations", Value: "longer", Want: fmt.Sprintf("at most %d", e.maxChain)}
		}
	}
	if chain != 0 {
		return &ConfigError{Field: "SQE flags of the last operation", Value: "a link", Want: "no link"}
	}
	for i, o := range ops {
		if !o.state.CompareAndSwap(opIdle, opQueued) {
			panic("iouring: operation submitted while under way")
		}
		if err := o.pin(); err != nil {
			o.state.Store(opIdle)
			for _, p := range ops[:i] {
				p.unpin()
				p.state.Store(opIdle)
			}
			return err
		}
		if o.wake == nil {
			o.wake = make(chan struct{}, 1)
		}
	}
	return nil
}

// enqueue puts ops on the list, the last one in front.
func (e *Engine) enqueue(ops []*Op) {
	for i := 1; i < len(ops); i++ {
		ops[i].next = ops[i-1]
	}
	for {
		head := e.head.Load()
		ops[0].next = head
		if e.head.CompareAndSwap(head, ops[len(ops)-1]) {
			return
		}
	}
}

// Wait waits for an operation and returns its result. The error is a unix.Errno
// for one that failed, ErrClosed, or ctx.Err(): when ctx ends the operation is
// cancelled, and Wait returns when it has ended, with the result if it was too
// late to cancel.
func (e *Engine) Wait(ctx context.Context, o *Op) (int, error) {
	if o.state.CompareAndSwap(opQueued, opWaiting) {
		select {
		case <-o.wake:
		case <-ctx.Done():
			e.cancel(o)
			<-o.wake
		}
	}
	if o.state.Swap(opIdle) != opDone {
		panic("iouring: wait for an operation that was not submitted")
	}
	if o.err != nil {
		return 0, o.err
	}
	if err := o.cqe.Err(); err != nil {
		// Work that a kernel thread had begun is interrupted instead.
		if (err == unix.ECANCELED || err == unix.EINTR) && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		return 0, err
	}
	return int(o.cqe.Res), nil
}

// Do submits an operation and waits for it.
func (e *Engine) Do(ctx context.Context, o *Op) (int, error) {
	if err := e.Submit(o); err != nil {
		return 0, err
	}
	return e.Wait(ctx, o)
}

// cancel asks for the end of o and returns when that has been passed on, so
// that it cannot hit a later use of o.
func (e *Engine) cancel(o *Op) { e.run(func() { e.cancelNow(o) }) }

// run runs f by whoever has the ring, after everything that was submitted
// before.
func (e *Engine) run(f func()) {
	c := &Op{call: f, wake: make(chan struct{}, 1)}
	c.state.Store(opWaiting)
	e.enqueue([]*Op{c})
	e.drive()
	<-c.wake
}

// OnRing runs f where the engine's ring may be used, after what was submitted
// before, and returns its error: to register files, for example. f must not
// push, submit or take completions. The error is ErrClosed if the engine is
// closed.
func (e *Engine) OnRing(f func(*Ring) error) (err error) {
	e.run(func() {
		if err = ErrClosed; !e.closed {
			err = f(e.ring)
		}
	})
	return err
}

// drive sees to it that what is on the list gets to the ring: by this goroutine,
// or by the one that has the ring, which looks at the list again after it let go.
func (e *Engine) drive() {
	if e.owner != nil {
		e.wakeOwner()
		return
	}
	for turns := 0; e.head.Load() != nil && e.lead.TryLock(); turns++ {
		if turns == maxTurns {
			e.lead.Unlock()
			go e.drive()
			return
		}
		e.gather()
		e.turn()
		e.watch()
		e.lead.Unlock()
	}
}

// gather lets other goroutines come to the list first, if that paid the last
// time: operations that complete at once leave nobody waiting who could show
// that there are many. Now and then it tries anew.
func (e *Engine) gather() {
	if e.turns++; !e.crowd && e.turns%256 != 0 {
		return
	}
	first := e.head.Load()
	runtime.Gosched()
	e.crowd = e.head.Load() != first
}

// turn brings the list to the ring, submits, and takes what has completed.
func (e *Engine) turn() {
	e.collect()
	if e.closed {
		e.failQueue(ErrClosed)
		return
	}
	for {
		filled := e.fill()
		err := e.submit(0)
		taken := e.reap(statInline)
		if err != nil {
			if taken == 0 {
				e.later()
				return
			}
			continue
		}
		if e.queue.first == nil || filled+taken == 0 {
			return
		}
	}
}

// collect moves the list to the queue.
func (e *Engine) collect() {
	var oldest *Op
	for o := e.head.Swap(nil); o != nil; {
		next := o.next
		o.next = oldest
		oldest, o = o, next
	}
	for o := oldest; o != nil; {
		next := o.next
		if o.call != nil {
			o.call()
			o.finish(CQE{}, nil)
		} else {
			e.queue.push(o)
		}
		o = next
	}
}

func (e *Engine) cancelNow(o *Op) {
	if e.queue.remove(o) {
		o.drop(unix.ECANCELED, nil)
		return
	}
	if e.closed || !e.ring.holds(o.token) {
		return // it has ended
	}
	e.stat.Add(statCancel, 1)
	for e.ring.cancel(o.token) != nil {
		if err := e.submit(0); err != nil {
			if e.reap(statCQE) == 0 {
				time.Sleep(time.Millisecond)
			}
		}
	}
}

// fill pushes from the queue what there is room for, chains as a whole, and
// returns how many operations that were.
func (e *Engine) fill() int {
	n := 0
	for e.queue.first != nil {
		chain := 1
		for o := e.queue.first; o.linked(); o = o.next {
			chain++
		}
		if int(e.ring.room()) < chain || len(e.ring.slots)-e.ring.inFlight < chain {
			break
		}
		for range chain {
			o := e.queue.pop()
			o.token = e.ring.push(&o.SQE, o)
		}
		n += chain
	}
	return n
}

// submit submits what was pushed and waits for completions. After an error the
// kernel has not taken all: if it asks to come again the rest stays queued, if it
// wants no more the rest fails.
func (e *Engine) submit(wait int) error {
	before := e.ring.enters
	n, err := e.ring.SubmitAndWait(wait)
	if enters := e.ring.enters - before; enters > 0 {
		e.stat.Add2(statSQE, int64(n), statEnter, enters)
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EBUSY) {
		e.stat.Add(statBusy, 1)
		return err
	}
	var errno syscall.Errno
	errors.As(err, &errno)
	e.ring.retract(errno, (*Op).complete)
	e.failQueue(err)
	return err
}

// reap takes the completions that are there.
func (e *Engine) reap(as int) int {
	n := 0
	overflows, stale := e.ring.overflows, e.ring.stale
	for {
		o, c, ok := e.ring.take()
		if !ok {
			break
		}
		n++
		if o != nil {
			o.complete(c)
		}
	}
	if n > 0 {
		inline := int64(0)
		if as == statInline {
			inline = int64(n)
		}
		e.stat.Add2(statCQE, int64(n), statInline, inline)
	}
	if d := e.ring.overflows - overflows; d > 0 {
		e.stat.Add(statOverflow, d)
	}
	if d := e.ring.stale - stale; d > 0 {
		e.stat.Add(statStale, d)
	}
	return n
}

// complete takes a completion of an operation that the kernel had.
func (o *Op) complete(c CQE) {
	switch {
	case o.multi != nil:
		o.multi.deliver(c, nil)
	case c.More():
		o.cqe = c // a zero-copy send: the result, but the buffer is still in use
	case c.Flags&CQENotif != 0:
		o.finish(o.cqe, nil)
	default:
		o.finish(c, nil)
	}
}

// drop ends an operation that the kernel never had.
func (o *Op) drop(errno syscall.Errno, err error) {
	o.unpin()
	c := CQE{UserData: o.UserData, Res: -int32(errno)}
	if o.multi != nil {
		o.multi.deliver(c, err)
		return
	}
	o.finish(c, err)
}

func (e *Engine) failQueue(err error) {
	for e.queue.first != nil {
		e.queue.pop().drop(unix.ECANCELED, err)
	}
}

// later comes back to the ring in a while.
func (e *Engine) later() {
	if e.retry {
		return
	}
	e.retry = true
	time.AfterFunc(time.Millisecond, func() {
		e.lead.Lock()
		e.retry = false
		e.pollTurn()
		e.watch()
		e.lead.Unlock()
		e.drive()
	})
}

// watch has the poller look after what is in flight.
func (e *Engine) watch() {
	if e.closed || e.polling || e.ring.inFlight == 0 {
		return
	}
	if e.raw == nil && !e.blind {
		e.startPoller()
	}
	if e.blind {
		e.later()
		return
	}
	e.polling = true
	e.kick <- struct{}{}
}

// startPoller puts the ring into Go's netpoller. Only now, because from then on
// every completion costs a wake-up in the kernel.
func (e *Engine) startPoller() {
	err := unix.SetNonblock(e.ring.fd, true)
	if err == nil {
		e.ring.file = os.NewFile(uintptr(e.ring.fd), "io_uring")
		if err = e.ring.file.SetReadDeadline(time.Time{}); err == nil {
			e.raw, err = e.ring.file.SyscallConn()
		}
	}
	if err != nil {
		e.blind = true // no room in epoll: look every millisecond
		return
	}
	e.kick = make(chan struct{}, 1)
	e.polled = make(chan struct{})
	go e.poll()
}

// poll takes completions for as long as something is in flight.
func (e *Engine) poll() {
	defer close(e.polled)
	for range e.kick {
		// An error means that the ring is being closed.
		_ = e.raw.Read(func(uintptr) bool {
			e.lead.Lock()
			e.pollTurn()
			idle := e.closed || e.ring.inFlight == 0
			e.polling = !idle
			e.lead.Unlock()
			e.drive()
			return idle
		})
	}
}

func (e *Engine) pollTurn() {
	if !e.closed {
		e.reap(statCQE)
	}
	e.turn()
}

// Close cancels what is in flight, waits until it has ended and frees the ring.
// Operations that come later fail with ErrClosed. Closing twice is fine.
func (e *Engine) Close() error {
	if e.owner != nil {
		return e.stopOwner()
	}
	e.lead.Lock()
	if e.closed {
		e.lead.Unlock()
		return nil
	}
	e.collect()
	e.failQueue(ErrClosed)
	err := e.ring.drain((*Op).complete)
	e.closed = true // from here on nobody else touches the ring
	e.lead.Unlock()
	if e.raw != nil {
		close(e.kick)
	}
	err = errors.Join(err, e.ring.Close()) // wakes the poller, which may want the lead
	if e.raw != nil {
		<-e.polled
	}
	e.drive()
	return err
}
