package stripedcounter

import (
	"encoding/json"
	"expvar"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
)

var (
	_ expvar.Var = (*Set)(nil)
	_ expvar.Var = (*Counter)(nil)
	_ expvar.Var = Statistics{}
)

// addImpl adds like Set.Add, through one of the ways to choose a row.
type addImpl struct {
	name  string
	setup func() (restore func()) // nil: nothing to set up
	add   func(s *Set, i int, d int64)
	add2  func(s *Set, i int, d int64, j int, e int64)
}

// addImpls are the dispatched way, the portable one, and what the architecture
// has besides.
var addImpls = []addImpl{
	{name: "dispatched", add: (*Set).Add, add2: (*Set).Add2},
	{
		name: "generic",
		add:  func(s *Set, i int, d int64) { addGeneric(&s.row0[i], s.mask, s.stride, d) },
		add2: func(s *Set, i int, d int64, j int, e int64) {
			add2Generic(&s.row0[i], &s.row0[j], s.mask, s.stride, d, e)
		},
	},
}

// use makes impl the one in use until the test ends.
func (impl addImpl) use(t *testing.T) {
	if impl.setup != nil {
		t.Cleanup(impl.setup())
	}
}

// names returns n counter names.
func names(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprint("c", i)
	}
	return list
}

func TestSetEveryCounterAlone(t *testing.T) {
	// 15..17, 31..33: around the ends of a row's lines.
	for _, impl := range addImpls {
		t.Run(impl.name, func(t *testing.T) {
			impl.use(t)
			everyCounterAlone(t, impl)
		})
	}
}

func everyCounterAlone(t *testing.T, impl addImpl) {
	for _, n := range []int{1, 2, 15, 16, 17, 31, 32, 33, 100} {
		for _, rows := range []int{1, 2, 64} {
			s := newSet(rows, names(n))
			want := make([]int64, n)
			for i := range n {
				impl.add(s, i, int64(i+1))
				impl.add2(s, i, 1000, (i+1)%n, -5)
				want[i] += int64(i+1) + 1000
				want[(i+1)%n] -= 5
			}
			if got := s.Snapshot(nil); !slices.Equal(got, want) {
				t.Fatalf("%d counters, %d rows: %v, want %v", n, rows, got, want)
			}
			for i := range n {
				if got := s.Load(i); got != want[i] {
					t.Fatalf("%d counters, %d rows: Load(%d) = %d, want %d", n, rows, i, got, want[i])
				}
			}
		}
	}
}

func TestSetWraps(t *testing.T) {
	s := NewSet("n")
	s.Add(0, math.MaxInt64)
	s.Add(0, 1)
	if got := s.Load(0); got != math.MinInt64 {
		t.Errorf("MaxInt64 + 1 = %d", got)
	}
}

func TestSetNoCounters(t *testing.T) {
	s := NewSet()
	l := s.Local()
	defer l.Close()
	if s.Len() != 0 || len(s.Names()) != 0 || len(s.Snapshot(nil)) != 0 || len(s.Drain(nil)) != 0 || s.String() != "{}" {
		t.Error("an empty set is not empty")
	}
}

func TestSetNames(t *testing.T) {
	s := NewSet("a", "b")
	s.Names()[0] = "changed"
	if got := s.Names(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("Names() = %q after the caller changed its copy", got)
	}
	for _, bad := range [][]string{{""}, {"a", "a"}, {`"`}, {`\`}, {"\n"}, {"é"}, {"\x7f"}} {
		if !panics(func() { NewSet(bad...) }) {
			t.Errorf("NewSet(%q) did not panic", bad)
		}
	}
}

func TestSetIndexOutOfRangePanics(t *testing.T) {
	s := NewSet("a", "b")
	l := s.Local()
	defer l.Close()
	for _, i := range []int{-1, 2, 16, math.MaxInt, math.MinInt} {
		for name, f := range map[string]func(){
			"Add":        func() { s.Add(i, 1) },
			"Add2 first": func() { s.Add2(i, 1, 0, 1) },
			"Add2 other": func() { s.Add2(0, 1, i, 1) },
			"Load":       func() { s.Load(i) },
			"Local.Add":  func() { l.Add(i, 1) },
		} {
			if !panics(f) {
				t.Errorf("%s with index %d did not panic", name, i)
			}
		}
	}
	if got := s.Snapshot(nil); !slices.Equal(got, []int64{0, 0}) {
		t.Errorf("counted %v by calls that panicked", got)
	}
}

func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return
}

func TestSnapshotAndDrainAppend(t *testing.T) {
	s := NewSet("a", "b")
	s.Add2(0, 3, 1, 4)
	if got := s.Snapshot([]int64{7}); !slices.Equal(got, []int64{7, 3, 4}) {
		t.Errorf("Snapshot appended %v", got)
	}
	if got := s.Drain([]int64{7}); !slices.Equal(got, []int64{7, 3, 4}) {
		t.Errorf("Drain appended %v", got)
	}
	if got := s.Drain(nil); !slices.Equal(got, []int64{0, 0}) {
		t.Errorf("the second Drain returned %v", got)
	}
}

func TestSetString(t *testing.T) {
	s := NewSet("bytes read", "x/y:z")
	s.Add2(0, -3, 1, 4)
	if got, want := s.String(), `{"bytes read": -3, "x/y:z": 4}`; got != want {
		t.Errorf("String() = %s, want %s", got, want)
	}
	var m map[string]int64
	if err := json.Unmarshal([]byte(s.String()), &m); err != nil || m["bytes read"] != -3 {
		t.Errorf("String() is not the JSON it should be: %v, %v", m, err)
	}
}

func TestAllStops(t *testing.T) {
	s := NewSet("a", "b", "c")
	s.Add(1, 5)
	var got []string
	for name, v := range s.All() {
		got = append(got, fmt.Sprint(name, v))
		if name == "b" {
			break
		}
	}
	if !slices.Equal(got, []string{"a0", "b5"}) {
		t.Errorf("iterated over %q", got)
	}
}

func TestCounter(t *testing.T) {
	var c Counter
	if c.Load() != 0 || c.Drain() != 0 || c.String() != "0" {
		t.Error("the zero value is not zero")
	}
	c.Add(5)
	c.Add(-7)
	if c.Load() != -2 || c.String() != "-2" {
		t.Errorf("5 - 7 = %d, %s", c.Load(), c.String())
	}
	if got := c.Drain(); got != -2 || c.Load() != 0 {
		t.Errorf("drained %d, left %d", got, c.Load())
	}
}

// TestCounterFirstAdds lets many goroutines meet an empty Counter at once.
func TestCounterFirstAdds(t *testing.T) {
	for range 200 {
		var c Counter
		var wg sync.WaitGroup
		for range 8 {
			wg.Add(1)
			go func() { defer wg.Done(); c.Add(1) }()
		}
		wg.Wait()
		if got := c.Load(); got != 8 {
			t.Fatalf("8 first adds count %d", got)
		}
	}
}

// TestExactTotals checks that no count is lost or doubled while adds through all tiers,
// loads and drains run at once, and that loads never go back while nobody
// drains.
func TestExactTotals(t *testing.T) {
	adds := 8000
	if testing.Short() {
		adds = 2000
	}
	for _, procs := range []int{1, 2, 8, 32} {
		for _, impl := range addImpls {
			for _, drain := range []bool{false, true} {
				t.Run(fmt.Sprintf("procs=%d/%s/drain=%v", procs, impl.name, drain), func(t *testing.T) {
					impl.use(t)
					defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
					exactTotals(t, impl, adds, drain)
				})
			}
		}
	}
}

func exactTotals(t *testing.T, impl addImpl, adds int, drain bool) {
	const writers = 8
	s := newSet(stripes(), []string{"ops", "bytes", "up", "down"})
	var counter Counter
	var write, read sync.WaitGroup
	for w := range writers {
		write.Add(1)
		go func() {
			defer write.Done()
			l := s.Local()
			for i := range adds {
				switch i % 3 {
				case 0:
					impl.add2(s, 0, 1, 1, 512)
				case 1:
					impl.add(s, 0, 1)
					impl.add(s, 1, 512)
				case 2:
					l.Add2(0, 1, 1, 512)
				}
				impl.add2(s, 2, int64(w), 3, -int64(w))
				counter.Add(1)
				if i%64 == 63 {
					l.Close()
					l = s.Local()
				}
				if i%1024 == 0 {
					runtime.Gosched()
				}
			}
			l.Close()
		}()
	}
	stop := make(chan struct{})
	for range 2 {
		read.Add(1)
		go func() {
			defer read.Done()
			var last, lastBytes int64
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if v := counter.Load(); v < last {
					t.Errorf("the counter went from %d to %d", last, v)
					return
				} else {
					last = v
				}
				if v := s.Load(1); !drain && v < lastBytes {
					t.Errorf("bytes went from %d to %d", lastBytes, v)
					return
				} else {
					lastBytes = v
				}
				runtime.Gosched()
			}
		}()
	}
	drained := make([]int64, 4)
	if drain {
		read.Add(1)
		go func() {
			defer read.Done()
			var buf [4]int64
			for {
				for i, v := range s.Drain(buf[:0]) {
					drained[i] += v
				}
				select {
				case <-stop:
					return
				default:
					runtime.Gosched()
				}
			}
		}()
	}
	write.Wait()
	close(stop)
	read.Wait()
	for i, v := range s.Snapshot(nil) {
		drained[i] += v
	}
	ops := int64(writers * adds)
	ups := int64(adds * writers * (writers - 1) / 2)
	if want := []int64{ops, 512 * ops, ups, -ups}; !slices.Equal(drained, want) {
		t.Errorf("counted %v, want %v", drained, want)
	}
	if got := counter.Load(); got != ops {
		t.Errorf("the counter has %d, want %d", got, ops)
	}
}

func TestAddsAllocateNothing(t *testing.T) {
	s := NewSet(names(20)...)
	l := s.Local()
	defer l.Close()
	var c Counter
	c.Add(1)
	buf := make([]int64, 0, s.Len())
	for name, f := range map[string]func(){
		"Set.Add":      func() { s.Add(3, 1) },
		"Set.Add2":     func() { s.Add2(3, 1, 19, 1) },
		"Local.Add":    func() { l.Add(3, 1) },
		"Local.Add2":   func() { l.Add2(3, 1, 19, 1) },
		"Counter.Add":  func() { c.Add(1) },
		"Set.Load":     func() { s.Load(3) },
		"Counter.Load": func() { c.Load() },
		"Set.Snapshot": func() { s.Snapshot(buf) },
		"Set.Drain":    func() { s.Drain(buf) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
