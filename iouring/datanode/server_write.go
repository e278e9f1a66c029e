//go:build linux || darwin

package datanode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring"
)

// write carries out a WRITE_BLOCK. The connection is of no further use.
func (c *conn) write(req *packet.WriteBlock) {
	w, err := c.open(req)
	if err != nil {
		c.refuse(req.Block, statusOf(err), err.Error())
		return
	}
	if w != nil && req.Caching.DropBehind != nil {
		if err := w.DropBehind(*req.Caching.DropBehind); err != nil {
			c.server.log.Warn("no direct writes", "block", req.Block, "error", err)
		}
	}
	err = c.send((&packet.BlockOpResponse{HasFirstBadLink: true}).Append(nil))
	if w == nil {
		return
	}
	w.NotifyStop(func() { c.Close() })
	session := &writeSession{conn: c, w: w, ctx: c.server.ctx, in: packet.NewReceiver(c.in, c.server.cfg.MaxPacketLen)}
	if err == nil {
		err = session.run()
	}
	if err == nil {
		return
	}
	session.fail(err)
	// What was accepted stays, whatever became of the connection.
	if err := w.Abort(context.WithoutCancel(session.ctx)); err != nil {
		c.server.log.Error("cannot abort", "block", w.Block(), "error", err)
	}
	if session.answered {
		c.linger()
	}
}

// open makes the writer that a request asks for; none if it asks for no more
// than the end of a block.
func (c *conn) open(req *packet.WriteBlock) (*BlockWriter, error) {
	s := c.server.store
	unsupported := func(reason string, err error) (*BlockWriter, error) {
		return nil, s.refuse("write", req.Block, packet.ErrorUnsupported, reason, err)
	}
	switch {
	case req.ClientName == "":
		return unsupported("copies from datanodes are not supported", nil)
	case len(req.Targets) > 0:
		return unsupported("pipelines of several nodes are not supported", nil)
	}
	chunks, err := req.Checksum.Chunks()
	if err != nil {
		return unsupported("invalid checksum", err)
	}
	ctx := c.server.ctx
	switch req.Stage {
	case packet.SetupCreate:
		return s.Create(ctx, req.Block, chunks)
	case packet.SetupAppend:
		return s.Append(ctx, req.Block, req.LatestStamp, req.MinBytesRcvd, chunks)
	case packet.SetupAppendRecovery:
		return s.RecoverAppend(ctx, req.Block, req.LatestStamp, req.MinBytesRcvd, chunks)
	case packet.SetupStreamingRecovery:
		return s.Recover(ctx, req.Block, req.LatestStamp, req.MinBytesRcvd, req.MaxBytesRcvd, chunks)
	case packet.PipelineCloseRecovery:
		return nil, s.RecoverClose(ctx, req.Block, req.LatestStamp, req.MinBytesRcvd)
	}
	return unsupported(fmt.Sprintf("stage %s", req.Stage), nil)
}

// A writeSession receives the packets of one block.
type writeSession struct {
	conn *conn
	w    *BlockWriter
	ctx  context.Context
	in   *packet.Receiver

	pending  []pendingAck
	current  int64 // the packet being dealt with
	acks     []byte
	answered bool // a failure was told in an ack
}

// A pendingAck is a packet that is not acknowledged yet: it is to be when the
// block is visible up to where it ended with that packet.
type pendingAck struct{ seqno, end int64 }

// ended is a context that has ended, for taking memory only if there is some.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// run receives packets up to the last one. Packets gather in the writer as long
// as the sender has more in flight; they are acknowledged when they are written.
func (s *writeSession) run() error {
	for {
		if err := s.conn.SetReadDeadline(time.Now().Add(s.conn.server.cfg.ReadTimeout)); err != nil {
			return err
		}
		h, sumsLen, err := s.in.Next()
		if err != nil {
			return err
		}
		s.current = h.Seqno
		if err := s.receive(h, sumsLen); err != nil {
			return err
		}
		s.pending = append(s.pending, pendingAck{h.Seqno, s.w.Visible() + s.w.Pending()})
		switch {
		case h.Last:
			err = s.w.Finalize(s.ctx, h.Sync)
		case h.Sync:
			err = s.w.Sync(s.ctx)
		case s.in.Buffered() == 0:
			err = s.w.Flush(s.ctx)
		}
		if err != nil {
			return err
		}
		if err := s.ack(); err != nil {
			return err
		}
		if h.Last {
			return nil
		}
	}
}

// receive reads the body of a packet into memory and gives it to the writer.
func (s *writeSession) receive(h packet.Header, sumsLen int) error {
	if err := s.w.Check(h, sumsLen); err != nil {
		return err
	}
	if h.DataLen == 0 {
		if _, _, err := s.in.Body(make([]byte, sumsLen)); err != nil {
			return err
		}
		return s.w.WritePacket(s.ctx, h, sumsLen, iouring.Buffer{})
	}
	buf, err := s.memory(s.w.BufferLen(h, sumsLen))
	if err != nil {
		return err
	}
	if _, _, err := s.in.Body(buf.Bytes()); err != nil {
		return errors.Join(err, buf.Release())
	}
	return s.w.WritePacket(s.ctx, h, sumsLen, buf)
}

// memory takes a buffer from the arena. A stream that has to wait for it first
// writes what it has gathered, so that no two streams wait for each other.
func (s *writeSession) memory(n int) (iouring.Buffer, error) {
	arena := s.conn.server.store.arena
	if n > arena.MaxBuffer() {
		return arena.Get(s.ctx, n)
	}
	buf, err := arena.Get(ended, n)
	if err == nil || !errors.Is(err, context.Canceled) {
		return buf, err
	}
	if err := s.w.Flush(s.ctx); err != nil {
		return iouring.Buffer{}, err
	}
	if err := s.ack(); err != nil {
		return iouring.Buffer{}, err
	}
	return arena.Get(s.ctx, n)
}

// ack acknowledges what of the pending packets has been written.
func (s *writeSession) ack() error {
	visible := s.w.Visible()
	n := 0
	s.acks = s.acks[:0]
	for n < len(s.pending) && s.pending[n].end <= visible {
		s.acks = appendAck(s.acks, s.pending[n].seqno, packet.Success)
		n++
	}
	if n == 0 {
		return nil
	}
	s.pending = slices.Delete(s.pending, 0, n)
	s.conn.server.stats.Add(statAcks, int64(n))
	return s.conn.send(s.acks)
}

func appendAck(dst []byte, seqno int64, status packet.Status) []byte {
	ack := packet.Ack{Seqno: seqno, Replies: []packet.Status{status}, Flags: []uint32{uint32(status)}}
	return ack.Append(dst)
}

// fail ends a session that err has ended: what was accepted before is written
// and acknowledged, and the packet that did not fit, if there is one, is answered
// with a status.
func (s *writeSession) fail(err error) {
	if lost(err) {
		return
	}
	server := s.conn.server
	if flushErr := s.w.Flush(s.ctx); flushErr == nil {
		if s.ack() != nil {
			return
		}
	}
	var (
		bad      *crc.MismatchError
		format   *packet.FormatError
		rejected *PacketError
	)
	status := packet.Error
	switch {
	case errors.As(err, &format):
		s.conn.malformed(err)
		return
	case errors.As(err, &rejected):
		s.conn.malformed(err)
	case errors.As(err, &bad):
		status = packet.ErrorChecksum
		server.log.Warn("damaged packet", "peer", s.conn.RemoteAddr(), "block", s.w.Block(), "seqno", s.current, "error", err)
	default:
		server.stats.Add(statFailed, 1)
		server.log.Error("write failed", "peer", s.conn.RemoteAddr(), "block", s.w.Block(), "seqno", s.current, "error", err)
	}
	seqno := s.current
	if len(s.pending) > 0 {
		seqno = s.pending[0].seqno // not written either
	}
	s.answered = s.conn.send(appendAck(nil, seqno, status)) == nil
}
