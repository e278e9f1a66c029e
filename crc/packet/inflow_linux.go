package packet

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// As long as wakeLeast bytes are sure to come, a reader is woken when that many or
// more have gathered in the socket, up to wakeMost, or have not for wakeTime. A
// shorter read, and the end of a long one, gets every byte at once.
const (
	wakeLeast = 256 << 10
	wakeMost  = 1 << 20
	wakeTime  = 50 * time.Millisecond
)

// A socket is read from without waiting, and told by SO_RCVLOWAT how much is to
// be there before the next wait ends. The end of the stream ends it too, and the
// kernel does not wait for more than it has memory for.
type socket struct {
	conn *net.TCPConn
	raw  syscall.RawConn
	call func(fd uintptr) bool // readNow, made once

	// arguments and results of readNow
	p    []byte
	sure int64
	n    int
	err  error

	mu      sync.Mutex
	low     int         // what the kernel has been told
	waits   int64       // how often there was a wait for much
	waiting bool        // there is one
	hurried bool        // it has lasted too long
	watch   *time.Timer // calls hurry; nil before the first such wait
	watched int64       // what waits was when watch was started; 0 if it does not run
}

func socketOf(conn io.Reader) *socket {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	s := &socket{conn: tcp, raw: raw, low: 1}
	s.call = s.readNow
	return s
}

// read reads into p, when more than the given number of bytes is sure to come.
func (s *socket) read(p []byte, sure int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.p, s.sure = p, sure
	err := s.raw.Read(s.call)
	s.p = nil
	if err != nil { // the deadline, or the connection is closed
		if op, ok := err.(*net.OpError); ok {
			op.Op = "read"
		}
		return 0, err
	}
	if s.err != nil {
		return 0, &net.OpError{Op: "read", Net: s.conn.LocalAddr().Network(), Source: s.conn.LocalAddr(), Addr: s.conn.RemoteAddr(), Err: os.NewSyscallError("read", s.err)}
	}
	if s.n == 0 {
		return 0, io.EOF
	}
	return s.n, nil
}

// readNow reports whether there was something to read. If not, the caller waits.
func (s *socket) readNow(fd uintptr) bool {
	for {
		s.n, s.err = syscall.Read(int(fd), s.p)
		if s.err != syscall.EINTR {
			break
		}
	}
	if s.err == syscall.EAGAIN {
		s.wait(fd)
		return false
	}
	s.mu.Lock()
	s.waiting, s.hurried = false, false
	s.mu.Unlock()
	return true
}

// wait tells the kernel when the wait that follows is to end.
func (s *socket) wait(fd uintptr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sure < wakeLeast || s.hurried {
		s.wakeAt(fd, 1)
		return
	}
	s.wakeAt(fd, int(min(s.sure, wakeMost)))
	if s.waiting {
		return // it was woken for what it had read before
	}
	s.waits++
	s.waiting = true
	if s.watched == 0 {
		s.watched = s.waits
		if s.watch == nil {
			s.watch = time.AfterFunc(wakeTime, s.hurry)
		} else {
			s.watch.Reset(wakeTime)
		}
	}
}

// hurry ends a wait that lasts.
func (s *socket) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.waiting:
		s.watched = 0
	case s.watched != s.waits:
		s.watched = s.waits
		s.watch.Reset(wakeTime)
	default:
		s.watched, s.hurried = 0, true
		s.wakeSoon()
	}
}

// wakeAt tells the kernel for how many bytes it has to wait; s.mu is held.
func (s *socket) wakeAt(fd uintptr, low int) {
	if low != s.low && syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, low) == nil {
		s.low = low
	}
}

// wakeSoon makes the kernel wake the reader as soon as there is anything; s.mu
// is held.
func (s *socket) wakeSoon() {
	if s.low > 1 {
		_ = s.raw.Control(func(fd uintptr) { s.wakeAt(fd, 1) }) // or it is closed
	}
}

func (s *socket) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting, s.hurried = false, false
	s.wakeSoon()
}
