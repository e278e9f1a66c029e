package packet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// DefaultTimeout is the socket timeout of a zero [WriterConfig] and
// [ReaderConfig].
const DefaultTimeout = 60 * time.Second

// defaultBackoff is Hadoop's CONGESTION_BACKOFF_MEAN_TIME_IN_MS.
const defaultBackoff = 5 * time.Second

// maxRecoveries is how often a pipeline is rebuilt for the same packet.
const maxRecoveries = 5

// readPiece is how much ReadFrom reads before it computes the checksums: few
// enough bytes to be still in the cache.
const readPiece = 128 << 10

// States of a Writer.
var (
	ErrBlockFull = errors.New("packet: block is full")
	ErrClosed    = errors.New("packet: stream is closed")
	ErrAborted   = errors.New("packet: write aborted")
)

// A WriterConfig configures a [Writer]. Its zero value is usable.
type WriterConfig struct {
	Stream       *Stream      // shared with the Writers of other blocks; nil: one of its own
	StreamConfig StreamConfig // of the stream of its own

	Nodes       []string // addresses of the first pipeline, for errors
	SyncOnClose bool     // the last packet makes the block durable

	// Timeout is the socket timeout; 0 means DefaultTimeout. After half of it
	// without a packet a heartbeat is sent. Acks may take Timeout, a write
	// eight times as long, and 5 s more for every node.
	Timeout time.Duration

	// Backoff bounds the first pause, of random length, that is made when a
	// datanode says in an ack that it is congested; 0 means 5 s. Further pauses
	// are longer, up to ten times, until an ack comes that does not say so.
	Backoff time.Duration

	// Sums is called in block order with the checksums of the block's whole
	// chunks and at last with that of a short one, if the block begins at
	// offset 0. It must not keep sums.
	Sums func(sums []byte)

	// Recover yields another pipeline for the block after a failure: a
	// connection, and the request for it, with a new generation stamp and the
	// stage that follows. Packets that are not acked are sent again, unchanged.
	// nil means that every failure is final.
	Recover func(ctx context.Context, failure *WriteError) (io.ReadWriteCloser, WriteBlock, error)

	// Recovered is told of the block as it is in a pipeline of Recover's that
	// has been opened, before packets go to it. Now a name node may learn of the
	// new generation stamp (ClientProtocol.updatePipeline); if it did when no
	// datanode has it, and the pipeline is not opened, the block could not be
	// recovered again. An error is final. nil means that nobody is told.
	Recovered func(ctx context.Context, b Block) error
}

// A Writer writes one block to a pipeline. It packs what it is given into
// packets, copying and checksumming in one pass, and sends each with a single
// Write of the connection, while acks come in. One goroutine may write while
// others call Flush, Sync, Acked, Stats, Close and Abort.
//
// After an error every method returns it. Close or Abort must be called in any
// case.
type Writer struct {
	cfg    WriterConfig
	stream *Stream
	own    bool // the stream is the Writer's
	ctx    context.Context
	cancel context.CancelCauseFunc
	size   int64 // of a full block

	// turn is held by whoever builds packets. It guards what follows.
	turn     chan struct{}
	cur      current
	pos      int64  // block offset of the next packet
	length   int64  // of the block with all accepted bytes
	tail     []byte // what the next packet repeats: a chunk cut short by a flush
	tailSum  []byte // its checksum
	seqno    int64  // of the next packet
	closed   bool
	closeErr error

	work chan struct{} // capacity 1: the sender has something to look at
	done chan struct{} // the sender has ended, and with it all goroutines

	mu         sync.Mutex
	request    WriteBlock // of the current pipeline
	pipe       *pipeline
	queue      ring // not acked; the first sent have been written
	sent       int
	inFlight   int64 // bytes of queue
	writing    int64 // seqno of the packet in a Write call, or noPacket
	deferred   Buffer
	delivered  int64     // bytes of acked packets
	ackedAt    time.Time // of the last ack, or of the first packet after a pause
	acked      int64     // block length that is acked
	sentEnd    int64     // block length that was sent
	ackedSeqno int64
	finished   bool // the last packet is acked
	err        error
	waiters    []*ackWaiter
	idle       []*ackWaiter
	roomFor    int // bytes for which the writing goroutine waits
	room       chan struct{}
	recovering int64         // seqno for which the pipeline was rebuilt last
	attempts   int           // so many times
	congested  bool          // a datanode is, and no pause has been made for it
	pause      time.Duration // the last one; 0 if the last ack is of no congestion
	stats      WriterStats
	published  WriterStats // what the stream's statistics have of it
}

// noPacket is no packet's sequence number.
const noPacket = -3

// WriterStats count what a Writer has done.
type WriterStats struct {
	Packets    int64 // queued, those without data included
	Bytes      int64 // of data in them, without what is repeated
	Wire       int64 // bytes sent
	Writes     int64 // calls of the connection's Write
	Acks       int64 // of packets
	Flushes    int64 // Flush and Sync
	Heartbeats int64
	Recoveries int64
	Backoffs   int64 // pauses because of congestion
	Window     int64 // bytes that may be in flight now
	RTT        time.Duration
}

// current is the packet that is being filled.
type current struct {
	buf    Buffer
	mem    []byte // of buf; nil if there is no packet
	off    int64  // block offset of the first byte
	sumsAt int    // index in mem of the checksums while they are computed
	dataAt int    // and of the data
	limit  int    // bytes of data that the packet may hold
	n      int    // bytes of data
	old    int    // of them repeated
	summed int    // of them with checksums, whole chunks
}

// outPacket is a packet from when it is queued until it is acked.
type outPacket struct {
	buf       Buffer
	wire      []byte
	header    Header
	sumsLen   int
	sentAt    time.Time
	delivered int64     // Writer.delivered when it was sent
	ackedAt   time.Time // Writer.ackedAt when it was sent
}

// end returns the block length with the packet.
func (p *outPacket) end() int64 { return p.header.Offset + int64(p.header.DataLen) }

type ackWaiter struct {
	seqno int64
	ch    chan struct{} // capacity 1
}

// pipeline is one connection, from the request until it fails or ends.
type pipeline struct {
	conn    io.ReadWriteCloser
	acks    *bufio.Reader
	nodes   int
	names   []string      // addresses
	err     error         // why it failed; guarded by Writer.mu
	drained chan struct{} // the ack reader has ended
}

// A WriteError reports that a block could not be written to the end.
type WriteError struct {
	Block   Block
	Acked   int64 // block length that was acked, and stays so
	Sent    int64 // block length that may have arrived
	Closing bool  // all data is acked, only the last packet is not
	Node    int   // index of the node to blame, or -1 if it is not known
	Err     error // *AckError, *OpError, *FormatError, or of the connection or context
}

func (e *WriteError) Error() string {
	return fmt.Sprintf("packet: writing %v failed with %d bytes acked, %d sent: %v", e.Block, e.Acked, e.Sent, e.Err)
}

// Unwrap returns Err.
func (e *WriteError) Unwrap() error { return e.Err }

// An AckError reports that a node did not accept a packet.
type AckError struct {
	Seqno  int64
	Offset int64 // in the block, of the packet's first byte; -1 if the ack is for no packet
	Length int   // bytes of data
	Status Status
	Node   int    // index in the pipeline
	Name   string // its address, if known
	Sums   []byte // after ERROR_CHECKSUM the packet's checksums as they were sent

	// Err is after ERROR_CHECKSUM a *crc.MismatchError if the packet no longer
	// verifies here, in the writer's memory; nil if it does, so that it was
	// damaged on the way.
	Err error
}

func (e *AckError) Error() string {
	s := fmt.Sprintf("packet: node %d", e.Node)
	if e.Name != "" {
		s += " (" + e.Name + ")"
	}
	s += fmt.Sprintf(" answered %v", e.Status)
	if e.Offset < 0 {
		return s
	}
	s += fmt.Sprintf(" to packet %d, %d bytes at block offset %d", e.Seqno, e.Length, e.Offset)
	switch {
	case e.Err != nil:
		s += ": damaged in memory before it was sent: " + e.Err.Error()
	case e.Status == ErrorChecksum && len(e.Sums) >= 4:
		s += fmt.Sprintf(": damaged on the way: what was sent still verifies here, expected and computed %x in its first chunk, %x in its last of %d",
			e.Sums[:4], e.Sums[len(e.Sums)-4:], len(e.Sums)/4)
	}
	return s
}

// Unwrap returns Err.
func (e *AckError) Unwrap() error { return e.Err }

// An OpError reports that a datanode refused an operation.
type OpError struct {
	Op           string // WRITE_BLOCK or READ_BLOCK
	Block        Block
	Status       Status
	FirstBadLink string // address of the node downstream that failed
	Message      string
}

func (e *OpError) Error() string {
	s := fmt.Sprintf("packet: %s of %v: %v", e.Op, e.Block, e.Status)
	if e.FirstBadLink != "" {
		s += ", first bad link " + e.FirstBadLink
	}
	if e.Message != "" {
		s += ": " + e.Message
	}
	return s
}

// NewWriter sends the request over conn and waits for the answer. The block is
// full at request.Block.NumBytes (0: 128 MiB) bytes, its length at the
// beginning is request.MinBytesRcvd. The Writer overwrites request.Checksum
// with the stream's, and owns conn from now on, even when NewWriter fails.
//
// ctx covers the whole stream: when it ends, the write is aborted. A refusal
// is an *[OpError], a missing buffer a *[PoolError].
func NewWriter(ctx context.Context, conn io.ReadWriteCloser, request WriteBlock, cfg WriterConfig) (*Writer, error) {
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Backoff <= 0 {
		cfg.Backoff = defaultBackoff
	}
	w := &Writer{
		cfg: cfg, stream: cfg.Stream, size: request.Block.NumBytes,
		pos: request.MinBytesRcvd, length: request.MinBytesRcvd, acked: request.MinBytesRcvd, sentEnd: request.MinBytesRcvd,
		turn: make(chan struct{}, 1), work: make(chan struct{}, 1), done: make(chan struct{}), room: make(chan struct{}, 1),
		writing: noPacket, ackedSeqno: -1,
	}
	if w.size <= 0 {
		w.size = 128 << 20
	}
	if w.stream == nil {
		stream, err := NewStream(ctx, cfg.StreamConfig)
		if err != nil {
			conn.Close()
			return nil, err
		}
		w.stream, w.own = stream, true
	}
	pipe, err := w.open(ctx, conn, &request)
	if err != nil {
		if w.own {
			w.stream.Close()
		}
		return nil, err
	}
	pipe.names = cfg.Nodes
	w.request, w.pipe = request, pipe
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	go w.run(ctx, pipe)
	return w, nil
}

// open sends a request and reads the answer; conn is closed if that fails.
func (w *Writer) open(ctx context.Context, conn io.ReadWriteCloser, request *WriteBlock) (*pipeline, error) {
	request.Checksum = ChecksumOf(w.stream.chunks)
	pipe := &pipeline{conn: conn, acks: bufio.NewReaderSize(conn, 1024), nodes: max(int(request.PipelineSize), 1), drained: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err := w.handshake(pipe, request)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return pipe, nil
}

func (w *Writer) handshake(pipe *pipeline, request *WriteBlock) error {
	w.setWriteDeadline(pipe)
	if _, err := pipe.conn.Write(request.Append(nil)); err != nil {
		return fmt.Errorf("packet: WRITE_BLOCK: %w", err)
	}
	w.setReadDeadline(pipe)
	res, err := ReadBlockOpResponse(pipe.acks)
	if err != nil {
		return fmt.Errorf("packet: WRITE_BLOCK: no answer: %w", truncated(err, "response", 0, 1, 0))
	}
	if res.Status != Success {
		return &OpError{Op: "WRITE_BLOCK", Block: request.Block, Status: res.Status, FirstBadLink: res.FirstBadLink, Message: res.Message}
	}
	return nil
}

func (w *Writer) setReadDeadline(p *pipeline) {
	if c, ok := p.conn.(interface{ SetReadDeadline(time.Time) error }); ok {
		c.SetReadDeadline(time.Now().Add(w.cfg.Timeout + time.Duration(p.nodes)*5*time.Second))
	}
}

func (w *Writer) setWriteDeadline(p *pipeline) {
	if c, ok := p.conn.(interface{ SetWriteDeadline(time.Time) error }); ok {
		c.SetWriteDeadline(time.Now().Add(8*w.cfg.Timeout + time.Duration(p.nodes)*5*time.Second))
	}
}

// enter takes the turn. It fails when ctx ends first, and after an error.
func (w *Writer) enter(ctx context.Context) error {
	select {
	case w.turn <- struct{}{}: // as a rule, and cheaper than to look at ctx
	default:
		select {
		case w.turn <- struct{}{}:
		case <-ctx.Done():
			if err := w.ended(); err != nil {
				return err
			}
			return context.Cause(ctx)
		}
	}
	err := w.Err()
	if err == nil && w.closed {
		err = ErrClosed
	}
	if err != nil {
		w.leave()
	}
	return err
}

func (w *Writer) leave() { <-w.turn }

// ended returns the error that has ended the stream, or nil, and sees the end
// of the stream's context before the sender does.
func (w *Writer) ended() error {
	if w.ctx.Err() != nil {
		w.fail(context.Cause(w.ctx))
	}
	return w.Err()
}

// Err returns the error that has ended the stream, or nil.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Acked returns how many bytes of the block the whole pipeline has acked.
func (w *Writer) Acked() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.acked
}

// Block returns the block with the acked length and the generation stamp of
// the current pipeline.
func (w *Writer) Block() Block {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.block()
}

// block is Block with w.mu held.
func (w *Writer) block() Block {
	b := w.request.Block
	b.NumBytes = w.acked
	if w.request.LatestStamp != 0 {
		b.Stamp = w.request.LatestStamp
	}
	return b
}

// Stats returns what the Writer has done so far.
func (w *Writer) Stats() WriterStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	s.Window = w.stream.window.Load()
	s.RTT = time.Duration(w.stream.minRTT.Load())
	return s
}

// Write appends p to the block. It waits while too many bytes are in flight or
// no packet buffer is free. When the block is full it returns how much of p it
// took, and [ErrBlockFull].
func (w *Writer) Write(p []byte) (int, error) {
	if err := w.enter(w.ctx); err != nil {
		return 0, err
	}
	defer w.leave()
	written := 0
	for len(p) > 0 {
		if err := w.start(); err != nil {
			return written, err
		}
		n := w.cur.copy(w.stream, p)
		p = p[n:]
		written += n
		w.added(n)
	}
	return written, nil
}

// ReadFrom appends what r yields to the block, up to its end. It reads into
// the packet buffers, without a copy between. If the block is full before r
// ends, it returns [ErrBlockFull]; an error of r is returned as it is. Flush,
// Sync and Close wait for a Read that is under way.
func (w *Writer) ReadFrom(r io.Reader) (int64, error) {
	var total int64
	for empty := 0; ; {
		n, err := w.readOnce(r)
		total += int64(n)
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		if n > 0 {
			empty = 0
		} else if empty++; empty == 100 {
			return total, io.ErrNoProgress
		}
	}
}

func (w *Writer) readOnce(r io.Reader) (int, error) {
	if err := w.enter(w.ctx); err != nil {
		return 0, err
	}
	defer w.leave()
	if err := w.start(); err != nil {
		return 0, err
	}
	c := &w.cur
	free := c.mem[c.dataAt+c.n : c.dataAt+c.limit]
	n, err := r.Read(free[:min(len(free), readPiece)])
	c.n += n
	c.sum(w.stream)
	w.added(n)
	return n, err
}

// start makes sure that there is a packet with room for data.
func (w *Writer) start() error {
	if w.cur.mem != nil {
		return nil
	}
	remaining := w.size - w.pos
	if remaining <= int64(len(w.tail)) {
		return ErrBlockFull
	}
	s := w.stream
	bpc := s.chunks.BytesPerChunk()
	chunks, size := s.next(remaining)
	limit := int64(chunks) * int64(bpc)
	inChunk := w.pos % int64(bpc)
	if inChunk > 0 {
		// The datanode has the chunk's beginning; it takes the rest of the
		// chunk in packets of their own, and extends the checksum itself.
		chunks, limit = 1, int64(bpc)-inChunk
	}
	if err := w.waitRoom(size); err != nil {
		return err
	}
	buf, err := s.reservation.Acquire(w.ctx, size)
	if err != nil {
		if failed := w.ended(); failed != nil {
			return failed
		}
		return err
	}
	mem := buf.Bytes()
	// It may be another one than asked for, when the pool's bound is reached.
	for s.bufferLen(chunks) > len(mem) {
		chunks = min(chunks-1, (len(mem)-MaxHeaderLen)/(bpc+s.chunks.Kind.Size()))
	}
	limit = min(limit, int64(chunks)*int64(bpc))
	w.cur = current{
		buf: buf, mem: mem, off: w.pos, dataAt: s.dataAt(chunks), sumsAt: s.dataAt(chunks) - chunks*s.chunks.Kind.Size(),
		limit: int(min(limit, remaining)), n: len(w.tail), old: len(w.tail),
	}
	copy(mem[w.cur.dataAt:], w.tail)
	return nil
}

// waitRoom waits until a packet of size bytes may be started.
func (w *Writer) waitRoom(size int) error {
	for {
		w.mu.Lock()
		if w.err != nil || w.stream.room(w.inFlight, size) {
			w.roomFor = 0
			err := w.err
			w.mu.Unlock()
			return err
		}
		w.roomFor = size
		w.mu.Unlock()
		<-w.room
	}
}

// copy takes as much of p as the packet holds, up to the end of a chunk that
// has been begun.
func (c *current) copy(s *Stream, p []byte) int {
	bpc := s.chunks.BytesPerChunk()
	p = p[:min(len(p), c.limit-c.n)]
	dst := c.mem[c.dataAt+c.n : c.dataAt+c.limit]
	if begun := c.n % bpc; begun > 0 || len(p) < bpc {
		n := copy(dst, p[:min(len(p), bpc-begun)])
		c.n += n
		c.sum(s)
		return n
	}
	p = p[:len(p)-len(p)%bpc]
	s.chunks.CopyPut(dst, c.mem[c.sumsAt+c.n/bpc*s.chunks.Kind.Size():c.dataAt], p)
	c.n += len(p)
	c.summed = c.n
	return len(p)
}

// sum computes the checksums of whole chunks that have none yet.
func (c *current) sum(s *Stream) {
	bpc := s.chunks.BytesPerChunk()
	if end := c.n - c.n%bpc; end > c.summed {
		s.chunks.Put(c.mem[c.sumsAt+c.summed/bpc*s.chunks.Kind.Size():c.dataAt], c.mem[c.dataAt+c.summed:c.dataAt+end])
		c.summed = end
	}
}

// added notes that n bytes have been put into the current packet, and queues
// it if it is full.
func (w *Writer) added(n int) {
	w.length += int64(n)
	if w.cur.n == w.cur.limit {
		w.queueCurrent(false, true)
	}
}

// queueCurrent finishes the packet and hands it to the sender.
func (w *Writer) queueCurrent(sync, full bool) {
	c, s := &w.cur, w.stream
	bpc, sumSize := s.chunks.BytesPerChunk(), s.chunks.Kind.Size()
	data := c.mem[c.dataAt : c.dataAt+c.n]
	partial := c.n - c.summed
	if partial > 0 {
		s.chunks.Put(c.mem[c.sumsAt+c.summed/bpc*sumSize:c.dataAt], data[c.summed:])
	}
	// The packet is one slice: the sums end where the data begins, and the
	// header ends where the sums begin.
	sumsLen := s.chunks.SumsLen(c.n)
	sumsAt := c.dataAt - sumsLen
	sums := c.mem[sumsAt:c.dataAt]
	copy(sums, c.mem[c.sumsAt:c.sumsAt+sumsLen])
	h := Header{Offset: c.off, Seqno: w.seqno, DataLen: c.n, Sync: sync}
	h.Append(c.mem[sumsAt-h.len():sumsAt-h.len()], sumsLen)

	w.pos = c.off + int64(c.n)
	w.tail, w.tailSum = w.tail[:0], w.tailSum[:0]
	if partial > 0 && c.off%int64(bpc) == 0 {
		w.pos -= int64(partial)
		w.tail = append(w.tail, data[c.summed:]...)
		w.tailSum = append(w.tailSum, sums[sumsLen-sumSize:]...)
	}
	if w.cfg.Sums != nil {
		w.cfg.Sums(sums[:sumsLen-len(w.tailSum)])
	}
	p := outPacket{buf: c.buf, wire: c.mem[sumsAt-h.len() : c.dataAt+c.n], header: h, sumsLen: sumsLen}
	busy := w.push(p, c.n-c.old)
	s.queued(full, !full && 2*c.n < s.full*bpc, busy)
	w.cur = current{}
}

// queueEmpty hands a packet without data to the sender. It needs no buffer.
func (w *Writer) queueEmpty(sync, last bool) {
	h := Header{Offset: w.length, Seqno: w.seqno, Last: last, Sync: sync}
	w.push(outPacket{header: h, wire: h.Append(nil, 0)}, 0)
}

// push queues a packet with so many new bytes and reports whether others are
// under way.
func (w *Writer) push(p outPacket, fresh int) bool {
	w.seqno++
	w.mu.Lock()
	busy := w.queue.n > 0
	w.queue.push(p)
	w.inFlight += int64(len(p.wire))
	w.stats.Packets++
	w.stats.Bytes += int64(fresh)
	w.mu.Unlock()
	w.signal()
	return busy
}

func (w *Writer) signal() {
	select {
	case w.work <- struct{}{}:
	default:
	}
}

// Flush sends what has been written and waits until the pipeline has acked it:
// readers can see it (hflush). When ctx ends it returns without having ended
// the stream.
func (w *Writer) Flush(ctx context.Context) error { return w.flush(ctx, false) }

// Sync is Flush, and the datanodes write all of the block to stable storage
// before they ack (hsync).
func (w *Writer) Sync(ctx context.Context) error { return w.flush(ctx, true) }

func (w *Writer) flush(ctx context.Context, sync bool) error {
	if err := w.enter(ctx); err != nil {
		return err
	}
	if w.cur.n > w.cur.old {
		w.queueCurrent(sync, false)
	} else if sync && w.length > 0 {
		w.queueEmpty(true, false)
	}
	seqno := w.seqno - 1
	w.leave()
	w.mu.Lock()
	w.stats.Flushes++
	w.mu.Unlock()
	return w.awaitAck(ctx, seqno)
}

// awaitAck waits until the packet has been acked.
func (w *Writer) awaitAck(ctx context.Context, seqno int64) error {
	w.mu.Lock()
	if w.ackedSeqno >= seqno || w.err != nil {
		defer w.mu.Unlock()
		if w.ackedSeqno >= seqno {
			return nil
		}
		return w.err
	}
	var a *ackWaiter
	if n := len(w.idle); n > 0 {
		a, w.idle = w.idle[n-1], w.idle[:n-1]
	} else {
		a = &ackWaiter{ch: make(chan struct{}, 1)}
	}
	a.seqno = seqno
	w.waiters = append(w.waiters, a)
	w.mu.Unlock()

	var ctxErr error
	select {
	case <-a.ch:
	case <-ctx.Done():
		w.ended()
		ctxErr = context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, other := range w.waiters {
		if other == a {
			w.waiters = append(w.waiters[:i], w.waiters[i+1:]...)
			break
		}
	}
	select { // woken and cancelled at once
	case <-a.ch:
	default:
	}
	w.idle = append(w.idle, a)
	switch {
	case w.ackedSeqno >= seqno:
		return nil
	case w.err != nil:
		return w.err
	}
	return fmt.Errorf("packet: waiting for the ack of packet %d of %v: %w", seqno, w.request.Block, ctxErr)
}

// Close sends the rest and the last packet, waits for all acks, and ends the
// stream: then the block is finalized. What it waits for ends with the context
// given to NewWriter, and by timeouts. Calling it again returns the same.
func (w *Writer) Close() error {
	w.turn <- struct{}{}
	defer w.leave()
	if w.closed {
		return w.closeErr
	}
	err := w.finish()
	w.end(ErrClosed, err)
	return err
}

// finish sends what is needed to finalize the block.
func (w *Writer) finish() error {
	if w.cur.n > w.cur.old {
		w.queueCurrent(false, false)
	}
	if w.cfg.Sums != nil && len(w.tailSum) > 0 {
		w.cfg.Sums(w.tailSum)
	}
	// The last packet goes out only when everything before it is acked.
	if err := w.awaitAck(w.ctx, w.seqno-1); err != nil {
		return err
	}
	w.queueEmpty(w.cfg.SyncOnClose, true)
	return w.awaitAck(w.ctx, w.seqno-1)
}

// Abort ends the stream at once. The block is not finalized; what was acked
// stays. It returns when all buffers are released and all goroutines have
// ended. After Close it does nothing.
func (w *Writer) Abort() {
	w.fail(ErrAborted)
	w.turn <- struct{}{}
	defer w.leave()
	if !w.closed {
		w.end(ErrAborted, w.Err())
	}
}

// end joins the goroutines and then releases every buffer; the turn is held.
// result is what Close returns from now on.
func (w *Writer) end(reason, result error) {
	w.closed, w.closeErr = true, result
	if result != nil {
		w.fail(result)
	}
	<-w.done
	w.cancel(reason)
	if w.cur.mem != nil {
		w.release(w.cur.buf)
		w.cur = current{}
	}
	w.mu.Lock()
	w.publish()
	left := w.queue
	w.queue = ring{}
	w.mu.Unlock()
	for left.n > 0 {
		if p := left.pop(); p.buf != (Buffer{}) {
			w.release(p.buf)
		}
	}
	if w.own {
		w.stream.Close()
	}
}

// release gives a packet's buffer back. Every buffer has one owner, so that a
// second release is a fault of this package.
func (w *Writer) release(b Buffer) {
	if err := w.stream.reservation.Release(b); err != nil {
		panic(err)
	}
}

// fail ends the stream with an error: everyone who waits is woken, and the
// connection closed. Only the first error counts.
func (w *Writer) fail(err error) {
	w.mu.Lock()
	if w.err != nil || w.finished {
		w.mu.Unlock()
		return
	}
	var we *WriteError
	if !errors.As(err, &we) {
		err = w.failure(err)
	}
	w.err = err
	for _, a := range w.waiters {
		a.wake()
	}
	w.wakeRoom()
	pipe := w.pipe
	w.mu.Unlock()
	w.cancel(err)
	pipe.conn.Close()
	w.signal()
}

// failure describes an error; w.mu is held.
func (w *Writer) failure(err error) *WriteError {
	e := &WriteError{Block: w.block(), Acked: w.acked, Sent: w.sentEnd, Node: -1, Err: err}
	e.Closing = w.queue.n == 1 && w.queue.at(0).header.Last
	var ack *AckError
	if errors.As(err, &ack) {
		e.Node = ack.Node
	}
	return e
}

func (a *ackWaiter) wake() {
	select {
	case a.ch <- struct{}{}:
	default:
	}
}

// wakeRoom wakes the goroutine that waits in waitRoom; w.mu is held.
func (w *Writer) wakeRoom() {
	select {
	case w.room <- struct{}{}:
	default:
	}
}
