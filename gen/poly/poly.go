// Package poly computes the constants of the CRC kernels from the polynomial.
//
// A residue modulo P is a 32-bit word in reflected form: bit 31 is the
// coefficient of x^0, bit 0 that of x^31. A message is a sequence of 64-bit
// little-endian words w_0 .. w_(N-1); bit k of a word is the coefficient of
// x^(63-k).
package poly

// A Poly is a degree-32 polynomial with a constant term, in reflected form and
// without its x^32 term.
type Poly uint32

const (
	Castagnoli Poly = 0x82F63B78
	IEEE       Poly = 0xEDB88320
)

// One is x^0.
const One uint32 = 1 << 31

// MulX returns a·x mod P.
func (p Poly) MulX(a uint32) uint32 { return a>>1 ^ uint32(p)&-(a&1) }

// DivX returns a·x^-1 mod P.
func (p Poly) DivX(a uint32) uint32 {
	if a&One != 0 {
		return (a^uint32(p))<<1 | 1
	}
	return a << 1
}

// Mul returns a·b mod P.
func (p Poly) Mul(a, b uint32) uint32 {
	var sum uint32
	for ; b != 0; b <<= 1 {
		if b&One != 0 {
			sum ^= a
		}
		a = p.MulX(a)
	}
	return sum
}

// Pow returns x^n mod P, n of either sign.
func (p Poly) Pow(n int) uint32 {
	square, k := p.MulX(One), n
	if n < 0 {
		square, k = p.DivX(One), -n
	}
	result := One
	for ; k > 0; k >>= 1 {
		if k&1 != 0 {
			result = p.Mul(result, square)
		}
		square = p.Mul(square, square)
	}
	return result
}

// Dot returns the constants of the dot product over a message of n 64-bit
// words. The kernels use
//
//	crc0(w_0 .. w_(n-1)) = sum of w_i·x^(64(n-1-i)+32) mod P
//
// where crc0 is the CRC with a zero register and no complement. The carry-less
// product of a word and a 32-bit residue K, both reflected and K zero-extended
// to 64 bits, is w·K·x when its 128 bits are read as 96 significant ones (bit k
// is the coefficient of x^(95-k)); hence constant i is x^(64(n-1-i)+31). A
// constant depends only on the distance from the end, so that the last m
// constants serve a message of m words.
func (p Poly) Dot(n int) []uint64 {
	k := make([]uint64, n)
	for i := range k {
		k[i] = uint64(p.Pow(64*(n-1-i) + 31))
	}
	return k
}

// Barrett returns the constants that reduce a 96-bit sum R of such products:
// full is P with its x^32 term, reflected, and inverse the carry-less inverse
// of full modulo 2^64. With q the low 64 bits of R·inverse, the product q·full
// cancels the low 64 bits of R, and bits 64..95 of R XOR q·full are R mod P.
func (p Poly) Barrett() (inverse, full uint64) {
	full = 1 | uint64(p)<<1
	// Newton: each step doubles the number of correct low bits.
	inverse = 1
	for range 6 {
		inverse = MulLow(inverse, MulLow(inverse, full))
	}
	return inverse, full
}

// MulLow returns the low 64 bits of the carry-less product of a and b.
func MulLow(a, b uint64) uint64 {
	var sum uint64
	for ; b != 0; b >>= 1 {
		sum ^= a & -(b & 1)
		a <<= 1
	}
	return sum
}

// Compose returns the constants that join the CRCs of n consecutive blocks of
// size bytes into the CRC of them all, the CRC of block i being a 32-bit word c
// in the low half of a 64-bit one, that is c·x^32:
//
//	sum of c_i·x^(8·size·(n-1-i)) mod P
//
// The product is read as for Dot, so constant i is x^(8·size·(n-1-i)-33).
func (p Poly) Compose(n, size int) []uint64 {
	k := make([]uint64, n)
	for i := range k {
		k[i] = uint64(p.Pow(8*size*(n-1-i) - 33))
	}
	return k
}

// Affine returns the matrices that do the work of Dot with GF2P8AFFINEQB, which
// multiplies each byte of a 64-bit word by an 8×8 bit matrix: result bit r is
// the parity of the byte AND byte 7-r of the matrix.
//
// Byte b of word i stands for byte(x)·x^(8(7-b))·x^(64(n-1-i)+32). Matrix i of
// plane q takes the byte to byte q of byte(x)·x^(64(n-1-i)+32) mod P. XORed
// over all words, planes 0 to 3 are words q_0 .. q_3 in which only the factor
// x^(8(7-b)) is left to apply; in the 96-bit format of Dot that is a shift:
// the sum is q_0<<8 ^ q_1<<16 ^ q_2<<24 ^ q_3<<32.
func (p Poly) Affine(n, plane int) []uint64 {
	m := make([]uint64, n)
	for i := range m {
		for k := range 8 { // bit k of the byte is x^(7-k)
			column := p.Pow(64*(n-1-i)+39-k) >> (8 * plane)
			for r := range 8 {
				m[i] |= uint64(column>>r&1) << (8*(7-r) + k)
			}
		}
	}
	return m
}

// Squares returns x^(8·2^k) mod P for k = 0..63, from which x^(8n) is made by
// multiplying those of n's bits.
func (p Poly) Squares() [64]uint32 {
	var s [64]uint32
	s[0] = p.Pow(8)
	for k := 1; k < len(s); k++ {
		s[k] = p.Mul(s[k-1], s[k-1])
	}
	return s
}
