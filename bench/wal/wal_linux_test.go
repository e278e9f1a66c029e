package wal

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockpath/blockpath/bench/internal/lab"
)

// TestExperiment runs a tiny version and looks for every target.
func TestExperiment(t *testing.T) {
	r := lab.NewReport("wal", io.Discard)
	if err := measure(context.Background(), size{rounds: 3, budget: time.Second, appends: 1000, steady: 500}, r); err != nil {
		t.Fatal(err)
	}
	if len(r.Targets) != 2 {
		t.Errorf("%d targets, want 2", len(r.Targets))
	}
	if err := r.WriteJSON(io.Discard); err != nil {
		t.Error(err)
	}
}

// A countingStream counts what is written and flushed.
type countingStream struct{ written, flushed atomic.Int64 }

func (s *countingStream) Write(p []byte) (int, error) {
	s.written.Add(int64(len(p)))
	return len(p), nil
}

func (s *countingStream) Flush() error {
	s.flushed.Store(s.written.Load())
	return nil
}

// TestLog looks whether every record arrives and is flushed.
func TestLog(t *testing.T) {
	s := new(countingStream)
	if err := newLog(s).run(7, 300); err != nil {
		t.Fatal(err)
	}
	if want := int64(7 * 300 * recordLen); s.written.Load() != want || s.flushed.Load() != want {
		t.Errorf("%d bytes written, %d flushed, want %d", s.written.Load(), s.flushed.Load(), want)
	}
}
