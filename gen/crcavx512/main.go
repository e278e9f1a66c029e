// Command crcavx512 writes the CRC kernels for amd64 with AVX-512 and
// VPCLMULQDQ.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"

	"github.com/blockpath/blockpath/gen/layout"
	"github.com/blockpath/blockpath/gen/x86"
)

const row = 64 // bytes in a vector

func main() {
	ConstraintExpr("!purego")
	single()
	for _, copy := range []x86.Copy{x86.NoCopy, x86.Cached, x86.NonTemporal} {
		dot(copy)
	}
	fused("avx512V12S3", 3, 12, 0)
	fused("avx512V8S3", 3, 8, 0)
	fused("avx512V6S9_512", 9, 6, 512)
	affine("avx512Affine", x86.NoCopy, false)
	affine("avx512AffineAhead", x86.NoCopy, true)
	affine("avx512Affine", x86.Cached, true)
	affine("avx512Affine", x86.NonTemporal, true)
	Generate()
}

var (
	// swap turns big-endian words into little-endian ones and back.
	swap Mem
	// third picks dword 2, the CRC, of each of the four lanes.
	third Mem
)

// xor3 sets dst to dst ^ a ^ b.
func xor3(a, b, dst Op) { VPTERNLOGQ(Imm(0x96), a, b, dst) }

// zmms returns n vector registers.
func zmms(n int) []VecVirtual {
	z := make([]VecVirtual, n)
	for i := range z {
		z[i] = ZMM()
	}
	return z
}

func zero(z VecVirtual) { VPXORQ(z, z, z) }

// The dot product of package x86: R = sum of w_i·K_i over the 64-bit words of a
// chunk, with K_i as poly.Dot gives them; the even words' products and the odd
// words' are two instructions. See reduce for what becomes of R.

// product sets r to the sum of k's and d's word products in each lane.
func product(k, d, r VecVirtual) {
	t := ZMM()
	VPCLMULQDQ(Imm(0x00), k, d, r)
	VPCLMULQDQ(Imm(0x11), k, d, t)
	VPXORQ(t, r, r)
}

// accumulate adds the products of k and d to acc. It overwrites d.
func accumulate(k, d, acc VecVirtual) {
	t := ZMM()
	VPCLMULQDQ(Imm(0x00), k, d, t)
	VPCLMULQDQ(Imm(0x11), k, d, d)
	xor3(t, d, acc)
}

// lanes returns a register whose lane i is the sum of the lanes of r[i], plus
// plus.
func lanes(r [4]VecVirtual, plus VecVirtual) VecVirtual {
	half := func(a, b VecVirtual) VecVirtual {
		lo, hi := ZMM(), ZMM()
		VSHUFI64X2(Imm(0x44), b, a, lo)
		VSHUFI64X2(Imm(0xEE), b, a, hi)
		VPXORQ(hi, lo, lo)
		return lo
	}
	ab, cd := half(r[0], r[1]), half(r[2], r[3])
	even, odd := ZMM(), ZMM()
	VSHUFI64X2(Imm(0x88), cd, ab, even)
	VSHUFI64X2(Imm(0xDD), cd, ab, odd)
	if plus == nil {
		VPXORQ(odd, even, even)
	} else {
		xor3(odd, plus, even)
	}
	return even
}

// reduce stores the CRCs of four chunks, big-endian, given R of one in each
// lane. table is the address of the constants.
func reduce(r VecVirtual, table Register, sums Mem) {
	Comment("Barrett: R ^ (R.lo·inverse).lo·full, whose dword 2 is the CRC")
	barrett, q, index := ZMM(), ZMM(), ZMM()
	VBROADCASTI32X4(Mem{Base: table, Disp: layout.Barrett}, barrett)
	VPCLMULQDQ(Imm(0x00), barrett, r, q)
	VPCLMULQDQ(Imm(0x10), barrett, q, q)
	VPXORQ(q, r, r)
	VMOVDQU32(third, index.AsX())
	VPERMD(r, index, r)
	VPSHUFB(swap, r.AsX(), r.AsX())
	VMOVDQU32(r.AsX(), sums)
}

// start is what the initial value of the register, all ones over the first
// four bytes of a chunk, and the final complement add to R, in every lane. k is
// the constant of the chunk's first row; the chunk is whole rows.
func start(k Mem) VecVirtual {
	s := ZMM()
	x, first := s.AsX(), XMM()
	VPTERNLOGD(Imm(0xFF), first, first, first)
	VPSRLDQ(Imm(12), first, first)
	VMOVDQU32(k, x)
	VPCLMULQDQ(Imm(0x00), first, x, x)
	VPSLLDQ(Imm(8), first, first)
	VPXORQ(first, x, x)
	VSHUFI64X2(Imm(0), s, s, s)
	return s
}

// masks sets low to select the first h bytes of a row and high the last h, for h
// up to 64.
func masks(h GPVirtual) (low, high Register) {
	m, up := GP64(), GP64()
	MOVQ(I32(-1), m)
	BZHIQ(h, m, m)
	low, high = K(), K()
	KMOVQ(m, low)
	MOVQ(U32(row), up)
	SUBQ(h, up)
	SHLXQ(up, m, m)
	KMOVQ(m, high)
	return low, high
}

// spilled returns what is left of the four bytes in register behind the first
// h.
func spilled(register, h GPVirtual) VecVirtual {
	rest, shift, none, v := GP64(), GP64(), GP64(), ZMM()
	MOVQ(h, shift)
	SHLQ(Imm(3), shift)
	SHRXQ(shift, register, rest)
	XORL(none.As32(), none.As32())
	CMPQ(h, Imm(4))
	CMOVQCC(none, rest)
	VMOVQ(rest, v.AsX())
	return v
}

// single is the dot product over one message.
func single() {
	TEXT("avx512Update", NOSPLIT, "func(crc uint32, src *byte, n int, t *uint64) uint32")
	Pragma("noescape")
	Doc("avx512Update adds the n bytes at src, 16 to 4096, to the CRC crc, as updateGeneric does.",
		"t is the polynomial's constants.")
	crc, t := GP64(), GP64()
	Load(Param("crc"), crc.As32())
	src, n := GP64(), GP64()
	Load(Param("src"), src)
	Load(Param("n"), n)
	Load(Param("t"), t)
	NOTL(crc.As32())

	Comment("the first row has the first 1 to 64 bytes, moved to its end")
	h := GP64()
	LEAQ(Mem{Base: n, Disp: -1}, h)
	ANDQ(U32(row-1), h)
	INCQ(h)
	low, high := masks(h)
	d, state := ZMM(), ZMM()
	CMPQ(n, U32(row))
	JAE(LabelRef("load"))
	Comment("A masked load that touches a page without access is slow though it does not",
		"fault. Where the 64 bytes from src leave the page, those up to the end do not.")
	page := GP64()
	MOVQ(src, page)
	ANDQ(U32(4095), page)
	CMPQ(page, U32(4096-row))
	JBE(LabelRef("within"))
	VMOVDQU8_Z(Mem{Base: src, Index: n, Scale: 1, Disp: -row}, high, d)
	VMOVQ(crc, state.AsX())
	VPEXPANDB_Z(state, high, state)
	VPXORQ(state, d, d)
	JMP(LabelRef("first"))
	Label("within")
	VMOVDQU8_Z(Mem{Base: src}, low, d)
	JMP(LabelRef("move"))
	Label("load")
	VMOVDQU64(Mem{Base: src}, d)
	Label("move")
	VMOVQ(crc, state.AsX())
	VPXORQ(state, d, d)
	VPEXPANDB_Z(d, high, d)

	Label("first")
	k, end, acc, kv := GP64(), GP64(), ZMM(), ZMM()
	LEAQ(Mem{Base: t, Disp: layout.DotEnd}, end)
	MOVQ(end, k)
	SUBQ(n, k)
	ADDQ(h, k)
	VMOVDQU64(Mem{Base: k, Disp: -row}, kv)
	product(kv, d, acc)
	CMPQ(k, end)
	JEQ(LabelRef("reduce"))
	rest := spilled(crc, h)
	ADDQ(h, src)
	Label("row")
	{
		kv := ZMM()
		VPXORQ(Mem{Base: src}, rest, d)
		VMOVDQU64(Mem{Base: k}, kv)
		accumulate(kv, d, acc)
		zero(rest)
		ADDQ(U32(row), src)
		ADDQ(U32(row), k)
		CMPQ(k, end)
		JNE(LabelRef("row"))
	}
	Label("reduce")
	y := YMM()
	VEXTRACTI64X4(Imm(1), acc, y)
	VPXOR(y, acc.AsY(), y)
	x := XMM()
	VEXTRACTI128(Imm(1), y, x)
	VPXOR(y.AsX(), x, x)
	barrett, q := XMM(), XMM()
	VMOVDQU(Mem{Base: t, Disp: layout.Barrett}, barrett)
	VPCLMULQDQ(Imm(0x00), barrett, x, q)
	VPCLMULQDQ(Imm(0x10), barrett, q, q)
	VPXOR(q, x, x)
	VPEXTRD(Imm(2), x, crc.As32())
	NOTL(crc.As32())
	Store(crc.As32(), ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// dot takes four chunks of any size at once.
func dot(copy x86.Copy) {
	name := "avx512Dot" + copy.Suffix
	TEXT(name, NOSPLIT, copy.Signature())
	Pragma("noescape")
	sizes := "4 to 4096"
	if copy.NonTemporal {
		sizes = "a multiple of 64 up to 4096"
	}
	Doc(copy.Doc(name, "CRC", 4, sizes)...)
	sums, n, t := GP64(), GP64(), GP64()
	src, dst := GP64(), GP64()
	Load(Param("sums"), sums)
	Load(Param("src"), src)
	Load(Param("n"), n)
	Load(Param("t"), t)
	if copy.Copying {
		Load(Param("dst"), dst)
	}
	groups := GP64()
	Load(Param("groups"), groups)

	h := GP64()
	MOVQ(n, h)
	ANDQ(U32(row-1), h)
	low, high := masks(h)
	end, first, k := GP64(), GP64(), GP64()
	LEAQ(Mem{Base: t, Disp: layout.DotEnd}, end)
	MOVQ(end, first)
	SUBQ(n, first)
	ADDQ(h, first)
	n3 := GP64()
	LEAQ(Mem{Base: n, Index: n, Scale: 2}, n3)
	at := func(p GPVirtual, c, disp int) Mem { return fiveAt(p, n, n3, c, disp) }

	Comment("what the initial value adds to R: it goes over the first four bytes")
	init := ZMM()
	{
		ones := GP64()
		v, kv, r := ZMM(), ZMM(), ZMM()
		MOVL(U32(0xFFFFFFFF), ones.As32())
		VMOVQ(ones, v.AsX())
		VPEXPANDB_Z(v, high, v)
		VMOVDQU64(Mem{Base: first, Disp: -row}, kv)
		product(kv, v, init)
		VMOVDQU64(Mem{Base: first}, kv)
		product(kv, spilled(ones, h), r)
		VPXORQ(r, init, init)
		Comment("the sum of its lanes, with the final complement, in every lane")
		VSHUFI64X2(Imm(0x4E), init, init, r)
		VPXORQ(r, init, init)
		VSHUFI64X2(Imm(0xB1), init, init, r)
		VPXORQ(r, init, init)
		VPTERNLOGD(Imm(0xFF), r, r, r)
		VPSRLDQ(Imm(12), r, r)
		VPSLLDQ(Imm(8), r, r)
		VPXORQ(r, init, init)
	}

	ahead := x86.Ahead(src, n, 4)
	var acc [4]VecVirtual
	Label("group")
	for c := range acc {
		acc[c] = ZMM()
		zero(acc[c])
	}
	MOVQ(first, k)
	if !copy.NonTemporal {
		TESTQ(h, h)
		JZ(LabelRef("rows"))
		Comment("the partial row, moved to its end")
		kv := ZMM()
		VMOVDQU64(Mem{Base: k, Disp: -row}, kv)
		for c := range acc {
			d := ZMM()
			VMOVDQU8_Z(at(src, c, 0), low, d)
			if copy.Copying {
				VMOVDQU8(d, low, at(dst, c, 0))
			}
			VPEXPANDB_Z(d, high, d)
			accumulate(kv, d, acc[c])
		}
		ADDQ(h, src)
		if copy.Copying {
			ADDQ(h, dst)
		}
		Label("rows")
		CMPQ(k, end)
		JEQ(LabelRef("reduce"))
	}
	Label("row")
	kv := ZMM()
	VMOVDQU64(Mem{Base: k}, kv)
	for c := range acc {
		d := ZMM()
		VMOVDQU64(at(src, c, 0), d)
		if copy.Copying {
			store(copy, d, at(dst, c, 0))
		}
		x86.Prefetch(copy, Mem{Base: ahead, Disp: row * c})
		accumulate(kv, d, acc[c])
	}
	ADDQ(U32(4*row), ahead)
	ADDQ(U32(row), src)
	if copy.Copying {
		ADDQ(U32(row), dst)
	}
	ADDQ(U32(row), k)
	CMPQ(k, end)
	JNE(LabelRef("row"))
	Label("reduce")
	reduce(lanes(acc, init), t, Mem{Base: sums})
	ADDQ(Imm(16), sums)
	ADDQ(n3, src)
	if copy.Copying {
		ADDQ(n3, dst)
	}
	DECQ(groups)
	JNZ(LabelRef("group"))
	VZEROUPPER()
	RET()
}

// fused takes scalar chunks with crc32q and vector chunks with the dot product
// at once: the instructions run on different ports. size is the length of a
// chunk, or 0 for any; a known one needs fewer registers.
func fused(name string, scalar, vector, size int) {
	chunks := scalar + vector
	TEXT(name, NOSPLIT, x86.NoCopy.Signature())
	Pragma("noescape")
	sizes := "a multiple of 64 up to 4096"
	if size > 0 {
		sizes = fmt.Sprint(size)
	}
	Doc(x86.NoCopy.Doc(name, "CRC-32C", chunks, sizes)...)
	sums, src, t := GP64(), GP64(), GP64()
	Load(Param("sums"), sums)
	Load(Param("src"), src)
	Load(Param("t"), t)
	left := AllocLocal(8)
	{
		groups := GP64()
		Load(Param("groups"), groups)
		MOVQ(groups, left)
	}
	n, n3, k := GP64(), GP64(), GP64()
	Load(Param("n"), n)
	ahead := x86.Ahead(src, n, chunks)
	MOVQ(n, k)
	NEGQ(k)
	init := start(Mem{Base: t, Index: k, Scale: 1, Disp: layout.DotEnd})
	at := func(c, disp int) Mem { return Mem{Base: src, Disp: c*size + disp} }
	bases := []GPVirtual{src}
	if size == 0 {
		LEAQ(Mem{Base: n, Index: n, Scale: 2}, n3)
		for c := 5; c < chunks; c += 5 {
			base := GP64()
			LEAQ(Mem{Base: bases[len(bases)-1], Index: n, Scale: 4}, base)
			ADDQ(n, base)
			bases = append(bases, base)
		}
		at = func(c, disp int) Mem { return fiveAt(bases[c/5], n, n3, c%5, disp) }
	}

	Label("group")
	crc := make([]GPVirtual, scalar)
	for s := range crc {
		crc[s] = GP64()
		MOVL(U32(0xFFFFFFFF), crc[s].As32())
	}
	acc := zmms(vector)
	for v := range acc {
		zero(acc[v])
	}
	if size == 0 {
		MOVQ(n, k)
		NEGQ(k)
	} else {
		MOVQ(I32(-size), k)
	}
	Label("row")
	kv := ZMM()
	VMOVDQU64(Mem{Base: t, Index: k, Scale: 1, Disp: layout.DotEnd}, kv)
	var ops []func()
	for q := range row / 8 {
		for s := range crc {
			ops = append(ops, func() { CRC32Q(at(s, 8*q), crc[s]) })
		}
	}
	units := vector + chunks
	done := 0
	spread := func(unit int) {
		for ; done < len(ops)*unit/units; done++ {
			ops[done]()
		}
	}
	unit := 0
	for v := range acc {
		d, u := ZMM(), ZMM()
		VMOVDQU64(at(scalar+v, 0), d)
		VPCLMULQDQ(Imm(0x00), kv, d, u)
		VPCLMULQDQ(Imm(0x11), kv, d, d)
		unit++
		for ; unit < (v+1)*units/vector; unit++ {
			if unit-v-1 < chunks {
				PREFETCHT0(Mem{Base: ahead, Disp: row * (unit - v - 1)})
			}
			spread(unit)
		}
		xor3(u, d, acc[v])
		spread(unit)
	}
	spread(units)
	for _, base := range bases {
		ADDQ(U32(row), base)
	}
	ADDQ(U32(chunks*row), ahead)
	ADDQ(U32(row), k)
	JNZ(LabelRef("row"))
	for s, c := range crc {
		NOTL(c.As32())
		BSWAPL(c.As32())
		MOVL(c.As32(), Mem{Base: sums, Disp: 4 * s})
	}
	for v := 0; v < vector; v += 4 {
		r := [4]VecVirtual{acc[v], acc[v+1], acc[min(v+2, vector-1)], acc[min(v+3, vector-1)]}
		if v+4 > vector {
			four := lanes(r, init)
			reduceTwo(four, t, Mem{Base: sums, Disp: 4 * (scalar + v)})
			continue
		}
		reduce(lanes(r, init), t, Mem{Base: sums, Disp: 4 * (scalar + v)})
	}
	ADDQ(U32(4*chunks), sums)
	Comment("the next group is chunks-1 further")
	if size == 0 {
		step := GP64()
		IMUL3Q(U32(uint32(chunks-1)), n, step)
		for _, base := range bases {
			ADDQ(step, base)
		}
	} else {
		ADDQ(U32(uint32((chunks-1)*size)), src)
	}
	DECQ(left)
	JNZ(LabelRef("group"))
	VZEROUPPER()
	RET()
}

// store writes a row of the copy.
func store(copy x86.Copy, d VecVirtual, m Mem) {
	if copy.NonTemporal {
		VMOVNTDQ(d, m)
	} else {
		VMOVDQU64(d, m)
	}
}

// fiveAt is the address of chunk c = 0..4 of n bytes from p on.
func fiveAt(p, n, n3 GPVirtual, c, disp int) Mem {
	switch c {
	case 0:
		return Mem{Base: p, Disp: disp}
	case 3:
		return Mem{Base: p, Index: n3, Scale: 1, Disp: disp}
	}
	return Mem{Base: p, Index: n, Scale: uint8(c), Disp: disp}
}

// reduceTwo is reduce for the first two lanes.
func reduceTwo(r VecVirtual, table Register, sums Mem) {
	barrett, q, index := ZMM(), ZMM(), ZMM()
	VBROADCASTI32X4(Mem{Base: table, Disp: layout.Barrett}, barrett)
	VPCLMULQDQ(Imm(0x00), barrett, r, q)
	VPCLMULQDQ(Imm(0x10), barrett, q, q)
	VPXORQ(q, r, r)
	VMOVDQU32(third, index.AsX())
	VPERMD(r, index, r)
	VPSHUFB(swap, r.AsX(), r.AsX())
	VMOVQ(r.AsX(), sums)
}

// affine takes three chunks with bit-matrix multiplication (poly.Affine) and
// one with the dot product at once: VGF2P8AFFINEQB and VPCLMULQDQ run on
// different ports, and on Zen 5 the former is four times as fast.
func affine(name string, copy x86.Copy, prefetch bool) {
	const chunks, last = 4, 3
	name += copy.Suffix
	TEXT(name, NOSPLIT, copy.Signature())
	Pragma("noescape")
	Doc(copy.Doc(name, "CRC", chunks, "a multiple of 128 up to 4096")...)
	sums, src, dst, n, t := GP64(), GP64(), GP64(), GP64(), GP64()
	Load(Param("sums"), sums)
	Load(Param("src"), src)
	Load(Param("n"), n)
	Load(Param("t"), t)
	if copy.Copying {
		Load(Param("dst"), dst)
	}
	groups := GP64()
	Load(Param("groups"), groups)
	n3, k := GP64(), GP64()
	LEAQ(Mem{Base: n, Index: n, Scale: 2}, n3)
	LEAQ(Mem{Base: t, Disp: layout.DotEnd}, k)
	SUBQ(n, k)
	init := start(Mem{Base: k})
	at := func(p GPVirtual, c, disp int) Mem { return fiveAt(p, n, n3, c, disp) }
	var ahead GPVirtual
	if prefetch {
		ahead = x86.Ahead(src, n, chunks)
	}

	Label("group")
	var plane [last][4]VecVirtual
	for c := range plane {
		for i := range plane[c] {
			plane[c][i] = ZMM()
			zero(plane[c][i])
		}
	}
	dotted := ZMM()
	zero(dotted)
	MOVQ(n, k)
	NEGQ(k)
	Label("rows")
	load := func(c, r int) VecVirtual {
		d := ZMM()
		VMOVDQU64(at(src, c, row*r), d)
		if copy.Copying {
			store(copy, d, at(dst, c, row*r))
		}
		return d
	}
	var d [last][2]VecVirtual
	for c := range d {
		d[c] = [2]VecVirtual{load(c, 0), load(c, 1)}
	}
	for i := range 4 {
		var m [2]VecVirtual
		for r := range m {
			m[r] = ZMM()
			VMOVDQU64(Mem{Base: t, Index: k, Scale: 4, Disp: layout.AffineEnd + row*(4*r+i)}, m[r])
		}
		for c := range d {
			x, y := ZMM(), ZMM()
			VGF2P8AFFINEQB(Imm(0), m[0], d[c][0], x)
			VGF2P8AFFINEQB(Imm(0), m[1], d[c][1], y)
			xor3(x, y, plane[c][i])
		}
		if prefetch {
			x86.Prefetch(copy, Mem{Base: ahead, Disp: row * 2 * i})
			x86.Prefetch(copy, Mem{Base: ahead, Disp: row * (2*i + 1)})
		}
		if i < 2 {
			kv := ZMM()
			VMOVDQU64(Mem{Base: t, Index: k, Scale: 1, Disp: layout.DotEnd + row*i}, kv)
			accumulate(kv, load(last, i), dotted)
		}
	}
	ADDQ(U32(2*row), src)
	if copy.Copying {
		ADDQ(U32(2*row), dst)
	}
	if prefetch {
		ADDQ(U32(8*row), ahead)
	}
	ADDQ(U32(2*row), k)
	JNZ(LabelRef("rows"))

	Comment("planes 0 and 1, 2 and 3 as the two words of a lane, the four chunks' in one register")
	var low, high [4]VecVirtual
	pair := func(a, b VecVirtual) VecVirtual {
		x := ZMM()
		VPUNPCKLQDQ(b, a, x)
		VPUNPCKHQDQ(b, a, a)
		VPXORQ(a, x, x)
		return x
	}
	for c := range plane {
		low[c], high[c] = pair(plane[c][0], plane[c][1]), pair(plane[c][2], plane[c][3])
	}
	low[last], high[last] = dotted, high[0]
	l, h := lanes(low, nil), lanes(high, nil)
	Comment("R = q_0<<8 ^ q_1<<16 ^ q_2<<24 ^ q_3<<32; the last lane is R already")
	r := ZMM()
	for i, q := range []VecVirtual{l, l, h, h} {
		m := ZMM()
		VMOVDQU64(shifts.Offset(row*i), m)
		VPSHUFB(m, q, m)
		if i == 0 {
			VPXORQ(m, init, r)
		} else {
			VPXORQ(m, r, r)
		}
	}
	reduce(r, t, Mem{Base: sums})
	ADDQ(Imm(4*chunks), sums)
	ADDQ(n3, src)
	if copy.Copying {
		ADDQ(n3, dst)
	}
	DECQ(groups)
	JNZ(LabelRef("group"))
	VZEROUPPER()
	RET()
}

// shifts are byte shuffles that shift word 0 or 1 of lanes 0 to 2 up, for the
// four planes; lane 3 passes through the first.
var shifts Mem

func init() {
	swap = x86.Bytes("swap", 3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12)
	third = x86.Bytes("third", 2, 0, 0, 0, 6, 0, 0, 0, 10, 0, 0, 0, 14, 0, 0, 0)
	var table []byte
	for plane := range 4 {
		for lane := range 4 {
			for i := range 16 {
				switch from := i - plane - 1; {
				case lane == 3 && plane == 0:
					table = append(table, byte(i))
				case lane < 3 && 0 <= from && from < 8:
					table = append(table, byte(8*(plane%2)+from))
				default:
					table = append(table, 0x80)
				}
			}
		}
	}
	shifts = x86.Bytes("shifts", table...)
}
