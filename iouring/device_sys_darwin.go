package iouring

import "golang.org/x/sys/unix"

// There is no O_DIRECT on darwin.
func isDirect(int) (bool, error) { return false, nil }

func directAlign(int) (int, bool) { return 0, true }

func canNowait(int) bool { return false }

func reopenDirect(*File) *File { return nil }

func adviseHuge([]byte) {}

func kernelRelease() string {
	r, err := unix.Sysctl("kern.osrelease")
	if err != nil {
		return ""
	}
	return r
}

// fdatasync is File.Sync, which asks the drive too (F_FULLFSYNC).
func fdatasync(f *File) error { return f.f.Sync() }

func pwritev(fd int, bs []Buffer, skip int, off int64) (int, error) {
	for _, b := range bs {
		if n := b.Len(); skip >= n {
			skip -= n
			continue
		}
		return unix.Pwrite(fd, b.pinned()[skip:], off)
	}
	return 0, nil
}
