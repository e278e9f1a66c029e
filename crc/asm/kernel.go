package asm

import "encoding/binary"

// A Kernel is one way to compute CRCs. Every kernel does everything, in every
// length and chunk size; it uses the instructions it is named after where they
// help. The zero value is the portable kernel, which the others must agree
// with.
//
// A kernel that is not available must not be used. No method allocates or
// keeps its arguments. Chunk sizes are at least 1; sums are big-endian, four
// bytes per chunk, and exactly as long as the data needs. Source, destination
// and sums must not overlap, except that the destination may be the source.
type Kernel uint8

// Generic is the portable kernel.
const Generic Kernel = 0

// Kernels returns all kernels of this build, available or not, the portable
// one first.
func Kernels() []Kernel {
	all := make([]Kernel, len(kernels))
	for i := range all {
		all[i] = Kernel(i)
	}
	return all
}

// Name returns the kernel's name, such as "generic" or "sse42".
func (k Kernel) Name() string { return kernels[k].name }

// Available reports whether this machine has the instructions that the kernel
// needs.
func (k Kernel) Available() bool { return kernels[k].available }

// Supports reports whether the kernel has code of its own for p. One that has
// not computes p with the portable kernel.
func (k Kernel) Supports(p Poly) bool { return kernels[k].polys&(1<<p) != 0 }

// kernel describes a Kernel.
type kernel struct {
	name      string
	polys     uint8 // one bit per Poly that it has code for
	available bool
}

const (
	castagnoli = 1 << Castagnoli
	ieee       = 1 << IEEE
)

// maxCall bounds the work of one call of an assembly function, in bytes: a
// goroutine cannot be preempted in it.
const maxCall = 64 << 10

// window is how many chunks Verify and CopyVerify compute before they compare.
const window = 128

// Verify returns the index of the first chunk of data whose CRC is not the one
// in sums, or -1.
func (k Kernel) Verify(p Poly, data, sums []byte, chunk int) int {
	var computed [4 * window]byte
	for i := 0; len(data) > 0; i += window {
		n := windowLen(len(data), chunk)
		c := computed[:min(len(computed), len(sums))]
		k.Put(p, c, data[:n], chunk)
		if bad := mismatch(c, sums); bad >= 0 {
			return i + bad
		}
		data, sums = data[n:], sums[len(c):]
	}
	return -1
}

// CopyVerify copies src to dst and returns the index of the first chunk whose
// CRC is not the one in sums, or -1. It stops at the latest 128 chunks behind
// a bad one. nonTemporal lets it write around the cache.
func (k Kernel) CopyVerify(p Poly, dst, src, sums []byte, chunk int, nonTemporal bool) int {
	var computed [4 * window]byte
	for i := 0; len(src) > 0; i += window {
		n := windowLen(len(src), chunk)
		c := computed[:min(len(computed), len(sums))]
		k.CopyPut(p, dst[:n], c, src[:n], chunk, nonTemporal)
		if bad := mismatch(c, sums); bad >= 0 {
			return i + bad
		}
		dst, src, sums = dst[n:], src[n:], sums[len(c):]
	}
	return -1
}

// windowLen is how many of n bytes belong to the next window.
func windowLen(n, chunk int) int {
	if chunk > (n-1)/window { // also where chunk·window would overflow
		return n
	}
	return chunk * window
}

// mismatch returns the index of the first of the computed sums that differs
// from sums, or -1.
func mismatch(computed, sums []byte) int {
	if string(computed) == string(sums[:len(computed)]) {
		return -1
	}
	for i := 0; ; i++ {
		if binary.BigEndian.Uint32(computed[4*i:]) != binary.BigEndian.Uint32(sums[4*i:]) {
			return i
		}
	}
}
