package lab

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// WarmMemory touches so many bytes and gives them back: the pages that an
// experiment is going to use, for the page cache above all, then come from
// memory that the machine has at hand. A virtual machine may have returned free
// memory to its host, and the first touch of such memory takes thirty times as
// long.
func WarmMemory(bytes int) error {
	b, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("mmap %d bytes: %w", bytes, err)
	}
	unix.Madvise(b, unix.MADV_HUGEPAGE) // only a wish
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	return unix.Munmap(b)
}
