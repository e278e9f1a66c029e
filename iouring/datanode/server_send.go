//go:build linux || darwin

package datanode

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring"
)

// headRoom is what a packet has before its checksums at most: a response and a
// header.
const headRoom = 64 + packet.MaxHeaderLen

// sendfileFrom is the length of data from which on it pays to send it from the
// page cache directly, instead of copying it and sending it with the rest in one
// call. It takes 0.7 of the CPU time of both sides over a unix socket, but 1.5
// over the loopback device, where the copy that it saves warms the cache for the
// receiver's.
const sendfileFrom = 128 << 10

// sendFilesTo reports whether files are sent directly to an address.
func sendFilesTo(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return canSendFiles && (!ok || !tcp.IP.IsLoopback())
}

// A rangeSend sends the response and the packets of a read. The response goes
// with the first packet and the empty last packet with the last data, so that a
// short read is answered with one write.
//
// It takes turns: with one of the server's few workers' slots and some memory it
// sends a packet, as much of it as the socket takes. While it waits for a slow
// client it has neither, and keeps in mind how far it got; what it has to send
// then it reads anew.
type rangeSend struct {
	conn *conn
	r    *BlockReader
	rng  chunkRange

	off     int64 // of the packet under way
	seqno   int64 // its number
	sent    int   // so many of its bytes, and of the response and the last packet that go with it
	begun   bool  // the peer has got something
	dropped int64 // up to there the page cache has been told that it is of no use
}

// run sends everything.
func (s *rangeSend) run() error {
	s.dropped = s.rng.from
	for {
		done, full, err := s.turn()
		if done || err != nil {
			return err
		}
		if !full {
			continue
		}
		if err := s.conn.writable(); err != nil {
			return err
		}
	}
}

// turnPackets is how many packets a turn has at most.
const turnPackets = 16

// turn sends until everything is sent, the socket is full, or others are to have
// their turn.
func (s *rangeSend) turn() (done, full bool, err error) {
	server := s.conn.server
	select {
	case server.workers <- struct{}{}:
	case <-server.ctx.Done():
		return false, false, server.ctx.Err()
	}
	defer func() { <-server.workers }()
	for range turnPackets {
		whole, err := s.packet()
		if err != nil || !whole {
			return false, true, err
		}
		if s.off == s.rng.to {
			return true, false, nil
		}
	}
	return false, false, nil
}

// packet sends what is left of the packet under way, and reports whether that
// was all of it.
func (s *rangeSend) packet() (whole bool, err error) {
	n := int(min(s.rng.perPacket, s.rng.to-s.off))
	sumsLen := s.rng.chunks.SumsLen(n)
	direct := n >= sendfileFrom && s.cached(n) && s.conn.out.files && !s.conn.server.cfg.VerifyReads
	copied := n
	if direct {
		copied = 0
	}
	buf, err := s.conn.server.store.arena.Get(s.conn.server.ctx, headRoom+sumsLen+copied+packet.MaxHeaderLen)
	if err != nil {
		return false, err
	}
	defer buf.Release()

	data, sums := buf.Slice(headRoom+sumsLen, headRoom+sumsLen+copied), buf.Slice(headRoom, headRoom+sumsLen)
	if direct {
		err = s.r.readSumsOrZeros(s.conn.server.ctx, sums, s.off, s.off+int64(n))
	} else {
		err = s.r.ReadChunks(s.conn.server.ctx, data, sums, s.off)
	}
	if err == nil && s.conn.server.cfg.VerifyReads && s.rng.chunks.Kind == s.r.chunks.Kind {
		err = s.r.verify(data, sums, s.off)
	}
	if err != nil {
		return false, err
	}

	var room [headRoom]byte
	head := room[:0]
	if s.off == s.rng.from {
		response := packet.BlockOpResponse{ReadChecksum: &packet.ReadChecksumInfo{Chunks: s.rng.chunks, ChunkOffset: s.rng.from}}
		head = response.Append(head)
	}
	seqno := s.seqno
	if n > 0 {
		head = packet.Header{Offset: s.off, Seqno: seqno, DataLen: n}.Append(head, sumsLen)
		seqno++
	}
	end := s.off + int64(n)
	first := buf.Slice(headRoom-len(head), headRoom+sumsLen+copied).Bytes()
	copy(first, head)
	var tail []byte
	if end == s.rng.to {
		tail = packet.Header{Offset: end, Seqno: seqno, Last: true}.Append(first[len(first):], 0)
	}
	if !direct {
		first = first[:len(first)+len(tail)]
		whole, err = s.put(first, 0, false)
	} else {
		whole, err = s.put(first, 0, true)
		if whole && err == nil {
			whole, err = s.putFile(n, len(first))
		}
		if whole && err == nil {
			whole, err = s.put(tail, len(first)+n, false)
		}
	}
	if err != nil || !whole {
		return false, err
	}
	if direct {
		s.r.store.stats.Add2(statBytesRead, int64(n), statReads, 1)
	}
	s.conn.server.stats.Add2(statPacketsSent, 1, statBytesSent, int64(n))
	s.off, s.seqno, s.sent = end, seqno, 0
	s.dropBehind()
	return true, nil
}

// put sends what is left of b, which begins at the given position of what is
// under way. more says that something follows at once.
func (s *rangeSend) put(b []byte, at int, more bool) (whole bool, err error) {
	if s.sent >= at+len(b) {
		return true, nil
	}
	n, err := s.conn.trySend(b[s.sent-at:], more)
	s.sent += n
	s.begun = s.begun || n > 0
	return s.sent == at+len(b), err
}

// putFile sends what is left of n bytes of the block file.
func (s *rangeSend) putFile(n, at int) (whole bool, err error) {
	for s.sent < at+n {
		done := s.sent - at
		k, err := s.conn.trySendFile(s.r.blk.File, s.off+int64(done), n-done)
		s.sent += k
		if err != nil || k == 0 {
			return false, err
		}
	}
	return true, nil
}

// readAhead is how much is read ahead for a long read
// (dfs.datanode.readahead.bytes), dropStep how much is dropped from the page cache
// at a time.
const (
	readAhead = 4 << 20
	dropStep  = 1 << 20
)

// cached reports whether the n bytes under way seem to be in the page cache, and
// sees to it that what follows will be. If they are not, they are read by the
// backend, which does not wait for the disk in a thread.
func (s *rangeSend) cached(n int) bool {
	if inPageCache(s.r.blk.File, s.off+int64(n)-1) {
		return true
	}
	willNeed(s.r.blk.File, s.off, min(readAhead, s.rng.to-s.off))
	return false
}

func (s *rangeSend) dropBehind() {
	if s.rng.dropBehind && (s.off-s.dropped >= dropStep || s.off == s.rng.to) {
		dropRange(s.r.blk.File, s.dropped, s.off-s.dropped)
		s.dropped = s.off
	}
}

// A socketOut sends on a connection without waiting. Its fields are the arguments
// and results of its methods: the function that makes the system call is made
// once for a connection.
type socketOut struct {
	raw   syscall.RawConn // nil if the connection is no socket
	call  func(fd uintptr) bool
	files bool // files are sent directly

	b    []byte
	more bool
	file *iouring.File // if this is not nil, what is sent is n bytes of it
	off  int64
	n    int
	err  error
}

// init makes the output of a connection, or none if that is no socket.
func (o *socketOut) init(c net.Conn, files bool) {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return
	}
	o.raw, o.call, o.files = raw, o.send, files
}

func (o *socketOut) send(fd uintptr) bool {
	for {
		if o.file == nil {
			o.n, o.err = sendSome(int(fd), o.b, o.more)
		} else {
			o.n, o.err = sendFile(int(fd), o.file, o.off, o.n)
		}
		if o.err != unix.EINTR {
			return true
		}
	}
}

// outcome makes the system call that c.out describes. A socket that takes nothing
// now is no error.
func (c *conn) outcome(op string) (int, error) {
	o := &c.out
	if err := o.raw.Write(o.call); err != nil {
		return 0, err
	}
	o.b = nil
	switch {
	case o.err == nil:
		return o.n, nil
	case o.err == unix.EAGAIN:
		return 0, nil
	}
	return 0, &net.OpError{Op: op, Net: c.RemoteAddr().Network(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(op, o.err)}
}

// trySend sends as much of b as the socket takes. A connection that is no socket
// takes all of it, after a while.
func (c *conn) trySend(b []byte, more bool) (int, error) {
	if c.out.raw == nil {
		if err := c.expectToTake(); err != nil {
			return 0, err
		}
		return c.Write(b)
	}
	c.out.b, c.out.more, c.out.file = b, more, nil
	return c.outcome("write")
}

// trySendFile sends as much of n bytes of a file as the socket takes.
func (c *conn) trySendFile(f *iouring.File, off int64, n int) (int, error) {
	c.out.file, c.out.off, c.out.n = f, off, n
	n, err := c.outcome("sendfile")
	if n == 0 && err == nil && c.out.err == nil {
		err = io.ErrUnexpectedEOF // the file is shorter than it was
	}
	return n, err
}

// writable waits until the socket takes something.
func (c *conn) writable() error {
	if err := c.expectToTake(); err != nil {
		return err
	}
	if err := c.out.raw.Write(pollOut); err != nil {
		return err
	}
	return c.SetWriteDeadline(time.Time{})
}

// pollOut reports whether a socket takes something now. It is asked after the
// poller is ready to hear, so that nothing is missed.
func pollOut(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	n, err := unix.Poll(p, 0)
	return n != 0 || err != nil && err != unix.EINTR
}
