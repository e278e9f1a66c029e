package main

import (
	"fmt"

	. "github.com/blockpath/blockpath/gen/arm64"
)

// update is one chain.
func update(p *Program, poly polynomial) {
	name := poly.prefix + "Update"
	p.Func(name, "func(crc uint32, src *byte, n int) uint32",
		fmt.Sprintf("%s adds the n bytes at src to the %s crc, as updateGeneric does.", name, poly.title))
	crc, src, n := p.GP(), p.GP(), p.GP()
	p.Op("MOVWU", p.Param("crc"), crc)
	p.Op("MOVD", p.Param("src"), src)
	p.Op("MOVD", p.Param("n"), n)
	p.Op("MVNW", crc, crc)
	words(p, poly, n, []Reg{crc}, []Reg{src}, nil)
	p.Op("MVNW", crc, crc)
	p.Op("MOVW", crc, p.Result())
	p.Op("RET")
}

// tails are the loads and stores of less than 16 bytes, by the bits of their
// number.
var tails = []struct {
	bit                  int
	load, store, operand string
}{
	{3, "MOVD.P", "MOVD", "X"},
	{2, "MOVWU.P", "MOVW", "W"},
	{1, "MOVHU.P", "MOVH", "H"},
	{0, "MOVBU.P", "MOVB", "B"},
}

// words runs chain crc[i] over the n bytes at at[i], for every i, and moves
// the pointers past them. n is left negative, its low bits intact. What is
// read is also written if delta, the distance of the destination, is given.
func words(p *Program, poly polynomial, n Reg, crc, at []Reg, delta *Reg) {
	p.Op("SUBS", Imm(16), n)
	p.Op("BLO", To("words"))
	p.Label("pairs")
	for i := range crc {
		x, y, to := p.GP(), p.GP(), p.GP()
		if delta != nil {
			p.Op("ADD", *delta, at[i], to)
		}
		p.Op("LDP.P", Mem(at[i], 16), Pair(x, y))
		p.Op(poly.opcode+"X", x, crc[i])
		p.Op(poly.opcode+"X", y, crc[i])
		if delta != nil {
			p.Op("STP", Pair(x, y), Mem(to, 0))
		}
	}
	p.Op("SUBS", Imm(16), n)
	p.Op("BHS", To("pairs"))
	p.Label("words")
	p.Comment("0 to 15 bytes are left, by the bits of their number")
	for _, t := range tails {
		skip := fmt.Sprintf("less%d", 1<<t.bit)
		p.Op("TBZ", Imm(int64(t.bit)), n, To(skip))
		for i := range crc {
			w, to := p.GP(), p.GP()
			if delta != nil {
				p.Op("ADD", *delta, at[i], to)
			}
			p.Op(t.load, Mem(at[i], 1<<t.bit), w)
			p.Op(poly.opcode+t.operand, w, crc[i])
			if delta != nil {
				p.Op(t.store, w, Mem(to, 0))
			}
		}
		p.Label(skip)
	}
}

// chunks runs one chain in each of k chunks at once: the instruction takes two
// or three cycles but one or two can start in every cycle.
func chunks(p *Program, poly polynomial, k int, copying bool) {
	name, signature := poly.prefix+"Chunks", "func(sums, src *byte, n, groups int)"
	if copying {
		name, signature = name+"Copy", "func(sums, dst, src *byte, n, groups int)"
	}
	doc := []string{
		fmt.Sprintf("%s writes the big-endian %s of each of groups·%d consecutive", name, poly.title, k),
		"chunks of n bytes at src to sums, as putGeneric does. groups is at least 1.",
	}
	if copying {
		doc = append(doc, "The chunks are copied to dst.")
	}
	p.Func(name, signature, doc...)
	sums, n, groups, left := p.GP(), p.GP(), p.GP(), p.GP()
	at, crc := make([]Reg, k), make([]Reg, k)
	for i := range k {
		at[i], crc[i] = p.GP(), p.GP()
	}
	p.Op("MOVD", p.Param("sums"), sums)
	p.Op("MOVD", p.Param("src"), at[0])
	p.Op("MOVD", p.Param("n"), n)
	p.Op("MOVD", p.Param("groups"), groups)
	var delta *Reg
	if copying {
		d := p.GP()
		p.Op("MOVD", p.Param("dst"), d)
		p.Op("SUB", at[0], d)
		delta = &d
	}
	p.Label("group")
	for i := range k {
		if i > 0 {
			p.Op("ADD", n, at[i-1], at[i])
		}
		p.Op("MOVD", Imm(0xFFFFFFFF), crc[i])
	}
	p.Op("MOVD", n, left)
	words(p, poly, left, crc, at, delta)
	for i := range k {
		storeSum(p, crc[i], sums)
	}
	p.Comment("the last chunk's end is the next group's start")
	p.Op("MOVD", at[k-1], at[0])
	p.Op("SUBS", Imm(1), groups)
	p.Op("BNE", To("group"))
	p.Op("RET")
}

// storeSum writes the CRC of a chain and moves the pointer sums past it.
func storeSum(p *Program, crc, sums Reg) {
	p.Op("MVNW", crc, crc)
	p.Op("REVW", crc, crc)
	p.Op("MOVW.P", crc, Mem(sums, 4))
}
