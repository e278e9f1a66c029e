package asm

import (
	"syscall"
	"testing"
)

// guarded returns n bytes between two pages that fault when touched: from
// their start with before, up to their end with after.
type guarded struct{ area []byte }

func newGuarded(t *testing.T, pages int) guarded {
	page := syscall.Getpagesize()
	b, err := syscall.Mmap(-1, 0, (pages+2)*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	for _, g := range [][]byte{b[:page], b[len(b)-page:]} {
		if err := syscall.Mprotect(g, syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return guarded{b[page : len(b)-page]}
}

// bytes returns n bytes that start behind a guard page or end before one.
func (g guarded) bytes(n int, atEnd bool) []byte {
	if atEnd {
		return g.area[len(g.area)-n:]
	}
	return g.area[:n:n]
}

// No kernel touches a byte outside of source, destination and sums.
func TestGuardPages(t *testing.T) {
	src, dst, sums := newGuarded(t, 16), newGuarded(t, 16), newGuarded(t, 8)
	copy(src.area, random(len(src.area), 0))
	lengths := make([]int, 0, 4200)
	for n := range 4097 {
		lengths = append(lengths, n)
	}
	lengths = append(lengths, 5000, 8191, 8192, 8193, 12345, 16*512, 15*512+3, 31*1024, 32768, 65535, 65536)
	chunks := []int{5, 16, 33, 64, 100, 128, 200, 512, 513, 1000, 1024, 2048, 4096, 1 << 20}
	each(t, func(t *testing.T, k Kernel, p Poly) {
		for _, atEnd := range []bool{false, true} {
			for i, n := range lengths {
				if slow && n%7 != 0 {
					continue
				}
				s := src.bytes(n, atEnd)
				k.Update(p, 0, s)
				for j, chunk := range chunks {
					if n > 600 && (i+j)%len(chunks) > 3 && n%512 > 3 {
						continue
					}
					count := (n + chunk - 1) / chunk
					if count*4 > len(sums.area) {
						continue
					}
					out := sums.bytes(4*count, atEnd)
					k.Put(p, out, s, chunk)
					d := dst.bytes(n, atEnd)
					k.CopyPut(p, d, out, s, chunk, j%2 == 0)
					if bad := k.CopyVerify(p, d, s, out, chunk, j%2 != 0); bad >= 0 {
						t.Fatalf("chunk %d, %d bytes: chunk %d does not verify", chunk, n, bad)
					}
					if bad := k.Verify(p, d, out, chunk); bad >= 0 {
						t.Fatalf("chunk %d, %d bytes: chunk %d of the copy does not verify", chunk, n, bad)
					}
				}
			}
		}
	})
}
