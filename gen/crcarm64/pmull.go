package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"

	. "github.com/blockpath/blockpath/gen/arm64"
	"github.com/blockpath/blockpath/gen/layout"
)

// The kernels with PMULL are dot products: the CRC of a chunk of 64-bit words
// w_i is
//
//	R = sum of w_i·K_i
//
// modulo the polynomial, with the K_i of poly.Dot, which depend only on the
// distance of a word from the chunk's end. Unlike folding, that leaves no chain
// of dependent multiplications, and chunks can be taken in parallel with each
// K_i loaded once. PMULL multiplies the even words of a row of 16 bytes, PMULL2
// the odd ones; R is the sum of all products, at most 96 bits long. The CRC
// instructions run on a port of their own, so other chunks take them at the
// same time.
//
// A chunk need not be whole rows. Zeros in front of a message change nothing,
// so its first n mod 16 bytes are moved to the end of a row of zeros.

// width is the bytes in a row.
const width = 16

// tables are the byte tables that the functions share.
type tables struct {
	// slide + h holds the indices that move the first h bytes of a row to its
	// end and clear the others, slide + 16 + h those that move the first h
	// bytes out at the row's start.
	slide operand.Op
	// reverse turns the two big-endian dwords at a row's start into two words.
	reverse operand.Op
}

func newTables(p *Program) tables {
	const none = 0x8080808080808080 // beyond any row: VTBL gives 0
	return tables{
		slide: p.Constants("slide", none, none,
			0x0706050403020100, 0x0F0E0D0C0B0A0908, none, none),
		reverse: p.Constants("reverse", 0x8080808000010203, 0x8080808004050607),
	}
}

// xor adds a to d.
func xor(p *Program, a, d Reg) { p.Op("VEOR", a.B16(), d.B16(), d.B16()) }

// accumulate adds the products of the rows k and d to acc, whose old value
// becomes the new one in two steps: there are cores that execute a PMULL and an
// EOR of its result as one operation if they stand together so.
func accumulate(p *Program, k, d, acc Reg) {
	t := p.Vec()
	p.Op("VPMULL", k.D1(), d.D1(), t.Q1())
	xor(p, acc, t)
	p.Op("VPMULL2", k.D2(), d.D2(), acc.Q1())
	xor(p, t, acc)
}

// accumulate3 is accumulate with the three-way XOR.
func accumulate3(p *Program, k, d, acc Reg) {
	t, u := p.Vec(), p.Vec()
	p.Op("VPMULL", k.D1(), d.D1(), t.Q1())
	p.Op("VPMULL2", k.D2(), d.D2(), u.Q1())
	p.Op("VEOR3", t.B16(), u.B16(), acc.B16(), acc.B16())
}

// zeroed returns a cleared vector register.
func zeroed(p *Program) Reg {
	v := p.Vec()
	p.Op("VMOVI", Imm(0), v.B16())
	return v
}

// load returns the row at m.
func load(p *Program, m operand.Op) Reg {
	v := p.Vec()
	p.Op("FMOVQ", m, v.Q())
	return v
}

// slides returns the index rows for a partial row of h bytes: toEnd moves its
// bytes to the end of a row, out drops them from the start of one.
func (t tables) slides(p *Program, h Reg) (toEnd, out Reg) {
	a := p.GP()
	p.Op("MOVD", t.slide, a)
	p.Op("ADD", h, a)
	return load(p, Mem(a, 0)), load(p, Mem(a, width))
}

func shuffle(p *Program, index, from, to Reg) {
	p.Op("VTBL", index.B16(), List(from.B16()), to.B16())
}

// start returns what a register's value over the first four bytes of a message
// adds to R. first is the address of the constants of the first whole row,
// before which stand those of the partial one.
func start(p *Program, register, first, toEnd, out Reg) Reg {
	p.Comment("the register goes over the first four bytes, which may be in two rows")
	v, w, r := zeroed(p), p.Vec(), zeroed(p)
	p.Op("VMOV", register, v.S(0))
	shuffle(p, toEnd, v, w)
	accumulate(p, load(p, Mem(first, -width)), w, r)
	shuffle(p, out, v, v)
	accumulate(p, load(p, Mem(first, 0)), v, r)
	return r
}

// A barrett reduces sums modulo the polynomial.
type barrett struct{ inverse, full Reg }

// newBarrett loads the constants. table is the address of all constants.
func newBarrett(p *Program, table Reg) barrett {
	return barrett{load(p, Mem(table, layout.Barrett)), load(p, Mem(table, layout.Barrett+8))}
}

// reduce changes r to r ^ (r.lo·inverse).lo·full, whose dword 2 is r modulo the
// polynomial.
func (b barrett) reduce(p *Program, r Reg) {
	q := p.Vec()
	p.Op("VPMULL", b.inverse.D1(), r.D1(), q.Q1())
	p.Op("VPMULL", b.full.D1(), q.D1(), q.Q1())
	xor(p, q, r)
}

// position returns the length h of the partial row of n bytes at a message's
// start, the address of the constants of its first whole row, and the address
// where they end.
func position(p *Program, n, table Reg) (h, first, end Reg) {
	h, first, end = p.GP(), p.GP(), p.GP()
	p.Op("AND", Imm(width-1), n, h)
	p.Op("ADD", Imm(layout.DotEnd), table, end)
	p.Op("SUB", n, end, first)
	p.Op("ADD", h, first)
	return h, first, end
}

// compose joins CRCs of blocks.
func (t tables) compose(p *Program) {
	p.Func("clmulCompose", "func(sums *byte, pairs int, k, t *uint64) uint32",
		"clmulCompose joins the 2·pairs big-endian CRCs at sums with the constants k, of",
		"poly.Compose, and returns the CRC of all blocks. pairs is at least 1.")
	sums, pairs, k, table, a := p.GP(), p.GP(), p.GP(), p.GP(), p.GP()
	p.Op("MOVD", p.Param("sums"), sums)
	p.Op("MOVD", p.Param("pairs"), pairs)
	p.Op("MOVD", p.Param("k"), k)
	p.Op("MOVD", p.Param("t"), table)
	p.Op("MOVD", t.reverse, a)
	reverse, acc := load(p, Mem(a, 0)), zeroed(p)
	p.Label("pair")
	w, d, c := p.GP(), p.Vec(), p.Vec()
	p.Op("MOVD.P", Mem(sums, 8), w)
	p.Op("FMOVQ.P", Mem(k, width), c.Q())
	p.Op("VMOV", w, d.D2())
	shuffle(p, reverse, d, d)
	accumulate(p, c, d, acc)
	p.Op("SUBS", Imm(1), pairs)
	p.Op("BNE", To("pair"))
	newBarrett(p, table).reduce(p, acc)
	crc := p.GP()
	p.Op("VMOV", acc.S(2), crc)
	p.Op("MOVW", crc, p.Result())
	p.Op("RET")
}

// shift multiplies by the squares of x^8 that n is made of.
func shift(p *Program) {
	p.Func("clmulShift", "func(crc uint32, n uint64, squares *uint32, t *uint64) uint32",
		"clmulShift returns crc·x^(8n). squares holds x^(8·2^k).")
	crc, n, squares, table := p.GP(), p.GP(), p.GP(), p.GP()
	p.Op("MOVWU", p.Param("crc"), crc)
	p.Op("MOVD", p.Param("n"), n)
	p.Op("MOVD", p.Param("squares"), squares)
	p.Op("MOVD", p.Param("t"), table)
	b := newBarrett(p, table)
	p.Op("CBZ", n, To("done"))
	p.Label("bit")
	square, x, y := p.GP(), p.Vec(), p.Vec()
	p.Op("MOVWU.P", Mem(squares, 4), square)
	p.Op("TBZ", Imm(0), n, To("next"))
	p.Comment("the product of two reflected words of 32 bits as 96 bits is shifted by 33")
	p.Op("LSL", Imm(1), crc)
	p.Op("LSL", Imm(32), square)
	p.Op("VMOV", crc, x.D2())
	p.Op("VMOV", square, y.D2())
	p.Op("VPMULL", x.D1(), y.D1(), x.Q1())
	b.reduce(p, x)
	p.Op("VMOV", x.S(2), crc)
	p.Label("next")
	p.Op("LSR", Imm(1), n)
	p.Op("CBNZ", n, To("bit"))
	p.Label("done")
	p.Op("MOVW", crc, p.Result())
	p.Op("RET")
}

// A shape is a loop over groups of chunks: the first ones of a group are taken
// with the CRC instructions of the polynomial, the others by dot product.
type shape struct {
	name           string
	poly           polynomial // without meaning if scalar is 0
	vector, scalar int
	xor3           bool // three-way XOR
}

// load returns the two rows at a + offset.
func (s shape) load(p *Program, a Reg, offset int) (Reg, Reg) {
	if s.xor3 { // the cores that it is for have no double load of rows
		return load(p, Mem(a, offset)), load(p, Mem(a, offset+width))
	}
	e, f := p.Vec(), p.Vec()
	p.Op("FLDPQ", Mem(a, offset), Pair(e.Q(), f.Q()))
	return e, f
}

func (s shape) accumulate(p *Program, k, d, acc Reg) {
	if s.xor3 {
		accumulate3(p, k, d, acc)
	} else {
		accumulate(p, k, d, acc)
	}
}

// single emits the function for one message: the last bytes of the message are
// shared out to the chains, in equal parts, and what is before them is taken by
// dot product. The CRC of a part, as a word in front of the next one, has its
// place in the dot product too.
func (t tables) single(p *Program, s shape) {
	name, step := s.name+"Update"+s.poly.suffix, width*(s.vector+s.scalar)
	p.Func(name, "func(crc uint32, src *byte, n, steps int, t *uint64) uint32",
		fmt.Sprintf("%s adds the n bytes at src, 16 to 4096, to the %s crc, as updateGeneric", name, s.poly.title),
		fmt.Sprintf("does. steps is n/%d, t the polynomial's constants.", step))
	register, src, n, steps, table := p.GP(), p.GP(), p.GP(), p.GP(), p.GP()
	p.Op("MOVWU", p.Param("crc"), register)
	p.Op("MOVD", p.Param("src"), src)
	p.Op("MOVD", p.Param("n"), n)
	p.Op("MOVD", p.Param("steps"), steps)
	p.Op("MOVD", p.Param("t"), table)
	p.Op("MVNW", register, register)
	h, k, end := position(p, n, table)
	parts := newParts(p, s.scalar, src, n, steps, end)
	p.Comment("the constants of the first row that is summed together with chains")
	main := p.GP()
	p.Op("MOVD", Imm(int64(width*s.vector)), main)
	p.Op("MUL", steps, main, main)
	p.Op("SUB", main, parts.k[0], main)
	crc := make([]Reg, s.scalar)
	for i := range crc {
		crc[i] = p.GP()
		p.Op("MOVD", Imm(0), crc[i])
	}

	toEnd, out := t.slides(p, h)
	acc := []Reg{start(p, register, k, toEnd, out)}
	for len(acc) < s.vector {
		acc = append(acc, zeroed(p))
	}
	p.Op("CBZ", h, To("rows"))
	p.Comment("the first n mod 16 bytes, right-aligned in a row")
	d := load(p, Mem(src, 0))
	shuffle(p, toEnd, d, d)
	accumulate(p, load(p, Mem(k, -width)), d, acc[1])
	p.Op("ADD", h, src)
	p.Label("rows")
	p.Comment("rows, up to where whole steps are left")
	p.Op("CMP", main, k)
	p.Op("BEQ", To("steps"))
	{
		d, c := p.Vec(), p.Vec()
		p.Op("FMOVQ.P", Mem(src, width), d.Q())
		p.Op("FMOVQ.P", Mem(k, width), c.Q())
		accumulate(p, c, d, acc[2])
	}
	p.Op("B", To("rows"))
	p.Label("steps")
	p.Op("CBZ", steps, To("reduce"))
	p.Label("step")
	done := 0
	for r := 0; r < s.vector; r += 2 {
		if r+1 == s.vector {
			s.accumulate(p, load(p, Mem(k, r*width)), load(p, Mem(src, r*width)), acc[r])
		} else {
			c, d := s.load(p, k, r*width)
			e, f := s.load(p, src, r*width)
			s.accumulate(p, c, e, acc[r])
			s.accumulate(p, d, f, acc[r+1])
		}
		for ; done < s.scalar*min(r+2, s.vector)/s.vector; done++ {
			parts.step(p, s.poly, done, crc[done])
		}
	}
	p.Op("ADD", Imm(int64(width*s.vector)), src)
	p.Op("ADD", Imm(int64(width*s.vector)), k)
	p.Op("SUBS", Imm(1), steps)
	p.Op("BNE", To("step"))
	p.Label("reduce")
	last := parts.join(p, crc, acc, table)
	p.Op("MVNW", last, last)
	p.Op("MOVW", last, p.Result())
	p.Op("RET")
}

// parts are the equal parts at a message's end that chains take, and the
// constants of their first rows.
type parts struct{ at, k []Reg }

// newParts emits where they are in n bytes at src, with a row of each in a step
// and constants up to end.
func newParts(p *Program, count int, src, n, steps, end Reg) parts {
	length, at, k := p.GP(), p.GP(), end
	p.Comment("the parts that chains take, from the last on, and their constants")
	p.Op("LSL", Imm(4), steps, length)
	p.Op("ADD", src, n, at)
	ps := parts{make([]Reg, count), make([]Reg, count)}
	for i := count - 1; i >= 0; i-- {
		ps.at[i], ps.k[i] = p.GP(), p.GP()
		p.Op("SUB", length, at, ps.at[i])
		p.Op("SUB", length, k, ps.k[i])
		at, k = ps.at[i], ps.k[i]
	}
	return ps
}

// step adds a row of part i to its chain.
func (ps parts) step(p *Program, poly polynomial, i int, crc Reg) {
	x, y := p.GP(), p.GP()
	p.Op("LDP.P", Mem(ps.at[i], width), Pair(x, y))
	p.Op(poly.opcode+"X", x, crc)
	p.Op(poly.opcode+"X", y, crc)
}

// join returns the register after all parts and the sums: the chain of a part,
// as a word in front of the next part, has its place in the dot product, and
// what is before the last part is reduced.
func (ps parts) join(p *Program, crc, sums []Reg, table Reg) Reg {
	last := len(crc) - 1
	for i := range last {
		v := zeroed(p)
		p.Op("VMOV", crc[i], v.S(0))
		p.Op("VPMULL", load(p, Mem(ps.k[i+1], 0)).D1(), v.D1(), v.Q1())
		sums = append(sums, v)
	}
	for len(sums) > 1 {
		half := (len(sums) + 1) / 2
		for i := half; i < len(sums); i++ {
			xor(p, sums[i], sums[i-half])
		}
		sums = sums[:half]
	}
	newBarrett(p, table).reduce(p, sums[0])
	before := p.GP()
	p.Op("VMOV", sums[0].S(2), before)
	p.Op("EORW", before, crc[last])
	return crc[last]
}

// split is single without vectors: what is before the parts is the first
// chain's too.
func split(p *Program, poly polynomial, chains int) {
	name := poly.prefix + "Split"
	p.Func(name, "func(crc uint32, src *byte, n, steps int, t *uint64) uint32",
		fmt.Sprintf("%s adds the n bytes at src, %d to 4096, to the %s crc, as updateGeneric", name, chains*width, poly.title),
		fmt.Sprintf("does. steps is n/%d, t the polynomial's constants.", chains*width))
	src, n, steps, table, end := p.GP(), p.GP(), p.GP(), p.GP(), p.GP()
	crc := make([]Reg, chains)
	for i := range crc {
		crc[i] = p.GP()
		p.Op("MOVD", Imm(0), crc[i])
	}
	p.Op("MOVWU", p.Param("crc"), crc[0])
	p.Op("MOVD", p.Param("src"), src)
	p.Op("MOVD", p.Param("n"), n)
	p.Op("MOVD", p.Param("steps"), steps)
	p.Op("MOVD", p.Param("t"), table)
	p.Op("MVNW", crc[0], crc[0])
	p.Op("ADD", Imm(layout.DotEnd), table, end)
	parts := newParts(p, chains, src, n, steps, end)
	before := p.GP()
	p.Op("SUB", src, parts.at[0], before)
	words(p, poly, before, crc[:1], []Reg{src}, nil)
	p.Label("step")
	for i := range crc {
		parts.step(p, poly, i, crc[i])
	}
	p.Op("SUBS", Imm(1), steps)
	p.Op("BNE", To("step"))
	last := parts.join(p, crc, nil, table)
	p.Op("MVNW", last, last)
	p.Op("MOVW", last, p.Result())
	p.Op("RET")
}

// chunkLoop is the function for groups of chunks of a shape, while it is
// emitted.
type chunkLoop struct {
	*Program
	tables
	shape
	copying bool

	delta Reg   // from a chunk to its copy
	at    []Reg // where the chunks are read, those of the chains first
	crc   []Reg // of the chains
	acc   []Reg // sums of the dot products
	k     Reg   // address of the next constants
}

// unroll is the rows of each chunk in an iteration.
const unroll = 4

// loop emits a shape's function.
func (t tables) loop(p *Program, s shape, copying bool) {
	chunks := s.scalar + s.vector
	name, title, signature := s.name+s.poly.suffix, s.poly.title, "func(sums, src *byte, n, groups int, t *uint64)"
	if s.scalar == 0 {
		title = "CRC"
	}
	if copying {
		name, signature = name+"Copy", "func(sums, dst, src *byte, n, groups int, t *uint64)"
	}
	doc := []string{
		fmt.Sprintf("%s writes the big-endian %s of each of groups·%d consecutive chunks at", name, title, chunks),
		"src to sums. A chunk has n bytes, 128 to 4096.",
		"t is the polynomial's constants, groups at least 1.",
	}
	if copying {
		doc = append(doc, "The chunks are copied to dst.")
	}
	p.Func(name, signature, doc...)

	l := chunkLoop{Program: p, tables: t, shape: s, copying: copying}
	sums, n, groups, table := p.GP(), p.GP(), p.GP(), p.GP()
	for range chunks {
		l.at = append(l.at, p.GP())
	}
	p.Op("MOVD", p.Param("sums"), sums)
	p.Op("MOVD", p.Param("src"), l.at[0])
	p.Op("MOVD", p.Param("n"), n)
	p.Op("MOVD", p.Param("groups"), groups)
	p.Op("MOVD", p.Param("t"), table)
	if copying {
		l.delta = p.GP()
		p.Op("MOVD", p.Param("dst"), l.delta)
		p.Op("SUB", l.at[0], l.delta)
	}
	h, first, _ := position(p, n, table)
	init := l.init(h, first)

	p.Label("group")
	p.Comment("arguments that are only needed here are loaded anew")
	p.Op("MOVD", p.Param("n"), n)
	p.Op("MOVD", p.Param("t"), table)
	ahead := p.GP()
	for c := 1; c < chunks; c++ {
		p.Op("ADD", n, l.at[c-1], l.at[c])
	}
	p.Op("ADD", n, l.at[chunks-1], ahead)
	for range s.scalar {
		crc := p.GP()
		p.Op("MOVD", Imm(0xFFFFFFFF), crc)
		l.crc = append(l.crc, crc)
	}
	for range s.vector {
		l.acc = append(l.acc, zeroed(p))
	}
	h, k, end := position(p, n, table)
	l.k = k

	p.Op("CBZ", h, To("rows"))
	l.head(h)
	p.Label("rows")
	p.Comment("rows, up to where a multiple of four is left")
	left := p.GP()
	p.Op("SUB", k, end, left)
	p.Op("TST", Imm(unroll*width-1), left)
	p.Op("BEQ", To("four"))
	l.row()
	p.Op("B", To("rows"))

	p.Label("four")
	l.four(ahead)
	p.Op("CMP", end, k)
	p.Op("BNE", To("four"))

	l.store(init, table, sums)
	p.Comment("the last chunk's end is the next group's start")
	p.Op("MOVD", l.at[chunks-1], l.at[0])
	p.Op("SUBS", Imm(1), groups)
	p.Op("BNE", To("group"))
	p.Op("RET")
}

// init returns what the initial value, all ones over the first four bytes of a
// chunk, and the final complement add to R.
func (l *chunkLoop) init(h, first Reg) Reg {
	toEnd, out := l.slides(l.Program, h)
	ones, complement := l.GP(), zeroed(l.Program)
	l.Op("MOVD", Imm(0xFFFFFFFF), ones)
	init := start(l.Program, ones, first, toEnd, out)
	l.Comment("and the final complement")
	l.Op("VMOV", ones, complement.S(2))
	xor(l.Program, complement, init)
	return init
}

// copyOf returns the address of what stands at a in the copy.
func (l *chunkLoop) copyOf(a Reg) Reg {
	to := l.GP()
	l.Op("ADD", l.delta, a, to)
	return to
}

// head takes the partial row of h bytes at the start of every chunk.
func (l *chunkLoop) head(h Reg) {
	if l.copying {
		l.Comment("whole rows are copied, of which the rest is copied again")
		for _, a := range l.at {
			l.Op("FMOVQ", load(l.Program, Mem(a, 0)).Q(), Mem(l.copyOf(a), 0))
		}
	}
	if l.scalar > 0 {
		l.Comment("the first n mod 16 bytes, for the chains by the bits of their number")
		for _, t := range tails {
			skip := fmt.Sprintf("head%d", 1<<t.bit)
			l.Op("TBZ", Imm(int64(t.bit)), h, To(skip))
			for i, crc := range l.crc {
				w := l.GP()
				l.Op(t.load, Mem(l.at[i], 1<<t.bit), w)
				l.Op(l.poly.opcode+t.operand, w, crc)
			}
			l.Label(skip)
		}
	}
	l.Comment("the first n mod 16 bytes, for the dot products right-aligned in a row")
	toEnd, _ := l.slides(l.Program, h)
	c := load(l.Program, Mem(l.k, -width))
	for v, acc := range l.acc {
		a := l.at[l.scalar+v]
		d := load(l.Program, Mem(a, 0))
		shuffle(l.Program, toEnd, d, d)
		l.accumulate(l.Program, c, d, acc)
		l.Op("ADD", h, a)
	}
}

// chain adds row r of chunk i to its chain.
func (l *chunkLoop) chain(i, r int) {
	x, y := l.GP(), l.GP()
	l.Op("LDP", Mem(l.at[i], width*r), Pair(x, y))
	l.Op(l.poly.opcode+"X", x, l.crc[i])
	l.Op(l.poly.opcode+"X", y, l.crc[i])
	if l.copying {
		l.Op("STP", Pair(x, y), Mem(l.copyOf(l.at[i]), width*r))
	}
}

// row takes one row of every chunk.
func (l *chunkLoop) row() {
	c := l.Vec()
	l.Op("FMOVQ.P", Mem(l.k, width), c.Q())
	for v, acc := range l.acc {
		a := l.at[l.scalar+v]
		d := load(l.Program, Mem(a, 0))
		if l.copying {
			l.Op("FMOVQ", d.Q(), Mem(l.copyOf(a), 0))
		}
		l.accumulate(l.Program, c, d, acc)
	}
	for i := range l.crc {
		l.chain(i, 0)
	}
	for _, a := range l.at {
		l.Op("ADD", Imm(width), a)
	}
}

// four takes four rows of every chunk, two rows at a time, and spreads the
// chains' instructions evenly between the others. It prefetches what comes
// after the group as if that were read from its start on: the hardware does not
// foresee so many streams.
func (l *chunkLoop) four(ahead Reg) {
	chunks := l.scalar + l.vector
	prefetched := 0
	for r := 0; r < unroll; r += 2 {
		c, d := l.Vec(), l.Vec()
		l.Op("FLDPQ", Mem(l.k, width*r), Pair(c.Q(), d.Q()))
		done := 0
		for v, acc := range l.acc {
			a := l.at[l.scalar+v]
			e, f := l.load(l.Program, a, width*r)
			if l.copying {
				l.Op("FSTPQ", Pair(e.Q(), f.Q()), Mem(l.copyOf(a), width*r))
			}
			l.accumulate(l.Program, c, e, acc)
			l.accumulate(l.Program, d, f, acc)
			for ; done < 2*l.scalar*(v+1)/l.vector; done++ {
				l.chain(done%l.scalar, r+done/l.scalar)
			}
			for ; prefetched < chunks*(r/2*l.vector+v+1)/(unroll/2*l.vector); prefetched++ {
				l.Op("PRFM", Mem(ahead, 64*prefetched), PLDL1KEEP)
			}
		}
	}
	for _, a := range l.at {
		l.Op("ADD", Imm(unroll*width), a)
	}
	l.Op("ADD", Imm(int64(chunks*unroll*width)), ahead)
	l.Op("ADD", Imm(unroll*width), l.k)
}

// store writes the sums of the group and moves the pointer sums past them.
func (l *chunkLoop) store(init, table, sums Reg) {
	for _, crc := range l.crc {
		storeSum(l.Program, crc, sums)
	}
	b := newBarrett(l.Program, table)
	for v, acc := range l.acc {
		xor(l.Program, init, acc)
		b.reduce(l.Program, acc)
		if v%4 == 3 {
			storeFour(l.Program, l.acc[v-3:v+1], sums)
		}
	}
	for _, acc := range l.acc[l.vector&^3:] {
		w := l.GP()
		l.Op("VMOV", acc.S(2), w)
		l.Op("REVW", w, w)
		l.Op("MOVW.P", w, Mem(sums, 4))
	}
}

// storeFour writes dword 2 of four registers, big-endian, and moves the pointer
// sums past them.
func storeFour(p *Program, r []Reg, sums Reg) {
	a, b := p.Vec(), p.Vec()
	p.Op("VZIP2", r[1].D2(), r[0].D2(), a.D2())
	p.Op("VZIP2", r[3].D2(), r[2].D2(), b.D2())
	p.Op("VUZP1", b.S4(), a.S4(), a.S4())
	p.Op("VREV32", a.B16(), a.B16())
	p.Op("FMOVQ.P", a.Q(), Mem(sums, width))
}
