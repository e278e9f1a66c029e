//go:build linux || darwin

package iouring

import (
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/blockpath/blockpath/stripedcounter"
	"golang.org/x/sys/unix"
)

const (
	opRead     = "read"
	opWrite    = "write"
	opDatasync = "datasync"
)

// A Backend does file I/O with buffers of an [Arena], through the ring where
// that helps and by plain system calls where it does not. Both kinds mean the
// same:
//
//   - An operation is done in full or fails: what the kernel leaves undone is
//     submitted again, EINTR and EAGAIN are retried a bounded number of times.
//   - A buffer belongs to the backend until the call returns, and the call
//     returns only when the kernel is done with it, also when ctx has ended.
//   - ctx ends waiting and retrying. An operation that the kernel has begun may
//     end all the same; then it counts.
//
// A Backend is safe for concurrent use.
type Backend interface {
	// Name returns "ring" or "syscall".
	Name() string

	// Capabilities says what was chosen and why.
	Capabilities() Capabilities

	// ReadAt reads b.Len() bytes at offset off, or up to the end of the file: then
	// n < b.Len() and the error is io.EOF, as from an io.ReaderAt. Any other error
	// is an *IOError or a *BufferError.
	ReadAt(ctx context.Context, f *File, b Buffer, off int64) (n int, err error)

	// WriteAt writes all of bs, one after another, at offset off. The error is an
	// *IOError that says how much was written, or a *BufferError.
	WriteAt(ctx context.Context, f *File, bs []Buffer, off int64) error

	// Datasync makes what was written to the files durable, all of them at once
	// where that can be. The error joins an *IOError for each file that failed,
	// and the failure sticks to the file, see [File].
	Datasync(ctx context.Context, files ...*File) error

	// Stats returns the backend's counters: reads, read_bytes, writes, write_bytes,
	// datasyncs; ring_reads, ring_writes and ring_datasyncs, what of them went
	// through the ring; short, retries, errors; and those of an Engine, which stay
	// zero without a ring.
	Stats() *stripedcounter.Set

	// Close waits for the operations that the ring has and frees what the backend
	// holds. Later operations fail with ErrClosed. Closing twice is fine.
	Close() error
}

// A Choice names a backend.
type Choice string

const (
	// AutoBackend is the ring where the kernel has it and lets us use it, and
	// system calls elsewhere. It is the default.
	AutoBackend Choice = "auto"

	// RingBackend is the ring or an error.
	RingBackend Choice = "ring"

	// SyscallBackend is plain system calls.
	SyscallBackend Choice = "syscall"
)

// Config configures [Open]. The zero value is right for most.
type Config struct {
	// Backend is the one to use. "" means AutoBackend.
	Backend Choice

	// Entries is the length of the ring's submission queue; twice as many
	// operations can be in flight. 0 means 256.
	Entries int

	// Dedicated gives the ring a thread of its own: cheaper for queues that are
	// always deep, much slower for shallow ones.
	Dedicated bool

	// Register are arenas whose memory is registered with the ring, where
	// RLIMIT_MEMLOCK allows it. All their pages become resident.
	Register []*Arena
}

// Capabilities says which backend is in use and why.
type Capabilities struct {
	Backend string // "ring" or "syscall"
	Reason  string // in words, for a log or a status page
	Kernel  string // release of the running kernel

	// Registered says whether the arenas of the config are registered.
	Registered bool
}

// Open chooses a backend. The kernel is probed once per process; every Open
// sees the same answer. A backend that was asked for by name and cannot be had
// is an *UnavailableError, an unknown name a *ConfigError.
func Open(cfg Config) (Backend, error) {
	switch cfg.Backend {
	case SyscallBackend:
		return newSyscallBackend("plain system calls were asked for"), nil
	case "", AutoBackend:
		return openBest(cfg, false)
	case RingBackend:
		return openBest(cfg, true)
	}
	return nil, &ConfigError{Field: "Config.Backend", Value: cfg.Backend, Want: "auto, ring or syscall"}
}

// A device does an operation once: it may do less than was asked for, and fail
// for no lasting reason. Errors are those of the system, or of ctx. Memory is an
// arena's and stays pinned until the call returns.
type device interface {
	read(ctx context.Context, f *File, mem []byte, off int64) (int, error)
	// write writes what is left of bs after skip bytes.
	write(ctx context.Context, f *File, bs []Buffer, skip int, off int64) (int, error)
	// datasync stores the outcome for files[i] in errs[i].
	datasync(ctx context.Context, files []*File, errs []error)
	close() error
}

// backend adds to a device what makes an operation whole.
type backend struct {
	dev    device
	stat   *stripedcounter.Set
	closed atomic.Bool
	caps   Capabilities
}

func newBackend(dev device, caps Capabilities, stat *stripedcounter.Set) *backend {
	return &backend{dev: dev, caps: caps, stat: stat}
}

func newSyscallBackend(reason string) *backend {
	return newBackend(sysDevice{}, Capabilities{Backend: string(SyscallBackend), Reason: reason, Kernel: kernelRelease()}, newBackendStats())
}

func (b *backend) Stats() *stripedcounter.Set { return b.stat }

func (b *backend) Name() string               { return b.caps.Backend }
func (b *backend) Capabilities() Capabilities { return b.caps }

func (b *backend) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	return b.dev.close()
}

// begin admits an operation on f.
func (b *backend) begin(ctx context.Context, f *File, off int64) error {
	if b.closed.Load() {
		return ErrClosed
	}
	if off < 0 {
		return unix.EINVAL
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if !f.ops.enter() {
		return os.ErrClosed
	}
	return nil
}

// ReadAt and WriteAt have no deferred functions, wrap errors only where they
// have some, and leave what follows the first try to another function: a read of
// a cached page takes less than half a microsecond, and after a system call even
// a return costs.

func (b *backend) ReadAt(ctx context.Context, f *File, buf Buffer, off int64) (int, error) {
	n, err := 0, b.begin(ctx, f, off)
	if err == nil {
		if err = buf.pin(); err == nil {
			if mem := buf.pinned(); len(mem) > 0 {
				if n, err = b.dev.read(ctx, f, mem, off); n < len(mem) {
					n, err = b.readRest(ctx, f, mem, off, n, err)
				}
			}
			buf.unpin()
		}
		f.ops.leave()
	}
	if err == nil || err == io.EOF {
		b.stat.Add2(statReads, 1, statReadBytes, int64(n))
		return n, err
	}
	return n, b.failed(err, IOError{Op: opRead, File: f.Name(), Offset: off, Length: int64(buf.Len()), Done: int64(n)})
}

func (b *backend) WriteAt(ctx context.Context, f *File, bs []Buffer, off int64) error {
	n, total, err := 0, 0, b.begin(ctx, f, off)
	if err == nil {
		if e := f.failed.Load(); e != nil {
			err = e
		} else if total, err = pinAll(bs); err == nil {
			if total > 0 {
				if n, err = b.dev.write(ctx, f, bs, 0, off); n < total {
					n, err = b.writeRest(ctx, f, bs, total, off, n, err)
				}
			}
			unpinAll(bs)
		}
		f.ops.leave()
	}
	if err == nil {
		b.stat.Add2(statWrites, 1, statWriteBytes, int64(n))
		return nil
	}
	for total = 0; len(bs) > 0; bs = bs[1:] {
		total += bs[0].Len()
	}
	return b.failed(err, IOError{Op: opWrite, File: f.Name(), Offset: off, Length: int64(total), Done: int64(n)})
}

// failed makes the error of an operation.
func (b *backend) failed(err error, e IOError) error {
	b.stat.Add(statErrors, 1)
	switch err := err.(type) {
	case *BufferError:
		return err
	case *IOError: // of the datasync that failed
		e.Err, e.Sticky = err.Err, true
	default:
		e.Err = err
	}
	return &e
}

// readRest goes on after a first try that read n bytes or failed with err, until
// mem is full or the file ends, and returns how much was read.
func (b *backend) readRest(ctx context.Context, f *File, mem []byte, off int64, n int, err error) (done int, _ error) {
	for tries := 0; ; {
		if err != nil {
			if !b.again(ctx, err, &tries) {
				return done, err
			}
		} else {
			if n == 0 {
				return done, io.EOF
			}
			before := done
			if done += n; done == len(mem) {
				return done, nil
			}
			b.stat.Add(statShort, 1)
			if f.direct {
				// The kernel reads the unaligned end of a file but does not take an
				// unaligned offset to find out that there is no more.
				end, err := f.f.Stat()
				if err != nil {
					return done, err
				}
				if off+int64(done) >= end.Size() {
					return done, io.EOF
				}
			}
			if !b.progress(ctx, f, before, &done, &tries) {
				return done, io.ErrNoProgress
			}
		}
		if err := ctx.Err(); err != nil {
			return done, err
		}
		n, err = b.dev.read(ctx, f, mem[done:], off+int64(done))
	}
}

// writeRest goes on after a first try that wrote n bytes or failed with err,
// until all of bs, total bytes, are written, and returns how much was.
func (b *backend) writeRest(ctx context.Context, f *File, bs []Buffer, total int, off int64, n int, err error) (done int, _ error) {
	for tries := 0; ; {
		if err != nil {
			if !b.again(ctx, err, &tries) {
				return done, err
			}
		} else {
			if n == 0 {
				return done, io.ErrShortWrite
			}
			before := done
			if done += n; done == total {
				return done, nil
			}
			b.stat.Add(statShort, 1)
			if !b.progress(ctx, f, before, &done, &tries) {
				return done, io.ErrNoProgress
			}
		}
		if err := ctx.Err(); err != nil {
			return done, err
		}
		n, err = b.dev.write(ctx, f, bs, done, off+int64(done))
	}
}

// progress takes a short operation back to the last block that the file can go
// on from, and reports whether to go on: not if no block gets done for ever.
func (b *backend) progress(ctx context.Context, f *File, before int, done, tries *int) bool {
	*done -= *done % f.align
	if *done > before {
		*tries = 0
		return true
	}
	return b.again(ctx, unix.EAGAIN, tries)
}

func (b *backend) Datasync(ctx context.Context, files ...*File) error {
	errs := make([]error, len(files))
	todo := make([]*File, 0, len(files))
	at := make([]int, 0, len(files))
	for i, f := range files {
		err := b.begin(ctx, f, 0)
		if err == nil {
			if e := f.failed.Load(); e != nil {
				err = e
				f.ops.leave()
			}
		}
		if err != nil {
			errs[i] = b.failed(err, IOError{Op: opDatasync, File: f.Name()})
			continue
		}
		todo, at = append(todo, f), append(at, i)
	}
	got := make([]error, len(todo))
	for tries := 0; len(todo) > 0; {
		b.dev.datasync(ctx, todo, got)
		// A call that was only interrupted has reported nothing, so it may be made
		// again.
		retry := false
		for _, err := range got {
			retry = retry || err != nil && transient(err)
		}
		retry = retry && b.again(ctx, unix.EINTR, &tries)
		k := 0
		for i, f := range todo {
			err := got[i]
			if err != nil && transient(err) && retry {
				todo[k], at[k] = f, at[i]
				k++
				continue
			}
			b.stat.Add(statSyncs, 1)
			if err != nil {
				b.stat.Add(statErrors, 1)
				e := &IOError{Op: opDatasync, File: f.Name(), Err: err}
				errs[at[i]] = e
				if ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
					f.failed.CompareAndSwap(nil, e)
				}
			}
			f.ops.leave()
		}
		todo, at, got = todo[:k], at[:k], got[:k]
		clear(got)
	}
	return errors.Join(errs...)
}

// maxRetries bounds how often an operation that makes no progress is tried
// again. With the waits in again that is nearly half a second.
const maxRetries = 100

func transient(err error) bool { return err == unix.EINTR || err == unix.EAGAIN }

// again reports whether an operation that failed with err should be tried once
// more, after waiting longer every time.
func (b *backend) again(ctx context.Context, err error, tries *int) bool {
	if !transient(err) || *tries == maxRetries {
		return false
	}
	*tries++
	b.stat.Add(statRetries, 1)
	t := time.NewTimer(min(time.Microsecond<<min(*tries, 20), 4*time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done(): // the caller's loop reports it
	}
	return true
}
