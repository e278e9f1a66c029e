// Interop puts blockpath before a judge: real Hadoop, its own Java classes in a
// JVM. Bytes that one side makes are read by the other, in both directions, on
// disk and on the wire. It prints a table of what agreed and exits with 1 if
// anything did not.
//
//	go -C bench run ./interop            every check
//	go -C bench run ./interop -full      the same with ten times as many values, more shapes, every byte damaged
//	go -C bench run ./interop -run disk  the checks whose name matches
//	go -C bench run ./interop -golden    write the golden files anew
//
// It needs java, javac and mvn. The jars stay in a cache directory, .cache/hadoop
// of the repository unless told otherwise.
package main

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
)

// checks in the order in which they run.
var checks = slices.Concat(wireChecks, streamChecks, sumChecks, diskChecks, fileChecks, clusterChecks, recoveryChecks, clientChecks, nodeChecks, faultChecks, scanChecks, twinChecks)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(1)
	}
}

func run() error {
	cache := flag.String("cache", filepath.Join("..", ".cache", "hadoop"), "directory for jars and classes")
	pattern := flag.String("run", "", "regular expression: run only the checks whose name it matches")
	full := flag.Bool("full", false, "take the time for more values, more shapes, and damage to every byte")
	seed := flag.Uint64("seed", 1, "seed of the generated values")
	golden := flag.Bool("golden", false, "write the golden files of the repository anew instead of checking")
	log := flag.String("log", "OFF", "level from which on Hadoop's log is shown")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	match, err := regexp.Compile(*pattern)
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(*cache)
	if err != nil {
		return err
	}
	classPath, err := hadoop.ClassPath(dir)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "blockpath-interop-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	h, err := startJudge(classPath, work, *log)
	if err != nil {
		return err
	}
	defer h.close()
	version, err := h.ask("version")
	if err != nil {
		return err
	}

	if *golden {
		t := &trial{judge: h, rng: rand.New(rand.NewPCG(*seed, 0)), dir: filepath.Join(work, "golden")}
		return t.run(check{"golden", func(t *trial) error { return writeGolden(t, "..") }})
	}

	fmt.Printf("Hadoop %s on Java %s\n\n", version[0], version[1])
	fmt.Printf("%-40s %9s %9s %9s %8s\n", "check", "agreed", "stricter", "disagreed", "seconds")
	passed, failed := 0, 0
	var strictNotes, notes []string
	for i, c := range checks {
		if !match.MatchString(c.name) {
			continue
		}
		t := &trial{
			judge: h, full: *full, rng: rand.New(rand.NewPCG(*seed, uint64(i))),
			dir: filepath.Join(work, fmt.Sprint(i)), stricter: map[string]int{}, notes: map[string]int{},
		}
		start := time.Now()
		if err := t.run(c); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		strict := 0
		for reason, n := range t.stricter {
			strict += n
			strictNotes = append(strictNotes, fmt.Sprintf("%s: %s (%d)", c.name, reason, n))
		}
		for text, n := range t.notes {
			notes = append(notes, fmt.Sprintf("%s: %s (%d)", c.name, text, n))
		}
		fmt.Printf("%-40s %9d %9d %9d %8.1f\n", c.name, t.agreed, strict, t.disagreed, time.Since(start).Seconds())
		for _, p := range t.problems {
			fmt.Println("    " + p)
		}
		if t.disagreed > 0 || t.agreed == 0 {
			failed++
		} else {
			passed++
		}
	}
	printNotes("Hadoop accepts and we refuse", strictNotes)
	printNotes("Both accept", notes)
	fmt.Printf("\n%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		return errors.New("blockpath and Hadoop disagree")
	}
	if passed == 0 {
		return errors.New("no check matches")
	}
	return nil
}

func printNotes(title string, notes []string) {
	if len(notes) > 0 {
		slices.Sort(notes)
		fmt.Printf("\n%s:\n  %s\n", title, strings.Join(notes, "\n  "))
	}
}

// A check asks about one subject.
type check struct {
	name string
	run  func(*trial) error // an error is a failure to ask, not a disagreement
}

// A trial is one run of a check.
type trial struct {
	judge     *judge
	full      bool // there is time for more
	rng       *rand.Rand
	dir       string // a directory of its own, for those that call mkdir
	agreed    int
	stricter  map[string]int // reason to count
	notes     map[string]int // what both accept although it is damaged, to count
	disagreed int
	problems  []string // the first few disagreements
}

// a broken is the panic by which ask leaves a check when the JVM is gone.
type broken struct{ err error }

func (t *trial) run(c check) (err error) {
	defer func() {
		if p := recover(); p != nil {
			b, ok := p.(broken)
			if !ok {
				panic(p)
			}
			err = b.err
		}
	}()
	return c.run(t)
}

// ask asks Hadoop. An exception comes back as the refusal; if the JVM is gone
// the check ends.
func (t *trial) ask(question string, args ...any) ([]string, *hadoop.Refusal) {
	answer, err := t.judge.ask(question, args...)
	var r *hadoop.Refusal
	if errors.As(err, &r) {
		return nil, r
	}
	if err != nil {
		panic(broken{err})
	}
	return answer, nil
}

// disagree records a disagreement.
func (t *trial) disagree(format string, args ...any) {
	t.disagreed++
	if len(t.problems) < 5 {
		text := fmt.Sprintf(format, args...)
		if len(text) > 1500 {
			text = text[:1500] + "..."
		}
		t.problems = append(t.problems, text)
	}
}

// strict records that Hadoop accepts what we refuse on purpose.
func (t *trial) strict(reason string) { t.stricter[reason]++ }

// note records that both accept something damaged.
func (t *trial) note(what string) { t.notes[what]++ }

// same records whether our answer is Hadoop's. what describes the question.
func (t *trial) same(ours, hadoops any, what string, args ...any) bool {
	if fmt.Sprint(ours) == fmt.Sprint(hadoops) {
		t.agreed++
		return true
	}
	t.disagree("%s: ours %v, Hadoop's %v", fmt.Sprintf(what, args...), ours, hadoops)
	return false
}

// times is n, or in a full run ten times as much.
func (t *trial) times(n int) int {
	if t.full {
		return 10 * n
	}
	return n
}

func (t *trial) mkdir() error { return os.MkdirAll(t.dir, 0o755) }

// bytes returns n generated bytes, of few or of all values.
func (t *trial) bytes(n int) []byte {
	mask := byte(255)
	if t.rng.IntN(4) == 0 {
		mask = 1
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(t.rng.Uint32()) & mask
	}
	return b
}

// int64 returns an extreme, a small number or any number.
func (t *trial) int64() int64 {
	switch t.rng.IntN(4) {
	case 0:
		extremes := []int64{0, 1, -1, 127, 128, 1<<31 - 1, 1 << 31, -1 << 31, 1<<32 - 1, 1<<63 - 1, -1 << 63}
		return extremes[t.rng.IntN(len(extremes))]
	case 1:
		return t.rng.Int64N(1 << 16)
	}
	return int64(t.rng.Uint64())
}

// word returns a short text, sometimes empty, sometimes beyond ASCII.
func (t *trial) word() string {
	letters := []rune("abcXYZ019-._ äß漢🗄")
	n := t.rng.IntN(24)
	if t.rng.IntN(50) == 0 {
		n = 300 // lengths of two bytes
	}
	s := make([]rune, n)
	for i := range s {
		s[i] = letters[t.rng.IntN(len(letters))]
	}
	return string(s)
}
