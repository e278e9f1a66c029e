package iouring

import (
	"context"
	"math/rand/v2"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ringDevice does each operation the way that measured cheapest:
//
//   - a read of cached data, and a write that only goes to the page cache, by a
//     system call on the caller's goroutine: through the ring the kernel would
//     copy the same bytes, or hand the operation to a thread. A read first asks
//     for what needs no waiting, unless the last ones of the file have all been
//     of cached data;
//   - a read that has to wait, and O_DIRECT, through the ring, but by a system
//     call if no other is under way: alone, nothing is cheaper;
//   - where the file system cannot begin an operation without waiting, by a
//     system call: the ring would only hand it to a thread. (And for a file of
//     FUSE in direct mode, Linux 6.18 goes on at the wrong offset after a short
//     read through the ring.)
//   - datasync of several files through the ring, all at once.
type ringDevice struct {
	sysDevice
	engine *Engine
	arenas []*Arena // registered
	ops    gate     // operations that may have to wait
	free   sync.Pool
}

// alone reports whether the caller's is the only operation that may have to
// wait. Then a plain call is cheapest. It is not while others are in flight: the
// kernel completes those on the thread that submitted them, which may be this
// one, and a plain call would block it.
func (d *ringDevice) alone() bool { return d.ops.state.Load() == 1 }

func newRingDevice(e *Engine, arenas []*Arena) *ringDevice {
	d := &ringDevice{engine: e, arenas: arenas, free: sync.Pool{New: func() any { return new(Op) }}}
	d.ops.init()
	return d
}

// warmHits is after how many reads in a row that found everything in the page
// cache a file is taken to be there. A read that must not wait takes an eighth
// longer than a plain one of 4 KiB, so of such a file only one in warmHits, by
// chance, finds out whether that is still so.
const warmHits = 16

func (d *ringDevice) read(ctx context.Context, f *File, mem []byte, off int64) (int, error) {
	if f.hits.Load() == warmHits && rand.Uint32()%warmHits != 0 {
		return d.sysDevice.read(ctx, f, mem, off)
	}
	if !d.ops.enter() {
		return 0, ErrClosed
	}
	n, err := d.readInside(ctx, f, mem, off)
	d.ops.leave()
	return n, err
}

func (d *ringDevice) readInside(ctx context.Context, f *File, mem []byte, off int64) (int, error) {
	if d.alone() || f.noNowait.Load() {
		return d.sysDevice.read(ctx, f, mem, off)
	}
	if !f.direct {
		n, err := preadNowait(f.fd, mem, off)
		if err == unix.EOPNOTSUPP || err == unix.ENOSYS {
			f.noNowait.Store(true)
			return d.sysDevice.read(ctx, f, mem, off)
		}
		if err != unix.EAGAIN {
			if hits := f.hits.Load(); hits < warmHits && n == len(mem) {
				f.hits.CompareAndSwap(hits, hits+1)
			}
			return n, err
		}
		f.hits.Store(0)
	}
	d.engine.stat.Add(statRingReads, 1)
	op := d.free.Get().(*Op)
	d.prep(op, OpRead, OpReadFixed, f.fd, mem, off)
	return d.do(ctx, op)
}

func (d *ringDevice) write(ctx context.Context, f *File, bs []Buffer, skip int, off int64) (int, error) {
	if !f.direct || f.noNowait.Load() {
		return d.sysDevice.write(ctx, f, bs, skip, off)
	}
	if !d.ops.enter() {
		return 0, ErrClosed
	}
	n, err := d.writeInside(ctx, f, bs, skip, off)
	d.ops.leave()
	return n, err
}

func (d *ringDevice) writeInside(ctx context.Context, f *File, bs []Buffer, skip int, off int64) (int, error) {
	if d.alone() {
		return d.sysDevice.write(ctx, f, bs, skip, off)
	}
	d.engine.stat.Add(statRingWrites, 1)
	op := d.free.Get().(*Op)
	if iov := op.prepVector(OpWritev, f.fd, bs, skip, off); len(iov) == 1 {
		d.prep(op, OpWrite, OpWriteFixed, f.fd, unsafe.Slice(iov[0].Base, iov[0].Len), off)
	}
	return d.do(ctx, op)
}

// prep prepares an operation on memory that the backend has pinned, as a fixed
// one if the memory is registered.
func (d *ringDevice) prep(op *Op, plain, fixed Opcode, fd int, mem []byte, off int64) {
	p := unsafe.Pointer(unsafe.SliceData(mem))
	for i, a := range d.arenas {
		if uintptr(p)-uintptr(a.base) < uintptr(a.Bytes()) {
			op.prep(fixed, fd, p, len(mem), uint64(off))
			op.raw.bufIndex = uint16(i)
			return
		}
	}
	op.prep(plain, fd, p, len(mem), uint64(off))
}

func (d *ringDevice) do(ctx context.Context, op *Op) (int, error) {
	n, err := d.engine.Do(ctx, op)
	d.put(op)
	if err == unix.ECANCELED {
		// Nobody asked: the thread that had submitted it is gone.
		err = unix.EINTR
	}
	return n, err
}

func (d *ringDevice) put(op *Op) {
	op.PrepNop() // lets go of the vector
	d.free.Put(op)
}

func (d *ringDevice) datasync(ctx context.Context, files []*File, errs []error) {
	if len(files) == 1 {
		d.sysDevice.datasync(ctx, files, errs)
		return
	}
	if !d.ops.enter() {
		for i := range errs {
			errs[i] = ErrClosed
		}
		return
	}
	defer d.ops.leave()
	d.engine.stat.Add(statRingSyncs, int64(len(files)))
	ops := make([]*Op, len(files))
	for i, f := range files {
		ops[i] = d.free.Get().(*Op)
		ops[i].PrepFsync(f.fd, true)
	}
	// There are no buffers or links that Submit could object to.
	if err := d.engine.Submit(ops...); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return
	}
	for i, op := range ops {
		_, err := d.engine.Wait(ctx, op)
		if err == unix.ECANCELED {
			err = unix.EINTR
		}
		errs[i] = err
		d.put(op)
	}
}

func (d *ringDevice) close() error {
	d.ops.close()
	return d.engine.Close()
}
