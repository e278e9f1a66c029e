//go:build linux || darwin

package iouring

import (
	"context"
	"time"
)

// A FaultOp is one try of an operation, as a plan for [WithFaults] sees it.
type FaultOp struct {
	Op     string // "read", "write" or "datasync"
	File   string
	Offset int64
	Length int // bytes asked for
}

// A Fault is what happens to a try. The zero Fault is nothing: the operation
// goes through.
type Fault struct {
	// Err fails the try before anything is done.
	Err error

	// Short does only so many bytes, if it is more than 0 and less than the
	// operation has. With O_DIRECT the kernel takes whole blocks: the block that
	// Short ends in is done, but only Short is told.
	Short int

	// ErrAfter fails the try although it has been done.
	ErrAfter error

	// Delay holds the completion back; delays of different length bring
	// completions out of order.
	Delay time.Duration
}

// WithFaults returns a backend that does what b does, except that every try of
// an operation may be given a fault: for tests of what is built on a backend.
// Faults happen where the kernel's would, below the part that makes operations
// whole: a short write is continued, EINTR is retried, a failed datasync sticks.
// The plan may be called by several goroutines at once. b must come from Open or
// WithFaults, and now belongs to the result; otherwise WithFaults panics.
func WithFaults(b Backend, plan func(FaultOp) Fault) Backend {
	inner := b.(*backend)
	return newBackend(&faultDevice{device: inner.dev, plan: plan}, inner.caps, inner.stat)
}

type faultDevice struct {
	device
	plan func(FaultOp) Fault
}

func (d *faultDevice) read(ctx context.Context, f *File, mem []byte, off int64) (int, error) {
	fault := d.plan(FaultOp{Op: opRead, File: f.Name(), Offset: off, Length: len(mem)})
	if fault.Short > 0 && fault.Short < len(mem) {
		mem = mem[:fault.blocks(f)]
	}
	return fault.apply(func() (int, error) { return d.device.read(ctx, f, mem, off) })
}

func (d *faultDevice) write(ctx context.Context, f *File, bs []Buffer, skip int, off int64) (int, error) {
	left := -skip
	for _, b := range bs {
		left += b.Len()
	}
	fault := d.plan(FaultOp{Op: opWrite, File: f.Name(), Offset: off, Length: left})
	if fault.Short > 0 && fault.Short < left {
		bs = head(bs, skip+fault.blocks(f))
	}
	return fault.apply(func() (int, error) { return d.device.write(ctx, f, bs, skip, off) })
}

// blocks returns Short rounded up to what the file takes.
func (f Fault) blocks(file *File) int {
	return (f.Short + file.align - 1) / file.align * file.align
}

// head returns the first n bytes of bs.
func head(bs []Buffer, n int) []Buffer {
	var h []Buffer
	for _, b := range bs {
		b.n = uint32(min(n, b.Len()))
		n -= b.Len()
		h = append(h, b)
		if n <= 0 {
			break
		}
	}
	return h
}

func (f Fault) apply(do func() (int, error)) (int, error) {
	if f.Err != nil {
		time.Sleep(f.Delay)
		return 0, f.Err
	}
	n, err := do()
	time.Sleep(f.Delay)
	if f.ErrAfter != nil {
		return 0, f.ErrAfter
	}
	if f.Short > 0 {
		n = min(n, f.Short)
	}
	return n, err
}

func (d *faultDevice) datasync(ctx context.Context, files []*File, errs []error) {
	var todo []*File
	var at []int
	var delay time.Duration
	after := make([]error, len(files))
	for i, f := range files {
		fault := d.plan(FaultOp{Op: opDatasync, File: f.Name()})
		delay = max(delay, fault.Delay)
		after[i] = fault.ErrAfter
		if fault.Err != nil {
			errs[i] = fault.Err
			continue
		}
		todo, at = append(todo, f), append(at, i)
	}
	got := make([]error, len(todo))
	if len(todo) > 0 {
		d.device.datasync(ctx, todo, got)
	}
	time.Sleep(delay)
	for k, i := range at {
		errs[i] = got[k]
		if after[i] != nil {
			errs[i] = after[i]
		}
	}
}
