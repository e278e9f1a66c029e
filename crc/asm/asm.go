// Package asm holds the CRC kernels: generated assembly for amd64 and arm64,
// the portable Go code that they are checked against, and the feature test
// that says which of them this machine can run. It is not a stable API; use
// package crc.
package asm

//go:generate go -C ../../gen run ./crcsse42 -out ../crc/asm/sse42_amd64.s -stubs ../crc/asm/sse42_amd64.go -pkg asm
//go:generate go -C ../../gen run ./crctables -out ../crc/asm/tables.go -pkg asm
//go:generate go -C ../../gen run ./crcvpclmul -out ../crc/asm/vpclmul_amd64.s -stubs ../crc/asm/vpclmul_amd64.go -pkg asm
//go:generate go -C ../../gen run ./crcavx512 -out ../crc/asm/avx512_amd64.s -stubs ../crc/asm/avx512_amd64.go -pkg asm
//go:generate go -C ../../gen run ./crcarm64 -out ../crc/asm/crc_arm64.s -stubs ../crc/asm/crc_arm64.go -pkg asm

// A Poly names a CRC-32 polynomial. Both are used reflected, with the register
// initialised to all ones and complemented at the end.
type Poly uint8

const (
	Castagnoli Poly = iota // 0x82F63B78, CRC-32C
	IEEE                   // 0xEDB88320, the CRC-32 of zlib and Ethernet
)
