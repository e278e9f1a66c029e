package packet

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultPoolBytes is the bound of a zero [PoolConfig].
const DefaultPoolBytes = 128 << 20

// ErrPoolClosed is returned by what needs a pool that has been closed.
var ErrPoolClosed = errors.New("packet: pool is closed")

// A PoolConfig configures a [Pool]. Its zero value is usable.
type PoolConfig struct {
	Bytes     int64         // bound of all buffers, idle ones included; 0 means DefaultPoolBytes
	Buffers   int           // bound of their number; 0 means none
	IdleAfter time.Duration // how long a buffer stays idle before it is dropped; 0 means 10 s

	// Unpooled turns the pool off, as it is in HDFS by default: nothing is
	// bounded, every buffer is allocated when it is asked for, and left to the
	// garbage collector when it is released.
	Unpooled bool
}

// A Pool is a bounded set of packet buffers for any number of streams. It
// bounds the bytes of all buffers that exist, and their number if that is asked
// for, idle ones included, over all sizes; a buffer has exactly the size that
// was asked for, and one of another size that is idle makes room when a bound
// is reached.
//
// Buffers are handed over in the order of asking. Every stream keeps at least
// one buffer from [Pool.Reserve] to [Reservation.Close], so streams that hold
// half-filled packets cannot wait for each other: whoever is open can go on,
// however slowly, and only opening waits.
//
// Below the bound a buffer is taken and given back without a lock. A Pool is
// safe for concurrent use.
type Pool struct {
	limit     int64
	maxCount  int64
	idleAfter time.Duration
	unpooled  bool

	used      atomic.Int64 // bytes of all buffers
	count     atomic.Int64 // of all buffers
	highWater atomic.Int64
	waitNanos atomic.Int64
	waiting   atomic.Int64 // len(queue); while it is not 0 nobody bypasses the queue
	classes   sync.Map     // int (size) -> *class
	homes     atomic.Uint32
	epoch     atomic.Int64 // trim periods so far
	armed     atomic.Bool  // the trim timer runs
	closed    chan struct{}

	mu      sync.Mutex
	queue   []*waiter
	holders map[*Reservation]struct{}
	trimmer *time.Timer
	shut    bool
}

// maxCells bounds the idle buffers of one size.
const maxCells = 256

// A class holds the idle buffers of one size, each in a cell of its own, so
// that taking one is a swap. A stream begins at its home cell, where it finds
// what it put there itself.
type class struct {
	cells []atomic.Pointer[slot]
}

// A slot is a buffer's memory. gen is odd while a stream holds it.
type slot struct {
	class *class
	mem   []byte
	gen   atomic.Uint64
	owner atomic.Pointer[Reservation] // the last one that it was handed to
	epoch atomic.Int64                // when it became idle
}

type waiter struct {
	size int
	home int
	got  chan *slot // capacity 1
}

// NewPool returns an empty pool.
func NewPool(cfg PoolConfig) *Pool {
	if cfg.Bytes <= 0 {
		cfg.Bytes = DefaultPoolBytes
	}
	if cfg.IdleAfter <= 0 {
		cfg.IdleAfter = 10 * time.Second
	}
	p := &Pool{
		limit: cfg.Bytes, maxCount: int64(cfg.Buffers), idleAfter: cfg.IdleAfter, unpooled: cfg.Unpooled,
		closed: make(chan struct{}), holders: make(map[*Reservation]struct{}),
	}
	if p.unpooled {
		p.limit = math.MaxInt64
	}
	if p.maxCount <= 0 || p.unpooled {
		p.maxCount = math.MaxInt64
	}
	return p
}

// PoolStats are a pool's statistics. They are not a consistent snapshot while
// the pool is in use.
type PoolStats struct {
	Limit     int64 // bound in bytes
	Buffers   int   // that exist
	InUse     int64 // bytes that streams hold
	Idle      int64 // bytes waiting to be used again
	HighWater int64 // the most bytes that have existed at once
	Waiting   int   // streams that wait for a buffer
	Streams   int   // open reservations
	WaitTime  time.Duration
}

// Stats returns the pool's statistics.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	streams := len(p.holders)
	p.mu.Unlock()
	s := PoolStats{Limit: p.limit, Buffers: int(p.count.Load()), HighWater: p.highWater.Load(), Waiting: int(p.waiting.Load()), Streams: streams, WaitTime: time.Duration(p.waitNanos.Load())}
	used := p.used.Load()
	p.eachIdle(func(_ *atomic.Pointer[slot], b *slot) bool { s.Idle += int64(len(b.mem)); return true })
	s.InUse = max(used-s.Idle, 0)
	return s
}

// Close makes everyone who waits or asks from now on fail with ErrPoolClosed.
// Buffers that streams hold stay valid until they release them.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shut {
		return
	}
	p.shut = true
	close(p.closed)
	if p.trimmer != nil {
		p.trimmer.Stop()
	}
	p.eachIdle(p.drop)
}

// A Holder is a stream that holds buffers.
type Holder struct {
	Name    string
	Buffers int
	Bytes   int64
}

// A PoolError reports that a stream got no buffer.
type PoolError struct {
	Need    int   // bytes asked for
	Limit   int64 // the pool's bound in bytes
	Buffers int   // the bound of their number; 0: none
	Holders []Holder
	Err     error // why the wait ended, or nil if Need exceeds Limit
}

func (e *PoolError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("packet: a buffer of %d bytes exceeds the pool's bound of %d", e.Need, e.Limit)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "packet: no buffer of %d bytes within the pool's bound of %d", e.Need, e.Limit)
	if e.Buffers > 0 {
		fmt.Fprintf(&b, " and of %d buffers", e.Buffers)
	}
	fmt.Fprintf(&b, ": %v; held by", e.Err)
	for i, h := range e.Holders {
		if i == 8 {
			fmt.Fprintf(&b, " and %d more", len(e.Holders)-i)
			break
		}
		fmt.Fprintf(&b, " %q (%d buffers, %d bytes)", h.Name, h.Buffers, h.Bytes)
	}
	return b.String()
}

// Unwrap returns Err.
func (e *PoolError) Unwrap() error { return e.Err }

// A ReleaseError reports a release that the pool has refused, without effect.
type ReleaseError struct {
	Reason string
}

func (e *ReleaseError) Error() string { return "packet: buffer not released: " + e.Reason }

// A Buffer is a packet buffer of a pool: a handle, which stays invalid after
// Release even if the memory is handed out again. Its contents are what the
// last holder left.
type Buffer struct {
	s   *slot
	gen uint64
}

// Bytes returns the memory, or nil if the buffer has been released.
func (b Buffer) Bytes() []byte {
	if b.s == nil || b.s.gen.Load() != b.gen {
		return nil
	}
	return b.s.mem
}

// A Reservation is a stream's claim to at least one buffer of a pool. Acquire
// must not be called by several goroutines at once; Release may be.
type Reservation struct {
	pool *Pool
	name string
	home int
	wait waiter
	back chan struct{} // capacity 1: there is a spare

	mu     sync.Mutex
	spare  *slot // the last buffer, while the stream does not use it
	held   int   // buffers handed out
	bytes  int64 // of them
	closed bool
}

// Reserve waits until size bytes are free, in the order of asking, and reserves
// them as the first buffer of a stream called name. When ctx ends it returns a
// *[PoolError] that names who holds the memory, when the pool is closed
// ErrPoolClosed.
func (p *Pool) Reserve(ctx context.Context, name string, size int) (*Reservation, error) {
	r := &Reservation{pool: p, name: name, home: int(p.homes.Add(1)), back: make(chan struct{}, 1)}
	r.wait.got = make(chan *slot, 1)
	s, err := r.get(ctx, size)
	if err != nil {
		return nil, err
	}
	if p.unpooled {
		p.put(s, r.home)
	} else {
		r.keep(s)
	}
	p.mu.Lock()
	p.holders[r] = struct{}{}
	p.mu.Unlock()
	return r, nil
}

// Acquire returns a buffer of size bytes. If the bound is reached it returns
// instead the stream's last buffer as soon as that is not in use, whatever its
// size; otherwise it waits in the order of asking. Errors are those of
// [Pool.Reserve].
func (r *Reservation) Acquire(ctx context.Context, size int) (Buffer, error) {
	if b, ok := r.takeSpare(size); ok {
		return b, nil
	}
	s, err := r.get(ctx, size)
	if err != nil {
		return Buffer{}, err
	}
	if s == nil {
		b, ok := r.takeSpare(0)
		if !ok {
			return Buffer{}, &ReleaseError{Reason: "the reservation is closed"}
		}
		return b, nil
	}
	r.mu.Lock()
	old := r.unkeep()
	b := r.hand(s)
	r.mu.Unlock()
	if old != nil {
		r.pool.put(old, r.home)
	}
	return b, nil
}

// get takes a buffer from the pool. It returns nil if the spare is there and
// the pool has none.
func (r *Reservation) get(ctx context.Context, size int) (*slot, error) {
	p := r.pool
	if int64(size) > p.limit {
		return nil, &PoolError{Need: size, Limit: p.limit}
	}
	select {
	case <-p.closed:
		return nil, ErrPoolClosed
	default:
	}
	if p.waiting.Load() == 0 {
		if s := p.take(size, r.home); s != nil {
			return s, nil
		}
	}
	w := &r.wait
	w.size, w.home = size, r.home
	p.mu.Lock()
	p.queue = append(p.queue, w)
	p.waiting.Add(1)
	p.serve()
	p.mu.Unlock()
	select {
	case s := <-w.got:
		return s, nil
	default:
	}
	start := time.Now()
	defer func() { p.waitNanos.Add(int64(time.Since(start))) }()
	select {
	case s := <-w.got:
		return s, nil
	case <-r.back:
		return p.cancel(w), nil
	case <-ctx.Done():
		if s := p.cancel(w); s != nil {
			p.put(s, r.home)
		}
		return nil, &PoolError{Need: size, Limit: p.limit, Buffers: p.bufferBound(), Holders: p.held(), Err: context.Cause(ctx)}
	case <-p.closed:
		if s := p.cancel(w); s != nil {
			p.put(s, r.home)
		}
		return nil, ErrPoolClosed
	}
}

// keep makes s the spare; r.mu is held, or nobody else knows r yet.
func (r *Reservation) keep(s *slot) {
	r.spare = s
	select {
	case r.back <- struct{}{}:
	default:
	}
}

// unkeep takes the spare away, if there is one; r.mu is held.
func (r *Reservation) unkeep() *slot {
	s := r.spare
	r.spare = nil
	select {
	case <-r.back:
	default:
	}
	return s
}

// takeSpare hands out the last buffer if it is unused and has at least size
// bytes.
func (r *Reservation) takeSpare(size int) (Buffer, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.spare == nil || len(r.spare.mem) < size {
		return Buffer{}, false
	}
	return r.hand(r.unkeep()), true
}

// hand gives s to the stream; r.mu is held.
func (r *Reservation) hand(s *slot) Buffer {
	r.held++
	r.bytes += int64(len(s.mem))
	s.owner.Store(r)
	return Buffer{s: s, gen: s.gen.Add(1)}
}

// Release gives a buffer back. The stream's last one stays reserved for it. A
// buffer that has been released before, even if its memory is in use again,
// and one that another stream acquired give a *[ReleaseError] and change
// nothing.
func (r *Reservation) Release(b Buffer) error {
	switch {
	case b.s == nil:
		return &ReleaseError{Reason: "it is no buffer"}
	case b.s.gen.Load() != b.gen:
		return &ReleaseError{Reason: "it has been released before"}
	case b.s.owner.Load() != r:
		return &ReleaseError{Reason: "it was acquired by another stream"}
	case !b.s.gen.CompareAndSwap(b.gen, b.gen+1):
		return &ReleaseError{Reason: "it has been released before"}
	}
	r.mu.Lock()
	r.held--
	r.bytes -= int64(len(b.s.mem))
	keep := r.held == 0 && r.spare == nil && !r.closed && !r.pool.unpooled
	if keep {
		r.keep(b.s)
	}
	r.mu.Unlock()
	if !keep {
		r.pool.put(b.s, r.home)
	}
	return nil
}

// Close ends the reservation. Buffers that are still handed out go back to the
// pool when they are released. Closing twice is no error.
func (r *Reservation) Close() {
	r.mu.Lock()
	s := r.unkeep()
	r.closed = true
	r.mu.Unlock()
	p := r.pool
	p.mu.Lock()
	delete(p.holders, r)
	p.mu.Unlock()
	if s != nil {
		p.put(s, r.home)
	}
}

// bufferBound returns the bound of the number of buffers, or 0.
func (p *Pool) bufferBound() int {
	if p.maxCount == math.MaxInt64 {
		return 0
	}
	return int(p.maxCount)
}

// held lists who holds memory, the largest first.
func (p *Pool) held() []Holder {
	p.mu.Lock()
	defer p.mu.Unlock()
	var hs []Holder
	for r := range p.holders {
		r.mu.Lock()
		h := Holder{Name: r.name, Buffers: r.held, Bytes: r.bytes}
		if r.spare != nil {
			h.Buffers++
			h.Bytes += int64(len(r.spare.mem))
		}
		r.mu.Unlock()
		hs = append(hs, h)
	}
	slices.SortFunc(hs, func(a, b Holder) int {
		if a.Bytes != b.Bytes {
			return int(b.Bytes - a.Bytes)
		}
		return strings.Compare(a.Name, b.Name)
	})
	return hs
}

// take returns an idle buffer of the size, or a new one if the bound allows,
// or nil.
func (p *Pool) take(size, home int) *slot {
	if p.unpooled {
		p.grow(size)
		return &slot{mem: make([]byte, size)}
	}
	c := p.class(size)
	for i := range c.cells {
		cell := &c.cells[(home+i)%len(c.cells)]
		if cell.Load() != nil {
			if s := cell.Swap(nil); s != nil {
				return s
			}
		}
	}
	if !p.grow(size) {
		return nil
	}
	return &slot{class: c, mem: make([]byte, size)}
}

// grow makes room for a new buffer, if the bounds allow. It may refuse while
// another grow, which will refuse, has counted its buffer; that one's caller
// queues then, and so serves whoever has been refused by mistake.
func (p *Pool) grow(size int) bool {
	if p.count.Add(1) > p.maxCount {
		p.count.Add(-1)
		return false
	}
	for {
		used := p.used.Load()
		if int64(size) > p.limit-used {
			p.count.Add(-1)
			return false
		}
		now := used + int64(size)
		if !p.used.CompareAndSwap(used, now) {
			continue
		}
		for {
			high := p.highWater.Load()
			if now <= high || p.highWater.CompareAndSwap(high, now) {
				return true
			}
		}
	}
}

// shrink gives the room of a buffer back.
func (p *Pool) shrink(s *slot) {
	p.used.Add(-int64(len(s.mem)))
	p.count.Add(-1)
}

// fits reports whether a new buffer of the size is within the bounds.
func (p *Pool) fits(size int) bool {
	return int64(size) <= p.limit-p.used.Load() && p.count.Load() < p.maxCount
}

// class returns the class of a size.
func (p *Pool) class(size int) *class {
	if c, ok := p.classes.Load(size); ok {
		return c.(*class)
	}
	cells := make([]atomic.Pointer[slot], min(p.limit/int64(max(size, 1)), maxCells))
	c, _ := p.classes.LoadOrStore(size, &class{cells: cells})
	return c.(*class)
}

// put makes a buffer idle and then looks whether somebody waits, while a waiter
// queues first and then looks for an idle buffer: one sees the other.
func (p *Pool) put(s *slot, home int) {
	if p.unpooled {
		p.shrink(s)
		return
	}
	s.epoch.Store(p.epoch.Load())
	cells, kept := s.class.cells, false
	for i := 0; i < len(cells) && !kept; i++ {
		kept = cells[(home+i)%len(cells)].CompareAndSwap(nil, s)
	}
	if !kept {
		p.shrink(s)
	}
	select {
	case <-p.closed:
		p.eachIdle(p.drop)
		return
	default:
	}
	if p.waiting.Load() > 0 {
		p.mu.Lock()
		p.serve()
		p.mu.Unlock()
	}
	p.arm()
}

// arm starts the trim timer unless it runs.
func (p *Pool) arm() {
	if p.armed.Load() || !p.armed.CompareAndSwap(false, true) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.shut {
		p.trimmer = time.AfterFunc(p.idleAfter, p.trim)
	}
}

// serve hands buffers to the waiters at the head of the queue; p.mu is held.
func (p *Pool) serve() {
	for len(p.queue) > 0 && !p.shut {
		w := p.queue[0]
		s := p.take(w.size, w.home)
		if s == nil {
			p.eachIdle(func(cell *atomic.Pointer[slot], b *slot) bool {
				return !p.fits(w.size) && p.drop(cell, b)
			})
			if s = p.take(w.size, w.home); s == nil {
				return
			}
		}
		p.queue = slices.Delete(p.queue, 0, 1)
		p.waiting.Add(-1)
		w.got <- s
	}
}

// cancel takes w out of the queue. If a buffer has already been handed to it,
// it returns that; else the next one in the queue may have become first, and
// is served.
func (p *Pool) cancel(w *waiter) *slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.queue, w); i >= 0 {
		p.queue = slices.Delete(p.queue, i, i+1)
		p.waiting.Add(-1)
		p.serve()
		return nil
	}
	return <-w.got
}

// eachIdle calls f for idle buffers and their cells until it returns false.
func (p *Pool) eachIdle(f func(cell *atomic.Pointer[slot], s *slot) bool) {
	p.classes.Range(func(_, c any) bool {
		cells := c.(*class).cells
		for i := range cells {
			if s := cells[i].Load(); s != nil && !f(&cells[i], s) {
				return false
			}
		}
		return true
	})
}

// drop gives an idle buffer's memory up.
func (p *Pool) drop(cell *atomic.Pointer[slot], s *slot) bool {
	if cell.CompareAndSwap(s, nil) {
		p.shrink(s)
	}
	return true
}

// trim drops the buffers that have been idle for a whole period, and comes
// back while there are others.
func (p *Pool) trim() {
	now := p.epoch.Add(1)
	p.armed.Store(false)
	again := false
	p.eachIdle(func(cell *atomic.Pointer[slot], s *slot) bool {
		if s.epoch.Load() < now-1 {
			return p.drop(cell, s)
		}
		again = true
		return true
	})
	if again {
		p.arm()
	}
}
