//go:build linux || darwin

package iouring_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/blockpath/blockpath/iouring"
	"golang.org/x/sys/unix"
)

func open(t testing.TB, cfg iouring.Config) iouring.Backend {
	t.Helper()
	b, err := iouring.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func openFile(t testing.TB, name string, flag int) *iouring.File {
	t.Helper()
	f, err := iouring.OpenFile(name, flag, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return f
}

func tempFile(t testing.TB) *iouring.File {
	t.Helper()
	return openFile(t, filepath.Join(t.TempDir(), "file"), os.O_RDWR|os.O_CREATE)
}

// eachBackend runs the test with every backend there is.
func eachBackend(t *testing.T, test func(t *testing.T, b iouring.Backend)) {
	for _, c := range []iouring.Choice{iouring.RingBackend, iouring.SyscallBackend} {
		t.Run(string(c), func(t *testing.T) {
			b, err := iouring.Open(iouring.Config{Backend: c})
			var ue *iouring.UnavailableError
			if errors.As(err, &ue) {
				t.Skipf("SKIPPED, NO RING HERE: %v", err)
			} else if err != nil {
				t.Fatal(err)
			}
			test(t, b)
			if err := b.Close(); err != nil {
				t.Error(err)
			}
			if err := b.Close(); err != nil {
				t.Errorf("second Close: %v", err)
			}
		})
	}
}

func TestOpen(t *testing.T) {
	eachBackend(t, func(t *testing.T, b iouring.Backend) {
		c := b.Capabilities()
		if c.Backend != b.Name() || c.Reason == "" || c.Kernel == "" || filepath.Base(t.Name()) != b.Name() {
			t.Errorf("%s: %+v", b.Name(), c)
		}
		t.Logf("%+v", c)
	})
	var ce *iouring.ConfigError
	if _, err := iouring.Open(iouring.Config{Backend: "aio"}); !errors.As(err, &ce) {
		t.Errorf("unknown backend: %v", err)
	}
	b := open(t, iouring.Config{})
	if auto := b.Capabilities(); auto.Reason == "" {
		t.Errorf("%+v", auto)
	}
}

func TestReadWrite(t *testing.T) {
	eachBackend(t, func(t *testing.T, b iouring.Backend) {
		a := newArena(t, iouring.ArenaConfig{})
		f := tempFile(t)
		ctx := t.Context()
		want := make([]byte, 300_000)
		for i := range want {
			want[i] = byte(rand.Uint32())
		}

		// A gather of 100 buffers, empty ones among them, is more than one vector.
		var bs []iouring.Buffer
		for rest := want; ; {
			n := min(len(rest), 3000)
			if len(bs)%5 == 3 {
				n = 0
			}
			buf := get(t, a, n)
			copy(buf.Bytes(), rest)
			bs = append(bs, buf)
			if rest = rest[n:]; len(rest) == 0 {
				break
			}
		}
		if err := b.WriteAt(ctx, f, bs, 77); err != nil {
			t.Fatal(err)
		}
		release(t, bs...)
		if err := b.Datasync(ctx, f); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got[77:], want) {
			t.Fatalf("the file holds something else (%v)", err)
		}

		buf := get(t, a, len(want))
		defer release(t, buf)
		for _, c := range []struct {
			off     int64
			n, want int
			err     error
		}{
			{77, len(want), len(want), nil},
			{77 + 1000, len(want), len(want) - 1000, io.EOF},
			{76 + int64(len(want)), 1, 1, nil},
			{77 + int64(len(want)), 1, 0, io.EOF},
			{1 << 40, 5, 0, io.EOF},
			{0, 0, 0, nil},
		} {
			n, err := b.ReadAt(ctx, f, buf.Slice(0, c.n), c.off)
			if n != c.want || err != c.err {
				t.Errorf("ReadAt(%d at %d) = %d, %v, want %d, %v", c.n, c.off, n, err, c.want, c.err)
			} else if n > 0 && !bytes.Equal(buf.Bytes()[:n], want[c.off-77:][:n]) {
				t.Errorf("ReadAt(%d at %d): wrong bytes", c.n, c.off)
			}
		}
		if err := b.WriteAt(ctx, f, nil, 5); err != nil {
			t.Errorf("empty write: %v", err)
		}
		if err := b.Datasync(ctx); err != nil {
			t.Errorf("datasync of nothing: %v", err)
		}
	})
}

func TestErrors(t *testing.T) {
	eachBackend(t, func(t *testing.T, b iouring.Backend) {
		a := newArena(t, iouring.ArenaConfig{})
		ctx := t.Context()
		f := tempFile(t)
		ro := openFile(t, f.Name(), os.O_RDONLY)
		buf := get(t, a, 10)
		bs := []iouring.Buffer{buf}

		check := func(what string, err, is error, want iouring.IOError) {
			t.Helper()
			var e *iouring.IOError
			if !errors.As(err, &e) || !errors.Is(err, is) {
				t.Errorf("%s: %v, want %v", what, err, is)
			} else if got := *e; got.Op != want.Op || got.Offset != want.Offset || got.Length != want.Length || got.Done != 0 || got.File != f.Name() {
				t.Errorf("%s: %+v", what, got)
			}
		}
		check("write to a read-only file", b.WriteAt(ctx, ro, bs, 3), unix.EBADF, iouring.IOError{Op: "write", Offset: 3, Length: 10})
		check("negative write", b.WriteAt(ctx, f, bs, -1), unix.EINVAL, iouring.IOError{Op: "write", Offset: -1, Length: 10})
		_, err := b.ReadAt(ctx, f, buf, -1)
		check("negative read", err, unix.EINVAL, iouring.IOError{Op: "read", Offset: -1, Length: 10})

		done, cancel := context.WithCancel(ctx)
		cancel()
		_, err = b.ReadAt(done, f, buf, 0)
		check("cancelled read", err, context.Canceled, iouring.IOError{Op: "read", Length: 10})
		check("cancelled write", b.WriteAt(done, f, bs, 0), context.Canceled, iouring.IOError{Op: "write", Length: 10})
		check("cancelled datasync", b.Datasync(done, f), context.Canceled, iouring.IOError{Op: "datasync"})
		if err := b.Datasync(ctx, f); err != nil {
			t.Errorf("a cancelled datasync stuck: %v", err)
		}

		if err := ro.Close(); err != nil {
			t.Fatal(err)
		}
		_, err = b.ReadAt(ctx, ro, buf, 0)
		check("read of a closed file", err, os.ErrClosed, iouring.IOError{Op: "read", Length: 10})
		check("write of a closed file", b.WriteAt(ctx, ro, bs, 0), os.ErrClosed, iouring.IOError{Op: "write", Length: 10})
		check("datasync of a closed file", b.Datasync(ctx, f, ro, f), os.ErrClosed, iouring.IOError{Op: "datasync"})
		if err := ro.Close(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("second close: %v", err)
		}

		release(t, buf)
		var be *iouring.BufferError
		if _, err := b.ReadAt(ctx, f, buf, 0); !errors.As(err, &be) {
			t.Errorf("read into a released buffer: %v", err)
		}
		live := get(t, a, 1)
		if err := b.WriteAt(ctx, f, []iouring.Buffer{live, buf}, 0); !errors.As(err, &be) {
			t.Errorf("write from a released buffer: %v", err)
		}
		release(t, live)

		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		live = get(t, a, 1)
		defer release(t, live)
		_, err = b.ReadAt(ctx, f, live, 0)
		check("read on a closed backend", err, iouring.ErrClosed, iouring.IOError{Op: "read", Length: 1})
		check("datasync on a closed backend", b.Datasync(ctx, f), iouring.ErrClosed, iouring.IOError{Op: "datasync"})
	})
}

// TestDatasyncFailureSticks uses a pipe, which cannot be synced.
func TestDatasyncFailureSticks(t *testing.T) {
	eachBackend(t, func(t *testing.T, b iouring.Backend) {
		a := newArena(t, iouring.ArenaConfig{})
		ctx := t.Context()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		p, err := iouring.NewFile(w)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		good := tempFile(t)
		if p.Err() != nil {
			t.Error(p.Err())
		}
		var e *iouring.IOError
		if err := b.Datasync(ctx, good, p, good); !errors.As(err, &e) || !errors.Is(err, unix.EINVAL) || e.Sticky || e.File != p.Name() {
			t.Fatalf("%+v", err)
		}
		if good.Err() != nil || !errors.Is(p.Err(), unix.EINVAL) {
			t.Errorf("Err: %v and %v", good.Err(), p.Err())
		}
		if err := b.Datasync(ctx, p); !errors.As(err, &e) || !errors.Is(err, unix.EINVAL) || !e.Sticky {
			t.Errorf("second datasync: %+v", err)
		}
		buf := get(t, a, 1)
		defer release(t, buf)
		if err := b.WriteAt(ctx, p, []iouring.Buffer{buf}, 0); !errors.As(err, &e) || !errors.Is(err, unix.EINVAL) || !e.Sticky {
			t.Errorf("write after it: %+v", err)
		}
	})
}

// TestDatasyncMany is more files than are synced at once.
func TestDatasyncMany(t *testing.T) {
	eachBackend(t, func(t *testing.T, b iouring.Backend) {
		a := newArena(t, iouring.ArenaConfig{})
		dir := t.TempDir()
		buf := get(t, a, 4096)
		defer release(t, buf)
		var files []*iouring.File
		for i := range 40 {
			f := openFile(t, filepath.Join(dir, string(rune('A'+i))), os.O_RDWR|os.O_CREATE)
			if err := b.WriteAt(t.Context(), f, []iouring.Buffer{buf}, 0); err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if err := b.Datasync(t.Context(), files...); err != nil {
					t.Error(err)
				}
			}()
		}
		wg.Wait()
	})
}
