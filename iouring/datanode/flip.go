//go:build linux || darwin

package datanode

import (
	"math/bits"

	"github.com/blockpath/blockpath/crc"
)

// polynomial returns k's generator in reflected form.
func polynomial(k crc.Kind) uint32 {
	if k == crc.CRC32 {
		return 0xEDB88320
	}
	return 0x82F63B78
}

// flippedBit returns which single bit, if flipped, explains that a chunk of n
// bytes has the checksum computed instead of expected, or -1. Bit i of the
// chunk is bit i&7, counted from the least significant, of byte i/8. Bits from
// 8·n on are those of the stored checksum in the same numbering.
//
// A CRC is linear: flipping a bit changes it by x^(32+d) modulo the polynomial,
// d being the bit's distance from the end of the chunk, whatever the data. The
// loop walks backwards from d = 0, multiplying by x.
func flippedBit(k crc.Kind, n int, expected, computed uint32) int64 {
	syndrome := expected ^ computed
	if bits.OnesCount32(syndrome) == 1 {
		value := bits.TrailingZeros32(syndrome) // stored big-endian
		return int64(8*(n+3-value/8) + value%8)
	}
	poly := polynomial(k)
	s := poly
	for i := int64(8*n) - 1; i >= 0; i-- {
		// The last bit that enters the CRC is the most significant of the last byte.
		if s == syndrome {
			return i
		}
		s = s>>1 ^ poly&-(s&1)
	}
	return -1
}
