package iouring

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// An owner is the thread of a dedicated ring.
type owner struct {
	asleep atomic.Bool // waits in the kernel, for completions or the bell
	quit   atomic.Bool
	bell   int // eventfd
	armed  bool
	ended  chan struct{}
	err    error // of Close
}

// bellData marks the completions of the poll on the bell.
const bellData = 1<<64 - 1

// bellRing adds one to the eventfd. Nobody takes the sum away, it is the write
// that completes the poll, and in 2^64 writes it does not fill up.
var bellRing = binary.NativeEndian.AppendUint64(nil, 1)

func (e *Engine) startOwner(cfg EngineConfig) error {
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return err
	}
	e.owner = &owner{bell: bell, ended: make(chan struct{})}
	cfg.Ring.Flags |= SetupSingleIssuer | SetupDeferTaskrun
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // the kernel knows the ring's user by its thread
		defer runtime.UnlockOSThread()
		ring, err := newEngineRing(cfg)
		if err == nil {
			e.setRing(ring)
		}
		ready <- err
		if err == nil {
			e.own()
		}
	}()
	if err := <-ready; err != nil {
		unix.Close(bell)
		return err
	}
	return nil
}

func (e *Engine) own() {
	w := e.owner
	for !w.quit.Load() {
		if !w.armed && e.ring.room() > 0 && e.ring.freeSlot >= 0 {
			s := SQE{UserData: bellData}
			s.PrepPollMultishot(w.bell, unix.POLLIN)
			e.ring.push(&s, nil)
			w.armed = true
		}
		e.collect()
		e.fill()
		wait := 0
		w.asleep.Store(true)
		more := e.queue.first != nil && e.ring.freeSlot >= 0
		if e.head.Load() == nil && !w.quit.Load() && !more {
			wait = 1
		}
		err := e.submit(wait)
		w.asleep.Store(false)
		if e.reap(statCQE) == 0 && err != nil {
			time.Sleep(time.Millisecond)
		}
	}
	err := e.ring.drain((*Op).complete)
	e.lead.Lock()
	e.closed = true
	e.collect()
	e.failQueue(ErrClosed)
	e.lead.Unlock()
	w.err = errors.Join(err, e.ring.Close(), unix.Close(w.bell))
	close(w.ended)
}

// wakeOwner makes the owner look at the list.
func (e *Engine) wakeOwner() {
	w := e.owner
	if w.quit.Load() {
		// Either the owner's last look at the list is still to come, or this one is
		// in its place.
		<-w.ended
		e.lead.Lock()
		e.collect()
		e.failQueue(ErrClosed)
		e.lead.Unlock()
		return
	}
	if w.asleep.Load() && w.asleep.CompareAndSwap(true, false) {
		w.ringBell()
	}
}

func (w *owner) ringBell() {
	_, _ = unix.Write(w.bell, bellRing)
}

func (e *Engine) stopOwner() error {
	w := e.owner
	if w.quit.CompareAndSwap(false, true) {
		w.ringBell()
		<-w.ended
		return w.err
	}
	<-w.ended
	return nil
}
