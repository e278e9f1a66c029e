package asm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// each runs f once per kernel and polynomial. A kernel that this machine lacks
// is skipped aloud.
func each(t *testing.T, f func(t *testing.T, k Kernel, p Poly)) {
	for _, k := range Kernels() {
		t.Run(k.Name(), func(t *testing.T) {
			if !k.Available() {
				t.Skipf("this CPU lacks the instructions of %s", k.Name())
			}
			for _, p := range []Poly{Castagnoli, IEEE} {
				if k.Supports(p) {
					t.Run(p.name(), func(t *testing.T) { f(t, k, p) })
				}
			}
		})
	}
}

func (p Poly) name() string {
	if p == IEEE {
		return "crc32"
	}
	return "crc32c"
}

// std is the standard library's table for p, the independent oracle.
func std(p Poly) *crc32.Table { return crc32.MakeTable(p.reflected()) }

func stdPut(p Poly, data []byte, chunk int) []byte {
	var sums []byte
	for c := range slices.Chunk(data, min(chunk, max(1, len(data)))) {
		sums = binary.BigEndian.AppendUint32(sums, crc32.Checksum(c, std(p)))
	}
	return sums
}

// random returns n bytes from a fixed seed, the first at an address that is
// off modulo 64.
func random(n, off int) []byte {
	b := aligned(n+off, 64)[off:]
	r := rand.New(rand.NewPCG(uint64(n), 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestUpdate(t *testing.T) {
	maxLen, offsets := 4200, 64
	if slow {
		offsets = 5
	}
	each(t, func(t *testing.T, k Kernel, p Poly) {
		b, table := random(maxLen+64, 0), std(p)
		for off := range offsets {
			first := uint32(0x9E3779B9) * uint32(off)
			want := first
			for n := 0; n <= maxLen; n++ {
				if got := k.Update(p, first, b[off:off+n]); got != want {
					t.Fatalf("offset %d, %d bytes: %08x, want %08x", off, n, got, want)
				}
				// one byte further, as the standard library's own table says
				want = ^want
				want = ^(table[byte(want)^b[off+n]] ^ want>>8)
			}
		}
	})
}

func TestUpdateLong(t *testing.T) {
	b := random(5*maxCall+100, 3)
	step := 1
	if slow {
		step = 7
	}
	each(t, func(t *testing.T, k Kernel, p Poly) {
		// around the multiples of the blocks that loops take at once
		for _, around := range []int{
			2 * 512, 3 * 1024, 4 << 10, 6 * 1024, 15 * 512, 8 << 10, 6 * 2048, 15 * 1024, 16 << 10, 6 * 4096,
			15 * 2048, 32 << 10, 12 * 4096, 15 * 4096, maxCall, 2 * maxCall, 4*maxCall + 4096, 5 * maxCall,
		} {
			for n := around - 70; n <= around+70; n += step {
				if got, want := k.Update(p, 12345, b[:n]), crc32.Update(12345, std(p), b[:n]); got != want {
					t.Fatalf("%d bytes: %08x, want %08x", n, got, want)
				}
			}
		}
	})
}

// sizes are the chunk sizes that every operation is tried with.
func sizes() []int {
	var s []int
	for n := 1; n <= 1100; n++ {
		s = append(s, n)
	}
	for _, n := range []int{2048, 4096, 8192, 16384, 65536, 1 << 20} {
		s = append(s, n-1, n, n+1)
	}
	s = append(s, math.MaxInt, 1536, 3072, 4000, 4032, 4064, 4097+63, 5000, 10000)
	if slow {
		s = slices.DeleteFunc(s, func(n int) bool { return n > 80 && n%5 != 0 && n%64 > 1 || n > 70000 && n < math.MaxInt })
	}
	return s
}

// counts are the numbers of whole chunks; each is tried with a ragged chunk
// behind it and without.
func counts(chunk int) []int {
	switch {
	case chunk <= 64:
		return []int{0, 1, 2, 7, 16, 31, 45, 130, 300}
	case chunk == 512 || chunk == 1024:
		return []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 29, 30, 31, 32, 44, 45, 127, 128, 129, 255, 256, 300}
	case chunk <= 1100:
		return []int{0, 1, 3, 19, 46}
	case chunk <= 5000:
		return []int{0, 1, 2, 3, 5, 8, 15, 16, 17, 31, 34}
	}
	return []int{1, 2}
}

// shapes calls f for every chunk size, count and remainder.
func shapes(f func(chunk, n int)) {
	for _, chunk := range sizes() {
		if chunk == math.MaxInt {
			f(chunk, 10000)
			continue
		}
		for _, count := range counts(chunk) {
			n := count * chunk
			if slow && n > 20000 && chunk != 512 && chunk != 4096 {
				continue
			}
			f(chunk, n)
			if chunk > 1 {
				f(chunk, n+1+(n+chunk)*7%(chunk-1))
			}
		}
	}
}

func TestPut(t *testing.T) {
	data := random(3<<20, 0)
	const margin = 16
	sums := make([]byte, 0, 4096)
	each(t, func(t *testing.T, k Kernel, p Poly) {
		at := 0
		shapes(func(chunk, n int) {
			at = (at + 13) % 64
			d := data[at : at+n]
			want := stdPut(p, d, chunk)
			sums = slices.Grow(sums[:0], margin+len(want)+margin)[:margin+len(want)+margin]
			for i := range sums {
				sums[i] = 0xA5
			}
			k.Put(p, sums[margin:margin+len(want)], d, chunk)
			if got := sums[margin : margin+len(want)]; string(got) != string(want) {
				i := mismatch(got, want)
				t.Fatalf("chunk %d, %d bytes at %d: sum %d is %x, want %x", chunk, n, at, i, got[4*i:4*i+4], want[4*i:4*i+4])
			}
			intact(t, sums, margin, len(want))
		})
	})
}

// intact fails the test if b was written outside of the n bytes at from.
func intact(t *testing.T, b []byte, from, n int) {
	t.Helper()
	for i, c := range b {
		if c != 0xA5 && (i < from || i >= from+n) {
			t.Fatalf("byte %d was written, outside of %d bytes at %d", i, n, from)
		}
	}
}

func TestVerify(t *testing.T) {
	data := random(3<<20, 5)
	each(t, func(t *testing.T, k Kernel, p Poly) {
		r := rand.New(rand.NewPCG(1, 2))
		shapes(func(chunk, n int) {
			d := data[:n]
			sums := stdPut(p, d, chunk)
			if got := k.Verify(p, d, sums, chunk); got != -1 {
				t.Fatalf("chunk %d, %d bytes: chunk %d does not verify", chunk, n, got)
			}
			if n == 0 {
				return
			}
			// two bad chunks: the first one counts, wherever the flipped bit is
			first := r.IntN(n)
			second := first + r.IntN(n-first)
			d[first] ^= 1 << r.IntN(8)
			if second/chunk > first/chunk {
				d[second] ^= 1 << r.IntN(8)
			}
			if got := k.Verify(p, d, sums, chunk); got != first/chunk {
				t.Fatalf("chunk %d, %d bytes, flipped at %d and %d: got chunk %d", chunk, n, first, second, got)
			}
			copy(sums, stdPut(p, d, chunk))
			i := r.IntN(len(sums))
			sums[i] ^= 1 << r.IntN(8)
			if got := k.Verify(p, d, sums, chunk); got != i/4 {
				t.Fatalf("chunk %d, %d bytes, sums flipped at %d: got chunk %d", chunk, n, i, got)
			}
		})
	})
}

func TestCopy(t *testing.T) {
	const margin = 64
	data := random(3<<20, 7)
	buf := make([]byte, len(data)+3*margin)
	each(t, func(t *testing.T, k Kernel, p Poly) {
		at := 0
		for _, nonTemporal := range []bool{false, true} {
			shapes(func(chunk, n int) {
				if chunk > 70000 && nonTemporal {
					return
				}
				at = (at + 11) % 64
				src, from := data[63-at:63-at+n], margin+at
				want := stdPut(p, src, chunk)
				whole := buf[:from+n+margin]
				fill := func() {
					for i := range from {
						whole[i] = 0xA5
					}
					for i := range margin {
						whole[from+n+i] = 0xA5
					}
				}
				check := func(op string) {
					if string(whole[from:from+n]) != string(src) {
						t.Fatalf("%s: chunk %d, %d bytes: the copy differs", op, chunk, n)
					}
					clear(whole[from : from+n])
					for i := range whole[:from] {
						if whole[i] != 0xA5 {
							t.Fatalf("%s: chunk %d, %d bytes: wrote before the destination", op, chunk, n)
						}
					}
					for i, c := range whole[from+n:] {
						if c != 0xA5 {
							t.Fatalf("%s: chunk %d, %d bytes: wrote %d bytes behind the destination", op, chunk, n, i)
						}
					}
				}
				fill()
				around := bytes.Repeat([]byte{0xA5}, len(want)+2*margin)
				sums := around[margin : margin+len(want)]
				k.CopyPut(p, whole[from:from+n], sums, src, chunk, nonTemporal)
				if string(sums) != string(want) {
					t.Fatalf("CopyPut: chunk %d, %d bytes: wrong sum %d", chunk, n, mismatch(sums, want))
				}
				check("CopyPut")
				intact(t, around, margin, len(want))
				fill()
				if got := k.CopyVerify(p, whole[from:from+n], src, sums, chunk, nonTemporal); got != -1 {
					t.Fatalf("CopyVerify: chunk %d, %d bytes: chunk %d does not verify", chunk, n, got)
				}
				check("CopyVerify")
				if n > 0 {
					i := (n + at) % len(sums)
					sums[i] ^= 4
					if got := k.CopyVerify(p, whole[from:from+n], src, sums, chunk, nonTemporal); got != i/4 {
						t.Fatalf("CopyVerify: chunk %d, %d bytes: got bad chunk %d, want %d", chunk, n, got, i/4)
					}
				}
			})
		}
	})
}

// The destination of a copy may be the source.
func TestInPlace(t *testing.T) {
	data := random(70000, 1)
	before := slices.Clone(data)
	each(t, func(t *testing.T, k Kernel, p Poly) {
		for _, chunk := range []int{1, 13, 64, 100, 512, 1000, 4096, 8192} {
			sums := make([]byte, 4*((len(data)+chunk-1)/chunk))
			k.CopyPut(p, data, sums, data, chunk, false)
			if string(sums) != string(stdPut(p, before, chunk)) {
				t.Errorf("chunk %d: wrong sums", chunk)
			}
			k.CopyPut(p, data, sums, data, chunk, true)
			if got := k.CopyVerify(p, data, data, sums, chunk, false); got != -1 {
				t.Errorf("chunk %d: chunk %d does not verify", chunk, got)
			}
			if string(data) != string(before) {
				t.Fatalf("chunk %d: the data changed", chunk)
			}
		}
	})
}

func TestNoAllocation(t *testing.T) {
	data, dst, sums := random(66000, 0), make([]byte, 66000), make([]byte, 4*129)
	each(t, func(t *testing.T, k Kernel, p Poly) {
		if n := testing.AllocsPerRun(10, func() {
			var local [700]byte
			k.Update(p, 0, local[:])
			k.Update(p, 0, data)
			k.Put(p, sums, data, 512)
			k.Verify(p, data, sums, 512)
			k.CopyPut(p, dst, sums, data, 512, false)
			k.CopyVerify(p, dst, data, sums, 512, true)
			k.Put(p, sums, local[:], 64)
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

// crc(AB) = crc(A)·x^(8·len(B)) ^ crc(B), in each way to multiply.
func TestShift(t *testing.T) {
	b := random(3000, 0)
	for _, p := range []Poly{Castagnoli, IEEE} {
		for _, n := range []int{0, 1, 2, 3, 4, 5, 8, 63, 64, 65, 500, 512, 2999} {
			a := crc32.Checksum(b[:3000-n], std(p))
			want := crc32.Checksum(b, std(p)) ^ crc32.Checksum(b[3000-n:], std(p))
			if got := Multiply(p, a, Monomial(p, uint64(n))); got != want {
				t.Errorf("%s: Multiply of %08x by x^(8·%d) is %08x, want %08x", p.name(), a, n, got, want)
			}
			if got := ShiftCRC(p, a, uint64(n)); got != want {
				t.Errorf("%s: ShiftCRC of %08x by x^(8·%d) is %08x, want %08x", p.name(), a, n, got, want)
			}
		}
		for bit := range 64 {
			n := uint64(1)<<bit | 5
			if got, want := ShiftCRC(p, 0xDEADBEEF, n), Multiply(p, 0xDEADBEEF, Monomial(p, n)); got != want {
				t.Errorf("%s: ShiftCRC by x^(8·%d) is %08x, want %08x", p.name(), n, got, want)
			}
		}
	}
}

func TestCompose(t *testing.T) {
	data := random(1<<20, 0)
	for _, p := range []Poly{Castagnoli, IEEE} {
		for _, size := range []int{500, 512, 1024, 1536, 2048, 4096, 8192} {
			shift := ShiftBy(p, uint64(size))
			sums := stdPut(p, data[:128*size], size)
			first := uint32(12345)
			for _, count := range []int{0, 1, 2, 3, 68, 69, 70, 71, 72, 127, 128} {
				want := crc32.Update(first, std(p), data[:count*size])
				if got := shift.Compose(first, sums[:4*count]); got != want {
					t.Errorf("%s: %d chunks of %d: %08x, want %08x", p.name(), count, size, got, want)
				}
			}
		}
	}
}

func BenchmarkPut(b *testing.B) {
	for _, k := range Kernels() {
		if !k.Available() {
			continue
		}
		for _, p := range []Poly{Castagnoli, IEEE} {
			if !k.Supports(p) {
				continue
			}
			for _, chunk := range []int{512, 1000, 4096} {
				b.Run(fmt.Sprintf("kernel=%s/poly=%s/chunk=%d", k.Name(), p.name(), chunk), func(b *testing.B) {
					data := random(64<<10, 0)
					sums := make([]byte, 4*((len(data)+chunk-1)/chunk))
					b.SetBytes(int64(len(data)))
					for b.Loop() {
						k.Put(p, sums, data, chunk)
					}
				})
			}
		}
	}
}
