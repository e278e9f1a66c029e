//go:build !purego

package asm

import "github.com/klauspost/cpuid/v2"

const (
	// CRC32 takes six chunks at once with the CRC instructions.
	CRC32 Kernel = 1 + iota
	// PMULL takes four chunks by dot product and four with the CRC
	// instructions at once, for cores that start one PMULL in a cycle.
	PMULL
	// PMULLV6S4 takes six chunks by dot product and four with the CRC
	// instructions at once, for cores on which PMULL is somewhat faster than
	// the CRC instructions.
	PMULLV6S4
	// PMULLV9S3 takes nine chunks by dot product and three with the CRC
	// instructions at once, for cores that start three or more PMULL in a
	// cycle.
	PMULLV9S3
	// PMULLEOR3 takes eight chunks by dot product, with the three-way XOR, and
	// four with the CRC instructions at once, for cores that start two PMULL in
	// a cycle.
	PMULLEOR3
)

// features are those that Features reports.
var features = []cpuid.FeatureID{cpuid.CRC32, cpuid.PMULL, cpuid.SHA3}

var (
	hasCRC32 = cpuid.CPU.Supports(cpuid.CRC32)
	hasPMULL = hasCRC32 && cpuid.CPU.Supports(cpuid.PMULL)
	hasCLMUL = hasPMULL // what clmulCompose and clmulShift need
	hasEOR3  = hasPMULL && cpuid.CPU.Supports(cpuid.SHA3)
)

var kernels = [...]kernel{
	Generic:   {"generic", castagnoli | ieee, true},
	CRC32:     {"crc32", castagnoli | ieee, hasCRC32},
	PMULL:     {"pmull", castagnoli | ieee, hasPMULL},
	PMULLV6S4: {"pmull-v6s4", castagnoli | ieee, hasPMULL},
	PMULLV9S3: {"pmull-v9s3", castagnoli | ieee, hasPMULL},
	PMULLEOR3: {"pmull-eor3", castagnoli | ieee, hasEOR3},
}

// Suits reports whether this CPU has the ports that the kernel is balanced for,
// as far as is known. One that does not suit may still be used.
func (k Kernel) Suits() bool { return k <= CRC32 || k == balanced }

// Update returns the CRC of the message whose CRC is crc followed by b.
func (k Kernel) Update(p Poly, crc uint32, b []byte) uint32 {
	switch {
	case k == Generic:
		return updateGeneric(p, crc, b)
	case !hasPMULL:
		return updateChains(p, crc, b)
	}
	return k.update(p, crc, b)
}

// Put writes the CRC of each chunk of data to sums.
func (k Kernel) Put(p Poly, sums, data []byte, chunk int) {
	if k == Generic {
		putGeneric(p, sums, data, chunk)
		return
	}
	k.bulk(p, nil, sums, data, chunk)
}

// CopyPut copies src to dst, of the same length, and writes the CRC of each
// chunk to sums. There are no stores around the cache, so nonTemporal changes
// nothing.
func (k Kernel) CopyPut(p Poly, dst, sums, src []byte, chunk int, nonTemporal bool) {
	if k == Generic {
		copyThenPut(k, p, dst, sums, src, chunk)
		return
	}
	k.bulk(p, dst, sums, src, chunk)
}

// loop is one of a kernel's loops over chunks.
type loop uint8

const (
	widestLoop loop = iota // the loop that the kernel is there for
	dotLoop                // four chunks by dot product
	chainLoop              // six chunks with the CRC instructions
	loops
)

const (
	// minDot is the shortest message or chunk that the dot product takes.
	// Shorter ones do not repay its reduction.
	minDot = 128
	// minSplit is the shortest message that CRC32 takes in parts.
	minSplit = 512
	// chains is how many chunks chainLoop takes.
	chains = 6
)

// group returns how many chunks of the given size the loop takes at once, or 0
// if the kernel does not run it for that size.
func (k Kernel) group(l loop, chunk int) int {
	dot := k != CRC32 && minDot <= chunk && chunk <= maxDot
	switch {
	case l == chainLoop && !dot && chunk <= maxCall/chains:
		return chains
	case l == dotLoop && dot:
		return 4
	case l == widestLoop && dot:
		return [...]int{PMULL: 8, PMULLV6S4: 10, PMULLV9S3: 12, PMULLEOR3: 12}[k]
	}
	return 0
}

// run runs the loop over groups of chunks. If dst is not nil it copies them
// there.
func (k Kernel) run(l loop, p Poly, dst, sums, src *byte, chunk, groups int) {
	t := &tables[p].barrett[0]
	switch {
	case l == chainLoop:
		runChains(p, dst, sums, src, chunk, groups)
	case l == dotLoop && dst == nil:
		pmullDot(sums, src, chunk, groups, t)
	case l == dotLoop:
		pmullDotCopy(sums, dst, src, chunk, groups, t)
	case p == Castagnoli && dst == nil:
		switch k {
		case PMULL:
			pmullV4S4Castagnoli(sums, src, chunk, groups, t)
		case PMULLV6S4:
			pmullV6S4Castagnoli(sums, src, chunk, groups, t)
		case PMULLV9S3:
			pmullV9S3Castagnoli(sums, src, chunk, groups, t)
		case PMULLEOR3:
			eor3V8S4Castagnoli(sums, src, chunk, groups, t)
		}
	case p == Castagnoli:
		switch k {
		case PMULL:
			pmullV4S4CastagnoliCopy(sums, dst, src, chunk, groups, t)
		case PMULLV6S4:
			pmullV6S4CastagnoliCopy(sums, dst, src, chunk, groups, t)
		case PMULLV9S3:
			pmullV9S3CastagnoliCopy(sums, dst, src, chunk, groups, t)
		case PMULLEOR3:
			eor3V8S4CastagnoliCopy(sums, dst, src, chunk, groups, t)
		}
	case dst == nil:
		switch k {
		case PMULL:
			pmullV4S4IEEE(sums, src, chunk, groups, t)
		case PMULLV6S4:
			pmullV6S4IEEE(sums, src, chunk, groups, t)
		case PMULLV9S3:
			pmullV9S3IEEE(sums, src, chunk, groups, t)
		case PMULLEOR3:
			eor3V8S4IEEE(sums, src, chunk, groups, t)
		}
	default:
		switch k {
		case PMULL:
			pmullV4S4IEEECopy(sums, dst, src, chunk, groups, t)
		case PMULLV6S4:
			pmullV6S4IEEECopy(sums, dst, src, chunk, groups, t)
		case PMULLV9S3:
			pmullV9S3IEEECopy(sums, dst, src, chunk, groups, t)
		case PMULLEOR3:
			eor3V8S4IEEECopy(sums, dst, src, chunk, groups, t)
		}
	}
}

func runChains(p Poly, dst, sums, src *byte, chunk, groups int) {
	switch {
	case p == Castagnoli && dst == nil:
		castagnoliChunks(sums, src, chunk, groups)
	case p == Castagnoli:
		castagnoliChunksCopy(sums, dst, src, chunk, groups)
	case dst == nil:
		ieeeChunks(sums, src, chunk, groups)
	default:
		ieeeChunksCopy(sums, dst, src, chunk, groups)
	}
}

// shortest is the length from which the kernel takes a message by single.
func (k Kernel) shortest() int {
	if k == CRC32 {
		return minSplit
	}
	return minDot
}

// single adds a message of at least shortest and at most maxDot bytes to a CRC.
func (k Kernel) single(p Poly, crc uint32, b []byte) uint32 {
	src, n, t := &b[0], len(b), &tables[p].barrett[0]
	if p == Castagnoli {
		switch k {
		case CRC32:
			return castagnoliSplit(crc, src, n, n/96, t)
		case PMULL:
			return pmullV4S4UpdateCastagnoli(crc, src, n, n/128, t)
		case PMULLV6S4:
			return pmullV6S4UpdateCastagnoli(crc, src, n, n/160, t)
		case PMULLV9S3:
			return pmullV9S3UpdateCastagnoli(crc, src, n, n/192, t)
		}
		return eor3V8S4UpdateCastagnoli(crc, src, n, n/192, t)
	}
	switch k {
	case CRC32:
		return ieeeSplit(crc, src, n, n/96, t)
	case PMULL:
		return pmullV4S4UpdateIEEE(crc, src, n, n/128, t)
	case PMULLV6S4:
		return pmullV6S4UpdateIEEE(crc, src, n, n/160, t)
	case PMULLV9S3:
		return pmullV9S3UpdateIEEE(crc, src, n, n/192, t)
	}
	return eor3V8S4UpdateIEEE(crc, src, n, n/192, t)
}
