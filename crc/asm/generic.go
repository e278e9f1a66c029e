package asm

import "encoding/binary"

// slicing8 is one polynomial's eight tables: tables[k][b] is the CRC register
// after the byte b followed by k zero bytes.
type slicing8 [8][256]uint32

var (
	castagnoliTables = makeSlicing8(0x82F63B78)
	ieeeTables       = makeSlicing8(0xEDB88320)
)

func makeSlicing8(poly uint32) *slicing8 {
	t := new(slicing8)
	for b := range 256 {
		r := uint32(b)
		for range 8 {
			r = r>>1 ^ poly&-(r&1)
		}
		t[0][b] = r
	}
	for b := range 256 {
		for k := 1; k < 8; k++ {
			r := t[k-1][b]
			t[k][b] = r>>8 ^ t[0][byte(r)]
		}
	}
	return t
}

// updateGeneric adds p to a CRC with slicing-by-8 (Kounavis and Berry, "A
// Systematic Approach to Building High Performance Software-based CRC
// Generators", 2005): eight bytes a step, one table each. crc and the result
// are final values, that is complemented.
func updateGeneric(poly Poly, crc uint32, p []byte) uint32 {
	t := castagnoliTables
	if poly == IEEE {
		t = ieeeTables
	}
	r := ^crc
	for len(p) >= 8 {
		r ^= binary.LittleEndian.Uint32(p)
		r = t[7][byte(r)] ^ t[6][byte(r>>8)] ^ t[5][byte(r>>16)] ^ t[4][r>>24] ^
			t[3][p[4]] ^ t[2][p[5]] ^ t[1][p[6]] ^ t[0][p[7]]
		p = p[8:]
	}
	for _, b := range p {
		r = r>>8 ^ t[0][byte(r)^b]
	}
	return ^r
}

// putGeneric writes the big-endian CRC of each chunk of data to sums.
func putGeneric(poly Poly, sums, data []byte, chunk int) {
	for len(data) > 0 {
		n := min(chunk, len(data))
		binary.BigEndian.PutUint32(sums, updateGeneric(poly, 0, data[:n]))
		data, sums = data[n:], sums[4:]
	}
}

// copyThenPut is CopyPut for a kernel without a copying loop: it copies and
// then sums pieces that stay in the first-level cache.
func copyThenPut(k Kernel, p Poly, dst, sums, src []byte, chunk int) {
	for len(src) > 0 {
		n := len(src)
		if per := max(1, copyPiece/chunk); n > per*chunk {
			n = per * chunk
		}
		copy(dst[:n], src)
		count := (n-1)/chunk + 1
		k.Put(p, sums[:4*count], dst[:n], chunk)
		dst, src, sums = dst[n:], src[n:], sums[4*count:]
	}
}

// copyPiece is how many bytes copyThenPut copies at once.
const copyPiece = 16 << 10
