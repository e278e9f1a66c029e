package sidebyside

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/blockpath/blockpath/bench/internal/lab"
)

func TestMain(m *testing.M) {
	var err error
	switch {
	case IsClient():
		err = Serve(context.Background())
	case IsNode():
		err = ServeBare()
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestWithoutJava runs a tiny version of the rows that need no Java and looks for
// every target.
func TestWithoutJava(t *testing.T) {
	r := lab.NewReport(experiment, io.Discard)
	sz := size{warm: 1, rounds: 2, length: 3<<20 + 77, extras: true}
	if err := measure(context.Background(), sz, "", "no java", r); err != nil {
		t.Fatal(err)
	}
	if len(r.Targets) != 3 {
		t.Errorf("%d targets, want 3", len(r.Targets))
	}
	for _, target := range r.Targets {
		if target.Skipped != "no java" {
			t.Errorf("%s is not skipped", target.Name)
		}
	}
	for _, name := range []string{"go-to-go/put/cpu-s-per-gib", "go-to-go/get/wall-s-per-gib", "bare-to-bare/get/cpu-s-per-gib", "go-to-go/packets=64k/put/datanode-peak-rss-bytes"} {
		if r.Metrics[name] <= 0 {
			t.Errorf("%s is %v", name, r.Metrics[name])
		}
	}
	if err := r.WriteJSON(io.Discard); err != nil {
		t.Error(err)
	}
}

// TestJudge has made-up samples.
func TestJudge(t *testing.T) {
	rows := rowsOf(size{extras: true}, true)
	var names []string
	for i, row := range rows {
		names = append(names, row.name)
		for op, s := range row.ops {
			if op == "get" && !row.get {
				continue
			}
			v := float64(10 - i)
			if row.name == "go-to-java" && op == "get" {
				v = 12
			}
			one := []float64{v}
			*s = samples{one, one, one, one, one, one}
		}
	}
	want := []string{
		"java-to-java", "go-to-java", "java-to-go", "go-to-go", "bare-to-bare",
		"java-to-java/packets=1m", "go-to-java/packets=64k", "go-to-go/packets=64k",
	}
	if !slices.Equal(names, want) {
		t.Errorf("rows %q, want %q", names, want)
	}
	r := lab.NewReport(experiment, io.Discard)
	judge(rows, "", r)
	for i, want := range []struct {
		name  string
		value float64
	}{{putCPU, 0.7}, {getCPU, 0.7}, {mixedWall, 1.2}} {
		if got := r.Targets[i]; got.Name != want.name || got.Value == nil || *got.Value != want.value || *got.Met {
			t.Errorf("target %+v, want %+v missed", got, want)
		}
	}
	if _, ok := r.Metrics["java-to-java/packets=1m/get/cpu-s-per-gib"]; ok {
		t.Error("a metric of what was not measured")
	}
}

// TestCheck damages what is stored.
func TestCheck(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	b := &bench{sz: size{length: 1<<20 + 77}}
	if err := b.start(ctx, dir, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	}()
	row := &row{client: ours, node: ours}
	if err := b.goTransfer(row, "/file").put(); err != nil {
		t.Fatal(err)
	}
	if err := b.check(ctx, dir, true); err != nil {
		t.Fatal(err)
	}
	all, err := replicas(dir)
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, error %v", all, err)
	}
	flip := func(path string, at int64) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var one [1]byte
		if _, err := f.ReadAt(one[:], at); err != nil {
			t.Fatal(err)
		}
		one[0] ^= 1
		if _, err := f.WriteAt(one[:], at); err != nil {
			t.Fatal(err)
		}
		if err := b.check(ctx, dir, true); err == nil {
			t.Errorf("nothing is wrong with %s", path)
		}
		one[0] ^= 1
		if _, err := f.WriteAt(one[:], at); err != nil {
			t.Fatal(err)
		}
	}
	metas, err := filepath.Glob(all[0].path + "_*.meta")
	if err != nil || len(metas) != 1 {
		t.Fatalf("%v, error %v", metas, err)
	}
	flip(all[0].path, 1<<20)
	flip(metas[0], 100)
	if err := b.check(ctx, dir, true); err != nil {
		t.Error(err)
	}
	if err := forget(dir); err != nil {
		t.Fatal(err)
	}
	if err := b.check(ctx, dir, true); err == nil {
		t.Error("a file that is gone is complete")
	}
}

// TestMeter lets this process work.
func TestMeter(t *testing.T) {
	m := meter{client: os.Getpid(), node: os.Getpid()}
	if err := m.start(); err != nil {
		t.Fatal(err)
	}
	memory := make([]byte, 64<<20)
	for end := time.Now().Add(30 * time.Millisecond); time.Now().Before(end); {
		for i := range memory {
			memory[i]++
		}
	}
	var s samples
	if err := m.stop(&s, 2, true); err != nil {
		t.Fatal(err)
	}
	if s.cpu[0] <= 0 || s.cpu[0] != s.clientCPU[0]+s.nodeCPU[0] || s.wall[0] < 0.015 || s.clientPeak[0] < float64(len(memory)) {
		t.Errorf("%+v", s)
	}
}
