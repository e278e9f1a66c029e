//go:build linux || darwin

package iouring_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockpath/blockpath/iouring"
	"golang.org/x/sys/unix"
)

// A faulty wraps the backend so that the test decides about every try.
type faulty struct {
	iouring.Backend
	mu   sync.Mutex
	ops  []iouring.FaultOp
	plan func(n int, op iouring.FaultOp) iouring.Fault // n counts tries
}

func newFaulty(b iouring.Backend, plan func(n int, op iouring.FaultOp) iouring.Fault) *faulty {
	f := &faulty{plan: plan}
	f.Backend = iouring.WithFaults(b, func(op iouring.FaultOp) iouring.Fault {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.ops = append(f.ops, op)
		return f.plan(len(f.ops)-1, op)
	})
	return f
}

// TestShortAtEveryByte cuts a write and a read at every byte: the rest follows.
func TestShortAtEveryByte(t *testing.T) {
	eachBackend(t, func(t *testing.T, b iouring.Backend) {
		a := newArena(t, iouring.ArenaConfig{})
		ctx := t.Context()
		file := tempFile(t)
		sizes := []int{100, 0, 1, 150, 49}
		const total = 300
		var bs []iouring.Buffer
		for i, n := range sizes {
			buf := get(t, a, n)
			fill(buf.Bytes(), byte(i+1))
			bs = append(bs, buf)
		}
		defer release(t, bs...)
		in := get(t, a, total)
		defer release(t, in)
		cut := 0
		f := newFaulty(b, func(n int, op iouring.FaultOp) iouring.Fault {
			if n == 0 {
				return iouring.Fault{Short: cut}
			}
			return iouring.Fault{}
		})
		for cut = 1; cut <= total; cut++ {
			if err := file.OS().Truncate(0); err != nil {
				t.Fatal(err)
			}
			f.ops = nil
			if err := f.WriteAt(ctx, file, bs, 7); err != nil {
				t.Fatal(err)
			}
			want := []iouring.FaultOp{
				{Op: "write", File: file.Name(), Offset: 7, Length: total},
				{Op: "write", File: file.Name(), Offset: 7 + int64(cut), Length: total - cut},
			}
			if cut == total {
				want = want[:1]
			}
			if fmt.Sprint(f.ops) != fmt.Sprint(want) {
				t.Fatalf("tries %v, want %v", f.ops, want)
			}
			f.ops = nil
			fill(in.Bytes(), 0)
			if n, err := f.ReadAt(ctx, file, in, 7); n != total || err != nil {
				t.Fatalf("read cut at %d: %d, %v", cut, n, err)
			}
			at := 0
			for i, n := range sizes {
				if !holds(in.Bytes()[at:at+n], byte(i+1)) {
					t.Fatalf("cut at %d: part %d is wrong", cut, i)
				}
				at += n
			}
			f.ops = nil
			if n, err := f.ReadAt(ctx, file, in.Slice(0, total), 8); n != total-1 || err != io.EOF {
				t.Fatalf("read cut at %d across the end: %d, %v", cut, n, err)
			}
		}
	})
}

func TestRetries(t *testing.T) {
	eachBackend(t, func(t *testing.T, b iouring.Backend) {
		a := newArena(t, iouring.ArenaConfig{})
		ctx := t.Context()
		file := tempFile(t)
		buf := get(t, a, 1000)
		defer release(t, buf)
		bs := []iouring.Buffer{buf}
		var plan func(n int, op iouring.FaultOp) iouring.Fault
		f := newFaulty(b, func(n int, op iouring.FaultOp) iouring.Fault { return plan(n, op) })
		defer f.Close()

		// A few interruptions, with progress in between.
		plan = func(n int, op iouring.FaultOp) iouring.Fault {
			switch n % 4 {
			case 0:
				return iouring.Fault{Err: unix.EINTR}
			case 1:
				return iouring.Fault{Err: unix.EAGAIN}
			}
			return iouring.Fault{Short: 50}
		}
		if err := f.WriteAt(ctx, file, bs, 0); err != nil {
			t.Error(err)
		}
		f.ops = nil
		if n, err := f.ReadAt(ctx, file, buf, 0); n != 1000 || err != nil {
			t.Errorf("read: %d, %v", n, err)
		}
		f.ops = nil
		plan = func(n int, op iouring.FaultOp) iouring.Fault {
			if n < 3 {
				return iouring.Fault{Err: unix.EINTR}
			}
			return iouring.Fault{}
		}
		if err := f.Datasync(ctx, file, file); err != nil || file.Err() != nil {
			t.Errorf("interrupted datasync: %v", err)
		}

		// For ever: it ends, by itself or with the context.
		for _, errno := range []error{map[string]unix.Errno{"ring": unix.EINTR, "syscall": unix.EAGAIN}[b.Name()]} {
			plan = func(int, iouring.FaultOp) iouring.Fault { return iouring.Fault{Err: errno} }
			f.ops = nil
			var e *iouring.IOError
			if _, err := f.ReadAt(ctx, file, buf, 0); !errors.As(err, &e) || !errors.Is(err, errno) || len(f.ops) != 101 {
				t.Errorf("%v for ever: %v after %d tries", errno, err, len(f.ops))
			}
			short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
			if err := f.WriteAt(short, file, bs, 0); !errors.As(err, &e) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v under a deadline: %v", errno, err)
			}
			cancel()
		}

		// Errors that stay, in the middle.
		for _, errno := range []error{unix.EIO, unix.ENOSPC} {
			plan = func(n int, op iouring.FaultOp) iouring.Fault {
				if n == 0 {
					return iouring.Fault{Short: 300}
				}
				return iouring.Fault{Err: errno}
			}
			f.ops = nil
			var e *iouring.IOError
			if err := f.WriteAt(ctx, file, bs, 5); !errors.As(err, &e) || !errors.Is(err, errno) || e.Done != 300 || e.Length != 1000 || e.Offset != 5 || len(f.ops) != 2 {
				t.Errorf("write: %+v", err)
			}
			f.ops = nil
			if n, err := f.ReadAt(ctx, file, buf, 5); n != 300 || !errors.As(err, &e) || !errors.Is(err, errno) || e.Done != 300 {
				t.Errorf("read: %d, %+v", n, err)
			}
		}
		if err := file.Err(); err != nil {
			t.Errorf("a failed write stuck: %v", err)
		}
	})
}

// TestDatasyncNotRetried has a datasync fail once: later ones would succeed, and
// must not be believed.
func TestDatasyncNotRetried(t *testing.T) {
	for _, fault := range []iouring.Fault{{Err: unix.EIO}, {ErrAfter: unix.EIO}, {ErrAfter: unix.ENOSPC, Delay: time.Millisecond}} {
		eachBackend(t, func(t *testing.T, b iouring.Backend) {
			bad, good := tempFile(t), tempFile(t)
			a := newArena(t, iouring.ArenaConfig{})
			buf := get(t, a, 10)
			defer release(t, buf)
			f := newFaulty(b, func(n int, op iouring.FaultOp) iouring.Fault {
				if op.Op == "datasync" && op.File == bad.Name() {
					return fault
				}
				return iouring.Fault{}
			})
			ctx := t.Context()
			if err := f.Datasync(ctx, bad, good); err == nil {
				t.Fatal("the fault was lost")
			}
			tries := len(f.ops)
			for range 2 {
				var e *iouring.IOError
				if err := f.Datasync(ctx, bad, good); !errors.As(err, &e) || !e.Sticky || e.File != bad.Name() {
					t.Errorf("again: %v", err)
				}
				if err := f.WriteAt(ctx, bad, []iouring.Buffer{buf}, 0); !errors.As(err, &e) || !e.Sticky || e.Op != "write" {
					t.Errorf("write: %v", err)
				}
			}
			if len(f.ops) != tries+2 { // good's
				t.Errorf("tries %v", f.ops)
			}
			if _, err := f.ReadAt(ctx, bad, buf, 0); err != io.EOF {
				t.Errorf("read: %v", err)
			}
			if err := f.WriteAt(ctx, good, []iouring.Buffer{buf}, 0); err != nil {
				t.Errorf("the other file: %v", err)
			}
		})
	}
}

// TestReordered delays completions so that they come in another order than the
// operations went out.
func TestReordered(t *testing.T) {
	eachBackend(t, func(t *testing.T, b iouring.Backend) {
		a := newArena(t, iouring.ArenaConfig{})
		dir := t.TempDir()
		var seq atomic.Int64
		f := iouring.WithFaults(b, func(op iouring.FaultOp) iouring.Fault {
			n := seq.Add(1)
			return iouring.Fault{Short: op.Length/2 + 1, Delay: time.Duration((7-n%7)*200) * time.Microsecond}
		})
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				ctx := context.Background()
				file := openFile(t, filepath.Join(dir, fmt.Sprint(w)), os.O_RDWR|os.O_CREATE)
				buf := get(t, a, 1000)
				defer release(t, buf)
				for v := range 5 {
					fill(buf.Bytes(), byte(w*5+v))
					if err := errors.Join(f.WriteAt(ctx, file, []iouring.Buffer{buf}, 0), f.Datasync(ctx, file, file)); err != nil {
						t.Error(err)
					}
					fill(buf.Bytes(), 0)
					if n, err := f.ReadAt(ctx, file, buf, 0); n != 1000 || err != nil || !holds(buf.Bytes(), byte(w*5+v)) {
						t.Errorf("read: %d, %v", n, err)
					}
				}
			}()
		}
		wg.Wait()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestWithFaultsForeign(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	iouring.WithFaults(&faulty{}, nil)
}
