//go:build !purego

package crc

import "github.com/blockpath/blockpath/crc/asm"

// Figures are GB/s in chunks of 512 and 4096 bytes of 64 KiB, which the
// second-level cache holds, then of 1 MiB windows of memory, measured on an AMD
// EPYC of family 26 (Zen 5), where reading memory alone has 41. hash/crc32 of
// Go 1.26 has 27, 32 and 24, 14 there for CRC-32C, and 13, 40 and 13, 19 for
// CRC-32. On a Zen 3, whose memory has 22, vpclmul has 48, 47 and 19 for CRC-32C
// and 34, 43 and 20 for CRC-32, and vpclmul-dot 25, 25 and 23 for both.
var rules = [...]rule{
	{asm.SSE42, asm.Castagnoli, bulk, 0, 0},    // 61, 37
	{asm.SSE42, asm.Castagnoli, copying, 0, 0}, // 16, 16
	{asm.SSE42, asm.Castagnoli, long, 0, 0},
	{asm.SSE42V3S3, asm.Castagnoli, bulk, 0, 0}, // 32, 26; modelled for Skylake: 13.7 bytes a cycle, sse42 8.0
	{asm.SSE42V3S3, asm.Castagnoli, long, 0, 0},
	{asm.SSE42, asm.IEEE, bulk, 0, 0},    // 16, 16; 16, 16
	{asm.SSE42, asm.IEEE, copying, 0, 0}, // 16, 16
	{asm.SSE42, asm.IEEE, long, 0, 0},

	{asm.VPCLMUL, asm.Castagnoli, bulk, 0, 0},    // 60, 51; 45, 41
	{asm.VPCLMUL, asm.Castagnoli, copying, 0, 0}, // 31, 32; 20, 19
	{asm.VPCLMUL, asm.Castagnoli, long, 0, 0},
	{asm.VPCLMULV6S3, asm.Castagnoli, bulk, 0, 0}, // 48, 40; modelled for Ice Lake: 23.9 bytes a cycle, vpclmul 16.0
	{asm.VPCLMULV6S3, asm.Castagnoli, long, 0, 0},
	{asm.VPCLMUL, asm.IEEE, bulk, 0, 0},    // 45, 52; 37, 32
	{asm.VPCLMUL, asm.IEEE, copying, 0, 0}, // 31, 32; 20, 19
	{asm.VPCLMUL, asm.IEEE, long, 0, 0},
	{asm.VPCLMULDot, asm.Castagnoli, bulk, 0, 1 << 20},
	{asm.VPCLMULDot, asm.Castagnoli, long, 0, 1 << 20},
	{asm.VPCLMULDot, asm.IEEE, bulk, 0, 1 << 20},
	{asm.VPCLMULDot, asm.IEEE, long, 0, 1 << 20},

	{asm.AVX512V12S3, asm.Castagnoli, bulk, 0, 0},    // 76, 74; 46, 36
	{asm.AVX512V12S3, asm.Castagnoli, copying, 0, 0}, // 59, 52; 21, 20
	{asm.AVX512V12S3, asm.Castagnoli, long, 0, 0},
	{asm.AVX512V8S3, asm.Castagnoli, bulk, 0, 0}, // 82, 77; modelled for Zen 4: 28.1 bytes a cycle, avx512-v12s3 26.6
	{asm.AVX512V8S3, asm.Castagnoli, long, 0, 0},
	{asm.AVX512, asm.IEEE, bulk, 0, 0},    // 62, 63; 48, 45
	{asm.AVX512, asm.IEEE, copying, 0, 0}, // 59, 52; 21, 20
	{asm.AVX512, asm.IEEE, long, 0, 0},

	// The kernels that suit only Zen 5 and later; and for data from memory and
	// copies, where the memory is the limit, the plain dot product.
	{asm.AVX512AffineAhead, asm.Castagnoli, bulk, 0, 0},
	{asm.AVX512V6S9, asm.Castagnoli, bulk, 512, 0},         // 103; AVX512AffineAhead: 95
	{asm.AVX512AffineAhead, asm.Castagnoli, bulk, 1024, 0}, // 1024: 110
	{asm.AVX512Affine, asm.Castagnoli, bulk, 2048, 0},      // 2048: 127, 124; AVX512AffineAhead: 116, 84
	{asm.AVX512, asm.Castagnoli, bulk, 0, 1 << 20},         // 48, 45; AVX512V6S9: 44
	{asm.AVX512AffineAhead, asm.Castagnoli, copying, 0, 0}, // 67
	{asm.AVX512, asm.Castagnoli, copying, 2048, 0},         // 2048: 60, 52; AVX512AffineAhead: 61, 45
	{asm.AVX512, asm.Castagnoli, copying, 0, 1 << 20},      // 21, 20; AVX512AffineAhead: 20, 19
	{asm.AVX512Affine, asm.Castagnoli, long, 0, 0},
	{asm.AVX512, asm.Castagnoli, long, 0, 1 << 20},
	{asm.AVX512AffineAhead, asm.IEEE, bulk, 0, 0},    // 97, 1024: 110
	{asm.AVX512Affine, asm.IEEE, bulk, 2048, 0},      // 2048: 127, 124; AVX512AffineAhead: 116, 84
	{asm.AVX512, asm.IEEE, bulk, 0, 1 << 20},         // 48, 45; AVX512AffineAhead: 46, 38
	{asm.AVX512AffineAhead, asm.IEEE, copying, 0, 0}, // 67
	{asm.AVX512, asm.IEEE, copying, 2048, 0},         // 2048: 60, 52; AVX512AffineAhead: 61, 45
	{asm.AVX512, asm.IEEE, copying, 0, 1 << 20},      // 21, 20; AVX512AffineAhead: 20, 19
	{asm.AVX512Affine, asm.IEEE, long, 0, 0},
	{asm.AVX512, asm.IEEE, long, 0, 1 << 20},
}
