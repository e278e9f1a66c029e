//go:build !purego

package asm

import (
	"hash/crc32"
	"runtime"
	"testing"

	"github.com/klauspost/cpuid/v2"
	"golang.org/x/sys/cpu"
)

func TestBalancedFor(t *testing.T) {
	for _, c := range []struct {
		name   string
		vendor cpuid.Vendor
		part   int
		goos   string
		eor3   bool
		want   Kernel
	}{
		{"Cortex-A72", cpuid.ARM, 0xD08, "linux", false, PMULL},
		{"Cortex-A76", cpuid.ARM, 0xD0B, "linux", false, PMULL},
		{"Neoverse N1", cpuid.ARM, 0xD0C, "linux", false, PMULL},
		{"Neoverse V1", cpuid.ARM, 0xD40, "linux", true, PMULLEOR3},
		{"Neoverse N2", cpuid.ARM, 0xD49, "linux", true, PMULLV6S4},
		{"Neoverse V2", cpuid.ARM, 0xD4F, "linux", true, PMULLEOR3},
		{"Apple M1", cpuid.VendorUnknown, 0, "darwin", true, PMULLV9S3},
		{"Cortex-A57", cpuid.ARM, 0xD07, "linux", false, CRC32},
		{"the part number of another vendor", cpuid.Qualcomm, 0xD0C, "linux", false, CRC32},
		{"an unknown core with SHA-3", cpuid.VendorUnknown, 0, "linux", true, PMULLEOR3},
		{"no MIDR_EL1", cpuid.VendorUnknown, 0, "linux", false, CRC32},
	} {
		if got := balancedFor(c.vendor, c.part, c.goos, c.eor3); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got.Name(), c.want.Name())
		}
	}
}

// What the operating system says is read by two libraries.
func TestFeaturesAgree(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED, features not compared: golang.org/x/sys/cpu asks only Linux")
	}
	for _, f := range []struct {
		id  cpuid.FeatureID
		has bool
	}{
		{cpuid.CRC32, cpu.ARM64.HasCRC32},
		{cpuid.PMULL, cpu.ARM64.HasPMULL},
		{cpuid.SHA3, cpu.ARM64.HasSHA3},
	} {
		if got := cpuid.CPU.Supports(f.id); got != f.has {
			t.Errorf("%v: cpuid says %v, x/sys/cpu %v", f.id, got, f.has)
		}
	}
}

// On cores without PMULL the CRCs of blocks are joined without it.
func TestUpdateChains(t *testing.T) {
	if !CRC32.Available() {
		t.Skip("SKIPPED: this CPU lacks the CRC instructions")
	}
	b := random(300000, 1)
	for _, p := range []Poly{Castagnoli, IEEE} {
		for _, size := range []int{chains * 2048, chains * 4096, chains * 8192, 2 * chains * 8192, 300000} {
			for n := max(0, size-3); n <= min(size+3, len(b)); n++ {
				if got, want := updateChains(p, 12345, b[:n]), crc32.Update(12345, std(p), b[:n]); got != want {
					t.Errorf("%s, %d bytes: %08x, want %08x", p.name(), n, got, want)
				}
			}
		}
	}
}

// The functions for one message take shorter ones than the kernels give them.
func TestSingle(t *testing.T) {
	b := random(4096+8, 0)
	each(t, func(t *testing.T, k Kernel, p Poly) {
		if k == Generic {
			return
		}
		if !hasPMULL {
			t.Skip("SKIPPED: this CPU lacks PMULL")
		}
		shortest := 16
		if k == CRC32 {
			shortest = 96
		}
		for n := shortest; n <= 4096; n++ {
			m := b[n%8 : n%8+n]
			if got, want := k.single(p, 54321, m), crc32.Update(54321, std(p), m); got != want {
				t.Fatalf("%d bytes: %08x, want %08x", n, got, want)
			}
		}
	})
}
