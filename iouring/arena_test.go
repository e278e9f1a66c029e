//go:build linux || darwin

package iouring_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/blockpath/blockpath/iouring"
)

func newArena(t testing.TB, cfg iouring.ArenaConfig) *iouring.Arena {
	t.Helper()
	a, err := iouring.NewArena(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := a.InUse(); n != 0 {
			t.Errorf("%d bytes of the arena are still out", n)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func get(t testing.TB, a *iouring.Arena, n int) iouring.Buffer {
	t.Helper()
	b, err := a.Get(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func release(t testing.TB, bs ...iouring.Buffer) {
	t.Helper()
	for _, b := range bs {
		if err := b.Release(); err != nil {
			t.Error(err)
		}
	}
}

func fill(b []byte, v byte) {
	if len(b) == 0 {
		return
	}
	b[0] = v
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

func holds(b []byte, v byte) bool { return bytes.Count(b, []byte{v}) == len(b) }

// classSize is the length that the arena has to set aside for n bytes.
func classSize(n int) int64 {
	c := int64(os.Getpagesize())
	for c < int64(n) {
		c *= 2
	}
	return c
}

// TestArenaModel runs random programs against a list of what is out: buffers
// never share memory, the account is exact, and all memory comes back in one
// piece.
func TestArenaModel(t *testing.T) {
	page := os.Getpagesize()
	const maxBuffer = 256 << 10
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 1))
		a := newArena(t, iouring.ArenaConfig{Bytes: 2 << 20, MaxBuffer: maxBuffer, HugePages: seed%2 == 1})
		if a.MaxBuffer() != maxBuffer || a.Bytes() != 2<<20 {
			t.Fatalf("MaxBuffer %d, Bytes %d", a.MaxBuffer(), a.Bytes())
		}
		type live struct {
			b iouring.Buffer
			v byte
		}
		var out []live
		var inUse int64
		short, stop := context.WithCancel(t.Context())
		stop() // Get fails instead of waiting
		for step := range 4000 {
			if rng.IntN(2) == 0 {
				n := rng.IntN(maxBuffer + 1)
				switch rng.IntN(3) {
				case 0:
					n = rng.IntN(3 * page)
				case 1:
					n = min(maxBuffer, page<<rng.IntN(8)+rng.IntN(3)-1)
				}
				b, err := a.Get(short, n)
				var ae *iouring.ArenaError
				if errors.As(err, &ae) {
					if ae.InUse != inUse || ae.Size != n || !errors.Is(err, context.Canceled) {
						t.Fatalf("step %d: %v", step, err)
					}
					continue
				} else if err != nil {
					t.Fatal(err)
				}
				if b.Len() != n || len(b.Bytes()) != n || int64(b.Cap()) != classSize(n) || cap(b.Bytes()) != b.Cap() {
					t.Fatalf("step %d: asked %d, len %d cap %d", step, n, b.Len(), b.Cap())
				}
				v := byte(rng.Uint32())
				fill(b.Slice(0, b.Cap()).Bytes(), v)
				out = append(out, live{b, v})
				inUse += classSize(n)
			} else if len(out) > 0 {
				i := rng.IntN(len(out))
				l := out[i]
				if !holds(l.b.Slice(0, l.b.Cap()).Bytes(), l.v) {
					t.Fatalf("step %d: somebody wrote into a buffer", step)
				}
				release(t, l.b.Slice(l.b.Len()/2, l.b.Len()))
				var be *iouring.BufferError
				if err := l.b.Release(); !errors.As(err, &be) {
					t.Fatalf("double release: %v", err)
				}
				out[i] = out[len(out)-1]
				out = out[:len(out)-1]
				inUse -= classSize(l.b.Len())
			}
			if got := a.InUse(); got != inUse {
				t.Fatalf("step %d: InUse %d, want %d", step, got, inUse)
			}
		}
		for _, l := range out {
			release(t, l.b)
		}
		var whole []iouring.Buffer
		for range a.Bytes() / maxBuffer {
			whole = append(whole, get(t, a, maxBuffer))
		}
		release(t, whole...)
	}
}

func TestArenaStaleHandle(t *testing.T) {
	a := newArena(t, iouring.ArenaConfig{Bytes: 1 << 20})
	old := get(t, a, 1<<20)
	release(t, old)
	now := get(t, a, 1<<20) // the same memory
	fill(now.Bytes(), 7)
	var be *iouring.BufferError
	if err := old.Release(); !errors.As(err, &be) || be.Generation == be.Current {
		t.Errorf("release through an old handle: %v", err)
	}
	if a.InUse() != 1<<20 || !holds(now.Bytes(), 7) {
		t.Error("the old handle hit the new owner")
	}
	for name, f := range map[string]func(){
		"Bytes": func() { old.Bytes() },
		"Cap":   func() { old.Cap() },
		"Slice": func() { old.Slice(0, 1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s of a released buffer did not panic", name)
				}
			}()
			f()
		}()
	}
	release(t, now)

	var zero iouring.Buffer
	if err := zero.Release(); !errors.As(err, &be) {
		t.Errorf("release of the zero Buffer: %v", err)
	}
	if zero.Len() != 0 || zero.Cap() != 0 || len(zero.Bytes()) != 0 {
		t.Error("the zero Buffer is not empty")
	}
}

func TestArenaSlicePanics(t *testing.T) {
	a := newArena(t, iouring.ArenaConfig{})
	b := get(t, a, 100)
	defer release(t, b)
	for _, r := range [][2]int{{-1, 0}, {1, 0}, {0, b.Cap() + 1}, {b.Cap() + 1, b.Cap() + 1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Slice(%d, %d) did not panic", r[0], r[1])
				}
			}()
			b.Slice(r[0], r[1])
		}()
	}
	copy(b.Bytes(), "0123456789")
	if s := b.Slice(2, 8).Slice(1, 3); string(s.Bytes()) != "34" || s.Cap() != b.Cap()-3 {
		t.Errorf("slice of a slice: %q cap %d", s.Bytes(), s.Cap())
	}
}

func TestArenaConfig(t *testing.T) {
	var ce *iouring.ConfigError
	for _, cfg := range []iouring.ArenaConfig{{Bytes: -1}, {Bytes: 1<<30 + 1}, {MaxBuffer: -1}, {MaxBuffer: 1<<30 + 1}} {
		if _, err := iouring.NewArena(cfg); !errors.As(err, &ce) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	a := newArena(t, iouring.ArenaConfig{Bytes: 1, MaxBuffer: 100_000})
	if a.MaxBuffer() != 128<<10 || a.Bytes() != 128<<10 {
		t.Errorf("MaxBuffer %d, Bytes %d", a.MaxBuffer(), a.Bytes())
	}
	var ae *iouring.ArenaError
	for _, n := range []int{-1, 128<<10 + 1} {
		if _, err := a.Get(t.Context(), n); !errors.As(err, &ae) {
			t.Errorf("Get(%d): %v", n, err)
		}
	}
}

// waiting returns when n callers wait for a.
func waiting(a *iouring.Arena, n int64) {
	for a.Waits() != n {
		runtime.Gosched()
	}
}

func TestArenaFIFO(t *testing.T) {
	a := newArena(t, iouring.ArenaConfig{Bytes: 1 << 20, MaxBuffer: 1 << 20})
	all := get(t, a, 1<<20)

	// A big one waits first; the small ones that come later must not starve it.
	order := make(chan int, 3)
	var wg sync.WaitGroup
	for i, n := range []int{1 << 20, 4096, 4096} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			b := get(t, a, n)
			order <- i
			release(t, b)
		}()
		waiting(a, int64(i+1))
	}
	release(t, all)
	wg.Wait()
	if first := <-order; first != 0 {
		t.Errorf("waiter %d was served before the first", first)
	}
}

func TestArenaCancelPassesTurnOn(t *testing.T) {
	a := newArena(t, iouring.ArenaConfig{Bytes: 1 << 20, MaxBuffer: 1 << 20})
	half := get(t, a, 1<<19)
	rest := get(t, a, 1<<19)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() { // needs everything, so it blocks the next one
		_, err := a.Get(ctx, 1<<20)
		failed <- err
	}()
	waiting(a, 1)
	got := make(chan iouring.Buffer)
	go func() {
		b, err := a.Get(context.Background(), 1<<19)
		if err != nil {
			t.Error(err)
		}
		got <- b
	}()
	waiting(a, 2)
	release(t, half) // room for the second, but the first is before it
	select {
	case <-got:
		t.Fatal("the second overtook the first")
	default:
	}
	cancel()
	var ae *iouring.ArenaError
	if err := <-failed; !errors.As(err, &ae) || !errors.Is(err, context.Canceled) || ae.InUse != 1<<20 {
		t.Errorf("cancelled Get: %v", err)
	}
	release(t, <-got, rest)
}

func TestArenaClose(t *testing.T) {
	a, err := iouring.NewArena(iouring.ArenaConfig{Bytes: 1 << 20, MaxBuffer: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	b := get(t, a, 1<<20)
	failed := make(chan error)
	for range 3 {
		go func() {
			_, err := a.Get(context.Background(), 1)
			failed <- err
		}()
	}
	waiting(a, 3)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := <-failed; err != iouring.ErrArenaClosed {
			t.Errorf("Get while closing: %v", err)
		}
	}
	fill(b.Bytes(), 1) // still mapped
	release(t, b)
	if _, err := a.Get(t.Context(), 1); err != iouring.ErrArenaClosed {
		t.Errorf("Get after Close: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// TestArenaStress lets many goroutines fight for little memory under deadlines:
// nobody hangs, nobody shares, everything comes back.
func TestArenaStress(t *testing.T) {
	a := newArena(t, iouring.ArenaConfig{Bytes: 1 << 20, MaxBuffer: 256 << 10})
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(uint64(g), 2))
			for range 300 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(200))*time.Microsecond)
				b, err := a.Get(ctx, rng.IntN(256<<10+1))
				cancel()
				if err != nil {
					continue
				}
				mem := b.Bytes()
				fill(mem, byte(g))
				runtime.Gosched()
				if !holds(mem, byte(g)) {
					t.Error("two owners of one buffer")
				}
				release(t, b)
			}
		}()
	}
	wg.Wait()
}

func BenchmarkArenaGetRelease(b *testing.B) {
	a := newArena(b, iouring.ArenaConfig{})
	b.ReportAllocs()
	for b.Loop() {
		buf, err := a.Get(b.Context(), 64<<10)
		if err != nil {
			b.Fatal(err)
		}
		buf.Release()
	}
}
