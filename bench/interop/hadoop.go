package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

//go:embed pom.xml java
var sources embed.FS

// prepare makes the class path of the judge below dir: the jars by Maven, once
// per pom.xml, and our own classes by javac, once per state of their sources.
func prepare(dir string) (classPath string, err error) {
	for _, tool := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", fmt.Errorf("%s is missing; on Debian: apt-get install default-jdk-headless maven", tool)
		}
	}
	pom, err := sources.ReadFile("pom.xml")
	if err != nil {
		return "", err
	}
	lib := filepath.Join(dir, "lib")
	if err := once(lib, pom, func() error {
		file := filepath.Join(dir, "pom.xml")
		if err := os.WriteFile(file, pom, 0o644); err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, "interop: fetching Hadoop's jars with Maven")
		return command("mvn", "--batch-mode", "--quiet", "--file", file,
			"org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies",
			"-DoutputDirectory="+lib)
	}); err != nil {
		return "", err
	}
	jars, err := filepath.Glob(filepath.Join(lib, "*.jar"))
	if err != nil {
		return "", err
	}

	java := filepath.Join(dir, "java")
	classes := filepath.Join(dir, "classes")
	var all []byte
	var files []string
	err = fs.WalkDir(sources, "java", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := sources.ReadFile(path)
		if err != nil {
			return err
		}
		all = append(append(append(all, path...), 0), b...)
		to := filepath.Join(dir, filepath.FromSlash(path))
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
	jarPath := strings.Join(jars, string(os.PathListSeparator))
	if err := once(classes, append(all, pom...), func() error {
		return command("javac", append([]string{"-proc:none", "-cp", jarPath, "-d", classes}, files...)...)
	}); err != nil {
		return "", err
	}
	return strings.Join([]string{classes, java, jarPath}, string(os.PathListSeparator)), nil
}

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

// A hadoop is a JVM that answers questions with Hadoop's classes; see
// java/Judge.java for the questions.
type hadoop struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	mu  sync.Mutex // of one question and its answer

	files      map[string]bool // what has been written to the cluster; nil if none runs
	clusterDir string
}

// startHadoop starts the JVM. Hadoop's log goes to standard error from the
// given level on.
func startHadoop(classPath, logLevel string) (*hadoop, error) {
	h := &hadoop{cmd: exec.Command("java", "-ea", "-Xms2g", "-Xmx2g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Djudge.log="+logLevel, "-cp", classPath, "Judge")}
	h.cmd.Stderr = os.Stderr
	var err error
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	h.out = bufio.NewReaderSize(out, 1<<20)
	return h, h.cmd.Start()
}

// Close ends the JVM.
func (h *hadoop) Close() error {
	h.in.Close()
	return h.cmd.Wait()
}

// A refusal is the exception with which Hadoop answered.
type refusal struct {
	exception string
}

func (r *refusal) Error() string { return "hadoop: " + r.exception }

// ask asks one question. Byte slices go as hex; everything else as fmt prints
// it. An exception comes back as a *refusal. It is safe for concurrent use.
func (h *hadoop) ask(question string, args ...any) ([]string, error) {
	var line bytes.Buffer
	line.WriteString(question)
	for _, a := range args {
		line.WriteByte(' ')
		if b, ok := a.([]byte); ok {
			line.WriteString(hexOf(b))
		} else {
			fmt.Fprint(&line, a)
		}
	}
	line.WriteByte('\n')
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := h.in.Write(line.Bytes()); err != nil {
		return nil, err
	}
	answer, err := h.out.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("the JVM ended: %w", err)
	}
	answer = strings.TrimSuffix(answer, "\n")
	if e, ok := strings.CutPrefix(answer, "err "); ok {
		return nil, &refusal{exception: e}
	}
	fields := strings.Split(answer, " ")
	if fields[0] != "ok" {
		return nil, errors.New("the JVM said: " + answer)
	}
	return fields[1:], nil
}

func hexOf(b []byte) string {
	if len(b) == 0 {
		return "-"
	}
	return hex.EncodeToString(b)
}

func textOf(s string) string { return hexOf([]byte(s)) }

// bytesOf is the inverse of hexOf. The judge writes only hex, so anything else
// is a mistake in a check.
func bytesOf(s string) []byte {
	if s == "-" {
		return nil
	}
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}

func intOf(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}
