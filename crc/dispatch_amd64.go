//go:build !purego

package crc

import "github.com/blockpath/blockpath/crc/asm"

// Figures are GB/s in chunks of 512 and 4096 bytes of 64 KiB, which the
// second-level cache holds, then of 1 MiB windows of memory. Those of sse42,
// vpclmul and avx512 are from the same machine as the rest, an AMD EPYC of
// family 26 (Zen 5), on which hash/crc32 has 29 and 34, from memory 25 and 14,
// for CRC-32C, and 14 and 43, from memory 14 and 19, for CRC-32.
var rules = [...]rule{
	{asm.SSE42, asm.Castagnoli, bulk, 0, 0}, // 32, 27
	{asm.SSE42, asm.Castagnoli, copying, 0, 0},
	{asm.SSE42, asm.Castagnoli, long, 0, 0},
	{asm.SSE42, asm.IEEE, bulk, 0, 0}, // 16, 17
	{asm.SSE42, asm.IEEE, copying, 0, 0},
	{asm.SSE42, asm.IEEE, long, 0, 0},

	{asm.VPCLMUL, asm.Castagnoli, bulk, 0, 0}, // 62, 53; on Zen 3 of a model CPU: 48, 47
	{asm.VPCLMUL, asm.Castagnoli, copying, 0, 0},
	{asm.VPCLMUL, asm.Castagnoli, long, 0, 0},
	{asm.VPCLMUL, asm.IEEE, bulk, 0, 0}, // 46, 54
	{asm.VPCLMUL, asm.IEEE, copying, 0, 0},
	{asm.VPCLMUL, asm.IEEE, long, 0, 0},

	{asm.AVX512V12S3, asm.Castagnoli, bulk, 0, 0}, // 78, 78
	{asm.AVX512V12S3, asm.Castagnoli, copying, 0, 0},
	{asm.AVX512V12S3, asm.Castagnoli, long, 0, 0},
	{asm.AVX512, asm.IEEE, bulk, 0, 0}, // 64, 66; from memory 25, 23
	{asm.AVX512, asm.IEEE, copying, 0, 0},
	{asm.AVX512, asm.IEEE, long, 0, 0},

	{asm.AVX512AffineAhead, asm.Castagnoli, bulk, 0, 0},    // 102, 1024: 113
	{asm.AVX512V6S9, asm.Castagnoli, bulk, 512, 0},         // 106; from memory 45
	{asm.AVX512AffineAhead, asm.Castagnoli, bulk, 1024, 0}, // 1024: 113
	{asm.AVX512Affine, asm.Castagnoli, bulk, 2048, 0},      // 2048: 126, 121; from memory 28, 25
	{asm.AVX512, asm.Castagnoli, bulk, 2048, 1 << 20},      // from memory 37, 37
	{asm.AVX512AffineAhead, asm.Castagnoli, copying, 0, 0}, // 71
	{asm.AVX512, asm.Castagnoli, copying, 2048, 0},         // 2048: 60, 53; AVX512AffineAhead: 55, 45
	{asm.AVX512Affine, asm.Castagnoli, long, 0, 0},
	{asm.AVX512AffineAhead, asm.Castagnoli, long, 0, 1 << 20},
	{asm.AVX512AffineAhead, asm.IEEE, bulk, 0, 0},    // 102, 1024: 115; from memory 35
	{asm.AVX512Affine, asm.IEEE, bulk, 2048, 0},      // 2048: 126, 122
	{asm.AVX512, asm.IEEE, bulk, 2048, 1 << 20},      // from memory 37, 37
	{asm.AVX512AffineAhead, asm.IEEE, copying, 0, 0}, // 71
	{asm.AVX512, asm.IEEE, copying, 2048, 0},         // 2048: 60, 53; AVX512AffineAhead: 55, 45
	{asm.AVX512Affine, asm.IEEE, long, 0, 0},
	{asm.AVX512AffineAhead, asm.IEEE, long, 0, 1 << 20},
}
