package iouring_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/blockpath/blockpath/iouring"
	"golang.org/x/sys/unix"
)

// TestDifferential runs the same random script on the ring and on system calls:
// results, errors and the files at the end must be the same, buffered and
// O_DIRECT.
func TestDifferential(t *testing.T) {
	needRing(t)
	for _, dedicated := range []bool{false, true} {
		for _, direct := range []int{0, unix.O_DIRECT} {
			t.Run(fmt.Sprintf("dedicated=%v/direct=%v", dedicated, direct != 0), func(t *testing.T) {
				a := newArena(t, iouring.ArenaConfig{})
				cfg := iouring.Config{Backend: iouring.RingBackend, Entries: 8, Dedicated: dedicated, Register: []*iouring.Arena{a}}
				ring, plain := open(t, cfg), open(t, iouring.Config{Backend: iouring.SyscallBackend})
				dir := t.TempDir()
				const workers = 6
				var wg sync.WaitGroup
				for w := range workers {
					x := openFile(t, filepath.Join(dir, fmt.Sprint("x", w)), os.O_RDWR|os.O_CREATE|direct)
					y := openFile(t, filepath.Join(dir, fmt.Sprint("y", w)), os.O_RDWR|os.O_CREATE|direct)
					if x.Direct() != (direct != 0) {
						t.Fatal("Direct is wrong")
					}
					wg.Add(1)
					go func() {
						defer wg.Done()
						script(t, rand.New(rand.NewPCG(uint64(w), 3)), a, ring, plain, x, y, direct != 0)
					}()
				}
				wg.Wait()
				for w := range workers {
					x, err1 := os.ReadFile(filepath.Join(dir, fmt.Sprint("x", w)))
					y, err2 := os.ReadFile(filepath.Join(dir, fmt.Sprint("y", w)))
					if err := errors.Join(err1, err2); err != nil || !bytes.Equal(x, y) {
						t.Errorf("the files of worker %d differ (%v)", w, err)
					}
				}
				var ringOps int64
				for name, v := range ring.Stats().All() {
					if name == "ring_reads" || name == "ring_writes" || name == "ring_datasyncs" {
						ringOps += v
					}
				}
				if ringOps == 0 {
					t.Error("nothing went through the ring")
				}
			})
		}
	}
}

func script(t *testing.T, rng *rand.Rand, a *iouring.Arena, ring, plain iouring.Backend, x, y *iouring.File, direct bool) {
	ctx := context.Background()
	size := func(n int) int {
		v := rng.IntN(n)
		if direct {
			v &^= 4095
		}
		return v
	}
	steps := 60
	if direct {
		steps = 20 // the disk's own pace
	}
	for step := range steps {
		off := int64(size(400_000))
		switch rng.IntN(8) {
		case 0, 1, 2:
			var bs []iouring.Buffer
			for range rng.IntN(4) {
				b := get(t, a, size(50_000))
				fill(b.Bytes(), byte(rng.Uint32()))
				bs = append(bs, b)
			}
			e1, e2 := ring.WriteAt(ctx, x, bs, off), plain.WriteAt(ctx, y, bs, off)
			if e1 != nil || e2 != nil {
				t.Errorf("step %d: write: %v, %v", step, e1, e2)
			}
			release(t, bs...)
		case 3, 4, 5:
			b1 := get(t, a, size(100_000))
			b2 := get(t, a, b1.Len())
			n1, e1 := ring.ReadAt(ctx, x, b1, off)
			n2, e2 := plain.ReadAt(ctx, y, b2, off)
			if n1 != n2 || e1 != e2 || e1 != nil && e1 != io.EOF || !bytes.Equal(b1.Bytes()[:n1], b2.Bytes()[:n2]) {
				t.Errorf("step %d: read of %d at %d: %d, %v and %d, %v", step, b1.Len(), off, n1, e1, n2, e2)
			}
			release(t, b1, b2)
		case 6:
			if err := errors.Join(ring.Datasync(ctx, x, x), plain.Datasync(ctx, y)); err != nil {
				t.Errorf("step %d: %v", step, err)
			}
		case 7:
			// Also an end that is not aligned.
			n := int64(rng.IntN(400_000))
			if err := errors.Join(x.OS().Truncate(n), y.OS().Truncate(n)); err != nil {
				t.Error(err)
			}
			e1, e2 := unix.Fadvise(int(x.OS().Fd()), 0, 0, unix.FADV_DONTNEED), unix.Fadvise(int(y.OS().Fd()), 0, 0, unix.FADV_DONTNEED)
			if e1 != nil || e2 != nil {
				t.Error(e1, e2)
			}
		}
	}
}

// mount mounts a small file system for the test.
func mount(t *testing.T, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED, NOT ROOT: cannot mount")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("SKIPPED, NO MOUNT HERE: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestFullDisk writes more than a file system holds: the error says how much
// was written, and the file can be read and written where there is room.
func TestFullDisk(t *testing.T) {
	eachBackend(t, func(t *testing.T, b iouring.Backend) {
		dir := mount(t, "1m")
		a := newArena(t, iouring.ArenaConfig{})
		f := openFile(t, filepath.Join(dir, "file"), os.O_RDWR|os.O_CREATE)
		ctx := t.Context()
		buf := get(t, a, 1<<20)
		defer release(t, buf)
		fill(buf.Bytes(), 5)
		half := buf.Slice(0, 600_000)
		if err := b.WriteAt(ctx, f, []iouring.Buffer{half}, 0); err != nil {
			t.Fatal(err)
		}
		err := b.WriteAt(ctx, f, []iouring.Buffer{half.Slice(0, 300_000), half}, 600_000)
		var e *iouring.IOError
		if !errors.As(err, &e) || !errors.Is(err, unix.ENOSPC) || e.Done != 1<<20-600_000 || e.Length != 900_000 {
			t.Fatalf("%+v", err)
		}
		if n, err := b.ReadAt(ctx, f, buf, 0); n != 1<<20 || err != nil || !holds(buf.Bytes(), 5) {
			t.Errorf("read: %d, %v", n, err)
		}
		if err := b.Datasync(ctx, f); err != nil {
			t.Errorf("datasync: %v", err)
		}
		if err := b.WriteAt(ctx, f, []iouring.Buffer{buf}, 0); err != nil {
			t.Errorf("write over what is there: %v", err)
		}
	})
}

// TestWriters has many goroutines write, sync and read back at once.
func TestWriters(t *testing.T) {
	eachBackend(t, func(t *testing.T, b iouring.Backend) {
		a := newArena(t, iouring.ArenaConfig{Bytes: 8 << 20})
		dir := t.TempDir()
		var wg sync.WaitGroup
		for w := range 32 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				ctx := context.Background()
				rng := rand.New(rand.NewPCG(uint64(w), 4))
				f := openFile(t, filepath.Join(dir, fmt.Sprint("f", w)), os.O_RDWR|os.O_CREATE)
				g := openFile(t, filepath.Join(dir, fmt.Sprint("g", w)), os.O_RDWR|os.O_CREATE)
				var want []byte
				for range 6 {
					x, y := get(t, a, rng.IntN(70_000)), get(t, a, rng.IntN(600))
					fill(x.Bytes(), byte(rng.Uint32()))
					fill(y.Bytes(), byte(rng.Uint32()))
					if err := b.WriteAt(ctx, f, []iouring.Buffer{x, y}, int64(len(want))); err != nil {
						t.Error(err)
					}
					want = append(append(want, x.Bytes()...), y.Bytes()...)
					if err := b.WriteAt(ctx, g, []iouring.Buffer{y}, 0); err != nil {
						t.Error(err)
					}
					release(t, x, y)
					if rng.IntN(2) == 0 {
						if err := b.Datasync(ctx, f, g); err != nil {
							t.Error(err)
						}
					}
				}
				buf := get(t, a, len(want)+1)
				defer release(t, buf)
				if n, err := b.ReadAt(ctx, f, buf, 0); n != len(want) || err != io.EOF || !bytes.Equal(buf.Bytes()[:n], want) {
					t.Errorf("writer %d: %d of %d, %v", w, n, len(want), err)
				}
			}()
		}
		wg.Wait()
	})
}
