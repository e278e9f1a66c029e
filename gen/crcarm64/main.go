// Command crcarm64 writes the CRC kernels for arm64.
package main

import (
	"flag"
	"log"
	"os"

	"github.com/mmcloughlin/avo/printer"

	. "github.com/blockpath/blockpath/gen/arm64"
)

// A polynomial is what the two sets of CRC instructions differ in.
type polynomial struct {
	prefix string // of function names
	suffix string // the same, at a name's end
	title  string
	opcode string // without the operand's size B, H, W or X
}

var (
	castagnoli = polynomial{"castagnoli", "Castagnoli", "CRC-32C", "CRC32C"}
	ieee       = polynomial{"ieee", "IEEE", "CRC-32", "CRC32"}
)

func main() {
	out := flag.String("out", "", "assembly file")
	stubs := flag.String("stubs", "", "stub file")
	pkg := flag.String("pkg", "", "package of the stubs")
	flag.Parse()

	p := New("!purego")
	for _, poly := range []polynomial{castagnoli, ieee} {
		update(p, poly)
		chunks(p, poly, 6, false)
		chunks(p, poly, 6, true)
		split(p, poly, 6)
	}
	t := newTables(p)
	t.compose(p)
	shift(p)
	t.loop(p, shape{name: "pmullDot", vector: 4}, false)
	t.loop(p, shape{name: "pmullDot", vector: 4}, true)
	for _, poly := range []polynomial{castagnoli, ieee} {
		for _, s := range []shape{
			{"pmullV4S4", poly, 4, 4, false},
			{"pmullV6S4", poly, 6, 4, false},
			{"pmullV9S3", poly, 9, 3, false},
			{"eor3V8S4", poly, 8, 4, true},
		} {
			t.single(p, s)
			t.loop(p, s, false)
			t.loop(p, s, true)
		}
	}
	cfg := printer.Config{
		Name: "crcarm64",
		Argv: append([]string{"go", "run", "./crcarm64"}, os.Args[1:]...),
		Pkg:  *pkg,
	}
	if err := p.Generate(cfg, *out, *stubs); err != nil {
		log.Fatal(err)
	}
}
