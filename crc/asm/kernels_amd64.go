//go:build !purego

package asm

import "github.com/klauspost/cpuid/v2"

const (
	SSE42 Kernel = 1 + iota // crc32q
)

// features are those that Features reports.
var features = []cpuid.FeatureID{cpuid.SSE42, cpuid.CLMUL, cpuid.AVX2, cpuid.VPCLMULQDQ, cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512VL, cpuid.AVX512VBMI2, cpuid.GFNI}

var kernels = [...]kernel{
	Generic: {"generic", castagnoli | ieee, true},
	SSE42:   {"sse42", castagnoli, cpuid.CPU.Supports(cpuid.SSE42)},
}

// Update returns the CRC of the message whose CRC is crc followed by b.
func (k Kernel) Update(p Poly, crc uint32, b []byte) uint32 {
	if k == SSE42 && p == Castagnoli {
		return updateChain(crc, b)
	}
	return updateGeneric(p, crc, b)
}

// Put writes the CRC of each chunk of data to sums.
func (k Kernel) Put(p Poly, sums, data []byte, chunk int) {
	if k == SSE42 && p == Castagnoli {
		putChains(sums, data, chunk)
		return
	}
	putGeneric(p, sums, data, chunk)
}

// CopyPut copies src to dst, of the same length, and writes the CRC of each
// chunk to sums. nonTemporal lets it write around the cache.
func (k Kernel) CopyPut(p Poly, dst, sums, src []byte, chunk int, nonTemporal bool) {
	copyThenPut(k, p, dst, sums, src, chunk)
}
