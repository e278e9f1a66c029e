package crc32_test

import (
	"go/constant"
	"go/importer"
	"go/token"
	"go/types"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Both packages are type-checked from source, so a name that the installed
// hash/crc32 has and this package lacks is found the day it appears.
func TestAPIEqualsStandardLibrary(t *testing.T) {
	imp := importer.ForCompiler(token.NewFileSet(), "source", nil)
	std, err := imp.Import("hash/crc32")
	if err != nil {
		t.Fatal(err)
	}
	ours, err := imp.Import("github.com/blockpath/blockpath/crc/crc32")
	if err != nil {
		t.Fatal(err)
	}
	exported := func(p *types.Package) (names []string) {
		for _, name := range p.Scope().Names() {
			if token.IsExported(name) {
				names = append(names, name)
			}
		}
		return names
	}
	if got, want := exported(ours), exported(std); !slices.Equal(got, want) {
		t.Fatalf("exported names %v, want %v", got, want)
	}
	for _, name := range exported(std) {
		got, want := ours.Scope().Lookup(name), std.Scope().Lookup(name)
		if g, w := kind(got), kind(want); g != w {
			t.Errorf("%s is a %s, want a %s", name, g, w)
			continue
		}
		if !types.Identical(got.Type(), want.Type()) {
			t.Errorf("%s has type %v, want %v", name, got.Type(), want.Type())
		}
		if c, ok := want.(*types.Const); ok {
			if !constant.Compare(got.(*types.Const).Val(), token.EQL, c.Val()) {
				t.Errorf("%s = %v, want %v", name, got.(*types.Const).Val(), c.Val())
			}
		}
	}
}

func kind(o types.Object) string {
	switch o.(type) {
	case *types.Const:
		return "constant"
	case *types.TypeName:
		return "type"
	case *types.Var:
		return "variable"
	case *types.Func:
		return "function"
	}
	return "something else"
}

// Who wants only checksums links only them.
func TestDependencies(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("SKIPPED, dependencies not checked: no go command:", err)
	}
	const module = "github.com/blockpath/blockpath/"
	allowed := []string{
		module + "crc", module + "crc/asm", module + "crc/crc32",
		"github.com/klauspost/cpuid/v2", "golang.org/x/sys/cpu",
	}
	for _, goos := range []string{"linux", "darwin", "windows"} {
		for _, goarch := range []string{"amd64", "arm64"} {
			cmd := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}",
				module+"crc", module+"crc/crc32")
			cmd.Env = append(cmd.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %v", cmd, err)
			}
			for _, path := range strings.Fields(string(out)) {
				sysctl := goos == "darwin" && goarch == "arm64" && path == "golang.org/x/sys/unix" // by cpuid, for the features
				if !slices.Contains(allowed, path) && !sysctl {
					t.Errorf("%s/%s links %s", goos, goarch, path)
				}
			}
		}
	}
}
