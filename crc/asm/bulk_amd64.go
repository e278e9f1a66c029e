//go:build !purego

package asm

import (
	"encoding/binary"
	"unsafe"
)

const (
	// minDot is the shortest message that the dot product takes.
	minDot = 16
	// minDotCastagnoli is the length from which it beats one chain of crc32q.
	minDotCastagnoli = 112
	// streamAlign is what the destination and the chunk size must be multiples
	// of for stores around the cache.
	streamAlign = 64
)

// bulk writes the CRC of each chunk of src to sums and, if dst is not nil,
// copies src to it.
func (k Kernel) bulk(p Poly, dst, sums, src []byte, chunk int, nonTemporal bool) {
	if chunk >= minDot && chunk <= maxDot {
		stream := nonTemporal && chunk%streamAlign == 0 &&
			uintptr(unsafe.Pointer(unsafe.SliceData(dst)))%streamAlign == 0
		left := len(src) / chunk
		second := k
		if k == AVX512V6S9 && hasAffine {
			second = AVX512AffineAhead // for other sizes and what is left: it suits the same CPUs
		}
		for _, s := range [...]struct {
			Kernel
			loop
		}{{k, widestLoop}, {second, widestLoop}, {k, dotLoop}} {
			k, l := s.Kernel, s.loop
			size := k.group(l, p, chunk, dst != nil)
			if size == 0 {
				continue
			}
			if l == widestLoop && k.looksBack(p) && left >= 2 {
				k.run(dotLoop, p, nil, &sums[0], &src[0], chunk, 1, false)
				src, sums, left = src[2*chunk:], sums[8:], left-2
			}
			for left >= size {
				groups := max(1, min(left, maxCall/chunk)/size)
				n := groups * size
				if dst == nil {
					k.run(l, p, nil, &sums[0], &src[0], chunk, groups, false)
				} else {
					k.run(l, p, &dst[0], &sums[0], &src[0], chunk, groups, stream)
					dst = dst[n*chunk:]
				}
				src, sums, left = src[n*chunk:], sums[4*n:], left-n
			}
		}
		if stream {
			storeFence()
		}
	}
	for len(src) > 0 {
		n := min(chunk, len(src))
		b := src[:n]
		if dst != nil {
			b = dst[:copy(dst[:n], b)]
			dst = dst[n:]
		}
		binary.BigEndian.PutUint32(sums, k.Update(p, 0, b))
		src, sums = src[n:], sums[4:]
	}
}

// update adds b to a CRC: blocks of a popular size as chunks, whose CRCs are
// then joined, and the rest as messages of at most maxDot bytes.
func (k Kernel) update(p Poly, crc uint32, b []byte) uint32 {
	if len(b) > maxDot/2 {
		crc, b = k.blocks(p, crc, b)
	}
	for len(b) >= minDot {
		n := min(len(b), maxDot)
		crc = k.single(p, crc, b[:n])
		b = b[n:]
	}
	if p == Castagnoli && len(b) > 0 {
		return castagnoliUpdate(crc, &b[0], len(b))
	}
	return updateGeneric(p, crc, b)
}

// blocks adds a prefix of b to a CRC, as blocks of the largest popular size of
// which the kernel's widest loop has enough, and returns what is left.
func (k Kernel) blocks(p Poly, crc uint32, b []byte) (uint32, []byte) {
	t := tables[p]
	if k.looksBack(p) {
		const before = 64
		crc, b = k.single(p, crc, b[:before]), b[before:]
	}
	for i := len(t.compose) - 1; i >= 0; i-- {
		size := 512 << i
		l := widestLoop
		group := k.group(l, p, size, false)
		if group == 0 {
			continue
		}
		for len(b) >= group*size {
			groups := min(len(b), maxCall, size*(composeBlocks-2)) / (group * size)
			blocks := groups * group
			// The CRC so far is the first of the CRCs to join, behind as many
			// zeros as make their number even.
			var sums [4 * composeBlocks]byte
			first := 4 * (1 - blocks&1)
			binary.BigEndian.PutUint32(sums[first:], crc)
			k.run(l, p, nil, &sums[first+4], &b[0], size, groups, false)
			pairs := (blocks + 2) / 2
			crc = clmulCompose(&sums[0], pairs, &t.compose[i][composeBlocks-2*pairs], &t.barrett[0])
			b = b[blocks*size:]
		}
	}
	return crc, b
}
