package crc32_test

import (
	"fmt"
	"io"
	"strings"

	"github.com/blockpath/blockpath/crc/crc32"
)

func ExampleMakeTable() {
	// The same lines compile with hash/crc32.
	table := crc32.MakeTable(crc32.Castagnoli)
	fmt.Printf("%08x\n", crc32.Checksum([]byte("123456789"), table))
	fmt.Printf("%08x\n", crc32.ChecksumIEEE([]byte("123456789")))
	// Output:
	// e3069283
	// cbf43926
}

func ExampleNew() {
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	if _, err := io.Copy(h, strings.NewReader("123456789")); err != nil {
		panic(err)
	}
	fmt.Printf("%08x\n", h.Sum32())
	// Output: e3069283
}

func ExampleUpdate() {
	sum := crc32.ChecksumIEEE([]byte("12345"))
	sum = crc32.Update(sum, crc32.IEEETable, []byte("6789"))
	fmt.Printf("%08x\n", sum)
	// Output: cbf43926
}
