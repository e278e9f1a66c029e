package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/blockpath/blockpath/crc/packet"
)

// A tap is a relay before a datanode. It takes what passes apart into messages,
// so that a check can count them, hold acks back, damage one, or cut the
// connection behind it.
type tap struct {
	listener net.Listener
	target   string
	served   sync.WaitGroup

	// change may change a message before it goes on. It is called by one
	// goroutine at a time, and must not wait.
	change func(*message)

	mu     sync.Mutex
	moved  sync.Cond
	seen   traffic
	hold   int // acks wait until so many packets have been under way
	closed bool
	err    error
	conns  []net.Conn
}

// traffic is what has passed a tap.
type traffic struct {
	requests   int
	packets    int // with data, or to sync or to end a block
	heartbeats int
	syncs      int   // packets that ask for one
	longest    int   // bytes of a packet
	acks       int   // of packets
	beats      int   // acks of heartbeats
	refused    int   // acks that are no success
	replies    int   // of the last ack
	underWay   int   // packets that are not acked
	most       int   // packets that have been under way together
	acked      int64 // longest length of a block with an acked packet
}

// A messageKind says what a message is.
type messageKind int

// The messages that a client sends, and those that a datanode sends.
const (
	requestMessage messageKind = iota
	writtenPacket
	statusMessage
	responseMessage
	ackMessage
	readPacket
)

// A message is what passes in one piece.
type message struct {
	kind   messageKind
	index  int           // among those of its kind on the connection
	bytes  []byte        // what goes on
	header packet.Header // of a packet
	last   bool          // an ack, of the last packet of a block
	cut    bool          // behind the message the connection ends
}

// body returns the checksums and the data of a packet.
func (m *message) body() []byte { return m.bytes[6+m.headerLen():] }

func (m *message) headerLen() int { return int(binary.BigEndian.Uint16(m.bytes[4:])) }

// setHeader replaces the header of a packet, and keeps its PLEN.
func (m *message) setHeader(h packet.Header) {
	plen, body := m.bytes[:4], m.body()
	b := h.Append(nil, 0)
	copy(b, plen)
	m.bytes = append(b, body...)
}

// startTap starts a relay to the datanode at target.
func startTap(target string) (*tap, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &tap{listener: l, target: target}
	p.moved.L = &p.mu
	p.served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.served.Go(func() { p.serve(conn) })
		}
	})
	return p, nil
}

// close cuts all connections, and returns an error if something passed that is
// no message of the protocol.
func (p *tap) close() error {
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for _, c := range p.conns {
		c.Close()
	}
	p.moved.Broadcast()
	p.mu.Unlock()
	p.served.Wait()
	return p.err
}

// address is where the tap listens.
func (p *tap) address() string { return p.listener.Addr().String() }

// holdUntil holds acks back until so many packets are under way.
func (p *tap) holdUntil(packets int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = packets
}

// before returns the datanode d as it is reached through the tap.
func (p *tap) before(d packet.DatanodeInfo) packet.DatanodeInfo {
	at := p.listener.Addr().(*net.TCPAddr)
	d.IPAddr, d.XferPort = at.IP.String(), uint32(at.Port)
	return d
}

// traffic returns what has passed so far.
func (p *tap) traffic() traffic {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// wait waits until what has passed is enough.
func (p *tap) wait(enough func(traffic) bool) error {
	late := false
	timer := time.AfterFunc(patience, func() {
		p.mu.Lock()
		late = true
		p.moved.Broadcast()
		p.mu.Unlock()
	})
	defer timer.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for !enough(p.seen) {
		if late || p.closed {
			return fmt.Errorf("waited in vain, what has passed is %+v", p.seen)
		}
		p.moved.Wait()
	}
	return nil
}

// A tapped connection is one that goes through a tap.
type tapped struct {
	*tap
	ops chan byte // of requests, for the other direction

	// of both directions, guarded by tap.mu
	ends  map[int64]int64 // block length with a packet, by sequence number
	last  int64           // sequence number of a block's last packet
	count [readPacket + 1]int
}

func (p *tap) serve(client net.Conn) {
	defer client.Close()
	node, err := net.Dial("tcp", p.target)
	if err != nil {
		return // as if the datanode itself had refused the connection
	}
	defer node.Close()
	p.mu.Lock()
	p.conns = append(p.conns, client, node)
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return
	}
	c := &tapped{tap: p, ops: make(chan byte, 1), ends: map[int64]int64{}, last: packet.UnknownSeqno}
	var up sync.WaitGroup
	up.Go(func() {
		defer close(c.ops)
		c.relay(node, client, c.fromClient)
		// What else is sent nobody takes. If it were left, the client would be told
		// so, and might not read what the datanode has said.
		io.Copy(io.Discard, client)
	})
	c.relay(client, node, c.fromNode)
	node.Close()
	client.SetReadDeadline(time.Now().Add(patience))
	up.Wait()
}

// A flow is one direction of a connection.
type flow struct {
	in  *bufio.Reader
	to  net.Conn
	got []byte // what has come of a message
}

var errCut = errors.New("cut")

// relay passes on what messages takes from the stream, and then its end.
func (c *tapped) relay(to, from net.Conn, messages func(*flow) error) {
	s := &flow{in: bufio.NewReader(from), to: to}
	err := messages(s)
	if errors.Is(err, errCut) {
		from.Close()
		to.Close()
		return
	}
	to.Write(s.got) // a piece of a message
	to.(*net.TCPConn).CloseWrite()
	var broken *packet.FormatError
	if errors.As(err, &broken) {
		c.mu.Lock()
		c.err = errors.Join(c.err, err)
		c.mu.Unlock()
	}
}

// take reads n more bytes of a message.
func (s *flow) take(n int) error {
	at := len(s.got)
	s.got = append(s.got, make([]byte, n)...)
	n, err := io.ReadFull(s.in, s.got[at:])
	s.got = s.got[:at+n]
	return err
}

// delimited reads a message with its length before it.
func (s *flow) delimited() error {
	n := 0
	for shift := 0; ; shift += 7 {
		if err := s.take(1); err != nil {
			return err
		}
		b := s.got[len(s.got)-1]
		n |= int(b&127) << shift
		if b < 128 {
			return s.take(n)
		}
		if shift > 21 {
			return &packet.FormatError{What: "length of a message"}
		}
	}
}

// packet reads a packet.
func (s *flow) packet() (packet.Header, error) {
	if err := s.take(6); err != nil {
		return packet.Header{}, err
	}
	plen, hlen := int32(binary.BigEndian.Uint32(s.got)), int16(binary.BigEndian.Uint16(s.got[4:]))
	if plen < 4 || hlen < 0 || plen > packet.MaxPacketLen {
		return packet.Header{}, &packet.FormatError{What: "length of a packet"}
	}
	if err := s.take(int(plen) - 4 + int(hlen)); err != nil {
		return packet.Header{}, err
	}
	return packet.ParseHeader(s.got[6 : 6+hlen])
}

func (c *tapped) fromClient(s *flow) error {
	for {
		if err := s.take(3); err != nil {
			return err
		}
		op := s.got[2]
		if err := s.delimited(); err != nil {
			return err
		}
		c.ops <- op
		if err := c.pass(s, &message{kind: requestMessage}); err != nil {
			return err
		}
		switch op {
		case packet.OpWriteBlock:
			for {
				h, err := s.packet()
				if err != nil {
					return err
				}
				if err := c.pass(s, &message{kind: writtenPacket, header: h}); err != nil {
					return err
				}
			}
		case packet.OpReadBlock:
			if err := s.delimited(); err != nil {
				return err
			}
			if err := c.pass(s, &message{kind: statusMessage}); err != nil {
				return err
			}
		}
	}
}

func (c *tapped) fromNode(s *flow) error {
	for op := range c.ops {
		if err := s.delimited(); err != nil {
			return err
		}
		if err := c.pass(s, &message{kind: responseMessage}); err != nil {
			return err
		}
		switch op {
		case packet.OpWriteBlock:
			for {
				if err := s.delimited(); err != nil {
					return err
				}
				if err := c.pass(s, &message{kind: ackMessage}); err != nil {
					return err
				}
			}
		case packet.OpReadBlock:
			for last := false; !last; {
				h, err := s.packet()
				if err != nil {
					return err
				}
				last = h.Last
				if err := c.pass(s, &message{kind: readPacket, header: h}); err != nil {
					return err
				}
			}
		}
	}
	return io.EOF
}

// pass counts the message that has come and sends it on, changed if it is to be.
func (c *tapped) pass(s *flow, m *message) error {
	var a packet.Ack
	if m.kind == ackMessage {
		var err error
		if a, err = packet.ReadAck(bufio.NewReader(bytes.NewReader(s.got))); err != nil {
			return err
		}
	}
	c.mu.Lock()
	m.bytes = s.got
	m.index = c.count[m.kind]
	c.count[m.kind]++
	switch m.kind {
	case requestMessage:
		c.seen.requests++
	case writtenPacket:
		c.sent(m)
	case ackMessage:
		for c.seen.most < c.hold && !c.closed {
			c.moved.Wait()
		}
		m.last = a.Seqno == c.last
		c.acked(&a)
	}
	if c.change != nil {
		c.change(m)
	}
	c.moved.Broadcast()
	c.mu.Unlock()
	s.got = nil
	if _, err := s.to.Write(m.bytes); err != nil {
		return err
	}
	if m.cut {
		return errCut
	}
	return nil
}

// sent counts a packet to the datanode; c.mu is held.
func (c *tapped) sent(m *message) {
	h := m.header
	if h.Seqno == packet.HeartbeatSeqno {
		c.seen.heartbeats++
		return
	}
	c.seen.packets++
	if h.Sync {
		c.seen.syncs++
	}
	c.seen.longest = max(c.seen.longest, len(m.bytes))
	c.seen.underWay++
	c.seen.most = max(c.seen.most, c.seen.underWay)
	if h.Last {
		c.last = h.Seqno
	}
	c.ends[h.Seqno] = h.Offset + int64(h.DataLen)
}

// acked counts an ack; c.mu is held.
func (c *tapped) acked(a *packet.Ack) {
	c.seen.replies = a.Nodes()
	for i := range a.Nodes() {
		if a.Status(i) != packet.Success {
			c.seen.refused++
			return
		}
	}
	if a.Seqno == packet.HeartbeatSeqno {
		c.seen.beats++
		return
	}
	c.seen.acks++
	c.seen.underWay--
	c.seen.acked = max(c.seen.acked, c.ends[a.Seqno])
}
