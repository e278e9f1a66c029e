package lab

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"golang.org/x/perf/benchmath"
)

// A Row is one of the things that are compared. Sampling fills in the rest.
type Row struct {
	Name string
	// Work is what one Do performs: the number of operations or of bytes.
	// Samples are seconds per unit of work.
	Work float64
	// Parallel, if not zero, is the number of CPUs that Do keeps busy. A sample
	// that got less than nine tenths of them was disturbed by other processes,
	// and Alternate takes it again.
	Parallel int
	// Prepare, if not nil, runs before every Do, outside the clock.
	Prepare func() error
	Do      func() error
	// Check, if not nil, runs after every Do, outside the clock.
	Check func() error

	Wall []float64 // seconds per unit of work, one per accepted sample
	CPU  []float64 // CPU seconds of this process per unit of work, likewise
}

// Noise says how many samples were taken and how many were undisturbed.
type Noise struct {
	Taken, Accepted int
}

// String returns for instance "300 of 310 samples undisturbed".
func (n Noise) String() string {
	return fmt.Sprintf("%d of %d samples undisturbed", n.Accepted, n.Taken)
}

// Alternate runs every row once per round, so that drift of the machine meets
// all of them alike; each round begins with another row. The first warm rounds
// are not recorded. Disturbed samples are taken again after a pause, in all half
// as often as there are rows and rounds; of several tries the least disturbed
// one is recorded.
// It stops early, without an error, when ctx ends after at least three recorded
// rounds.
func Alternate(ctx context.Context, warm, rounds int, rows ...*Row) (Noise, error) {
	var noise Noise
	again := rounds * len(rows) / 2
	for round := range warm + rounds {
		for i := range rows {
			row := rows[(round+i)%len(rows)]
			var wall, cpu, best float64
			for best < 0.9 {
				w, c, err := row.sample()
				if err != nil {
					return noise, fmt.Errorf("%s: %w", row.Name, err)
				}
				got := 1.0
				if row.Parallel > 0 {
					got = c / (w * float64(row.Parallel))
				}
				if got > best {
					wall, cpu, best = w, c, got
				}
				if round < warm {
					break
				}
				noise.Taken++
				if got < 0.9 {
					if again == 0 {
						break
					}
					again--
					time.Sleep(20 * time.Millisecond)
				}
			}
			if round >= warm {
				row.Wall = append(row.Wall, wall/row.Work)
				row.CPU = append(row.CPU, cpu/row.Work)
				if best >= 0.9 {
					noise.Accepted++
				}
			}
		}
		if err := ctx.Err(); err != nil {
			if round >= warm+2 {
				return noise, nil
			}
			return noise, err
		}
	}
	return noise, nil
}

// AlternateWithin is [Alternate] with one warm round, after which it chooses as
// many rounds as the budget has room for, at least 3 and at most the given number.
func AlternateWithin(ctx context.Context, budget time.Duration, rounds int, rows ...*Row) (Noise, error) {
	start := time.Now()
	if noise, err := Alternate(ctx, 1, 0, rows...); err != nil {
		return noise, err
	}
	one := time.Since(start)
	return Alternate(ctx, 0, max(min(rounds, int(budget/one)-1), 3), rows...)
}

func (row *Row) sample() (wall, cpu float64, err error) {
	if row.Prepare != nil {
		if err := row.Prepare(); err != nil {
			return 0, 0, err
		}
	}
	c, t := CPUTime(), time.Now()
	err = row.Do()
	wall, cpu = time.Since(t).Seconds(), (CPUTime() - c).Seconds()
	if err == nil && row.Check != nil {
		err = row.Check()
	}
	return wall, cpu, err
}

// Calibrated samples rows of one goroutine whose Do takes 50 to 200
// microseconds. On a shared machine a neighbour on the sibling thread or a
// change of the clock rate falsifies such samples by up to a factor of two.
// Each sample is therefore bracketed by a calibration loop of about a
// microsecond, and is accepted only if both calibrations came within 6 % of the
// fastest one seen. It ends when every row has want accepted samples, or when
// the budget is spent. Wall is filled in, CPU is not: the goroutine never waits.
//
// A row that has fewer than three accepted samples then gets all its samples,
// which Noise shows.
func Calibrated(ctx context.Context, budget time.Duration, want int, rows ...*Row) (Noise, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	runtime.GC() // no collector beside the samples

	best := math.Inf(1)
	for range 2000 {
		best = min(best, calibrate())
	}
	type sample struct{ wall, calibration float64 }
	taken := make([][]sample, len(rows))
	accepted := func(i int) (walls []float64) {
		for _, s := range taken[i] {
			if s.calibration <= best*1.06 {
				walls = append(walls, s.wall)
			}
		}
		return walls
	}
	var noise Noise
	end := time.Now().Add(budget)
	for round := 0; ; round++ {
		for i, row := range rows {
			if row.Prepare != nil {
				if err := row.Prepare(); err != nil {
					return noise, fmt.Errorf("%s: %w", row.Name, err)
				}
			}
			before := calibrate()
			t := time.Now()
			err := row.Do()
			wall := time.Since(t).Seconds()
			after := calibrate()
			if err == nil && row.Check != nil {
				err = row.Check()
			}
			if err != nil {
				return noise, fmt.Errorf("%s: %w", row.Name, err)
			}
			best = min(best, before, after)
			taken[i] = append(taken[i], sample{wall / row.Work, max(before, after)})
			noise.Taken++
		}
		if round%64 != 63 {
			continue
		}
		enough := true
		for i := range rows {
			enough = enough && len(accepted(i)) >= want
		}
		if enough || time.Now().After(end) {
			break
		}
		if err := ctx.Err(); err != nil {
			return noise, err
		}
	}
	for i, row := range rows {
		row.Wall = accepted(i)
		noise.Accepted += len(row.Wall)
		if len(row.Wall) < 3 {
			row.Wall = row.Wall[:0]
			for _, s := range taken[i] {
				row.Wall = append(row.Wall, s.wall)
			}
		}
	}
	return noise, nil
}

var calibrationSink uint64

// calibrate returns the seconds that a fixed loop of six independent integer
// and floating-point chains takes, which keeps the execution ports busy enough
// to feel a neighbour.
func calibrate() float64 {
	a, b, c := calibrationSink, uint64(3), uint64(5)
	x, y, z := 1.5, 2.5, 3.5
	t := time.Now()
	for range 500 {
		a = a*3 + 1
		b = b ^ b<<1
		c += c >> 3
		x = x*0.999 + 0.5
		y = y*0.998 + 0.25
		z = z*0.997 + 0.125
	}
	d := time.Since(t).Seconds()
	calibrationSink = a + b + c + uint64(x+y+z)
	return d
}

// Median returns the median of x, NaN if there is none.
func Median(x []float64) float64 { return Summarize(x).Median }

// A Summary is a median with its confidence interval, as benchstat gives it.
type Summary struct {
	Median, Low, High float64
	Confidence        float64 // of the interval; at least 0.95 if there are enough samples
}

// Summarize summarizes samples without assuming how they are distributed.
func Summarize(x []float64) Summary {
	if len(x) == 0 {
		return Summary{Median: math.NaN(), Low: math.NaN(), High: math.NaN()}
	}
	s := benchmath.AssumeNothing.Summary(benchmath.NewSample(slices.Clone(x), &benchmath.DefaultThresholds), 0.95)
	return Summary{s.Center, s.Lo, s.Hi, s.Confidence}
}

// String returns the median and the larger half of the interval in percent.
func (s Summary) String() string {
	if math.IsInf(s.Low, 0) || math.IsInf(s.High, 0) {
		return fmt.Sprintf("%.4g ±∞", s.Median)
	}
	return fmt.Sprintf("%.4g ±%.0f%%", s.Median, 100*max(s.High-s.Median, s.Median-s.Low)/s.Median)
}

// Times returns the samples multiplied by f, to turn seconds into other units.
func Times(x []float64, f float64) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = x[i] * f
	}
	return y
}

// Quotient returns the median over the rounds of a[i]/b[i]. It compares what ran
// in the same round, so it is steadier than the quotient of the medians when
// the machine drifts. Samples of unequal number, such as Calibrated takes, are
// compared by their medians.
func Quotient(a, b []float64) float64 {
	if len(a) != len(b) {
		return Median(a) / Median(b)
	}
	q := make([]float64, len(a))
	for i := range a {
		q[i] = a[i] / b[i]
	}
	return Median(q)
}

// Differ returns the probability that a and b are samples of one distribution
// (the Mann-Whitney U-test), the p that benchstat prints.
func Differ(a, b []float64) float64 {
	sample := func(x []float64) *benchmath.Sample {
		return benchmath.NewSample(slices.Clone(x), &benchmath.DefaultThresholds)
	}
	return benchmath.AssumeNothing.Compare(sample(a), sample(b)).P
}
