package stripedcounter

import (
	"runtime"
	"testing"
	"time"
)

func TestLocal(t *testing.T) {
	s := NewSet("a", "b")
	a, b := s.Local(), s.Local()
	a.Add(0, 1)
	b.Add2(0, 10, 1, 20)
	s.Add(1, 300)
	check := func(when string, wantA, wantB int64) {
		t.Helper()
		if s.Load(0) != wantA || s.Load(1) != wantB {
			t.Errorf("%s: %d, %d, want %d, %d", when, s.Load(0), s.Load(1), wantA, wantB)
		}
	}
	check("open", 11, 320)
	a.Close()
	a.Close()
	check("closed", 11, 320)
	if !panics(func() { a.Add(0, 100) }) || !panics(func() { a.Add2(0, 100, 1, 100) }) {
		t.Error("a closed Local did not panic")
	}
	c := s.Local()
	c.Add(0, 1000)
	check("row in its second use", 1011, 320)
	b.Close()
	c.Close()
}

// TestLocalDrain drains between the adds of a Local: each drain must return
// what was added since the one before, although the row is not cleared.
func TestLocalDrain(t *testing.T) {
	s := NewSet("a", "b")
	l := s.Local()
	for round := range int64(5) {
		l.Add2(0, round, 1, -1)
		s.Add(0, 100)
		if s.Load(0) != 100+round || s.Load(1) != -1 {
			t.Errorf("round %d: loaded %v", round, s.Snapshot(nil))
		}
		if got := s.Drain(nil); got[0] != 100+round || got[1] != -1 {
			t.Errorf("round %d: drained %v", round, got)
		}
		if round == 2 {
			l.Close()
			l = s.Local()
		}
	}
	l.Close()
	if s.Load(0) != 0 || s.Load(1) != 0 {
		t.Errorf("left %v", s.Snapshot(nil))
	}
}

// TestLocalRowsAreRecycled opens and closes many Locals: the rows must be as
// many as were open at once.
func TestLocalRowsAreRecycled(t *testing.T) {
	s := NewSet(names(20)...)
	for range 1000 {
		var open [9]*Local
		for i := range open {
			open[i] = s.Local()
			open[i].Add(19, 1)
		}
		for _, l := range open {
			l.Close()
		}
	}
	if got := localRowsOf(s); got != 16 {
		t.Errorf("9 Locals at once made %d rows, want 16", got)
	}
	if got := s.Load(19); got != 9000 {
		t.Errorf("counted %d, want 9000", got)
	}
}

// TestLocalCloseTwice checks that a second Close does not give away the row
// once more.
func TestLocalCloseTwice(t *testing.T) {
	s := NewSet("a")
	l := s.Local()
	l.Close()
	l.Close()
	seen := map[*int64]bool{}
	for range 8 {
		row := &s.Local().row[0]
		if seen[row] {
			t.Fatal("two Locals own one row")
		}
		seen[row] = true
	}
}

func TestLocalForgottenIsRecycled(t *testing.T) {
	s := NewSet("a")
	for range 1000 {
		s.Local().Add(0, 1)
	}
	deadline := time.Now().Add(5 * time.Second)
	rows := localRowsOf(s)
	for freeRowsOf(s) < rows && time.Now().Before(deadline) {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	if free := freeRowsOf(s); free != rows {
		t.Errorf("%d of %d rows came back from Locals that are garbage", free, rows)
	}
	if got := s.Load(0); got != 1000 {
		t.Errorf("counted %d, want 1000", got)
	}
}

func localRowsOf(s *Set) (rows int) {
	for _, slab := range s.locals.slabs() {
		rows += len(slab) / s.perRow()
	}
	return rows
}

func freeRowsOf(s *Set) int {
	s.locals.mu.Lock()
	defer s.locals.mu.Unlock()
	return len(s.locals.free)
}
