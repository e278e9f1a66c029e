// Report writes results/README.md: every target of every result that is kept,
// and whether it was met, a table for each CPU.
//
//	go -C bench run ./report
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/blockpath/blockpath/bench/internal/lab"
)

func main() {
	if err := run("results"); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "*", "*.json"))
	if err != nil {
		return err
	}
	models, err := filepath.Glob(filepath.Join(dir, "modelled", "*", "*.json"))
	if err != nil {
		return err
	}
	var page strings.Builder
	page.WriteString("# Targets, met and missed\n\nWritten by `make report` from the JSON files below this folder. A name says what is\n" +
		"compared: the row, then `vs=` the row it is divided by.\n")
	last := ""
	for _, path := range append(paths, models...) {
		r, modelled, err := read(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if len(r.Targets) == 0 {
			continue
		}
		if title := heading(r.Machine, modelled); title != last {
			fmt.Fprintf(&page, "\n## %s\n\n| experiment | target | limit | value | |\n| --- | --- | --- | --- | --- |\n", title)
			last = title
		}
		for _, t := range r.Targets {
			fmt.Fprintf(&page, "| %s | %s | %s | %s |\n", r.Experiment, t.Name, t.Limit, outcome(t))
		}
	}
	return os.WriteFile(filepath.Join(dir, "README.md"), []byte(page.String()), 0o644)
}

// read returns a result and what modelled it, "" if it was measured.
func read(path string) (r lab.Report, modelled string, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return r, "", err
	}
	var m struct {
		Modelled string `json:"modelled"`
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return r, "", err
	}
	return r, m.Modelled, json.Unmarshal(b, &r)
}

func heading(m lab.Machine, modelled string) string {
	if modelled != "" {
		return m.Model + ", modelled by " + modelled
	}
	return fmt.Sprintf("%s (%s), %d CPUs, %s, %s", m.Microarchitecture, m.Model, m.CPUs, m.Kernel, m.Go)
}

// outcome returns the last two cells of a target's line.
func outcome(t lab.Target) string {
	if t.Value == nil || t.Met == nil {
		return "| not measured: " + t.Skipped
	}
	met := "met"
	if !*t.Met {
		met = "**missed**"
	}
	return strconv.FormatFloat(*t.Value, 'g', 4, 64) + " | " + met
}
