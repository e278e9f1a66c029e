package packet

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
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

// Streams take, give back, open, close and give up at random. The bound holds
// at every moment, nobody has a buffer that another one has, nobody starves,
// and at the end everything is back.
func TestPoolModel(t *testing.T) {
	checkLeaks(t, nil)
	const limit = 4000
	p := NewPool(PoolConfig{Bytes: limit, IdleAfter: time.Millisecond})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var out atomic.Int64 // bytes handed out
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
					if now := out.Add(int64(len(mem))); now > limit || p.used.Load() > limit {
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
	const size = MaxHeaderLen + 126*516
	pool := NewPool(PoolConfig{Bytes: 8 * size})
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
		r, err := p.Reserve(context.Background(), "b", 65049)
		if err != nil {
			b.Fatal(err)
		}
		defer r.Close()
		for pb.Next() {
			x, _ := r.Acquire(context.Background(), 65049)
			y, _ := r.Acquire(context.Background(), 65049)
			r.Release(x)
			r.Release(y)
		}
	})
}
