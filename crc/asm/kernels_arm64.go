//go:build !purego

package asm

import "github.com/klauspost/cpuid/v2"

const (
	CRC32 Kernel = 1 + iota // CRC32X and CRC32CX
)

// features are those that Features reports.
var features = []cpuid.FeatureID{cpuid.CRC32, cpuid.PMULL, cpuid.SHA3}

var kernels = [...]kernel{
	Generic: {"generic", castagnoli | ieee, true},
	CRC32:   {"crc32", castagnoli | ieee, cpuid.CPU.Supports(cpuid.CRC32)},
}

// Suits reports whether this CPU has the ports that the kernel is balanced for,
// as far as is known. One that does not suit may still be used.
func (k Kernel) Suits() bool { return true }

// Update returns the CRC of the message whose CRC is crc followed by b.
func (k Kernel) Update(p Poly, crc uint32, b []byte) uint32 {
	if k == CRC32 {
		return updateChain(p, crc, b)
	}
	return updateGeneric(p, crc, b)
}

// Put writes the CRC of each chunk of data to sums.
func (k Kernel) Put(p Poly, sums, data []byte, chunk int) {
	if k == CRC32 {
		putChains(p, sums, data, chunk)
		return
	}
	putGeneric(p, sums, data, chunk)
}

// CopyPut copies src to dst, of the same length, and writes the CRC of each
// chunk to sums. nonTemporal lets it write around the cache.
func (k Kernel) CopyPut(p Poly, dst, sums, src []byte, chunk int, nonTemporal bool) {
	copyThenPut(k, p, dst, sums, src, chunk)
}
