//go:build linux || darwin

package iouring

import (
	"context"
	"errors"
	"io"
	"os"
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

	// Close waits for the operations in flight and frees what the backend holds.
	// Later operations fail with ErrClosed. Closing twice is fine.
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
// for no lasting reason. Errors are those of the system, or of ctx.
type device interface {
	read(ctx context.Context, f *File, b Buffer, off int64) (int, error)
	// write writes what is left of bs after skip bytes.
	write(ctx context.Context, f *File, bs []Buffer, skip int, off int64) (int, error)
	// datasync stores the outcome for files[i] in errs[i].
	datasync(ctx context.Context, files []*File, errs []error)
	close() error
}

// backend adds to a device what makes an operation whole.
type backend struct {
	dev  device
	caps Capabilities
	ops  gate
	stat *stripedcounter.Set
}

func newBackend(dev device, caps Capabilities, stat *stripedcounter.Set) *backend {
	b := &backend{dev: dev, caps: caps, stat: stat}
	b.ops.init()
	return b
}

func newSyscallBackend(reason string) *backend {
	return newBackend(sysDevice{}, Capabilities{Backend: string(SyscallBackend), Reason: reason, Kernel: kernelRelease()}, newBackendStats())
}

func (b *backend) Stats() *stripedcounter.Set { return b.stat }

func (b *backend) Name() string               { return b.caps.Backend }
func (b *backend) Capabilities() Capabilities { return b.caps }

func (b *backend) Close() error {
	if !b.ops.close() {
		return nil
	}
	return b.dev.close()
}

// begin admits an operation on f, which end then ends.
func (b *backend) begin(f *File) error {
	if !b.ops.enter() {
		return ErrClosed
	}
	if !f.ops.enter() {
		b.ops.leave()
		return os.ErrClosed
	}
	return nil
}

func (b *backend) end(f *File) {
	f.ops.leave()
	b.ops.leave()
}

func (b *backend) ReadAt(ctx context.Context, f *File, buf Buffer, off int64) (int, error) {
	fail := func(done int, err error) (int, error) {
		b.stat.Add(statErrors, 1)
		return done, &IOError{Op: opRead, File: f.Name(), Offset: off, Length: int64(buf.Len()), Done: int64(done), Err: err}
	}
	if off < 0 {
		return fail(0, unix.EINVAL)
	}
	if err := b.begin(f); err != nil {
		return fail(0, err)
	}
	defer b.end(f)
	if err := buf.pin(); err != nil {
		return 0, err
	}
	defer buf.unpin()

	done := 0
	for tries := 0; done < buf.Len(); {
		if err := ctx.Err(); err != nil {
			return fail(done, err)
		}
		n, err := b.dev.read(ctx, f, buf.from(done), off+int64(done))
		switch {
		case err != nil:
			if !b.again(ctx, err, &tries) {
				return fail(done, err)
			}
		case n == 0:
			b.stat.Add2(statReads, 1, statReadBytes, int64(done))
			return done, io.EOF
		default:
			before := done
			done += n
			if done < buf.Len() {
				b.stat.Add(statShort, 1)
				if f.direct {
					// The kernel reads the unaligned end of a file but does not take an
					// unaligned offset to find out that there is no more.
					end, err := f.f.Stat()
					if err != nil {
						return fail(done, err)
					}
					if off+int64(done) >= end.Size() {
						b.stat.Add2(statReads, 1, statReadBytes, int64(done))
						return done, io.EOF
					}
					done -= done % f.align
				}
			}
			if done > before {
				tries = 0
			} else if !b.again(ctx, unix.EAGAIN, &tries) {
				return fail(done, io.ErrNoProgress)
			}
		}
	}
	b.stat.Add2(statReads, 1, statReadBytes, int64(done))
	return done, nil
}

func (b *backend) WriteAt(ctx context.Context, f *File, bs []Buffer, off int64) error {
	total := 0
	for _, buf := range bs {
		total += buf.Len()
	}
	fail := func(done int, err error) error {
		b.stat.Add(statErrors, 1)
		return &IOError{Op: opWrite, File: f.Name(), Offset: off, Length: int64(total), Done: int64(done), Err: err}
	}
	if off < 0 {
		return fail(0, unix.EINVAL)
	}
	if err := f.stuck(opWrite, off, int64(total)); err != nil {
		return err
	}
	if err := b.begin(f); err != nil {
		return fail(0, err)
	}
	defer b.end(f)
	if _, err := pinAll(bs); err != nil {
		return err
	}
	defer unpinAll(bs)

	done := 0
	for tries := 0; done < total; {
		if err := ctx.Err(); err != nil {
			return fail(done, err)
		}
		n, err := b.dev.write(ctx, f, bs, done, off+int64(done))
		switch {
		case err != nil:
			if !b.again(ctx, err, &tries) {
				return fail(done, err)
			}
		case n == 0:
			return fail(done, io.ErrShortWrite)
		default:
			before := done
			done += n
			if done < total {
				b.stat.Add(statShort, 1)
				done -= done % f.align
			}
			if done > before {
				tries = 0
			} else if !b.again(ctx, unix.EAGAIN, &tries) {
				return fail(done, io.ErrNoProgress)
			}
		}
	}
	b.stat.Add2(statWrites, 1, statWriteBytes, int64(total))
	return nil
}

func (b *backend) Datasync(ctx context.Context, files ...*File) error {
	errs := make([]error, len(files))
	todo := make([]*File, 0, len(files))
	at := make([]int, 0, len(files))
	for i, f := range files {
		if err := f.stuck(opDatasync, 0, 0); err != nil {
			errs[i] = err
			continue
		}
		err := b.begin(f)
		if err == nil {
			if err = ctx.Err(); err != nil {
				b.end(f)
			}
		}
		if err != nil {
			errs[i] = &IOError{Op: opDatasync, File: f.Name(), Err: err}
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
			b.end(f)
		}
		todo, at, got = todo[:k], at[:k], got[:k]
		clear(got)
	}
	return errors.Join(errs...)
}

// maxRetries bounds how often an operation that makes no progress is tried
// again. With the waits in again that is about a second.
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
	t := time.NewTimer(min(time.Microsecond<<min(*tries, 20), 10*time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done(): // the caller's loop reports it
	}
	return true
}
