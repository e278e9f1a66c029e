// Package native holds rivals in C and Rust, each behind a build tag of its
// name. They need cgo, which the rest of the module does not.
package native

// A Rival is an implementation of chunked and long CRCs. The loop over the
// chunks is in its own language, so that a call from Go costs it nothing.
type Rival struct {
	Name           string
	Absent         string // why it was not built in; then the functions are nil
	CastagnoliOnly bool

	// Put writes the big-endian CRC of every chunk of data to sums, CRC-32C or
	// CRC-32.
	Put func(castagnoli bool, sums, data []byte, chunk int)
	// Checksum returns the CRC of data, which is not empty.
	Checksum func(castagnoli bool, data []byte) uint32
}

// Rivals returns all, built in or not.
func Rivals() []Rival { return []Rival{isal, crcFast, hadoop} }
