package datanode

import (
	"os"

	"golang.org/x/sys/unix"
)

// tryLock locks f for this open file, which excludes other opens in this
// process too.
func tryLock(f *os.File) error {
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
}

func lockHeld(err error) bool { return err == unix.EWOULDBLOCK }
