package main

import (
	"regexp"
	"strings"
)

const (
	sse width = iota // SSE4.2 and PCLMULQDQ
	ymm              // AVX2 and VPCLMULQDQ
	zmm              // AVX-512, VPCLMULQDQ and GFNI
)

var amd64 = architecture{
	name:    "amd64",
	triple:  "x86_64-linux-gnu",
	program: "./bochs",
	comment: regexp.MustCompile(`\s*(#.*|<[^>]*>.*)$`),
	jumps:   func(operation string) bool { return strings.HasPrefix(operation, "j") },
	cpus: []cpu{
		{model: "haswell", microarchitecture: "Haswell", vendor: "Intel", widest: sse},
		{model: "skylake-avx512", microarchitecture: "Skylake-X", vendor: "Intel", widest: sse},
		{model: "icelake-server", microarchitecture: "Ice Lake", vendor: "Intel", widest: zmm},
		{model: "sapphirerapids", microarchitecture: "Sapphire Rapids", vendor: "Intel", widest: zmm},
		{model: "znver2", microarchitecture: "Zen 2", vendor: "AMD", widest: sse},
		{model: "znver3", microarchitecture: "Zen 3", vendor: "AMD", widest: ymm},
		{model: "znver4", microarchitecture: "Zen 4", vendor: "AMD", widest: zmm},
	},
	loops: []loop{
		{sse, "castagnoliUpdate", 1, 8},
		{sse, "castagnoliChunks", 1, 6 * 32},
		{sse, "sse42Update", 1, 16},
		{sse, "sse42Dot", 1, 2 * 16},
		{sse, "sse42DotCopy", 1, 2 * 16},
		{sse, "sse42Fused", 1, 6 * 32},
		{ymm, "vpclmulUpdate", 1, 32},
		{ymm, "vpclmulDot", 1, 2 * 32},
		{ymm, "vpclmulDotCopy", 1, 2 * 32},
		{ymm, "vpclmulFused", 1, 6 * 64},
		{ymm, "vpclmulV6S3", 1, 9 * 64},
		{ymm, "vpclmulEliminate512", 1, 2 * 512},
		{ymm, "vpclmulEliminate1024", 1, 2 * 1024},
		{ymm, "vpclmulEliminate2048", 1, 2 * 2048},
		{ymm, "vpclmulEliminate4096", 1, 2 * 4096},
		{zmm, "avx512Update", 1, 64},
		{zmm, "avx512Dot", 1, 4 * 64},
		{zmm, "avx512DotCopy", 1, 4 * 64},
		{zmm, "avx512V12S3", 1, 15 * 64},
		{zmm, "avx512V8S3", 1, 11 * 64},
		{zmm, "avx512V6S9_512", 1, 15 * 64},
		{zmm, "avx512Affine", 1, 4 * 128},
		{zmm, "avx512AffineAhead", 1, 4 * 128},
		{zmm, "avx512AffineCopy", 1, 4 * 128},
	},
}
