// Package arm64 lets an avo program emit arm64 assembly. avo itself knows only
// x86 instructions; its file model, signatures, control-flow and liveness
// passes, graph-colouring allocator and printers do not depend on the
// instruction set, and are used here as they are. The instructions, their
// operands and the register file are this package's.
//
// A program builds one file:
//
//	p := arm64.New("!purego")
//	p.Func("sum", "func(b []byte) uint64", "sum ...")
//	ptr := p.GP()
//	p.Op("MOVD", p.Param("b_base"), ptr)
//	...
//	p.Op("RET")
//	p.Generate(cfg, "sum_arm64.s", "sum_arm64.go")
//
// Operands stand in the order of Go's assembler, the destination last. The
// flags are not tracked: nothing may stand between an instruction that sets
// them and the branch that reads them.
package arm64

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/buildtags"
	"github.com/mmcloughlin/avo/gotypes"
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
	"github.com/mmcloughlin/avo/reg"
)

// A Reg is a virtual register, or a view of one. reg.Register has unexported
// methods, so Reg embeds an avo virtual, which also gives it the identity that
// the liveness pass and the allocator work on.
type Reg struct {
	reg.Virtual
	view   kind
	format string // prints the register's number
}

// Asm returns the operand in the assembler's syntax.
func (r Reg) Asm() string { return fmt.Sprintf(r.format, r.VirtualIndex()) }

// B16 is the view of a vector register as sixteen bytes.
func (r Reg) B16() Reg { return r.vector(bytes16, "V%d.B16") }

// D1 is the view of a vector register's low 64 bits, VPMULL's source.
func (r Reg) D1() Reg { return r.vector(word1, "V%d.D1") }

// D2 is the view of a vector register as two 64-bit words, VPMULL2's source.
func (r Reg) D2() Reg { return r.vector(words2, "V%d.D2") }

// S4 is the view of a vector register as four 32-bit words.
func (r Reg) S4() Reg { return r.vector(words4, "V%d.S4") }

// Q1 is the view of a vector register as one 128-bit product.
func (r Reg) Q1() Reg { return r.vector(product, "V%d.Q1") }

// Q is the whole vector register as loads and stores name it.
func (r Reg) Q() Reg { return r.vector(whole, "F%d") }

// S is 32-bit lane i, 0 to 3, of a vector register.
func (r Reg) S(i int) Reg { return r.vector(lane, fmt.Sprintf("V%%d.S[%d]", i)) }

func (r Reg) vector(view kind, format string) Reg {
	if r.Kind() != reg.KindVector {
		view = invalid // a general register has no vector views; Op reports it
	}
	return Reg{r.Virtual, view, format}
}

// text is an operand without registers.
type text struct {
	kind kind
	asm  string
}

func (t text) Asm() string { return t.asm }

// Imm is an immediate.
func Imm(v int64) operand.Op {
	if v < 0 {
		return text{immediate, fmt.Sprintf("$-%#x", -v)}
	}
	return text{immediate, fmt.Sprintf("$%#x", v)}
}

// PLDL1KEEP makes PRFM prefetch into the first-level cache, to be read more than
// once.
var PLDL1KEEP operand.Op = text{hint, "PLDL1KEEP"}

// group is an operand made of registers: a memory reference, a pair or a list.
type group struct {
	kind   kind
	regs   []Reg
	format string // with one %s per register
}

func (g group) Asm() string {
	names := make([]any, len(g.regs))
	for i, r := range g.regs {
		names[i] = r.Asm()
	}
	return fmt.Sprintf(g.format, names...)
}

// Mem is the memory at base + disp. With an opcode's suffix .P the address is
// base, which grows by disp afterwards; with .W it grows by disp before.
func Mem(base Reg, disp int) operand.Op {
	return group{memory, []Reg{base}, fmt.Sprintf("%d(%%s)", disp)}
}

// Pair is the register operand of LDP, STP, FLDPQ and FSTPQ.
func Pair(a, b Reg) operand.Op {
	k := invalid
	if a.view == b.view {
		switch a.view {
		case general:
			k = generalPair
		case whole:
			k = wholePair
		}
	}
	return group{k, []Reg{a, b}, "(%s, %s)"}
}

// List is the one-register table of VTBL.
func List(a Reg) operand.Op {
	k := invalid
	if a.view == bytes16 {
		k = table
	}
	return group{k, []Reg{a}, "[%s]"}
}

// A Program is one assembly file. Mistakes are collected and reported by
// Compile and Generate.
type Program struct {
	file *ir.File
	fn   *ir.Function
	regs *reg.Collection
	errs []error
}

// New starts a file with the given build constraint, as after //go:build.
func New(constraint string) *Program {
	p := &Program{file: ir.NewFile()}
	c, err := buildtags.ParseConstraint(constraint)
	p.check(err)
	p.file.Constraints = c.ToConstraints()
	return p
}

func (p *Program) check(err error) {
	if err != nil {
		p.errs = append(p.errs, err)
	}
}

// Func starts a function. Its stub does not let arguments escape.
func (p *Program) Func(name, signature string, doc ...string) {
	s, err := gotypes.ParseSignature(signature)
	p.check(err)
	p.fn = ir.NewFunction(name)
	if err == nil {
		p.fn.SetSignature(s)
	}
	p.fn.Doc = doc
	p.fn.Attributes = attr.NOSPLIT
	p.fn.AddPragma("noescape")
	p.regs = reg.NewCollection()
	p.file.AddSection(p.fn)
}

// GP returns a fresh general register.
func (p *Program) GP() Reg {
	return Reg{p.regs.VirtualRegister(reg.KindGP, reg.S64), general, "R%d"}
}

// Vec returns a fresh vector register; instructions take one of its views.
func (p *Program) Vec() Reg {
	return Reg{p.regs.VirtualRegister(reg.KindVector, reg.S128), invalid, "V%d"}
}

// Label marks the next instruction.
func (p *Program) Label(name string) { p.fn.AddLabel(ir.Label(name)) }

// To is the target operand of a branch.
func To(label string) operand.Op { return operand.LabelRef(label) }

// Comment adds comment lines before the next instruction.
func (p *Program) Comment(lines ...string) { p.fn.AddComment(lines...) }

// Param is the argument called name, or its part (such as "b_base").
func (p *Program) Param(name string) operand.Op {
	c := p.fn.Signature.Params()
	base, part, ok := strings.Cut(name, "_")
	if !ok {
		return p.address(c.Lookup(name))
	}
	switch part {
	case "base":
		return p.address(c.Lookup(base).Base())
	case "len":
		return p.address(c.Lookup(base).Len())
	}
	p.check(fmt.Errorf("%s: no argument %q", p.fn.Name, name))
	return text{frame, name}
}

// Result is the only result.
func (p *Program) Result() operand.Op { return p.address(p.fn.Signature.Results().At(0)) }

func (p *Program) address(c gotypes.Component) operand.Op {
	b, err := c.Resolve()
	if err != nil {
		p.check(fmt.Errorf("%s: %w", p.fn.Name, err))
		return text{frame, "?"}
	}
	return text{frame, b.Addr.Asm()}
}

// Constants adds a read-only table of 64-bit words and returns the operand for
// its address.
func (p *Program) Constants(name string, words ...uint64) operand.Op {
	g := ir.NewStaticGlobal(name)
	g.Attributes = attr.RODATA | attr.NOPTR
	for _, w := range words {
		g.Append(operand.U64(w))
	}
	p.file.AddSection(g)
	return text{address, "$" + g.Symbol.String() + "(SB)"}
}

// Op appends an instruction.
func (p *Program) Op(opcode string, ops ...operand.Op) {
	i, err := instruction(opcode, ops)
	if err != nil {
		p.check(fmt.Errorf("%s: %w", p.fn.Name, err))
		return
	}
	p.fn.AddInstruction(i)
}

// instruction looks opcode up in the table of forms and records which
// registers it reads and writes.
func instruction(opcode string, ops []operand.Op) (*ir.Instruction, error) {
	name, suffix, indexed := strings.Cut(opcode, ".")
	f, err := lookup(name, ops)
	if err != nil {
		return nil, err
	}
	if indexed && (suffix != "P" && suffix != "W" || !slices.Contains(f.kinds, memory)) {
		return nil, fmt.Errorf("%s has no form with the suffix %s", name, suffix)
	}
	i := &ir.Instruction{
		Opcode:        opcode,
		Operands:      ops,
		IsTerminal:    name == "RET",
		IsBranch:      slices.Contains(f.kinds, label),
		IsConditional: name != "B",
	}
	if r := requires(name); r != "" {
		i.ISA = []string{r}
	}
	for k, op := range ops {
		var regs []Reg
		read, write := f.acts[k] != 'w', f.acts[k] != 'r'
		switch op := op.(type) {
		case Reg:
			regs = []Reg{op}
		case group:
			regs = op.regs
			if op.kind == memory { // the access itself does not change the base
				read, write = true, indexed
			}
		}
		for _, r := range regs {
			if read {
				i.Inputs = append(i.Inputs, r)
			}
			if write {
				i.Outputs = append(i.Outputs, r)
			}
		}
	}
	if i.IsBranch { // avo looks for the target in operand 0; allocate turns it back
		last := len(ops) - 1
		i.Operands = append([]operand.Op{ops[last]}, ops[:last]...)
	}
	return i, nil
}

// Compile resolves branches, allocates registers and binds them. It reports
// every mistake of the program.
func (p *Program) Compile() error {
	if err := errors.Join(p.errs...); err != nil {
		return err
	}
	return pass.Concat(
		pass.FunctionPass(pass.LabelTarget),
		pass.FunctionPass(pass.CFG),
		pass.FunctionPass(pass.Liveness),
		pass.FunctionPass(undefined),
		pass.FunctionPass(allocate),
		pass.Func(pass.IncludeTextFlagHeader),
		pass.FunctionPass(pass.RequiredISAExtensions),
	).Execute(p.file)
}

// Generate compiles the program and writes the assembly and the stubs.
func (p *Program) Generate(cfg printer.Config, asmFile, stubFile string) error {
	if err := p.Compile(); err != nil {
		return err
	}
	for _, out := range []struct {
		name string
		printer.Printer
	}{{asmFile, printer.NewGoAsm(cfg)}, {stubFile, printer.NewStubs(cfg)}} {
		b, err := out.Print(p.file)
		if err != nil {
			return err
		}
		if err := os.WriteFile(out.name, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// undefined rejects a function that reads a register it may not have written.
func undefined(fn *ir.Function) error {
	instructions := fn.Instructions()
	if len(instructions) == 0 {
		return fmt.Errorf("%s: no instructions", fn.Name)
	}
	if n := len(instructions[0].LiveIn); n != 0 {
		return fmt.Errorf("%s: %d registers read before they are written", fn.Name, n)
	}
	return nil
}

// physical is an arm64 register as avo's allocator sees it.
type physical struct {
	reg.Physical
	id reg.ID
}

func (p physical) ID() reg.ID     { return p.id }
func (p physical) Info() reg.Info { return reg.None }

// allocate is avo's AllocateRegisters and BindRegisters over arm64's registers:
// R0-R17 and R19-R26 (R18 is the platform's, R27-R31 the assembler's, g, FP, LR
// and SP) and V0-V31.
func allocate(fn *ir.Function) error {
	var all []reg.Physical
	dummy := reg.GeneralPurpose.Registers()[0]
	for n := range 32 {
		if n < 27 && n != 18 {
			all = append(all, physical{dummy, reg.ID(reg.KindGP)<<8 | reg.ID(n)<<16})
		}
		all = append(all, physical{dummy, reg.ID(reg.KindVector)<<8 | reg.ID(n)<<16})
	}
	a, err := pass.NewAllocator(all)
	if err != nil {
		return err
	}
	for _, i := range fn.Instructions() {
		for _, r := range append(i.InputRegisters(), i.OutputRegisters()...) {
			a.Add(r.ID())
		}
		for _, d := range i.OutputRegisters() {
			live := i.LiveOut.OfKind(d.Kind())
			for _, e := range i.OutputRegisters() { // two results must differ
				if e.Kind() == d.Kind() {
					live.AddRegister(e)
				}
			}
			live.DiscardRegister(d)
			a.AddInterferenceSet(d, live.OfKind(d.Kind()))
		}
	}
	got, err := a.Allocate()
	if err != nil {
		return fmt.Errorf("%s: %w", fn.Name, err)
	}
	bind := func(r Reg) Reg {
		r.Virtual = reg.NewVirtual(got[r.ID()].Index(), r.Kind(), reg.S128)
		return r
	}
	for _, i := range fn.Instructions() {
		for k, op := range i.Operands {
			switch op := op.(type) {
			case Reg:
				i.Operands[k] = bind(op)
			case group:
				op.regs = slices.Clone(op.regs)
				for j, r := range op.regs {
					op.regs[j] = bind(r)
				}
				i.Operands[k] = op
			}
		}
		if i.IsBranch {
			i.Operands = append(i.Operands[1:], i.Operands[0])
		}
	}
	return nil
}
