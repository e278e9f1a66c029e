package poly

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
	"math/rand/v2"
	"testing"
)

var polys = []Poly{Castagnoli, IEEE}

// crc0 is the CRC with a zero register and no complement, by hash/crc32.
func crc0(p Poly, b []byte) uint32 {
	return ^crc32.Update(0xFFFFFFFF, crc32.MakeTable(uint32(p)), b)
}

// product is the 128-bit carry-less product.
func product(a, b uint64) (hi, lo uint64) {
	for i := range 64 {
		if b>>i&1 != 0 {
			lo ^= a << i
			hi ^= a >> (64 - i)
		}
	}
	return hi, lo
}

func random(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

func TestPow(t *testing.T) {
	for _, p := range polys {
		for n := range 300 {
			if p.Mul(p.Pow(n), p.Pow(-n)) != One {
				t.Errorf("%08x: x^%d·x^-%d is not 1", p, n, n)
			}
			if p.MulX(p.Pow(n)) != p.Pow(n+1) || p.DivX(p.Pow(n+1)) != p.Pow(n) {
				t.Errorf("%08x: x^%d and x^%d do not follow each other", p, n, n+1)
			}
		}
	}
	// Hadoop's CrcUtil.getMonomial and zlib's x2nmodp
	if got := IEEE.Pow(8 * 512); got != 0x8e7ea170 {
		t.Errorf("crc32: x^(8·512) is %08x", got)
	}
	if got := Castagnoli.Pow(8 << 20); got != 0x59726915 {
		t.Errorf("crc32c: x^(8·2^20) is %08x", got)
	}
}

func TestDotAndBarrett(t *testing.T) {
	const words = 64
	for _, p := range polys {
		inverse, full := p.Barrett()
		if MulLow(inverse, full) != 1 {
			t.Fatalf("%08x: %#x is not the inverse of %#x", p, inverse, full)
		}
		k := p.Dot(words)
		for n := 1; n <= words; n++ {
			b := random(8 * n)
			var hi, lo uint64
			for i := range n {
				h, l := product(binary.LittleEndian.Uint64(b[8*i:]), k[words-n+i])
				hi, lo = hi^h, lo^l
			}
			if bits.Len64(hi) > 32 {
				t.Fatalf("%08x: the sum has %d bits", p, 64+bits.Len64(hi))
			}
			qh, ql := product(MulLow(lo, inverse), full)
			if ql != lo {
				t.Errorf("%08x: the low half of the sum does not cancel", p)
			}
			if got, want := uint32(hi^qh), crc0(p, b); got != want {
				t.Errorf("%08x: %d words: %08x, want %08x", p, n, got, want)
			}
		}
	}
}

// reduce is what the kernels do with a 96-bit sum.
func reduce(p Poly, hi, lo uint64) uint32 {
	inverse, full := p.Barrett()
	h, _ := product(MulLow(lo, inverse), full)
	return uint32(hi ^ h)
}

func TestCompose(t *testing.T) {
	const blocks, size = 9, 24
	for _, p := range polys {
		k := p.Compose(blocks, size)
		for n := 1; n <= blocks; n++ {
			b := random(n * size)
			var hi, lo uint64
			for i := range n {
				c := crc32.Checksum(b[i*size:(i+1)*size], crc32.MakeTable(uint32(p)))
				h, l := product(uint64(c), k[blocks-n+i])
				hi, lo = hi^h, lo^l
			}
			if got, want := reduce(p, hi, lo), crc32.Checksum(b, crc32.MakeTable(uint32(p))); got != want {
				t.Errorf("%08x: %d blocks: %08x, want %08x", p, n, got, want)
			}
		}
	}
}

// affine is GF2P8AFFINEQB on one word.
func affine(w, m uint64) uint64 {
	var result uint64
	for b := range 8 {
		x := byte(w >> (8 * b))
		for r := range 8 {
			result |= uint64(bits.OnesCount8(x&byte(m>>(8*(7-r))))&1) << (8*b + r)
		}
	}
	return result
}

func TestAffine(t *testing.T) {
	const words = 20
	for _, p := range polys {
		var m [4][]uint64
		for plane := range m {
			m[plane] = p.Affine(words, plane)
		}
		for n := 1; n <= words; n++ {
			b := random(8 * n)
			var hi, lo uint64
			for plane := range m {
				var q uint64
				for i := range n {
					q ^= affine(binary.LittleEndian.Uint64(b[8*i:]), m[plane][words-n+i])
				}
				shift := 8 * (plane + 1)
				hi, lo = hi^q>>(64-shift), lo^q<<shift
			}
			if got, want := reduce(p, hi, lo), crc0(p, b); got != want {
				t.Errorf("%08x: %d words: %08x, want %08x", p, n, got, want)
			}
		}
	}
}

func TestSquares(t *testing.T) {
	for _, p := range polys {
		s := p.Squares()
		for k := range 20 {
			if want := p.Pow(8 << k); s[k] != want {
				t.Errorf("%08x: x^(8·2^%d) is %08x, want %08x", p, k, s[k], want)
			}
		}
	}
	if s := IEEE.Squares(); s[31] != 0x08000000 || s[40] != 0xec447f11 {
		t.Errorf("crc32: x^(8·2^31) is %08x, x^(8·2^40) is %08x", s[31], s[40])
	}
}
