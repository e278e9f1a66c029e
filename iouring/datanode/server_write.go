//go:build linux || darwin

package datanode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring"
)

// write carries out a WRITE_BLOCK. The connection is of no further use.
//
// There are three kinds. A client opens the block and streams: each packet is
// acknowledged. A datanode sends a copy, and hears nothing. A datanode sends a
// copy because a client has told it to, a transfer, and hears how it ended.
func (c *conn) write(req *packet.WriteBlock) {
	transfer := req.Stage == packet.TransferRBW || req.Stage == packet.TransferFinalized
	session := &writeSession{
		conn: c, ctx: c.server.ctx, disk: context.WithoutCancel(c.server.ctx),
		in:     packet.NewReceiver(c.in, c.server.cfg.MaxPacketLen),
		req:    req,
		copies: req.ClientName == "" || transfer, transfer: transfer && req.ClientName != "",
	}
	session.changed.L = &session.mu
	w, err := session.open()
	if err != nil {
		c.refuse(req.Block, packet.BlockOpResponse{
			Status: statusOf(err), Message: err.Error(), HasFirstBadLink: true, FirstBadLink: c.linkOf(req),
		})
		if session.copies {
			c.linger()
		}
		return
	}
	session.w = w
	response := packet.BlockOpResponse{HasFirstBadLink: true}
	if len(req.Targets) > 0 {
		m, refusal := c.server.connect(session.ctx, req)
		if m != nil {
			defer m.Close()
			session.mirror = m
		} else if !session.copies {
			response = *refusal
		}
	}
	if w == nil {
		_ = c.send(response.Append(nil))
		return
	}
	if response.Status != packet.Success {
		c.server.stats.Add(statRefused, 1)
		if req.Stage == packet.SetupCreate {
			session.end(w.Discard())
		} else {
			session.end(w.Abort(session.disk))
		}
		_ = c.send(response.Append(nil))
		return
	}
	if req.Caching.DropBehind != nil {
		if err := w.DropBehind(*req.Caching.DropBehind); err != nil {
			c.server.log.Warn("no direct writes", "block", req.Block, "error", err)
		}
	}
	w.NotifyStop(session.cut)
	if !session.copies {
		err = c.send(response.Append(nil))
	}
	if err == nil {
		err = session.run()
	}
	if err != nil {
		session.fail(err)
		// What was accepted stays, whatever became of the connection.
		session.end(w.Abort(session.disk))
	}
	session.join()
	session.under = 0
	session.settle()
	if session.answered {
		c.linger()
	}
}

// linkOf returns how the node before this one in a pipeline reaches it: behind a
// datanode of Hadoop's, which passes an answer on as it is, the client would
// blame the first node if none were named. It is "" for the first node.
func (c *conn) linkOf(req *packet.WriteBlock) string {
	a, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok || int64(req.PipelineSize) <= int64(len(req.Targets))+1 {
		return ""
	}
	return a.String()
}

// A writeSession receives the packets of one block.
type writeSession struct {
	conn     *conn
	req      *packet.WriteBlock
	copies   bool // the sender is a datanode: there are no acks
	transfer bool // and it waits for the outcome
	w        *BlockWriter
	ctx      context.Context // ends when the server is about to cut the connection
	disk     context.Context // does not: what has begun is completed
	in       *packet.Receiver

	current  int64 // the packet being dealt with
	length   int64 // of the block, with it
	answered bool  // the sender was told of a failure
	buf      []byte
	taken    int64 // bytes of the remote's memory
	under    int64 // of them for the packet under way
	turn     int64 // bytes of the memory for long packets

	mirror    *mirror // the next node of the pipeline, or nil
	responded chan struct{}

	mu      sync.Mutex // what follows, and sending acks
	changed sync.Cond
	pending []pendingAck // in the order of the packets
	done    int          // so many of them are dealt with here
	lost    bool         // the mirror is: nothing comes from it any more
	last    *packet.Ack  // what the mirror says of the last packet
	stopped error        // why the session is over, if it is
	acks    []byte       // as they are sent
	ownAck  packet.Ack
}

// A pendingAck is a packet that is not acknowledged yet: it is dealt with when
// the block is in the files up to where it ends with that packet.
type pendingAck struct {
	seqno, end int64
	last       bool
	forwarded  time.Time
}

// open makes the writer that the request asks for; none if it asks for no more
// than the end of a block.
func (s *writeSession) open() (*BlockWriter, error) {
	store, req := s.conn.server.store, s.req
	refuse := func(status packet.Status, reason string, err error) (*BlockWriter, error) {
		return nil, store.refuse("write", req.Block, status, reason, err)
	}
	chunks, err := req.Checksum.Chunks()
	if err != nil {
		return refuse(packet.ErrorUnsupported, "invalid checksum", err)
	}
	if s.transfer && len(req.Targets) > 0 {
		return refuse(packet.ErrorUnsupported, fmt.Sprintf("%s to several nodes", req.Stage), nil)
	}
	if s.copies {
		return store.Copy(s.ctx, req.Block, chunks, s.transfer)
	}
	switch req.Stage {
	case packet.SetupCreate:
		return store.Create(s.ctx, req.Block, chunks)
	case packet.SetupAppend:
		return store.Append(s.ctx, req.Block, req.LatestStamp, req.MinBytesRcvd, chunks)
	case packet.SetupAppendRecovery:
		return store.RecoverAppend(s.ctx, req.Block, req.LatestStamp, req.MinBytesRcvd, chunks)
	case packet.SetupStreamingRecovery:
		return store.Recover(s.ctx, req.Block, req.LatestStamp, req.MinBytesRcvd, req.MaxBytesRcvd, chunks)
	case packet.PipelineCloseRecovery:
		return nil, store.RecoverClose(s.ctx, req.Block, req.LatestStamp, req.MinBytesRcvd)
	}
	return refuse(packet.ErrorUnsupported, fmt.Sprintf("stage %s", req.Stage), nil)
}

// ended is a context that has ended, for taking memory only if there is some.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// run receives packets up to the last one. Packets gather in the writer as long
// as the sender has more in flight; they are acknowledged when they are written,
// and the nodes behind have acknowledged them.
func (s *writeSession) run() error {
	s.length = s.w.Visible()
	if s.mirror != nil && !s.copies {
		// The last node verifies, and whoever stores other checksums than it gets.
		if s.w.wire.Kind == s.w.disk.Kind {
			s.w.relay()
		}
		s.responded = make(chan struct{})
		go s.respond()
	}
	for {
		s.conn.expect(s.conn.server.cfg.ReadTimeout)
		h, sumsLen, err := s.in.Next()
		if err != nil {
			return err
		}
		s.current = h.Seqno
		if err := s.receive(h, sumsLen); err != nil {
			return err
		}
		switch {
		case h.Last:
			return s.finish(h.Sync)
		case h.Sync:
			err = s.w.Sync(s.disk)
		case s.in.Buffered() == 0 || s.conn.server.pressed(s.conn.remote, 0):
			err = s.w.Flush(s.disk)
		}
		s.settle()
		if err == nil {
			err = s.ack()
		}
		if err != nil {
			return err
		}
	}
}

// receive reads the body of a packet into memory, passes it on, and gives it to
// the writer.
func (s *writeSession) receive(h packet.Header, sumsLen int) error {
	if err := s.w.Check(h, sumsLen); err != nil {
		return err
	}
	room := 0 // for the header, with which the mirror gets it
	if s.mirror != nil {
		room = packet.MaxHeaderLen
	}
	s.length = max(s.length, h.Offset+int64(h.DataLen))
	if h.DataLen == 0 {
		s.buf = slices.Grow(s.buf[:0], room+sumsLen)[:room+sumsLen]
		if _, _, err := s.in.Body(s.buf[room:]); err != nil {
			return err
		}
		s.forward(h, sumsLen, s.buf)
		return s.accept(h, sumsLen, iouring.Buffer{})
	}
	buf, err := s.memory(room + s.w.BufferLen(h, sumsLen))
	if err != nil {
		s.came()
		return err
	}
	body := buf.Slice(room, buf.Len())
	_, _, err = s.in.Body(body.Bytes())
	s.came()
	if err != nil {
		return errors.Join(err, buf.Release())
	}
	s.forward(h, sumsLen, buf.Bytes())
	return s.accept(h, sumsLen, body)
}

// accept gives a packet to the writer. One that it does not take is not to be
// acknowledged.
func (s *writeSession) accept(h packet.Header, sumsLen int, buf iouring.Buffer) error {
	err := s.w.WritePacket(s.disk, h, sumsLen, buf)
	s.under = 0
	s.settle()
	if err != nil && !s.copies {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.pending = s.pending[:len(s.pending)-1]
	}
	return err
}

// pressed reports whether half of the arena would be in use with n bytes more, or
// half of what a remote may have of it. Then memory is for packets that are on
// their way: peers that announce packets and do not send them cannot take all of
// it from the others.
func (s *Server) pressed(r *remote, n int) bool {
	used := s.store.arena.InUse()
	return used > 0 && used+int64(n) > s.store.arena.Bytes()/2 || r.memory.pressed(int64(n))
}

// longPacket is from which length on packets take turns to come when memory is
// short, so that short ones do not wait for them: those of a remote first, then
// those of all.
const longPacket = 1 << 20

// pressedTime is how long a packet that has memory may take to come when memory
// is short.
func (s *Server) pressedTime(n int) time.Duration {
	return min(time.Second+time.Duration(n)*time.Second/(16<<20), s.cfg.ReadTimeout)
}

// memory takes a buffer for a packet. A stream that has to wait for it first
// writes what it has gathered, so that no two streams wait for each other.
func (s *writeSession) memory(n int) (iouring.Buffer, error) {
	server, arena, remote := s.conn.server, s.conn.server.store.arena, s.conn.remote
	if n > arena.MaxBuffer() {
		return arena.Get(s.ctx, n)
	}
	missing := s.in.Missing()
	if (missing == 0 || !server.pressed(remote, n)) && remote.memory.tryTake(int64(n)) {
		buf, err := arena.Get(ended, n)
		if err == nil {
			s.take(n)
			s.conn.coming(missing)
			return buf, nil
		}
		remote.memory.give(int64(n))
	}
	server.hurry()
	if err := s.w.Flush(s.disk); err != nil {
		return iouring.Buffer{}, err
	}
	s.settle()
	if err := s.ack(); err != nil {
		return iouring.Buffer{}, err
	}
	if missing > 0 {
		in := s.conn.in
		s.conn.expect(server.cfg.ReadTimeout)
		if _, err := in.Peek(min(in.Buffered()+missing, requestBuffer)); err != nil {
			return iouring.Buffer{}, err
		}
		if n > longPacket {
			if err := remote.large.take(s.ctx, int64(n)); err != nil {
				return iouring.Buffer{}, err
			}
			if err := server.large.take(s.ctx, int64(n)); err != nil {
				remote.large.give(int64(n))
				return iouring.Buffer{}, err
			}
			s.turn = int64(n)
		}
	}
	if err := remote.memory.take(s.ctx, int64(n)); err != nil {
		return iouring.Buffer{}, err
	}
	s.take(n)
	buf, err := arena.Get(s.ctx, n)
	s.conn.expect(server.pressedTime(missing))
	return buf, err
}

// take notes that n bytes of the remote's memory were taken for a packet.
func (s *writeSession) take(n int) {
	s.taken += int64(n)
	s.under = int64(n)
}

// came ends the wait for the body of a packet, in whatever way.
func (s *writeSession) came() {
	s.conn.coming(0)
	if s.turn > 0 {
		s.conn.server.large.give(s.turn)
		s.conn.remote.large.give(s.turn)
		s.turn = 0
	}
}

// settle gives back the memory of packets that have been written, if all have
// been but the one under way.
func (s *writeSession) settle() {
	if s.taken > s.under && !s.w.gathers() {
		s.conn.remote.memory.give(s.taken - s.under)
		s.taken = s.under
	}
}

// forward notes that a packet is under way, and passes it on if there is a
// mirror: b has room for the header, then the checksums and the data. A mirror
// that does not take it is lost, which is for the acks to say.
func (s *writeSession) forward(h packet.Header, sumsLen int, b []byte) {
	if s.copies && s.mirror == nil {
		return
	}
	s.mu.Lock()
	if !s.copies {
		s.pending = append(s.pending, pendingAck{seqno: h.Seqno, end: s.length, last: h.Last, forwarded: time.Now()})
	}
	lost := s.mirror == nil || s.lost
	if !lost && !s.copies {
		s.mirror.sending()
	}
	s.mu.Unlock()
	if lost {
		return
	}
	if err := s.mirror.send(frame(b, h, sumsLen), s.yield); err != nil {
		s.lose(err)
	}
}

// frame puts a header before the checksums and the data that follow the first
// MaxHeaderLen bytes of b, and returns the packet.
func frame(b []byte, h packet.Header, sumsLen int) []byte {
	var header [packet.MaxHeaderLen]byte
	encoded := h.Append(header[:0], sumsLen)
	b = b[packet.MaxHeaderLen-len(encoded) : packet.MaxHeaderLen+sumsLen+h.DataLen]
	copy(b, encoded)
	return b
}

// yield gives back the memory that has gathered before a wait for the mirror.
func (s *writeSession) yield() {
	if s.w.Flush(s.disk) == nil { // an error stays with the writer
		s.settle()
		_ = s.ack() // and one of the connection shows when it is read from
	}
}

// lose notes that the mirror is of no use any more.
func (s *writeSession) lose(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loseLocked(err)
}

func (s *writeSession) loseLocked(err error) {
	if s.lost {
		return
	}
	s.lost = true
	s.mirror.Close()
	if s.stopped == nil && s.ctx.Err() == nil {
		s.conn.server.stats.Add(statMirrorsLost, 1)
		s.conn.server.log.Warn("the next node of the pipeline is lost", "block", s.req.Block, "node", s.mirror.name, "error", err)
	}
	s.changed.Broadcast()
	if s.sendLocked() != nil {
		s.conn.Close()
	}
}

// ack acknowledges what of the pending packets has been written, as far as that
// does not depend on the mirror.
func (s *writeSession) ack() error {
	written := s.w.Written()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.done < len(s.pending) && s.pending[s.done].end <= written {
		s.done++
	}
	if s.mirror != nil && !s.lost {
		s.changed.Broadcast()
		return nil
	}
	return s.sendLocked()
}

// sendLocked acknowledges the packets that are dealt with here, when there is
// nobody else to wait for.
func (s *writeSession) sendLocked() error {
	if s.done == 0 || s.mirror != nil && s.ctx.Err() != nil {
		return nil // the mirror was let go of by this node
	}
	s.acks = s.acks[:0]
	for _, p := range s.pending[:s.done] {
		s.acks = s.own(p.seqno, packet.Success).Append(s.acks)
	}
	n := s.done
	s.pending, s.done = slices.Delete(s.pending, 0, n), 0
	s.conn.server.stats.Add(statAcks, int64(n))
	return s.conn.send(s.acks)
}

// sendAck sends one ack. The caller holds s.mu.
func (s *writeSession) sendAck(ack *packet.Ack) error {
	s.acks = ack.Append(s.acks[:0])
	return s.conn.send(s.acks)
}

// own returns an ack without what the mirror says of the packet, good until the
// next call. The caller holds s.mu.
func (s *writeSession) own(seqno int64, status packet.Status) *packet.Ack {
	ack := &s.ownAck
	ack.Seqno, ack.Replies, ack.Flags = seqno, append(ack.Replies[:0], status), append(ack.Flags[:0], uint32(status))
	if s.lost {
		ack.Replies, ack.Flags = append(ack.Replies, packet.Error), append(ack.Flags, uint32(packet.Error))
	}
	return ack
}

// respond combines what the mirror acknowledges with what has been done here,
// packet by packet, until the last packet or until the mirror is lost.
func (s *writeSession) respond() {
	defer close(s.responded)
	for {
		ack, err := packet.ReadAck(s.mirror.in)
		s.mu.Lock()
		if err == nil {
			err = s.combine(&ack)
		}
		if err != nil {
			s.loseLocked(err)
		}
		done := s.lost || s.last != nil || s.stopped != nil
		s.mu.Unlock()
		if done {
			return
		}
	}
}

// combine takes an ack of the mirror. The caller holds s.mu. The error is the
// mirror's fault.
func (s *writeSession) combine(ack *packet.Ack) error {
	ack.Replies, ack.Flags = s.combined(ack)
	if ack.Seqno == packet.UnknownSeqno { // out of band
		_ = s.sendAck(ack)
		return nil
	}
	if len(s.pending) == 0 || s.pending[0].seqno != ack.Seqno {
		return fmt.Errorf("datanode: it acknowledges packet %d out of turn", ack.Seqno)
	}
	head := s.pending[0]
	s.mirror.acknowledged()
	if ack.Status(1) == packet.ErrorChecksum {
		// What was verified there is what came from here. This node takes itself out
		// of the pipeline, since it is the one before that noticed nothing.
		s.stop(errCorrupted)
		return nil
	}
	ack.DownstreamNanos = uint64(max(time.Since(head.forwarded), 0))
	if head.last {
		s.last = ack
		s.changed.Broadcast()
		return nil
	}
	for s.done == 0 && s.stopped == nil && !s.lost {
		s.changed.Wait()
	}
	if s.stopped != nil || s.lost {
		return nil
	}
	if accepted(ack) {
		s.w.publish(head.end)
	}
	s.pending, s.done = slices.Delete(s.pending, 0, 1), s.done-1
	s.conn.server.stats.Add(statAcks, 1)
	if err := s.sendAck(ack); err != nil {
		s.stop(err)
	}
	return nil
}

// stop ends the session from the responder's side. The caller holds s.mu.
func (s *writeSession) stop(err error) {
	s.stopped = err
	s.changed.Broadcast()
	s.conn.Close()
}

// combined puts this node's success before what the nodes behind say.
func (s *writeSession) combined(ack *packet.Ack) ([]packet.Status, []uint32) {
	replies, flags := []packet.Status{packet.Success}, []uint32{uint32(packet.Success)}
	for i := range ack.Nodes() {
		status := ack.Status(i)
		replies = append(replies, status)
		if i < len(ack.Flags) {
			flags = append(flags, ack.Flags[i])
		} else {
			flags = append(flags, uint32(status))
		}
	}
	return replies, flags
}

// accepted reports whether all nodes have accepted a packet.
func accepted(ack *packet.Ack) bool {
	for i := range ack.Nodes() {
		if ack.Status(i) != packet.Success {
			return false
		}
	}
	return true
}

// finish ends the block after its last packet.
func (s *writeSession) finish(sync bool) error {
	if s.copies {
		return s.finishCopy(sync)
	}
	flush := s.w.Flush
	if sync {
		flush = s.w.Sync
	}
	err := flush(s.disk)
	if err == nil {
		err = s.await()
	}
	if err != nil {
		return err
	}
	if err := s.w.Finalize(s.disk, sync); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ack := s.last
	if ack == nil {
		ack = s.own(s.current, packet.Success)
	}
	s.pending, s.done = nil, 0
	s.conn.server.stats.Add(statAcks, 1)
	return s.sendAck(ack)
}

// await acknowledges everything before the last packet, and waits until the
// mirror has said what it has to say.
func (s *writeSession) await() error {
	written := s.w.Written()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.done < len(s.pending)-1 && s.pending[s.done].end <= written {
		s.done++
	}
	if s.mirror == nil || s.lost {
		return s.sendLocked()
	}
	s.changed.Broadcast()
	for s.last == nil && !s.lost && s.stopped == nil {
		s.changed.Wait()
	}
	if s.last != nil {
		if accepted(s.last) {
			s.w.publish(s.pending[0].end)
		}
		return nil
	}
	if s.stopped != nil {
		return s.stopped
	}
	if err := s.ctx.Err(); err != nil {
		return err
	}
	return s.sendLocked()
}

// errCorrupted says that the next node has received damaged data.
var errCorrupted = errors.New("datanode: the next node of the pipeline has received damaged data")

// finishCopy ends a copy after its last packet, and tells its sender if it waits
// to hear.
func (s *writeSession) finishCopy(sync bool) error {
	if s.length != s.req.Block.NumBytes {
		return s.conn.server.store.refuse("copy", s.req.Block, packet.Error,
			fmt.Sprintf("%d bytes have come, expected %d", s.length, s.req.Block.NumBytes), nil)
	}
	var err error
	if s.req.Stage == packet.TransferRBW && s.transfer {
		err = s.w.convert(s.disk)
	} else {
		err = s.w.Finalize(s.disk, sync)
	}
	if err == nil && s.transfer {
		err = s.conn.send((&packet.BlockOpResponse{HasFirstBadLink: true}).Append(nil))
	}
	return err
}

// cut makes the session end, whatever it waits for.
func (s *writeSession) cut() {
	s.conn.Close()
	if s.mirror != nil {
		s.mirror.Close()
	}
}

// fail ends a session that err has ended: what was accepted before is written
// and acknowledged, and the packet that did not fit, if there is one, is answered
// with a status.
func (s *writeSession) fail(err error) {
	server, log := s.conn.server, s.conn.server.log
	if s.ctx.Err() != nil {
		s.farewell()
		return
	}
	s.mu.Lock()
	stopped := s.stopped
	s.mu.Unlock()
	if stopped == errCorrupted {
		server.stats.Add(statFailed, 1)
		log.Error("the next node has received damaged data", "peer", s.conn.RemoteAddr(), "block", s.req.Block, "node", s.mirror.name)
		return
	}
	if lost(err) {
		return
	}
	if flushErr := s.w.Flush(s.disk); flushErr == nil {
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
		log.Warn("damaged packet", "peer", s.conn.RemoteAddr(), "source", s.req.Source, "block", s.w.Block(), "seqno", s.current, "error", err)
	default:
		server.stats.Add(statFailed, 1)
		log.Error("write failed", "peer", s.conn.RemoteAddr(), "block", s.w.Block(), "seqno", s.current, "error", err)
	}
	if s.copies {
		if s.transfer {
			refusal := packet.BlockOpResponse{Status: status, Message: err.Error()}
			s.answered = s.conn.send(refusal.Append(nil)) == nil
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	seqno := s.current
	if status != packet.ErrorChecksum && len(s.pending) > s.done {
		seqno = s.pending[s.done].seqno // not written either
	}
	s.answered = s.sendAck(s.own(seqno, status)) == nil
}

// farewell tells a client that this node goes away and may come back, so that it
// knows what to do about it.
func (s *writeSession) farewell() {
	if s.copies || s.w.Flush(s.disk) != nil || s.ack() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ack := packet.Ack{Seqno: packet.UnknownSeqno, Replies: []packet.Status{packet.OOBRestart}, Flags: []uint32{uint32(packet.OOBRestart)}}
	s.answered = s.sendAck(&ack) == nil
}

// end logs that the writer could not be ended.
func (s *writeSession) end(err error) {
	if err != nil {
		s.conn.server.log.Error("cannot abort", "block", s.w.Block(), "error", err)
	}
}

// join waits for the responder.
func (s *writeSession) join() {
	s.mu.Lock()
	if s.stopped == nil {
		s.stopped = net.ErrClosed
	}
	s.changed.Broadcast()
	s.mu.Unlock()
	if s.mirror != nil {
		s.mirror.Close()
	}
	if s.responded != nil {
		<-s.responded
	}
}
