package iouring

import "golang.org/x/sys/unix"

// openBest returns the syscall backend, unless the ring is demanded: there is
// none.
func openBest(_ Config, demand bool) (Backend, error) {
	const reason = "io_uring: a facility of Linux, not of this system"
	if demand {
		return nil, &UnavailableError{Backend: string(RingBackend), Reason: reason, Err: unix.ENOTSUP}
	}
	return newSyscallBackend(reason), nil
}
