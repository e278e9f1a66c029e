// Package crc32 is a drop-in for the standard library's hash/crc32 over the
// kernels of package crc: change the import line, nothing else. Every exported
// name of hash/crc32 is here with the same meaning, [Table] is its type, so
// tables pass both ways, and a hash's binary state made by one package can be
// restored by the other.
//
// IEEE and Castagnoli run on the kernels, whichever package made the table, and
// so does a table that a program built itself with the same contents. Every
// other polynomial is left to hash/crc32.
package crc32

import (
	"encoding/binary"
	"hash"
	"hash/crc32"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/blockpath/blockpath/crc"
)

// Size is the length of a CRC-32 checksum in bytes.
const Size = crc32.Size

// The predefined polynomials, reflected: bit 31 is the coefficient of x^0.
const (
	IEEE       = crc32.IEEE       // Ethernet, gzip, zip, png; HDFS's CRC32
	Castagnoli = crc32.Castagnoli // iSCSI, ext4; HDFS's CRC32C
	Koopman    = crc32.Koopman
)

// Table is the standard library's table type: 256 words that represent a
// polynomial.
type Table = crc32.Table

// IEEETable is the standard library's table for the [IEEE] polynomial.
var IEEETable = crc32.IEEETable

// castagnoli is the standard library's table for the [Castagnoli] polynomial
// once it is known here. Making it costs hash/crc32 a tenth of a millisecond,
// so it is not made before somebody asks for it.
var castagnoli atomic.Pointer[Table]

// MakeTable returns the standard library's table for the polynomial poly. Its
// contents must not be modified.
func MakeTable(poly uint32) *Table {
	tab := crc32.MakeTable(poly)
	if poly == Castagnoli && castagnoli.Load() == nil {
		castagnoli.Store(tab)
	}
	return tab
}

// ChecksumIEEE returns the CRC-32 checksum of data using the [IEEE] polynomial.
func ChecksumIEEE(data []byte) uint32 { return crc.Checksum(crc.CRC32, data) }

// Checksum returns the CRC-32 checksum of data using the polynomial of tab.
func Checksum(data []byte, tab *Table) uint32 { return Update(0, tab, data) }

// Update returns the CRC-32 checksum of the message whose checksum is sum
// followed by p, using the polynomial of tab.
func Update(sum uint32, tab *Table, p []byte) uint32 {
	switch {
	case tab == IEEETable:
		return crc.Update(crc.CRC32, sum, p)
	case tab == castagnoli.Load() && tab != nil:
		return crc.Update(crc.CRC32C, sum, p)
	}
	return updateUnknown(sum, tab, p)
}

// minRecognize is the length from which comparing a table of 1 KiB with a
// known one costs less than hash/crc32's loop over single bytes.
const minRecognize = 32

// updateUnknown is Update for a table whose address says nothing. The contents
// are looked at in every call, as hash/crc32 does by using them, so a table
// that its owner changes between two calls gives the same checksums here and
// there.
func updateUnknown(sum uint32, tab *Table, p []byte) uint32 {
	if len(p) >= minRecognize {
		switch k := recognize(tab); k {
		case crc.CRC32, crc.CRC32C:
			return crc.Update(k, sum, p)
		}
	}
	return crc32.Update(sum, tab, hide(p))
}

// hide returns p by a way that escape analysis does not follow. hash/crc32
// keeps no reference to p but calls its kernels through function values, so
// without this every caller's array would move from the stack to the heap.
func hide(p []byte) []byte {
	data := unsafe.SliceData(p)
	header := struct {
		data     uintptr
		len, cap int
	}{uintptr(unsafe.Pointer(data)), len(p), cap(p)}
	hidden := *(*[]byte)(unsafe.Pointer(&header))
	runtime.KeepAlive(data)
	return hidden
}

// recognize returns the kind whose polynomial tab represents, None if there is
// none. The polynomial itself stands at index 128, the byte whose only term is
// x^7; but only the whole table decides.
func recognize(tab *Table) crc.Kind {
	switch tab[128] {
	case IEEE:
		if *tab == references().ieee {
			return crc.CRC32
		}
	case Castagnoli:
		// After this call hash/crc32's own table is known by its address.
		if tab == MakeTable(Castagnoli) || *tab == references().castagnoli {
			return crc.CRC32C
		}
	}
	return crc.None
}

// references returns tables that nobody else can reach, let alone modify.
var references = sync.OnceValue(func() *struct{ ieee, castagnoli Table } {
	return &struct{ ieee, castagnoli Table }{newTable(IEEE), newTable(Castagnoli)}
})

func newTable(poly uint32) (t Table) {
	for b := range t {
		r := uint32(b)
		for range 8 {
			r = r>>1 ^ poly&-(r&1)
		}
		t[b] = r
	}
	return t
}

// digest is a running checksum. Its table is looked at anew in every Write, see
// updateUnknown.
type digest struct {
	sum uint32
	tab *Table
}

// New returns a [hash.Hash32] computing the CRC-32 checksum using the
// polynomial of tab. Sum appends the checksum big-endian. The value implements
// [encoding.BinaryMarshaler], [encoding.BinaryAppender] and
// [encoding.BinaryUnmarshaler], whose state is the same as that of hash/crc32,
// and, from Go 1.25 on, hash.Cloner.
func New(tab *Table) hash.Hash32 { return &digest{tab: tab} }

// NewIEEE returns a [hash.Hash32] computing the CRC-32 checksum using the
// [IEEE] polynomial. See [New].
func NewIEEE() hash.Hash32 { return New(IEEETable) }

func (d *digest) Size() int { return Size }

func (d *digest) BlockSize() int { return 1 }

func (d *digest) Reset() { d.sum = 0 }

func (d *digest) Write(p []byte) (int, error) {
	d.sum = Update(d.sum, d.tab, p)
	return len(p), nil
}

func (d *digest) Sum32() uint32 { return d.sum }

func (d *digest) Sum(b []byte) []byte { return binary.BigEndian.AppendUint32(b, d.sum) }

// The state is hash/crc32's: a magic with a version byte, the IEEE checksum of
// the table's words, big-endian, and the checksum so far, big-endian.
const (
	magic    = "crc\x01"
	stateLen = len(magic) + 4 + 4
)

func (d *digest) AppendBinary(b []byte) ([]byte, error) {
	b = append(b, magic...)
	b = binary.BigEndian.AppendUint32(b, tableSum(d.tab))
	return binary.BigEndian.AppendUint32(b, d.sum), nil
}

func (d *digest) MarshalBinary() ([]byte, error) {
	return d.AppendBinary(make([]byte, 0, stateLen))
}

func (d *digest) UnmarshalBinary(b []byte) error {
	switch {
	case len(b) < len(magic) || string(b[:len(magic)]) != magic:
		return &crc.StateError{Reason: "no hash/crc32 identifier"}
	case len(b) != stateLen:
		return &crc.StateError{Reason: "wrong size"}
	case binary.BigEndian.Uint32(b[len(magic):]) != tableSum(d.tab):
		return &crc.StateError{Reason: "tables do not match"}
	}
	d.sum = binary.BigEndian.Uint32(b[len(magic)+4:])
	return nil
}

// tableSum returns the IEEE checksum of the table's words. As in hash/crc32, a
// hash may have no table as long as nothing is written to it.
func tableSum(tab *Table) uint32 {
	var words [4 * len(Table{})]byte
	if tab == nil {
		return 0
	}
	for i, w := range tab {
		binary.BigEndian.PutUint32(words[4*i:], w)
	}
	return ChecksumIEEE(words[:])
}
