package iouring

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ringDevice does each operation the way that measured cheapest:
//
//   - a read of cached data, and a write that only goes to the page cache, by a
//     system call on the caller's goroutine: through the ring the kernel would
//     copy the same bytes, or hand the operation to a thread;
//   - a read that has to wait, and O_DIRECT, through the ring, but by a system
//     call if no other is under way: alone, nothing is cheaper;
//   - datasync of several files through the ring, all at once.
type ringDevice struct {
	sysDevice
	engine *Engine
	arenas []*Arena // registered
	ops    sync.Pool
	slow   atomic.Int64 // reads and writes under way that may have to wait
}

func newRingDevice(e *Engine, arenas []*Arena) *ringDevice {
	return &ringDevice{engine: e, arenas: arenas, ops: sync.Pool{New: func() any { return new(Op) }}}
}

func (d *ringDevice) read(ctx context.Context, f *File, b Buffer, off int64) (int, error) {
	if !f.direct && !f.noNowait.Load() {
		n, err := preadNowait(f.fd, b, off)
		switch err {
		case nil:
			return n, nil
		case unix.EAGAIN:
		case unix.EOPNOTSUPP, unix.ENOSYS:
			f.noNowait.Store(true)
		default:
			return 0, err
		}
	}
	// Not while others are in flight: the kernel completes those on the thread
	// that submitted them, which may be this one, and a plain call would block it.
	defer d.slow.Add(-1)
	if d.slow.Add(1) == 1 {
		return d.sysDevice.read(ctx, f, b, off)
	}
	d.engine.stat.Add(statRingReads, 1)
	op := d.ops.Get().(*Op)
	if i := d.registered(b); i >= 0 {
		op.PrepReadFixed(f.fd, b, off, i)
	} else {
		op.PrepRead(f.fd, b, off)
	}
	return d.do(ctx, op)
}

func (d *ringDevice) write(ctx context.Context, f *File, bs []Buffer, skip int, off int64) (int, error) {
	if !f.direct {
		return d.sysDevice.write(ctx, f, bs, skip, off)
	}
	defer d.slow.Add(-1)
	if d.slow.Add(1) == 1 {
		return d.sysDevice.write(ctx, f, bs, skip, off)
	}
	d.engine.stat.Add(statRingWrites, 1)
	op := d.ops.Get().(*Op)
	if b, ok := only(bs, skip); ok {
		if i := d.registered(b); i >= 0 {
			op.PrepWriteFixed(f.fd, b, off, i)
		} else {
			op.PrepWrite(f.fd, b, off)
		}
	} else {
		op.prepVector(OpWritev, f.fd, bs, skip, off)
	}
	return d.do(ctx, op)
}

// only returns what is left of bs after skip bytes, if that is in one buffer.
func only(bs []Buffer, skip int) (Buffer, bool) {
	var rest Buffer
	for _, b := range bs {
		if skip >= b.Len() {
			skip -= b.Len()
			continue
		}
		if rest.Len() > 0 {
			return Buffer{}, false
		}
		rest, skip = b.from(skip), 0
	}
	return rest, true
}

func (d *ringDevice) registered(b Buffer) int { return slices.Index(d.arenas, b.arena) }

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
	op.PrepNop() // lets go of buffers
	d.ops.Put(op)
}

func (d *ringDevice) datasync(ctx context.Context, files []*File, errs []error) {
	if len(files) == 1 {
		d.sysDevice.datasync(ctx, files, errs)
		return
	}
	d.engine.stat.Add(statRingSyncs, int64(len(files)))
	ops := make([]*Op, len(files))
	for i, f := range files {
		ops[i] = d.ops.Get().(*Op)
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

func (d *ringDevice) close() error { return d.engine.Close() }
