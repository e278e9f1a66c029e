//go:build !purego

package asm

import "encoding/binary"

// chains is how many chunks castagnoliChunks and ieeeChunks take at once.
const chains = 6

func updateChain(p Poly, crc uint32, b []byte) uint32 {
	for len(b) > 0 {
		n := min(len(b), maxCall)
		if p == IEEE {
			crc = ieeeUpdate(crc, &b[0], n)
		} else {
			crc = castagnoliUpdate(crc, &b[0], n)
		}
		b = b[n:]
	}
	return crc
}

func putChains(p Poly, sums, data []byte, chunk int) {
	if chunk <= maxCall/chains {
		for count := len(data) / chunk; count >= chains; count = len(data) / chunk {
			k := min(count, maxCall/chunk) / chains
			if p == IEEE {
				ieeeChunks(&sums[0], &data[0], chunk, k)
			} else {
				castagnoliChunks(&sums[0], &data[0], chunk, k)
			}
			data, sums = data[k*chains*chunk:], sums[k*chains*4:]
		}
	}
	for len(data) > 0 {
		n := min(chunk, len(data))
		binary.BigEndian.PutUint32(sums, updateChain(p, 0, data[:n]))
		data, sums = data[n:], sums[4:]
	}
}
