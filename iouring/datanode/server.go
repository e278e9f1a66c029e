//go:build linux || darwin

package datanode

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/stripedcounter"
)

// A ServerConfig configures [NewServer]. The zero value has HDFS's defaults.
type ServerConfig struct {
	MaxPacketLen  int // bytes of PLEN + HLEN; 0 means packet.MaxPacketLen, more is cut to what the store's arena takes
	MaxRequestLen int // bytes; 0 means packet.DefaultMaxRequestLen

	// MaxConns bounds the connections at a time. A further one takes the place of
	// that which waits for a request for the longest time, if any does, and is
	// closed at once otherwise. 0 means 4096, or half of what the process may have
	// open.
	MaxConns int

	// MaxPeerConns bounds those from one IP address in the same way, and those over
	// unix sockets. 0 means three quarters of MaxConns.
	MaxPeerConns int

	// MaxPeerMemory bounds the memory in bytes that packets from one IP address
	// take, and those over unix sockets; one packet at a time may be longer. 0 means
	// three quarters of the store's arena.
	MaxPeerMemory int64

	// Workers bounds how many reads are worked on at a time: it bounds the memory
	// they take, and the threads, however many clients there are. A client that does
	// not take what it asked for does not count. 0 means 64.
	Workers int

	// VerifyReads checks what is read before it is sent. Otherwise it is for the
	// client to do that.
	VerifyReads bool

	// ReadTimeout bounds the wait for a connection's first request, for the next
	// packet, which may be a heartbeat, and for the rest of one. 0 means 60 s.
	//
	// When memory is short, packets get it only after they have begun to come, and
	// have to come at 16 MiB/s after the first second. Those that had it before are
	// given as long.
	ReadTimeout time.Duration

	// KeepAlive bounds the wait for a further request. 0 means 4 s.
	KeepAlive time.Duration

	// WriteTimeout bounds the wait for a peer to take a packet or an ack. 0 means
	// 480 s.
	WriteTimeout time.Duration

	// Dial connects to another datanode, for pipelines and copies. nil means TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// Logger is told of refused requests, malformed input and failures. If it is
	// nil nothing is logged.
	Logger *slog.Logger
}

// The counters of Server.Stats.
const (
	statConns = iota
	statConnsRefused
	statConnsEvicted
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
	"connections", "connections_refused", "connections_evicted",
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

	workers     chan struct{} // one in it for every read that is worked on
	large       budget        // of the arena for long packets that have not come yet, while memory is short
	sendFilesTo func(net.Addr) bool

	ctx    context.Context // ends when connections are cut
	cancel context.CancelFunc

	closing atomic.Bool
	hurried atomic.Int64 // when slow senders were last hurried, in Unix nanoseconds

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	remotes   map[string]*remote
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
		if all, err := maxFiles(); err == nil {
			cfg.MaxConns = max(min(cfg.MaxConns, all/2), 1)
		}
	}
	if cfg.MaxPeerConns <= 0 {
		cfg.MaxPeerConns = (3*cfg.MaxConns + 3) / 4
	}
	if cfg.MaxPeerMemory <= 0 {
		cfg.MaxPeerMemory = store.arena.Bytes() / 4 * 3
	}
	if cfg.MaxRequestLen <= 0 {
		cfg.MaxRequestLen = packet.DefaultMaxRequestLen
	}
	if cfg.MaxPacketLen <= 0 {
		cfg.MaxPacketLen = packet.MaxPacketLen
	}
	cfg.MaxPacketLen = min(cfg.MaxPacketLen, store.arena.MaxBuffer())
	if cfg.Workers <= 0 {
		cfg.Workers = 64
	}
	if cfg.Dial == nil {
		cfg.Dial = dialTCP
	}
	s := &Server{
		store: store, cfg: cfg, log: cfg.Logger,
		stats:   stripedcounter.NewSet(serverStats...),
		workers: make(chan struct{}, cfg.Workers), sendFilesTo: sendFilesTo,
		large:     budget{limit: store.arena.Bytes() / 4},
		listeners: map[net.Listener]struct{}{},
		conns:     map[*conn]struct{}{},
		remotes:   map[string]*remote{},
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
	if s.closing.Load() {
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
		if s.closing.Load() {
			return nil
		}
		if !outOfResources(err) {
			return err
		}
		if (errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)) && s.store.files.Evict(evictFiles) > 0 {
			continue
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
	c := &conn{server: s, Conn: nc}
	c.idle.Store(time.Now().UnixNano())
	c.out.init(nc, s.sendFilesTo(nc.RemoteAddr()))
	s.mu.Lock()
	if !s.closing.Load() && (len(s.conns) < s.cfg.MaxConns || s.closeIdle(nil)) {
		c.remote = s.join(remoteName(nc.RemoteAddr()))
	}
	if c.remote == nil {
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
		s.forget(c)
		s.mu.Unlock()
	}()
}

// forget takes a connection out of the count. The caller holds s.mu.
func (s *Server) forget(c *conn) {
	if _, counted := s.conns[c]; counted {
		delete(s.conns, c)
		s.leave(c.remote)
	}
}

// closeIdle closes the connection that waits for a request for the longest time,
// to make room for another one: of all, or of one remote. The caller holds s.mu.
func (s *Server) closeIdle(of *remote) bool {
	var oldest *conn
	since := int64(math.MaxInt64)
	for c := range s.conns {
		if t := c.idle.Load(); t > 0 && t < since && (of == nil || of == c.remote) {
			oldest, since = c, t
		}
	}
	if oldest == nil {
		return false
	}
	s.stats.Add(statConnsEvicted, 1)
	s.forget(oldest)
	oldest.Close()
	return true
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
	s.closing.Store(true)
	for l := range s.listeners {
		l.Close()
	}
	s.mu.Unlock()
	s.each(func(c *conn) {
		if c.idle.Load() > 0 {
			c.Close()
		}
	})
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
	s.each(func(c *conn) {
		if c.writes.Load() {
			c.mu.Lock()
			_ = c.SetReadDeadline(time.Now())
			c.mu.Unlock()
		} else {
			c.Close()
		}
	})
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
	server   *Server
	in       *bufio.Reader
	out      socketOut
	remote   *remote
	patience time.Duration // for what is expected; 0 when that is on its way and the deadline is set
	writes   atomic.Bool   // it carries a WRITE_BLOCK
	idle     atomic.Int64  // since when it waits for a request, in Unix nanoseconds; 0 if it does not

	mu    sync.Mutex // what follows, and the deadline for reading
	until time.Time  // that deadline, or earlier
	body  int        // bytes of a packet that has memory and may take its time
}

// wait notes that the connection waits for a request, busy that it does not.
// Both report whether the server still wants one: Shutdown closes those that wait
// after it has said that it does not.
func (c *conn) wait() bool {
	c.idle.Store(time.Now().UnixNano())
	return !c.server.closing.Load()
}

func (c *conn) busy() bool {
	c.idle.Store(0)
	return !c.server.closing.Load()
}

// requestBuffer is the length of a connection's read buffer: a usual request
// fits, and packets, which are read past it, do not suffer from it.
const requestBuffer = 512

func (c *conn) serve() {
	s := c.server
	c.in = bufio.NewReaderSize(c, requestBuffer)
	timeout := s.cfg.ReadTimeout
	for c.wait() {
		c.expect(timeout)
		if _, err := c.in.Peek(1); err != nil || !c.busy() {
			return
		}
		c.expect(s.cfg.ReadTimeout)
		req, err := c.request()
		if err != nil {
			c.malformed(err)
			return
		}
		switch req := req.(type) {
		case *packet.WriteBlock:
			c.writes.Store(true)
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

// longRequest is from which length on the requests of a remote take turns to come,
// like long packets. Those that are usual have a few hundred bytes.
const longRequest = 64 << 10

// request reads a request.
func (c *conn) request() (any, error) {
	s := c.server
	if n := c.announced(); n > longRequest && n <= s.cfg.MaxRequestLen {
		if err := c.remote.large.take(s.ctx, int64(n)); err != nil {
			return nil, err
		}
		defer c.remote.large.give(int64(n))
		c.expect(s.pressedTime(n))
	}
	return packet.ReadRequest(c.in, s.cfg.MaxRequestLen)
}

// announced returns how long the request is going to be, or 0 if that does not
// come, or not for a request that there is.
func (c *conn) announced() int {
	for n := 2; n <= 3+binary.MaxVarintLen32; n++ {
		b, err := c.in.Peek(n)
		switch {
		case err != nil || binary.BigEndian.Uint16(b) != packet.Version:
			return 0
		case n == 3 && !slices.Contains([]byte{packet.OpWriteBlock, packet.OpReadBlock, packet.OpBlockChecksum, packet.OpTransferBlock}, b[2]):
			return 0
		case n > 3 && b[n-1] < 0x80:
			length, _ := binary.Uvarint(b[3:])
			return int(min(length, math.MaxInt32))
		}
	}
	return 0
}

// malformed counts and logs input that does not follow the protocol, unless the
// connection has just ended.
func (c *conn) malformed(err error) {
	if lost(err) || c.server.ctx.Err() != nil {
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
func (c *conn) refuse(b packet.Block, response packet.BlockOpResponse) {
	c.server.stats.Add(statRefused, 1)
	c.server.log.Warn("request refused", "peer", c.RemoteAddr(), "block", b, "status", response.Status, "reason", response.Message)
	_ = c.send(response.Append(nil))
}

// statusOf returns how a failed operation of the store is answered.
func statusOf(err error) packet.Status {
	var blockErr *BlockError
	if errors.As(err, &blockErr) {
		return blockErr.Status
	}
	return packet.Error
}

// expect bounds the wait for what the peer is to send next.
func (c *conn) expect(d time.Duration) { c.patience = d }

// Read reads from the peer. The first wait for what is expected sets the deadline
// for all of it; often there is none, because it has come with what was before.
// Read fails when the server is about to cut the connection.
func (c *conn) Read(p []byte) (int, error) {
	if err := c.await(); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// await sets the deadline for what is expected, if that is not done. One that is
// only a little earlier is left as it is.
func (c *conn) await() error {
	if c.patience == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	until := time.Now().Add(c.patience)
	if early := until.Sub(c.until); early < 0 || early > c.patience/16 {
		if err := c.SetReadDeadline(until); err != nil {
			return err
		}
		c.until = until
	}
	c.patience = 0
	// Shutdown ends the context first and then shortens the deadline.
	return c.server.ctx.Err()
}

// coming says that a packet of n bytes has memory and is on its way, or with 0
// that there is none.
func (c *conn) coming(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.body = n
}

// hurryEvery is how often slow senders are hurried at most.
const hurryEvery = 100 * time.Millisecond

// hurry bounds the time of those that got memory when there was plenty, for
// packets that have not come yet.
func (s *Server) hurry() {
	now := time.Now()
	last := s.hurried.Load()
	if now.UnixNano()-last < int64(hurryEvery) || !s.hurried.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	s.each(func(c *conn) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.body == 0 || s.ctx.Err() != nil {
			return
		}
		if until := now.Add(s.pressedTime(c.body)); c.SetReadDeadline(until) == nil {
			c.until = until
		}
		c.body = 0
	})
}

// send sends all of b, with one call if the socket takes it.
func (c *conn) send(b []byte) error {
	for {
		n, err := c.trySend(b, false)
		if err != nil || n == len(b) {
			return err
		}
		b = b[n:]
		if err := c.writable(); err != nil {
			return err
		}
	}
}

// expectToTake bounds the wait for the peer to take what is sent.
func (c *conn) expectToTake() error {
	timeout := c.server.cfg.WriteTimeout
	if c.server.ctx.Err() != nil {
		timeout = min(timeout, partingTime/2)
	}
	return c.SetWriteDeadline(time.Now().Add(timeout))
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
