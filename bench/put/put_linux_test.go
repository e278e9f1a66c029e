package put

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/blockpath/blockpath/bench/internal/lab"
)

// TestExperiment runs a tiny version and looks for every target.
func TestExperiment(t *testing.T) {
	r := lab.NewReport("put", io.Discard)
	sz := size{rounds: 3, fileLen: 2<<20 + 77, profiled: 3, calibrated: 10 * time.Millisecond, adds: 4, distance: 8<<20 + 1}
	if err := measure(context.Background(), sz, r); err != nil {
		t.Fatal(err)
	}
	if len(r.Targets) != 6 {
		t.Errorf("%d targets, want 6", len(r.Targets))
	}
	if err := r.WriteJSON(io.Discard); err != nil {
		t.Error(err)
	}
}
