package packet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func mustReserve(t *testing.T, p *Pool, name string, size int) *Reservation {
	t.Helper()
	r, err := p.Reserve(deadline(t), name, size)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mustAcquire(t *testing.T, r *Reservation, size int) Buffer {
	t.Helper()
	b, err := r.Acquire(deadline(t), size)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPoolReleases(t *testing.T) {
	p := NewPool(PoolConfig{Bytes: 1000})
	a, b := mustReserve(t, p, "a", 100), mustReserve(t, p, "b", 100)
	x, y := mustAcquire(t, a, 100), mustAcquire(t, a, 200)
	if len(x.Bytes()) != 100 || len(y.Bytes()) != 200 || p.Stats().InUse != 400 {
		t.Fatalf("%+v", p.Stats())
	}
	refused := func(what string, err error) {
		t.Helper()
		var e *ReleaseError
		if !errors.As(err, &e) || !strings.Contains(e.Reason, what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("another stream", b.Release(x))
	refused("no buffer", a.Release(Buffer{}))
	other := NewPool(PoolConfig{})
	foreign := mustReserve(t, other, "c", 100)
	refused("another stream", a.Release(mustAcquire(t, foreign, 100)))
	if err := a.Release(x); err != nil {
		t.Fatal(err)
	}
	refused("released before", a.Release(x))
	if x.Bytes() != nil {
		t.Error("a released buffer has bytes")
	}
	// The same memory again: the old handle stays invalid.
	z := mustAcquire(t, b, 100) // its spare
	z2 := mustAcquire(t, b, 100)
	refused("released before", a.Release(x))
	refused("released before", b.Release(x))
	if len(z2.Bytes()) != 100 || len(z.Bytes()) != 100 {
		t.Error("a stale release has hit the new holder")
	}
	for _, err := range []error{a.Release(y), b.Release(z), b.Release(z2)} {
		if err != nil {
			t.Error(err)
		}
	}
	a.Close()
	a.Close()
	b.Close()
	if s := p.Stats(); s.InUse != 0 || s.Streams != 0 || s.HighWater < 400 {
		t.Errorf("%+v", s)
	}
}

// A pool that is off bounds nothing and keeps nothing.
func TestPoolUnpooled(t *testing.T) {
	p := NewPool(PoolConfig{Bytes: 1, Buffers: 1, Unpooled: true})
	r := mustReserve(t, p, "r", 100)
	a, b := mustAcquire(t, r, 100), mustAcquire(t, r, 100)
	if s := p.Stats(); s.InUse != 200 || s.Idle != 0 || s.Buffers != 2 || s.Streams != 1 {
		t.Errorf("%+v", s)
	}
	mem := a.Bytes()
	if err := r.Release(a); err != nil {
		t.Error(err)
	}
	var e *ReleaseError
	if err := r.Release(a); !errors.As(err, &e) {
		t.Error(err)
	}
	if c := mustAcquire(t, r, 100); &c.Bytes()[0] == &mem[0] {
		t.Error("a buffer was used again")
	} else if err := r.Release(c); err != nil {
		t.Error(err)
	}
	if err := r.Release(b); err != nil {
		t.Error(err)
	}
	r.Close()
	if s := p.Stats(); s.InUse != 0 || s.Buffers != 0 || s.Streams != 0 {
		t.Errorf("%+v", s)
	}
	p.Close()
	if _, err := p.Reserve(deadline(t), "late", 1); err != ErrPoolClosed {
		t.Error(err)
	}
}

func TestPoolNamesHolders(t *testing.T) {
	p := NewPool(PoolConfig{Bytes: 1000})
	a := mustReserve(t, p, "big one", 900)
	b := mustReserve(t, p, "small one", 100)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err := p.Reserve(ctx, "late", 100)
	var e *PoolError
	if !errors.As(err, &e) || !errors.Is(err, context.DeadlineExceeded) || len(e.Holders) != 2 ||
		e.Holders[0] != (Holder{"big one", 1, 900}) || !strings.Contains(err.Error(), `"small one"`) {
		t.Error(err)
	}
	if _, err := p.Reserve(context.Background(), "huge", 1001); !errors.As(err, &e) || e.Err != nil {
		t.Error(err)
	}
	a.Close()
	b.Close()
	if s := p.Stats(); s.InUse != 0 || s.WaitTime == 0 {
		t.Errorf("%+v", s)
	}
}

// Idle buffers count, and make room for other sizes.
func TestPoolEvicts(t *testing.T) {
	p := NewPool(PoolConfig{Bytes: 1000})
	a := mustReserve(t, p, "a", 100)
	var held []Buffer
	for range 10 {
		held = append(held, mustAcquire(t, a, 100))
	}
	for _, b := range held {
		a.Release(b)
	}
	if s := p.Stats(); s.Idle != 900 || s.InUse != 100 {
		t.Fatalf("%+v", s)
	}
	b := mustReserve(t, p, "b", 700)
	if s := p.Stats(); s.Idle+s.InUse > 1000 || s.InUse != 800 {
		t.Fatalf("%+v", s)
	}
	b.Close()
	a.Close()
}

func TestPoolTrims(t *testing.T) {
	p := NewPool(PoolConfig{Bytes: 1000, IdleAfter: 5 * time.Millisecond})
	a := mustReserve(t, p, "a", 100)
	x, y := mustAcquire(t, a, 100), mustAcquire(t, a, 100)
	a.Release(x)
	a.Release(y)
	waitFor(t, func() bool { return p.Stats().Idle == 0 })
	if s := p.Stats(); s.InUse != 100 || p.used.Load() != 100 {
		t.Errorf("%+v", s)
	}
	a.Close()
	waitFor(t, func() bool { return p.used.Load() == 0 })
	p.Close()
}

// Who asks first gets first, and a cancelled waiter passes its turn on.
func TestPoolOrder(t *testing.T) {
	p := NewPool(PoolConfig{Bytes: 300})
	first := mustReserve(t, p, "first", 300)
	var order []int
	var mu sync.Mutex
	var wg sync.WaitGroup
	cancelled, cancel := context.WithCancel(context.Background())
	rs := make([]*Reservation, 6)
	for i := range rs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			ctx := context.Background()
			if i == 0 || i == 3 {
				ctx = cancelled
			}
			r, err := p.Reserve(ctx, "r", 300)
			if err != nil {
				return
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			r.Close()
		}()
		waitFor(t, func() bool { return p.Stats().Waiting == i+1 })
	}
	cancel()
	waitFor(t, func() bool { return p.Stats().Waiting == 4 })
	first.Close()
	wg.Wait()
	if len(order) != 4 || order[0] != 1 || order[1] != 2 || order[2] != 4 || order[3] != 5 {
		t.Error(order)
	}
}

func TestPoolClose(t *testing.T) {
	checkLeaks(t, nil)
	p := NewPool(PoolConfig{Bytes: 300})
	first := mustReserve(t, p, "first", 300)
	b := mustAcquire(t, first, 300)
	errs := make(chan error, 3)
	for range 2 {
		go func() {
			_, err := p.Reserve(context.Background(), "waits", 100)
			errs <- err
		}()
	}
	go func() {
		_, err := first.Acquire(context.Background(), 300)
		errs <- err
	}()
	waitFor(t, func() bool { return p.Stats().Waiting == 3 })
	p.Close()
	p.Close()
	for range 3 {
		if err := <-errs; err != ErrPoolClosed {
			t.Error(err)
		}
	}
	if _, err := p.Reserve(context.Background(), "late", 1); err != ErrPoolClosed {
		t.Error(err)
	}
	if err := first.Release(b); err != nil {
		t.Error(err)
	}
	first.Close()
	if p.used.Load() != 0 {
		t.Errorf("%+v", p.Stats())
	}
}

// When a pool is closed, one waiter's end is no turn for the next, even if that
// one has not seen yet that the pool is closed.
func TestPoolCloseServesNobody(t *testing.T) {
	p := NewPool(PoolConfig{Bytes: 300})
	first := mustReserve(t, p, "first", 200)
	large := &waiter{size: 300, got: make(chan *slot, 1)}
	small := &waiter{size: 100, got: make(chan *slot, 1)}
	p.queue = []*waiter{large, small}
	p.waiting.Store(2)
	p.Close()
	p.cancel(large)
	if len(small.got) > 0 {
		t.Error("a closed pool hands out a buffer")
	}
	p.cancel(small)
	first.Close()
}

// A stream whose last buffer is smaller than what it asks for gets that one
// when the bound is reached, and never hangs.
func TestPoolSpareInstead(t *testing.T) {
	p := NewPool(PoolConfig{Bytes: 300})
	a, b := mustReserve(t, p, "a", 100), mustReserve(t, p, "b", 200)
	x := mustAcquire(t, a, 250)
	if len(x.Bytes()) != 100 {
		t.Errorf("%d bytes", len(x.Bytes()))
	}
	got := make(chan Buffer)
	go func() {
		y, err := a.Acquire(context.Background(), 250)
		if err != nil {
			t.Error(err)
		}
		got <- y
	}()
	waitFor(t, func() bool { return p.Stats().Waiting == 1 })
	a.Release(x)
	if y := <-got; len(y.Bytes()) != 100 {
		t.Errorf("%d bytes", len(y.Bytes()))
	}
	b.Close()
	if y := mustAcquire(t, a, 200); len(y.Bytes()) != 200 {
		t.Errorf("%d bytes", len(y.Bytes()))
	}
}

// A modelPool says what a pool does, step by step and exactly: who is served at
// once, who waits, and whom a release serves.
type modelPool struct {
	bytes, count int // bounds
	usedBytes    int // by streams
	usedCount    int
	queue        []*modelStream
	streams      []*modelStream
	served       []*modelStream // by the last step
}

type modelStream struct {
	name    string
	r       *Reservation
	open    bool // Reserve has returned
	spare   int  // size of the reserved buffer that is not used; 0: none
	held    []int
	buffers []Buffer
	want    int // size that it waits for
	cancel  context.CancelFunc
	result  chan modelResult
}

type modelResult struct {
	r   *Reservation
	b   Buffer
	err error
}

func (m *modelPool) fits(n int) bool { return m.usedBytes+n <= m.bytes && m.usedCount < m.count }

func (m *modelPool) take(n int) { m.usedBytes, m.usedCount = m.usedBytes+n, m.usedCount+1 }

// give frees the room of a buffer and serves who waits.
func (m *modelPool) give(n int) {
	if n > 0 {
		m.usedBytes, m.usedCount = m.usedBytes-n, m.usedCount-1
	}
	for len(m.queue) > 0 && m.fits(m.queue[0].want) {
		s := m.queue[0]
		m.queue = m.queue[1:]
		m.take(s.want)
		m.serve(s, s.want)
	}
}

func (m *modelPool) serve(s *modelStream, n int) {
	s.want = 0
	if s.open {
		s.held = append(s.held, n)
	} else {
		s.spare = n
	}
	m.served = append(m.served, s)
}

// ask is Reserve of a stream that is not open, else Acquire.
func (m *modelPool) ask(s *modelStream, n int) {
	switch {
	case s.spare >= n:
		s.spare, n = 0, s.spare
		m.serve(s, n)
	case len(m.queue) == 0 && m.fits(n):
		m.take(n)
		old := s.spare
		if s.open {
			s.spare = 0
		}
		m.serve(s, n)
		m.give(old)
	case s.spare > 0:
		s.spare, n = 0, s.spare
		m.serve(s, n)
	default:
		s.want = n
		m.queue = append(m.queue, s)
	}
}

func (m *modelPool) release(s *modelStream, i int) {
	n := s.held[i]
	s.held = slices.Delete(s.held, i, i+1)
	switch {
	case len(s.held) > 0:
		m.give(n)
	case s.want > 0: // it gets its own one instead of a new one
		m.queue = slices.DeleteFunc(m.queue, func(o *modelStream) bool { return o == s })
		m.serve(s, n)
		m.give(0)
	default:
		s.spare = n
	}
}

func (m *modelPool) giveUp(s *modelStream) {
	m.queue = slices.DeleteFunc(m.queue, func(o *modelStream) bool { return o == s })
	s.want = 0
	m.give(0)
}

// Random steps, one after another, with the bound in bytes, in buffers, or
// both: the pool does what the model says.
func TestPoolModel(t *testing.T) {
	checkLeaks(t, nil)
	count, seed := programs(t)
	for i := range count {
		seed := seed + uint64(i)
		if err := poolProgram(t, rand.New(rand.NewPCG(seed, 3))); err != nil {
			t.Fatalf("PACKET_SEED=%d PACKET_PROGRAMS=1: %v", seed, err)
		}
	}
}

func poolProgram(t *testing.T, rng *rand.Rand) error {
	m := &modelPool{bytes: 1000 + rng.IntN(3000), count: 1 + rng.IntN(12)}
	cfg := PoolConfig{Bytes: int64(m.bytes), Buffers: m.count}
	if rng.IntN(3) == 0 {
		cfg.Buffers, m.count = 0, 1<<30
	}
	p := NewPool(cfg)
	defer p.Close()
	sizes := []int{100, 100, 300, 700, 1000}
	ask := func(s *modelStream, n int) {
		ctx, cancel := context.WithCancel(context.Background())
		s.cancel = cancel
		go func() {
			var res modelResult
			if s.open {
				res.b, res.err = s.r.Acquire(ctx, n)
			} else {
				res.r, res.err = p.Reserve(ctx, s.name, n)
			}
			s.result <- res
		}()
		m.ask(s, n)
	}
	remove := func(s *modelStream) {
		m.streams = slices.DeleteFunc(m.streams, func(o *modelStream) bool { return o == s })
	}
	for step := range 150 {
		m.served = m.served[:0]
		var s *modelStream
		if len(m.streams) > 0 {
			s = m.streams[rng.IntN(len(m.streams))]
		}
		switch op := rng.IntN(10); {
		case s == nil || op == 0 && len(m.streams) < 20:
			s = &modelStream{name: fmt.Sprint(step), result: make(chan modelResult, 1)}
			m.streams = append(m.streams, s)
			ask(s, sizes[rng.IntN(len(sizes))])
		case s.want > 0 && op < 3:
			s.cancel()
			if res := <-s.result; !errors.Is(res.err, context.Canceled) {
				return fmt.Errorf("step %d: cancelled: %v", step, res.err)
			}
			m.giveUp(s)
			if !s.open {
				remove(s)
			}
		case len(s.held) > 0 && op < 6:
			i := rng.IntN(len(s.held))
			b := s.buffers[i]
			s.buffers = slices.Delete(s.buffers, i, i+1)
			m.release(s, i)
			if err := s.r.Release(b); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
			if s.r.Release(b) == nil {
				return fmt.Errorf("step %d: released twice", step)
			}
		case s.want == 0 && op < 9:
			ask(s, sizes[rng.IntN(len(sizes))])
		case s.want == 0:
			s.r.Close()
			m.give(s.spare)
			for _, n := range s.held {
				m.give(n)
			}
			for _, b := range s.buffers {
				if err := s.r.Release(b); err != nil {
					return fmt.Errorf("step %d: closed: %w", step, err)
				}
			}
			remove(s)
		}
		for _, s := range m.served {
			res := <-s.result
			if res.err != nil {
				return fmt.Errorf("step %d: %w", step, res.err)
			}
			if s.open {
				if want := s.held[len(s.held)-1]; len(res.b.Bytes()) != want {
					return fmt.Errorf("step %d: a buffer of %d bytes, want %d", step, len(res.b.Bytes()), want)
				}
				s.buffers = append(s.buffers, res.b)
			} else {
				s.r, s.open = res.r, true
			}
		}
		waitFor(t, func() bool { return p.Stats().Waiting == len(m.queue) })
		stats, open := p.Stats(), 0
		for _, s := range m.streams {
			if s.open {
				open++
			}
		}
		if stats.InUse != int64(m.usedBytes) || stats.Streams != open || stats.Buffers > m.count || stats.InUse+stats.Idle > int64(m.bytes) || stats.HighWater > int64(m.bytes) {
			return fmt.Errorf("step %d: %+v; expected %d bytes in use, %d streams", step, stats, m.usedBytes, open)
		}
	}
	p.Close()
	for _, s := range m.streams {
		if s.want > 0 {
			if res := <-s.result; res.err != ErrPoolClosed {
				return fmt.Errorf("the pool is closed: %v", res.err)
			}
		}
		if !s.open {
			continue
		}
		for _, b := range s.buffers {
			if err := s.r.Release(b); err != nil {
				return err
			}
		}
		s.r.Close()
	}
	if s := p.Stats(); s.InUse != 0 || s.Idle != 0 || s.Buffers != 0 || s.Streams != 0 {
		return fmt.Errorf("at the end: %+v", s)
	}
	return nil
}

// Streams take, give back, open, close and give up at random. The bound holds
// at every moment, nobody has a buffer that another one has, nobody starves,
// and at the end everything is back.
func TestPoolConcurrent(t *testing.T) {
	checkLeaks(t, nil)
	const limit, buffers = 4000, 30
	p := NewPool(PoolConfig{Bytes: limit, Buffers: buffers, IdleAfter: time.Millisecond})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var out, handed atomic.Int64 // bytes handed out, and buffers
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			sizes := []int{100, 100, 300, 700}
			for range 60 {
				r, err := p.Reserve(context.Background(), "s", sizes[rng.IntN(4)])
				if err != nil {
					t.Error(err)
					return
				}
				var mine []Buffer
				for range rng.IntN(40) {
					if len(mine) > 0 && rng.IntN(2) == 0 {
						k := rng.IntN(len(mine))
						b := mine[k]
						mine = append(mine[:k], mine[k+1:]...)
						mem := b.Bytes()
						for _, v := range mem {
							if v != byte(i) {
								t.Error("the buffer has been written by another stream")
								return
							}
						}
						out.Add(-int64(len(mem)))
						handed.Add(-1)
						if err := r.Release(b); err != nil {
							t.Error(err)
						}
						if r.Release(b) == nil {
							t.Error("released twice")
						}
						continue
					}
					// Only a stream without a buffer may wait without an end.
					ctx, cancel := context.Background(), func() {}
					if len(mine) > 0 {
						ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(200))*time.Microsecond)
					}
					b, err := r.Acquire(ctx, sizes[rng.IntN(4)])
					cancel()
					if err != nil {
						if len(mine) == 0 || !errors.Is(err, context.DeadlineExceeded) {
							t.Error(err)
							return
						}
						continue
					}
					mem := b.Bytes()
					if now := out.Add(int64(len(mem))); now > limit || p.used.Load() > limit || handed.Add(1) > buffers {
						t.Errorf("%d bytes handed out, %d exist", now, p.used.Load())
					}
					for j := range mem {
						mem[j] = byte(i)
					}
					mine = append(mine, b)
				}
				late := rng.IntN(2) == 0
				if late {
					r.Close()
				}
				for _, b := range mine {
					out.Add(-int64(len(b.Bytes())))
					handed.Add(-1)
					if err := r.Release(b); err != nil {
						t.Error(err)
					}
				}
				if !late {
					r.Close()
				}
			}
		}()
	}
	wg.Wait()
	if s := p.Stats(); s.InUse != 0 || s.Waiting != 0 || s.Streams != 0 || s.HighWater > limit {
		t.Errorf("%+v", s)
	}
	waitFor(t, func() bool { return p.used.Load() == 0 })
	p.Close()
}

// A thousand streams, all with half-filled packets, and room for eight
// buffers: all finish.
func TestPoolThousandStreams(t *testing.T) {
	const size = buffer64k
	for _, cfg := range []PoolConfig{{Bytes: 8 * size}, {Buffers: 8}} {
		thousandStreams(t, NewPool(cfg))
	}
}

func thousandStreams(t *testing.T, pool *Pool) {
	const size = buffer64k
	checkLeaks(t, pool)
	var wg sync.WaitGroup
	errs := make(chan error, 2000)
	for range 1000 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			n := &node{}
			conn, served := dial(t, "pipe", n.serve)
			w, err := NewWriter(context.Background(), conn, createRequest(1<<20), WriterConfig{StreamConfig: StreamConfig{Pool: pool, PacketSize: 65536}})
			if err != nil {
				errs <- err
				return
			}
			for range 3 {
				if _, err := w.Write(make([]byte, 50000)); err != nil {
					errs <- err
				}
			}
			if err := w.Close(); err != nil {
				errs <- err
			}
			if err := <-served; err != nil && err != io.EOF {
				errs <- err
			}
		}()
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
	if s := pool.Stats(); s.HighWater > 8*size {
		t.Errorf("%+v", s)
	}
}

func BenchmarkPool(b *testing.B) {
	p := NewPool(PoolConfig{})
	b.RunParallel(func(pb *testing.PB) {
		r, err := p.Reserve(context.Background(), "b", buffer64k)
		if err != nil {
			b.Fatal(err)
		}
		defer r.Close()
		for pb.Next() {
			x, _ := r.Acquire(context.Background(), buffer64k)
			y, _ := r.Acquire(context.Background(), buffer64k)
			r.Release(x)
			r.Release(y)
		}
	})
}
