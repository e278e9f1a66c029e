//go:build !purego

package asm

import "github.com/klauspost/cpuid/v2"

// Names such as V12S3 say how many chunks a kernel's widest loop takes at once:
// twelve by dot product with vector instructions and three with the scalar
// crc32q, which runs on ports of its own.
const (
	// SSE42 takes six chunks with crc32q for CRC-32C, two with PCLMULQDQ for
	// CRC-32.
	SSE42 Kernel = 1 + iota
	// SSE42V3S3 is for CPUs whose PCLMULQDQ is as fast as crc32q.
	SSE42V3S3
	// VPCLMUL is for AVX2 with VPCLMULQDQ: V3S3 for CRC-32C; for CRC-32 it
	// XORs a part of chunks of 512, 1024, 2048 and 4096 bytes away.
	VPCLMUL
	// VPCLMULV6S3 is for CPUs that start one VPCLMULQDQ in a cycle.
	VPCLMULV6S3
	// VPCLMULDot takes two chunks by dot product.
	VPCLMULDot
	// AVX512 takes four chunks by dot product.
	AVX512
	// AVX512V12S3 is for CPUs that start one VPCLMULQDQ and one crc32q in a
	// cycle.
	AVX512V12S3
	// AVX512V8S3 is for CPUs that start two VPCLMULQDQ in three cycles.
	AVX512V8S3
	// AVX512V6S9 is for CPUs that start one VPCLMULQDQ in two cycles and three
	// crc32q in one.
	AVX512V6S9
	// AVX512Affine takes three chunks by bit matrices and one by dot product
	// at once, for CPUs on which VGF2P8AFFINEQB is much faster than VPCLMULQDQ.
	AVX512Affine
	// AVX512AffineAhead is AVX512Affine for data that may not be in cache.
	AVX512AffineAhead
)

// features are those that Features reports.
var features = []cpuid.FeatureID{
	cpuid.SSE42, cpuid.CLMUL, cpuid.AVX2, cpuid.BMI2, cpuid.VPCLMULQDQ, cpuid.GFNI,
	cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512VL, cpuid.AVX512VBMI2,
}

var (
	hasSSE42   = cpuid.CPU.Supports(cpuid.SSE42, cpuid.SSSE3, cpuid.CLMUL)
	hasVPCLMUL = hasSSE42 && cpuid.CPU.Supports(cpuid.AVX2, cpuid.VPCLMULQDQ)
	hasAVX512  = hasVPCLMUL && cpuid.CPU.Supports(cpuid.BMI2,
		cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512VL, cpuid.AVX512VBMI2)
	hasCLMUL  = hasSSE42 // what clmulCompose and clmulShift need
	hasAffine = hasAVX512 && cpuid.CPU.Supports(cpuid.GFNI)

	// What is known of how many instructions CPUs start in a cycle. Zen 5 was
	// measured, the others are LLVM's models. Intel's PCLMULQDQ is fast from
	// Broadwell on, which brought ADX.
	isIntel = cpuid.CPU.VendorID == cpuid.Intel && cpuid.CPU.Supports(cpuid.ADX)
	isZen4  = cpuid.CPU.VendorID == cpuid.AMD && cpuid.CPU.Family == 25
	isZen5  = cpuid.CPU.VendorID == cpuid.AMD && cpuid.CPU.Family >= 26
)

var kernels = [...]kernel{
	Generic:           {"generic", castagnoli | ieee, true},
	SSE42:             {"sse42", castagnoli | ieee, hasSSE42},
	SSE42V3S3:         {"sse42-v3s3", castagnoli, hasSSE42},
	VPCLMUL:           {"vpclmul", castagnoli | ieee, hasVPCLMUL},
	VPCLMULV6S3:       {"vpclmul-v6s3", castagnoli, hasVPCLMUL},
	VPCLMULDot:        {"vpclmul-dot", castagnoli | ieee, hasVPCLMUL},
	AVX512:            {"avx512", castagnoli | ieee, hasAVX512},
	AVX512V12S3:       {"avx512-v12s3", castagnoli, hasAVX512},
	AVX512V8S3:        {"avx512-v8s3", castagnoli, hasAVX512},
	AVX512V6S9:        {"avx512-v6s9", castagnoli, hasAVX512},
	AVX512Affine:      {"avx512-affine", castagnoli | ieee, hasAffine},
	AVX512AffineAhead: {"avx512-affine-ahead", castagnoli | ieee, hasAffine},
}

// Suits reports whether this CPU has the ports that the kernel is balanced for,
// as far as is known. One that does not suit may still be used.
func (k Kernel) Suits() bool {
	switch k {
	case SSE42V3S3, VPCLMULV6S3:
		return isIntel
	case AVX512V8S3:
		return isZen4
	case AVX512V6S9, AVX512Affine, AVX512AffineAhead:
		return isZen5
	}
	return true
}

// Update returns the CRC of the message whose CRC is crc followed by b.
func (k Kernel) Update(p Poly, crc uint32, b []byte) uint32 {
	switch {
	case k == Generic:
		return updateGeneric(p, crc, b)
	case p == IEEE || len(b) >= minDotCastagnoli:
		return k.update(p, crc, b)
	case len(b) == 0:
		return crc
	}
	return castagnoliUpdate(crc, &b[0], len(b))
}

// Put writes the CRC of each chunk of data to sums.
func (k Kernel) Put(p Poly, sums, data []byte, chunk int) {
	if k == Generic {
		putGeneric(p, sums, data, chunk)
		return
	}
	k.bulk(p, nil, sums, data, chunk, false)
}

// CopyPut copies src to dst, of the same length, and writes the CRC of each
// chunk to sums. nonTemporal lets it write around the cache.
func (k Kernel) CopyPut(p Poly, dst, sums, src []byte, chunk int, nonTemporal bool) {
	if k == Generic {
		copyThenPut(k, p, dst, sums, src, chunk)
		return
	}
	k.bulk(p, dst, sums, src, chunk, nonTemporal)
}

// loop is one of a kernel's loops over chunks.
type loop uint8

const (
	dotLoop    loop = iota // two or four chunks of any size from minDot to maxDot
	widestLoop             // the loop that the kernel is there for
)

// group returns how many chunks of the given size the loop takes at once, or 0
// if it takes none of that size.
func (k Kernel) group(l loop, p Poly, chunk int, copying bool) int {
	dot := 2
	if k >= AVX512 {
		dot = 4
	}
	if l == dotLoop || k == AVX512 || k == VPCLMULDot {
		return dot
	}
	if k >= AVX512Affine { // the only ones whose widest loop copies
		if chunk%128 == 0 {
			return 4
		}
		return 0
	}
	if copying {
		return 0
	}
	if p == IEEE {
		if k == VPCLMUL && chunk >= 512 && chunk&(chunk-1) == 0 {
			return 2
		}
		return 0
	}
	size, multiple := 0, 64
	switch k {
	case SSE42:
		size, multiple = 6, 1
	case SSE42V3S3:
		size, multiple = 6, 32
	case VPCLMUL:
		size = 6
	case VPCLMULV6S3:
		size = 9
	case AVX512V12S3:
		size = 15
	case AVX512V8S3:
		size = 11
	case AVX512V6S9:
		if chunk == 512 {
			size = 15
		}
	}
	if chunk%multiple != 0 {
		return 0
	}
	return size
}

// run runs the loop over groups of chunks that group allows. dst is nil or
// where to copy to, in a way that stream decides: around the cache if it is
// true, which needs dst and chunk to be multiples of 64.
func (k Kernel) run(l loop, p Poly, dst, sums, src *byte, chunk, groups int, stream bool) {
	t := &tables[p].barrett[0]
	if l == dotLoop || k == AVX512 || k == VPCLMULDot {
		k.runDot(dst, sums, src, chunk, groups, stream, t)
		return
	}
	switch k {
	case SSE42:
		castagnoliChunks(sums, src, chunk, groups)
	case SSE42V3S3:
		sse42Fused(sums, src, chunk, groups, t)
	case VPCLMUL:
		if p == Castagnoli {
			vpclmulFused(sums, src, chunk, groups, t)
			return
		}
		switch chunk {
		case 512:
			vpclmulEliminate512(sums, src, groups, t)
		case 1024:
			vpclmulEliminate1024(sums, src, groups, t)
		case 2048:
			vpclmulEliminate2048(sums, src, groups, t)
		case 4096:
			vpclmulEliminate4096(sums, src, groups, t)
		}
	case VPCLMULV6S3:
		vpclmulV6S3(sums, src, chunk, groups, t)
	case AVX512V12S3:
		avx512V12S3(sums, src, chunk, groups, t)
	case AVX512V8S3:
		avx512V8S3(sums, src, chunk, groups, t)
	case AVX512V6S9:
		avx512V6S9_512(sums, src, chunk, groups, t)
	case AVX512Affine, AVX512AffineAhead:
		switch {
		case stream:
			avx512AffineStream(sums, dst, src, chunk, groups, t)
		case dst != nil:
			avx512AffineCopy(sums, dst, src, chunk, groups, t)
		case k == AVX512Affine:
			avx512Affine(sums, src, chunk, groups, t)
		default:
			avx512AffineAhead(sums, src, chunk, groups, t)
		}
	}
}

func (k Kernel) runDot(dst, sums, src *byte, chunk, groups int, stream bool, t *uint64) {
	switch {
	case k < VPCLMUL && dst == nil:
		sse42Dot(sums, src, chunk, groups, t)
	case k < VPCLMUL && stream:
		sse42DotStream(sums, dst, src, chunk, groups, t)
	case k < VPCLMUL:
		sse42DotCopy(sums, dst, src, chunk, groups, t)
	case k < AVX512 && dst == nil:
		vpclmulDot(sums, src, chunk, groups, t)
	case k < AVX512 && stream:
		vpclmulDotStream(sums, dst, src, chunk, groups, t)
	case k < AVX512:
		vpclmulDotCopy(sums, dst, src, chunk, groups, t)
	case dst == nil:
		avx512Dot(sums, src, chunk, groups, t)
	case stream:
		avx512DotStream(sums, dst, src, chunk, groups, t)
	default:
		avx512DotCopy(sums, dst, src, chunk, groups, t)
	}
}

// looksBack reports whether the kernel's widest loop reads, without using it,
// what stands before the first chunk.
func (k Kernel) looksBack(p Poly) bool { return k == VPCLMUL && p == IEEE }

// single adds minDot to maxDot bytes to a CRC.
func (k Kernel) single(p Poly, crc uint32, b []byte) uint32 {
	t := &tables[p].barrett[0]
	switch {
	case k < VPCLMUL:
		return sse42Update(crc, &b[0], len(b), t)
	case k < AVX512:
		return vpclmulUpdate(crc, &b[0], len(b), t)
	}
	return avx512Update(crc, &b[0], len(b), t)
}
