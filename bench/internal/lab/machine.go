package lab

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/klauspost/cpuid/v2"
)

// A Machine is what a result depends on.
type Machine struct {
	Model             string           `json:"model"`
	Vendor            string           `json:"vendor"` // of the CPU: "AMD", "Intel", "ARM"
	Microarchitecture string           `json:"microarchitecture"`
	Features          []string         `json:"features"`
	Caches            map[string]int64 `json:"caches"` // bytes; "L1d", "L1i", "L2", "L3"
	CPUs              int              `json:"cpus"`
	GOMAXPROCS        int              `json:"gomaxprocs"`
	OS                string           `json:"os"`
	Arch              string           `json:"arch"`
	Kernel            string           `json:"kernel"`
	Go                string           `json:"go"`
}

// ThisMachine returns the facts of the machine that this process runs on.
func ThisMachine() Machine {
	m := Machine{
		Model:             cpuid.CPU.BrandName,
		Vendor:            cpuid.CPU.VendorID.String(),
		Microarchitecture: microarchitecture(cpuid.CPU.VendorID, cpuid.CPU.Family, cpuid.CPU.Model),
		Features:          cpuid.CPU.FeatureSet(),
		Caches:            caches(),
		CPUs:              runtime.NumCPU(),
		GOMAXPROCS:        runtime.GOMAXPROCS(0),
		OS:                runtime.GOOS,
		Arch:              runtime.GOARCH,
		Kernel:            kernel(),
		Go:                runtime.Version(),
	}
	if runtime.GOARCH == "arm64" {
		m.Microarchitecture = armCore(procCPU())
		if m.Model == "" {
			m.Model = m.Microarchitecture
		}
	}
	return m
}

// Directory returns the name under which results of this microarchitecture are
// kept, such as "amd-zen-5".
func (m Machine) Directory() string {
	return strings.Join(strings.Fields(strings.ToLower(m.Vendor+" "+m.Microarchitecture)), "-")
}

// LastLevelCache returns the size in bytes of the largest cache, 8 MiB if it is
// not known.
func (m Machine) LastLevelCache() int64 {
	var size int64
	for _, s := range m.Caches {
		size = max(size, s)
	}
	if size == 0 {
		return 8 << 20
	}
	return size
}

// caches reads the sizes from Linux, which is right inside virtual machines and
// on arm64, else from CPUID.
func caches() map[string]int64 {
	c := map[string]int64{}
	dirs, _ := filepath.Glob("/sys/devices/system/cpu/cpu0/cache/index[0-9]*") // the pattern is well formed
	for _, dir := range dirs {
		level, kind, size := readLine(dir, "level"), readLine(dir, "type"), readLine(dir, "size")
		kib, err := strconv.ParseInt(strings.TrimSuffix(size, "K"), 10, 64)
		if err != nil || level == "" {
			continue
		}
		name := "L" + level
		switch kind {
		case "Data":
			name += "d"
		case "Instruction":
			name += "i"
		}
		c[name] = kib << 10
	}
	if len(c) > 0 {
		return c
	}
	for name, size := range map[string]int{
		"L1d": cpuid.CPU.Cache.L1D, "L1i": cpuid.CPU.Cache.L1I,
		"L2": cpuid.CPU.Cache.L2, "L3": cpuid.CPU.Cache.L3,
	} {
		if size > 0 {
			c[name] = int64(size)
		}
	}
	return c
}

func readLine(elem ...string) string {
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// microarchitecture names x86 cores from the numbers of CPUID leaf 1 (AMD's
// and Intel's processor programming manuals).
func microarchitecture(vendor cpuid.Vendor, family, model int) string {
	switch {
	case vendor == cpuid.AMD && family == 0x17:
		switch {
		case model < 0x10, model >= 0x10 && model < 0x20:
			return "Zen 1"
		}
		return "Zen 2"
	case vendor == cpuid.AMD && family == 0x19:
		switch {
		case model >= 0x10 && model < 0x20, model >= 0x60 && model < 0x90, model >= 0xa0 && model < 0xb0:
			return "Zen 4"
		}
		return "Zen 3"
	case vendor == cpuid.AMD && family == 0x1a:
		return "Zen 5"
	case vendor == cpuid.Intel && family == 6:
		if name, ok := intelModels[model]; ok {
			return name
		}
	}
	return "unknown, family " + strconv.Itoa(family) + " model " + strconv.Itoa(model)
}

var intelModels = map[int]string{
	0x3c: "Haswell", 0x3f: "Haswell", 0x45: "Haswell", 0x46: "Haswell",
	0x3d: "Broadwell", 0x47: "Broadwell", 0x4f: "Broadwell", 0x56: "Broadwell",
	0x4e: "Skylake", 0x5e: "Skylake", 0x8e: "Skylake", 0x9e: "Skylake", 0xa5: "Skylake", 0xa6: "Skylake",
	0x55: "Skylake-X or Cascade Lake",
	0x6a: "Ice Lake", 0x6c: "Ice Lake", 0x7d: "Ice Lake", 0x7e: "Ice Lake",
	0x8c: "Tiger Lake", 0x8d: "Tiger Lake", 0xa7: "Rocket Lake",
	0x97: "Alder Lake", 0x9a: "Alder Lake", 0xbe: "Gracemont",
	0xb7: "Raptor Lake", 0xba: "Raptor Lake", 0xbf: "Raptor Lake",
	0x8f: "Sapphire Rapids", 0xcf: "Emerald Rapids",
	0xad: "Granite Rapids", 0xae: "Granite Rapids", 0xaf: "Sierra Forest",
	0xaa: "Meteor Lake", 0xac: "Meteor Lake", 0xbd: "Lunar Lake", 0xc5: "Arrow Lake", 0xc6: "Arrow Lake",
}

// procCPU returns the implementer and part of the first core of /proc/cpuinfo.
func procCPU() (implementer, part string) {
	b, _ := os.ReadFile("/proc/cpuinfo") // absent elsewhere than on Linux
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); strings.TrimSpace(key) {
		case "CPU implementer":
			implementer = value
		case "CPU part":
			return implementer, value
		}
	}
	return implementer, part
}

// armCore names a core from the implementer and part numbers of MIDR_EL1.
func armCore(implementer, part string) string {
	switch implementer + " " + part {
	case "0x41 0xd07":
		return "Cortex-A57"
	case "0x41 0xd08":
		return "Cortex-A72"
	case "0x41 0xd0b":
		return "Cortex-A76"
	case "0x41 0xd0c":
		return "Neoverse N1"
	case "0x41 0xd40":
		return "Neoverse V1"
	case "0x41 0xd49":
		return "Neoverse N2"
	case "0x41 0xd4f":
		return "Neoverse V2"
	case "0x41 0xd84":
		return "Neoverse V3"
	case "0xc0 0xac3":
		return "Ampere-1"
	}
	if implementer == "" {
		return "unknown"
	}
	return "unknown, implementer " + implementer + " part " + part
}
