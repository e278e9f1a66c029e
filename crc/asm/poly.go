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

// Compose returns the CRC of a message whose CRC is crc followed by chunks of
// n bytes each, given the big-endian CRCs of the chunks, by Horner's rule.
func Compose(p Poly, crc uint32, sums []byte, n uint64) uint32 {
	shift := Monomial(p, n)
	for ; len(sums) >= 4; sums = sums[4:] {
		crc = Multiply(p, crc, shift) ^ binary.BigEndian.Uint32(sums)
	}
	return crc
}
