// Command crcarm64 writes the CRC kernels for arm64.
package main

import (
	"flag"
	"fmt"
	"log"

	"github.com/mmcloughlin/avo/printer"

	. "github.com/blockpath/blockpath/gen/arm64"
)

func main() {
	out := flag.String("out", "", "assembly file")
	stubs := flag.String("stubs", "", "stub file")
	pkg := flag.String("pkg", "", "package of the stubs")
	flag.Parse()

	p := New("!purego")
	for _, poly := range []string{"castagnoli", "ieee"} {
		update(p, poly)
		chunks(p, poly, 6)
	}
	cfg := printer.NewArgvConfig()
	cfg.Pkg = *pkg
	if err := p.Generate(cfg, *out, *stubs); err != nil {
		log.Fatal(err)
	}
}

// step is the CRC instruction for the suffix B, H, W or X.
func step(poly, suffix string) string {
	if poly == "castagnoli" {
		return "CRC32C" + suffix
	}
	return "CRC32" + suffix
}

func title(poly string) string {
	if poly == "castagnoli" {
		return "CRC-32C"
	}
	return "CRC-32"
}

// update is one chain.
func update(p *Program, poly string) {
	name := poly + "Update"
	p.Func(name, "func(crc uint32, src *byte, n int) uint32",
		fmt.Sprintf("%s adds the n bytes at src to the %s crc, as updateGeneric does.", name, title(poly)))
	crc, src, n := p.GP(), p.GP(), p.GP()
	p.Op("MOVWU", p.Param("crc"), crc)
	p.Op("MOVD", p.Param("src"), src)
	p.Op("MOVD", p.Param("n"), n)
	p.Op("MVNW", crc, crc)
	words(p, poly, n, []Reg{crc}, []Reg{src})
	p.Op("MVNW", crc, crc)
	p.Op("MOVW", crc, p.Result())
	p.Op("RET")
}

// words runs chain crc[i] over the n bytes at at[i], for every i, and moves
// the pointers past them. n is left negative, its low bits intact.
func words(p *Program, poly string, n Reg, crc, at []Reg) {
	p.Op("SUBS", Imm(16), n)
	p.Op("BLO", To("words"))
	p.Label("pairs")
	for i := range crc {
		x, y := p.GP(), p.GP()
		p.Op("LDP.P", Mem(at[i], 16), Pair(x, y))
		p.Op(step(poly, "X"), x, crc[i])
		p.Op(step(poly, "X"), y, crc[i])
	}
	p.Op("SUBS", Imm(16), n)
	p.Op("BHS", To("pairs"))
	p.Label("words")
	p.Comment("0 to 15 bytes are left, by the bits of their number")
	for _, t := range []struct {
		bit          int
		load, suffix string
	}{{3, "MOVD.P", "X"}, {2, "MOVWU.P", "W"}, {1, "MOVHU.P", "H"}, {0, "MOVBU.P", "B"}} {
		skip := fmt.Sprintf("less%d", 1<<t.bit)
		p.Op("TBZ", Imm(int64(t.bit)), n, To(skip))
		for i := range crc {
			w := p.GP()
			p.Op(t.load, Mem(at[i], 1<<t.bit), w)
			p.Op(step(poly, t.suffix), w, crc[i])
		}
		p.Label(skip)
	}
}

// chunks runs one chain in each of k chunks at once: the instruction takes two
// or three cycles but one can start in every cycle.
func chunks(p *Program, poly string, k int) {
	name := poly + "Chunks"
	p.Func(name, "func(sums, src *byte, n, groups int)",
		fmt.Sprintf("%s writes the big-endian %s of each of groups·%d consecutive", name, title(poly), k),
		"chunks of n bytes at src to sums, as putGeneric does. groups is at least 1.")
	sums, n, groups, left := p.GP(), p.GP(), p.GP(), p.GP()
	at, crc := make([]Reg, k), make([]Reg, k)
	for i := range k {
		at[i], crc[i] = p.GP(), p.GP()
	}
	p.Op("MOVD", p.Param("sums"), sums)
	p.Op("MOVD", p.Param("src"), at[0])
	p.Op("MOVD", p.Param("n"), n)
	p.Op("MOVD", p.Param("groups"), groups)
	p.Label("group")
	for i := range k {
		if i > 0 {
			p.Op("ADD", n, at[i-1], at[i])
		}
		p.Op("MOVD", Imm(0xFFFFFFFF), crc[i])
	}
	p.Op("MOVD", n, left)
	words(p, poly, left, crc, at)
	for i := range k {
		p.Op("MVNW", crc[i], crc[i])
		p.Op("REVW", crc[i], crc[i])
		p.Op("MOVW.P", crc[i], Mem(sums, 4))
	}
	p.Comment("the last chunk's end is the next group's start")
	p.Op("MOVD", at[k-1], at[0])
	p.Op("SUBS", Imm(1), groups)
	p.Op("BNE", To("group"))
	p.Op("RET")
}
