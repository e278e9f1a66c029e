//go:build !purego

package asm

import (
	"runtime"

	"github.com/klauspost/cpuid/v2"
)

// cores are the designs whose ports are known, by the part number that their
// vendor gives them in MIDR_EL1, and the kernel that is balanced for those. The
// figures are llvm-mca's bytes per cycle for it and for CRC32
// (bench/results/modelled).
var cores = []struct {
	vendor cpuid.Vendor
	part   int
	kernel Kernel
}{
	{cpuid.ARM, 0xD08, PMULL},     // Cortex-A72, which has one port for PMULL as N1 has
	{cpuid.ARM, 0xD0B, PMULL},     // Cortex-A76, the core that N1 is made of
	{cpuid.ARM, 0xD0C, PMULL},     // Neoverse N1: 8.3, 7.4
	{cpuid.ARM, 0xD40, PMULLEOR3}, // Neoverse V1: 24.0, 8.0
	{cpuid.ARM, 0xD49, PMULLV6S4}, // Neoverse N2: 10.0, 4.0; PMULLEOR3 8.0: EOR3 needs PMULL's port
	{cpuid.ARM, 0xD4F, PMULLEOR3}, // Neoverse V2: 20.2, 8.0
}

// balanced is the kernel for this CPU's cores.
var balanced = balancedFor(cpuid.CPU.VendorID, cpuid.CPU.Model>>4, runtime.GOOS, hasEOR3)

// balancedFor returns the kernel for a core that Linux lets us identify. The
// only cores that darwin and ios run on are Apple's, which start a PMULL with an
// EOR of its result as one operation, in each of four ports. Of an unknown core
// only that is known which its features say. One with SHA-3 is of the
// generation of Neoverse V1 or younger and gets that one's kernel, which is the
// faster one even on small cores (Cortex-A510: 2.6, 2.2). An older one may be
// small and gets the CRC instructions alone (Cortex-A55: 2.0, PMULL 1.7).
func balancedFor(vendor cpuid.Vendor, part int, goos string, eor3 bool) Kernel {
	if goos == "darwin" || goos == "ios" {
		return PMULLV9S3
	}
	for _, c := range cores {
		if c.vendor == vendor && c.part == part {
			return c.kernel
		}
	}
	if eor3 {
		return PMULLEOR3
	}
	return CRC32
}
