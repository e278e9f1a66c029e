package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	pageSize   = 4096
	sectorSize = 512 // what a disk writes whole or not at all
)

// An image is the content of a disk, in pages on top of another image that does
// not change while this one is used.
type image struct {
	size int64
	base *image

	mu    sync.Mutex
	pages map[int64]*[pageSize]byte
}

func newImage(base *image) *image {
	return &image{size: base.size, base: base, pages: map[int64]*[pageSize]byte{}}
}

// loadImage reads a file into memory.
func loadImage(name string) (*image, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m := &image{pages: map[int64]*[pageSize]byte{}}
	for ; ; m.size += pageSize {
		var page [pageSize]byte
		if _, err := io.ReadFull(f, page[:]); err == io.EOF {
			return m, nil
		} else if err != nil {
			return nil, err
		}
		if page != ([pageSize]byte{}) {
			m.pages[m.size/pageSize] = &page
		}
	}
}

// page returns the page at an index, nil for zeros.
func (m *image) page(i int64) *[pageSize]byte {
	for ; m != nil; m = m.base {
		m.mu.Lock()
		p := m.pages[i]
		m.mu.Unlock()
		if p != nil {
			return p
		}
	}
	return nil
}

func (m *image) read(p []byte, off int64) {
	for len(p) > 0 {
		from := off % pageSize
		n := min(len(p), int(pageSize-from))
		if page := m.page(off / pageSize); page != nil {
			copy(p[:n], page[from:])
		} else {
			clear(p[:n])
		}
		p, off = p[n:], off+int64(n)
	}
}

func (m *image) write(p []byte, off int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(p) > 0 {
		i, from := off/pageSize, off%pageSize
		page := new([pageSize]byte)
		if old := m.pages[i]; old != nil {
			*page = *old
		} else if old := m.base.page(i); old != nil {
			*page = *old
		}
		n := copy(page[from:], p)
		m.pages[i] = page // a page is never changed: it may be being read
		p, off = p[n:], off+int64(n)
	}
}

// A record is a write, or without data a flush.
type record struct {
	off  int64
	data []byte
}

// A Recorder is a disk with a volatile cache that remembers what is done to it.
type Recorder struct {
	// Disk is the disk, a file to mount with a loop device.
	Disk string

	dir    string
	server *fuse.Server
	root   *fs.Inode
	now    *image

	mu  sync.Mutex
	log []record

	fault atomic.Pointer[func(p []byte, off int64) syscall.Errno]

	stable *image // what is sure to be there at the last cut
	done   int    // records that are in it
	cut    int    // position of the last cut
	cuts   int
}

// NewRecorder shows the disk in dir. The file initial says what is on it.
func NewRecorder(dir, initial string) (*Recorder, error) {
	first, err := loadImage(initial)
	if err != nil {
		return nil, err
	}
	r := &Recorder{Disk: filepath.Join(dir, "disk"), dir: dir, now: newImage(first), stable: newImage(first)}
	root := new(fs.Inode)
	if r.server, err = mount(dir, root); err != nil {
		return nil, err
	}
	r.root = root
	r.add("disk", &device{image: r.now, recorder: r})
	return r, nil
}

// Close unmounts the disk and its cuts. It fails if one of them is in use.
func (r *Recorder) Close() error {
	err := r.server.Unmount()
	if err != nil {
		err = errors.Join(err, syscall.Unmount(r.dir, syscall.MNT_FORCE), syscall.Unmount(r.dir, syscall.MNT_DETACH))
	}
	return err
}

func (r *Recorder) add(name string, d *device) {
	r.root.AddChild(name, r.root.NewPersistentInode(context.Background(), d, fs.StableAttr{Mode: syscall.S_IFREG}), true)
}

// Position counts the writes and flushes so far.
func (r *Recorder) Position() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.log)
}

// Bytes returns how much has been written so far.
func (r *Recorder) Bytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := int64(0)
	for _, e := range r.log {
		n += int64(len(e.data))
	}
	return n
}

// SetFault makes writes fail for which f returns an error. Nothing of them is done.
func (r *Recorder) SetFault(f func(p []byte, off int64) syscall.Errno) { r.fault.Store(&f) }

func (r *Recorder) record(off int64, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, record{off, append([]byte(nil), data...)})
}

// Cut returns a file with what the disk may hold if the power goes at a position:
// everything up to the last flush before it, and of the later writes those that
// chance keeps, whole or in part, sector by sector. Positions must not fall from
// one cut to the next, and the cut before must not be in use any more.
func (r *Recorder) Cut(position int, chance *rand.Rand) string {
	if position < r.cut {
		panic(fmt.Sprintf("disk: a cut at %d after one at %d", position, r.cut))
	}
	r.mu.Lock()
	log := r.log[:position]
	r.mu.Unlock()
	for i := len(log) - 1; i >= r.done; i-- {
		if log[i].data == nil {
			for _, e := range log[r.done:i] {
				r.stable.write(e.data, e.off)
			}
			r.done = i + 1
			break
		}
	}
	left := newImage(r.stable)
	keep, tear := chance.Float64(), chance.Float64()
	for _, e := range log[r.done:] {
		// ext4 does not survive a torn superblock, which it writes in place.
		switch whole := e.off < pageSize || chance.Float64() >= tear; {
		case whole && chance.Float64() < keep:
			left.write(e.data, e.off)
		case !whole:
			for at := 0; at < len(e.data); at += sectorSize {
				if chance.Float64() < keep {
					left.write(e.data[at:min(at+sectorSize, len(e.data))], e.off+int64(at))
				}
			}
		}
	}
	if r.cuts > 0 {
		r.root.RmChild(fmt.Sprintf("cut%d", r.cuts))
	}
	r.cut = position
	r.cuts++
	name := fmt.Sprintf("cut%d", r.cuts)
	r.add(name, &device{image: left})
	return filepath.Join(r.dir, name)
}

// A device is an image as a file.
type device struct {
	fs.Inode
	image    *image
	recorder *Recorder // nil if nobody wants to know
}

func (d *device) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (d *device) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size = syscall.S_IFREG|0o600, uint64(d.image.size)
	return 0
}

func (d *device) Setattr(ctx context.Context, h fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return d.Getattr(ctx, h, out)
}

func (d *device) Read(_ context.Context, _ fs.FileHandle, p []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	p = p[:max(min(int64(len(p)), d.image.size-off), 0)]
	d.image.read(p, off)
	return fuse.ReadResultData(p), 0
}

func (d *device) Write(_ context.Context, _ fs.FileHandle, p []byte, off int64) (uint32, syscall.Errno) {
	if off+int64(len(p)) > d.image.size {
		return 0, syscall.ENOSPC
	}
	if d.recorder != nil {
		if f := d.recorder.fault.Load(); f != nil {
			if errno := (*f)(p, off); errno != 0 {
				return 0, errno
			}
		}
	}
	d.image.write(p, off)
	if d.recorder != nil {
		d.recorder.record(off, p)
	}
	return uint32(len(p)), 0
}

func (d *device) Allocate(ctx context.Context, h fs.FileHandle, off, size uint64, mode uint32) syscall.Errno {
	if mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) == 0 {
		return syscall.EOPNOTSUPP
	}
	_, errno := d.Write(ctx, h, make([]byte, size), int64(off))
	return errno
}

func (d *device) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	if d.recorder != nil {
		d.recorder.record(0, nil)
	}
	return 0
}

func (d *device) Flush(context.Context, fs.FileHandle) syscall.Errno { return 0 }
