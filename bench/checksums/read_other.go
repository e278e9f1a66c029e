//go:build !amd64

package checksums

import "encoding/binary"

// readAll reads b, but for its last 63 bytes, by words.
func readAll(b []byte) {
	var x uint64
	for ; len(b) >= 64; b = b[64:] {
		x ^= binary.LittleEndian.Uint64(b) ^ binary.LittleEndian.Uint64(b[8:]) ^
			binary.LittleEndian.Uint64(b[16:]) ^ binary.LittleEndian.Uint64(b[24:]) ^
			binary.LittleEndian.Uint64(b[32:]) ^ binary.LittleEndian.Uint64(b[40:]) ^
			binary.LittleEndian.Uint64(b[48:]) ^ binary.LittleEndian.Uint64(b[56:])
	}
	sink ^= uint32(x)
}
