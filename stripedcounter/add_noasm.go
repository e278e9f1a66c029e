//go:build !amd64 || purego

package stripedcounter

// goroutineRows says that rows are chosen by goroutine, not by CPU.
func goroutineRows() bool { return true }

func add(cell *int64, mask, stride uintptr, d int64) { addGeneric(cell, mask, stride, d) }

func add2(cell, cell2 *int64, mask, stride uintptr, d, d2 int64) {
	add2Generic(cell, cell2, mask, stride, d, d2)
}
