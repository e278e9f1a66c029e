package iouring_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/blockpath/blockpath/iouring"
	"golang.org/x/sys/unix"
)

// eachEngine runs the test with a shared ring and with a dedicated one.
func eachEngine(t *testing.T, cfg iouring.RingConfig, test func(t *testing.T, e *iouring.Engine)) {
	needRing(t)
	for name, dedicated := range map[string]bool{"shared": false, "dedicated": true} {
		t.Run(name, func(t *testing.T) {
			e, err := iouring.NewEngine(iouring.EngineConfig{Ring: cfg, Dedicated: dedicated})
			if errors.Is(err, unix.EINVAL) {
				t.Skipf("SKIPPED, THE KERNEL HAS NO SUCH MODE: %v", err)
			} else if err != nil {
				t.Fatal(err)
			}
			test(t, e)
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			if err := e.Close(); err != nil {
				t.Errorf("second Close: %v", err)
			}
			if n := stat(e, "stale_cqe"); n != 0 {
				t.Errorf("%d completions matched nothing", n)
			}
		})
	}
}

func stat(e *iouring.Engine, name string) int64 {
	for n, v := range e.Stats().All() {
		if n == name {
			return v
		}
	}
	panic(name)
}

// TestEngineNops runs far more operations than the ring has room for, from many
// goroutines.
func TestEngineNops(t *testing.T) {
	for _, cfg := range []iouring.RingConfig{{Entries: 2, CQEntries: 4}, {Entries: 4, CQEntries: 4}, {}} {
		eachEngine(t, cfg, func(t *testing.T, e *iouring.Engine) {
			var wg sync.WaitGroup
			for g := range 50 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					ops := make([]*iouring.Op, 1+g%10)
					for i := range ops {
						ops[i] = new(iouring.Op)
						ops[i].UserData = uint64(g*1000 + i)
					}
					for range 20 {
						if err := e.Submit(ops...); err != nil {
							t.Error(err)
						}
						for i, op := range ops {
							if n, err := e.Wait(context.Background(), op); n != 0 || err != nil || op.CQE().UserData != uint64(g*1000+i) {
								t.Errorf("no-op: %d, %v, %+v", n, err, op.CQE())
							}
						}
					}
				}()
			}
			wg.Wait()
			if sqe, cqe := stat(e, "sqe"), stat(e, "cqe"); sqe < 5*20*55 || cqe < 5*20*55 {
				t.Errorf("%d submitted, %d completed", sqe, cqe)
			}
		})
	}
}

func TestEngineChains(t *testing.T) {
	eachEngine(t, iouring.RingConfig{Entries: 4, CQEntries: 8}, func(t *testing.T, e *iouring.Engine) {
		a := newArena(t, iouring.ArenaConfig{})
		ctx := t.Context()
		var wg sync.WaitGroup
		for g := range 8 {
			f := tempFile(t)
			fd := int(f.OS().Fd())
			wg.Add(1)
			go func() {
				defer wg.Done()
				out, in := get(t, a, 4000), get(t, a, 4000)
				defer release(t, out, in)
				var ops [3]iouring.Op
				for round := range 50 {
					fill(out.Bytes(), byte(g*50+round))
					ops[0].PrepWrite(fd, out, 0)
					ops[0].SetFlags(iouring.SQEIOLink)
					ops[1].PrepFsync(fd, true)
					ops[1].SetFlags(iouring.SQEIOLink)
					ops[2].PrepRead(fd, in, 0)
					if round%10 != 0 {
						ops[1].PrepNop()
						ops[1].SetFlags(iouring.SQEIOLink)
					}
					if err := e.Submit(&ops[0], &ops[1], &ops[2]); err != nil {
						t.Error(err)
						return
					}
					for i, want := range []int{4000, 0, 4000} {
						if n, err := e.Wait(ctx, &ops[i]); n != want || err != nil {
							t.Errorf("operation %d of the chain: %d, %v", i, n, err)
						}
					}
					if !holds(in.Bytes(), byte(g*50+round)) {
						t.Error("the read did not see the write before it")
					}
				}
			}()
		}
		wg.Wait()

		var op iouring.Op
		op.SetFlags(iouring.SQEIOLink)
		var ce *iouring.ConfigError
		if err := e.Submit(&op); !errors.As(err, &ce) {
			t.Errorf("a link to nothing: %v", err)
		}
		long := make([]*iouring.Op, 5) // does not fit the ring at all
		for i := range long {
			long[i] = new(iouring.Op)
			if i < 4 {
				long[i].SetFlags(iouring.SQEIOLink)
			}
		}
		if err := e.Submit(long...); !errors.As(err, &ce) {
			t.Errorf("a chain longer than the ring: %v", err)
		}
	})
}

// TestEngineCancel ends contexts in the middle of reads: Wait returns only when
// the kernel has let go, nothing is written into the buffer after that.
func TestEngineCancel(t *testing.T) {
	eachEngine(t, iouring.RingConfig{Entries: 8, CQEntries: 8}, func(t *testing.T, e *iouring.Engine) {
		a := newArena(t, iouring.ArenaConfig{})
		for round := range 50 {
			pr, pw := pipe(t)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			read := 0
			var mu sync.Mutex
			for range 20 { // more than the ring takes, so some are still queued
				wg.Add(1)
				go func() {
					defer wg.Done()
					buf := get(t, a, 64)
					defer release(t, buf)
					var op iouring.Op
					op.PrepRead(pr, buf.Slice(0, 1), -1)
					n, err := e.Do(ctx, &op)
					mu.Lock()
					read += n
					mu.Unlock()
					if err != nil && err != context.Canceled {
						t.Error(err)
					}
					fill(buf.Bytes(), 0xEE)
					runtime.Gosched()
					if !holds(buf.Bytes(), 0xEE) {
						t.Error("the kernel wrote into a buffer after Wait")
					}
				}()
			}
			if round%2 == 0 {
				runtime.Gosched()
			} else {
				time.Sleep(200 * time.Microsecond)
			}
			unix.Write(pw, []byte("ab"))
			cancel()
			unix.Write(pw, make([]byte, 30))
			wg.Wait()
			left := make([]byte, 64)
			n, err := unix.Read(pr, left)
			if err != nil || n+read != 32 {
				t.Errorf("round %d: %d bytes read, %d left (%v)", round, read, n, err)
			}
			unix.Close(pr)
			unix.Close(pw)
		}
	})
}

// TestEngineClose closes with a thousand operations in flight and more queued.
func TestEngineClose(t *testing.T) {
	eachEngine(t, iouring.RingConfig{Entries: 64, CQEntries: 1024}, func(t *testing.T, e *iouring.Engine) {
		a := newArena(t, iouring.ArenaConfig{Bytes: 8 << 20})
		pr, _ := pipe(t)
		var wg sync.WaitGroup
		started := make(chan struct{}, 1500)
		for range 1500 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				b := get(t, a, 100)
				var op iouring.Op
				op.PrepRead(pr, b, -1)
				if err := e.Submit(&op); err != nil {
					t.Error(err)
				}
				release(t, b)
				started <- struct{}{}
				if _, err := e.Wait(context.Background(), &op); err != unix.ECANCELED && err != iouring.ErrClosed {
					t.Errorf("operation in flight: %v", err)
				}
			}()
		}
		for range 1500 {
			<-started
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if n := a.InUse(); n != 0 {
			t.Errorf("%d bytes pinned after Close", n)
		}
		var op iouring.Op
		if _, err := e.Do(context.Background(), &op); err != iouring.ErrClosed {
			t.Errorf("Do after Close: %v", err)
		}
	})
}

// TestEngineCloseRace submits while the engine is being closed: every operation
// ends.
func TestEngineCloseRace(t *testing.T) {
	for range 30 {
		eachEngine(t, iouring.RingConfig{Entries: 8}, func(t *testing.T, e *iouring.Engine) {
			var wg sync.WaitGroup
			for range 4 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					var op iouring.Op
					for {
						if _, err := e.Do(context.Background(), &op); err == iouring.ErrClosed {
							return
						} else if err != nil {
							t.Error(err)
						}
					}
				}()
			}
			time.Sleep(100 * time.Microsecond)
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			wg.Wait()
		})
	}
}

// TestEngineThreadExit lets the thread that submitted die. Its operations end,
// one way or the other, and the engine goes on.
func TestEngineThreadExit(t *testing.T) {
	eachEngine(t, iouring.RingConfig{}, func(t *testing.T, e *iouring.Engine) {
		a := newArena(t, iouring.ArenaConfig{})
		pr, pw := pipe(t)
		for range 10 {
			b := get(t, a, 8)
			op := new(iouring.Op)
			op.PrepRead(pr, b, -1)
			submitted := make(chan struct{})
			go func() {
				runtime.LockOSThread() // and never unlocked: the thread ends too
				if err := e.Submit(op); err != nil {
					t.Error(err)
				}
				close(submitted)
			}()
			<-submitted
			time.AfterFunc(20*time.Millisecond, func() { unix.Write(pw, []byte("x")) })
			n, err := e.Wait(t.Context(), op)
			if err == unix.ECANCELED {
				var c [1]byte
				if _, err := unix.Read(pr, c[:]); err != nil {
					t.Error(err)
				}
			} else if n != 1 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
			release(t, b)
		}
	})
}

// TestEngineGC reads into buffers while stacks grow and the collector runs all
// the time.
func TestEngineGC(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	eachEngine(t, iouring.RingConfig{Entries: 16}, func(t *testing.T, e *iouring.Engine) {
		a := newArena(t, iouring.ArenaConfig{})
		var wg sync.WaitGroup
		for g := range 16 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				pr, pw := pipe(t)
				for round := range 40 {
					b := get(t, a, 4096)
					fill(b.Bytes(), 0)
					op := new(iouring.Op)
					half := b.Slice(0, 2048)
					op.PrepReadv(pr, []iouring.Buffer{half.Slice(0, 1000), half.Slice(1000, 2048)}, -1)
					if err := e.Submit(op); err != nil {
						t.Error(err)
					}
					grow(100)
					garbage := make([][]byte, 50)
					for i := range garbage {
						garbage[i] = make([]byte, 2048)
					}
					msg := make([]byte, 2048)
					fill(msg, byte(g*40+round))
					unix.Write(pw, msg)
					if n, err := e.Wait(context.Background(), op); n != 2048 || err != nil {
						t.Errorf("%d, %v", n, err)
					}
					if !holds(half.Bytes(), byte(g*40+round)) || !holds(b.Bytes()[2048:], 0) {
						t.Error("the bytes went elsewhere")
					}
					for _, m := range garbage {
						if !holds(m, 0) {
							t.Error("the kernel wrote into the heap")
						}
					}
					release(t, b)
				}
			}()
		}
		wg.Wait()
	})
}

// grow makes the stack move.
//
//go:noinline
func grow(n int) int {
	var pad [1024]byte
	if n == 0 {
		return int(pad[5])
	}
	return grow(n-1) + int(pad[n%1024])
}

func TestEngineSignals(t *testing.T) {
	signalStorm(t)
	eachEngine(t, iouring.RingConfig{Entries: 8}, func(t *testing.T, e *iouring.Engine) {
		a := newArena(t, iouring.ArenaConfig{})
		f := tempFile(t)
		fd := int(f.OS().Fd())
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				b := get(t, a, 4096)
				defer release(t, b)
				var op iouring.Op
				for round := range 100 {
					fill(b.Bytes(), byte(g*100+round))
					op.PrepWrite(fd, b, int64(g)*4096)
					op.SetFlags(iouring.SQEAsync) // waits for a kernel thread
					if n, err := e.Do(context.Background(), &op); n != 4096 || err != nil {
						t.Errorf("write: %d, %v", n, err)
					}
					fill(b.Bytes(), 0)
					op.PrepRead(fd, b, int64(g)*4096)
					if n, err := e.Do(context.Background(), &op); n != 4096 || err != nil || !holds(b.Bytes(), byte(g*100+round)) {
						t.Errorf("read: %d, %v", n, err)
					}
				}
			}()
		}
		wg.Wait()
	})
}

// TestEngineSlowOwner never takes its result; the others go on.
func TestEngineSlowOwner(t *testing.T) {
	eachEngine(t, iouring.RingConfig{Entries: 4, CQEntries: 4}, func(t *testing.T, e *iouring.Engine) {
		idle := make([]iouring.Op, 100)
		for i := range idle {
			if err := e.Submit(&idle[i]); err != nil {
				t.Fatal(err)
			}
		}
		var op iouring.Op
		for range 100 {
			if _, err := e.Do(t.Context(), &op); err != nil {
				t.Fatal(err)
			}
		}
		for i := range idle {
			if _, err := e.Wait(t.Context(), &idle[i]); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestEngineRegisteredFiles(t *testing.T) {
	eachEngine(t, iouring.RingConfig{}, func(t *testing.T, e *iouring.Engine) {
		a := newArena(t, iouring.ArenaConfig{})
		f := tempFile(t)
		err := e.OnRing(func(r *iouring.Ring) error {
			if err := r.RegisterFilesSparse(4); err != nil {
				return err
			}
			return r.UpdateFiles(2, []int32{int32(f.OS().Fd())})
		})
		if err != nil {
			t.Fatal(err)
		}
		buf := get(t, a, 100)
		defer release(t, buf)
		var op iouring.Op
		for i, want := range []error{unix.EBADF, unix.EBADF, nil, unix.EBADF} {
			op.PrepWrite(i, buf, 0)
			op.SetFlags(iouring.SQEFixedFile)
			if _, err := e.Do(t.Context(), &op); err != want {
				t.Errorf("file %d: %v, want %v", i, err, want)
			}
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := e.OnRing(nil); err != iouring.ErrClosed {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestEnginePanics(t *testing.T) {
	eachEngine(t, iouring.RingConfig{}, func(t *testing.T, e *iouring.Engine) {
		mustPanic := func(what string, f func()) {
			defer func() {
				if recover() == nil {
					t.Errorf("%s did not panic", what)
				}
			}()
			f()
		}
		var op iouring.Op
		mustPanic("Wait without Submit", func() { e.Wait(t.Context(), &op) })
		if err := e.Submit(&op); err != nil {
			t.Fatal(err)
		}
		mustPanic("double Submit", func() { e.Submit(&op) })
		if _, err := e.Wait(t.Context(), &op); err != nil {
			t.Error(err)
		}
	})
}

func TestMultishotAccept(t *testing.T) {
	eachEngine(t, iouring.RingConfig{}, func(t *testing.T, e *iouring.Engine) {
		l, addr := listen(t)
		var s iouring.SQE
		s.PrepMultishotAccept(l, 0)
		m, err := e.Start(&s)
		if err != nil {
			t.Fatal(err)
		}
		const n = 10
		for range n {
			dial(t, addr)
		}
		for range n {
			c, err := m.Next(t.Context())
			if err != nil || c.Err() != nil || !c.More() {
				t.Fatalf("%+v, %v", c, err)
			}
			unix.Close(int(c.Res))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if c, err := m.Next(ctx); err != context.DeadlineExceeded {
			t.Errorf("%+v, %v", c, err)
		}
		m.Cancel()
		if c, err := m.Next(t.Context()); err != nil || c.Err() != unix.ECANCELED || c.More() {
			t.Errorf("last completion: %+v, %v", c, err)
		}
		if _, err := m.Next(t.Context()); err != io.EOF {
			t.Errorf("after the last: %v", err)
		}
		m.Cancel() // too late, harmless

		if m, err = e.Start(&s); err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if c, err := m.Next(t.Context()); err != nil || c.Err() != unix.ECANCELED {
			t.Errorf("closed: %+v, %v", c, err)
		}
		if m, err = e.Start(&s); err != nil {
			t.Fatal(err)
		}
		if c, err := m.Next(t.Context()); err != nil || c.Err() != unix.ECANCELED {
			t.Errorf("closed before: %+v, %v", c, err)
		}
		if _, err := m.Next(t.Context()); err != iouring.ErrClosed {
			t.Errorf("closed before: %v", err)
		}
	})
}

// TestMultishotUntaken lets completions pile up.
func TestMultishotUntaken(t *testing.T) {
	eachEngine(t, iouring.RingConfig{Entries: 8}, func(t *testing.T, e *iouring.Engine) {
		pr, pw := pipe(t)
		unix.SetNonblock(pw, true)
		var s iouring.SQE
		s.PrepPollMultishot(pr, unix.POLLIN)
		m, err := e.Start(&s)
		if err != nil {
			t.Fatal(err)
		}
		for stat(e, "cancel") == 0 {
			before := stat(e, "cqe")
			if _, err := unix.Write(pw, []byte{0}); err != nil {
				t.Fatal(err)
			}
			for stat(e, "cqe") == before {
				runtime.Gosched()
			}
		}
		got := 0
		for {
			c, err := m.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got++
			if !c.More() {
				if c.Err() != unix.ECANCELED {
					t.Errorf("last completion: %+v", c)
				}
				break
			}
		}
		if got < 4096 || got > 4096+100 {
			t.Errorf("%d completions", got)
		}
	})
}

// leaks compares descriptors, mappings and goroutines before and after.
func leaks(t *testing.T, work func()) {
	t.Helper()
	count := func() (fds, maps, routines int) {
		runtime.GC()
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		m, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+9 < len(m); i++ {
			if string(m[i:i+9]) == "io_uring]" {
				maps++
			}
		}
		return len(d), maps, runtime.NumGoroutine()
	}
	work() // what is made once is made now
	f1, m1, g1 := count()
	work()
	for i := 0; ; i++ {
		f2, m2, g2 := count()
		if f2 <= f1 && m2 <= m1 && g2 <= g1 {
			return
		}
		if i == 100 {
			t.Fatalf("descriptors %d -> %d, mappings %d -> %d, goroutines %d -> %d", f1, f2, m1, m2, g1, g2)
		}
		time.Sleep(10 * time.Millisecond) // a goroutine that has done its work may still be counted
	}
}

func TestLeaks(t *testing.T) {
	needRing(t)
	n := 300
	if testing.Short() {
		n = 30
	}
	for _, cfg := range []iouring.Config{{Backend: iouring.RingBackend, Entries: 8}, {Backend: iouring.RingBackend, Entries: 8, Dedicated: true}, {Backend: iouring.SyscallBackend}} {
		leaks(t, func() {
			for range n {
				a, err := iouring.NewArena(iouring.ArenaConfig{Bytes: 64 << 10, MaxBuffer: 4096})
				if err != nil {
					t.Fatal(err)
				}
				cfg.Register = []*iouring.Arena{a}
				b, err := iouring.Open(cfg)
				if err != nil {
					t.Fatal(err)
				}
				if b.Capabilities().Registered != (b.Name() == "ring") {
					t.Fatalf("%+v", b.Capabilities())
				}
				if err := errors.Join(b.Close(), a.Close()); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkNop(b *testing.B) {
	needRing(b)
	b.Run("mode=bare", func(b *testing.B) {
		r := newRing(b, iouring.RingConfig{})
		var s iouring.SQE
		b.ReportAllocs()
		for b.Loop() {
			r.Push(&s)
			r.SubmitAndWait(1)
			r.PeekCQE()
		}
	})
	for name, dedicated := range map[string]bool{"shared": false, "dedicated": true} {
		for _, depth := range []int{1, 64} {
			b.Run(fmt.Sprintf("mode=%s/depth=%d", name, depth), func(b *testing.B) {
				e, err := iouring.NewEngine(iouring.EngineConfig{Dedicated: dedicated})
				if err != nil {
					b.Fatal(err)
				}
				defer e.Close()
				b.ReportAllocs()
				var wg sync.WaitGroup
				for range depth {
					wg.Add(1)
					go func() {
						defer wg.Done()
						var op iouring.Op
						ctx := context.Background()
						for range b.N / depth {
							e.Do(ctx, &op)
						}
					}()
				}
				wg.Wait()
			})
		}
	}
}

// TestMultishotRecv is a server whose connections are received by multishot and
// echoed with a copy.
func TestMultishotRecv(t *testing.T) {
	eachEngine(t, iouring.RingConfig{}, func(t *testing.T, e *iouring.Engine) {
		a := newArena(t, iouring.ArenaConfig{})
		group, err := e.NewBufRing(t.Context(), a, 1, 8, 4096)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for g := range 4 {
			x, y := socketpair(t)
			wg.Add(2)
			go func() {
				defer wg.Done()
				for {
					var s iouring.SQE
					s.PrepRecvMultishot(y, group.Group(), 0)
					m, err := e.Start(&s)
					if err != nil {
						t.Error(err)
						return
					}
					for {
						c, err := m.Next(context.Background())
						if err == io.EOF {
							break // out of buffers: start again
						} else if err != nil {
							t.Error(err)
							return
						}
						if c.Err() != nil && c.Err() != unix.ENOBUFS {
							t.Error(c.Err())
							return
						}
						if c.Res == 0 {
							unix.Shutdown(y, unix.SHUT_WR)
							return
						}
						if c.Res < 0 {
							continue
						}
						b, err := group.Buffer(c)
						if err != nil {
							t.Error(err)
							return
						}
						unix.Write(y, b.Bytes())
						if err := group.Recycle(c); err != nil {
							t.Error(err)
						}
					}
				}
			}()
			go func() {
				defer wg.Done()
				for i := range 50 {
					msg, echo := make([]byte, 3000), make([]byte, 3000)
					fill(msg, byte(g*50+i))
					unix.Write(x, msg)
					for n := 0; n < len(echo); {
						k, err := unix.Read(x, echo[n:])
						if err != nil || k == 0 {
							t.Error(k, err)
							return
						}
						n += k
					}
					if !holds(echo, byte(g*50+i)) {
						t.Error("wrong echo")
					}
				}
				unix.Shutdown(x, unix.SHUT_WR)
			}()
		}
		wg.Wait()
		if err := group.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestExamples runs the examples that need a ring, and so have no fixed output.
func TestExamples(t *testing.T) {
	needRing(t)
	for want, example := range map[string]func(){
		"\"ELF\"... and 65536 bytes\n":      ExampleEngine_Submit,
		"hello <nil>\n<nil>\n":              ExampleEngine_Start,
		"0 5 <nil>\n1 0 <nil>\n2 5 <nil>\n": ExampleRing,
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout := os.Stdout
		os.Stdout = w
		example()
		os.Stdout = stdout
		w.Close()
		got, err := io.ReadAll(r)
		r.Close()
		if err != nil || string(got) != want {
			t.Errorf("printed %q, want %q (%v)", got, want, err)
		}
	}
}
