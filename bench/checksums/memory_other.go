//go:build !linux

package checksums

import "runtime"

// pin keeps the calling goroutine on its thread; there is no way to bind that.
func pin() (restore func(), err error) {
	runtime.LockOSThread()
	return runtime.UnlockOSThread, nil
}

func hugePages(n int) (b []byte, unmap func(), err error) {
	return make([]byte, n), func() {}, nil
}
