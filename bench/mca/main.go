// Command mca models the inner loops of the generated kernels with llvm-mca, for
// CPUs that nobody has measured:
//
//	go -C bench run ./mca [amd64|arm64]
//
// It prints bytes per cycle and writes results/modelled/<cpu>/crc.json. A model
// knows the ports and the latencies; it knows nothing of caches, of code fetch,
// nor of microcode. Wants llvm (Debian's newest: llvm-mca-N, llvm-objdump-N).
package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/blockpath/blockpath/bench/internal/lab"
)

// An architecture is what there is to model of one instruction set.
type architecture struct {
	name    string // GOARCH
	triple  string
	extra   string         // instruction sets that llvm-mca must not reject
	program string         // a main package that links all the functions
	comment *regexp.Regexp // what llvm-objdump adds to an instruction
	jumps   func(operation string) bool
	cpus    []cpu
	loops   []loop
}

// A cpu is a scheduling model of LLVM.
type cpu struct {
	model, microarchitecture, vendor string
	widest                           width
	// balanced is the kernel, without its polynomial's suffix, that is used on
	// this CPU and has to reach a figure in bytes per cycle; empty for none.
	balanced string
	figure   float64
}

// width is the instruction set of a kernel, or the widest of a CPU; each
// architecture has its own.
type width int

// A loop is the inner loop of a generated function. The code does not say how
// much data an iteration takes, so that stands here: chunks at once times bytes
// of each.
type loop struct {
	width    width
	function string // without its package, if that is crc/asm
	inner    int    // inner loops that the function has; the last one counts
	bytes    int
}

const pkg = "github.com/blockpath/blockpath/crc/asm."

func main() {
	architectures := []architecture{amd64, arm64}
	if len(os.Args) > 1 {
		architectures = slices.DeleteFunc(architectures, func(a architecture) bool { return a.name != os.Args[1] })
	}
	if len(architectures) == 0 || len(os.Args) > 2 {
		fmt.Fprintln(os.Stderr, "usage: go -C bench run ./mca [amd64|arm64]")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	for _, a := range architectures {
		if err := a.run(ctx, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "mca:", err)
			os.Exit(1)
		}
	}
}

func (a architecture) run(ctx context.Context, out io.Writer) error {
	mca, err := newest("llvm-mca")
	if err != nil {
		return err
	}
	objdump, err := newest("llvm-objdump")
	if err != nil {
		return err
	}
	version, err := exec.CommandContext(ctx, mca, "--version").Output()
	if err != nil {
		return err
	}
	number := regexp.MustCompile(`LLVM version \S+`).FindString(string(version))
	bodies, err := a.disassemble(ctx, objdump)
	if err != nil {
		return err
	}
	for _, c := range a.cpus {
		r := lab.NewReport("crc", out)
		r.Machine = lab.Machine{Model: c.model, Vendor: c.vendor, Microarchitecture: c.microarchitecture,
			Features: []string{}, Caches: map[string]int64{}, OS: "linux", Arch: a.name, Go: r.Machine.Go}
		r.Printf("%s, modelled by llvm-mca, %s, bytes per cycle\n", c.microarchitecture, number)
		reached := map[string]float64{}
		for _, l := range a.loops {
			if l.width > c.widest {
				continue
			}
			body, err := a.innerLoop(bodies[l.function], l.inner)
			if err != nil {
				return fmt.Errorf("%s: %w", l.function, err)
			}
			cycles, err := a.model(ctx, mca, c.model, body)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", c.model, l.function, err)
			}
			reached[l.function] = float64(l.bytes) / cycles
			r.Metric("modelled/"+l.function+"/bytes-per-cycle", reached[l.function])
			r.Printf("  %-30s %6.2f\n", l.function, reached[l.function])
		}
		if c.balanced != "" {
			for poly, suffix := range map[string]string{"crc32c": "Castagnoli", "crc32": "IEEE"} {
				r.Target(c.model+"/"+poly+"/bytes-per-cycle", fmt.Sprintf(">=%.4g", 0.9*c.figure), reached[c.balanced+suffix])
				r.Ratio("modelled/"+c.balanced+suffix+":hash-crc32", reached[c.balanced+suffix]/reached["hash/crc32."+strings.ToLower(suffix)+"Update"])
			}
			slices.SortFunc(r.Targets, func(a, b lab.Target) int { return strings.Compare(a.Name, b.Name) })
			r.PrintTargets()
		}
		if err := write(filepath.Join("results", "modelled", c.model, "crc.json"), r, "llvm-mca, "+number); err != nil {
			return err
		}
	}
	return nil
}

// write writes the report with a word on where its numbers come from.
func write(path string, r *lab.Report, modelled string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	b, err := json.MarshalIndent(struct {
		Modelled string `json:"modelled"`
		*lab.Report
	}{modelled, r}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o666)
}

// newest returns the path of the tool with the highest version.
func newest(tool string) (string, error) {
	paths, err := filepath.Glob("/usr/bin/" + tool + "-[0-9]*")
	if err != nil {
		return "", err
	}
	if len(paths) == 0 {
		return exec.LookPath(tool)
	}
	version := func(path string) int {
		n, _ := strconv.Atoi(path[strings.LastIndexByte(path, '-')+1:]) // the pattern ends with a digit
		return n
	}
	return slices.MaxFunc(paths, func(a, b string) int { return version(a) - version(b) }), nil
}

// An instruction is a line of assembly, x86's in AT&T syntax, at an address.
type instruction struct {
	addr uint64
	text string
}

// disassemble returns the instructions of every kernel function, and of
// hash/crc32's, by name. They are taken from a program that links them all.
func (a architecture) disassemble(ctx context.Context, objdump string) (map[string][]instruction, error) {
	dir, err := os.MkdirTemp("", "mca")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "program")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, a.program)
	build.Env = append(build.Environ(), "GOOS=linux", "GOARCH="+a.name, "CGO_ENABLED=0")
	if b, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", build, err, b)
	}
	f, err := elf.Open(program)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range symbols {
		if (strings.HasPrefix(s.Name, pkg) || strings.HasPrefix(s.Name, "hash/crc32.")) && strings.HasSuffix(s.Name, ".abi0") {
			names = append(names, s.Name)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("the program has no kernels")
	}
	text, err := exec.CommandContext(ctx, objdump, "-d", "--no-show-raw-insn",
		"--disassemble-symbols="+strings.Join(names, ","), program).Output()
	if err != nil {
		return nil, err
	}
	bodies := map[string][]instruction{}
	name := ""
	header := regexp.MustCompile(`^[0-9a-f]+ <(.*)>:$`)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if m := header.FindStringSubmatch(line); m != nil {
			name = strings.TrimSuffix(strings.TrimPrefix(m[1], pkg), ".abi0")
			continue
		}
		at, code, ok := strings.Cut(strings.TrimSpace(line), ":")
		addr, err := strconv.ParseUint(at, 16, 64)
		if !ok || err != nil {
			continue
		}
		bodies[name] = append(bodies[name], instruction{addr, a.comment.ReplaceAllString(strings.TrimSpace(code), "")})
	}
	return bodies, nil
}

// innerLoop returns the body of the last loop that has no loop inside, of which
// there must be as many as count says.
func (a architecture) innerLoop(body []instruction, count int) (inner []instruction, err error) {
	end, found := uint64(0), 0 // a jump to before the last jump back closes an outer loop
	for i, in := range body {
		operation, operands, _ := strings.Cut(in.text, "\t")
		if !a.jumps(operation) {
			continue
		}
		target := operands[strings.LastIndexByte(operands, ' ')+1:]
		to, err := strconv.ParseUint(strings.TrimPrefix(target, "0x"), 16, 64)
		if err != nil || to > in.addr {
			continue
		}
		if to >= end {
			from := slices.IndexFunc(body, func(x instruction) bool { return x.addr == to })
			if from < 0 {
				return nil, fmt.Errorf("the jump at %#x leaves the function", in.addr)
			}
			found++
			inner = body[from : i+1]
		}
		end = in.addr
	}
	if found != count || inner == nil {
		return nil, fmt.Errorf("%d inner loops, expected %d", found, count)
	}
	return inner, nil
}

// model returns the cycles that one iteration takes in a long run.
func (a architecture) model(ctx context.Context, mca, cpu string, body []instruction) (float64, error) {
	var source bytes.Buffer
	fmt.Fprintln(&source, "0:")
	for _, in := range body {
		text := in.text
		if operation, _, _ := strings.Cut(text, "\t"); a.jumps(operation) { // the target may be too far for a program that starts at 0
			text = text[:strings.LastIndexAny(text, " \t")+1] + "0b"
		}
		fmt.Fprintln(&source, text)
	}
	cmd := exec.CommandContext(ctx, mca, "-mtriple="+a.triple, "-mcpu="+cpu, "-mattr="+a.extra, "-iterations=200", "-json")
	cmd.Stdin = &source
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	b, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	var result struct {
		CodeRegions []struct {
			SummaryView struct{ Iterations, TotalCycles float64 }
		}
	}
	if err := json.Unmarshal(b, &result); err != nil {
		return 0, err
	}
	if len(result.CodeRegions) != 1 || result.CodeRegions[0].SummaryView.Iterations == 0 {
		return 0, fmt.Errorf("llvm-mca said %.300s", b)
	}
	s := result.CodeRegions[0].SummaryView
	return s.TotalCycles / s.Iterations, nil
}
