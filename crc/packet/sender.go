package packet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/blockpath/blockpath/crc"
)

// heartbeat is the packet that shows that the client is alive. It is the same
// bytes for all, so it needs no buffer and can always be sent.
var heartbeat = Header{Seqno: HeartbeatSeqno}.Append(nil, 0)

// run sends packets until the stream has ended, over one pipeline after
// another. It owns the connections: nobody else writes to them.
func (w *Writer) run(ctx context.Context, pipe *pipeline) {
	defer close(w.done)
	stop := context.AfterFunc(ctx, func() { w.fail(context.Cause(ctx)) })
	defer stop()
	for {
		go w.readAcks(pipe)
		err := w.send(pipe)
		pipe.conn.Close()
		<-pipe.drained
		if err == nil {
			return
		}
		if pipe, err = w.recover(err); err != nil {
			w.fail(err)
			return
		}
		if pipe == nil {
			return
		}
	}
}

// send writes queued packets, and heartbeats when there are none, until the
// last packet is acked (nil) or the stream or the pipeline has failed.
func (w *Writer) send(pipe *pipeline) error {
	interval := w.cfg.Timeout / 2
	timer := time.NewTimer(interval)
	defer timer.Stop()
	lastSent := time.Now()
	var pausing <-chan time.Time
	for {
		w.mu.Lock()
		if w.congested && pausing == nil && w.sent < w.queue.n {
			w.congested = false
			w.pause = backoff(w.pause, w.cfg.Backoff, rand.Float64())
			w.stats.Backoffs++
			pausing = time.After(w.pause)
		}
		switch {
		case w.finished:
			w.mu.Unlock()
			return nil
		case w.err != nil:
			err := w.err
			w.mu.Unlock()
			return err
		case pipe.err != nil:
			err := pipe.err
			w.mu.Unlock()
			return err
		case w.sent < w.queue.n && pausing == nil:
			p := w.queue.at(w.sent)
			lastSent = time.Now()
			if w.sent == 0 {
				w.ackedAt = lastSent
			}
			p.sentAt, p.delivered, p.ackedAt = lastSent, w.delivered, w.ackedAt
			w.sentEnd = max(w.sentEnd, p.end())
			w.sent++
			w.writing = p.header.Seqno
			wire := p.wire
			w.mu.Unlock()
			err := w.write(pipe, wire)
			w.mu.Lock()
			done := w.deferred
			w.writing, w.deferred = noPacket, Buffer{}
			w.mu.Unlock()
			if done != (Buffer{}) {
				w.release(done)
			}
			if err != nil {
				w.broken(pipe, fmt.Errorf("packet: sending: %w", err))
			}
		default:
			closing := pausing == nil && w.queue.n > 0 && w.queue.at(w.queue.n-1).header.Last
			w.mu.Unlock()
			select {
			case <-w.work:
			case <-pausing:
				pausing = nil
			case <-timer.C:
				if quiet := time.Since(lastSent); quiet < interval || closing {
					timer.Reset(max(interval-quiet, interval/8))
					continue
				}
				lastSent = time.Now()
				timer.Reset(interval)
				if err := w.write(pipe, heartbeat); err != nil {
					w.broken(pipe, fmt.Errorf("packet: sending a heartbeat: %w", err))
				}
				w.mu.Lock()
				w.stats.Heartbeats++
				w.mu.Unlock()
			}
		}
	}
}

// backoff returns how long to pause after a pause of last, as Hadoop does it:
// a random time between unit and three times the last pause, and at most ten
// units. random is in [0, 1).
func backoff(last, unit time.Duration, random float64) time.Duration {
	lo, hi := min(3*last, unit), max(3*last, unit)
	return min(lo+time.Duration(random*float64(hi-lo)), 10*unit)
}

// write sends a whole packet with one call.
func (w *Writer) write(pipe *pipeline, wire []byte) error {
	w.setWriteDeadline(pipe)
	n, err := pipe.conn.Write(wire)
	if err == nil && n < len(wire) {
		err = io.ErrShortWrite
	}
	w.mu.Lock()
	w.stats.Wire += int64(n)
	w.stats.Writes++
	w.mu.Unlock()
	return err
}

// broken notes why a pipeline has failed, if it is the first reason, and
// closes its connection, so that whoever uses it returns.
func (w *Writer) broken(pipe *pipeline, err error) {
	w.mu.Lock()
	if pipe.err == nil {
		pipe.err = err
	}
	w.mu.Unlock()
	pipe.conn.Close()
	w.signal()
}

// readAcks takes acks from a pipeline until the last packet is acked or
// something fails. However it ends, the sender hears of it.
func (w *Writer) readAcks(pipe *pipeline) {
	defer close(pipe.drained)
	var ack ackReader
	for {
		if pipe.acks.Buffered() == 0 {
			w.setReadDeadline(pipe)
		}
		err := ack.read(pipe.acks)
		if err != nil {
			w.broken(pipe, fmt.Errorf("packet: waiting for an ack: %w", truncated(err, "ack", 0, 1, 0)))
			return
		}
		last, err := w.take(&ack.Ack)
		if err != nil {
			w.broken(pipe, err)
			return
		}
		if last {
			w.signal()
			return
		}
	}
}

// take handles one ack. It reports whether that was the last packet's.
func (w *Writer) take(ack *Ack) (last bool, err error) {
	w.mu.Lock()
	// The failure nearest to the end of the pipeline is the cause of others.
	for i := ack.Nodes() - 1; i >= 0; i-- {
		if s := ack.Status(i); s != Success {
			err := w.refused(ack, i, s)
			w.mu.Unlock()
			return false, err
		}
	}
	if ack.congested() {
		w.congested = true
	} else {
		w.pause = 0
	}
	if ack.Seqno == HeartbeatSeqno {
		w.mu.Unlock()
		return false, nil
	}
	if w.sent == 0 {
		w.mu.Unlock()
		return false, malformed("ack: seqno", 0, "none, nothing is under way", fmt.Sprint(ack.Seqno))
	}
	if want := w.queue.at(0).header.Seqno; ack.Seqno != want {
		w.mu.Unlock()
		return false, malformed("ack: seqno", 0, fmt.Sprint(want), fmt.Sprint(ack.Seqno))
	}
	now := time.Now()
	p := w.queue.pop()
	w.sent--
	w.inFlight -= int64(len(p.wire))
	w.delivered += int64(len(p.wire))
	w.acked = max(w.acked, p.end())
	w.ackedSeqno = ack.Seqno
	w.finished = p.header.Last
	w.stats.Acks++
	w.publish()
	w.stream.acked(w.delivered-p.delivered, now.Sub(p.ackedAt), now.Sub(p.sentAt))
	w.ackedAt = now
	waiters := w.waiters[:0]
	for _, a := range w.waiters {
		if a.seqno <= ack.Seqno {
			a.wake()
		} else {
			waiters = append(waiters, a)
		}
	}
	w.waiters = waiters
	if w.roomFor > 0 && w.stream.room(w.inFlight, w.roomFor) {
		w.wakeRoom()
	}
	// The peer may ack before the call that sends the packet has returned. Then
	// the sender releases the buffer.
	release := p.buf != (Buffer{})
	if release && w.writing == ack.Seqno {
		w.deferred, release = p.buf, false
	}
	w.mu.Unlock()
	if release {
		w.release(p.buf)
	}
	return p.header.Last, nil
}

// refused describes what node i says about a packet; w.mu is held.
func (w *Writer) refused(ack *Ack, i int, s Status) error {
	e := &AckError{Seqno: ack.Seqno, Offset: -1, Status: s, Node: i}
	if i < len(w.pipe.names) {
		e.Name = w.pipe.names[i]
	}
	if w.sent == 0 || w.queue.at(0).header.Seqno != ack.Seqno {
		return e
	}
	p := w.queue.at(0)
	e.Offset, e.Length = p.header.Offset, p.header.DataLen
	if s == ErrorChecksum && e.Length > 0 {
		body := p.wire[p.header.len():]
		e.Sums = append(e.Sums, body[:p.sumsLen]...)
		e.Err = w.stream.chunks.Verify(body[p.sumsLen:], body[:p.sumsLen], e.Offset)
	}
	return e
}

// recover opens another pipeline after a failure, and puts the packets that
// are not acked back to be sent again. It returns no pipeline and no error if
// the recovery has finalized the block.
func (w *Writer) recover(cause error) (*pipeline, error) {
	bad := -1
	for {
		var damaged *crc.MismatchError
		if w.Err() != nil || w.cfg.Recover == nil || errors.As(cause, &damaged) {
			return nil, cause
		}
		w.mu.Lock()
		failure := w.failure(cause)
		failure.Node = max(failure.Node, bad)
		head := w.seqnoOfHead()
		if head != w.recovering {
			w.recovering, w.attempts = head, 0
		}
		w.attempts++
		attempts := w.attempts
		w.stats.Recoveries++
		w.mu.Unlock()
		if attempts > maxRecoveries {
			return nil, fmt.Errorf("packet: gave up after %d recoveries for packet %d: %w", maxRecoveries, head, cause)
		}
		conn, request, err := w.cfg.Recover(w.ctx, failure)
		if err != nil {
			return nil, fmt.Errorf("packet: no other pipeline: %w, after: %w", err, cause)
		}
		names := addresses(conn, &request)
		pipe, err := w.open(w.ctx, conn, &request)
		if err != nil {
			cause, bad = err, blame(err, names)
			continue
		}
		pipe.names = names
		if w.cfg.Recovered != nil {
			b := request.Block
			b.Stamp, b.NumBytes = request.LatestStamp, failure.Acked
			if err := w.cfg.Recovered(w.ctx, b); err != nil {
				pipe.conn.Close()
				return nil, err
			}
		}
		w.mu.Lock()
		w.request, w.pipe, w.sent = request, pipe, 0
		failed := w.err
		finalized := request.Stage == PipelineCloseRecovery && failure.Closing
		if finalized && failed == nil {
			p := w.queue.pop()
			w.inFlight -= int64(len(p.wire))
			w.ackedSeqno, w.finished = p.header.Seqno, true
			for _, a := range w.waiters {
				a.wake()
			}
		}
		w.mu.Unlock()
		if failed != nil || finalized {
			pipe.conn.Close()
			return nil, failed
		}
		return pipe, nil
	}
}

// blame returns the index of the node because of which a pipeline was not
// opened: the one that is named, else the first.
func blame(err error, names []string) int {
	var refused *OpError
	if errors.As(err, &refused) {
		return max(slices.Index(names, refused.FirstBadLink), 0)
	}
	return 0
}

// addresses returns those of a pipeline's nodes.
func addresses(conn io.ReadWriteCloser, request *WriteBlock) []string {
	names := []string{""}
	if c, ok := conn.(net.Conn); ok {
		names[0] = c.RemoteAddr().String()
	}
	for _, d := range request.Targets {
		names = append(names, net.JoinHostPort(d.IPAddr, strconv.FormatUint(uint64(d.XferPort), 10)))
	}
	return names
}

// seqnoOfHead returns the seqno of the oldest packet that is not acked, or of
// the next one; w.mu is held.
func (w *Writer) seqnoOfHead() int64 {
	if w.queue.n > 0 {
		return w.queue.at(0).header.Seqno
	}
	return w.ackedSeqno + 1
}

// ring is a queue of packets that reuses its memory.
type ring struct {
	buf     []outPacket
	head, n int
}

func (r *ring) at(i int) *outPacket { return &r.buf[(r.head+i)%len(r.buf)] }

func (r *ring) push(p outPacket) {
	if r.n == len(r.buf) {
		grown := make([]outPacket, max(2*r.n, 16))
		for i := range r.n {
			grown[i] = *r.at(i)
		}
		r.buf, r.head = grown, 0
	}
	r.n++
	*r.at(r.n - 1) = p
}

func (r *ring) pop() outPacket {
	p := *r.at(0)
	*r.at(0) = outPacket{}
	r.head = (r.head + 1) % len(r.buf)
	r.n--
	return p
}
