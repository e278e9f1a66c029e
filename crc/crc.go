// Package crc computes, verifies and combines the chunk checksums of HDFS:
// one 32-bit CRC per chunk (512 bytes unless told otherwise), stored
// big-endian. It chooses the fastest kernel for the CPU once, at start-up;
// the kernels themselves live in crc/asm.
//
// [Chunks] is the bulk interface: it computes or verifies all chunks of a
// buffer, alone or while copying it. [Update], [Checksum] and [Digest] treat
// data as one long message. No function allocates unless its documentation
// says so, and no function keeps a reference to its arguments.
package crc

import (
	"fmt"
	"math/bits"

	"github.com/blockpath/blockpath/crc/asm"
)

// A Kind is a checksum type. Its zero value is CRC32C, HDFS's default, so that
// a zero config is a safe one; "no checksum" has to be asked for by name. Kinds
// are not the ids of the wire and of .meta files: see [KindFromWire] and
// [Kind.Wire].
type Kind uint8

const (
	CRC32C Kind = iota // Castagnoli, reflected polynomial 0x82F63B78
	CRC32              // zlib and Ethernet, reflected polynomial 0xEDB88320
	None               // no checksum: zero bytes per chunk, everything verifies
)

// String returns "crc32c", "crc32" or "none", the names [ParseKind] takes.
func (k Kind) String() string {
	switch k {
	case CRC32C:
		return "crc32c"
	case CRC32:
		return "crc32"
	case None:
		return "none"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// ParseKind is the inverse of [Kind.String]; any other text is an error.
func ParseKind(s string) (Kind, error) {
	for k := CRC32C; k <= None; k++ {
		if s == k.String() {
			return k, nil
		}
	}
	return None, fmt.Errorf("crc: unknown checksum type %q, expected crc32c, crc32 or none", s)
}

// Size returns the length of one checksum in bytes: 4, or 0 for None.
func (k Kind) Size() int {
	if k == None {
		return 0
	}
	return 4
}

// Wire returns the id that HDFS uses on the wire and in .meta files: NULL 0,
// CRC32 1, CRC32C 2 (org.apache.hadoop.util.DataChecksum).
func (k Kind) Wire() byte {
	switch k {
	case CRC32C:
		return 2
	case CRC32:
		return 1
	case None:
		return 0
	}
	panic("crc: " + k.String() + " has no wire id")
}

// KindFromWire is the inverse of [Kind.Wire]. HDFS's DEFAULT (3) and MIXED (4)
// are not types of stored data; they and any other id give a *[HeaderError].
func KindFromWire(id byte) (Kind, error) {
	switch id {
	case 2:
		return CRC32C, nil
	case 1:
		return CRC32, nil
	case 0:
		return None, nil
	}
	return None, &HeaderError{Field: "checksum type", Got: int64(id), Want: "0, 1 or 2"}
}

// poly returns the kernel polynomial of k, which must not be None.
func (k Kind) poly() asm.Poly {
	if k > CRC32 {
		panicNoPoly(k)
	}
	return asm.Poly(k)
}

// The two numberings agree.
var _ = [1]struct{}{}[uint8(CRC32C)-uint8(asm.Castagnoli)|uint8(CRC32)-uint8(asm.IEEE)]

func panicNoPoly(k Kind) { panic("crc: " + k.String() + " has no polynomial") }

// Update returns the CRC of the message whose CRC is sum followed by p. The
// CRC of the empty message is 0. It panics if k is not CRC32C or CRC32.
func Update(k Kind, sum uint32, p []byte) uint32 {
	return updates[k][bits.Len(uint(len(p)))].Update(asm.Poly(k), sum, p)
}

// Checksum returns the CRC of p. It panics if k is not CRC32C or CRC32.
func Checksum(k Kind, p []byte) uint32 {
	return Update(k, 0, p)
}
