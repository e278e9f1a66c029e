package stripedcounter

import (
	"sync/atomic"
	"unsafe"
)

// addGeneric adds d to the cell that lies in a row chosen by the caller's stack
// below cell, a cell of row 0.
func addGeneric(cell *int64, mask, stride uintptr, d int64) {
	atomic.AddInt64(below(cell, stackHash()&mask*stride), d)
}

// add2Generic is addGeneric for two cells, in one row.
func add2Generic(cell, cell2 *int64, mask, stride uintptr, d, d2 int64) {
	row := stackHash() & mask * stride
	atomic.AddInt64(below(cell, row), d)
	atomic.AddInt64(below(cell2, row), d2)
}

func below(cell *int64, row uintptr) *int64 {
	return (*int64)(unsafe.Add(unsafe.Pointer(cell), row))
}

// stackHash returns a number that differs from goroutine to goroutine, as far
// as 16 bits can: goroutines have stacks of their own, of at least 2 KiB. The
// multiplier is 2^32 over the golden ratio (Knuth's multiplicative hashing);
// its product's high half is the well-mixed one.
func stackHash() uintptr {
	var here byte
	return uintptr(uint32(uintptr(unsafe.Pointer(&here))>>11) * 0x9E3779B9 >> 16)
}
