package stripedcounter

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// A Local is a row of a [Set] that belongs to one stream or worker, the
// cheapest way to add from code that can carry a handle: nobody else writes the
// row's cache lines. Its counts are part of the set's values at once.
//
// A Local may be used by several goroutines; they then contend with one
// another.
type Local struct {
	cells   []int64 // the counters of the row
	rows    *localRows
	row     []int64
	cleanup runtime.Cleanup
	closed  atomic.Bool
}

// Local returns a row for one owner. Close gives it back.
func (s *Set) Local() *Local {
	row := s.locals.get()
	l := &Local{cells: row[:len(s.names):len(s.names)], rows: s.locals, row: row}
	// Rows must not leak when owners die without a word, which is how
	// thread-local statistics have leaked elsewhere.
	l.cleanup = runtime.AddCleanup(l, s.locals.put, row)
	return l
}

// Add adds d, which may be negative, to counter i. It panics when there is no
// such counter.
func (l *Local) Add(i int, d int64) { atomic.AddInt64(&l.cells[i], d) }

// Add2 adds d to counter i and e to counter j.
func (l *Local) Add2(i int, d int64, j int, e int64) {
	atomic.AddInt64(&l.cells[i], d)
	atomic.AddInt64(&l.cells[j], e)
}

// Close gives the row to the next caller of [Set.Local]. What was added stays
// part of the set's values: the counts remain in the row, and readers sum rows
// whether they are in use or not, so no reader can see them twice or not at
// all. Adds after Close are still counted, but may contend with the next owner.
// Closing again does nothing. A Local that becomes garbage is closed.
func (l *Local) Close() {
	if l.closed.CompareAndSwap(false, true) {
		l.cleanup.Stop()
		l.rows.put(l.row)
	}
}

// localRows are the rows of a Set's Locals. Their number is the largest number
// of Locals that were open at once, rounded up to whole slabs.
type localRows struct {
	all atomic.Pointer[[][]int64] // slabs of whole rows; replaced, never changed
	per int                       // cells in a row

	mu   sync.Mutex
	free [][]int64
}

func newLocalRows(per int) *localRows {
	r := &localRows{per: per}
	r.all.Store(new([][]int64))
	return r
}

func (r *localRows) slabs() [][]int64 { return *r.all.Load() }

func (r *localRows) get() []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.free) == 0 {
		r.grow()
	}
	last := len(r.free) - 1
	row := r.free[last]
	r.free = r.free[:last]
	return row
}

func (r *localRows) put(row []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free = append(r.free, row)
}

// grow doubles the number of rows, so that a reader meets few slabs and a
// growing set copies little.
func (r *localRows) grow() {
	old := r.slabs()
	cells := 0
	for _, slab := range old {
		cells += len(slab)
	}
	slab := alignedCells(max(cells, 4*r.per))
	slabs := append(append(make([][]int64, 0, len(old)+1), old...), slab)
	r.all.Store(&slabs)
	for ; len(slab) > 0; slab = slab[r.per:] {
		r.free = append(r.free, slab[:r.per:r.per])
	}
}
