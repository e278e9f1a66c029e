package datanode

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/iouring"
)

// tryLock locks f for this open file, which excludes other opens in this
// process too.
func tryLock(f *os.File) error {
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
}

func lockHeld(err error) bool { return err == unix.EWOULDBLOCK }

// syncFS makes everything durable that was written to the file system of f, and
// to all others.
func syncFS(*os.File) error { return unix.Sync() }

// cacheID names this run of the kernel: as long as it lasts, what was written is
// in the page cache. Empty means that it is not known.
func cacheID(*os.File) string {
	id, _ := unix.Sysctl("kern.bootsessionuuid")
	return id
}

// openDirect returns nil: direct writes are for Linux.
func openDirect(string) (*iouring.File, error) { return nil, nil }

// preallocate says that it cannot.
func preallocate(*os.File, int64, int64) error { return unix.ENOTSUP }

// writeBehind and dropBehind are hints that this system does not take.
func writeBehind(*os.File, int64, int64) error { return nil }

func dropBehind(*os.File, int64) error { return nil }

func lowPriority() {}

func readOnce(*os.File) {}
