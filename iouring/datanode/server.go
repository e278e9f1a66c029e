//go:build linux || darwin

package datanode

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/stripedcounter"
)

// A ServerConfig configures [NewServer]. The zero value has HDFS's defaults.
type ServerConfig struct {
	MaxPacketLen  int // bytes of PLEN + HLEN; 0 means packet.MaxPacketLen, more is cut to what the store's arena takes
	MaxRequestLen int // bytes; 0 means packet.DefaultMaxRequestLen
	MaxConns      int // connections at a time, further ones are closed at once; 0 means 4096

	// ReadTimeout bounds the wait for a connection's first request, for the next
	// packet, which may be a heartbeat, and for the rest of one. 0 means 60 s.
	ReadTimeout time.Duration

	// KeepAlive bounds the wait for a further request. 0 means 4 s.
	KeepAlive time.Duration

	// WriteTimeout bounds the wait for a peer to take a packet or an ack. 0 means
	// 480 s.
	WriteTimeout time.Duration

	// Logger is told of refused requests, malformed input and failures. If it is
	// nil nothing is logged.
	Logger *slog.Logger
}

// The counters of Server.Stats.
const (
	statConns = iota
	statConnsRefused
	statWriteRequests
	statReadRequests
	statChecksumRequests
	statTransferRequests
	statRefused
	statMalformed
	statFailed
	statMirrorsLost
	statAcks
	statPacketsSent
	statBytesSent
)

var serverStats = []string{
	"connections", "connections_refused",
	"write_requests", "read_requests", "checksum_requests", "transfer_requests",
	"refused", "malformed", "failed", "mirrors_lost", "acks", "packets_sent", "bytes_sent",
}

// A Server serves a store by HDFS's data transfer protocol, over TCP or unix
// sockets: WRITE_BLOCK, alone or as a node of a pipeline, READ_BLOCK,
// BLOCK_CHECKSUM and TRANSFER_BLOCK. After any but the first the connection stays
// for further requests.
//
// What does not follow the protocol closes the connection, before memory is
// allocated for it; what cannot be done is answered with a status that says so.
type Server struct {
	store *Store
	cfg   ServerConfig
	log   *slog.Logger
	stats *stripedcounter.Set

	ctx    context.Context // ends when connections are cut
	cancel context.CancelFunc

	mu        sync.Mutex
	closing   bool
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	done      sync.WaitGroup
}

// NewServer returns a server of the store, which stays the caller's.
func NewServer(store *Store, cfg ServerConfig) *Server {
	def := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&cfg.ReadTimeout, 60*time.Second)
	def(&cfg.KeepAlive, 4*time.Second)
	def(&cfg.WriteTimeout, 480*time.Second)
	if cfg.MaxConns <= 0 {
		cfg.MaxConns = 4096
	}
	if cfg.MaxPacketLen <= 0 {
		cfg.MaxPacketLen = packet.MaxPacketLen
	}
	cfg.MaxPacketLen = min(cfg.MaxPacketLen, store.arena.MaxBuffer())
	s := &Server{
		store: store, cfg: cfg, log: cfg.Logger,
		stats:     stripedcounter.NewSet(serverStats...),
		listeners: map[net.Listener]struct{}{},
		conns:     map[*conn]struct{}{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Stats returns the server's counters.
func (s *Server) Stats() *stripedcounter.Set { return s.stats }

// Serve accepts connections on l until Shutdown, and closes l. It returns nil
// after a Shutdown and otherwise the error of the listener; that there are no
// more file descriptors is waited out. It may be called for several listeners.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return nil
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	pause := time.Duration(0)
	for {
		c, err := l.Accept()
		if err == nil {
			pause = 0
			s.accept(c)
			continue
		}
		s.mu.Lock()
		closing := s.closing
		s.mu.Unlock()
		if closing {
			return nil
		}
		if !outOfResources(err) {
			return err
		}
		s.log.Error("cannot accept", "address", l.Addr(), "error", err)
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		select {
		case <-time.After(pause):
		case <-s.ctx.Done():
		}
	}
}

func (s *Server) accept(nc net.Conn) {
	s.stats.Add(statConns, 1)
	c := &conn{server: s, Conn: nc, idle: true}
	s.mu.Lock()
	if s.closing || len(s.conns) >= s.cfg.MaxConns {
		s.mu.Unlock()
		s.stats.Add(statConnsRefused, 1)
		nc.Close()
		return
	}
	s.conns[c] = struct{}{}
	s.done.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.done.Done()
		c.serve()
		nc.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
}

// partingTime is how long clients have to take the last answer after the end of
// a Shutdown's context.
const partingTime = 3 * time.Second

// Shutdown stops accepting, closes connections that wait for a request, and
// waits for the others to end what they do. When ctx ends before that, it cuts
// them: the clients that write are told that the node restarts (OOB_RESTART), and
// their blocks stay unfinished, with everything that was acknowledged. It returns
// after the last of the server's goroutines has ended, with ctx's error if it cut
// something.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	for l := range s.listeners {
		l.Close()
	}
	for c := range s.conns {
		if c.idle {
			c.Close()
		}
	}
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		s.done.Wait()
		close(ended)
	}()
	defer s.cancel()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
	}
	s.cancel()
	s.each(func(c *conn) { _ = c.SetReadDeadline(time.Now()) })
	patience := time.NewTimer(partingTime)
	defer patience.Stop()
	select {
	case <-ended:
	case <-patience.C:
		s.each(func(c *conn) { c.Close() })
		<-ended
	}
	return ctx.Err()
}

// each calls f for every connection.
func (s *Server) each(f func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		f(c)
	}
}

// A conn is a connection and, while there is one, its request.
type conn struct {
	net.Conn
	server *Server
	in     *bufio.Reader
	idle   bool // waits for a request; guarded by server.mu
}

// setIdle notes whether the connection waits for a request. It reports whether
// the server still wants one.
func (c *conn) setIdle(idle bool) bool {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.idle = idle
	return !c.server.closing
}

// requestBuffer is the length of a connection's read buffer: a usual request
// fits, and packets, which are read past it, do not suffer from it.
const requestBuffer = 512

func (c *conn) serve() {
	s := c.server
	c.in = bufio.NewReaderSize(c.Conn, requestBuffer)
	timeout := s.cfg.ReadTimeout
	for c.setIdle(true) {
		if err := c.SetReadDeadline(time.Now().Add(timeout)); err != nil {
			return
		}
		if _, err := c.in.Peek(1); err != nil {
			return
		}
		if !c.setIdle(false) {
			return
		}
		if err := c.expect(s.cfg.ReadTimeout); err != nil {
			return
		}
		req, err := packet.ReadRequest(c.in, s.cfg.MaxRequestLen)
		if err != nil {
			c.malformed(err)
			return
		}
		switch req := req.(type) {
		case *packet.WriteBlock:
			s.stats.Add(statWriteRequests, 1)
			c.write(req)
			return
		case *packet.ReadBlock:
			s.stats.Add(statReadRequests, 1)
			if !c.read(req) {
				return
			}
		case *packet.BlockChecksum:
			s.stats.Add(statChecksumRequests, 1)
			if !c.checksum(req) {
				return
			}
		case *packet.TransferBlock:
			s.stats.Add(statTransferRequests, 1)
			if !c.transfer(req) {
				return
			}
		}
		timeout = s.cfg.KeepAlive
	}
}

// malformed counts and logs input that does not follow the protocol, unless the
// connection has just ended.
func (c *conn) malformed(err error) {
	if lost(err) {
		return
	}
	c.server.stats.Add(statMalformed, 1)
	c.server.log.Warn("malformed input", "peer", c.RemoteAddr(), "error", err)
}

// lost reports whether err is the end of the connection, and not what came over
// it.
func lost(err error) bool {
	var op *net.OpError
	if err == io.EOF || errors.Is(err, net.ErrClosed) || errors.As(err, &op) {
		return true
	}
	var format *packet.FormatError
	return errors.As(err, &format) && errors.Is(err, io.ErrUnexpectedEOF)
}

// outOfResources reports whether an accept failed for want of something that
// may come back.
func outOfResources(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// refuse answers a request that is not carried out, and logs it.
func (c *conn) refuse(b packet.Block, status packet.Status, message string) {
	c.server.stats.Add(statRefused, 1)
	c.server.log.Warn("request refused", "peer", c.RemoteAddr(), "block", b, "status", status, "reason", message)
	_ = c.send((&packet.BlockOpResponse{Status: status, Message: message}).Append(nil))
}

// statusOf returns how a failed operation of the store is answered.
func statusOf(err error) packet.Status {
	var blockErr *BlockError
	if errors.As(err, &blockErr) {
		return blockErr.Status
	}
	return packet.Error
}

// expect bounds the wait for the peer to send. It fails if the server is about to
// cut the connection.
func (c *conn) expect(d time.Duration) error {
	if err := c.SetReadDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	// Shutdown ends the context first and then shortens the deadline.
	return c.server.ctx.Err()
}

// send writes b, all of it with one call.
func (c *conn) send(b []byte) error {
	timeout := c.server.cfg.WriteTimeout
	if c.server.ctx.Err() != nil {
		timeout = min(timeout, partingTime/2)
	}
	if err := c.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	_, err := c.Write(b)
	return err
}

// lingerTime is how long a peer that is still sending has to take the last
// answer.
const lingerTime = 3 * time.Second

// linger ends a connection whose peer may still be sending. A close with unread
// input would be a reset, which may overtake the answer.
func (c *conn) linger() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.Copy(io.Discard, c.Conn)
}
