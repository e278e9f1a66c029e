package datanode

import (
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// tryLock locks f for this open file. It is an open file description lock, which
// excludes other opens in this process too, and the locks of the JVM, so that a
// Hadoop datanode and a store never share a directory.
func tryLock(f *os.File) error {
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart})
}

func lockHeld(err error) bool { return err == unix.EAGAIN || err == unix.EACCES }

// syncFS makes everything durable that was written to the file system of f.
func syncFS(f *os.File) error { return unix.Syncfs(int(f.Fd())) }

// bootID names this run of the kernel: as long as it lasts, what was written is
// in the page cache. Empty means that it is not known.
func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}
