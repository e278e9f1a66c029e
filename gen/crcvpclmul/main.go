// Command crcvpclmul writes the CRC kernels for amd64 with AVX2 and VPCLMULQDQ.
package main

import (
	"fmt"
	"log"
	"slices"

	. "github.com/mmcloughlin/avo/build"

	"github.com/blockpath/blockpath/gen/poly"
	"github.com/blockpath/blockpath/gen/x86"
)

func main() {
	ConstraintExpr("!purego")
	t := x86.NewTables()
	x86.AVX.Single("vpclmulUpdate", t)
	for _, copy := range []x86.Copy{x86.NoCopy, x86.Cached, x86.NonTemporal} {
		x86.AVX.Dot("vpclmulDot", t, copy)
	}
	// Measured on Zen 3: within 2 % of 4 and 4 in cache, faster from memory.
	x86.AVX.Fused("vpclmulFused", t, 3, 3)
	// For Intel, which starts a vector multiplication in every cycle.
	x86.AVX.Fused("vpclmulV6S3", t, 3, 6)

	sliding := x86.Bytes("sliding", slices.Concat(make([]byte, 32), slices.Repeat([]byte{0xFF}, 32), make([]byte, 32))...)
	// More of the chunk eliminated makes loads the limit: 512 and 4096 were measured
	// on Zen 3, 1024 and 2048 on Zen 5.
	for _, c := range []struct{ n, first, weight int }{{512, 160, 5}, {1024, 320, 5}, {2048, 768, 5}, {4096, 1792, 4}} {
		sets := poly.IEEE.Relations(c.n, c.first, c.weight)
		if len(sets) == 0 {
			log.Fatalf("no %d offsets eliminate %d of %d bytes", c.weight, c.first, c.n)
		}
		x86.AVX.Eliminate(fmt.Sprintf("vpclmulEliminate%d", c.n), t, c.n, c.first, sets[0], sliding)
	}
	Generate()
}
