//go:build linux || darwin

package fuzz

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/blockpath/blockpath/iouring"
)

// FuzzArena runs a program of gets and releases, two bytes an instruction,
// against a list of what is out.
func FuzzArena(f *testing.F) {
	f.Add([]byte{0, 0, 0, 16, 0, 255, 1, 0, 1, 0, 2, 0})
	f.Add(bytes.Repeat([]byte{0, 1, 0, 17, 1, 1, 0, 255, 2, 3}, 20))
	f.Add(append(bytes.Repeat([]byte{0, 255}, 9), bytes.Repeat([]byte{1, 0}, 9)...))
	f.Fuzz(func(t *testing.T, program []byte) {
		const bound, largest = 1 << 20, 128 << 10
		a, err := iouring.NewArena(iouring.ArenaConfig{Bytes: bound, MaxBuffer: largest})
		if err != nil {
			t.Fatal(err)
		}
		full, cancel := context.WithCancel(context.Background())
		cancel() // a full arena fails instead of waiting
		type live struct {
			b    iouring.Buffer
			mark byte
		}
		var out []live
		var gone []iouring.Buffer
		var inUse int64
		for i := 0; i+1 < len(program); i += 2 {
			arg := int(program[i+1])
			switch program[i] % 3 {
			case 0:
				n := arg * arg * 2 // up to 130050, just below the largest
				b, err := a.Get(full, n)
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Fatal(err)
					}
					continue
				}
				if b.Len() != n || b.Cap() < n || b.Cap() > largest {
					t.Fatalf("asked %d, got %d of %d", n, b.Len(), b.Cap())
				}
				m := b.Slice(0, b.Cap()).Bytes()
				m[0], m[len(m)-1], m[len(m)/2] = byte(i), byte(i), byte(i)
				out = append(out, live{b, byte(i)})
				inUse += int64(b.Cap())
			case 1:
				if len(out) == 0 {
					continue
				}
				k := arg % len(out)
				b := out[k].b
				m := b.Slice(0, b.Cap()).Bytes()
				if m[0] != out[k].mark || m[len(m)-1] != out[k].mark || m[len(m)/2] != out[k].mark {
					t.Fatal("somebody wrote into a buffer")
				}
				inUse -= int64(b.Cap())
				if err := b.Slice(b.Cap(), b.Cap()).Release(); err != nil {
					t.Fatal(err)
				}
				gone = append(gone, b)
				out = append(out[:k], out[k+1:]...)
			case 2:
				if len(gone) == 0 {
					continue
				}
				var be *iouring.BufferError
				if err := gone[arg%len(gone)].Release(); !errors.As(err, &be) {
					t.Fatalf("release of a released buffer: %v", err)
				}
			}
			if got := a.InUse(); got != inUse || got > bound {
				t.Fatalf("InUse %d, want %d", got, inUse)
			}
		}
		for _, l := range out {
			if err := l.b.Release(); err != nil {
				t.Fatal(err)
			}
		}
		for range bound / largest {
			if _, err := a.Get(full, largest); err != nil {
				t.Fatalf("the memory did not come back in one piece: %v", err)
			}
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzBackend runs a program of writes, reads, syncs and truncations, four bytes
// an instruction, on both backends, against a slice of bytes.
func FuzzBackend(f *testing.F) {
	f.Add([]byte{0, 1, 200, 0, 1, 0, 255, 0, 2, 0, 0, 0, 3, 1, 100, 0, 1, 0, 255, 3})
	f.Add(bytes.Repeat([]byte{0, 7, 77, 5, 1, 3, 99, 1, 4, 0, 9, 2}, 10))
	var backends []iouring.Backend
	for _, c := range []iouring.Choice{iouring.AutoBackend, iouring.SyscallBackend} {
		b, err := iouring.Open(iouring.Config{Backend: c, Entries: 4})
		if err != nil {
			f.Fatal(err)
		}
		backends = append(backends, b)
	}
	f.Cleanup(func() {
		for _, b := range backends {
			b.Close()
		}
	})
	a, err := iouring.NewArena(iouring.ArenaConfig{Bytes: 1 << 20})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { a.Close() })

	f.Fuzz(func(t *testing.T, program []byte) {
		ctx := context.Background()
		for _, b := range backends {
			file, err := iouring.OpenFile(filepath.Join(t.TempDir(), b.Name()), os.O_RDWR|os.O_CREATE, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			var want []byte
			for i := 0; i+3 < len(program) && i < 400; i += 4 {
				off, n := int64(program[i+1])*50, int(program[i+2])*20
				switch program[i] % 5 {
				case 0, 1:
					var bs []iouring.Buffer
					for range program[i+3] % 4 {
						buf, err := a.Get(ctx, n)
						if err != nil {
							t.Fatal(err)
						}
						for k := range buf.Bytes() {
							buf.Bytes()[k] = byte(k + i)
						}
						bs = append(bs, buf)
					}
					if err := b.WriteAt(ctx, file, bs, off); err != nil {
						t.Fatal(err)
					}
					for _, buf := range bs {
						if end := off + int64(n); end > int64(len(want)) && n > 0 {
							want = append(want, make([]byte, end-int64(len(want)))...)
						}
						if n > 0 {
							copy(want[off:], buf.Bytes())
						}
						off += int64(n)
						if err := buf.Release(); err != nil {
							t.Fatal(err)
						}
					}
				case 2:
					buf, err := a.Get(ctx, n)
					if err != nil {
						t.Fatal(err)
					}
					got, err := b.ReadAt(ctx, file, buf, off)
					expected := want[min(off, int64(len(want))):]
					expected = expected[:min(n, len(expected))]
					var wantErr error
					if len(expected) < n {
						wantErr = io.EOF
					}
					if !bytes.Equal(buf.Bytes()[:got], expected) || err != wantErr {
						t.Fatalf("%s: read of %d at %d: %d, %v", b.Name(), n, off, got, err)
					}
					if err := buf.Release(); err != nil {
						t.Fatal(err)
					}
				case 3:
					if err := b.Datasync(ctx, file, file); err != nil {
						t.Fatal(err)
					}
				case 4:
					if err := file.OS().Truncate(int64(n)); err != nil {
						t.Fatal(err)
					}
					want = append(want[:min(n, len(want))], make([]byte, max(0, n-len(want)))...)
				}
			}
			got, err := os.ReadFile(file.Name())
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s: the file differs at the end (%v)", b.Name(), err)
			}
			if err := file.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if n := a.InUse(); n != 0 {
			t.Fatalf("%d bytes not given back", n)
		}
	})
}
