package iouring

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"
)

// maxBufRing is the kernel's limit for the buffers of one group.
const maxBufRing = 32768

// A BufRing is a group of buffers that the kernel picks from when data arrives,
// for [SQE.PrepRecvMultishot] and [SQEBufferSelect]. It is safe for concurrent
// use.
type BufRing struct {
	group uint16
	size  int
	on    func(func(*Ring) error) error // runs it where the ring may be used

	mu     sync.Mutex
	mem    Buffer   // what the kernel reads: the entries
	bufs   []Buffer // by number
	held   []bool   // by number: the caller has it
	first  uint16   // number in entry 0, which shares a word with the tail
	tail   uint16
	closed bool
}

// NewBufRing takes n buffers of size bytes from the arena and registers them as
// a group. n must be a power of two up to 32768. The group number is the
// caller's choice and must not be taken. Close the BufRing before the ring.
func (r *Ring) NewBufRing(ctx context.Context, a *Arena, group uint16, n, size int) (*BufRing, error) {
	return newBufRing(ctx, func(f func(*Ring) error) error { return f(r) }, a, group, n, size)
}

// NewBufRing is [Ring.NewBufRing] for the engine's ring.
func (e *Engine) NewBufRing(ctx context.Context, a *Arena, group uint16, n, size int) (*BufRing, error) {
	return newBufRing(ctx, e.OnRing, a, group, n, size)
}

func newBufRing(ctx context.Context, on func(func(*Ring) error) error, a *Arena, group uint16, n, size int) (_ *BufRing, err error) {
	if n < 1 || n > maxBufRing || n&(n-1) != 0 {
		return nil, &ConfigError{Field: "number of buffers", Value: n, Want: "a power of two up to 32768"}
	}
	if size < 1 {
		return nil, &ConfigError{Field: "size of buffers", Value: size, Want: "1 or more"}
	}
	b := &BufRing{group: group, size: size, on: on, held: make([]bool, n)}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.release())
		}
	}()
	if b.mem, err = a.Get(ctx, n*int(unsafe.Sizeof(bufRingEntry{}))); err != nil {
		return nil, err
	}
	clear(b.mem.Bytes())
	for range n {
		buf, err := a.Get(ctx, size)
		if err != nil {
			return nil, err
		}
		b.bufs = append(b.bufs, buf)
	}
	for i := range b.bufs {
		b.add(uint16(i))
	}
	err = on(func(r *Ring) error {
		reg := &bufReg{ringAddr: uint64(uintptr(b.mem.addr())), ringEntries: uint32(n), bgid: group}
		_, err := r.register(registerPbufRing, unsafe.Pointer(reg), 1)
		return err
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// add gives buffer i to the kernel.
func (b *BufRing) add(i uint16) {
	entries := unsafe.Slice((*bufRingEntry)(b.mem.addr()), len(b.held))
	slot := b.tail & uint16(len(entries)-1)
	e := &entries[slot]
	e.addr, e.len = uint64(uintptr(b.bufs[i].addr())), uint32(b.size)
	if slot == 0 {
		b.first = i
	} else {
		e.bid = i
	}
	b.tail++
	// The tail has 16 bits and must be stored with release: store the whole word
	// that it shares with the number in entry 0.
	word := uint32(b.first) | uint32(b.tail)<<16
	if bigEndian {
		word = uint32(b.first)<<16 | uint32(b.tail)
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&entries[0].bid)), word)
}

// Group returns the group's number.
func (b *BufRing) Group() uint16 { return b.group }

// Buffer returns the data that a completion brought, c.Res bytes long. It is the
// caller's until Recycle; do not Release it. The error is a *BufferError if the
// completion took no buffer of this group or it has been taken already.
func (b *BufRing) Buffer(c CQE) (Buffer, error) {
	i, ok := c.BufferID()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !ok || int(i) >= len(b.bufs) || c.Res < 0 || int(c.Res) > b.size || b.held[i] || b.closed {
		return Buffer{}, &BufferError{Reason: "the completion brought none"}
	}
	b.held[i] = true
	return b.bufs[i].Slice(0, int(c.Res)), nil
}

// Recycle gives the buffer that the completion brought back to the kernel. The
// error is a *BufferError if the caller does not have it.
func (b *BufRing) Recycle(c CQE) error {
	i, ok := c.BufferID()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !ok || int(i) >= len(b.bufs) || !b.held[i] || b.closed {
		return &BufferError{Reason: "the caller does not have it"}
	}
	b.held[i] = false
	b.add(i)
	return nil
}

// Close takes the group from the ring and gives its buffers back to the arena.
// What uses the group must have ended, and buffers of it must not be used any
// more. Closing twice is fine.
func (b *BufRing) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	err := b.on(func(r *Ring) error {
		_, err := r.register(unregisterPbufRing, unsafe.Pointer(&bufReg{bgid: b.group}), 1)
		return err
	})
	if err == ErrClosed {
		err = nil // the ring is gone and the group with it
	}
	return errors.Join(err, b.release())
}

func (b *BufRing) release() error {
	var errs []error
	if b.mem.arena != nil {
		errs = append(errs, b.mem.Release())
	}
	for _, buf := range b.bufs {
		errs = append(errs, buf.Release())
	}
	b.bufs = nil
	return errors.Join(errs...)
}
