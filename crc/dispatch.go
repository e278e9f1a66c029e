package crc

import "github.com/blockpath/blockpath/crc/asm"

// An operation is what a kernel is chosen for.
type operation uint8

const (
	opUpdate operation = iota
	opPut
	opVerify
	opCopyPut
	opCopyVerify
	operations
)

// chosen is the kernel for each polynomial and operation. It is decided once,
// from the rules of the architecture and the features of the CPU.
var chosen = choose(func(k asm.Kernel) bool { return k.Available() })

// A rule prefers a kernel for a polynomial and some operations. Of the rules
// that apply and whose kernel is available, the last one counts.
type rule struct {
	kernel asm.Kernel
	poly   asm.Poly
	ops    []operation
}

func choose(available func(asm.Kernel) bool) (c [2][operations]asm.Kernel) {
	for _, r := range rules {
		if available(r.kernel) {
			for _, op := range r.ops {
				c[r.poly][op] = r.kernel
			}
		}
	}
	return c
}

func update(p asm.Poly, sum uint32, b []byte) uint32 { return chosen[p][opUpdate].Update(p, sum, b) }

func put(p asm.Poly, sums, data []byte, chunk int) { chosen[p][opPut].Put(p, sums, data, chunk) }

func verify(p asm.Poly, data, sums []byte, chunk int) int {
	return chosen[p][opVerify].Verify(p, data, sums, chunk)
}

func copyPut(p asm.Poly, dst, sums, src []byte, chunk int, nonTemporal bool) {
	chosen[p][opCopyPut].CopyPut(p, dst, sums, src, chunk, nonTemporal)
}

func copyVerify(p asm.Poly, dst, src, sums []byte, chunk int, nonTemporal bool) int {
	return chosen[p][opCopyVerify].CopyVerify(p, dst, src, sums, chunk, nonTemporal)
}
