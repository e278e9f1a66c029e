// Package layout says where the constants of the CRC kernels stand in memory:
// crctables writes them so, and the assembly of both architectures finds them
// there. It mirrors the Go type constants of package asm.
package layout

// Offsets in bytes.
const (
	Barrett = 0  // inverse and full of poly.Barrett
	Dot     = 64 // poly.Dot of DotWords, then one row of zeros
	DotEnd  = Dot + 8*DotWords
	Compose = DotEnd + 64 // poly.Compose of ComposeBlocks, for blocks of 512, 1024, 2048 and 4096 bytes
	Affine  = Compose + 4*8*ComposeBlocks
	// poly.Affine in rows of eight words, four planes each
	AffineEnd = Affine + 4*8*DotWords
)

const (
	DotWords      = 512 // a message of 4096 bytes
	ComposeBlocks = 72
)
