// Package lab is what the experiments share: the facts of the machine, the
// clock, sampling that alternates what it compares, statistics, targets, and
// the report.
package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// An Experiment measures one subject and writes what it finds into a Report.
type Experiment struct {
	Name    string
	Summary string // one line for the usage text
	// Run returns an error when the experiment could not run, never because a
	// target was missed. With quick it ends within 40 seconds.
	Run func(ctx context.Context, quick bool, r *Report) error
}

// A Report collects the results of an experiment and prints them to Out as
// they come. Its JSON form is the contract with those who read the results.
type Report struct {
	Experiment string             `json:"experiment"`
	Machine    Machine            `json:"machine"`
	Metrics    map[string]float64 `json:"metrics"`
	Ratios     map[string]float64 `json:"ratios"`
	Targets    []Target           `json:"targets"`

	Out io.Writer `json:"-"`
}

// A Target is a promise about a number and whether it was kept. A target whose
// rival is absent has Skipped instead of a value.
type Target struct {
	Name    string   `json:"name"`
	Limit   string   `json:"limit"` // "<=0.6", ">=2.9"
	Value   *float64 `json:"value,omitempty"`
	Met     *bool    `json:"met,omitempty"`
	Skipped string   `json:"skipped,omitempty"`
}

// NewReport returns an empty report about this machine.
func NewReport(experiment string, out io.Writer) *Report {
	return &Report{
		Experiment: experiment,
		Machine:    ThisMachine(),
		Metrics:    map[string]float64{},
		Ratios:     map[string]float64{},
		Targets:    []Target{},
		Out:        out,
	}
}

// Metric records an absolute number. The name ends with the unit.
func (r *Report) Metric(name string, v float64) { r.Metrics[name] = v }

// Ratio records a quotient of two rows of the same run.
func (r *Report) Ratio(name string, v float64) { r.Ratios[name] = v }

// Target records whether v keeps limit, "<=" or ">=" and a number. It panics if
// limit is not that.
func (r *Report) Target(name, limit string, v float64) {
	met := meets(limit, v)
	r.Targets = append(r.Targets, Target{Name: name, Limit: limit, Value: &v, Met: &met})
}

// Skip records a target that could not be measured, and why.
func (r *Report) Skip(name, limit, reason string) {
	r.Targets = append(r.Targets, Target{Name: name, Limit: limit, Skipped: reason})
}

func meets(limit string, v float64) bool {
	number, atMost := strings.CutPrefix(limit, "<=")
	if !atMost {
		number = strings.TrimPrefix(limit, ">=")
	}
	bound, err := strconv.ParseFloat(number, 64)
	if err != nil || len(number) != len(limit)-2 {
		panic(fmt.Sprintf("lab: limit %q is not <=NUMBER or >=NUMBER", limit))
	}
	if atMost {
		return v <= bound
	}
	return v >= bound
}

// Printf prints a line or a table for the person who watches.
func (r *Report) Printf(format string, args ...any) { fmt.Fprintf(r.Out, format, args...) }

// PrintTargets prints one line per target.
func (r *Report) PrintTargets() {
	if len(r.Targets) == 0 {
		return
	}
	r.Printf("\n%-40s %-10s %12s\n", "target", "limit", "value")
	for _, t := range r.Targets {
		switch {
		case t.Skipped != "":
			r.Printf("%-40s %-10s %12s  %s\n", t.Name, t.Limit, "-", "skipped: "+t.Skipped)
		case *t.Met:
			r.Printf("%-40s %-10s %12.4g  met\n", t.Name, t.Limit, *t.Value)
		default:
			r.Printf("%-40s %-10s %12.4g  MISSED\n", t.Name, t.Limit, *t.Value)
		}
	}
}

// WriteJSON writes the report as indented JSON. A number that is not finite is
// an error: it means that something was not measured.
func (r *Report) WriteJSON(w io.Writer) error {
	for _, m := range []map[string]float64{r.Metrics, r.Ratios} {
		for name, v := range m {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return fmt.Errorf("%s: %q is %v", r.Experiment, name, v)
			}
		}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}
