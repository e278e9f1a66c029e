package crc

import (
	"crypto/md5"
	"encoding/binary"
	"math/bits"

	"github.com/blockpath/blockpath/crc/asm"
)

// Compose returns the CRC of n bytes of data, given the checksums of their
// chunks, without the data. That is HDFS's composite checksum of a block; the
// composite checksum of a file is the blocks' with [Combine]. It returns a
// *[LengthError] if len(sums) is not what n bytes have. It panics if c.Kind is
// None.
func (c Chunks) Compose(sums []byte, n int64) (uint32, error) {
	p, size := c.Kind.poly(), int64(c.BytesPerChunk())
	if want := 4 * c.Count(n); int64(len(sums)) != want {
		return 0, &LengthError{Data: int(n), Expected: int(want), Got: len(sums)}
	}
	whole := int(n / size)
	shift := asm.ShiftBy(p, uint64(size))
	sum := shift.Compose(0, sums[:4*whole])
	if rest := n % size; rest != 0 {
		sum = Combine(c.Kind, sum, binary.BigEndian.Uint32(sums[4*whole:]), rest)
	}
	return sum, nil
}

// FileMD5 returns HDFS's MD5-of-MD5 checksum of a file, given its blocks':
// the MD5s of their stored checksums.
// Hadoop digests its whole growing buffer, so zeros up to the next power of
// two, at least 32 bytes, belong to the message. It allocates.
func FileMD5(blocks [][md5.Size]byte) [md5.Size]byte {
	n := md5.Size * len(blocks)
	size := 32
	if n > size {
		size = 1 << bits.Len(uint(n-1))
	}
	buf := make([]byte, 0, size)
	for _, b := range blocks {
		buf = append(buf, b[:]...)
	}
	return md5.Sum(buf[:size])
}
