package fuzz

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/blockpath/blockpath/stripedcounter"
)

// FuzzStripedCounter runs a program of operations on a Set, its Locals and a
// Counter, and compares every value that it reads with a model of maps. Then it
// runs the program's additions on several goroutines at once, with a drain
// beside them, and compares the totals.
//
// The program's first byte gives the number of counters. Each operation is one
// byte of what and as many bytes of arguments as it needs; missing bytes are
// zero.
func FuzzStripedCounter(f *testing.F) {
	f.Add([]byte{1, 0, 0, 5, 3, 0, 6})
	f.Add([]byte{15, 0, 14, 200, 1, 14, 255, 0, 3, 4, 5, 6, 7})
	f.Add([]byte{16, 1, 0, 9, 1, 9, 1, 15, 9, 16, 9, 1, 16, 9, 15, 9, 6, 3, 16})
	f.Add([]byte{39, 7, 7, 8, 0, 39, 77, 9, 1, 2, 3, 4, 5, 10, 0, 6, 7, 8, 0, 1, 2, 5, 6})
	f.Add([]byte{9, 2, 127, 2, 128, 11, 12, 2, 1, 11})
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) > 4096 {
			return
		}
		adds, names := interpret(t, program)
		atOnce(t, adds, names)
	})
}

// An addition is one call of Add2, or of Add when both counters are the same.
type addition struct {
	i, j int
	d, e int64
}

func interpret(t *testing.T, program []byte) (adds []addition, names []string) {
	next := func() (b byte) {
		if len(program) > 0 {
			b, program = program[0], program[1:]
		}
		return b
	}
	for i := range int(next())%40 + 1 {
		names = append(names, fmt.Sprint("c", i))
	}
	counter := func() int { return int(next()) % len(names) }
	// amount spreads a byte over all magnitudes and both signs.
	amount := func() int64 { b := next(); return int64(int8(b)) << (b % 57) }

	set := stripedcounter.NewSet(names...)
	model := map[string]int64{}
	var single stripedcounter.Counter
	var singleModel int64
	var locals []*stripedcounter.Local
	check := func(what string, name string, got int64) {
		t.Helper()
		if got != model[name] {
			t.Fatalf("%s: %s = %d, want %d", what, name, got, model[name])
		}
	}
	for len(program) > 0 {
		switch op := next() % 13; op {
		case 0, 8:
			a := addition{i: counter(), d: amount()}
			a.j = a.i
			if op == 0 {
				set.Add(a.i, a.d)
			} else if len(locals) > 0 {
				locals[int(next())%len(locals)].Add(a.i, a.d)
			} else {
				continue
			}
			model[names[a.i]] += a.d
			adds = append(adds, a)
		case 1, 9:
			a := addition{i: counter(), d: amount(), j: counter(), e: amount()}
			if op == 1 {
				set.Add2(a.i, a.d, a.j, a.e)
			} else if len(locals) > 0 {
				locals[int(next())%len(locals)].Add2(a.i, a.d, a.j, a.e)
			} else {
				continue
			}
			model[names[a.i]] += a.d
			model[names[a.j]] += a.e
			if a.i == a.j {
				a.d, a.e = a.d+a.e, 0
			}
			adds = append(adds, a)
		case 2:
			d := amount()
			single.Add(d)
			singleModel += d
		case 3:
			i := counter()
			check("Load", names[i], set.Load(i))
		case 4:
			for i, v := range set.Snapshot(nil) {
				check("Snapshot", names[i], v)
			}
		case 5:
			for i, v := range set.Drain(nil) {
				check("Drain", names[i], v)
			}
			clear(model)
		case 6:
			stop := counter()
			n := 0
			for name, v := range set.All() {
				check("All", name, v)
				if n++; n > stop {
					break
				}
			}
		case 7:
			if len(locals) < 20 {
				locals = append(locals, set.Local())
			}
		case 10:
			if len(locals) > 0 {
				k := int(next()) % len(locals)
				locals[k].Close()
				locals[k].Close()
				locals = append(locals[:k], locals[k+1:]...)
			}
		case 11:
			if got := single.Load(); got != singleModel || single.String() != fmt.Sprint(got) {
				t.Fatalf("Counter: %d and %s, want %d", got, single.String(), singleModel)
			}
		case 12:
			if got := single.Drain(); got != singleModel {
				t.Fatalf("Counter.Drain: %d, want %d", got, singleModel)
			}
			singleModel = 0
		}
	}
	var decoded map[string]int64
	if err := json.Unmarshal([]byte(set.String()), &decoded); err != nil || len(decoded) != len(names) {
		t.Fatalf("String: %s: %v", set, err)
	}
	for name, v := range decoded {
		check("String", name, v)
	}
	for _, l := range locals {
		l.Close()
	}
	return adds, names
}

func atOnce(t *testing.T, adds []addition, names []string) {
	want := make([]int64, len(names))
	for _, a := range adds {
		want[a.i] += a.d
		want[a.j] += a.e
	}
	set := stripedcounter.NewSet(names...)
	var done sync.WaitGroup
	for part := range 3 {
		done.Add(1)
		go func() {
			defer done.Done()
			l := set.Local()
			defer l.Close()
			for k := part; k < len(adds); k += 3 {
				if a := adds[k]; k%2 == 0 {
					l.Add2(a.i, a.d, a.j, a.e)
				} else {
					set.Add2(a.i, a.d, a.j, a.e)
				}
			}
		}()
	}
	got := set.Drain(nil)
	done.Wait()
	for i, v := range set.Drain(nil) {
		got[i] += v
	}
	for i, name := range names {
		if got[i] != want[i] {
			t.Fatalf("at once: %s = %d, want %d", name, got[i], want[i])
		}
	}
	if left := set.Snapshot(nil); len(left) != len(names) || left[0] != 0 {
		t.Fatalf("the last drain left %v", left)
	}
}
