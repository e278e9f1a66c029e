package packet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/blockpath/blockpath/crc"
)

// maxRange is longer than any block, and leaves room for a chunk before it.
const maxRange = math.MaxInt64 / 2

// A ReaderConfig configures a [Reader]. Its zero value is usable.
type ReaderConfig struct {
	MaxPacketLen int           // bound of PLEN + HLEN; 0 means MaxPacketLen
	Timeout      time.Duration // for each packet; 0 means DefaultTimeout

	// AllowNone accepts a block without checksums when some were asked for.
	// Datanodes answer so when a .meta file is missing, and what they send
	// cannot be verified.
	AllowNone bool

	// Sums is called with checksums that have been verified and the number of
	// bytes they cover, before those bytes are handed out. It is not called for
	// what is handed out only in part, at the ends of a range. It must not keep
	// sums.
	Sums func(sums []byte, n int)
}

// A Reader reads a range of a block from a datanode. It verifies and copies in
// one pass, and hands out only bytes of chunks whose checksums agree. It is
// not safe for concurrent use.
type Reader struct {
	conn    io.ReadWriteCloser
	inflow  *inflow
	receive *Receiver
	stop    func() bool // of the watch over ctx
	ctx     context.Context
	timeout time.Duration
	hook    func(sums []byte, n int) // ReaderConfig.Sums, or nil

	block  Block
	chunks crc.Chunks
	seqno  int64  // of the next packet
	pos    int64  // block offset of data[0], or of the next packet
	sums   []byte // of data
	data   []byte // of the current packet, not verified yet
	ready  []byte // verified, before data
	skip   int64  // bytes before the range in the first chunk
	left   int64  // bytes of the range that are not handed out yet
	open   bool   // the range ends where the block ends
	buf    []byte
	done   bool // the last packet has come
	status Status
	err    error
	closed bool
}

// A ReadError reports that a block could not be read on.
type ReadError struct {
	Block  Block
	Offset int64 // in the block, of the first byte that was not handed out
	Err    error // *crc.MismatchError, *FormatError, *UnverifiedError, or of the connection or context
}

func (e *ReadError) Error() string {
	return fmt.Sprintf("packet: reading %v at offset %d: %v", e.Block, e.Offset, e.Err)
}

// Unwrap returns Err.
func (e *ReadError) Unwrap() error { return e.Err }

// An UnverifiedError reports that a datanode sends a block without the
// checksums that it was asked for.
type UnverifiedError struct {
	Block Block
}

func (e *UnverifiedError) Error() string {
	return fmt.Sprintf("packet: %v comes without checksums and cannot be verified", e.Block)
}

// NewReader sends the request over conn and waits for the answer. A refusal is
// an *[OpError]; what the Reader cannot trust is a *[ReadError]. When ctx ends
// conn is closed; otherwise it stays the caller's, who closes it unless
// [Reader.Close] says that it can be used again.
func NewReader(ctx context.Context, conn io.ReadWriteCloser, request ReadBlock, cfg ReaderConfig) (*Reader, error) {
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	r := &Reader{conn: conn, ctx: ctx, timeout: cfg.Timeout, hook: cfg.Sums, block: request.Block, left: request.Length, status: ChecksumOK}
	if r.open = r.left < 0; r.open {
		r.left = maxRange
	}
	r.left = min(r.left, maxRange)
	r.stop = context.AfterFunc(ctx, func() { conn.Close() })
	r.inflow = newInflow(conn)
	in := bufio.NewReader(r.inflow)
	if err := r.handshake(in, &request, cfg.AllowNone); err != nil {
		r.stop()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	r.receive = NewReceiver(in, cfg.MaxPacketLen)
	r.receive.from(r.inflow)
	return r, nil
}

func (r *Reader) handshake(in *bufio.Reader, request *ReadBlock, allowNone bool) error {
	r.setDeadline()
	if _, err := r.conn.Write(request.Append(nil)); err != nil {
		return fmt.Errorf("packet: READ_BLOCK: %w", err)
	}
	res, err := ReadBlockOpResponse(in)
	if err != nil {
		return fmt.Errorf("packet: READ_BLOCK: no answer: %w", truncated(err, "response", 0, 1, 0))
	}
	if res.Status != Success {
		return &OpError{Op: "READ_BLOCK", Block: r.block, Status: res.Status, FirstBadLink: res.FirstBadLink, Message: res.Message}
	}
	fail := func(err error) error { return &ReadError{Block: r.block, Offset: request.Offset, Err: err} }
	if res.ReadChecksum == nil {
		return fail(malformed("response", request.Offset, "checksum information", "none"))
	}
	r.chunks = res.ReadChecksum.Chunks
	if r.chunks.Kind == crc.None {
		if request.SendChecksums && !allowNone {
			return fail(&UnverifiedError{Block: r.block})
		}
		r.status = Success
	}
	r.pos = res.ReadChecksum.ChunkOffset
	r.skip = request.Offset - r.pos
	if r.skip < 0 || r.skip >= int64(r.chunks.BytesPerChunk()) {
		return fail(malformed("response: chunkOffset", request.Offset,
			fmt.Sprintf("the chunk of %d bytes that has the offset", r.chunks.BytesPerChunk()), fmt.Sprint(r.pos)))
	}
	return nil
}

func (r *Reader) setDeadline() {
	if c, ok := r.conn.(interface{ SetDeadline(time.Time) error }); ok {
		c.SetDeadline(time.Now().Add(r.timeout))
	}
}

// Chunks returns how the block is checksummed.
func (r *Reader) Chunks() crc.Chunks { return r.chunks }

// Read hands out verified bytes. At the end of the range it returns io.EOF, if
// the datanode has ended as it should. Any other error is a *[ReadError] and
// stays; bytes that come with it are verified.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, r.err
	}
	bpc := r.chunks.BytesPerChunk()
	for {
		if err := r.more(); err != nil {
			return 0, err
		}
		if len(r.ready) > 0 {
			n := copy(p, r.ready)
			r.took(n)
			return n, nil
		}
		n := int(min(int64(min(len(p), len(r.data))), r.left))
		if n < len(r.data) {
			n -= n % bpc
		}
		if n > 0 && r.skip == 0 {
			sums := r.chunks.SumsLen(n)
			good, err := r.chunks.CopyVerify(p[:n], r.data[:n], r.sums[:sums], r.pos)
			r.verified(good)
			r.data, r.sums = r.data[n:], r.sums[sums:]
			r.pos += int64(n)
			r.left -= int64(good)
			if err != nil {
				return good, r.mismatch(err)
			}
			return good, nil
		}
		// Only a part of the chunk is wanted, but it verifies as a whole.
		if err := r.verify(min(bpc, len(r.data))); err != nil {
			return 0, err
		}
	}
}

// WriteTo writes the rest of the range to w, packet by packet as they verify,
// without another copy. An error of w is returned as it is.
func (r *Reader) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for {
		err := r.more()
		if err == nil && len(r.ready) == 0 {
			err = r.verify(r.wanted())
		}
		for len(r.ready) > 0 {
			n, werr := w.Write(r.ready)
			total += int64(n)
			r.took(n)
			if werr == nil && n == 0 {
				werr = io.ErrShortWrite
			}
			if werr != nil {
				return total, werr
			}
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// verify checks the next n bytes of data, which begin and end with chunks,
// and makes those ready that verify and are in the range.
func (r *Reader) verify(n int) error {
	sums := r.chunks.SumsLen(n)
	err := r.chunks.Verify(r.data[:n], r.sums[:sums], r.pos)
	good := n
	var bad *crc.MismatchError
	if errors.As(err, &bad) {
		good = int(bad.Offset - r.pos)
	}
	skip := min(r.skip, int64(good))
	r.ready = r.data[skip:good]
	if int64(len(r.ready)) > r.left {
		r.ready = r.ready[:r.left]
	}
	if len(r.ready) == good {
		r.verified(good)
	}
	r.skip -= skip
	r.data, r.sums = r.data[n:], r.sums[sums:]
	r.pos += int64(n)
	if err != nil {
		return r.mismatch(err)
	}
	return nil
}

// verified tells of the checksums of the next n bytes of data, all of which are
// handed out.
func (r *Reader) verified(n int) {
	if r.hook != nil && n > 0 {
		r.hook(r.sums[:r.chunks.SumsLen(n)], n)
	}
}

// wanted returns the length of those chunks of data that the range needs.
func (r *Reader) wanted() int {
	n := int64(len(r.data))
	if r.left < n {
		bpc := int64(r.chunks.BytesPerChunk())
		n = min((r.skip+r.left+bpc-1)/bpc*bpc, n)
	}
	return int(n)
}

// took notes that n ready bytes have been handed out.
func (r *Reader) took(n int) {
	r.ready = r.ready[n:]
	r.left -= int64(n)
}

func (r *Reader) mismatch(err error) error {
	r.status = ErrorChecksum
	var bad *crc.MismatchError
	offset := r.pos
	if errors.As(err, &bad) {
		offset = bad.Offset
	}
	return r.fail(offset, err)
}

// fail makes err, at a block offset, the Reader's error.
func (r *Reader) fail(offset int64, err error) error {
	if r.ctx.Err() != nil {
		err = context.Cause(r.ctx)
	}
	r.err = &ReadError{Block: r.block, Offset: offset, Err: err}
	r.data, r.sums = nil, nil
	return r.err
}

// more makes sure that there are bytes to hand out, ready or to be verified.
// It returns io.EOF behind the last one.
func (r *Reader) more() error {
	for {
		switch {
		case r.closed:
			return ErrClosed
		case len(r.ready) > 0:
			return nil
		case r.err != nil:
			return r.err
		case r.ended():
			// Datanodes send whole chunks, beyond the end of the range.
			r.pos += int64(len(r.data))
			r.data = nil
		case len(r.data) > 0 && r.left > 0:
			return nil
		case len(r.data) > 0:
			if err := r.verify(r.wanted()); err != nil {
				return err
			}
			continue
		}
		if err := r.nextPacket(); err != nil {
			return err
		}
		if r.done {
			r.err = io.EOF
		}
	}
}

// ended reports whether no more data is expected. A range without bytes in
// mid-chunk brings that chunk nevertheless.
func (r *Reader) ended() bool { return r.left == 0 && r.skip == 0 }

// nextPacket receives a packet and checks that it continues the last one.
func (r *Reader) nextPacket() error {
	r.setDeadline()
	r.receive.sure = 0
	if !r.open && !r.ended() {
		r.receive.sure = r.skip + r.left
	}
	h, sumsLen, err := r.receive.Next()
	if err != nil {
		return r.fail(r.pos, truncated(err, "read", r.pos, 1, 0))
	}
	bad := func(what, expected, got string) error {
		return r.fail(r.pos, malformed("read: "+what, r.pos, expected, got))
	}
	end := r.ended()
	switch {
	case h.Seqno != r.seqno:
		return bad("seqno", fmt.Sprint(r.seqno), fmt.Sprint(h.Seqno))
	case h.Offset != r.pos:
		return bad("offsetInBlock", fmt.Sprint(r.pos), fmt.Sprint(h.Offset))
	case end && !h.Last:
		return bad("packet behind the range", "the empty last packet", fmt.Sprintf("%d bytes of data", h.DataLen))
	case h.Last && !end && !r.open:
		return bad("last packet", fmt.Sprintf("%d more bytes", r.skip+r.left), "the end")
	case !h.Last && h.DataLen == 0:
		return bad("dataLen", "at least 1", "0")
	}
	if want := r.chunks.SumsLen(h.DataLen); !h.Last && sumsLen != want {
		return bad("checksums", fmt.Sprintf("%d bytes for %d of data", want, h.DataLen), fmt.Sprint(sumsLen))
	}
	if !h.Last && h.DataLen%r.chunks.BytesPerChunk() != 0 && !r.open && int64(h.DataLen) < r.skip+r.left {
		return bad("dataLen", "whole chunks before the end", fmt.Sprint(h.DataLen))
	}
	need := sumsLen + h.DataLen
	if cap(r.buf) < need+MaxHeaderLen {
		r.buf = make([]byte, need+MaxHeaderLen)
	}
	r.sums, r.data, err = r.receive.Body(r.buf)
	if err != nil {
		return r.fail(r.pos, err)
	}
	r.seqno++
	r.done = h.Last
	return nil
}

// Close ends the read. If the datanode has sent everything, or a chunk did not
// verify, it is told the outcome. Close reports whether the connection can
// carry another request; otherwise the caller has to close it.
func (r *Reader) Close() (reusable bool) {
	if r.closed {
		return false
	}
	r.closed = true
	if !r.stop() {
		return false
	}
	if r.err == nil && r.ended() && len(r.ready) == 0 {
		r.pos += int64(len(r.data))
		if r.nextPacket() != nil {
			return false
		}
	}
	if !r.done && r.status != ErrorChecksum {
		return false
	}
	r.setDeadline()
	if _, err := r.conn.Write(AppendReadStatus(nil, r.status)); err != nil {
		return false
	}
	if c, ok := r.conn.(interface{ SetDeadline(time.Time) error }); ok && r.done {
		c.SetDeadline(time.Time{})
	}
	r.inflow.reset()
	return r.done && r.receive.Buffered() == 0
}
