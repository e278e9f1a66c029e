package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"nonsense"}, {"--quick"}, {"counters", "--nonsense"}, {"counters", "more"}} {
		var out, err bytes.Buffer
		if code := run(context.Background(), args, &out, &err); code != 2 {
			t.Errorf("%q: exit code %d, want 2", args, code)
		}
		if !strings.Contains(err.String(), "counters") {
			t.Errorf("%q: no usage text:\n%s", args, err.String())
		}
	}
}

func TestNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range experiments {
		if e.Name == "" || e.Summary == "" || seen[e.Name] {
			t.Errorf("experiment %q: empty or repeated", e.Name)
		}
		seen[e.Name] = true
	}
}
