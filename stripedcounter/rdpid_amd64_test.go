//go:build linux && !purego

package stripedcounter

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func init() {
	addImpls = append(addImpls, addImpl{
		name: "assembly without RDPID",
		setup: func() func() {
			was := useRDPID
			useRDPID = false
			return func() { useRDPID = was }
		},
		add:  (*Set).Add,
		add2: (*Set).Add2,
	})
}

// TestEveryUpdateIsLocked reads the assembly: an addition to memory without the
// LOCK prefix loses one count in hundreds of millions, which no test run would
// show.
func TestEveryUpdateIsLocked(t *testing.T) {
	src, err := os.ReadFile("add_amd64.s")
	if err != nil {
		t.Fatal(err)
	}
	updates := map[string]int{}
	text, before := "", ""
	operand := regexp.MustCompile(`\(\w+\)(\(\w+\*\d\))?$`) // memory as the destination
	for _, line := range strings.Split(string(src), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "//") || strings.HasPrefix(line, "#") {
			continue
		}
		if name, ok := strings.CutPrefix(line, "TEXT ·"); ok {
			text, _, _ = strings.Cut(name, "(")
		}
		op, _, _ := strings.Cut(line, " ")
		// Everything that writes to memory other than the result of hasRDPID.
		writes := operand.MatchString(line) && !strings.HasSuffix(line, "(SB)") && !strings.HasSuffix(line, "(FP)") &&
			op != "TEXT" && op != "CMPQ" && op != "TESTQ"
		if writes {
			if before != "LOCK" {
				t.Errorf("%s: %q follows %q, not LOCK", text, line, before)
			}
			updates[text+" "+op]++
		}
		before = line
	}
	want := map[string]int{"add ADDQ": 1, "add2 ADDQ": 2, "add2 CMPXCHG16B": 1}
	if fmt.Sprint(updates) != fmt.Sprint(want) {
		t.Errorf("updates of memory: %v, want %v", updates, want)
	}
}

// TestAddGoesToTheRowOfTheCPU pins the thread to each CPU and looks for the
// count in its row.
func TestAddGoesToTheRowOfTheCPU(t *testing.T) {
	if !useRDPID {
		t.Skip("NOT TESTED: this machine has no usable RDPID")
	}
	runtime.LockOSThread() // and never unlock: the thread dies with its mask
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for cpu := range end(&all) {
		if !all.IsSet(cpu) {
			continue
		}
		var one unix.CPUSet
		one.Set(cpu)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			t.Skipf("NOT TESTED: this process may not choose its CPU: %v", err)
		}
		for _, n := range []int{2, 3, 17, 40} {
			s := newSet(stripes(), names(n))
			row := s.cells[cpu&int(s.mask)*s.perRow():]
			s.Add(n-1, 7)
			s.Add2(0, 3, 1, 4) // a pair
			s.Add2(1, 30, 0, 40)
			s.Add2(0, 100, n-1, 200)
			want := make([]int64, n)
			want[n-1] += 7 + 200
			want[0] += 3 + 40 + 100
			want[1] += 4 + 30
			for i := range n {
				if row[i] != want[i] {
					t.Errorf("CPU %d, counter %d of %d: %d in its row, want %d", cpu, i, n, row[i], want[i])
				}
			}
		}
	}
}

// TestAdd2Operands covers the ways to place two counters: the pair that is
// added to at once, the same turned around, the pair that is not aligned, one
// counter twice.
func TestAdd2Operands(t *testing.T) {
	for i := range 20 {
		for j := range 20 {
			s := NewSet(names(20)...)
			s.Add2(i, 1<<40+1, j, -1<<50)
			want := make([]int64, 20)
			want[i] += 1<<40 + 1
			want[j] += -1 << 50
			for k, v := range s.Snapshot(nil) {
				if v != want[k] {
					t.Fatalf("Add2(%d, %d): counter %d = %d, want %d", i, j, k, v, want[k])
				}
			}
		}
	}
}
