//go:build purego || !(amd64 || arm64)

package asm

// ShiftCRC returns crc·x^(8n), the part of a message's CRC that is due to what
// stands before its last n bytes.
func ShiftCRC(p Poly, crc uint32, n uint64) uint32 { return Multiply(p, crc, Monomial(p, n)) }

// composeBatch adds as many of the CRCs of blocks of n bytes as it can to crc,
// and returns the others.
func composeBatch(p Poly, crc uint32, sums []byte, n uint64) (uint32, []byte) { return crc, sums }
