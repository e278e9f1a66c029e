package stripedcounter

import (
	"fmt"
	"iter"
	"strconv"
	"sync/atomic"
	"unsafe"
)

// A Set is a fixed list of named 64-bit counters that many goroutines add to.
// It is safe for concurrent use and must be made by [NewSet].
//
// Every method that takes a counter takes its index in [Set.Names] and panics
// when there is no such counter, as indexing a slice does.
type Set struct {
	names []string
	// row0 holds the counters of the first row. Row r begins r*stride bytes
	// further on. Everything that Add reads is constant after NewSet, so the
	// line of this struct is never taken away from a core; what Locals change
	// lies behind a pointer.
	row0   []int64
	mask   uintptr // rows - 1
	stride uintptr // bytes from row to row, a multiple of lineSize
	cells  []int64 // all rows
	locals *localRows
}

// NewSet returns a set of counters, all zero. A name is not empty, consists of
// printable ASCII characters other than the quotation mark and the backslash
// (so that [Set.String] is JSON as it stands) and occurs once; NewSet panics
// when the names are not like that.
//
// The set takes 128 bytes per row and 16 names, and has as many rows as the
// package documentation says.
func NewSet(names ...string) *Set { return newSet(stripes(), names) }

// newSet makes a set of the given number of rows, a power of two.
func newSet(rows int, names []string) *Set {
	seen := make(map[string]bool, len(names))
	for _, name := range names {
		if !validName(name) || seen[name] {
			panic(fmt.Sprintf("stripedcounter: counter name %q is repeated, empty or not printable ASCII", name))
		}
		seen[name] = true
	}
	per := rowCells(len(names))
	cells := alignedCells(rows * per)
	return &Set{
		names:  append([]string(nil), names...),
		row0:   cells[:len(names):len(names)],
		mask:   uintptr(rows - 1),
		stride: uintptr(per) * cellSize,
		cells:  cells,
		locals: newLocalRows(len(names)),
	}
}

func validName(name string) bool {
	for i := range len(name) {
		if c := name[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return name != ""
}

// Names returns a copy of the names, in the order that gives the indices.
func (s *Set) Names() []string { return append([]string(nil), s.names...) }

// Len returns the number of counters.
func (s *Set) Len() int { return len(s.names) }

// Rows returns the number of rows that a Load sums: those of the CPUs, and those
// of as many Locals as were open at once.
func (s *Set) Rows() int {
	cells := len(s.cells)
	for _, slab := range s.locals.slabs() {
		cells += len(slab)
	}
	return cells / s.perRow()
}

// Add adds d, which may be negative, to counter i.
func (s *Set) Add(i int, d int64) { add(&s.row0[i], s.mask, s.stride, d) }

// Add2 adds d to counter i and e to counter j, both in one row; the counters lie
// in one cache line if i/16 == j/16. On amd64 it costs least when i is even and j
// is i+1: that takes one locked instruction instead of two, so name counters
// that belong together in pairs. A reader may still see the one addition
// without the other.
func (s *Set) Add2(i int, d int64, j int, e int64) {
	add2(&s.row0[i], &s.row0[j], s.mask, s.stride, d, e)
}

// Load returns the value of counter i: what was added since the set was made,
// or since the last [Set.Drain].
func (s *Set) Load(i int) int64 {
	_ = s.names[i] // not of a cell: the race detector would take that for a read
	return column(s.cells, i, s.perRow()) + s.locals.load(i)
}

// column returns the sum of the cells of counter i in rows of per cells.
func column(cells []int64, i, per int) (sum int64) {
	for ; i < len(cells); i += per {
		sum += atomic.LoadInt64(&cells[i])
	}
	return sum
}

// Snapshot appends the value of every counter to dst, in the order of the
// names, and returns the result. It allocates only if dst has no room. The
// values are not of one instant.
func (s *Set) Snapshot(dst []int64) []int64 {
	for i := range s.names {
		dst = append(dst, s.Load(i))
	}
	return dst
}

// Drain appends to dst what Snapshot appends, and sets the counters to zero. An
// add is counted by exactly one Drain, whatever runs beside it: the sum over
// all Drains and a final Snapshot is the sum of everything that was added.
// Afterwards Load counts from the Drain, so a set should have one drainer, and
// no reader that expects totals.
func (s *Set) Drain(dst []int64) []int64 {
	n, per := len(s.names), s.perRow()
	for range n {
		dst = append(dst, 0)
	}
	total := dst[len(dst)-n:]
	for i := range total {
		for k := i; k < len(s.cells); k += per {
			total[i] += atomic.SwapInt64(&s.cells[k], 0)
		}
	}
	s.locals.drain(total)
	return dst
}

func (s *Set) perRow() int { return int(s.stride / cellSize) }

// All iterates over the names and values, in the order of the names. The
// values are those of one Snapshot, taken when the iteration starts.
func (s *Set) All() iter.Seq2[string, int64] {
	return func(yield func(string, int64) bool) {
		var buf [32]int64
		for i, v := range s.Snapshot(buf[:0]) {
			if !yield(s.names[i], v) {
				return
			}
		}
	}
}

// String returns the counters as a JSON object, in the order of the names. It
// makes a Set an [expvar.Var].
//
// [expvar.Var]: https://pkg.go.dev/expvar#Var
func (s *Set) String() string {
	b := []byte{'{'}
	for name, v := range s.All() {
		if len(b) > 1 {
			b = append(b, ", "...)
		}
		b = append(b, '"')
		b = append(b, name...)
		b = append(b, `": `...)
		b = strconv.AppendInt(b, v, 10)
	}
	return string(append(b, '}'))
}

const (
	cellSize = 8
	// lineSize is two cache lines of most machines: Intel's adjacent-line
	// prefetcher pulls them in pairs, and Apple's lines are this long.
	lineSize = 128
)

// rowCells returns the number of cells of a row of n counters: whole lines, at
// least one.
func rowCells(n int) int {
	const perLine = lineSize / cellSize
	return max(1, (n+perLine-1)/perLine) * perLine
}

// alignedCells returns n cells, a multiple of a line, that begin on a line. So
// no line holds cells of two rows, nor a cell beside foreign memory, and the
// cells are aligned for 64-bit atomics on 32-bit machines too.
func alignedCells(n int) []int64 {
	const perLine = lineSize / cellSize
	mem := make([]int64, n+perLine-1)
	off := -uintptr(unsafe.Pointer(&mem[0])) % lineSize / cellSize
	return mem[off : int(off)+n : int(off)+n]
}
