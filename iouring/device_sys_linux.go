package iouring

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxVec is how many buffers one pwritev takes; the caller comes again for the
// rest. It keeps the vector on the stack.
const maxVec = 64

// directAlign is a block size that no O_DIRECT alignment is larger than.
const directAlign = 4096

func isDirect(fd int) (bool, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return flags&unix.O_DIRECT != 0, err
}

func adviseHuge(mem []byte) {
	// Only a hint: a kernel without huge pages says EINVAL.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

func fdatasync(f *File) error { return unix.Fdatasync(f.fd) }

// vector appends to iov what is left of bs after skip bytes, as far as iov has
// room.
func vector(iov []unix.Iovec, bs []Buffer, skip int) []unix.Iovec {
	for _, b := range bs {
		n := b.Len()
		if skip >= n {
			skip -= n
			continue
		}
		if len(iov) == cap(iov) {
			break
		}
		v := unix.Iovec{Base: (*byte)(unsafe.Add(b.addr(), skip))}
		v.SetLen(n - skip)
		iov = append(iov, v)
		skip = 0
	}
	return iov
}

func pwritev(fd int, bs []Buffer, skip int, off int64) (int, error) {
	var room [maxVec]unix.Iovec
	iov := vector(room[:0], bs, skip)
	if len(iov) == 1 {
		return unix.Pwrite(fd, unsafe.Slice(iov[0].Base, iov[0].Len), off)
	}
	// The offset goes in two halves; a 64-bit kernel ignores the upper one.
	n, _, errno := unix.Syscall6(unix.SYS_PWRITEV, uintptr(fd), uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)),
		uintptr(off), uintptr(off>>32), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// preadNowait reads what is in the page cache and fails with EAGAIN if nothing
// is.
func preadNowait(fd int, b Buffer, off int64) (int, error) {
	iov := unix.Iovec{Base: (*byte)(b.addr())}
	iov.SetLen(b.Len())
	n, _, errno := unix.Syscall6(unix.SYS_PREADV2, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1,
		uintptr(off), uintptr(off>>32), unix.RWF_NOWAIT)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
