//go:build linux || darwin

package iouring_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/blockpath/blockpath/iouring"
	"golang.org/x/sys/unix"
)

// directFile returns a file that was opened with O_DIRECT, or skips.
func directFile(t *testing.T) *iouring.File {
	t.Helper()
	d := tempFile(t).OpenDirect()
	if !d.Direct() {
		t.Skip("SKIPPED, NO O_DIRECT on this file system")
	}
	return d
}

func TestOpenDirect(t *testing.T) {
	eachBackend(t, func(t *testing.T, b iouring.Backend) {
		a := newArena(t, iouring.ArenaConfig{})
		ctx := t.Context()
		f := tempFile(t)
		if f.Direct() || f.Align() != 1 {
			t.Errorf("a plain file: %v, %d", f.Direct(), f.Align())
		}
		d := f.OpenDirect()
		if d != f.OpenDirect() || d != d.OpenDirect() {
			t.Error("another file the second time")
		}
		if !d.Direct() {
			t.Skip("SKIPPED, NO O_DIRECT on this file system")
		}
		if n := d.Align(); n < 512 || n&(n-1) != 0 {
			t.Errorf("alignment %d", n)
		}
		// Renamed: the same file all the same.
		if err := os.Rename(f.Name(), f.Name()+"2"); err != nil {
			t.Fatal(err)
		}
		out := get(t, a, 3*d.Align())
		fill(out.Bytes(), 1)
		if err := b.WriteAt(ctx, d, []iouring.Buffer{out}, 0); err != nil {
			t.Fatal(err)
		}
		in := get(t, a, 4*d.Align())
		if n, err := b.ReadAt(ctx, f, in, 0); n != out.Len() || err != io.EOF || !holds(in.Bytes()[:n], 1) {
			t.Errorf("buffered read: %d, %v", n, err)
		}
		// An end that is not aligned.
		if err := f.OS().Truncate(int64(2*d.Align() + 7)); err != nil {
			t.Fatal(err)
		}
		if n, err := b.ReadAt(ctx, d, in, int64(d.Align())); n != d.Align()+7 || err != io.EOF {
			t.Errorf("direct read: %d, %v", n, err)
		}
		var e *iouring.IOError
		if _, err := b.ReadAt(ctx, d, in, 1); !errors.As(err, &e) || !errors.Is(err, unix.EINVAL) {
			t.Errorf("unaligned read: %v", err)
		}
		release(t, in, out)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.ReadAt(ctx, d, iouring.Buffer{}, 0); !errors.Is(err, os.ErrClosed) {
			t.Errorf("the direct one is still open: %v", err)
		}
		if f.OpenDirect() != f {
			t.Error("OpenDirect of a closed file")
		}
	})
	shm, err := os.MkdirTemp("/dev/shm", "iouring")
	if err != nil {
		t.Logf("SKIPPED, NO TMPFS to see the fallback on: %v", err)
		return
	}
	defer os.RemoveAll(shm)
	f := openFile(t, filepath.Join(shm, "file"), os.O_RDWR|os.O_CREATE)
	if d := f.OpenDirect(); d.Direct() && d == f {
		t.Error("a plain file says that it is direct")
	}
}

// TestDirectShort cuts O_DIRECT operations where the rest is not aligned: they
// go on from the block before, and give up when no block gets done.
func TestDirectShort(t *testing.T) {
	eachBackend(t, func(t *testing.T, b iouring.Backend) {
		a := newArena(t, iouring.ArenaConfig{})
		ctx := t.Context()
		d := directFile(t)
		align := d.Align()
		buf := get(t, a, 8*align)
		defer release(t, buf)
		bs := []iouring.Buffer{buf.Slice(0, 3*align), buf.Slice(3*align, 8*align)}
		var plan func(n int, op iouring.FaultOp) iouring.Fault
		f := newFaulty(b, func(n int, op iouring.FaultOp) iouring.Fault { return plan(n, op) })
		cut := 0
		plan = func(n int, op iouring.FaultOp) iouring.Fault {
			if op.Offset%int64(align) != 0 || op.Length%align != 0 {
				t.Errorf("unaligned try %+v", op)
			}
			if n < 3 {
				return iouring.Fault{Short: cut}
			}
			return iouring.Fault{}
		}
		for cut = 1; cut <= 8*align; cut += 1 + cut/7 {
			f.ops = nil
			fill(buf.Bytes(), byte(cut))
			if err := f.WriteAt(ctx, d, bs, int64(align)); err != nil {
				t.Fatal(err)
			}
			fill(buf.Bytes(), 0)
			f.ops = nil
			if n, err := f.ReadAt(ctx, d, buf, int64(align)); n != 8*align || err != nil || !holds(buf.Bytes(), byte(cut)) {
				t.Fatalf("cut %d: %d, %v", cut, n, err)
			}
		}
		plan = func(int, iouring.FaultOp) iouring.Fault { return iouring.Fault{Short: align - 1} }
		f.ops = nil
		var e *iouring.IOError
		if err := f.WriteAt(ctx, d, bs, 0); !errors.As(err, &e) || !errors.Is(err, io.ErrNoProgress) || e.Done != 0 || len(f.ops) != 101 {
			t.Errorf("write in parts of blocks: %v after %d tries", err, len(f.ops))
		}
	})
}

func TestFileCache(t *testing.T) {
	dir := t.TempDir()
	name := func(i int) string { return filepath.Join(dir, fmt.Sprint(i)) }
	for i := range 10 {
		if err := os.WriteFile(name(i), []byte{byte(i)}, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var opens atomic.Int64
	c := iouring.NewFileCache(3, func(name string) (*iouring.File, error) {
		opens.Add(1)
		return iouring.OpenFile(name, os.O_RDONLY, 0)
	})
	use := func(i int) *iouring.CachedFile {
		t.Helper()
		f, err := c.Get(name(i))
		if err != nil {
			t.Fatal(err)
		}
		var b [1]byte
		if _, err := f.OS().ReadAt(b[:], 0); err != nil || b[0] != byte(i) {
			t.Fatalf("file %d holds %d (%v)", i, b[0], err)
		}
		return f
	}
	put := func(f *iouring.CachedFile) {
		t.Helper()
		if err := f.Release(); err != nil {
			t.Error(err)
		}
	}
	expect := func(wantOpens int64, wantLen int) {
		t.Helper()
		if opens.Load() != wantOpens || c.Len() != wantLen {
			t.Fatalf("%d opens, %d files; want %d, %d", opens.Load(), c.Len(), wantOpens, wantLen)
		}
	}
	put(use(0))
	put(use(0))
	expect(1, 1)
	put(use(1))
	put(use(2))
	put(use(0))
	put(use(3)) // 1 is the least recently used
	expect(4, 3)
	put(use(0))
	put(use(2))
	expect(4, 3)
	put(use(1))
	expect(5, 3)

	var held []*iouring.CachedFile
	for i := range 5 { // more than the bound, in use
		held = append(held, use(i), use(i))
	}
	if c.Len() != 5 {
		t.Errorf("%d files in use", c.Len())
	}
	for _, f := range held {
		put(f)
	}
	if c.Len() != 3 {
		t.Errorf("%d files kept", c.Len())
	}

	// A file that was replaced.
	old := use(5)
	if err := errors.Join(os.WriteFile(name(99), []byte{5}, 0o600), os.Rename(name(99), name(5)), c.Forget(name(5)), c.Forget(name(5)), c.Forget(name(77))); err != nil {
		t.Fatal(err)
	}
	now := use(5)
	if now == old {
		t.Error("Forget changed nothing")
	}
	put(old)
	if _, err := old.OS().Stat(); err == nil {
		t.Error("the forgotten file is still open")
	}
	put(now)

	if _, err := c.Get(name(50)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if c.Len() > 3 {
		t.Errorf("%d files after a failed open", c.Len())
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a release too many did not panic")
			}
		}()
		now.Release()
	}()

	// Descriptors are wanted for something else.
	for range 3 {
		last := use(7)
		put(use(8))
		put(use(9))
		if n := c.Evict(1); n != 1 || c.Len() != 2 {
			t.Errorf("%d evicted of one, %d left", n, c.Len())
		}
		if n := c.Evict(5); n != 1 || c.Len() != 1 {
			t.Errorf("%d evicted, %d left", n, c.Len())
		}
		put(last)
		if n := c.Evict(5) + c.Evict(5); n != 1 || c.Len() != 0 {
			t.Errorf("%d evicted, %d left", n, c.Len())
		}
	}

	last := use(6)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Get(name(0)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Get after Close: %v", err)
	}
	if _, err := last.OS().Stat(); err != nil {
		t.Errorf("a file in use was closed: %v", err)
	}
	put(last)
	if c.Len() != 0 {
		t.Errorf("%d files after Close", c.Len())
	}
}

func TestFileCacheStress(t *testing.T) {
	dir := t.TempDir()
	for i := range 20 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte{byte(i)}, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := iouring.NewFileCache(5, nil)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(uint64(g), 5))
			for range 500 {
				i := rng.IntN(22) // two of them do not exist
				name := filepath.Join(dir, fmt.Sprint(i))
				if rng.IntN(10) == 0 {
					if err := c.Forget(name); err != nil {
						t.Error(err)
					}
				}
				f, err := c.Get(name)
				if err != nil {
					if i < 20 || !errors.Is(err, os.ErrNotExist) {
						t.Error(err)
					}
					continue
				}
				var b [1]byte
				if _, err := f.OS().ReadAt(b[:], 0); err != nil || b[0] != byte(i) {
					t.Errorf("file %d holds %d (%v)", i, b[0], err)
				}
				if err := f.Release(); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	if c.Len() > 5 {
		t.Errorf("%d files kept", c.Len())
	}
	if err := c.Close(); err != nil || c.Len() != 0 {
		t.Errorf("%d files after Close, %v", c.Len(), err)
	}
}
