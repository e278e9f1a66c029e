// Command stripedcounter generates the amd64 assembly of package
// stripedcounter.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/gotypes"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func main() {
	ConstraintExpr("!purego")
	cpuid()
	addRow()
	addRow2()
	Generate()
}

// cpuid generates the feature test: CPUID leaf 7, subleaf 0, bit 22 of ECX
// (Intel SDM volume 2, CPUID; AMD64 APM volume 3, appendix E).
func cpuid() {
	const leaf, bit = 7, 22
	TEXT("hasRDPID", NOSPLIT, "func() bool")
	Doc("hasRDPID reports whether CPUID lists the RDPID instruction.")
	MOVB(Imm(0), address(ReturnIndex(0)))
	XORL(reg.EAX, reg.EAX)
	XORL(reg.ECX, reg.ECX)
	CPUID() // EAX is the highest leaf
	CMPL(reg.EAX, Imm(leaf))
	JB(LabelRef("absent"))
	MOVL(U32(leaf), reg.EAX)
	XORL(reg.ECX, reg.ECX)
	CPUID()
	BTL(Imm(bit), reg.ECX)
	SETCS(address(ReturnIndex(0)))
	Label("absent")
	RET()
}

// addRow generates add. The feature is tested in assembly and not in Go: a Go
// method that contains two calls is too large to be inlined into its callers.
func addRow() {
	TEXT("add", NOSPLIT, "func(cell *int64, mask, stride uintptr, d int64)")
	Doc(
		"add adds d to a cell of the column that begins with cell in row 0. The row is that",
		"of the CPU, its number & mask, and rows are stride bytes apart. Where RDPID is not",
		"usable the row is chosen as addGeneric, the twin of add, chooses it.")
	Pragma("noescape")
	d := Load(Param("d"), GP64())
	cell := Load(Param("cell"), GP64())
	row := chooseRow()
	lockAdd(d, Mem{Base: cell, Index: row, Scale: 1})
	RET()
	chooseRowByStack(row)
}

func addRow2() {
	TEXT("add2", NOSPLIT, "func(cell, cell2 *int64, mask, stride uintptr, d, d2 int64)")
	Doc("add2 is add for two cells of one row. Its twin is add2Generic.")
	Pragma("noescape")
	d, d2 := Load(Param("d"), GP64()), Load(Param("d2"), GP64())
	cell, cell2 := Load(Param("cell"), GP64()), Load(Param("cell2"), GP64())
	row := chooseRow()
	lockAdd(d, Mem{Base: cell, Index: row, Scale: 1})
	lockAdd(d2, Mem{Base: cell2, Index: row, Scale: 1})
	RET()
	chooseRowByStack(row)
}

// chooseRow emits the common path of the choice and returns the distance of the
// row from row 0, in bytes.
func chooseRow() reg.GPVirtual {
	row := GP64()
	Comment("row = CPU number")
	CMPB(Mem{Symbol: Symbol{Name: "·useRDPID"}, Base: reg.StaticBase}, Imm(0))
	JEQ(LabelRef("stack"))
	rdpid(row)
	Label("scale")
	Comment("row = (row & mask) * stride")
	ANDQ(address(Param("mask")), row)
	IMULQ(address(Param("stride")), row)
	return row
}

// chooseRowByStack emits the other path, stackHash.
func chooseRowByStack(row reg.GPVirtual) {
	Label("stack")
	Comment("row = uint32(address of the arguments>>11) * 0x9E3779B9 >> 16")
	LEAQ(address(Param("cell")), row)
	SHRQ(Imm(11), row)
	IMUL3L(Imm(0x9E3779B9), row.As32(), row.As32())
	SHRL(Imm(16), row.As32())
	JMP(LabelRef("scale"))
}

// address returns the memory of a parameter or result.
func address(of gotypes.Component) Mem {
	c, err := of.Resolve()
	if err != nil {
		panic(err)
	}
	return c.Addr
}

// rdpid emits RDPID, which avo does not know.
func rdpid(r reg.GPVirtual) {
	Instruction(&ir.Instruction{
		Opcode:   "RDPID",
		Operands: []Op{r},
		Outputs:  []Op{r},
		ISA:      []string{"RDPID"},
	})
}

// lockAdd emits a locked addition. The prefix is what makes counts exact: the
// thread may be moved to another CPU after RDPID. avo has no prefixes; to the
// assembler this one is an instruction of its own.
func lockAdd(r Op, m Mem) {
	Instruction(&ir.Instruction{Opcode: "LOCK"})
	ADDQ(r, m)
}
