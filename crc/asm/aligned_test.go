package asm

import (
	"runtime"
	"unsafe"
)

// slow says that the tests run on an emulator or under the race detector, with
// fewer shapes.
var slow = runtime.GOARCH == "arm64" && runtime.GOOS == "linux" || raceEnabled

// aligned returns n bytes, the first at a multiple of align.
func aligned(n, align int) []byte {
	b := make([]byte, n+align)
	off := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) % uintptr(align))
	return b[off : off+n]
}
