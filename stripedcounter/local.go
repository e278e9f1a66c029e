package stripedcounter

import (
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
)

// A Local is a row of a [Set] that belongs to one stream or worker: the
// cheapest way to add from code that can carry a handle, as cheap as adding to a
// variable. Its counts are part of the set's values at once.
//
// A Local must not be used by two goroutines at the same time; counts would be
// lost.
type Local struct {
	row     []int64 // one cell per counter
	rows    *localRows
	cleanup runtime.Cleanup
}

// Local returns a row for one owner. Close gives it back.
func (s *Set) Local() *Local {
	row := s.locals.get()
	l := &Local{row: row, rows: s.locals}
	// Rows must not leak when owners go without a word, which is how
	// thread-local statistics have leaked elsewhere.
	l.cleanup = runtime.AddCleanup(l, s.locals.put, row)
	return l
}

// Add adds d, which may be negative, to counter i. It panics when there is no
// such counter, and after Close.
func (l *Local) Add(i int, d int64) { addOwned(&l.row[i], d) }

// Add2 adds d to counter i and e to counter j. It panics as Add does.
func (l *Local) Add2(i int, d int64, j int, e int64) {
	addOwned(&l.row[i], d)
	addOwned(&l.row[j], e)
}

// Close gives the row to the next caller of [Set.Local]. What was added stays
// part of the set's values: the counts remain in the row, and readers sum rows
// whether they are in use or not, so no reader can see them twice or not at
// all. Closing again does nothing. A Local that becomes garbage is closed.
func (l *Local) Close() {
	if l.row == nil {
		return
	}
	l.cleanup.Stop()
	l.rows.put(l.row)
	l.row = nil
}

// addOwned adds d to a cell that no other goroutine writes. Readers load the
// cell atomically meanwhile. That is a race, but one with a meaning: the Go
// memory model (section "Implementation Restrictions for Programs Containing
// Data Races") promises that a read of a single word observes a value that was
// written to it and not yet overwritten, and the cell's values grow only as its
// owner adds. The processors need no more either: aligned words are read and
// written whole. A locked addition would cost some 20 cycles instead of one.
//
// Where a count is two words, and under the race detector, which objects to any
// race, the addition is atomic.
func addOwned(cell *int64, d int64) {
	if raceDetector || bits.UintSize < 64 {
		atomic.AddInt64(cell, d)
		return
	}
	*cell += d
}

// localRows are the rows of a Set's Locals. Their number is the largest number
// of Locals that were open at once, rounded up to whole slabs.
//
// Only its owner may write to a row, so a drain does not clear it but moves the
// mark from which the counts of all rows are reckoned.
type localRows struct {
	counters int
	per      int                       // cells in a row
	all      atomic.Pointer[[][]int64] // slabs of whole rows; replaced, never changed
	drained  []int64                   // per counter, the sum of the rows at the last drain; atomic

	mu   sync.Mutex // of free, and of changes to all and drained
	free [][]int64
}

func newLocalRows(counters int) *localRows {
	r := &localRows{
		counters: counters,
		per:      rowCells(counters),
		drained:  alignedCells(rowCells(counters))[:counters],
	}
	r.all.Store(new([][]int64))
	return r
}

func (r *localRows) slabs() [][]int64 { return *r.all.Load() }

// sum returns what the rows hold of counter i, drained or not.
func (r *localRows) sum(i int) (sum int64) {
	for _, slab := range r.slabs() {
		sum += column(slab, i, r.per)
	}
	return sum
}

// load returns what was added to the rows of counter i since the last drain.
// The mark is read first: a drain in between then counts as later.
func (r *localRows) load(i int) int64 {
	mark := atomic.LoadInt64(&r.drained[i])
	return r.sum(i) - mark
}

// drain adds to each total what load returns, and moves the marks.
func (r *localRows) drain(total []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range total {
		sum := r.sum(i)
		total[i] += sum - r.drained[i]
		atomic.StoreInt64(&r.drained[i], sum)
	}
}

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

// grow doubles the number of rows, so that a reader meets few slabs.
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
		r.free = append(r.free, slab[:r.counters:r.counters])
	}
}
