//go:build linux || darwin

package iouring

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// DefaultArenaBytes is the bound of an [Arena] whose config names none.
	DefaultArenaBytes = 64 << 20

	// DefaultMaxBuffer is the largest buffer of an [Arena] whose config names
	// none.
	DefaultMaxBuffer = 1 << 20

	// MaxArenaBytes is the largest bound of an [Arena], the longest memory that
	// the kernel registers as one buffer.
	MaxArenaBytes = 1 << 30

	hugePage = 2 << 20
)

// ErrArenaClosed is returned by [Arena.Get] after [Arena.Close].
var ErrArenaClosed = errors.New("iouring: arena is closed")

// ArenaConfig says how much memory an [Arena] has. The zero value is 64 MiB in
// buffers of up to 1 MiB.
type ArenaConfig struct {
	// Bytes bounds the memory of all buffers together, free ones included. It is
	// rounded up to a multiple of MaxBuffer. 0 means DefaultArenaBytes.
	Bytes int64

	// MaxBuffer is the length of the largest buffer, rounded up to a power of
	// two. 0 means DefaultMaxBuffer.
	MaxBuffer int

	// HugePages asks the kernel for transparent huge pages. It saves TLB misses
	// and makes registration cheaper; memory is then taken 2 MiB at a time.
	HugePages bool
}

// An Arena is memory that may be handed to the kernel: mapped outside the Go
// heap, page aligned, never moved and never reused behind the kernel's back. It
// is cut into buffers whose lengths are powers of two times the page size, with
// the buddy algorithm (Knuth, The Art of Computer Programming 1, 2.5), so that
// one bound covers buffers of all sizes.
//
// An Arena is safe for concurrent use.
type Arena struct {
	base     unsafe.Pointer
	pageBits uint
	slots    []slot // by page; the state of the buffer that begins there
	classes  int    // class k has buffers of 1<<k pages
	mapped   []byte // the whole mapping, base may be further in

	mu      sync.Mutex
	order   []int8  // by page: the class of the free run that begins there, or -1
	next    []int32 // by page: free list links, -1 ends
	prev    []int32
	free    []int32 // by class: first page of a free run, or -1
	waiters list.List
	inUse   int64
	waits   int64
	closed  bool
}

type arenaWaiter struct {
	class int
	page  chan int32 // capacity 1; -1 says that the arena was closed
}

// A slot's state is gen<<32 | pins<<2 | released<<1 | allocated. The generation
// changes whenever the buffer goes back, so an old handle never matches.
type slot struct {
	state atomic.Uint64
	class int8
}

const (
	slotAllocated = 1 << 0
	slotReleased  = 1 << 1
	slotPin       = 1 << 2
	slotPinMask   = 1<<32 - 1 - (slotAllocated | slotReleased)
	slotGen       = 1 << 32
)

// NewArena maps the memory of an arena. Pages become resident when they are
// first used. The error is a *ConfigError or what mmap says.
func NewArena(cfg ArenaConfig) (*Arena, error) {
	page := os.Getpagesize()
	if cfg.Bytes == 0 {
		cfg.Bytes = DefaultArenaBytes
	}
	if cfg.MaxBuffer == 0 {
		cfg.MaxBuffer = DefaultMaxBuffer
	}
	if cfg.Bytes < 0 || cfg.Bytes > MaxArenaBytes {
		return nil, &ConfigError{Field: "ArenaConfig.Bytes", Value: cfg.Bytes, Want: "0 to 1 GiB"}
	}
	if cfg.MaxBuffer < 0 || int64(cfg.MaxBuffer) > MaxArenaBytes {
		return nil, &ConfigError{Field: "ArenaConfig.MaxBuffer", Value: cfg.MaxBuffer, Want: "0 to 1 GiB"}
	}
	maxBuffer := max(cfg.MaxBuffer, page)
	maxBuffer = 1 << bits.Len(uint(maxBuffer-1))
	size := (cfg.Bytes + int64(maxBuffer) - 1) / int64(maxBuffer) * int64(maxBuffer)

	length := int(size)
	if cfg.HugePages {
		length += hugePage
	}
	m, err := unix.Mmap(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("iouring: mmap of %d bytes for an arena: %w", length, err)
	}
	base := unsafe.Pointer(unsafe.SliceData(m))
	if cfg.HugePages {
		base = unsafe.Add(base, -uintptr(base)&(hugePage-1))
		adviseHuge(unsafe.Slice((*byte)(base), size))
	}

	pages := int(size) / page
	a := &Arena{
		base:     base,
		mapped:   m,
		pageBits: uint(bits.Len(uint(page)) - 1),
		classes:  bits.Len(uint(maxBuffer / page)),
		slots:    make([]slot, pages),
		order:    make([]int8, pages),
		next:     make([]int32, pages),
		prev:     make([]int32, pages),
	}
	a.free = make([]int32, a.classes)
	for k := range a.free {
		a.free[k] = -1
	}
	for i := range a.order {
		a.order[i] = -1
	}
	run := 1 << (a.classes - 1)
	for p := pages - run; p >= 0; p -= run {
		a.push(int32(p), a.classes-1)
	}
	return a, nil
}

// MaxBuffer returns the length of the largest buffer in bytes.
func (a *Arena) MaxBuffer() int { return 1 << (a.classes - 1 + int(a.pageBits)) }

// Bytes returns the arena's bound.
func (a *Arena) Bytes() int64 { return int64(len(a.slots)) << a.pageBits }

// InUse returns how many bytes are in buffers that are handed out, rounded up
// as they are: the bound counts whole buffers.
func (a *Arena) InUse() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.inUse
}

// Waits returns how many times Get had to wait.
func (a *Arena) Waits() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waits
}

// Get returns a buffer of n bytes, page aligned and with whatever an earlier
// owner left in it. When the arena has no room it waits, first come first
// served, until buffers are released or ctx ends: then the error is a
// *ArenaError that wraps ctx.Err(). n beyond MaxBuffer gives a *ArenaError that
// waits for nothing.
func (a *Arena) Get(ctx context.Context, n int) (Buffer, error) {
	if n < 0 || n > a.MaxBuffer() {
		return Buffer{}, &ArenaError{Size: n, Max: a.MaxBuffer(), Bound: a.Bytes(), Err: errBufferSize}
	}
	class := 0
	if n > 0 {
		class = bits.Len(uint((n - 1) >> a.pageBits))
	}
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return Buffer{}, ErrArenaClosed
	}
	if a.waiters.Len() == 0 {
		if p := a.take(class); p >= 0 {
			a.mu.Unlock()
			return a.handle(p, n), nil
		}
	}
	w := &arenaWaiter{class: class, page: make(chan int32, 1)}
	e := a.waiters.PushBack(w)
	a.waits++
	a.mu.Unlock()

	select {
	case p := <-w.page:
		if p < 0 {
			return Buffer{}, ErrArenaClosed
		}
		return a.handle(p, n), nil
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case p := <-w.page: // the turn came at the same time: pass it on
		if p >= 0 {
			a.put(p)
		}
	default:
		a.waiters.Remove(e)
	}
	a.grant()
	if err := a.unmapIfIdle(); err != nil {
		return Buffer{}, err
	}
	return Buffer{}, &ArenaError{Size: n, Max: a.MaxBuffer(), Bound: a.Bytes(), InUse: a.inUse, Waiting: a.waiters.Len(), Err: ctx.Err()}
}

// Close makes Get fail, those that wait included. The memory is unmapped when
// the last buffer has been released, at once if none is out. Closing twice is
// fine.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	a.closed = true
	for e := a.waiters.Front(); e != nil; e = e.Next() {
		e.Value.(*arenaWaiter).page <- -1
	}
	a.waiters.Init()
	return a.unmapIfIdle()
}

func (a *Arena) unmapIfIdle() error {
	if !a.closed || a.inUse > 0 || a.mapped == nil {
		return nil
	}
	m := a.mapped
	a.mapped = nil
	return unix.Munmap(m)
}

// handle makes the handle of the buffer at page p, which take allocated.
func (a *Arena) handle(p int32, n int) Buffer {
	return Buffer{arena: a, page: uint32(p), gen: uint32(a.slots[p].state.Load() >> 32), n: uint32(n)}
}

// take allocates a run of 1<<class pages and returns its first page, or -1.
func (a *Arena) take(class int) int32 {
	k := class
	for ; ; k++ {
		if k == a.classes {
			return -1
		}
		if a.free[k] >= 0 {
			break
		}
	}
	p := a.free[k]
	a.unlink(p)
	for k > class { // split, keep the lower half
		k--
		a.push(p+1<<k, k)
	}
	s := &a.slots[p]
	s.class = int8(class)
	s.state.Store(s.state.Load()&^(slotGen-1) | slotAllocated)
	a.inUse += 1 << (uint(class) + a.pageBits)
	return p
}

// put frees the run at page p and joins it with its free buddies.
func (a *Arena) put(p int32) {
	s := &a.slots[p]
	k := int(s.class)
	s.state.Store(s.state.Load()&^(slotGen-1) + slotGen)
	a.inUse -= 1 << (uint(k) + a.pageBits)
	for k < a.classes-1 {
		buddy := p ^ 1<<k
		if int(a.order[buddy]) != k {
			break
		}
		a.unlink(buddy)
		p &^= 1 << k
		k++
	}
	a.push(p, k)
}

// grant serves those who wait, in their order.
func (a *Arena) grant() {
	for e := a.waiters.Front(); e != nil; e = a.waiters.Front() {
		w := e.Value.(*arenaWaiter)
		p := a.take(w.class)
		if p < 0 {
			return
		}
		a.waiters.Remove(e)
		w.page <- p
	}
}

func (a *Arena) push(p int32, k int) {
	a.order[p] = int8(k)
	a.next[p], a.prev[p] = a.free[k], -1
	if n := a.free[k]; n >= 0 {
		a.prev[n] = p
	}
	a.free[k] = p
}

func (a *Arena) unlink(p int32) {
	k := a.order[p]
	if n := a.next[p]; n >= 0 {
		a.prev[n] = a.prev[p]
	}
	if q := a.prev[p]; q >= 0 {
		a.next[q] = a.next[p]
	} else {
		a.free[k] = a.next[p]
	}
	a.order[p] = -1
}

// recycle returns a buffer whose last owner, user or kernel, has let go.
func (a *Arena) recycle(p uint32) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.put(int32(p))
	a.grant()
	return a.unmapIfIdle()
}

// A Buffer is a handle on memory of an [Arena], or on a part of it. It is a
// small value: copies and slices stand for the same allocation, and releasing
// any of them releases it. The zero Buffer is empty and cannot be released.
//
// While an operation uses a buffer the kernel owns it. Do not look at it then,
// and do not worry about it either: a Release in the meantime takes effect when
// the operation has ended.
type Buffer struct {
	arena *Arena
	page  uint32 // first page of the allocation
	gen   uint32
	off   uint32 // of the view in the allocation
	n     uint32
}

// Len returns the length of the view in bytes.
func (b Buffer) Len() int { return int(b.n) }

// Cap returns how many bytes there are from the start of the view to the end of
// the allocation.
func (b Buffer) Cap() int {
	if b.arena == nil {
		return 0
	}
	b.check()
	return 1<<(uint(b.arena.slots[b.page].class)+b.arena.pageBits) - int(b.off)
}

// Bytes returns the memory of the view. It must not be used after the buffer
// was released or while an operation has it. Bytes panics if the buffer has
// been released already.
func (b Buffer) Bytes() []byte {
	if b.arena == nil {
		return nil
	}
	c := b.Cap()
	return unsafe.Slice((*byte)(b.addr()), c)[:b.n]
}

// Slice returns the view from i to j, counted from the start of this view, as
// b.Bytes()[i:j] would: j may reach up to Cap. It panics if i and j are out of
// range or the buffer has been released.
func (b Buffer) Slice(i, j int) Buffer {
	if i < 0 || j < i || j > b.Cap() {
		panic(fmt.Sprintf("iouring: slice [%d:%d] of a buffer with capacity %d", i, j, b.Cap()))
	}
	b.off += uint32(i)
	b.n = uint32(j - i)
	return b
}

// Release gives the allocation back to its arena. A buffer that has been
// released before, or that no arena made, gives a *BufferError and changes
// nothing.
func (b Buffer) Release() error {
	if b.arena == nil {
		return &BufferError{Reason: "no arena made it"}
	}
	s := &b.arena.slots[b.page]
	for {
		v := s.state.Load()
		if !b.owns(v) {
			return b.stale(v)
		}
		if s.state.CompareAndSwap(v, v|slotReleased) {
			if v&slotPinMask == 0 {
				return b.arena.recycle(b.page)
			}
			return nil
		}
	}
}

func (b Buffer) addr() unsafe.Pointer {
	return unsafe.Add(b.arena.base, int(b.page)<<b.arena.pageBits+int(b.off))
}

// owns reports whether state v is that of b's allocation, not yet released.
func (b Buffer) owns(v uint64) bool {
	return uint32(v>>32) == b.gen && v&(slotAllocated|slotReleased) == slotAllocated
}

func (b Buffer) stale(v uint64) error {
	return &BufferError{
		Reason: "it has been released", Page: int(b.page),
		Generation: b.gen, Current: uint32(v >> 32),
	}
}

func (b Buffer) check() {
	if v := b.arena.slots[b.page].state.Load(); !b.owns(v) {
		panic(b.stale(v).Error())
	}
}

// pin keeps the allocation from being reused until unpin, whoever releases it.
func (b Buffer) pin() error {
	if b.arena == nil {
		if b.n == 0 {
			return nil
		}
		return &BufferError{Reason: "no arena made it"}
	}
	s := &b.arena.slots[b.page]
	for {
		v := s.state.Load()
		if !b.owns(v) {
			return b.stale(v)
		}
		if s.state.CompareAndSwap(v, v+slotPin) {
			return nil
		}
	}
}

func (b Buffer) unpin() {
	if b.arena == nil {
		return
	}
	v := b.arena.slots[b.page].state.Add(^uint64(slotPin - 1))
	if v&slotPinMask == 0 && v&slotReleased != 0 {
		// Unmapping cannot fail for a mapping of ours, and there is nobody here
		// to tell.
		_ = b.arena.recycle(b.page)
	}
}

// pinned returns the memory of a view that is pinned.
func (b Buffer) pinned() []byte {
	if b.arena == nil {
		return nil
	}
	return unsafe.Slice((*byte)(b.addr()), b.n)
}

// pinAll pins all of bs or none, and returns their length together.
func pinAll(bs []Buffer) (int, error) {
	total := 0
	for i, b := range bs {
		if err := b.pin(); err != nil {
			unpinAll(bs[:i])
			return 0, err
		}
		total += b.Len()
	}
	return total, nil
}

func unpinAll(bs []Buffer) {
	for _, b := range bs {
		b.unpin()
	}
}
