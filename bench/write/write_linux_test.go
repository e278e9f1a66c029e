package write

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/blockpath/blockpath/bench/internal/lab"
)

// TestExperiment runs a tiny version and looks for every target.
func TestExperiment(t *testing.T) {
	r := lab.NewReport("write", io.Discard)
	if err := measure(context.Background(), size{rounds: 3, budget: time.Second, total: 20 << 20, profiled: 5}, r); err != nil {
		t.Fatal(err)
	}
	if len(r.Targets) != 4 {
		t.Errorf("%d targets, want 4", len(r.Targets))
	}
	if err := r.WriteJSON(io.Discard); err != nil {
		t.Error(err)
	}
}
