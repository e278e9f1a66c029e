// Package x86 emits the CRC kernels that exist for both XMM registers with SSE
// instructions and YMM registers with AVX2 and VPCLMULQDQ.
//
// The kernels are dot products: the CRC of a chunk of 64-bit words w_i is
//
//	R = sum of w_i·K_i
//
// modulo the polynomial, with the K_i of poly.Dot, which depend only on the
// distance of a word from the chunk's end. Unlike folding, that leaves no chain
// of dependent multiplications, and chunks can be taken in parallel with each
// K_i loaded once. Vector instructions multiply the even words and the odd
// words of a row; R is the sum of all their results, at most 96 bits long.
//
// A chunk need not be whole rows. Zeros in front of a message change nothing,
// so its first n mod 16 bytes are moved to the end of a row of zeros.
package x86

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"

	"github.com/blockpath/blockpath/gen/layout"
)

// An ISA is a register width with its encoding.
type ISA struct {
	Width int  // bytes in a register
	VEX   bool // three-operand instructions
}

var (
	SSE = ISA{16, false}
	AVX = ISA{32, true}
)

// half is the ISA's 16-byte registers.
func (i ISA) half() ISA { return ISA{16, i.VEX} }

// New returns a fresh register.
func (i ISA) New() VecVirtual {
	if i.Width == 32 {
		return YMM()
	}
	return XMM()
}

// Load sets d to the register-wide memory at m, at any alignment.
func (i ISA) Load(m Mem, d Register) {
	if i.VEX {
		VMOVDQU(m, d)
	} else {
		MOVOU(m, d)
	}
}

// Store writes s to m, at any alignment, or around the cache, which m must be
// aligned for.
func (i ISA) Store(s Register, m Mem, nonTemporal bool) {
	switch {
	case i.VEX && nonTemporal:
		VMOVNTDQ(s, m)
	case i.VEX:
		VMOVDQU(s, m)
	case nonTemporal:
		MOVNTO(s, m)
	default:
		MOVOU(s, m)
	}
}

// Zero clears d.
func (i ISA) Zero(d Register) {
	if i.VEX {
		VPXOR(d, d, d)
	} else {
		PXOR(d, d)
	}
}

// Xor adds a to d.
func (i ISA) Xor(a Op, d Register) {
	if i.VEX {
		VPXOR(a, d, d)
	} else {
		PXOR(a, d)
	}
}

// Multiply sets d to the carry-less products of a's words and b's: the even
// ones, or for imm 0x11 the odd ones, or for 0x10 a's even and b's odd ones. d
// may be a.
func (i ISA) Multiply(imm uint8, a, b, d Register) {
	if i.VEX {
		VPCLMULQDQ(Imm(uint64(imm)), b, a, d)
		return
	}
	if d != a {
		MOVOU(a, d)
	}
	PCLMULQDQ(Imm(uint64(imm)), b, d)
}

// Shuffle moves d's bytes as mask says.
func (i ISA) Shuffle(mask Op, d Register) {
	if i.VEX {
		VPSHUFB(mask, d, d)
	} else {
		PSHUFB(mask, d)
	}
}

// Low sets d to the word r and zeros.
func (i ISA) Low(r Register, d VecVirtual) {
	if i.VEX {
		VMOVQ(r, d.AsX())
	} else {
		MOVQ(r, d)
	}
}

// Bytes emits a read-only table and returns its address.
func Bytes(name string, b ...byte) Mem {
	m := GLOBL(name, RODATA|NOPTR)
	for i, v := range b {
		DATA(i, U8(v))
	}
	return m
}

// slide is a shuffle mask for each number h of bytes below 16: at slide + h
// starts the one that moves the first h bytes of a row to its end and clears
// the others.
func slide() Mem {
	b := make([]byte, 32)
	for i := range 16 {
		b[i], b[16+i] = 0x80, byte(i)
	}
	return Bytes("slide", b...)
}

// Tables are the byte tables that the emitters of a file share.
type Tables struct {
	slide Mem
	// sum turns dword 2 of a lane into a big-endian dword 0.
	sum Mem
}

// NewTables emits the tables; it is called once per file.
func NewTables() Tables {
	sum := []byte{11, 10, 9, 8, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80}
	return Tables{slide(), Bytes("sum", append(sum, sum...)...)}
}

// accumulate adds the products of the rows k and d to acc and overwrites d.
func (i ISA) accumulate(k, d, acc Register) {
	t := i.New()
	i.Multiply(0x00, k, d, t)
	i.Multiply(0x11, d, k, d)
	i.Xor(t, acc)
	i.Xor(d, acc)
}

// start returns what the initial value, over the first four bytes of a chunk,
// and the final complement add to R. h is the length of the partial row, mask
// its shuffle, first the address of the constants of the first whole row of 16
// bytes, before which stand those of the partial one.
func (i ISA) start(register Register, h GPVirtual, mask Register, first Register) VecVirtual {
	x := i.half()
	v, w, k, r := XMM(), XMM(), XMM(), XMM()
	Comment("the initial value goes over the first four bytes, which may be in two rows")
	i.Low(register, v)
	x.Shuffle(mask, v)
	x.Load(Mem{Base: first, Disp: -16}, k)
	x.Zero(r)
	x.accumulate(k, v, r)
	spill(h, register)
	i.Low(register, w)
	x.Load(Mem{Base: first}, k)
	x.accumulate(k, w, r)
	return r
}

// spill shifts out of the four bytes in register those that the partial row of
// h bytes has room for.
func spill(h GPVirtual, register Register) {
	none := GP64()
	XORL(none.As32(), none.As32())
	CMPQ(h, Imm(4))
	CMOVQCC(none, register)
	LEAQ(Mem{Base: h, Index: h, Scale: 1}, RCX)
	SHLQ(Imm(2), RCX)
	SHRQ(CL, register)
}

// barrett reduces R to R mod P, which is dword 2 of the result. table is the
// address of the constants.
func (i ISA) barrett(r VecVirtual, table Register) {
	b, q := i.New(), i.New()
	if i.Width == 32 {
		VBROADCASTI128(Mem{Base: table, Disp: layout.Barrett}, b)
	} else {
		i.Load(Mem{Base: table, Disp: layout.Barrett}, b)
	}
	i.Multiply(0x00, r, b, q)
	i.Multiply(0x10, q, b, q)
	i.Xor(q, r)
}

// store writes the big-endian sums of chunks to sums, given their R's and what
// start says, in every lane.
func (i ISA) store(r []VecVirtual, start VecVirtual, table Register, t Tables, sums func(c int) Mem) {
	if i.Width == 16 {
		for c := range r {
			i.Xor(start, r[c])
			i.barrett(r[c], table)
			i.Shuffle(t.sum, r[c])
			MOVSS(r[c], sums(c)) // the assembler takes MOVD for 64 bits
		}
		return
	}
	for c := 0; c < len(r); c += 2 {
		a, b := r[c], r[min(c+1, len(r)-1)]
		Comment("the sum of both lanes: chunk a's in lane 0, chunk b's in lane 1")
		x, y := YMM(), YMM()
		VPBLENDD(Imm(0xF0), b, a, x)
		VPERM2I128(Imm(0x21), b, a, y)
		VPXOR(y, x, x)
		VPXOR(start, x, x)
		i.barrett(x, table)
		VPSHUFB(t.sum, x, x)
		VMOVD(x.AsX(), sums(c))
		if c+1 < len(r) {
			VEXTRACTI128(Imm(1), x, x.AsX())
			VMOVD(x.AsX(), sums(c+1))
		}
	}
}

// everywhere copies lane 0 to the others, and adds the final complement.
func (i ISA) everywhere(r VecVirtual) VecVirtual {
	ones := XMM()
	if i.VEX {
		VPCMPEQD(ones, ones, ones)
		VPSRLDQ(Imm(12), ones, ones)
		VPSLLDQ(Imm(8), ones, ones)
	} else {
		PCMPEQL(ones, ones)
		PSRLDQ(Imm(12), ones)
		PSLLDQ(Imm(8), ones)
	}
	i.half().Xor(ones, r)
	if i.Width == 16 {
		return r
	}
	all := YMM()
	VINSERTI128(Imm(1), r, r.AsY(), all)
	return all
}

func end(i ISA) {
	if i.VEX {
		VZEROUPPER()
	}
	RET()
}

// OddMultiples returns registers with n, 3n, 5n and so on, for ChunkAt to reach
// the given number of chunks.
func OddMultiples(n GPVirtual, chunks int) []GPVirtual {
	index := []GPVirtual{n}
	for m := 3; m < chunks; m += 2 {
		r := GP64()
		LEAQ(Mem{Base: index[len(index)-1], Index: n, Scale: 2}, r)
		index = append(index, r)
	}
	return index
}

// ChunkAt returns the addresses of up to nine chunks of n bytes from p on, given
// the odd multiples of n.
func ChunkAt(p Register, index []GPVirtual) func(c, disp int) Mem {
	return func(c, disp int) Mem {
		if c == 0 {
			return Mem{Base: p, Disp: disp}
		}
		scale := c & -c
		return Mem{Base: p, Index: index[c/scale/2], Scale: uint8(scale), Disp: disp}
	}
}

// Single emits the dot product over one message of 16 to 4096 bytes.
func (i ISA) Single(name string, t Tables) {
	TEXT(name, NOSPLIT, "func(crc uint32, src *byte, n int, t *uint64) uint32")
	Pragma("noescape")
	Doc(name+" adds the n bytes at src, 16 to 4096, to the CRC crc, as updateGeneric does.",
		"t is the polynomial's constants.")
	x := i.half()
	crc, src, n, table := GP64(), GP64(), GP64(), GP64()
	Load(Param("crc"), crc.As32())
	Load(Param("src"), src)
	Load(Param("n"), n)
	Load(Param("t"), table)
	NOTL(crc.As32())

	h, k, last := GP64(), GP64(), GP64()
	LEAQ(Mem{Base: table, Disp: layout.DotEnd}, last)
	MOVQ(n, h)
	ANDQ(Imm(15), h)
	MOVQ(last, k)
	SUBQ(n, k)
	ADDQ(h, k)
	acc := i.New()
	i.Zero(acc)
	state := XMM()
	i.Low(crc, state)
	TESTQ(h, h)
	JZ(LabelRef("whole"))
	{
		Comment("the first n mod 16 bytes, right-aligned in a row")
		mask, kv, p := XMM(), XMM(), GP64()
		LEAQ(t.slide, p)
		x.Load(Mem{Base: p, Index: h, Scale: 1}, mask)
		d := XMM()
		x.Load(Mem{Base: src}, d)
		x.Xor(state, d)
		x.Shuffle(mask, d)
		x.Load(Mem{Base: k, Disp: -16}, kv)
		x.accumulate(kv, d, acc.AsX())
		spill(h, crc)
		i.Low(crc, state)
		ADDQ(h, src)
	}
	Label("whole")
	if i.Width == 32 {
		TESTB(Imm(16), n.As8())
		JZ(LabelRef("rows"))
		d, kv, p := XMM(), XMM(), XMM()
		x.Load(Mem{Base: src}, d)
		x.Xor(state, d)
		x.Load(Mem{Base: k}, kv)
		x.Zero(p)
		x.accumulate(kv, d, p)
		VPXOR(p.AsY(), acc, acc)
		x.Zero(state)
		ADDQ(Imm(16), src)
		ADDQ(Imm(16), k)
		Label("rows")
		CMPQ(k, last)
		JEQ(LabelRef("reduce"))
	}
	{
		d, kv := i.New(), i.New()
		i.Load(Mem{Base: src}, d)
		if i.Width == 32 {
			VPXOR(state.AsY(), d, d)
		} else {
			i.Xor(state, d)
		}
		i.Load(Mem{Base: k}, kv)
		i.accumulate(kv, d, acc)
		ADDQ(Imm(uint64(i.Width)), src)
		ADDQ(Imm(uint64(i.Width)), k)
	}
	CMPQ(k, last)
	JEQ(LabelRef("reduce"))
	Label("row")
	d, kv := i.New(), i.New()
	i.Load(Mem{Base: src}, d)
	i.Load(Mem{Base: k}, kv)
	i.accumulate(kv, d, acc)
	ADDQ(Imm(uint64(i.Width)), src)
	ADDQ(Imm(uint64(i.Width)), k)
	CMPQ(k, last)
	JNE(LabelRef("row"))
	Label("reduce")
	r := acc.AsX()
	if i.Width == 32 {
		y := XMM()
		VEXTRACTI128(Imm(1), acc, y)
		VPXOR(y, r, r)
		b, q := XMM(), XMM()
		x.Load(Mem{Base: table, Disp: layout.Barrett}, b)
		x.Multiply(0x00, r, b, q)
		x.Multiply(0x10, q, b, q)
		x.Xor(q, r)
		VPEXTRD(Imm(2), r, crc.As32())
	} else {
		i.barrett(acc, table)
		PEXTRD(Imm(2), r, crc.As32())
	}
	NOTL(crc.As32())
	Store(crc.As32(), ReturnIndex(0))
	end(i)
}

// A Copy says what a loop does with the data besides summing it.
type Copy struct {
	Suffix      string // of the function's name
	Copying     bool
	NonTemporal bool
}

var (
	NoCopy      = Copy{"", false, false}
	Cached      = Copy{"Copy", true, false}
	NonTemporal = Copy{"Stream", true, true}
)

// ahead is how many bytes ahead the loops prefetch at least. Measured on Zen 5
// with chunks of 512 bytes: from memory, 2048 is slower by a fifth, and in cache
// faster by a twentieth.
const ahead = 8192

// Ahead returns a register with the address from which a loop over groups of
// chunks of n bytes is to prefetch, in sequence whatever the order in which it
// reads: one group ahead, or more if that is near.
func Ahead(src, n GPVirtual, chunks int) GPVirtual {
	p, least := GP64(), GP64()
	IMUL3Q(U32(uint32(chunks)), n, p)
	MOVQ(U32(ahead), least)
	CMPQ(p, least)
	CMOVQCS(least, p)
	ADDQ(src, p)
	return p
}

// Prefetch fetches the line at m: what goes around the cache should leave it
// soon (on Zen 5 that makes copies 10 % faster).
func Prefetch(c Copy, m Mem) {
	if c.NonTemporal {
		PREFETCHNTA(m)
	} else {
		PREFETCHT0(m)
	}
}

// Signature is that of a loop over chunks of any size.
func (c Copy) Signature() string {
	if c.Copying {
		return "func(sums, dst, src *byte, n, groups int, t *uint64)"
	}
	return "func(sums, src *byte, n, groups int, t *uint64)"
}

// Doc is the stub's comment for a loop that takes so many chunks at once, of n
// bytes, which sizes describes.
func (c Copy) Doc(name, crc string, chunks int, sizes string) []string {
	doc := []string{
		fmt.Sprintf("%s writes the big-endian %s of each of groups·%d consecutive chunks at src to", name, crc, chunks),
		fmt.Sprintf("sums. A chunk has n bytes, %s.", sizes),
		"t is the polynomial's constants, groups at least 1.",
	}
	switch {
	case c.NonTemporal:
		doc = append(doc, "The chunks are copied to dst, around the cache; dst must be aligned to a register,",
			"and storeFence called in the end.")
	case c.Copying:
		doc = append(doc, "The chunks are copied to dst.")
	}
	return doc
}

// Dot emits the dot product over two chunks at once.
func (i ISA) Dot(name string, t Tables, copy Copy) {
	const chunks = 2
	name += copy.Suffix
	TEXT(name, NOSPLIT, copy.Signature())
	Pragma("noescape")
	sizes := "16 to 4096"
	if copy.NonTemporal {
		sizes = fmt.Sprintf("a multiple of %d up to 4096", i.Width)
	}
	Doc(copy.Doc(name, "CRC", chunks, sizes)...)
	x := i.half()
	sums, src, dst, n, groups, table := GP64(), GP64(), GP64(), GP64(), GP64(), GP64()
	Load(Param("sums"), sums)
	Load(Param("src"), src)
	if copy.Copying {
		Load(Param("dst"), dst)
	}
	Load(Param("n"), n)
	Load(Param("groups"), groups)
	Load(Param("t"), table)
	h, first, last, k := GP64(), GP64(), GP64(), GP64()
	LEAQ(Mem{Base: table, Disp: layout.DotEnd}, last)
	MOVQ(n, h)
	ANDQ(Imm(15), h)
	MOVQ(last, first)
	SUBQ(n, first)
	ADDQ(h, first)
	mask := XMM()
	{
		p := GP64()
		LEAQ(t.slide, p)
		x.Load(Mem{Base: p, Index: h, Scale: 1}, mask)
	}
	ones := GP64()
	MOVL(U32(0xFFFFFFFF), ones.As32())
	init := i.everywhere(i.start(ones, h, mask, first))
	from, to := ChunkAt(src, []GPVirtual{n}), ChunkAt(dst, []GPVirtual{n})
	ahead := Ahead(src, n, chunks)

	Label("group")
	acc := []VecVirtual{i.New(), i.New()}
	for c := range acc {
		i.Zero(acc[c])
	}
	MOVQ(first, k)
	if !copy.NonTemporal {
		TESTQ(h, h)
		JZ(LabelRef("whole"))
		Comment("the first n mod 16 bytes, right-aligned in a row")
		kv := XMM()
		x.Load(Mem{Base: k, Disp: -16}, kv)
		for c := range acc {
			d := XMM()
			x.Load(from(c, 0), d)
			if copy.Copying {
				x.Store(d, to(c, 0), false)
			}
			x.Shuffle(mask, d)
			x.accumulate(kv, d, acc[c].AsX())
		}
		ADDQ(h, src)
		if copy.Copying {
			ADDQ(h, dst)
		}
		Label("whole")
	}
	if i.Width == 32 && !copy.NonTemporal {
		TESTB(Imm(16), n.As8())
		JZ(LabelRef("rows"))
		kv := XMM()
		x.Load(Mem{Base: k}, kv)
		for c := range acc {
			d, p := XMM(), XMM()
			x.Load(from(c, 0), d)
			if copy.Copying {
				x.Store(d, to(c, 0), false)
			}
			x.Zero(p)
			x.accumulate(kv, d, p)
			VPXOR(p.AsY(), acc[c], acc[c])
		}
		ADDQ(Imm(16), src)
		if copy.Copying {
			ADDQ(Imm(16), dst)
		}
		ADDQ(Imm(16), k)
		Label("rows")
		CMPQ(k, last)
		JEQ(LabelRef("reduce"))
	}
	Label("row")
	kv := i.New()
	i.Load(Mem{Base: k}, kv)
	for c := range acc {
		d := i.New()
		i.Load(from(c, 0), d)
		if copy.Copying {
			i.Store(d, to(c, 0), copy.NonTemporal)
		}
		if c == 0 {
			Prefetch(copy, Mem{Base: ahead})
		}
		i.accumulate(kv, d, acc[c])
	}
	ADDQ(Imm(uint64(chunks*i.Width)), ahead)
	ADDQ(Imm(uint64(i.Width)), src)
	if copy.Copying {
		ADDQ(Imm(uint64(i.Width)), dst)
	}
	ADDQ(Imm(uint64(i.Width)), k)
	CMPQ(k, last)
	JNE(LabelRef("row"))
	Label("reduce")
	i.store(acc, init, table, t, func(c int) Mem { return Mem{Base: sums, Disp: 4 * c} })
	ADDQ(Imm(4*chunks), sums)
	ADDQ(n, src)
	if copy.Copying {
		ADDQ(n, dst)
	}
	DECQ(groups)
	JNZ(LabelRef("group"))
	end(i)
}

// Fused emits the loop that takes scalar chunks with crc32q and vector chunks
// with the dot product at once: the two instructions run on different ports.
// It is for CRC-32C only.
func (i ISA) Fused(name string, t Tables, scalar, vector int) {
	const unroll = 2
	chunks := scalar + vector
	TEXT(name, NOSPLIT, NoCopy.Signature())
	Pragma("noescape")
	Doc(NoCopy.Doc(name, "CRC-32C", chunks, fmt.Sprintf("a multiple of %d up to 4096", unroll*i.Width))...)
	sums, src, n, groups, table := GP64(), GP64(), GP64(), GP64(), GP64()
	Load(Param("sums"), sums)
	Load(Param("src"), src)
	Load(Param("n"), n)
	Load(Param("groups"), groups)
	Load(Param("t"), table)
	k := GP64()
	MOVQ(n, k)
	NEGQ(k)
	ones, kv := XMM(), XMM()
	init := XMM()
	{
		all := GP64()
		MOVL(U32(0xFFFFFFFF), all.As32())
		i.Low(all, ones)
		i.half().Load(Mem{Base: table, Index: k, Scale: 1, Disp: layout.DotEnd}, kv)
		i.half().Zero(init)
		i.half().accumulate(kv, ones, init)
	}
	init = i.everywhere(init)
	at := ChunkAt(src, OddMultiples(n, chunks))
	ahead := Ahead(src, n, chunks)

	Label("group")
	crc := make([]GPVirtual, scalar)
	for s := range crc {
		crc[s] = GP64()
		MOVL(U32(0xFFFFFFFF), crc[s].As32())
	}
	acc := make([]VecVirtual, vector)
	for v := range acc {
		acc[v] = i.New()
		i.Zero(acc[v])
	}
	MOVQ(n, k)
	NEGQ(k)
	Label("rows")
	// The XORs of a unit follow the multiplications of the next one, and all
	// crc32q of a unit stand before its multiplications: on Zen 3 a vector
	// multiplication is dispatched alone, and this order leaves no gap.
	type pending struct{ a, b, acc VecVirtual }
	var lag []pending
	flush := func() {
		for _, p := range lag {
			i.Xor(p.a, p.acc)
			i.Xor(p.b, p.acc)
		}
		lag = nil
	}
	lines, line := chunks*unroll*i.Width/64, 0
	for u := range unroll {
		var steps []func()
		for q := range i.Width / 8 {
			for s := range crc {
				steps = append(steps, func() { CRC32Q(at(s, u*i.Width+8*q), crc[s]) })
			}
		}
		kv := i.New()
		i.Load(Mem{Base: table, Index: k, Scale: 1, Disp: layout.DotEnd + u*i.Width}, kv)
		for v := range acc {
			for len(steps) > (vector-1-v)*i.Width/8*scalar/vector {
				steps[0]()
				steps = steps[1:]
			}
			for ; line < (u*vector+v+1)*lines/(unroll*vector); line++ {
				PREFETCHT0(Mem{Base: ahead, Disp: 64 * line})
			}
			d, p := i.New(), i.New()
			i.Load(at(scalar+v, u*i.Width), d)
			i.Multiply(0x00, kv, d, p)
			i.Multiply(0x11, d, kv, d)
			flush()
			lag = append(lag, pending{p, d, acc[v]})
		}
	}
	flush()
	ADDQ(Imm(uint64(unroll*i.Width)), src)
	ADDQ(U32(uint32(64*lines)), ahead)
	ADDQ(Imm(uint64(unroll*i.Width)), k)
	JNZ(LabelRef("rows"))
	for s, c := range crc {
		NOTL(c.As32())
		BSWAPL(c.As32())
		MOVL(c.As32(), Mem{Base: sums, Disp: 4 * s})
	}
	i.store(acc, init, table, t, func(c int) Mem { return Mem{Base: sums, Disp: 4 * (scalar + c)} })
	ADDQ(U32(uint32(4*chunks)), sums)
	Comment("src is at the end of the first chunk; the next group is chunks-1 further")
	LEAQ(at(chunks-1, 0), src)
	DECQ(groups)
	JNZ(LabelRef("group"))
	end(i)
}

// Eliminate emits the dot product over two chunks of n bytes at once after the
// first first bytes have been XORed away.
//
// offsets are byte distances with sum of x^(-8·o) = 1 modulo the polynomial
// (poly.Relation): a byte may be deleted if it is XORed at every such distance
// behind it. No distance is shorter than first, so what is added to is never
// itself deleted. A row of the rest thus is
//
//	row(j) ^ sum of row(j - o)
//
// where of row(j - o) only what lies in the first bytes counts; there are fewer
// multiplications by first/n, for loads and XORs that have ports of their own.
//
// A row(j - o) that straddles the chunk's start is read from up to 31 bytes
// before it, so the bytes before src must be readable.
func (i ISA) Eliminate(name string, t Tables, n, first int, offsets []int, sliding Mem) {
	const chunks = 2
	TEXT(name, NOSPLIT, "func(sums, src *byte, groups int, t *uint64)")
	Pragma("noescape")
	Doc(fmt.Sprintf("%s writes the big-endian CRC-32 of each of groups·2 consecutive chunks of %d", name, n),
		"bytes at src to sums. It reads, but does not use, up to 31 bytes before src. t is",
		"CRC-32's constants, groups at least 1.")
	sums, src, groups, table := GP64(), GP64(), GP64(), GP64()
	Load(Param("sums"), sums)
	Load(Param("src"), src)
	Load(Param("groups"), groups)
	Load(Param("t"), table)
	masks := GP64()
	LEAQ(sliding, masks)
	init := XMM()
	{
		all, ones, kv := GP64(), XMM(), XMM()
		MOVL(U32(0xFFFFFFFF), all.As32())
		i.Low(all, ones)
		i.half().Load(Mem{Base: table, Disp: layout.DotEnd - n}, kv)
		i.half().Zero(init)
		i.half().accumulate(kv, ones, init)
	}
	init = i.everywhere(init)

	Label("group")
	acc := []VecVirtual{i.New(), i.New()}
	for c := range acc {
		i.Zero(acc[c])
	}
	line, lines, rows := 0, chunks*n/64, (n-first)/i.Width
	for r := range rows {
		j := first + r*i.Width
		kv := i.New()
		i.Load(Mem{Base: table, Disp: layout.DotEnd - n + j}, kv)
		d := []VecVirtual{i.New(), i.New()}
		for c := range d {
			i.Load(Mem{Base: src, Disp: c*n + j}, d[c])
		}
		for _, o := range offsets {
			from := j - o
			switch {
			case from+i.Width <= 0 || from >= first: // all of it is elsewhere
			case from >= 0 && from+i.Width <= first:
				for c := range d {
					i.Xor(Mem{Base: src, Disp: c*n + from}, d[c])
				}
			default:
				// sliding is 32 zeros, 32 ones, 32 zeros
				mask := i.New()
				at := i.Width + from
				if from >= 0 {
					at = i.Width + from + i.Width - first
				}
				i.Load(Mem{Base: masks, Disp: at}, mask)
				for c := range d {
					part := i.New()
					VPAND(Mem{Base: src, Disp: c*n + from}, mask, part)
					i.Xor(part, d[c])
				}
			}
		}
		for ; line < (r+1)*lines/rows; line++ {
			PREFETCHT0(Mem{Base: src, Disp: max(ahead, chunks*n) + 64*line})
		}
		for c := range d {
			i.accumulate(kv, d[c], acc[c])
		}
	}
	i.store(acc, init, table, t, func(c int) Mem { return Mem{Base: sums, Disp: 4 * c} })
	ADDQ(Imm(4*chunks), sums)
	ADDQ(U32(uint32(chunks*n)), src)
	DECQ(groups)
	JNZ(LabelRef("group"))
	end(i)
}
