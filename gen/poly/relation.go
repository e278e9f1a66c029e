package poly

import (
	"cmp"
	"slices"
)

// Relations returns the sets of weight byte offsets o, 4 or 5, in ascending
// order, with
//
//	sum of x^(-8·o) = 1 mod P
//
// that let the first bytes of a message of n be XORed away: every offset is at
// least first, so that nothing is added to a byte which is itself deleted, and
// at most n - first, so that what is added lies in the message. The cheapest
// sets come first: unaligned loads cost more than those of whole rows of 32
// bytes.
//
// It meets in the middle: all pairs of offsets are sorted by their sum, and
// every other pair or triple looks up what it lacks.
func (p Poly) Relations(n, first, weight int) [][]int {
	var offsets []int
	var power []uint32
	for o := first; o <= n-first; o++ {
		offsets = append(offsets, o)
		power = append(power, p.Pow(-8*o))
	}
	type pair struct {
		sum  uint32
		a, b int // indices
	}
	var pairs []pair
	for a := range power {
		for b := a + 1; b < len(power); b++ {
			pairs = append(pairs, pair{power[a] ^ power[b], a, b})
		}
	}
	slices.SortFunc(pairs, func(x, y pair) int {
		return cmp.Or(cmp.Compare(x.sum, y.sum), cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b))
	})
	bucket := make([]int32, 1<<16+1) // where the sums with these high bits start
	for i := len(pairs) - 1; i >= 0; i-- {
		bucket[pairs[i].sum>>16] = int32(i + 1)
	}
	next := int32(len(pairs) + 1)
	for i := len(bucket) - 1; i >= 0; i-- {
		if bucket[i] == 0 {
			bucket[i] = next
		}
		next = bucket[i]
	}

	var found [][]int
	// look completes the indices in base, the largest of which is last, with
	// two larger ones.
	look := func(sum uint32, last int, base ...int) {
		missing := One ^ sum
		h := missing >> 16
		for _, q := range pairs[bucket[h]-1 : bucket[h+1]-1] {
			if q.sum == missing && q.a > last {
				var set []int
				for _, i := range append(base, q.a, q.b) {
					set = append(set, offsets[i])
				}
				found = append(found, set)
			}
		}
	}
	for a := range power {
		for b := a + 1; b < len(power); b++ {
			sum := power[a] ^ power[b]
			if weight == 4 {
				look(sum, b, a, b)
				continue
			}
			for c := b + 1; c < len(power); c++ {
				look(sum^power[c], c, a, b, c)
			}
		}
	}
	cost := func(set []int) (c int) {
		for _, o := range set {
			switch {
			case o%32 == 0:
			case o%4 == 0:
				c += 9
			default:
				c += 10
			}
		}
		return c
	}
	slices.SortFunc(found, func(x, y []int) int {
		return cmp.Or(cmp.Compare(cost(x), cost(y)), slices.Compare(x, y))
	})
	return found
}
