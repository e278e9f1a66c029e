package iouring

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxVec is how many buffers one pwritev takes; the caller comes again for the
// rest. It keeps the vector on the stack.
const maxVec = 64

func isDirect(fd int) (bool, error) {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return flags&unix.O_DIRECT != 0, err
}

// directAlign asks the file system which offsets O_DIRECT accepts; 0 means that
// it has no O_DIRECT. Kernels before 6.1 do not know.
func directAlign(fd int) (align int, known bool) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st); err != nil || st.Mask&unix.STATX_DIOALIGN == 0 {
		return 0, false
	}
	return int(st.Dio_offset_align), true
}

// canNowait reports whether the file system can begin an operation of an
// O_DIRECT file without waiting: an operation that is not aligned tells without
// doing anything.
func canNowait(fd int) bool {
	var b [1]byte
	_, err := preadNowait(fd, b[:], 1)
	return err != unix.EOPNOTSUPP && err != unix.ENOSYS
}

// reopenDirect opens the file again with O_DIRECT, or returns nil.
func reopenDirect(f *File) *File {
	if align, known := directAlign(f.fd); known && align == 0 {
		return nil
	}
	flags, err := unix.FcntlInt(uintptr(f.fd), unix.F_GETFL, 0)
	if err != nil {
		return nil
	}
	// By descriptor: the file may have another name by now, or none.
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.fd), flags&unix.O_ACCMODE|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	file := os.NewFile(uintptr(fd), f.Name())
	d, err := NewFile(file)
	if err != nil {
		file.Close()
		return nil
	}
	return d
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
func preadNowait(fd int, mem []byte, off int64) (int, error) {
	iov := unix.Iovec{Base: unsafe.SliceData(mem)}
	iov.SetLen(len(mem))
	n, _, errno := unix.Syscall6(unix.SYS_PREADV2, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1,
		uintptr(off), uintptr(off>>32), unix.RWF_NOWAIT)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
