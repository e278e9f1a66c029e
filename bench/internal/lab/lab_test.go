package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"
)

func TestTargets(t *testing.T) {
	for _, c := range []struct {
		limit string
		v     float64
		met   bool
	}{
		{"<=0.6", 0.6, true}, {"<=0.6", 0.61, false}, {">=2.9", 2.9, true}, {">=2.9", 2.8, false},
		{"<=0", 0, true}, {"<=-1", 0, false}, {"<=0.6", math.NaN(), false},
	} {
		if got := meets(c.limit, c.v); got != c.met {
			t.Errorf("%v %s: %v, want %v", c.v, c.limit, got, c.met)
		}
	}
	for _, bad := range []string{"", "0.6", "<0.6", "<=", "<=x", "=<1"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("limit %q was accepted", bad)
				}
			}()
			meets(bad, 1)
		}()
	}
}

func TestReportJSON(t *testing.T) {
	var out, js bytes.Buffer
	r := NewReport("x", &out)
	r.Metric("a/ns", 1.5)
	r.Ratio("a/vs=b", 2)
	r.Target("good", "<=0", 0)
	r.Target("bad", ">=3", 2)
	r.Skip("absent", "<=1", "no rival here")
	r.PrintTargets()
	if err := r.WriteJSON(&js); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(js.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"experiment", "machine", "metrics", "ratios", "targets"} {
		if got[key] == nil {
			t.Errorf("the report has no %q", key)
		}
	}
	targets := got["targets"].([]any)
	good, skipped := targets[0].(map[string]any), targets[2].(map[string]any)
	if good["value"] != 0.0 || good["met"] != true {
		t.Errorf("a met target is %v", good)
	}
	if skipped["skipped"] != "no rival here" || skipped["value"] != nil || skipped["met"] != nil {
		t.Errorf("a skipped target is %v", skipped)
	}
	for _, word := range []string{"met", "MISSED", "skipped: no rival here"} {
		if !strings.Contains(out.String(), word) {
			t.Errorf("%q is not in\n%s", word, out.String())
		}
	}
	r.Ratio("broken", math.Inf(1))
	if r.WriteJSON(io.Discard) == nil {
		t.Error("an infinite ratio was written")
	}
}

func TestMachine(t *testing.T) {
	m := ThisMachine()
	if m.Microarchitecture == "" || m.Kernel == "" || m.Go == "" || m.CPUs < 1 || m.LastLevelCache() < 1<<15 {
		t.Errorf("facts are missing: %+v", m)
	}
	if got := (Machine{}).LastLevelCache(); got != 8<<20 {
		t.Errorf("an unknown last-level cache counts as %d bytes", got)
	}
}

func TestAlternate(t *testing.T) {
	var order strings.Builder
	row := func(name string) *Row {
		return &Row{Name: name, Work: 4, Do: func() error { order.WriteString(name); return nil }}
	}
	a, b := row("a"), row("b")
	if noise, err := Alternate(context.Background(), 1, 3, a, b); err != nil || noise != (Noise{6, 6}) {
		t.Fatal(noise, err)
	}
	if order.String() != "abbaabba" || len(a.Wall) != 3 || len(a.CPU) != 3 || len(b.Wall) != 3 {
		t.Errorf("ran %s, recorded %d and %d", order.String(), len(a.Wall), len(b.Wall))
	}
	broken := errors.New("broken")
	a.Check = func() error { return broken }
	if _, err := Alternate(context.Background(), 0, 1, a); !errors.Is(err, broken) {
		t.Errorf("a failed check gave %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Alternate(ctx, 0, 100, b); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before enough rounds: %v", err)
	}
}

func TestAlternateTakesDisturbedSamplesAgain(t *testing.T) {
	calls := 0
	idle := &Row{Name: "idle", Work: 1, Parallel: 1, Do: func() error {
		calls++
		time.Sleep(5 * time.Millisecond) // a CPU that is not ours
		return nil
	}}
	noise, err := Alternate(context.Background(), 1, 4, idle)
	if err != nil || calls != 1+6 || noise != (Noise{6, 0}) || len(idle.Wall) != 4 {
		t.Errorf("%d calls, %d recorded, %v, %v", calls, len(idle.Wall), noise, err)
	}
}

func TestCalibrated(t *testing.T) {
	x := uint64(1)
	row := &Row{Name: "spin", Work: 1, Do: func() error {
		for range 50000 {
			x = x*3 + 1
		}
		return nil
	}}
	noise, err := Calibrated(context.Background(), 200*time.Millisecond, 10, row)
	if err != nil || len(row.Wall) < 3 || noise.Taken < 64 || noise.Accepted > noise.Taken {
		t.Errorf("%+v, %d samples, %v", noise, len(row.Wall), err)
	}
}

func TestStatistics(t *testing.T) {
	x := []float64{9, 1, 5, 3, 7}
	if got := Median(x); got != 5 || x[0] != 9 {
		t.Errorf("median %v, and x is %v", got, x)
	}
	if !math.IsNaN(Median(nil)) {
		t.Error("the median of nothing is a number")
	}
	// The machine becomes ten times slower; the pairs do not care.
	if got := Quotient([]float64{2, 20, 200}, []float64{1, 10, 100}); got != 2 {
		t.Errorf("paired quotient %v", got)
	}
	if got := Quotient([]float64{2, 2, 2}, []float64{1, 1}); got != 2 {
		t.Errorf("quotient of medians %v", got)
	}
	same := []float64{1, 2, 3, 4, 5, 6, 7, 8}
	if p := Differ(same, same); p < 0.9 {
		t.Errorf("equal samples differ with p = %v", p)
	}
	if p := Differ(same, Times(same, 100)); p > 0.01 {
		t.Errorf("different samples are equal with p = %v", p)
	}
}

//go:noinline
func burn(d time.Duration) {
	for end := CPUTime() + d; CPUTime() < end; {
		calibrate()
	}
}

// TestShareOfCPU burns CPU time in one function and nothing to speak of
// elsewhere.
func TestShareOfCPU(t *testing.T) {
	const name = "github.com/blockpath/blockpath/bench/internal/lab.burn"
	share, samples, err := ShareOfCPU(func() error { burn(300 * time.Millisecond); return nil }, name)
	if err != nil {
		t.Fatal(err)
	}
	if samples < 5 || share < 0.5 {
		t.Errorf("%.2f of %d samples are in %s", share, samples, name)
	}
}
