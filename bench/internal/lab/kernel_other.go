//go:build darwin || freebsd

package lab

import (
	"runtime"
	"syscall"
)

func kernel() string {
	release, err := syscall.Sysctl("kern.osrelease")
	if err != nil {
		return runtime.GOOS
	}
	return runtime.GOOS + " " + release
}
