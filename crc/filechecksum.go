package crc

import (
	"crypto/md5"
	"encoding/binary"
	"fmt"
	"hash"
	"strings"

	"github.com/blockpath/blockpath/crc/asm"
)

// A BlockSum is what the checksums of a file need of one of its blocks.
type BlockSum struct {
	Length int64          // bytes of data
	MD5    [md5.Size]byte // of the stored checksums
	CRC    uint32         // of the data; 0 for None
}

// A BlockSummer makes a [BlockSum] of the checksums of a block's chunks, as
// they come. It is not safe for concurrent use.
type BlockSummer struct {
	chunks Chunks
	shift  asm.Shift // by a chunk
	md5    hash.Hash
	sum    uint32 // CRC of all chunks before the last
	last   [4]byte
	count  int64 // checksums added
}

// NewBlockSummer returns a BlockSummer of a block that is checksummed as c
// says.
func NewBlockSummer(c Chunks) *BlockSummer {
	b := &BlockSummer{chunks: c, md5: md5.New()}
	if c.Kind != None {
		b.shift = asm.ShiftBy(c.Kind.poly(), uint64(c.BytesPerChunk()))
	}
	return b
}

// Add adds the checksums of the block's next chunks. It panics if sums does not
// hold whole checksums.
func (b *BlockSummer) Add(sums []byte) {
	if len(sums) == 0 {
		return
	}
	if size := b.chunks.Kind.Size(); size == 0 || len(sums)%size != 0 {
		panic(fmt.Sprintf("crc: %d bytes are not whole checksums of type %s", len(sums), b.chunks.Kind))
	}
	b.md5.Write(sums)
	if b.count > 0 { // what was last so far was a whole chunk
		b.sum = b.shift.Compose(b.sum, b.last[:])
	}
	before := sums[:len(sums)-4]
	b.sum = b.shift.Compose(b.sum, before)
	copy(b.last[:], sums[len(before):])
	b.count += int64(len(sums) / 4)
}

// Sum returns the sums of the block, given its length in bytes, on which the
// length of its last chunk depends. It returns a *[LengthError] if the checksums
// that were added are not as many as the length asks for.
func (b *BlockSummer) Sum(length int64) (BlockSum, error) {
	s := BlockSum{Length: length, CRC: b.sum}
	b.md5.Sum(s.MD5[:0])
	if b.chunks.Kind == None {
		return s, nil
	}
	if want := b.chunks.Count(length); want != b.count {
		return BlockSum{}, &LengthError{Data: int(length), Expected: int(4 * want), Got: int(4 * b.count)}
	}
	if b.count > 0 {
		before := (b.count - 1) * int64(b.chunks.BytesPerChunk())
		s.CRC = Combine(b.chunks.Kind, b.sum, binary.BigEndian.Uint32(b.last[:]), length-before)
	}
	return s, nil
}

// A FileSum holds the checksums that HDFS gives a file: MD5-of-MD5
// (MD5MD5CRC32FileChecksum), which depends on the block and chunk size, and the
// composite CRC, which does not. There are none for files without checksums.
type FileSum struct {
	Chunks         Chunks
	ChunksPerBlock int64 // of the first block; 0 if it is the only one, as HDFS has it
	MD5            [md5.Size]byte
	CRC            uint32 // of the whole file

	empty bool
}

// NewFileSum returns the checksums of a file of the given blocks.
func NewFileSum(c Chunks, blocks []BlockSum) FileSum {
	s := FileSum{Chunks: c, empty: len(blocks) == 0}
	sums := make([][md5.Size]byte, len(blocks))
	for i, b := range blocks {
		sums[i] = b.MD5
		if c.Kind != None {
			s.CRC = Combine(c.Kind, s.CRC, b.CRC, b.Length)
		}
	}
	s.MD5 = FileMD5(sums)
	if len(blocks) > 1 {
		s.ChunksPerBlock = c.Count(blocks[0].Length)
	}
	return s
}

// Empty reports whether the file has no blocks.
func (s FileSum) Empty() bool { return s.empty }

// MD5Name returns the name of the MD5-of-MD5 algorithm, such as
// MD5-of-262144MD5-of-512CRC32C. An empty file's is HDFS's MD5-of-0MD5-of-0CRC32,
// whatever its checksum type.
func (s FileSum) MD5Name() string {
	if s.empty {
		return "MD5-of-0MD5-of-0CRC32"
	}
	return fmt.Sprintf("MD5-of-%dMD5-of-%d%s", s.ChunksPerBlock, s.Chunks.BytesPerChunk(), strings.ToUpper(s.Chunks.Kind.String()))
}

// AppendMD5 appends the MD5-of-MD5 checksum as HDFS serialises it, 28 bytes:
// the chunk size, big-endian int32; the chunks per block, int64; the MD5.
func (s FileSum) AppendMD5(dst []byte) []byte {
	size := uint32(s.Chunks.BytesPerChunk())
	if s.empty {
		size = 0
	}
	dst = binary.BigEndian.AppendUint32(dst, size)
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.ChunksPerBlock))
	return append(dst, s.MD5[:]...)
}

// CompositeName returns the name of the composite algorithm, COMPOSITE-CRC32 or
// COMPOSITE-CRC32C.
func (s FileSum) CompositeName() string {
	return "COMPOSITE-" + strings.ToUpper(s.Chunks.Kind.String())
}

// AppendComposite appends the composite checksum, a big-endian uint32.
func (s FileSum) AppendComposite(dst []byte) []byte {
	return binary.BigEndian.AppendUint32(dst, s.CRC)
}
