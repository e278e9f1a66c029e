//go:build crcfast && cgo

package native

/*
#cgo LDFLAGS: ${SRCDIR}/crcfast/target/release/libcrcfast.a -lm
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void crcfast_put(bool castagnoli, uint8_t *sums, const uint8_t *data, size_t n, size_t chunk);
uint32_t crcfast_checksum(bool castagnoli, const uint8_t *data, size_t n);
*/
import "C"

import "unsafe"

var crcFast = Rival{
	Name: "crcfast",
	Put: func(castagnoli bool, sums, data []byte, chunk int) {
		C.crcfast_put(C.bool(castagnoli), (*C.uint8_t)(unsafe.SliceData(sums)), (*C.uint8_t)(unsafe.SliceData(data)),
			C.size_t(len(data)), C.size_t(chunk))
	},
	Checksum: func(castagnoli bool, data []byte) uint32 {
		return uint32(C.crcfast_checksum(C.bool(castagnoli), (*C.uint8_t)(unsafe.SliceData(data)), C.size_t(len(data))))
	},
}
