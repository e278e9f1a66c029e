package asm

import (
	"testing"
	"unsafe"
)

// power returns x^n modulo p, step by step.
func power(p Poly, n int) uint32 {
	r := uint32(1) << 31
	for ; n > 0; n-- {
		r = r>>1 ^ p.reflected()&-(r&1)
	}
	for ; n < 0; n++ {
		if r>>31 != 0 {
			r = (r^p.reflected())<<1 | 1
		} else {
			r <<= 1
		}
	}
	return r
}

// The constants follow from the polynomial. What they are good for is shown by
// the kernels' results.
func TestConstants(t *testing.T) {
	for _, p := range []Poly{Castagnoli, IEEE} {
		c := tables[p]
		full := uint64(p.reflected())<<1 | 1
		inverse := uint64(0)
		for bit := range 64 { // one bit of the inverse determines the next
			sum := uint64(0)
			for i := range bit {
				sum ^= full << i & -(inverse >> i & 1)
			}
			if sum>>bit&1 != 0 != (bit == 0) {
				inverse |= 1 << bit
			}
		}
		if c.barrett != [2]uint64{inverse, full} {
			t.Errorf("%s: Barrett constants %#x, want %#x and %#x", p.name(), c.barrett, inverse, full)
		}
		words := maxDot / 8
		for _, i := range []int{0, 1, 7, 8, 100, 447, 448, words - 2, words - 1} {
			if want := power(p, 64*(words-1-i)+31); c.dot[i] != uint64(want) {
				t.Errorf("%s: dot product constant %d is %#x, want %#x", p.name(), i, c.dot[i], want)
			}
			for plane := range 4 {
				// the first column: what the lowest bit of a byte turns into
				m, column := c.affine[i/8*32+plane*8+i%8], uint32(0)
				for r := range 8 {
					column |= uint32(m>>(8*(7-r))&1) << r
				}
				if want := power(p, 64*(words-1-i)+39) >> (8 * plane) & 0xFF; column != want {
					t.Errorf("%s: column 0 of matrix %d, plane %d is %#x, want %#x", p.name(), i, plane, column, want)
				}
			}
		}
		for i := words; i < len(c.dot); i++ {
			if c.dot[i] != 0 {
				t.Errorf("%s: no zero behind the dot product constants", p.name())
			}
		}
		for s := range c.compose {
			for _, i := range []int{0, 1, composeBlocks - 2, composeBlocks - 1} {
				if want := power(p, 8*(512<<s)*(composeBlocks-1-i)-33); c.compose[s][i] != uint64(want) {
					t.Errorf("%s: constant %d for blocks of %d is %#x, want %#x", p.name(), i, 512<<s, c.compose[s][i], want)
				}
			}
		}
		for k := range 12 {
			if want := power(p, 8<<k); c.squares[k] != want {
				t.Errorf("%s: x^(8·2^%d) is %#x, want %#x", p.name(), k, c.squares[k], want)
			}
		}
		for k := 12; k < 64; k++ {
			if want := Multiply(p, c.squares[k-1], c.squares[k-1]); c.squares[k] != want {
				t.Errorf("%s: x^(8·2^%d) is %#x, want %#x", p.name(), k, c.squares[k], want)
			}
		}
	}
}

// The assembly knows the layout by number (gen/layout).
func TestLayout(t *testing.T) {
	var c constants
	for _, f := range []struct {
		name      string
		got, want uintptr
	}{
		{"barrett", unsafe.Offsetof(c.barrett), 0},
		{"dot", unsafe.Offsetof(c.dot), 64},
		{"compose", unsafe.Offsetof(c.compose), 64 + 4096 + 64},
		{"affine", unsafe.Offsetof(c.affine), 64 + 4096 + 64 + 4*72*8},
		{"squares", unsafe.Offsetof(c.squares), 64 + 4096 + 64 + 4*72*8 + 16384},
	} {
		if f.got != f.want {
			t.Errorf("%s is at %d, want %d", f.name, f.got, f.want)
		}
	}
	for p, c := range tables {
		if uintptr(unsafe.Pointer(c))%64 != 0 {
			t.Errorf("the constants of %s do not start a cache line", Poly(p).name())
		}
	}
}
