//go:build hadoop && cgo && amd64

package native

/*
#cgo CFLAGS: -O2 -msse4.2
#include <nmmintrin.h>
#include <stddef.h>
#include <stdint.h>

static void hadoop_sum(uint8_t *sums, uint64_t crc) {
	uint32_t sum = __builtin_bswap32(~(uint32_t)crc);
	__builtin_memcpy(sums, &sum, 4);
}

static uint64_t hadoop_word(uint64_t crc, const uint8_t *p) {
	uint64_t word;
	__builtin_memcpy(&word, p, 8);
	return _mm_crc32_u64(crc, word);
}

// hadoop_put is what libhadoop's bulk_crc32 does with the crc32 instruction:
// three chunks at a time, one step of each after the other.
static void hadoop_put(uint8_t *sums, const uint8_t *data, size_t n, size_t chunk) {
	for (; n >= 3 * chunk; n -= 3 * chunk) {
		const uint8_t *a = data, *b = a + chunk, *c = b + chunk;
		uint64_t x = 0xffffffff, y = x, z = x;
		size_t left = chunk;
		for (; left >= 8; left -= 8, a += 8, b += 8, c += 8) {
			x = hadoop_word(x, a);
			y = hadoop_word(y, b);
			z = hadoop_word(z, c);
		}
		for (; left > 0; left--) {
			x = _mm_crc32_u8((uint32_t)x, *a++);
			y = _mm_crc32_u8((uint32_t)y, *b++);
			z = _mm_crc32_u8((uint32_t)z, *c++);
		}
		hadoop_sum(sums, x);
		hadoop_sum(sums + 4, y);
		hadoop_sum(sums + 8, z);
		sums += 12;
		data += 3 * chunk;
	}
	while (n > 0) {
		size_t left = n < chunk ? n : chunk;
		uint64_t x = 0xffffffff;
		n -= left;
		for (; left >= 8; left -= 8, data += 8)
			x = hadoop_word(x, data);
		for (; left > 0; left--)
			x = _mm_crc32_u8((uint32_t)x, *data++);
		hadoop_sum(sums, x);
		sums += 4;
	}
}
*/
import "C"

import (
	"encoding/binary"
	"unsafe"
)

var hadoop = Rival{
	Name:           "hadoop",
	CastagnoliOnly: true,
	Put:            func(_ bool, sums, data []byte, chunk int) { hadoopPut(sums, data, chunk) },
	Checksum: func(_ bool, data []byte) uint32 {
		var sum [4]byte
		hadoopPut(sum[:], data, len(data))
		return binary.BigEndian.Uint32(sum[:])
	},
}

func hadoopPut(sums, data []byte, chunk int) {
	C.hadoop_put((*C.uint8_t)(unsafe.SliceData(sums)), (*C.uint8_t)(unsafe.SliceData(data)), C.size_t(len(data)), C.size_t(chunk))
}
