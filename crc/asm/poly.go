package asm

import "encoding/binary"

// Polynomials modulo P are 32-bit words in reflected form: bit 31 is the
// coefficient of x^0, bit 0 that of x^31.

func (p Poly) reflected() uint32 {
	if p == IEEE {
		return 0xEDB88320
	}
	return 0x82F63B78
}

// Multiply returns a·b modulo the polynomial p.
func Multiply(p Poly, a, b uint32) uint32 {
	poly, sum := p.reflected(), uint32(0)
	for ; b != 0; b <<= 1 {
		sum ^= a & uint32(int32(b)>>31)
		a = a>>1 ^ poly&-(a&1)
	}
	return sum
}

// Monomial returns x^(8n) modulo the polynomial p, by square and multiply.
func Monomial(p Poly, n uint64) uint32 {
	result, square := uint32(1)<<31, uint32(1)<<23 // x^0 and x^8
	for ; n != 0; n >>= 1 {
		if n&1 != 0 {
			result = Multiply(p, result, square)
		}
		square = Multiply(p, square, square)
	}
	return result
}

// A Shift moves CRCs by a fixed distance: it multiplies them by x^(8n).
type Shift struct {
	poly Poly
	n    uint64
	// The product with each byte of the multiplicand, from the lowest on:
	// multiplication is linear.
	byByte [4][256]uint32
}

// ShiftBy returns the Shift by n bytes modulo the polynomial p. It costs about
// as much as 50 calls of Multiply.
func ShiftBy(p Poly, n uint64) (s Shift) {
	s.poly, s.n = p, n
	factor := Monomial(p, n)
	for i := range s.byByte {
		t := &s.byByte[i]
		for bit := range 8 {
			product := Multiply(p, 1<<(8*i+bit), factor)
			for low := range 1 << bit {
				t[1<<bit|low] = t[low] ^ product
			}
		}
	}
	return s
}

// Compose returns the CRC of a message whose CRC is crc followed by chunks of
// as many bytes each as the Shift moves, given the big-endian CRCs of the
// chunks.
func (s *Shift) Compose(crc uint32, sums []byte) uint32 {
	crc, sums = composeBatch(s.poly, crc, sums, s.n)
	for ; len(sums) >= 4; sums = sums[4:] { // Horner's rule
		crc = s.byByte[0][byte(crc)] ^ s.byByte[1][byte(crc>>8)] ^ s.byByte[2][byte(crc>>16)] ^ s.byByte[3][crc>>24] ^
			binary.BigEndian.Uint32(sums)
	}
	return crc
}
