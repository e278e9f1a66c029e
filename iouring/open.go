//go:build linux || darwin

package iouring

// openBest returns the ring backend, or the syscall backend if there is no ring
// and none was demanded.
func openBest(demand bool) (Backend, error) {
	reason := "io_uring: this build has no ring"
	if demand {
		return nil, &UnavailableError{Backend: string(RingBackend), Reason: reason}
	}
	return newSyscallBackend(reason), nil
}
