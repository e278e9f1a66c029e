package checksums

import (
	"bytes"
	"encoding/binary"
	stdcrc32 "hash/crc32"

	klauspost "github.com/klauspost/crc32"

	"github.com/blockpath/blockpath/bench/checksums/native"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/crc32"
)

// A rival is somebody else's implementation.
type rival struct {
	name     string
	absent   string // why it does not take part, if it does not
	kinds    []crc.Kind
	put      func(k crc.Kind, sums, data []byte, chunk int)
	checksum func(k crc.Kind, data []byte) uint32
}

var both = []crc.Kind{crc.CRC32C, crc.CRC32}

// rivals begins with std, which says what is right.
var rivals = append([]rival{std, klauspostCRC32}, nativeRivals()...)

func nativeRivals() (rs []rival) {
	for _, n := range native.Rivals() {
		r := rival{name: n.Name, absent: n.Absent, kinds: both,
			put:      func(k crc.Kind, sums, data []byte, chunk int) { n.Put(k == crc.CRC32C, sums, data, chunk) },
			checksum: func(k crc.Kind, data []byte) uint32 { return n.Checksum(k == crc.CRC32C, data) },
		}
		if n.CastagnoliOnly {
			r.kinds = both[:1]
		}
		rs = append(rs, r)
	}
	return rs
}

var castagnoli = stdcrc32.MakeTable(stdcrc32.Castagnoli)

var std = rival{
	name:  "std",
	kinds: both,
	put: func(k crc.Kind, sums, data []byte, chunk int) {
		table := table(k)
		for ; len(data) > 0; sums = sums[4:] {
			n := min(chunk, len(data))
			binary.BigEndian.PutUint32(sums, stdcrc32.Checksum(data[:n], table))
			data = data[n:]
		}
	},
	checksum: func(k crc.Kind, data []byte) uint32 { return stdcrc32.Checksum(data, table(k)) },
}

func table(k crc.Kind) *stdcrc32.Table {
	if k == crc.CRC32 {
		return stdcrc32.IEEETable
	}
	return castagnoli
}

var klauspostTables = [...]*klauspost.Table{
	crc.CRC32C: klauspost.MakeTable(klauspost.Castagnoli), crc.CRC32: klauspost.IEEETable,
}

var klauspostCRC32 = rival{
	name:  "klauspost",
	kinds: both,
	put: func(k crc.Kind, sums, data []byte, chunk int) {
		table := klauspostTables[k]
		for ; len(data) > 0; sums = sums[4:] {
			n := min(chunk, len(data))
			binary.BigEndian.PutUint32(sums, klauspost.Checksum(data[:n], table))
			data = data[n:]
		}
	},
	checksum: func(k crc.Kind, data []byte) uint32 { return klauspost.Checksum(data, klauspostTables[k]) },
}

// pass is what a caller of the rival would write: it copies first where a copy
// is wanted, and compares last where the checksums are to be verified.
func (r rival) pass(s shape) pass {
	switch s.op {
	case "put":
		return func(o operands) { r.put(s.kind, o.sums, o.src, s.chunk) }
	case "verify":
		return func(o operands) {
			r.put(s.kind, o.sums, o.src, s.chunk)
			expect(bytes.Equal(o.sums, o.want))
		}
	case "copyput":
		return func(o operands) {
			copy(o.dst, o.src)
			r.put(s.kind, o.sums, o.dst, s.chunk)
		}
	case "copyverify":
		return func(o operands) {
			copy(o.dst, o.src)
			r.put(s.kind, o.sums, o.dst, s.chunk)
			expect(bytes.Equal(o.sums, o.want))
		}
	case "update":
		return func(o operands) { r.checksum(s.kind, o.src) }
	}
	panic("checksums: no operation " + s.op)
}

// An updater adds pieces of data of the given lengths, one call each. Every one
// has its own loop with direct calls.
type updater struct {
	name string
	run  func(lengths []uint8, data []byte)
}

// sink keeps the results of calls that would otherwise be nobody's.
var sink uint32

func updaters(k crc.Kind) []updater {
	tab, klauspostTab := table(k), klauspostTables[k]
	return []updater{
		{"blockpath", func(lengths []uint8, data []byte) {
			sum := uint32(0)
			for i, n := range lengths {
				sum = crc.Update(k, sum, data[8*i:][:n])
			}
			sink = sum
		}},
		{"dropin", func(lengths []uint8, data []byte) {
			sum := uint32(0)
			for i, n := range lengths {
				sum = crc32.Update(sum, tab, data[8*i:][:n])
			}
			sink = sum
		}},
		{"std", func(lengths []uint8, data []byte) {
			sum := uint32(0)
			for i, n := range lengths {
				sum = stdcrc32.Update(sum, tab, data[8*i:][:n])
			}
			sink = sum
		}},
		{"klauspost", func(lengths []uint8, data []byte) {
			sum := uint32(0)
			for i, n := range lengths {
				sum = klauspost.Update(sum, klauspostTab, data[8*i:][:n])
			}
			sink = sum
		}},
	}
}
