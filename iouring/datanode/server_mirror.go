//go:build linux || darwin

package datanode

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/crc/packet"
)

// A mirror is the next node of a pipeline.
type mirror struct {
	net.Conn
	name         string          // its transfer address
	raw          syscall.RawConn // nil if the connection is no socket
	in           *bufio.Reader
	writeTimeout time.Duration
	ackTimeout   time.Duration
	stop         func() bool // of closing it with the server
	closing      sync.Once

	waiting int // packets that it has not acknowledged; guarded by the session's mutex
}

// nodeTime is how much longer than its own a node's timeouts are for every node
// behind it, so that the one before a stalled node is the first to notice. With
// the default timeouts it is the 5 s of HDFS.
func (s *Server) nodeTime(nodes int) time.Duration {
	return time.Duration(nodes) * s.cfg.ReadTimeout / 12
}

// transferAddress is how a datanode is named and reached.
func transferAddress(d *packet.DatanodeInfo) string {
	return net.JoinHostPort(d.IPAddr, strconv.FormatUint(uint64(d.XferPort), 10))
}

// connect opens the rest of a pipeline: it passes the request on to the first of
// the targets. If that fails, it returns how the request is to be answered.
func (s *Server) connect(ctx context.Context, req *packet.WriteBlock) (*mirror, *packet.BlockOpResponse) {
	next := *req
	next.Targets = req.Targets[1:]
	next.StorageType, next.TargetStorageTypes = shift(req.TargetStorageTypes)
	next.StorageID, next.TargetStorageIDs = shift(req.TargetStorageIDs)
	next.Pinning, next.TargetPinnings = shift(req.TargetPinnings)
	m, err := s.dialNode(ctx, &req.Targets[0], len(req.Targets))
	var response packet.BlockOpResponse
	if err == nil {
		if _, err = m.Write(next.Append(nil)); err == nil && req.ClientName != "" {
			response, err = packet.ReadBlockOpResponse(m.in)
		}
	}
	if err == nil && response.Status == packet.Success {
		err = m.SetDeadline(time.Time{})
	}
	if err == nil && response.Status == packet.Success {
		return m, nil
	}
	name := transferAddress(&req.Targets[0])
	if m != nil {
		m.Close()
	}
	switch {
	case err != nil:
		response = packet.BlockOpResponse{Status: packet.Error, FirstBadLink: name, Message: err.Error()}
	case !slices.ContainsFunc(req.Targets, func(d packet.DatanodeInfo) bool { return transferAddress(&d) == response.FirstBadLink }):
		response.FirstBadLink = name // the client knows the node by this
	}
	response.HasFirstBadLink = true
	s.log.Warn("cannot open the rest of a pipeline", "block", req.Block, "node", name, "status", response.Status,
		"first bad link", response.FirstBadLink, "reason", response.Message)
	return nil, &response
}

// shift returns the first of the values, if there is one, and the others.
func shift[T any](values []T) (first T, rest []T) {
	if len(values) > 0 {
		first, rest = values[0], values[1:]
	}
	return first, rest
}

// dialNode connects to a datanode behind which there are nodes-1 others. The
// connection has a deadline, for what comes before the first packet, and is
// closed when the server is.
func (s *Server) dialNode(ctx context.Context, d *packet.DatanodeInfo, nodes int) (*mirror, error) {
	m := &mirror{
		name:         transferAddress(d),
		writeTimeout: s.cfg.WriteTimeout + s.nodeTime(nodes),
		ackTimeout:   s.cfg.ReadTimeout + s.nodeTime(nodes),
	}
	if net.ParseIP(d.IPAddr) == nil {
		return nil, s.store.refuse("connect", packet.Block{}, packet.ErrorInvalid, fmt.Sprintf("%q is no IP address", d.IPAddr), nil)
	}
	dialCtx, cancel := context.WithTimeout(ctx, m.ackTimeout)
	defer cancel()
	err := s.store.withFiles(func() (err error) {
		m.Conn, err = s.cfg.Dial(dialCtx, m.name)
		return err
	})
	if err != nil {
		return nil, err
	}
	m.in = bufio.NewReaderSize(m.Conn, requestBuffer)
	m.stop = context.AfterFunc(ctx, func() { m.Conn.Close() })
	if socket, ok := m.Conn.(syscall.Conn); ok {
		m.raw, err = socket.SyscallConn()
	}
	if err == nil {
		err = m.SetDeadline(time.Now().Add(m.ackTimeout))
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	d.SetMultipathTCP(false)
	return d.DialContext(ctx, "tcp", address)
}

// Close closes the connection. Closing again does nothing.
func (m *mirror) Close() (err error) {
	m.closing.Do(func() {
		m.stop()
		err = m.Conn.Close()
	})
	return err
}

// sending notes that a packet is about to be sent that has to be acknowledged.
// The caller holds the session's mutex.
func (m *mirror) sending() {
	if m.waiting++; m.waiting == 1 {
		_ = m.SetReadDeadline(time.Now().Add(m.ackTimeout)) // fails only if it is closed
	}
}

// acknowledged notes that a packet has been. The caller holds the session's
// mutex.
func (m *mirror) acknowledged() {
	var deadline time.Time
	if m.waiting--; m.waiting > 0 {
		deadline = time.Now().Add(m.ackTimeout)
	}
	_ = m.SetReadDeadline(deadline)
}

// send sends a packet, with one call if the mirror takes it at once. Before it
// waits it calls yield.
func (m *mirror) send(b []byte, yield func()) error {
	n := 0
	if m.raw != nil {
		var err error
		if n, err = trySend(m.raw, b); err != nil || n == len(b) {
			return err
		}
	}
	yield()
	if err := m.SetWriteDeadline(time.Now().Add(m.writeTimeout)); err != nil {
		return err
	}
	if _, err := m.Conn.Write(b[n:]); err != nil {
		return err
	}
	return m.SetWriteDeadline(time.Time{})
}

// trySend sends as much of b as can be sent without waiting.
func trySend(raw syscall.RawConn, b []byte) (n int, err error) {
	connErr := raw.Write(func(fd uintptr) bool {
		for {
			n, err = unix.Write(int(fd), b)
			if err != unix.EINTR {
				return true
			}
		}
	})
	switch {
	case connErr != nil:
		return 0, connErr
	case err == unix.EAGAIN:
		return 0, nil
	case err != nil:
		return 0, os.NewSyscallError("write", err)
	}
	return n, nil
}
