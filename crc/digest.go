package crc

import (
	"encoding/binary"
	"fmt"
	"hash"
)

// A Digest is a running CRC of one kind. It implements [hash.Hash32] and
// encoding's BinaryMarshaler, BinaryAppender and BinaryUnmarshaler. It is not
// safe for concurrent use.
type Digest struct {
	kind Kind
	sum  uint32
}

var _ hash.Hash32 = (*Digest)(nil)

// New returns a Digest of the empty message. It panics if k is not CRC32C or
// CRC32.
func New(k Kind) *Digest {
	k.poly()
	return &Digest{kind: k}
}

// Kind returns the checksum type.
func (d *Digest) Kind() Kind { return d.kind }

// Write adds p to the message. It never fails.
func (d *Digest) Write(p []byte) (int, error) {
	d.sum = Update(d.kind, d.sum, p)
	return len(p), nil
}

// Sum32 returns the CRC of what was written.
func (d *Digest) Sum32() uint32 { return d.sum }

// Sum appends the CRC, big-endian, to b.
func (d *Digest) Sum(b []byte) []byte { return binary.BigEndian.AppendUint32(b, d.sum) }

// Reset makes the message empty again.
func (d *Digest) Reset() { d.sum = 0 }

// Size returns 4, the length of a CRC in bytes.
func (d *Digest) Size() int { return 4 }

// BlockSize returns 1: writes of any length are equally good.
func (d *Digest) BlockSize() int { return 1 }

// The state is "crcd", a version byte, the kind's wire id and the sum.
const (
	stateMagic = "crcd\x01"
	stateLen   = len(stateMagic) + 1 + 4
)

// AppendBinary appends the state, 10 bytes, to b.
func (d *Digest) AppendBinary(b []byte) ([]byte, error) {
	b = append(b, stateMagic...)
	b = append(b, d.kind.Wire())
	return binary.BigEndian.AppendUint32(b, d.sum), nil
}

// MarshalBinary returns the state, 10 bytes, in a new slice.
func (d *Digest) MarshalBinary() ([]byte, error) {
	return d.AppendBinary(make([]byte, 0, stateLen))
}

// UnmarshalBinary restores a state that AppendBinary or MarshalBinary made for
// a Digest of the same kind. Anything else is a *[StateError] and changes
// nothing.
func (d *Digest) UnmarshalBinary(b []byte) error {
	if len(b) != stateLen || string(b[:len(stateMagic)]) != stateMagic {
		return &StateError{Reason: fmt.Sprintf("%d bytes without the magic of version 1", len(b))}
	}
	if id := b[len(stateMagic)]; id != d.kind.Wire() {
		return &StateError{Reason: fmt.Sprintf("checksum type %d, expected %d", id, d.kind.Wire())}
	}
	d.sum = binary.BigEndian.Uint32(b[stateLen-4:])
	return nil
}
