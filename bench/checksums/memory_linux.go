package checksums

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// pin binds the calling goroutine to one of the CPUs it may use. The caller
// calls restore on the same goroutine.
func pin() (restore func(), err error) {
	runtime.LockOSThread()
	var allowed, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	cpu := 64*len(allowed) - 1
	for !allowed.IsSet(cpu) {
		cpu--
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("sched_setaffinity: %w", err)
	}
	return func() {
		unix.SchedSetaffinity(0, &allowed) // it was allowed before
		runtime.UnlockOSThread()
	}, nil
}

// hugePages maps n bytes, on pages of 2 MiB if the kernel has them to give.
func hugePages(n int) (b []byte, unmap func(), err error) {
	b, err = unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, nil, fmt.Errorf("mmap %d bytes: %w", n, err)
	}
	unix.Madvise(b, unix.MADV_HUGEPAGE) // only a wish
	return b, func() { unix.Munmap(b) }, nil
}
