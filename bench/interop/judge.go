package main

import (
	"bufio"
	"bytes"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
)

//go:embed java
var sources embed.FS

// prepare makes the class path of the judge below dir.
func prepare(dir string) (classPath string, err error) {
	jars, err := hadoop.Jars(dir)
	if err != nil {
		return "", err
	}
	java, err := fs.Sub(sources, "java")
	if err != nil {
		return "", err
	}
	return hadoop.Compile(dir, jars, java)
}

// A judge is a JVM that answers questions with Hadoop's classes; see
// java/Judge.java for the questions.
type judge struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	mu  sync.Mutex // of one question and its answer

	files      map[string]bool // what has been written to the cluster; nil if none runs
	clusterDir string
}

// startJudge starts the JVM. Hadoop's log goes to standard error from the
// given level on.
func startJudge(classPath, logLevel string) (*judge, error) {
	h := &judge{cmd: exec.Command("java", "-ea", "-Xms2g", "-Xmx2g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
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
func (h *judge) Close() error {
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
func (h *judge) ask(question string, args ...any) ([]string, error) {
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
