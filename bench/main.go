// Command bench runs one experiment:
//
//	go -C bench run . EXPERIMENT [--quick] [--json FILE] [--keep]
//
// With --keep the report also goes to results/<vendor-microarchitecture>/.
//
// The exit code is 0 if the experiment ran, 1 if it could not, 2 for wrong
// usage. It does not depend on targets.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"

	"github.com/blockpath/blockpath/bench/checksums"
	"github.com/blockpath/blockpath/bench/counters"
	"github.com/blockpath/blockpath/bench/internal/lab"
)

// experiments are in the order of the usage text.
var experiments = []lab.Experiment{
	checksums.Experiment,
	counters.Experiment,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	quick := fs.Bool("quick", false, "end within 40 seconds")
	path := fs.String("json", "", "write the report as JSON to `FILE`")
	keep := fs.Bool("keep", false, "also write it to results/<vendor-microarchitecture>/EXPERIMENT.json")
	fs.Usage = func() {
		fmt.Fprintln(stderr, "usage: go -C bench run . EXPERIMENT [--quick] [--json FILE] [--keep]")
		for _, e := range experiments {
			fmt.Fprintf(stderr, "  %-14s %s\n", e.Name, e.Summary)
		}
	}
	name := ""
	if len(args) > 0 {
		name, args = args[0], args[1:]
	}
	i := slices.IndexFunc(experiments, func(e lab.Experiment) bool { return e.Name == name })
	if i < 0 {
		fs.Usage()
		return 2
	}
	if fs.Parse(args) != nil {
		return 2
	}
	if fs.NArg() != 0 {
		fs.Usage()
		return 2
	}
	r := lab.NewReport(name, stdout)
	r.Printf("%s, %s, %d CPUs, %s, %s\n\n", r.Machine.Model, r.Machine.Microarchitecture, r.Machine.CPUs, r.Machine.Kernel, r.Machine.Go)
	if err := experiments[i].Run(ctx, *quick, r); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 1
	}
	r.PrintTargets()
	paths := []string{*path}
	if *keep {
		paths = append(paths, filepath.Join("results", r.Machine.Directory(), name+".json"))
	}
	for _, path := range paths {
		if path == "" {
			continue
		}
		if err := writeFile(path, r); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
	}
	return 0
}

func writeFile(path string, r *lab.Report) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := r.WriteJSON(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
