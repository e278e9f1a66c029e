package crc

import "github.com/blockpath/blockpath/crc/asm"

// Combine returns the CRC of the concatenation of two messages A and B, given
// their CRCs and the length of B in bytes, in O(log lenB) steps:
// crc(AB) = crc(A)·x^(8·lenB) + crc(B) modulo the polynomial (Hadoop's
// CrcUtil.compose, zlib's crc32_combine). It panics if lenB is negative or k
// is not CRC32C or CRC32.
func Combine(k Kind, sumA, sumB uint32, lenB int64) uint32 {
	if lenB < 0 {
		panic("crc: Combine with a negative length")
	}
	return asm.ShiftCRC(k.poly(), sumA, uint64(lenB)) ^ sumB
}
