//go:build !purego

package asm

import "encoding/binary"

// bulk writes the CRC of each chunk of src to sums and, if dst is not nil,
// copies src to it.
func (k Kernel) bulk(p Poly, dst, sums, src []byte, chunk int) {
	left := len(src) / chunk
	for l := range loops {
		size := k.group(l, chunk)
		if size == 0 {
			continue
		}
		for left >= size {
			groups := max(1, min(left, maxCall/chunk)/size)
			n := groups * size
			if dst == nil {
				k.run(l, p, nil, &sums[0], &src[0], chunk, groups)
			} else {
				k.run(l, p, &dst[0], &sums[0], &src[0], chunk, groups)
				dst = dst[n*chunk:]
			}
			src, sums, left = src[n*chunk:], sums[4*n:], left-n
		}
	}
	for len(src) > 0 {
		n := min(chunk, len(src))
		var crc uint32
		if dst == nil {
			crc = k.Update(p, 0, src[:n])
		} else {
			for at := 0; at < n; at += copyPiece {
				piece := dst[at:min(at+copyPiece, n)]
				copy(piece, src[at:])
				crc = k.Update(p, crc, piece)
			}
			dst = dst[n:]
		}
		binary.BigEndian.PutUint32(sums, crc)
		src, sums = src[n:], sums[4:]
	}
}

// chain adds b to a CRC with one CRC instruction after the other.
func chain(p Poly, crc uint32, b []byte) uint32 {
	for len(b) > 0 {
		n := min(len(b), maxCall)
		if p == Castagnoli {
			crc = castagnoliUpdate(crc, &b[0], n)
		} else {
			crc = ieeeUpdate(crc, &b[0], n)
		}
		b = b[n:]
	}
	return crc
}

// updateChains adds b to a CRC without PMULL: as groups of blocks, whose CRCs
// are then joined by Horner's rule, and the rest as one chain. A group of
// smaller blocks would not repay the multiplications.
func updateChains(p Poly, crc uint32, b []byte) uint32 {
	for log := 13; log >= 11; log-- {
		size := 1 << log
		for len(b) >= chains*size {
			var sums [4 * chains]byte
			runChains(p, nil, &sums[0], &b[0], size, 1)
			for i := 0; i < len(sums); i += 4 {
				crc = Multiply(p, crc, tables[p].squares[log]) ^ binary.BigEndian.Uint32(sums[i:])
			}
			b = b[chains*size:]
		}
	}
	return chain(p, crc, b)
}

// update adds b to a CRC: blocks as chunks, whose CRCs are then joined, and the
// rest as messages of at most maxDot bytes.
func (k Kernel) update(p Poly, crc uint32, b []byte) uint32 {
	if len(b) > maxDot {
		crc, b = k.blocks(p, crc, b)
	}
	for len(b) >= k.shortest() {
		n := min(len(b), maxDot)
		crc = k.single(p, crc, b[:n])
		b = b[n:]
	}
	return chain(p, crc, b)
}

// blocks adds a prefix of b to a CRC, as blocks of the largest size of which
// the kernel's widest loop has enough, and returns what is left. The next group
// is prefetched while one is summed, so groups should not fill the first-level
// cache: 2048 bytes is the largest size.
func (k Kernel) blocks(p Poly, crc uint32, b []byte) (uint32, []byte) {
	t, l := tables[p], widestLoop
	if k == CRC32 {
		l = chainLoop
	}
	for i := 2; i >= 0; i-- {
		size := 512 << i
		group := k.group(l, size)
		for len(b) >= group*size {
			groups := min(len(b), maxCall, size*(composeBlocks-2)) / (group * size)
			blocks := groups * group
			// The CRC so far is the first of the CRCs to join, behind as many
			// zeros as make their number even.
			var sums [4 * composeBlocks]byte
			first := 4 * (1 - blocks&1)
			binary.BigEndian.PutUint32(sums[first:], crc)
			k.run(l, p, nil, &sums[first+4], &b[0], size, groups)
			pairs := (blocks + 2) / 2
			crc = clmulCompose(&sums[0], pairs, &t.compose[i][composeBlocks-2*pairs], &t.barrett[0])
			b = b[blocks*size:]
		}
	}
	return crc, b
}
