package packet

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// A Receiver reads packets off a stream, for either side. It checks all that
// can be checked without knowing the block, and before the caller allocates
// for a packet. It is not safe for concurrent use.
//
// It reads ahead at most MaxHeaderLen bytes beyond a packet, and never waits
// for them.
type Receiver struct {
	r     io.Reader
	max   int
	carry []byte // read, but not yet consumed; a view of store
	store []byte
	pos   int64 // bytes consumed
	body  int   // bytes of the current packet that Body has to read
	sums  int   // of them checksums
	last  bool  // the packet that ends the block has been seen

	inflow *inflow // below r, or nil
	sure   int64   // bytes of data that are sure to come with the current packet and others
}

// NewReceiver returns a Receiver of packets whose PLEN + HLEN is at most
// maxPacketLen; 0 means MaxPacketLen.
func NewReceiver(r io.Reader, maxPacketLen int) *Receiver {
	if maxPacketLen <= 0 {
		maxPacketLen = MaxPacketLen
	}
	return &Receiver{r: r, max: maxPacketLen, store: make([]byte, 2*MaxHeaderLen)}
}

// from says that r reads from f, which then hears how much is sure to come.
func (r *Receiver) from(f *inflow) { r.inflow = f }

// expect tells the inflow that n bytes of the current packet are missing.
func (r *Receiver) expect(n int64) {
	if r.inflow == nil {
		return
	}
	if b, ok := r.r.(*bufio.Reader); ok {
		n -= int64(b.Buffered())
	}
	r.inflow.expect(max(n, 0))
}

// Next reads the next packet's header and returns it and the length of its
// checksums in bytes. Body must read the rest before Next is called again, if
// there is any; Next panics otherwise.
//
// It returns io.EOF if the stream ends where a packet may begin, and a
// *[FormatError] for everything malformed: lengths that are negative, do not
// fit each other or exceed the limit, a header that does not parse, negative
// offsets, more than one stray checksum in an empty packet, data in the last
// packet or in a heartbeat, and any packet after the last one. Its Offset is
// the packet's position in the stream.
func (r *Receiver) Next() (h Header, sumsLen int, err error) {
	if r.body > 0 {
		panic("packet: Receiver.Next before Body")
	}
	if err := r.fill(lengthsLen); err != nil {
		return Header{}, 0, err
	}
	if r.last {
		return Header{}, 0, malformed("packet", r.pos, "nothing after the last packet", "another packet")
	}
	plen := int64(int32(binary.BigEndian.Uint32(r.carry)))
	hlen := int64(int16(binary.BigEndian.Uint16(r.carry[4:])))
	switch {
	case plen < 4:
		return Header{}, 0, malformed("packet: PLEN", r.pos, "at least 4", fmt.Sprint(plen))
	case hlen < 0:
		return Header{}, 0, malformed("packet: HLEN", r.pos, "at least 0", fmt.Sprint(hlen))
	case plen+hlen > int64(r.max):
		return Header{}, 0, malformed("packet: PLEN + HLEN", r.pos, fmt.Sprintf("at most %d", r.max), fmt.Sprint(plen+hlen))
	}
	if err := r.fill(lengthsLen + int(hlen)); err != nil {
		return Header{}, 0, err
	}
	h, err = ParseHeader(r.carry[lengthsLen : lengthsLen+hlen])
	if err != nil {
		err.(*FormatError).Offset = r.pos
		return Header{}, 0, err
	}
	sumsLen = int(plen) - 4 - h.DataLen
	switch {
	case sumsLen < 0:
		return Header{}, 0, malformed("packet: dataLen", r.pos, fmt.Sprintf("at most %d (PLEN - 4)", plen-4), fmt.Sprint(h.DataLen))
	case h.DataLen == 0 && sumsLen > 4:
		return Header{}, 0, malformed("packet: checksums of an empty packet", r.pos, "at most 4 bytes", fmt.Sprint(sumsLen))
	case h.DataLen > 0 && h.Last:
		return Header{}, 0, malformed("packet: last packet in block", r.pos, "no data", fmt.Sprintf("%d bytes", h.DataLen))
	case h.Seqno == HeartbeatSeqno && (h.DataLen > 0 || h.Last):
		return Header{}, 0, malformed("packet: heartbeat", r.pos, "no data and not last", fmt.Sprintf("%d bytes, last %t", h.DataLen, h.Last))
	}
	r.consume(lengthsLen + int(hlen))
	r.body, r.sums, r.last = sumsLen+h.DataLen, sumsLen, h.Last
	return h, sumsLen, nil
}

// Body reads the checksums and the data of the packet whose header Next
// returned into buf, and returns them as slices of it. It panics if cap(buf)
// is smaller than their length. If there is room for MaxHeaderLen bytes more,
// the next packet's header may come with the same system call; what stands in
// buf beyond the packet is then overwritten. A stream that ends inside the
// packet gives a *[FormatError] that wraps io.ErrUnexpectedEOF.
func (r *Receiver) Body(buf []byte) (sums, data []byte, err error) {
	need := r.body
	if cap(buf) < need {
		panic(fmt.Sprintf("packet: Receiver.Body: buffer of %d bytes for %d", cap(buf), need))
	}
	start := r.pos
	n := copy(buf[:need], r.carry)
	r.consume(n)
	if n < need {
		// Nothing follows the last packet that belongs to this stream.
		ahead := min(cap(buf)-need, MaxHeaderLen)
		if r.last {
			ahead = 0
		}
		r.expect(max(int64(need), int64(r.sums)+r.sure) - int64(n))
		got, err := io.ReadAtLeast(r.r, buf[n:need+ahead], need-n)
		if n += got; err != nil {
			return nil, nil, truncated(err, "packet body", start, need, n)
		}
		r.pos += int64(need) - int64(n-got)
		r.carry = append(r.store[:0], buf[need:n]...)
	}
	r.body = 0
	return buf[:r.sums:r.sums], buf[r.sums:need:need], nil
}

// Buffered returns how many bytes behind the current packet have already been
// read, those in a *bufio.Reader that is the source included. If it is 0 the
// sender may have nothing more in flight.
func (r *Receiver) Buffered() int {
	n := len(r.carry) - min(r.body, len(r.carry))
	if b, ok := r.r.(*bufio.Reader); ok {
		n += b.Buffered()
	}
	return n
}

// Missing returns how many bytes of the body that Body reads next have not yet
// been read from the source, those in a *bufio.Reader not counted. As long as
// they are not there Body waits for them.
func (r *Receiver) Missing() int {
	n := r.body - len(r.carry)
	if b, ok := r.r.(*bufio.Reader); ok {
		n -= b.Buffered()
	}
	return max(n, 0)
}

// fill makes the first n bytes of the packet available in carry.
func (r *Receiver) fill(n int) error {
	have := len(r.carry)
	if have >= n {
		return nil
	}
	if len(r.store) < n {
		r.store = make([]byte, n)
	}
	copy(r.store, r.carry)
	// The usual header is 31 bytes long and an empty packet has no more.
	end := max(n, lengthsLen+fixedLen)
	r.expect(r.sure - int64(have))
	got, err := io.ReadAtLeast(r.r, r.store[have:end], n-have)
	r.carry = r.store[:have+got]
	if err != nil {
		if err == io.EOF && have+got == 0 {
			return io.EOF
		}
		return truncated(err, "packet header", r.pos, n, have+got)
	}
	return nil
}

// consume drops n bytes of carry.
func (r *Receiver) consume(n int) {
	r.carry = r.carry[n:]
	r.pos += int64(n)
}
