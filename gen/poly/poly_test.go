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
