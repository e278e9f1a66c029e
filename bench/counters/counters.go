// Package counters repeats HADOOP-5318: what statistics cost a writer, and how
// that grows with the number of writers.
package counters

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v4"

	"github.com/blockpath/blockpath/bench/internal/lab"
	"github.com/blockpath/blockpath/stripedcounter"
)

// Experiment is the experiment.
var Experiment = lab.Experiment{
	Name:    "counters",
	Summary: "statistics counters under 1 to 8 writers (HADOOP-5318)",
	Run:     run,
}

// size is how long the experiment runs.
type size struct {
	warm, rounds int
	adds         int // per goroutine and sample
}

func run(ctx context.Context, quick bool, r *lab.Report) error {
	sz := size{warm: 2, rounds: 31, adds: 300000}
	if quick {
		sz.rounds, sz.adds = 9, 100000
	}
	return bareAdds(ctx, sz, r)
}

// loop adds n times on behalf of goroutine id.
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

// padded keeps an atomic away from other memory.
type padded struct {
	_ [128]byte
	atomic.Int64
	_ [128]byte
}

func bareAdds(ctx context.Context, sz size, r *lab.Report) error {
	atomics, rival := new(padded), xsync.NewCounter()
	set, counter := stripedcounter.NewSet("n"), new(stripedcounter.Counter)
	designs := []struct {
		name string
		loop loop
	}{
		{"atomic", func(_, n int) {
			for range n {
				atomics.Add(1)
			}
		}},
		{"xsync", func(_, n int) {
			for range n {
				rival.Add(1)
			}
		}},
		{"add", func(_, n int) {
			for range n {
				set.Add(0, 1)
			}
		}},
		{"counter", func(_, n int) {
			for range n {
				counter.Add(1)
			}
		}},
		{"local", func(_, n int) {
			l := set.Local()
			defer l.Close()
			for range n {
				l.Add(0, 1)
			}
		}},
	}
	for _, g := range []int{1, 2, 4, 8} {
		var rows []*lab.Row
		for _, d := range designs {
			rows = append(rows, &lab.Row{
				Name: fmt.Sprintf("%s/%dg", d.name, g),
				Work: float64(g * sz.adds),
				Do:   func() error { together(g, sz.adds, d.loop); return nil },
			})
		}
		if err := lab.Alternate(ctx, sz.warm, sz.rounds, rows...); err != nil {
			return err
		}
		for _, row := range rows {
			busy := float64(min(g, runtime.GOMAXPROCS(0)))
			ns := lab.Summarize(lab.Times(row.Wall, 1e9*busy))
			r.Metric(row.Name+"/ns", ns.Median)
			r.Ratio(row.Name+"/vs=atomic", lab.Quotient(row.Wall, rows[0].Wall))
			r.Printf("%-20s %14s ns  cpu %14s ns  x%.2f\n", row.Name, ns, lab.Summarize(lab.Times(row.CPU, 1e9)), r.Ratios[row.Name+"/vs=atomic"])
		}
	}
	return nil
}
