package packet

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/blockpath/blockpath/crc"
)

// A node is a datanode in memory. It holds a writer to every rule of the
// protocol, and reassembles the block.
type node struct {
	chunks   crc.Chunks
	behave   func(n int, h Header) action
	response *BlockOpResponse // nil: success

	mu      sync.Mutex
	request *WriteBlock
	block   []byte // the block so far
	base    int64  // its length at the beginning
	synced  int    // length at the last sync
	final   bool
	headers []Header
	err     error
	acked   int64
}

// An action is what a node does with a packet. The zero value acks.
type action struct {
	status Status
	drop   bool  // close the connection instead of acking
	before bool  // with drop: do not even store the packet
	seqno  int64 // added to the ack's seqno
	delay  time.Duration
	oob    bool
	ecn    uint32 // as the flag has it
}

var errRule = errors.New("rule")

func (n *node) fail(format string, args ...any) error {
	err := fmt.Errorf("%w: %s", errRule, fmt.Sprintf(format, args...))
	n.mu.Lock()
	if n.err == nil {
		n.err = err
	}
	n.mu.Unlock()
	return err
}

// serve handles one WRITE_BLOCK on conn, until its end.
func (n *node) serve(conn io.ReadWriteCloser) error {
	defer conn.Close()
	in := bufio.NewReader(conn)
	req, err := ReadRequest(in, 0)
	if err != nil {
		return err
	}
	w := req.(*WriteBlock)
	n.mu.Lock()
	first := n.request == nil
	n.request = w
	n.mu.Unlock()
	if n.response != nil {
		conn.Write(n.response.Append(nil))
		return nil
	}
	switch {
	case first:
		n.base, n.acked = w.MinBytesRcvd, w.MinBytesRcvd
		n.block = append(n.block, make([]byte, w.MinBytesRcvd-int64(len(n.block)))...)
	case w.LatestStamp <= w.Block.Stamp:
		return n.fail("recovery without a new stamp: %d after %d", w.LatestStamp, w.Block.Stamp)
	case w.MinBytesRcvd > n.acked || int64(len(n.block)) > w.MaxBytesRcvd:
		return n.fail("recovery with %d..%d, the node has %d and acked %d", w.MinBytesRcvd, w.MaxBytesRcvd, len(n.block), n.acked)
	}
	ok := BlockOpResponse{HasFirstBadLink: true}
	if _, err := conn.Write(ok.Append(nil)); err != nil {
		return err
	}
	if w.Stage == PipelineCloseRecovery {
		n.final = true
		return nil
	}
	return n.packets(conn, NewReceiver(in, 0), w)
}

func (n *node) packets(conn io.Writer, rec *Receiver, w *WriteBlock) error {
	buf := make([]byte, 1<<20)
	count := 0
	prev := Header{Seqno: -1}
	resent := w.Stage == SetupStreamingRecovery
	bpc := int64(n.chunks.BytesPerChunk())
	for {
		h, sumsLen, err := rec.Next()
		if err != nil {
			return err
		}
		if cap(buf) < sumsLen+h.DataLen+MaxHeaderLen {
			buf = make([]byte, sumsLen+h.DataLen+MaxHeaderLen)
		}
		sums, data, err := rec.Body(buf)
		if err != nil {
			return err
		}
		if h.Seqno == HeartbeatSeqno {
			n.mu.Lock()
			n.headers = append(n.headers, h)
			n.mu.Unlock()
			a := Ack{Seqno: -1, Replies: []Status{0}, Flags: []uint32{0}}
			if _, err := conn.Write(a.Append(nil)); err != nil {
				return err
			}
			continue
		}
		act := action{}
		if n.behave != nil {
			act = n.behave(count, h)
		}
		if act.drop && act.before {
			return nil
		}
		// The order of packets.
		length := int64(len(n.block))
		if count == 0 && resent {
			prev.Seqno = h.Seqno - 1
		}
		if h.Seqno != prev.Seqno+1 {
			return n.fail("seqno %d after %d", h.Seqno, prev.Seqno)
		}
		end := h.Offset + int64(h.DataLen)
		switch {
		case h.DataLen == 0 && h.Offset != length && !resent:
			return n.fail("empty packet at %d of %d", h.Offset, length)
		case h.DataLen == 0 && !h.Last && !h.Sync:
			return n.fail("an empty packet that is neither last nor sync")
		case h.DataLen == 0 && sumsLen != 0:
			return n.fail("checksums in an empty packet")
		case h.Offset > length:
			return n.fail("a gap: %d after %d", h.Offset, length)
		case end <= length && h.DataLen > 0 && !resent:
			return n.fail("nothing new in %d..%d of %d", h.Offset, end, length)
		case h.Offset < length && h.DataLen > 0 && h.Offset != length-length%bpc && !resent:
			return n.fail("the packet repeats from %d, not from the chunk's start, of %d", h.Offset, length)
		case h.Offset == length && length%bpc != 0 && h.DataLen > 0 && length >= n.base+bpc:
			return n.fail("unaligned packet at %d outside of append", h.Offset)
		case h.Offset%bpc != 0 && h.DataLen > 0 && (int64(h.DataLen) > bpc || h.Offset/bpc != (end-1)/bpc):
			return n.fail("unaligned packet %d..%d crosses a chunk", h.Offset, end)
		case end > w.Block.NumBytes:
			return n.fail("packet ends at %d, block at %d", end, w.Block.NumBytes)
		case h.Last && n.acked != length:
			return n.fail("last packet when %d of %d bytes were acked", n.acked, length)
		}
		if want := n.chunks.SumsLen(h.DataLen); sumsLen != want {
			return n.fail("%d bytes of sums, expected %d", sumsLen, want)
		}
		status := act.status
		if err := n.chunks.Verify(data, sums, h.Offset); err != nil {
			status = ErrorChecksum
		}
		if status == Success {
			if over := min(length-h.Offset, int64(h.DataLen)); over > 0 && h.Offset >= n.base && !bytes.Equal(n.block[h.Offset:h.Offset+over], data[:over]) {
				return n.fail("repeated bytes differ at %d", h.Offset)
			}
			n.mu.Lock()
			if end > length {
				n.block = append(n.block[:h.Offset], data...)
			}
			n.headers = append(n.headers, h)
			if h.Sync {
				n.synced = len(n.block)
			}
			n.final = n.final || h.Last
			n.mu.Unlock()
		}
		prev = h
		count++
		time.Sleep(act.delay)
		if act.drop {
			return nil
		}
		if act.oob {
			a := Ack{Seqno: UnknownSeqno, Replies: []Status{OOBRestart}, Flags: []uint32{8}}
			conn.Write(a.Append(nil))
			return nil
		}
		a := Ack{Seqno: h.Seqno + act.seqno, Replies: []Status{status}, Flags: []uint32{uint32(status) | act.ecn<<5}}
		if status == Success && act.seqno == 0 {
			n.mu.Lock()
			n.acked = max(n.acked, end)
			n.mu.Unlock()
		}
		if _, err := conn.Write(a.Append(nil)); err != nil {
			return err
		}
		if status != Success || h.Last {
			return nil
		}
	}
}

// A countingConn counts and checks what a writer does with its connection.
type countingConn struct {
	net.Conn
	mu     sync.Mutex
	writes [][2]int // length, and whether a whole packet
	damage func(n int, p []byte)
	cut    int // bytes after which the connection is lost; 0 means never
	short  int // bytes after which a Write takes half of what it is given
	total  int
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	whole := 0
	if rec := NewReceiver(bytes.NewReader(p), 0); len(p) > 6 {
		if h, sums, err := rec.Next(); err == nil && h.len()+sums+h.DataLen == len(p) {
			whole = 1
		}
	}
	n := len(c.writes)
	c.writes = append(c.writes, [2]int{len(p), whole})
	c.total += len(p)
	damage, cut, short := c.damage, c.cut > 0 && c.total > c.cut, c.short > 0 && c.total > c.short
	c.mu.Unlock()
	if cut {
		n, _ := c.Conn.Write(p[:len(p)/2])
		c.Conn.Close()
		return n, io.ErrClosedPipe
	}
	if short {
		return c.Conn.Write(p[:len(p)/2])
	}
	if damage != nil {
		p = bytes.Clone(p)
		damage(n, p)
	}
	return c.Conn.Write(p)
}

// dial connects to a node that serves one connection. served yields what came
// of it.
func dial(t testing.TB, kind string, serve func(io.ReadWriteCloser) error) (conn net.Conn, served chan error) {
	t.Helper()
	served = make(chan error, 1)
	if kind == "pipe" {
		a, b := net.Pipe()
		go func() { served <- serve(b) }()
		return a, served
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer l.Close()
		c, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		served <- serve(c)
	}()
	conn, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return conn, served
}

func createRequest(size int64) WriteBlock {
	b := exampleBlock()
	b.NumBytes = size
	return WriteBlock{Block: b, ClientName: "test", Stage: SetupCreate, PipelineSize: 1, StorageType: Disk}
}

// pattern returns n bytes that differ everywhere.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	x := uint32(seed) + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// buffer64k is the length of a buffer for packets of DefaultPacketSize.
const buffer64k = 576 + 126*512
