package stripedcounter

import (
	"math/bits"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func TestHighestCPUOfSet(t *testing.T) {
	for _, c := range []struct {
		cpus []int
		end  int
	}{
		{nil, 0},
		{[]int{0}, 1},
		{[]int{bits.UintSize - 1}, bits.UintSize},
		{[]int{bits.UintSize}, bits.UintSize + 1},
		{[]int{3, 17, 64, 130}, 131}, // holes
		{[]int{1023}, 1024},
	} {
		var set unix.CPUSet
		for _, cpu := range c.cpus {
			set.Set(cpu)
		}
		if got := end(&set); got != c.end {
			t.Errorf("CPUs %v: end %d, want %d", c.cpus, got, c.end)
		}
	}
}

// TestSparseCPUs counts on each CPU alone, in sets made while only that CPU was
// allowed: rows must follow the CPU numbers, not their count, and adds from
// CPUs that the set does not know must be right too.
func TestSparseCPUs(t *testing.T) {
	runtime.LockOSThread() // and never unlock: the thread dies with its mask
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	var sets []*Set
	for cpu := range end(&all) {
		if !all.IsSet(cpu) {
			continue
		}
		var one unix.CPUSet
		one.Set(cpu)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			t.Skipf("NOT TESTED: this process may not choose its CPU: %v", err)
		}
		if got := cpus(); got != cpu+1 {
			t.Errorf("on CPU %d alone: %d CPUs, want %d", cpu, got, cpu+1)
		}
		s := NewSet("a", "b")
		if want := rowCount(cpu+1, goroutineRows()); s.Rows() != want {
			t.Errorf("on CPU %d alone: %d rows, want %d", cpu, s.Rows(), want)
		}
		sets = append(sets, s)
		for _, s := range sets {
			s.Add2(0, 1, 1, 2)
		}
		for _, impl := range addImpls {
			for _, rows := range []int{1, 2, 64} {
				s := newSet(rows, []string{"a", "b"})
				impl.add(s, 0, 5)
				impl.add2(s, 0, 1, 1, 2)
				if got := s.Snapshot(nil); got[0] != 6 || got[1] != 2 {
					t.Errorf("CPU %d, %d rows, %s: %v, want [6 2]", cpu, rows, impl.name, got)
				}
			}
		}
	}
	for i, s := range sets {
		n := int64(len(sets) - i)
		if got := s.Snapshot(nil); got[0] != n || got[1] != 2*n {
			t.Errorf("set %d: %v, want [%d %d]", i, got, n, 2*n)
		}
	}
}
