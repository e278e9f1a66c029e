//go:build linux || darwin

package iouring

import (
	"errors"
	"fmt"
)

// ErrClosed is returned by operations on a backend, an engine or a ring that
// has been closed.
var ErrClosed = errors.New("iouring: closed")

var errBufferSize = errors.New("larger than the largest buffer")

// An IOError is an operation that did not do all it was asked to.
type IOError struct {
	Op     string // "read", "write" or "datasync"
	File   string // name of the file
	Offset int64  // where the operation began
	Length int64  // bytes asked for
	Done   int64  // bytes done from Offset on before Err
	Err    error  // a unix.Errno, a context's error, io.ErrShortWrite, io.ErrNoProgress, os.ErrClosed or ErrClosed

	// Sticky says that nothing was tried because an earlier datasync of the file
	// failed, with the error told again here.
	Sticky bool
}

func (e *IOError) Error() string {
	again := ""
	if e.Sticky {
		again = "an earlier datasync failed: "
	}
	if e.Op == opDatasync {
		return fmt.Sprintf("iouring: datasync of %s: %s%v", e.File, again, e.Err)
	}
	return fmt.Sprintf("iouring: %s of %d bytes at %d of %s: %s%v after %d bytes", e.Op, e.Length, e.Offset, e.File, again, e.Err, e.Done)
}

func (e *IOError) Unwrap() error { return e.Err }

// An ArenaError is a buffer that an arena did not hand out.
type ArenaError struct {
	Size    int   // bytes asked for
	Max     int   // length of the largest buffer
	Bound   int64 // bytes of the arena
	InUse   int64 // bytes handed out
	Waiting int   // others still waiting
	Err     error
}

func (e *ArenaError) Error() string {
	return fmt.Sprintf("iouring: no buffer of %d bytes (largest %d, %d of %d bytes in use, %d waiting): %v", e.Size, e.Max, e.InUse, e.Bound, e.Waiting, e.Err)
}

func (e *ArenaError) Unwrap() error { return e.Err }

// A BufferError is the use of a buffer that is not, or no longer, the caller's.
type BufferError struct {
	Reason     string
	Page       int    // of the arena, where the buffer begins
	Generation uint32 // of the handle
	Current    uint32 // generation of the memory there
}

func (e *BufferError) Error() string {
	return fmt.Sprintf("iouring: buffer at page %d, generation %d (now %d): %s", e.Page, e.Generation, e.Current, e.Reason)
}

// A ConfigError is a configuration value out of range.
type ConfigError struct {
	Field string
	Value any
	Want  string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("iouring: %s is %v, want %s", e.Field, e.Value, e.Want)
}

// An UnavailableError is a backend that was asked for by name and cannot be had.
type UnavailableError struct {
	Backend string
	Reason  string // as in Capabilities.Reason
	Err     error  // what the system said, or nil
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("iouring: the %s backend is not available: %s", e.Backend, e.Reason)
}

func (e *UnavailableError) Unwrap() error { return e.Err }
