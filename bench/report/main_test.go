package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/blockpath/blockpath/bench/internal/lab"
)

func TestReport(t *testing.T) {
	dir := t.TempDir()
	r := lab.NewReport("put", io.Discard)
	r.Machine = lab.Machine{Model: "AMD EPYC", Microarchitecture: "Zen 5", CPUs: 2, Kernel: "Linux 6.1", Go: "go1.26"}
	r.Target("cpu/vs=plain", "<=0.6", 0.54321)
	r.Target("wall/vs=plain", "<=0.8", 0.9)
	r.Skip("cpu/vs=rival", ">=2", "no rival")
	path := filepath.Join(dir, "amd-zen-5", "put.json")
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WriteJSON(f); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := run(dir); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"## Zen 5 (AMD EPYC), 2 CPUs, Linux 6.1, go1.26",
		"| put | cpu/vs=plain | <=0.6 | 0.5432 | met |",
		"| put | wall/vs=plain | <=0.8 | 0.9 | **missed** |",
		"| put | cpu/vs=rival | >=2 | | not measured: no rival |",
	} {
		if !strings.Contains(string(page), "\n"+line+"\n") {
			t.Errorf("%q is missing in\n%s", line, page)
		}
	}
}
