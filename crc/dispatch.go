package crc

import (
	"math/bits"

	"github.com/blockpath/blockpath/crc/asm"
)

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

var operationNames = [operations]string{"update", "put", "verify", "copyput", "copyverify"}

// A rule prefers a kernel for a polynomial and some operations, from a chunk
// size and a length of data on; both are powers of two, or zero. Of the rules
// that apply and whose kernel is available and suits the CPU the last one counts.
type rule struct {
	kernel asm.Kernel
	poly   asm.Poly
	ops    []operation
	chunk  int // ignored by opUpdate
	length int
}

// Sizes fall into classes by their number of bits; the last class is open.
const (
	chunkClasses  = 14 // up to 4 KiB - 1, 8 KiB - 1 and more
	lengthClasses = 22 // up to 1 MiB - 1 and more
)

// table is the chosen kernel for each class.
type table [2][operations][chunkClasses][lengthClasses]asm.Kernel

// chosen is decided once, from the rules of the architecture and the features
// of the CPU.
var chosen = choose(rules[:], func(k asm.Kernel) bool { return k.Available() && k.Suits() })

// updates is chosen's part for opUpdate by the number of bits of the length, so
// that Update is short enough to be inlined.
var updates = func() (u [2][bits.UintSize + 1]asm.Kernel) {
	for p := range u {
		for l := range u[p] {
			u[p][l] = chosen[p][opUpdate][0][min(l, lengthClasses-1)]
		}
	}
	return u
}()

func choose(rules []rule, usable func(asm.Kernel) bool) (t table) {
	for _, r := range rules {
		if !usable(r.kernel) {
			continue
		}
		for _, op := range r.ops {
			for c := class(r.chunk, chunkClasses); c < chunkClasses; c++ {
				for l := class(r.length, lengthClasses); l < lengthClasses; l++ {
					t[r.poly][op][c][l] = r.kernel
				}
			}
		}
	}
	return t
}

func class(n, classes int) int { return min(bits.Len(uint(n)), classes-1) }

func kernel(p asm.Poly, op operation, chunk, length int) asm.Kernel {
	return chosen[p][op][class(chunk, chunkClasses)][class(length, lengthClasses)]
}

func put(p asm.Poly, sums, data []byte, chunk int) {
	kernel(p, opPut, chunk, len(data)).Put(p, sums, data, chunk)
}

func verify(p asm.Poly, data, sums []byte, chunk int) int {
	return kernel(p, opVerify, chunk, len(data)).Verify(p, data, sums, chunk)
}

func copyPut(p asm.Poly, dst, sums, src []byte, chunk int, nonTemporal bool) {
	kernel(p, opCopyPut, chunk, len(src)).CopyPut(p, dst, sums, src, chunk, nonTemporal)
}

func copyVerify(p asm.Poly, dst, src, sums []byte, chunk int, nonTemporal bool) int {
	return kernel(p, opCopyVerify, chunk, len(src)).CopyVerify(p, dst, src, sums, chunk, nonTemporal)
}

// A Choice is the kernel that this machine uses for one operation on chunks of
// at least Chunk bytes in at least Length bytes of data, up to the next Choice.
type Choice struct {
	Kind      Kind
	Operation string // update, put, verify, copyput or copyverify
	Chunk     int    // 0 for update, which has no chunks
	Length    int
	Kernel    string
}

// Kernels returns which kernel this machine uses for what. It allocates.
func Kernels() []Choice {
	var all []Choice
	for _, kind := range []Kind{CRC32C, CRC32} {
		for op := range operations {
			t := &chosen[kind.poly()][op]
			for c := range t {
				if c > 0 && (op == opUpdate || t[c] == t[c-1]) {
					continue
				}
				for l, k := range t[c] {
					if l == 0 || k != t[c][l-1] {
						all = append(all, Choice{kind, operationNames[op], classFrom(c), classFrom(l), k.Name()})
					}
				}
			}
		}
	}
	return all
}

// classFrom is the smallest size of a class.
func classFrom(class int) int {
	if class == 0 {
		return 0
	}
	return 1 << (class - 1)
}

// Features returns the names of this CPU's features that kernels use.
func Features() []string { return asm.Features() }
