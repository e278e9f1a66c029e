package read

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/blockpath/blockpath/bench/internal/lab"
)

// TestMain is also the entry of the servers, which are this program.
func TestMain(m *testing.M) {
	if IsServer() {
		if err := Serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestExperiment runs a tiny version, whose clients check what they get, and
// looks for every target.
func TestExperiment(t *testing.T) {
	r := lab.NewReport("read", io.Discard)
	sz := size{
		rounds: 1, sample: 50 * time.Millisecond, blocks: 3, blockLen: 1 << 20, idle: 20, others: 5,
		loads: []load{{random, 4 << 10, 64}, {sequential, 4 << 10, 3}, {scan, 64 << 10, 64}, {random, 4 << 10, 256}},
	}
	if err := measure(context.Background(), sz, r); err != nil {
		t.Fatal(err)
	}
	if len(r.Targets) != 8 {
		t.Errorf("%d targets, want 8", len(r.Targets))
	}
	if err := r.WriteJSON(io.Discard); err != nil {
		t.Error(err)
	}
}
