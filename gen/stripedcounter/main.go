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

// cpuid generates the feature test: CPUID leaf 1, ECX bit 13 is CMPXCHG16B;
// leaf 7, subleaf 0, ECX bit 22 is RDPID (Intel SDM volume 2, CPUID; AMD64 APM
// volume 3, appendix E).
func cpuid() {
	TEXT("hasRDPID", NOSPLIT, "func() bool")
	Doc("hasRDPID reports whether CPUID lists RDPID and CMPXCHG16B.")
	MOVB(Imm(0), address(ReturnIndex(0)))
	XORL(reg.EAX, reg.EAX)
	XORL(reg.ECX, reg.ECX)
	CPUID() // EAX is the highest leaf
	CMPL(reg.EAX, Imm(7))
	JB(LabelRef("absent"))
	MOVL(U32(1), reg.EAX)
	XORL(reg.ECX, reg.ECX)
	CPUID()
	BTL(Imm(13), reg.ECX)
	JCC(LabelRef("absent"))
	MOVL(U32(7), reg.EAX)
	XORL(reg.ECX, reg.ECX)
	CPUID()
	BTL(Imm(22), reg.ECX)
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
	d, cell := Load(Param("d"), GP64()), Load(Param("cell"), GP64())
	row := rowOfCPU()
	Label("one")
	lockAdd(d, Mem{Base: cell, Index: row, Scale: 1})
	RET()
	rowOfStack(row)
	JMP(LabelRef("one"))
}

// addRow2 generates add2. A locked instruction stops the core for longer than
// all the rest takes, so cells that form a 16-byte pair are added to by one:
// CMPXCHG16B, which compares RDX:RAX with memory and replaces it by RCX:RBX.
func addRow2() {
	TEXT("add2", NOSPLIT, "func(cell, cell2 *int64, mask, stride uintptr, d, d2 int64)")
	Doc(
		"add2 is add for two cells of one row; its twin is add2Generic. It is fastest when",
		"cell2 follows cell and cell is aligned to 16 bytes.")
	Pragma("noescape")
	d, d2 := Load(Param("d"), GP64()), Load(Param("d2"), GP64())
	cell, cell2 := Load(Param("cell"), GP64()), Load(Param("cell2"), GP64())
	row := rowOfCPU()

	Comment("a pair: the addresses differ in bit 3 alone, and cell has it clear")
	differ := GP64()
	MOVQ(cell, differ)
	XORQ(cell2, differ)
	CMPQ(differ, Imm(8))
	JNE(LabelRef("two"))
	TESTQ(U32(8), cell)
	JNE(LabelRef("two"))
	pair := GP64()
	LEAQ(Mem{Base: cell, Index: row, Scale: 1}, pair)
	MOVQ(Mem{Base: pair}, reg.RAX)
	MOVQ(Mem{Base: pair, Disp: 8}, reg.RDX)
	Label("again")
	MOVQ(reg.RAX, reg.RBX)
	ADDQ(d, reg.RBX)
	MOVQ(reg.RDX, reg.RCX)
	ADDQ(d2, reg.RCX)
	lock()
	CMPXCHG16B(Mem{Base: pair})
	JNE(LabelRef("again"))
	RET()

	Label("two")
	lockAdd(d, Mem{Base: cell, Index: row, Scale: 1})
	lockAdd(d2, Mem{Base: cell2, Index: row, Scale: 1})
	RET()
	rowOfStack(row)
	JMP(LabelRef("two"))
}

// rowOfCPU emits the common way to choose a row and returns its distance from
// row 0, in bytes.
func rowOfCPU() reg.GPVirtual {
	row := GP64()
	CMPB(Mem{Symbol: Symbol{Name: "·useRDPID"}, Base: reg.StaticBase}, Imm(0))
	JEQ(LabelRef("stack"))
	Comment("row = (CPU number & mask) * stride")
	rdpid(row)
	scale(row)
	return row
}

// rowOfStack emits the other way, that of stackHash.
func rowOfStack(row reg.GPVirtual) {
	Label("stack")
	Comment("row = (hash of the address of the arguments & mask) * stride")
	LEAQ(address(Param("cell")), row)
	SHRQ(Imm(11), row)
	IMUL3L(Imm(0x9E3779B9), row.As32(), row.As32())
	SHRL(Imm(16), row.As32())
	scale(row)
}

func scale(row reg.GPVirtual) {
	ANDQ(address(Param("mask")), row)
	IMULQ(address(Param("stride")), row)
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

// lock emits the prefix that makes the next instruction atomic. It is what makes
// counts exact: the thread may be moved to another CPU after RDPID. avo has no
// prefixes; to the assembler they are instructions.
func lock() { Instruction(&ir.Instruction{Opcode: "LOCK"}) }

func lockAdd(r Op, m Mem) {
	lock()
	ADDQ(r, m)
}
