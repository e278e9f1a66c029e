// Command crcsse42 writes the CRC kernels for amd64 with SSE4.2.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"

	"github.com/blockpath/blockpath/gen/layout"
	"github.com/blockpath/blockpath/gen/x86"
)

func main() {
	ConstraintExpr("!purego")
	update()
	chunks()
	compose()
	shift()
	fence()
	t := x86.NewTables()
	x86.SSE.Single("sse42Update", t)
	for _, copy := range []x86.Copy{x86.NoCopy, x86.Cached, x86.NonTemporal} {
		x86.SSE.Dot("sse42Dot", t, copy)
	}
	x86.SSE.Fused("sse42Fused", t, 3, 3)
	Generate()
}

// update is one chain of crc32q, three cycles a step, for short messages of any
// length with few branches to mispredict. The odd bytes come first: zeros in
// front of a message change nothing, so the first r = 1 to 8 bytes of w, with
// the register s over them, are a word of their own when shifted to its end,
//
//	crc32q(0, (w ^ s) << 8(8-r)) ^ s >> 8r
//
// where the last term is the part of s that reaches beyond them.
func update() {
	TEXT("castagnoliUpdate", NOSPLIT, "func(crc uint32, src *byte, n int) uint32")
	Pragma("noescape")
	Doc("castagnoliUpdate adds the n bytes at src, at least 1, to the CRC-32C crc, as", "updateGeneric does.")
	s := GP64()
	Load(Param("crc"), s.As32())
	src, n := GP64(), GP64()
	Load(Param("src"), src)
	Load(Param("n"), n)
	w, r := GP64(), GP64()
	NOTL(s.As32())
	LEAQ(Mem{Base: n, Disp: -1}, r)
	ANDQ(Imm(7), r)
	CMPQ(n, Imm(8))
	JB(LabelRef("short"))
	MOVQ(Mem{Base: src}, w)

	Label("odd")
	Comment("r is one less here, so that no shift is by 64")
	LEAQ(Mem{Base: src, Index: r, Scale: 1, Disp: 1}, src)
	SHLQ(Imm(3), r)
	MOVQ(r, RCX)
	XORQ(s, w)
	SHRQ(Imm(8), s)
	SHRQ(CL, s)
	XORQ(Imm(56), RCX)
	SHLQ(CL, w)
	crc := GP64()
	XORL(crc.As32(), crc.As32())
	CRC32Q(w, crc)
	XORQ(s, crc)
	DECQ(n)
	SHRQ(Imm(3), n)
	JZ(LabelRef("done"))
	Label("word")
	CRC32Q(Mem{Base: src}, crc)
	ADDQ(Imm(8), src)
	DECQ(n)
	JNZ(LabelRef("word"))
	Label("done")
	NOTL(crc.As32())
	Store(crc.As32(), ReturnIndex(0))
	RET()

	Label("short")
	Comment("4 to 7 bytes are two halves that overlap, 1 to 3 three bytes that may")
	t := GP64()
	CMPQ(n, Imm(4))
	JB(LabelRef("tiny"))
	MOVL(Mem{Base: src, Index: n, Scale: 1, Disp: -4}, w.As32())
	LEAQ(Mem{Disp: -32, Index: n, Scale: 8, Base: n}, RCX)
	SUBQ(n, RCX)
	SHLQ(CL, w)
	MOVL(Mem{Base: src}, t.As32())
	ORQ(t, w)
	JMP(LabelRef("odd"))
	Label("tiny")
	MOVBLZX(Mem{Base: src, Index: n, Scale: 1, Disp: -1}, w.As32())
	LEAQ(Mem{Disp: -8, Index: n, Scale: 8, Base: n}, RCX)
	SUBQ(n, RCX)
	SHLQ(CL, w)
	MOVQ(n, RCX)
	SHRQ(Imm(1), RCX)
	MOVBLZX(Mem{Base: src, Index: RCX, Scale: 1}, t.As32())
	SHLQ(Imm(3), RCX)
	SHLQ(CL, t)
	ORQ(t, w)
	MOVBLZX(Mem{Base: src}, t.As32())
	ORQ(t, w)
	JMP(LabelRef("odd"))
}

// chunks runs one crc32q chain in each of six chunks at once: the instruction
// takes three cycles but one or more can start in every cycle.
func chunks() {
	const k = 6
	TEXT("castagnoliChunks", NOSPLIT, "func(sums, src *byte, n, groups int)")
	Pragma("noescape")
	Doc(fmt.Sprintf("castagnoliChunks writes the big-endian CRC-32C of each of groups·%d consecutive", k),
		"chunks of n bytes at src to sums. groups is at least 1.")
	sums, src, n, groups := GP64(), GP64(), GP64(), GP64()
	Load(Param("sums"), sums)
	Load(Param("src"), src)
	Load(Param("n"), n)
	Load(Param("groups"), groups)
	index := x86.OddMultiples(n, k)
	at := x86.ChunkAt(src, index)
	ahead := x86.Ahead(src, n, k)
	crc := make([]GPVirtual, k)
	left := GP64()

	Label("group")
	for s := range crc {
		crc[s] = GP64()
		MOVL(U32(0xFFFFFFFF), crc[s].As32())
	}
	MOVQ(n, left)
	SUBQ(Imm(32), left)
	JB(LabelRef("words"))
	Label("quads")
	for q := range 4 {
		for s, c := range crc {
			CRC32Q(at(s, 8*q), c)
		}
		if q < k/2 {
			PREFETCHT0(Mem{Base: ahead, Disp: 64 * q})
		}
	}
	ADDQ(U32(32*k), ahead)
	ADDQ(Imm(32), src)
	SUBQ(Imm(32), left)
	JAE(LabelRef("quads"))
	Label("words")
	Comment("0 to 31 bytes are left, by the bits of their number")
	for _, size := range []int{16, 8, 4, 2, 1} {
		skip := fmt.Sprintf("less%d", size)
		TESTB(Imm(uint64(size)), left.As8())
		JZ(LabelRef(skip))
		for s, c := range crc {
			switch size {
			case 16:
				CRC32Q(at(s, 0), c)
				CRC32Q(at(s, 8), c)
			case 8:
				CRC32Q(at(s, 0), c)
			case 4:
				CRC32L(at(s, 0), c.As32())
			case 2:
				CRC32W(at(s, 0), c.As32())
			case 1:
				CRC32B(at(s, 0), c.As32())
			}
		}
		ADDQ(Imm(uint64(size)), src)
		Label(skip)
	}
	for s, c := range crc {
		NOTL(c.As32())
		BSWAPL(c.As32())
		MOVL(c.As32(), Mem{Base: sums, Disp: 4 * s})
	}
	ADDQ(Imm(4*k), sums)
	LEAQ(at(k-1, 0), src)
	DECQ(groups)
	JNZ(LabelRef("group"))
	RET()
}

// compose is a dot product whose words are CRCs.
func compose() {
	zext := GLOBL("zext", RODATA|NOPTR)
	for i, b := range []byte{3, 2, 1, 0, 0x80, 0x80, 0x80, 0x80, 7, 6, 5, 4, 0x80, 0x80, 0x80, 0x80} {
		DATA(i, U8(b))
	}
	TEXT("clmulCompose", NOSPLIT, "func(sums *byte, pairs int, k, t *uint64) uint32")
	Pragma("noescape")
	Doc("clmulCompose joins the 2·pairs big-endian CRCs at sums with the constants k, of",
		"poly.Compose, and returns the CRC of all blocks. pairs is at least 1.")
	sums, pairs, k, t := GP64(), GP64(), GP64(), GP64()
	Load(Param("sums"), sums)
	Load(Param("pairs"), pairs)
	Load(Param("k"), k)
	Load(Param("t"), t)
	mask, acc := XMM(), XMM()
	MOVOU(zext, mask)
	PXOR(acc, acc)
	Label("pair")
	c, lo, hi := XMM(), XMM(), XMM()
	MOVQ(Mem{Base: sums}, c)
	PSHUFB(mask, c)
	MOVOU(Mem{Base: k}, lo)
	MOVOU(lo, hi)
	PCLMULQDQ(Imm(0x00), c, lo)
	PCLMULQDQ(Imm(0x11), c, hi)
	PXOR(lo, acc)
	PXOR(hi, acc)
	ADDQ(Imm(8), sums)
	ADDQ(Imm(16), k)
	DECQ(pairs)
	JNZ(LabelRef("pair"))
	Store(reduce(acc, t), ReturnIndex(0))
	RET()
}

// shift multiplies by the squares of x^8 that n is made of.
func shift() {
	TEXT("clmulShift", NOSPLIT, "func(crc uint32, n uint64, squares *uint32, t *uint64) uint32")
	Pragma("noescape")
	Doc("clmulShift returns crc·x^(8n). squares holds x^(8·2^k).")
	n, squares, t := GP64(), GP64(), GP64()
	x, barrett := XMM(), XMM()
	{
		crc := GP64()
		Load(Param("crc"), crc.As32())
		MOVQ(crc, x)
	}
	Load(Param("n"), n)
	Load(Param("squares"), squares)
	Load(Param("t"), t)
	MOVOU(Mem{Base: t, Disp: layout.Barrett}, barrett)
	TESTQ(n, n)
	JZ(LabelRef("done"))
	Label("bit")
	{
		k, less, square, q := GP64(), GP64(), XMM(), XMM()
		BSFQ(n, k)
		MOVL(Mem{Base: squares, Index: k, Scale: 4}, k.As32())
		MOVQ(k, square)
		LEAQ(Mem{Base: n, Disp: -1}, less)
		Comment("the product of two reflected words of 32 bits as 96 bits is shifted by 33")
		PCLMULQDQ(Imm(0x00), square, x)
		PADDQ(x, x)
		PSLLDQ(Imm(4), x)
		reduceTo(x, q, barrett)
		PSRLDQ(Imm(8), x)
		ANDQ(less, n)
		JNZ(LabelRef("bit"))
	}
	Label("done")
	crc := GP64()
	MOVQ(x, crc)
	Store(crc.As32(), ReturnIndex(0))
	RET()
}

// reduceTo turns R into R ^ (R.lo·inverse).lo·full, whose bits 64 to 95 are R
// mod P and whose others are zero.
func reduceTo(r, q, barrett VecVirtual) {
	MOVOU(r, q)
	PCLMULQDQ(Imm(0x00), barrett, q)
	PCLMULQDQ(Imm(0x10), barrett, q)
	PXOR(q, r)
}

// reduce returns R mod P.
func reduce(r VecVirtual, table Register) GPVirtual {
	barrett, q, crc := XMM(), XMM(), GP32()
	MOVOU(Mem{Base: table, Disp: layout.Barrett}, barrett)
	reduceTo(r, q, barrett)
	PEXTRD(Imm(2), r, crc)
	return crc
}

// fence orders stores around the cache before what follows.
func fence() {
	TEXT("storeFence", NOSPLIT, "func()")
	Doc("storeFence makes stores around the cache visible before later stores.")
	SFENCE()
	RET()
}
