package hadoop

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
)

//go:embed java
var sources embed.FS

// ClassPath is the class path of a [JVM], whose jars and classes are kept in dir.
func ClassPath(dir string) (string, error) {
	jars, err := Jars(dir)
	if err != nil {
		return "", err
	}
	java, err := fs.Sub(sources, "java")
	if err != nil {
		return "", err
	}
	return Compile(dir, jars, java)
}

// A JVM answers questions with Hadoop's classes; see java/Judge.java for the
// questions.
type JVM struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	mu  sync.Mutex // of one question and its answer
}

// Start starts a JVM with the given options. Hadoop's log goes to standard error
// from the level on that the option -Djudge.log= names. Close must be called.
func Start(classPath string, options ...string) (*JVM, error) {
	args := append(append([]string{}, options...), "-cp", classPath, "Judge")
	j := &JVM{cmd: exec.Command("java", args...)}
	j.cmd.Stderr = os.Stderr
	var err error
	if j.in, err = j.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := j.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	j.out = bufio.NewReaderSize(out, 1<<20)
	return j, j.cmd.Start()
}

// Pid returns the process id.
func (j *JVM) Pid() int { return j.cmd.Process.Pid }

// Kill ends the JVM at once; what is being asked fails. Close must still be called.
func (j *JVM) Kill() error { return j.cmd.Process.Kill() }

// Close ends the JVM.
func (j *JVM) Close() error {
	j.in.Close()
	return j.cmd.Wait()
}

// A Refusal is the exception with which Hadoop answered.
type Refusal struct {
	Exception string
}

// Error returns the exception's text.
func (r *Refusal) Error() string { return "hadoop: " + r.Exception }

// Ask asks one question. Byte slices go as hex; everything else as fmt prints
// it. An exception comes back as a [*Refusal]. It is safe for concurrent use.
func (j *JVM) Ask(question string, args ...any) ([]string, error) {
	var line bytes.Buffer
	line.WriteString(question)
	for _, a := range args {
		line.WriteByte(' ')
		if b, ok := a.([]byte); ok {
			line.WriteString(Hex(b))
		} else {
			fmt.Fprint(&line, a)
		}
	}
	line.WriteByte('\n')
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, err := j.in.Write(line.Bytes()); err != nil {
		return nil, err
	}
	answer, err := j.out.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("the JVM ended: %w", err)
	}
	answer = strings.TrimSuffix(answer, "\n")
	if e, ok := strings.CutPrefix(answer, "err "); ok {
		return nil, &Refusal{Exception: e}
	}
	fields := strings.Split(answer, " ")
	if fields[0] != "ok" {
		return nil, errors.New("the JVM said: " + answer)
	}
	return fields[1:], nil
}

// Hex is how a JVM reads bytes.
func Hex(b []byte) string {
	if len(b) == 0 {
		return "-"
	}
	return hex.EncodeToString(b)
}

// Text is how a JVM reads a text.
func Text(s string) string { return Hex([]byte(s)) }

// Bytes is the inverse of Hex. A JVM writes only hex where bytes are expected,
// so anything else is a mistake of the caller and panics.
func Bytes(s string) []byte {
	if s == "-" {
		return nil
	}
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}

// Int reads a number of a JVM, which writes only numbers where one is expected.
func Int(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}
