//go:build linux || darwin

package iouring

import (
	"errors"
	"math"
	"os"
	"sync"
	"sync/atomic"
)

// defaultAlign is a block size that O_DIRECT accepts where the kernel does not
// say which it wants.
const defaultAlign = 4096

// A gate counts who is inside and, once closed, lets nobody in.
type gate struct {
	state   atomic.Int64 // count, plus gateClosed once closed
	drained chan struct{}
}

const gateClosed = math.MinInt64

func (g *gate) init() { g.drained = make(chan struct{}, 1) }

func (g *gate) enter() bool {
	if g.state.Add(1) > 0 {
		return true
	}
	g.leave()
	return false
}

func (g *gate) leave() {
	if g.state.Add(-1) == gateClosed {
		select {
		case g.drained <- struct{}{}:
		default:
		}
	}
}

// close shuts the gate and waits until everybody has left. It reports whether
// the gate was open.
func (g *gate) close() bool {
	for {
		v := g.state.Load()
		if v < 0 {
			return false
		}
		if g.state.CompareAndSwap(v, v+gateClosed) {
			if v > 0 {
				<-g.drained
			}
			return true
		}
	}
}

// A File is an open file for the operations of a [Backend]. It knows what the
// choice between plain system calls and the ring depends on, counts the
// operations in flight, so that its descriptor is closed only after the last of
// them, and remembers a failed datasync.
//
// After a failed [Backend.Datasync] the kernel may have thrown the unwritten
// pages away, and the next call may report success all the same. Therefore the
// failure sticks: every later write and datasync of the File fails with it, and
// what was written since the last good datasync has to be written again to
// another file, or recovered. Reads go on.
type File struct {
	fd     int
	direct bool
	align  int // of O_DIRECT, or 1
	ops    gate
	failed *atomic.Pointer[IOError]
	f      *os.File

	once sync.Once
	twin *File // the same file with O_DIRECT, if that can be had

	noNowait atomic.Bool  // the file system does nothing without waiting
	hits     atomic.Int32 // reads in a row that had not to wait, up to warmHits
}

// OpenFile opens a file as os.OpenFile does. With O_DIRECT (linux) in flag,
// offsets, lengths and buffers have to be aligned as the file system asks;
// buffers from an [Arena] begin on a page.
func OpenFile(name string, flag int, perm os.FileMode) (*File, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return NewFile(f)
}

// NewFile makes a File of f and takes it over: close the File, not f.
func NewFile(f *os.File) (*File, error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	file := &File{f: f, align: 1, failed: new(atomic.Pointer[IOError])}
	file.ops.init()
	var flagsErr error
	err = rc.Control(func(fd uintptr) {
		file.fd = int(fd)
		if file.direct, flagsErr = isDirect(int(fd)); file.direct {
			file.align = defaultAlign
			if align, known := directAlign(int(fd)); known && align > 0 {
				file.align = align
			}
			file.noNowait.Store(!canNowait(int(fd)))
		}
	})
	if err == nil {
		err = flagsErr
	}
	if err != nil {
		return nil, err
	}
	return file, nil
}

// OS returns the file for what a backend does not do: Stat, Truncate, sendfile.
// It is good until Close.
func (f *File) OS() *os.File { return f.f }

// Name returns the name the file was opened by.
func (f *File) Name() string { return f.f.Name() }

// Direct reports whether the file was opened with O_DIRECT.
func (f *File) Direct() bool { return f.direct }

// Align returns what offsets and lengths of reads and writes must be multiples
// of: the block size of O_DIRECT, or 1 without it. The file system says it
// (statx, STATX_DIOALIGN); where it does not, it is 4096. Only the read that
// reaches the end of the file may come out shorter.
func (f *File) Align() int { return f.align }

// OpenDirect returns the same file opened with O_DIRECT. It is opened when it
// is first asked for, shares the memory of a failed datasync with f, and is
// closed with f. Where the file system cannot do it, or f has been closed,
// OpenDirect returns f: ask the result for Direct and Align.
func (f *File) OpenDirect() *File {
	if f.direct || !f.ops.enter() {
		return f
	}
	defer f.ops.leave()
	f.once.Do(func() {
		f.twin = f
		if d := reopenDirect(f); d != nil {
			d.failed = f.failed
			f.twin = d
		}
	})
	return f.twin
}

// Err returns the failure of an earlier datasync, an *IOError, or nil.
func (f *File) Err() error {
	if e := f.failed.Load(); e != nil {
		return e
	}
	return nil
}

// Close waits for the operations in flight and closes the file. Operations that
// begin after it, and a second Close, fail with os.ErrClosed.
func (f *File) Close() error {
	if !f.ops.close() {
		return &os.PathError{Op: "close", Path: f.Name(), Err: os.ErrClosed}
	}
	var err error
	if f.twin != nil && f.twin != f {
		err = f.twin.Close()
	}
	return errors.Join(err, f.f.Close())
}
