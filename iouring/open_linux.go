package iouring

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A probing is what the kernel said when it was asked for a ring.
type probing struct {
	reason string
	err    error // nil if there is a ring
}

var probed = sync.OnceValue(probeKernel)

// probeKernel tries what a backend needs: the three system calls, each of which
// may be forbidden for itself, and the operations.
func probeKernel() probing {
	no := func(err error, why string) probing {
		return probing{reason: "io_uring: " + why + ": " + err.Error(), err: err}
	}
	r, err := NewRing(RingConfig{Entries: 4})
	if err != nil {
		return no(err, whyNot(err))
	}
	defer func() {
		r.Close()
		lastClose.Store(0) // too small to be waited for
	}()
	var s SQE
	s.PrepNop()
	if _, err := r.Push(&s); err != nil {
		return no(err, "a no-op failed")
	}
	c, err := r.WaitCQE()
	if err == nil {
		err = c.Err()
	}
	if err != nil {
		return no(err, whyNot(err))
	}
	p, err := r.Probe()
	if err != nil {
		return no(err, whyNot(err))
	}
	const need = FeatNoDrop | FeatSubmitStable | FeatFastPoll | FeatExtArg
	if lack := need &^ r.Features(); lack != 0 {
		return no(unix.ENOSYS, fmt.Sprintf("the kernel is too old, it lacks features %#x", uint32(lack)))
	}
	for _, op := range []Opcode{OpNop, OpRead, OpWrite, OpReadFixed, OpWriteFixed, OpWritev, OpFsync, OpAsyncCancel} {
		if !p.Supports(op) {
			return no(unix.ENOSYS, fmt.Sprintf("the kernel is too old, it lacks operation %d", op))
		}
	}
	return probing{reason: "io_uring: set-up, a no-op and the probe of operations succeeded"}
}

// whyNot says in words what an error of the ring's system calls means.
func whyNot(err error) string {
	switch {
	case errors.Is(err, unix.ENOSYS):
		return "the kernel has none, or a seccomp filter hides it"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		v, _ := os.ReadFile("/proc/sys/kernel/io_uring_disabled") // older kernels have no such file
		if v = bytes.TrimSpace(v); len(v) > 0 && string(v) != "0" {
			return "forbidden by sysctl kernel.io_uring_disabled=" + string(v)
		}
		return "forbidden, most likely by a seccomp filter"
	case errors.Is(err, unix.ENOMEM):
		return "no memory, most likely RLIMIT_MEMLOCK" + memlock()
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return "too many open files"
	}
	return "it does not work here"
}

func memlock() string {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return ""
	}
	return fmt.Sprintf(" (%d bytes)", l.Cur)
}

// openBest returns the ring backend, or the syscall backend if there is no ring
// and none was demanded.
func openBest(cfg Config, demand bool) (Backend, error) {
	p := probed()
	if p.err == nil {
		b, err := openRing(cfg, p.reason)
		var ce *ConfigError
		if err == nil || errors.As(err, &ce) {
			return b, err
		}
		p = probing{reason: "io_uring: " + whyNot(err) + ": " + err.Error(), err: err}
	}
	if demand {
		return nil, &UnavailableError{Backend: string(RingBackend), Reason: p.reason, Err: p.err}
	}
	return newSyscallBackend(p.reason), nil
}

func openRing(cfg Config, reason string) (Backend, error) {
	ec := EngineConfig{Ring: RingConfig{Entries: cfg.Entries}, Dedicated: cfg.Dedicated, Register: cfg.Register}
	stat := newBackendStats()
	e, err := newEngine(ec, stat)
	registered := len(cfg.Register) > 0
	if err != nil && registered {
		// Registering is the part that memory limits hit first.
		ec.Register, registered = nil, false
		var again error
		if e, again = newEngine(ec, stat); again == nil {
			reason += "; arenas not registered: " + err.Error()
		}
		err = again
	}
	if err != nil {
		return nil, err
	}
	// Syncs are what blocks the kernel's worker threads. Kernels before 5.15 do
	// not take the limit and have one of their own.
	_ = e.OnRing(func(r *Ring) error {
		_, _, err := r.SetMaxWorkers(maxParallelSyncs, 0)
		return err
	})
	return newBackend(newRingDevice(e, ec.Register), Capabilities{
		Backend: string(RingBackend), Reason: reason, Kernel: kernelRelease(), Registered: registered,
	}, stat), nil
}
