package stripedcounter

import (
	"fmt"
	"sort"
	"testing"
	"unsafe"
)

// TestRowsShareNoLine checks for sets of every shape that rows, those of other
// sets and those of Locals included, have lines of their own. False sharing
// would cost a factor, and no other test would notice.
func TestRowsShareNoLine(t *testing.T) {
	type row struct {
		name       string
		begin, end uintptr
	}
	var rows []row
	add := func(name string, cells []int64) {
		begin := uintptr(unsafe.Pointer(unsafe.SliceData(cells)))
		rows = append(rows, row{name, begin, begin + uintptr(len(cells))*cellSize})
	}
	var keep []*Set
	for _, n := range []int{1, 2, 15, 16, 17, 32, 33} {
		for _, stripes := range []int{1, 2, 8, 64} {
			s := newSet(stripes, names(n))
			keep = append(keep, s)
			per := s.perRow()
			if got := len(s.cells) / per; got != stripes {
				t.Fatalf("%d counters: %d rows, want %d", n, got, stripes)
			}
			for r := range stripes {
				add(fmt.Sprintf("%d counters, row %d of %d", n, r, stripes), s.cells[r*per:][:n])
			}
			for i := range 9 {
				add(fmt.Sprintf("%d counters, local %d", n, i), s.Local().row)
			}
			add(fmt.Sprintf("%d counters, marks", n), s.locals.drained)
			add(fmt.Sprintf("%d counters, header", n), unsafe.Slice((*int64)(unsafe.Pointer(s)), unsafe.Sizeof(*s)/cellSize))
		}
	}
	sort.Slice(rows, func(i, j int) bool { return rows[i].begin < rows[j].begin })
	for i, r := range rows[1:] {
		if before := rows[i]; (before.end-1)/lineSize == r.begin/lineSize && !isHeader(before.name, r.name) {
			t.Errorf("%s [%#x,%#x) and %s [%#x,%#x) share a line", before.name, before.begin, before.end, r.name, r.begin, r.end)
		}
	}
	_ = keep
}

// isHeader reports whether both are headers: nobody writes to them.
func isHeader(a, b string) bool {
	var n, m int
	_, errA := fmt.Sscanf(a, "%d counters, header", &n)
	_, errB := fmt.Sscanf(b, "%d counters, header", &m)
	return errA == nil && errB == nil
}

// TestBelow checks that Add reaches every row, and in it the counter's
// cell, whatever number chooses the row.
func TestBelow(t *testing.T) {
	for _, n := range []int{1, 16, 17, 40} {
		s := newSet(8, names(n))
		for i := range n {
			for choice := range uintptr(20) {
				want := &s.cells[int(choice%8)*s.perRow()+i]
				if got := below(&s.row0[i], choice&s.mask*s.stride); got != want {
					t.Fatalf("%d counters, counter %d, choice %d: cell %p, want %p", n, i, choice, got, want)
				}
			}
		}
	}
}

func TestRowCount(t *testing.T) {
	for _, c := range []struct{ cpus, rows int }{
		{1, 1}, {2, 2}, {3, 4}, {4, 4}, {5, 8}, {8, 8}, {9, 16}, {63, 64}, {64, 64}, {65, 64}, {96, 64}, {1024, 64},
	} {
		if got := rowCount(c.cpus, false); got != c.rows {
			t.Errorf("%d CPUs: %d rows, want %d", c.cpus, got, c.rows)
		}
		if got := rowCount(c.cpus, true); got != 4*c.rows {
			t.Errorf("%d CPUs, rows by goroutine: %d, want %d", c.cpus, got, 4*c.rows)
		}
	}
	if got := cpus(); got < 1 {
		t.Errorf("%d CPUs", got)
	}
}

// TestStackHashSpreads lets many goroutines choose a row: they must not all
// meet in a few.
func TestStackHashSpreads(t *testing.T) {
	const rows, goroutines = 64, 512
	chosen := make(chan uintptr)
	release := make(chan struct{})
	for range goroutines {
		go func() {
			chosen <- stackHash() % rows
			<-release // keep the stack, or the next goroutine gets it
		}()
	}
	var count [rows]int
	for range goroutines {
		count[<-chosen]++
	}
	close(release)
	used, most := 0, 0
	for _, n := range count {
		if n > 0 {
			used++
		}
		most = max(most, n)
	}
	// 512 thrown at random into 64 leave no row empty and put 20 into the
	// fullest, nearly always. This asks for far less.
	if used < rows/2 || most > goroutines/8 {
		t.Errorf("%d goroutines chose %d of %d rows, %d of them one row", goroutines, used, rows, most)
	}
}
