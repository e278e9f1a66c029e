package asm

import "unsafe"

// constants are one polynomial's, as gen/poly derives them. The assembly knows
// where they stand (gen/layout).
type constants struct {
	barrett [2]uint64 // reduction of a 96-bit sum
	_       [6]uint64

	// dot is for a message of 4096 bytes; its end serves every shorter one. A
	// row of zeros follows, so that a whole row can be read anywhere.
	dot [maxDot/8 + 8]uint64

	// compose joins the CRCs of up to 72 blocks of 512, 1024, 2048 and 4096
	// bytes; its end serves fewer.
	compose [4][composeBlocks]uint64

	// affine is dot as bit matrices, in rows of four times eight words.
	affine [4 * maxDot / 8]uint64

	squares [64]uint32 // x^(8·2^k)
}

const (
	maxDot        = 4096
	composeBlocks = 72
)

// tables are the constants by polynomial.
var tables = [...]*constants{
	Castagnoli: align(&castagnoliConstants),
	IEEE:       align(&ieeeConstants),
}

// align returns c or a copy of it that starts a cache line, so that no row of
// constants straddles two.
func align(c *constants) *constants {
	const line = 64
	if uintptr(unsafe.Pointer(c))%line == 0 {
		return c
	}
	b := make([]byte, unsafe.Sizeof(*c)+line)
	off := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) % line
	a := (*constants)(unsafe.Pointer(&b[off]))
	*a = *c
	return a
}
