package datanode

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/iouring"
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

// cacheID names this run of the kernel and this mount of the file system that f is
// in: as long as both last, what was written is in the page cache. Empty means that
// it is not known, on kernels before 6.8.
func cacheID(f *os.File) string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	var st unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID_UNIQUE, &st)
	if len(boot) == 0 || err != nil || st.Mask&unix.STATX_MNT_ID_UNIQUE == 0 {
		return ""
	}
	return fmt.Sprintf("%s-%d", strings.TrimSpace(string(boot)), st.Mnt_id)
}

// openDirect opens an existing file past the page cache, or returns nil if the
// file system does not have that.
func openDirect(name string) (*iouring.File, error) {
	f, err := iouring.OpenFile(name, os.O_RDWR|unix.O_DIRECT, 0)
	if errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	return f, err
}

// preallocate allocates n bytes of a file from off on, without changing its
// length.
func preallocate(f *os.File, off, n int64) error {
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, off, n)
}

// writeBehind starts writing n bytes from off on to the disk.
func writeBehind(f *os.File, off, n int64) error {
	return unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}

// dropBehind drops the first n bytes of a file, 0 for all, from the page cache,
// as far as they are on the disk.
func dropBehind(f *os.File, n int64) error {
	return unix.Fadvise(int(f.Fd()), 0, n, unix.FADV_DONTNEED)
}

// lowPriority makes the calling thread's reads give way to others' where the
// disk has a scheduler that knows priorities.
func lowPriority() {
	const whoProcess, bestEffort, lowest = 1, 2 << 13, 7
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, whoProcess, 0, bestEffort|lowest)
}

// readOnce says that a file is going to be read from start to end, and not soon
// again.
func readOnce(f *os.File) {
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_SEQUENTIAL)
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_NOREUSE)
}
