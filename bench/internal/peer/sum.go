package peer

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/blockpath/blockpath/crc"
)

// Chunk is the chunk size in bytes, HDFS's default.
const Chunk = crc.DefaultChunkSize

// A Checksum computes and verifies CRC32C checksums of chunks.
type Checksum struct {
	Name   string
	Put    func(sums, data []byte)
	Verify func(data, sums []byte) bool
}

// Kernels is what this project has.
var Kernels = Checksum{
	Name:   "crc",
	Put:    func(sums, data []byte) { crc.Chunks{}.Put(sums, data) },
	Verify: func(data, sums []byte) bool { return crc.Chunks{}.Verify(data, sums, 0) == nil },
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// HashCRC32 calls the standard library once for every chunk.
var HashCRC32 = Checksum{
	Name: "hash-crc32",
	Put: func(sums, data []byte) {
		for i := 0; len(data) > 0; i += 4 {
			n := min(Chunk, len(data))
			binary.BigEndian.PutUint32(sums[i:], crc32.Checksum(data[:n], castagnoli))
			data = data[n:]
		}
	},
	Verify: func(data, sums []byte) bool {
		for i := 0; len(data) > 0; i += 4 {
			n := min(Chunk, len(data))
			if binary.BigEndian.Uint32(sums[i:]) != crc32.Checksum(data[:n], castagnoli) {
				return false
			}
			data = data[n:]
		}
		return true
	},
}
