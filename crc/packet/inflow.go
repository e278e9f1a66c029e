package packet

import "io"

// An inflow reads from a connection that carries packets. It is told how much is
// sure to come; when it has to wait, a TCP socket of Linux wakes it when a good
// part of that is there, and not with every segment. With packets of 64 KiB a
// reader of a long range then needs half of the CPU time. Elsewhere it reads as the connection
// does. It is not safe for concurrent use.
type inflow struct {
	conn   io.Reader
	socket *socket // nil: of another kind
	sure   int64   // bytes
}

// newInflow returns an inflow of a connection, which stays the caller's.
func newInflow(conn io.Reader) *inflow { return &inflow{conn: conn, socket: socketOf(conn)} }

// expect says that at least n bytes come that have not been read, unless the
// peer fails. What is read counts towards them.
func (s *inflow) expect(n int64) { s.sure = n }

// Read reads what there is, and waits if that is nothing.
func (s *inflow) Read(p []byte) (n int, err error) {
	if s.socket == nil {
		return s.conn.Read(p)
	}
	n, err = s.socket.read(p, s.sure)
	s.sure = max(s.sure-int64(n), 0)
	return n, err
}

// reset leaves the connection as others expect it.
func (s *inflow) reset() {
	if s.socket != nil {
		s.socket.reset()
	}
}
