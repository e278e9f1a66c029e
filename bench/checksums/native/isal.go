//go:build isal && cgo

package native

/*
#cgo CFLAGS: -O2
#cgo LDFLAGS: -lisal
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <isa-l/crc.h>

// crc32_iscsi works on the register, crc32_gzip_refl on checksums.
static uint32_t isal_checksum(bool castagnoli, uint8_t *data, size_t n) {
	return castagnoli ? ~crc32_iscsi(data, (int)n, 0xffffffff) : crc32_gzip_refl(0, data, n);
}

// libisal leaves the upper halves of the vector registers in use, which slows
// down whatever SSE code is measured next.
__attribute__((target("avx"))) static void clean(void) { __builtin_ia32_vzeroupper(); }

static void isal_put(bool castagnoli, uint8_t *sums, uint8_t *data, size_t n, size_t chunk) {
	while (n > 0) {
		size_t k = n < chunk ? n : chunk;
		uint32_t sum = __builtin_bswap32(isal_checksum(castagnoli, data, k));
		__builtin_memcpy(sums, &sum, 4);
		sums += 4;
		data += k;
		n -= k;
	}
	if (__builtin_cpu_supports("avx"))
		clean();
}
*/
import "C"

import (
	"encoding/binary"
	"unsafe"
)

var isal = Rival{
	Name: "isal",
	Put: func(castagnoli bool, sums, data []byte, chunk int) {
		C.isal_put(C.bool(castagnoli), (*C.uint8_t)(unsafe.SliceData(sums)), (*C.uint8_t)(unsafe.SliceData(data)),
			C.size_t(len(data)), C.size_t(chunk))
	},
	Checksum: func(castagnoli bool, data []byte) uint32 {
		var sum [4]byte
		C.isal_put(C.bool(castagnoli), (*C.uint8_t)(&sum[0]), (*C.uint8_t)(unsafe.SliceData(data)), C.size_t(len(data)), C.size_t(len(data)))
		return binary.BigEndian.Uint32(sum[:])
	},
}
