package crc_test

import (
	"errors"
	"fmt"

	"github.com/blockpath/blockpath/crc"
)

func ExampleChunks() {
	block := make([]byte, 1300)
	chunks := crc.Chunks{} // CRC-32C of every 512 bytes, HDFS's default
	sums := chunks.Append(nil, block)

	block[700] ^= 1
	var bad *crc.MismatchError
	if err := chunks.Verify(block, sums, 0); errors.As(err, &bad) {
		fmt.Printf("chunk at %d: expected %08x, computed %08x\n", bad.Offset, bad.Expected, bad.Computed)
	}
	// Output: chunk at 512: expected 30fcedc0, computed 05056a46
}

func ExampleCombine() {
	a, b := []byte("hello, "), []byte("world")
	sum := crc.Combine(crc.CRC32C, crc.Checksum(crc.CRC32C, a), crc.Checksum(crc.CRC32C, b), int64(len(b)))
	fmt.Println(sum == crc.Checksum(crc.CRC32C, []byte("hello, world")))
	// Output: true
}
