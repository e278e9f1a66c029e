package datanode

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock locks f for this open file. It is an open file description lock, which
// excludes other opens in this process too, and the locks of the JVM, so that a
// Hadoop datanode and a store never share a directory.
func tryLock(f *os.File) error {
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart})
}

func lockHeld(err error) bool { return err == unix.EAGAIN || err == unix.EACCES }
