package arm64

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/printer"
)

// failure compiles the function that body emits and returns the error's text.
func failure(body func(p *Program)) string {
	p := New("!purego")
	p.Func("f", "func(b []byte, n uint64) uint64")
	body(p)
	if err := p.Compile(); err != nil {
		return err.Error()
	}
	return ""
}

func TestMistakes(t *testing.T) {
	for _, c := range []struct {
		name, want string
		body       func(p *Program)
	}{
		{"undefined register", "f: 1 registers read before they are written", func(p *Program) {
			a, b := p.GP(), p.GP()
			p.Op("MOVD", p.Param("n"), a)
			p.Op("ADD", b, a)
			p.Op("MOVD", a, p.Result())
			p.Op("RET")
		}},
		{"undefined on one path", "f: 1 registers read before they are written", func(p *Program) {
			a, b := p.GP(), p.GP()
			p.Op("MOVD", p.Param("n"), a)
			p.Op("CBZ", a, To("skip"))
			p.Op("MOVD", a, b)
			p.Label("skip")
			p.Op("MOVD", b, p.Result())
			p.Op("RET")
		}},
		{"exhausted general registers", "f: failed to allocate registers", func(p *Program) {
			var regs []Reg
			for range 27 {
				r := p.GP()
				p.Op("MOVD", p.Param("n"), r)
				regs = append(regs, r)
			}
			for _, r := range regs[1:] {
				p.Op("ADD", r, regs[0])
			}
			p.Op("MOVD", regs[0], p.Result())
			p.Op("RET")
		}},
		{"exhausted vector registers", "f: failed to allocate registers", func(p *Program) {
			base := p.GP()
			p.Op("MOVD", p.Param("b_base"), base)
			var regs []Reg
			for range 33 {
				r := p.Vec()
				p.Op("FMOVQ", Mem(base, 0), r.Q())
				regs = append(regs, r)
			}
			for _, r := range regs[1:] {
				p.Op("VEOR", r.B16(), regs[0].B16(), regs[0].B16())
			}
			p.Op("RET")
		}},
		{"unknown opcode", "f: CRC64X is not in the table of instructions", func(p *Program) {
			p.Op("CRC64X", p.GP(), p.GP())
		}},
		{"too few operands", "f: CRC32X does not take (a general register)", func(p *Program) {
			p.Op("CRC32X", p.GP())
		}},
		{"vector register for a general one", "f: CRC32X does not take (a whole vector register, a general register)", func(p *Program) {
			p.Op("CRC32X", p.Vec().Q(), p.GP())
		}},
		{"no view", "f: VEOR does not take (a malformed operand, a .B16 view, a .B16 view)", func(p *Program) {
			v := p.Vec()
			p.Op("VEOR", v, v.B16(), v.B16())
		}},
		{"wrong view", "f: VPMULL does not take (a .D2 view, a .D1 view, a .Q1 view)", func(p *Program) {
			v := p.Vec()
			p.Op("VPMULL", v.D2(), v.D1(), v.Q1())
		}},
		{"vector view of a general register", "f: VEOR does not take (a malformed operand, a .B16 view, a .B16 view)", func(p *Program) {
			v := p.Vec()
			p.Op("VEOR", p.GP().B16(), v.B16(), v.B16())
		}},
		{"mixed pair", "f: LDP does not take (memory, a malformed operand)", func(p *Program) {
			p.Op("LDP", Mem(p.GP(), 0), Pair(p.GP(), p.Vec().Q()))
		}},
		{"vector base", "f: MOVD does not take (a malformed operand, a general register)", func(p *Program) {
			p.Op("MOVD", Mem(p.Vec().Q(), 0), p.GP())
		}},
		{"foreign operand", "f: MOVD does not take (a malformed operand, a general register)", func(p *Program) {
			p.Op("MOVD", operand.Imm(1), p.GP())
		}},
		{"unknown argument", "f: unknown variable", func(p *Program) {
			p.Op("MOVD", p.Param("m"), p.GP())
		}},
		{"suffix of no form", "f: MOVD has no form with the suffix X", func(p *Program) {
			p.Op("MOVD.X", Mem(p.GP(), 8), p.GP())
		}},
		{"suffix without memory", "f: ADD has no form with the suffix P", func(p *Program) {
			p.Op("ADD.P", p.GP(), p.GP())
		}},
		{"two mistakes", "f: RET does not take (a general register)", func(p *Program) {
			p.Op("CRC32X", p.GP())
			p.Op("RET", p.GP())
		}},
		{"branch to nowhere", "unknown label", func(p *Program) {
			p.Op("B", To("nowhere"))
			p.Op("RET")
		}},
		{"empty function", "f: no instructions", func(p *Program) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := failure(c.body)
			if !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// loop emits a function with every kind of branch and a post-indexed load.
func loop() *Program {
	p := New("!purego")
	t := p.Constants("shifts", 1, 2)
	p.Func("loop", "func(b []byte) uint64", "loop adds words.")
	ptr, n, sum, w, shift := p.GP(), p.GP(), p.GP(), p.GP(), p.GP()
	p.Op("MOVD", p.Param("b_base"), ptr)
	p.Op("MOVD", p.Param("b_len"), n)
	p.Op("MOVD", t, shift)
	p.Op("MOVD", Mem(shift, 8), sum)
	p.Op("CBZ", n, To("done"))
	p.Label("next")
	p.Op("MOVD.P", Mem(ptr, 8), w)
	p.Op("TBZ", Imm(3), w, To("even"))
	p.Op("ADD", w, sum)
	p.Label("even")
	p.Op("SUBS", Imm(8), n)
	p.Op("BNE", To("next"))
	p.Label("done")
	p.Op("MOVD", sum, p.Result())
	p.Op("RET")
	return p
}

func TestGenerate(t *testing.T) {
	dir := t.TempDir()
	asm, stubs := filepath.Join(dir, "a.s"), filepath.Join(dir, "a.go")
	if err := loop().Generate(printer.Config{Name: "test", Pkg: "p"}, asm, stubs); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(asm)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"b_base+0(FP)", "b_len+8(FP)", "ret+24(FP)", "$shifts<>(SB)", "done", "MOVD.P 8(R", "SUBS", "BNE"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the assembly lacks %q:\n%s", want, text)
		}
	}
	stub, err := os.ReadFile(stubs)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(stub), "//go:noescape\nfunc loop(b []byte) uint64") {
		t.Errorf("the stub is wrong:\n%s", stub)
	}

	again := filepath.Join(dir, "b.s")
	if err := loop().Generate(printer.Config{Name: "test", Pkg: "p"}, again, stubs); err != nil {
		t.Fatal(err)
	}
	if second, _ := os.ReadFile(again); string(second) != string(text) {
		t.Error("two runs differ")
	}
}

// A post-indexed base is written as well as read, so it must not share its
// register with the value that the same instruction loads.
func TestTwoResultsDiffer(t *testing.T) {
	for _, i := range func() []string {
		p := loop()
		if err := p.Compile(); err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, i := range p.fn.Instructions() {
			if i.Opcode == "MOVD.P" {
				base := strings.Trim(strings.TrimPrefix(i.Operands[0].Asm(), "8"), "()")
				if base == i.Operands[1].Asm() {
					lines = append(lines, "MOVD.P loads "+base+" over its own base")
				}
			}
		}
		return lines
	}() {
		t.Error(i)
	}
}

// Every entry of the table is an instruction of Go's assembler.
func TestFormsAssemble(t *testing.T) {
	p := New("!purego")
	constants := p.Constants("words", 1, 2)
	count := 0
	for name, list := range forms {
		for _, form := range list {
			for _, suffix := range []string{"", ".P", ".W"} {
				if suffix != "" && (!strings.ContainsRune(form, rune(memory)) || name == "PRFM") {
					continue
				}
				count++
				p.Func(fmt.Sprintf("f%d", count), "func(n uint64) uint64")
				operandOf := func(k kind) operand.Op {
					g := func() Reg {
						r := p.GP()
						p.Op("MOVD", Imm(1), r)
						return r
					}
					v := func() Reg {
						r := p.Vec()
						p.Op("VMOVI", Imm(1), r.B16())
						return r
					}
					switch k {
					case general:
						return g()
					case generalPair:
						return Pair(g(), g())
					case immediate:
						return Imm(1)
					case memory:
						return Mem(g(), 16)
					case address:
						return constants
					case label:
						return To("next")
					case hint:
						return PLDL1KEEP
					case whole:
						return v().Q()
					case wholePair:
						return Pair(v().Q(), v().Q())
					case bytes16:
						return v().B16()
					case word1:
						return v().D1()
					case words2:
						return v().D2()
					case words4:
						return v().S4()
					case product:
						return v().Q1()
					case lane:
						return v().S(2)
					}
					return List(v().B16())
				}
				var ops []operand.Op
				for _, o := range strings.Fields(form) {
					switch {
					case kind(o[1]) != frame:
						ops = append(ops, operandOf(kind(o[1])))
					case o[0] == 'r':
						ops = append(ops, p.Param("n"))
					default:
						ops = append(ops, p.Result())
					}
				}
				p.Op(name+suffix, ops...)
				p.Label("next")
				p.Op("RET")
			}
		}
	}
	dir := t.TempDir()
	asm := filepath.Join(dir, "a.s")
	if err := p.Generate(printer.Config{Name: "test", Pkg: "p"}, asm, filepath.Join(dir, "a.go")); err != nil {
		t.Fatal(err)
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Skip("SKIPPED, nothing was assembled: no go command:", err)
	}
	cmd := exec.Command("go", "tool", "asm", "-p", "p", "-o", filepath.Join(dir, "a.o"),
		"-I", filepath.Join(strings.TrimSpace(string(root)), "pkg", "include"), asm)
	cmd.Env = append(os.Environ(), "GOARCH=arm64", "GOOS=linux")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A branch keeps what its target needs alive, and its label stands last.
func TestBranches(t *testing.T) {
	p := loop()
	if err := p.Compile(); err != nil {
		t.Fatal(err)
	}
	var branches []string
	for _, i := range p.fn.Instructions() {
		if i.IsBranch {
			branches = append(branches, i.Opcode+" "+i.Operands[len(i.Operands)-1].Asm())
		}
	}
	if want := []string{"CBZ done", "TBZ even", "BNE next"}; !slices.Equal(branches, want) {
		t.Errorf("branches %q, want %q", branches, want)
	}

	p = New("!purego")
	p.Func("f", "func(n uint64) uint64")
	n, late, other := p.GP(), p.GP(), p.GP()
	p.Op("MOVD", p.Param("n"), n)
	p.Op("MOVD", Imm(1), late)
	p.Op("CBZ", n, To("end"))
	p.Op("MOVD", Imm(2), other)
	p.Op("ADD", other, n)
	p.Label("end")
	p.Op("MOVD", late, p.Result())
	p.Op("RET")
	if err := p.Compile(); err != nil {
		t.Fatal(err)
	}
	i := p.fn.Instructions()
	if i[1].Operands[1].Asm() == i[3].Operands[1].Asm() {
		t.Errorf("%s is overwritten on the way to where it is read", i[1].Operands[1].Asm())
	}
}
