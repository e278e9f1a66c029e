package hadoop

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	calls := 0
	fill := func() error {
		calls++
		if _, err := os.Stat(filepath.Join(dir, "file")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("what was there before is still there: %v", err)
		}
		return os.WriteFile(filepath.Join(dir, "file"), nil, 0o644)
	}
	for i, step := range []struct {
		input string
		calls int
	}{{"a", 1}, {"a", 1}, {"b", 2}, {"a", 3}} {
		if err := once(dir, []byte(step.input), fill); err != nil {
			t.Fatal(err)
		}
		if calls != step.calls {
			t.Errorf("step %d: %d calls, want %d", i, calls, step.calls)
		}
	}
	failure := errors.New("failure")
	for range 2 { // what failed is tried again
		if err := once(dir, []byte("c"), func() error { return failure }); err != failure {
			t.Errorf("got %v", err)
		}
	}
}

func TestJarsWithoutJava(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Jars(t.TempDir())
	var missing *MissingToolError
	if !errors.As(err, &missing) || missing.Tool != "java" {
		t.Errorf("got %v", err)
	}
}
