// Package hadoop makes real Hadoop run beside us: it fetches Hadoop's jars and
// compiles Java sources against them. It needs java, javac and mvn.
package hadoop

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed pom.xml
var pom []byte

// A MissingToolError names a program that is not installed.
type MissingToolError struct{ Tool string }

// Error says how to get it.
func (e *MissingToolError) Error() string {
	return e.Tool + " is missing; on Debian: apt-get install default-jdk-headless maven"
}

// Jars fetches Hadoop's jars by Maven into dir/lib, once per version, and returns
// them as a class path. Without java, javac or mvn the error is a
// [*MissingToolError].
func Jars(dir string) (classPath string, err error) {
	for _, tool := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", &MissingToolError{tool}
		}
	}
	lib := filepath.Join(dir, "lib")
	if err := once(lib, pom, func() error {
		file := filepath.Join(dir, "pom.xml")
		if err := os.WriteFile(file, pom, 0o644); err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, "fetching Hadoop's jars with Maven")
		return command("mvn", "--batch-mode", "--quiet", "--file", file,
			"org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies",
			"-DoutputDirectory="+lib)
	}); err != nil {
		return "", err
	}
	jars, err := filepath.Glob(filepath.Join(lib, "*.jar"))
	return list(jars...), err
}

// Compile compiles the Java files of sources against the class path, once per
// state of both, and returns a longer class path with the classes and the other
// files of sources. Everything goes below dir, in which Compile must be alone.
func Compile(dir, classPath string, sources fs.FS) (string, error) {
	from, classes := filepath.Join(dir, "java"), filepath.Join(dir, "classes")
	all := []byte(classPath)
	var files []string
	err := fs.WalkDir(sources, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(sources, path)
		if err != nil {
			return err
		}
		all = append(append(append(all, path...), 0), b...)
		to := filepath.Join(from, filepath.FromSlash(path))
		if strings.HasSuffix(path, ".java") {
			files = append(files, to)
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		return os.WriteFile(to, b, 0o644)
	})
	if err != nil {
		return "", err
	}
	if err := once(classes, all, func() error {
		return command("javac", append([]string{"-proc:none", "-cp", classPath, "-d", classes}, files...)...)
	}); err != nil {
		return "", err
	}
	return list(classes, from, classPath), nil
}

func list(paths ...string) string { return strings.Join(paths, string(os.PathListSeparator)) }

// once empties dir and calls make to fill it, unless that has been done for
// the same input.
func once(dir string, input []byte, make func() error) error {
	sum := sha256.Sum256(input)
	want := hex.EncodeToString(sum[:])
	stamp := filepath.Join(dir, ".made-from")
	if got, err := os.ReadFile(stamp); err == nil && string(got) == want {
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := make(); err != nil {
		return err
	}
	return os.WriteFile(stamp, []byte(want), 0o644)
}

func command(name string, args ...string) error {
	c := exec.Command(name, args...)
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
