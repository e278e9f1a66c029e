package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The code in the README is that of examples, which are compiled and run.
func TestReadmeCode(t *testing.T) {
	root := filepath.Join("..", "..")
	var examples strings.Builder
	err := filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.Name() != "example_test.go" {
			return err
		}
		b, err := os.ReadFile(path)
		examples.WriteString(unindent(string(b)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(readme, -1)
	if len(blocks) < 4 {
		t.Errorf("%d blocks of Go code in the README", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(examples.String(), unindent(string(b[1]))) {
			t.Errorf("this code of the README is in no example_test.go:\n%s", b[1])
		}
	}
}

// unindent removes leading tabs.
func unindent(s string) string {
	return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(s, "")
}
