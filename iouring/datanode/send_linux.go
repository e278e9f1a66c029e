package datanode

import (
	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/iouring"
)

// canSendFiles says whether the kernel sends a part of a file without moving its
// offset.
const canSendFiles = true

// sendSome writes what a socket takes. more says that something follows at once,
// so that they go out together.
func sendSome(fd int, b []byte, more bool) (int, error) {
	if !more {
		return unix.Write(fd, b)
	}
	return unix.SendmsgN(fd, b, nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL)
}

func sendFile(fd int, f *iouring.File, off int64, n int) (int, error) {
	return unix.Sendfile(fd, int(f.OS().Fd()), &off, n)
}

// inPageCache reports whether the byte at off can be read without waiting for the
// disk. A kernel or a file system that does not know says yes.
func inPageCache(f *iouring.File, off int64) bool {
	var b [1]byte
	_, err := unix.Preadv2(int(f.OS().Fd()), [][]byte{b[:]}, off, unix.RWF_NOWAIT)
	return err != unix.EAGAIN
}

// willNeed starts reading a range into the page cache.
func willNeed(f *iouring.File, off, n int64) {
	_ = unix.Fadvise(int(f.OS().Fd()), off, n, unix.FADV_WILLNEED)
}

// dropRange drops a range from the page cache.
func dropRange(f *iouring.File, off, n int64) {
	_ = unix.Fadvise(int(f.OS().Fd()), off, n, unix.FADV_DONTNEED)
}
