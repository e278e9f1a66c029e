// Package counters repeats HADOOP-5318: what statistics cost a writer, and how
// that grows with the number of writers.
package counters

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"

	"github.com/puzpuzpuz/xsync/v4"

	"github.com/blockpath/blockpath/bench/internal/lab"
	"github.com/blockpath/blockpath/stripedcounter"
)

// Experiment is the experiment.
var Experiment = lab.Experiment{
	Name:    "counters",
	Summary: "statistics under 1 to 8 writers and more (HADOOP-5318)",
	Run:     run,
}

// size is how long the experiment runs.
type size struct {
	warm, rounds int
	adds         int // per goroutine and sample
	appends      int // likewise
	loads        int // per sample
}

func run(ctx context.Context, quick bool, r *lab.Report) error {
	sz := size{warm: 3, rounds: 25, adds: 300000, appends: 100000, loads: 20000}
	if quick {
		sz = size{warm: 1, rounds: 9, adds: 100000, appends: 30000, loads: 5000}
	}
	return measure(ctx, sz, r)
}

func measure(ctx context.Context, sz size, r *lab.Report) error {
	for _, part := range []func(context.Context, size, *lab.Report) error{adds, appends, checksums, loads} {
		if err := part(ctx, sz, r); err != nil {
			return err
		}
	}
	allocations(r)
	targets(r)
	return nil
}

// goroutines returns the ticket's numbers of writers, and more up to four times
// the CPUs.
func goroutines() []int {
	gs := []int{1, 2, 4, 6, 8}
	for g := 16; g <= 4*runtime.NumCPU(); g *= 2 {
		gs = append(gs, g)
	}
	return gs
}

// A loop does something n times on behalf of goroutine id.
type loop func(id, n int)

// together runs g goroutines that begin at once, and returns when all are done.
func together(g, n int, f loop) {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for id := range g {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			ready.Done()
			<-start
			f(id, n)
		}()
	}
	ready.Wait()
	close(start)
	done.Wait()
}

// adds measures nothing but the counters.
func adds(ctx context.Context, sz size, r *lab.Report) error {
	shared, rival := new(padded), xsync.NewCounter()
	set, counter := stripedcounter.NewSet("n"), new(stripedcounter.Counter)
	designs := []struct {
		name string
		loop loop
		more int // times the adds of the others: a sample must not be too short
	}{
		{"atomic", func(_, n int) {
			for range n {
				shared.Add(1)
			}
		}, 1},
		{"xsync", func(_, n int) {
			for range n {
				rival.Add(1)
			}
		}, 1},
		{"add", func(_, n int) {
			for range n {
				set.Add(0, 1)
			}
		}, 1},
		{"counter", func(_, n int) {
			for range n {
				counter.Add(1)
			}
		}, 1},
		{"local", func(_, n int) {
			l := set.Local()
			defer l.Close()
			for range n {
				l.Add(0, 1)
			}
		}, 10},
	}
	gs := goroutines()
	var rows []*lab.Row
	byName := map[string]*lab.Row{}
	for _, g := range gs {
		for _, d := range designs {
			n := sz.adds * d.more
			row := &lab.Row{
				Name:     fmt.Sprintf("%s/%dg", d.name, g),
				Work:     float64(g * n),
				Parallel: min(g, runtime.GOMAXPROCS(0)),
				Do:       func() error { together(g, n, d.loop); return nil },
			}
			rows = append(rows, row)
			byName[row.Name] = row
		}
	}
	noise, err := lab.Alternate(ctx, sz.warm, sz.rounds, rows...)
	if err != nil {
		return err
	}
	r.Printf("bare adds; %v\n%-16s %14s %14s %10s %10s\n", noise, "", "CPU ns/add", "wall ns/add", "x atomic", "x 1g")
	for i, row := range rows {
		d, g := designs[i%len(designs)].name, gs[i/len(designs)]
		cpu, wall := lab.Summarize(lab.Times(row.CPU, 1e9)), lab.Summarize(lab.Times(row.Wall, 1e9))
		r.Metric(row.Name+"/cpu-ns", cpu.Median)
		r.Metric(row.Name+"/wall-ns", wall.Median)
		for _, rival := range []string{"atomic", "xsync"} {
			if rival != d {
				r.Ratio(row.Name+"/vs="+rival, lab.Quotient(row.CPU, byName[fmt.Sprintf("%s/%dg", rival, g)].CPU))
			}
		}
		if g > 1 {
			r.Ratio(row.Name+"/vs="+d+"/1g", lab.Quotient(row.CPU, byName[d+"/1g"].CPU))
		}
		r.Printf("%-16s %14s %14s %10.2f %10.2f\n", row.Name, cpu, wall,
			lab.Quotient(row.CPU, byName[fmt.Sprintf("atomic/%dg", g)].CPU), lab.Quotient(row.CPU, byName[d+"/1g"].CPU))
	}
	r.Printf("\n")
	return nil
}

// loadRows are the sizes of the sets that loads reads.
var loadRows = []int{8, 64}

// loads measures Load. The sets get rows from Locals until they have at least as
// many as the row's name says, and less than twice as many, if the machine does
// not have too many CPUs for that.
func loads(ctx context.Context, sz size, r *lab.Report) error {
	var rows []*lab.Row
	for _, n := range loadRows {
		set := stripedcounter.NewSet("n")
		for set.Rows() < n {
			set.Local().Add(0, 1)
		}
		if set.Rows() >= 2*n {
			continue
		}
		r.Metric(fmt.Sprintf("load/%drows/rows", n), float64(set.Rows()))
		rows = append(rows, &lab.Row{
			Name:     fmt.Sprintf("load/%drows", n),
			Work:     float64(sz.loads),
			Parallel: 1,
			Do: func() error {
				for range sz.loads {
					set.Load(0)
				}
				return nil
			},
		}, loadBesideWriter(fmt.Sprintf("load/%drows/writer", n), set, sz.loads))
	}
	noise, err := lab.Alternate(ctx, sz.warm, sz.rounds, rows...)
	if err != nil {
		return err
	}
	r.Printf("loads; %v\n%-22s %14s\n", noise, "", "wall ns/load")
	for _, row := range rows {
		wall := lab.Summarize(lab.Times(row.Wall, 1e9))
		r.Metric(row.Name+"/ns", wall.Median)
		r.Printf("%-22s %14s\n", row.Name, wall)
	}
	return nil
}

func loadBesideWriter(name string, set *stripedcounter.Set, n int) *lab.Row {
	var stop chan struct{}
	var done sync.WaitGroup
	return &lab.Row{
		Name: name,
		Work: float64(n),
		Prepare: func() error {
			stop = make(chan struct{})
			started := make(chan struct{})
			done.Add(1)
			go func() {
				defer done.Done()
				close(started)
				for {
					select {
					case <-stop:
						return
					default:
						for range 1000 {
							set.Add(0, 1)
						}
					}
				}
			}()
			<-started
			return nil
		},
		Do: func() error {
			var last int64
			for range n {
				v := set.Load(0)
				if v < last {
					return fmt.Errorf("a load went back from %d to %d", last, v)
				}
				last = v
			}
			return nil
		},
		Check: func() error { close(stop); done.Wait(); return nil },
	}
}

func allocations(r *lab.Report) {
	set, counter := newSet(), new(stripedcounter.Counter)
	l := set.Local()
	defer l.Close()
	most := 0.0
	for name, f := range map[string]func(){
		"add":     func() { set.Add(0, 1) },
		"add2":    func() { set.Add2(0, 1, 1, 1) },
		"local":   func() { l.Add(0, 1) },
		"counter": func() { counter.Add(1) },
		"load":    func() { set.Load(0) },
	} {
		n := testing.AllocsPerRun(1000, f)
		r.Metric(name+"/allocs/op", n)
		most = math.Max(most, n)
	}
	r.Metric("allocs/op", most)
}

func targets(r *lab.Report) {
	for _, t := range []struct{ name, limit string }{
		{"add/8g/vs=atomic", "<=0.45"},
		{"add/8g/vs=xsync", "<=0.25"},
		{"add/1g/vs=atomic", "<=2.2"},
		{"add/8g/vs=add/1g", "<=1.35"},
		{"append/8g/add2/vs=none", "<=1.7"},
		{"append/8g/local/vs=none", "<=1.25"},
		{"append/8g/flush/vs=none", "<=1.05"},
		{"load/8rows/ns", "<=20"},
		{"load/64rows/ns", "<=200"},
		{"allocs/op", "<=0"},
	} {
		v, ok := r.Ratios[t.name]
		if !ok {
			v, ok = r.Metrics[t.name]
		}
		if ok {
			r.Target(t.name, t.limit, v)
		} else {
			r.Skip(t.name, t.limit, "the sets of this machine have more rows")
		}
	}
}
