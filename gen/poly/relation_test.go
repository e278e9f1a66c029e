package poly

import (
	"slices"
	"testing"
)

func TestRelations(t *testing.T) {
	for _, c := range []struct {
		poly             Poly
		n, first, weight int
		known            []int // one of the results
	}{
		{IEEE, 512, 160, 5, []int{163, 197, 214, 252, 307}},
		{IEEE, 512, 128, 5, []int{160, 161, 192, 211, 362}},
		{Castagnoli, 512, 160, 5, []int{164, 173, 276, 345, 352}},
		{IEEE, 1024, 320, 5, []int{344, 384, 504, 640, 689}},
		{IEEE, 2048, 768, 5, []int{940, 945, 992, 1116, 1275}},
		{IEEE, 2048, 512, 4, []int{608, 960, 965, 1535}},
		{IEEE, 4096, 1792, 4, []int{1799, 2150, 2151, 2203}},
	} {
		sets := c.poly.Relations(c.n, c.first, c.weight)
		if !slices.ContainsFunc(sets, func(s []int) bool { return slices.Equal(s, c.known) }) {
			t.Errorf("%08x, %d of %d: %v is not among %d sets", c.poly, c.first, c.n, c.known, len(sets))
		}
		for _, s := range sets {
			sum := uint32(0)
			for _, o := range s {
				sum ^= c.poly.Pow(-8 * o)
			}
			if sum != One || len(s) != c.weight || s[0] < c.first || s[len(s)-1] > c.n-c.first || !slices.IsSorted(s) {
				t.Errorf("%08x, %d of %d: %v is no relation", c.poly, c.first, c.n, s)
			}
		}
		if len(sets) == 0 {
			continue
		}
		// deleting the first bytes in favour of later ones leaves the CRC
		b := random(c.n)
		want := crc0(c.poly, b)
		for i := range c.first {
			for _, o := range sets[0] {
				b[i+o] ^= b[i]
			}
			b[i] = 0
		}
		if got := crc0(c.poly, b); got != want {
			t.Errorf("%08x, %d of %d: %08x, want %08x", c.poly, c.first, c.n, got, want)
		}
	}
}
