//go:build (amd64 || arm64) && !purego

package asm

import (
	"encoding/binary"
	"math/bits"
)

// ShiftCRC returns crc·x^(8n), the part of a message's CRC that is due to what
// stands before its last n bytes.
func ShiftCRC(p Poly, crc uint32, n uint64) uint32 {
	if !hasCLMUL {
		return Multiply(p, crc, Monomial(p, n))
	}
	return clmulShift(crc, n, &tables[p].squares[0], &tables[p].barrett[0])
}

// composeBatch adds as many of the CRCs of blocks of n bytes as it can to crc,
// and returns the others.
func composeBatch(p Poly, crc uint32, sums []byte, n uint64) (uint32, []byte) {
	if !hasCLMUL || n < 512 || n > maxDot || n&(n-1) != 0 {
		return crc, sums
	}
	k := &tables[p].compose[bits.Len64(n)-bits.Len64(512)]
	t := &tables[p].barrett[0]
	var batch [4 * composeBlocks]byte
	for len(sums) >= 8 {
		count := min(len(sums)/4, composeBlocks-2) &^ 1
		// two more, the first of them zero, so that the number stays even
		binary.BigEndian.PutUint32(batch[4:], crc)
		copy(batch[8:], sums[:4*count])
		crc = clmulCompose(&batch[0], count/2+1, &k[composeBlocks-2-count], t)
		sums = sums[4*count:]
	}
	return crc, sums
}
