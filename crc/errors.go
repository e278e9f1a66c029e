package crc

import "fmt"

// A MismatchError reports a chunk whose checksum is not the expected one.
type MismatchError struct {
	Kind     Kind
	Offset   int64  // where the chunk starts in its block or file, in bytes
	Length   int    // length of the chunk in bytes
	Expected uint32 // the checksum that came with the data
	Computed uint32 // the checksum of the data
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("crc: %s mismatch in the %d bytes at offset %d: expected %08x, computed %08x",
		e.Kind, e.Length, e.Offset, e.Expected, e.Computed)
}

// A LengthError reports that data and sums do not fit each other.
type LengthError struct {
	Offset   int64 // where the data starts in its block or file, in bytes
	Data     int   // bytes of data
	Expected int   // bytes of checksums that this data has
	Got      int   // bytes of checksums given
}

func (e *LengthError) Error() string {
	return fmt.Sprintf("crc: %d bytes of data at offset %d have %d bytes of checksums, got %d",
		e.Data, e.Offset, e.Expected, e.Got)
}

// A HeaderError reports an invalid checksum header.
type HeaderError struct {
	Field string // what is wrong
	Got   int64
	Want  string
}

func (e *HeaderError) Error() string {
	return fmt.Sprintf("crc: invalid checksum header: %s is %d, want %s", e.Field, e.Got, e.Want)
}

// A StateError reports that bytes given to UnmarshalBinary are not a Digest's
// state, or are that of another kind.
type StateError struct {
	Reason string
}

func (e *StateError) Error() string { return "crc: invalid hash state: " + e.Reason }
