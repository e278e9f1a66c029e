// Command mca models the inner loops of the generated amd64 kernels with
// llvm-mca, for CPUs that nobody has measured:
//
//	go -C bench run ./mca
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

// A cpu is a scheduling model of LLVM.
type cpu struct {
	model, microarchitecture, vendor string
	widest                           width
}

// width is the instruction set of a kernel, or the widest of a CPU.
type width int

const (
	sse width = iota // SSE4.2 and PCLMULQDQ
	ymm              // AVX2 and VPCLMULQDQ
	zmm              // AVX-512, VPCLMULQDQ and GFNI
)

var cpus = []cpu{
	{"haswell", "Haswell", "Intel", sse},
	{"skylake-avx512", "Skylake-X", "Intel", sse},
	{"icelake-server", "Ice Lake", "Intel", zmm},
	{"sapphirerapids", "Sapphire Rapids", "Intel", zmm},
	{"znver2", "Zen 2", "AMD", sse},
	{"znver3", "Zen 3", "AMD", ymm},
	{"znver4", "Zen 4", "AMD", zmm},
}

// A loop is the inner loop of a generated function. The code does not say how
// much data an iteration takes, so that stands here: chunks at once times bytes
// of each.
type loop struct {
	width    width
	function string
	bytes    int
}

var loops = []loop{
	{sse, "castagnoliUpdate", 8},
	{sse, "castagnoliChunks", 6 * 32},
	{sse, "sse42Update", 16},
	{sse, "sse42Dot", 2 * 16},
	{sse, "sse42DotCopy", 2 * 16},
	{sse, "sse42Fused", 6 * 32},
	{ymm, "vpclmulUpdate", 32},
	{ymm, "vpclmulDot", 2 * 32},
	{ymm, "vpclmulDotCopy", 2 * 32},
	{ymm, "vpclmulFused", 6 * 64},
	{ymm, "vpclmulEliminate512", 2 * 512},
	{ymm, "vpclmulEliminate1024", 2 * 1024},
	{ymm, "vpclmulEliminate2048", 2 * 2048},
	{ymm, "vpclmulEliminate4096", 2 * 4096},
	{zmm, "avx512Update", 64},
	{zmm, "avx512Dot", 4 * 64},
	{zmm, "avx512DotCopy", 4 * 64},
	{zmm, "avx512V12S3_512", 15 * 64},
	{zmm, "avx512V6S9_512", 15 * 64},
	{zmm, "avx512Affine", 4 * 128},
	{zmm, "avx512AffineAhead", 4 * 128},
	{zmm, "avx512AffineCopy", 4 * 128},
}

const pkg = "github.com/blockpath/blockpath/crc/asm."

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mca:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
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
	bodies, err := disassemble(ctx, objdump)
	if err != nil {
		return err
	}
	for _, c := range cpus {
		r := lab.NewReport("crc", out)
		r.Machine = lab.Machine{Model: c.model, Vendor: c.vendor, Microarchitecture: c.microarchitecture,
			Features: []string{}, Caches: map[string]int64{}, OS: "linux", Arch: "amd64", Go: r.Machine.Go}
		r.Printf("%s, modelled by llvm-mca, %s, bytes per cycle\n", c.microarchitecture, number)
		for _, l := range loops {
			if l.width > c.widest {
				continue
			}
			body, err := innerLoop(bodies[l.function])
			if err != nil {
				return fmt.Errorf("%s: %w", l.function, err)
			}
			cycles, err := model(ctx, mca, c.model, body)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", c.model, l.function, err)
			}
			r.Metric("modelled/"+l.function+"/bytes-per-cycle", float64(l.bytes)/cycles)
			r.Printf("  %-22s %6.2f\n", l.function, float64(l.bytes)/cycles)
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

// An instruction is a line of assembly in AT&T syntax at an address.
type instruction struct {
	addr uint64
	text string
}

// disassemble returns the instructions of every kernel function, by name. They
// are taken from a program that links them all.
func disassemble(ctx context.Context, objdump string) (map[string][]instruction, error) {
	dir, err := os.MkdirTemp("", "mca")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "program")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./bochs")
	build.Env = append(build.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
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
		if strings.HasPrefix(s.Name, pkg) && strings.HasSuffix(s.Name, ".abi0") {
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
	comment := regexp.MustCompile(`\s*(#.*|<[^>]*>.*)$`)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if m := header.FindStringSubmatch(line); m != nil {
			name = strings.TrimSuffix(strings.TrimPrefix(m[1], pkg), ".abi0")
			continue
		}
		addr, code, ok := strings.Cut(strings.TrimSpace(line), ":")
		a, err := strconv.ParseUint(addr, 16, 64)
		if !ok || err != nil {
			continue
		}
		bodies[name] = append(bodies[name], instruction{a, comment.ReplaceAllString(strings.TrimSpace(code), "")})
	}
	return bodies, nil
}

// innerLoop returns the body of the only loop that has no loop inside.
func innerLoop(body []instruction) (inner []instruction, err error) {
	end := uint64(0) // a jump to before the last jump back closes an outer loop
	for i, in := range body {
		operation, target, _ := strings.Cut(in.text, "\t")
		if !strings.HasPrefix(operation, "j") {
			continue
		}
		to, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimSpace(target), "0x"), 16, 64)
		if err != nil || to > in.addr {
			continue
		}
		if to >= end {
			from := slices.IndexFunc(body, func(x instruction) bool { return x.addr == to })
			if from < 0 || inner != nil {
				return nil, fmt.Errorf("the jump at %#x is of another inner loop than the one known", in.addr)
			}
			inner = body[from : i+1]
		}
		end = in.addr
	}
	if inner == nil {
		return nil, errors.New("no loop")
	}
	return inner, nil
}

// model returns the cycles that one iteration takes in a long run.
func model(ctx context.Context, mca, cpu string, body []instruction) (float64, error) {
	var source bytes.Buffer
	for _, in := range body {
		fmt.Fprintln(&source, in.text)
	}
	cmd := exec.CommandContext(ctx, mca, "-mtriple=x86_64-linux-gnu", "-mcpu="+cpu, "-iterations=200", "-json")
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
