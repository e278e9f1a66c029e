package stripedcounter

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestLinksLittle lists what a program that imports this package links besides
// the standard library.
func TestLinksLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").CombinedOutput()
	if err != nil {
		t.Skipf("NOT TESTED: go list does not run here: %v\n%s", err, out)
	}
	allowed := []string{"github.com/blockpath/blockpath/stripedcounter", "golang.org/x/sys/unix"}
	for _, dep := range strings.Fields(string(out)) {
		if !slices.Contains(allowed, dep) {
			t.Errorf("links %s", dep)
		}
	}
}
