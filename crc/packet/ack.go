package packet

import (
	"bufio"

	"google.golang.org/protobuf/encoding/protowire"
)

// maxAckLen bounds an ack in bytes; a node takes at most 7 in it.
const maxAckLen = 4096

// An Ack answers one packet for a whole pipeline (PipelineAckProto): entry 0
// is the node that sends the ack, then come the nodes downstream in order.
type Ack struct {
	Seqno           int64
	Replies         []Status
	Flags           []uint32 // bits 0-3 status, 5-6 ECN, 7-8 SLOW; old datanodes send none
	DownstreamNanos uint64   // time the nodes downstream took
}

// Nodes returns the number of nodes the ack speaks for.
func (a *Ack) Nodes() int { return max(len(a.Flags), len(a.Replies)) }

// Status returns what node i says: its flag if there is one, else its reply.
func (a *Ack) Status(i int) Status {
	if i < len(a.Flags) {
		return Status(a.Flags[i] & 15)
	}
	return a.Replies[i]
}

// congested reports whether a node asks for less (ECN, HDFS-7270).
func (a *Ack) congested() bool {
	for _, f := range a.Flags {
		if f>>5&3 == 3 {
			return true
		}
	}
	return false
}

// Append appends the ack and before it its length. Hadoop always sends
// Replies, Flags with the same statuses, and the time even if it is 0.
func (a *Ack) Append(dst []byte) []byte {
	return appendDelimited(dst, func(dst []byte) []byte {
		dst = appendUint(dst, 1, protowire.EncodeZigZag(a.Seqno))
		for _, s := range a.Replies {
			dst = appendUint(dst, 2, uint64(s))
		}
		dst = appendUint(dst, 3, a.DownstreamNanos)
		if len(a.Flags) > 0 {
			dst = appendMessage(dst, 4, func(dst []byte) []byte {
				for _, f := range a.Flags {
					dst = protowire.AppendVarint(dst, uint64(f))
				}
				return dst
			})
		}
		return dst
	})
}

// ReadAck reads an ack. It returns io.EOF if the stream ends before it, and a
// *[FormatError] if it ends inside or the ack is malformed, longer than 4096
// bytes or speaks for no node at all.
func ReadAck(r *bufio.Reader) (Ack, error) {
	var a ackReader
	err := a.read(r)
	return a.Ack, err
}

// An ackReader reads acks into the same memory again and again.
type ackReader struct {
	Ack
	buf []byte
}

func (a *ackReader) read(r *bufio.Reader) error {
	a.Ack = Ack{Replies: a.Replies[:0], Flags: a.Flags[:0]}
	b, err := readDelimited(r, a.buf, maxAckLen, "ack")
	if err != nil {
		return err
	}
	a.buf = b
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(1, protowire.VarintType):
			a.Seqno = protowire.DecodeZigZag(f.value)
		case f.repeated(2, a.addReply):
		case f.is(3, protowire.VarintType):
			a.DownstreamNanos = f.value
		case f.repeated(4, a.addFlag):
		}
	}
	if err := f.finish("ack", 1); err != nil {
		return err
	}
	if a.Nodes() == 0 {
		return malformed("ack", 0, "a reply", "none")
	}
	return nil
}

func (a *ackReader) addReply(v uint64) { a.Replies = append(a.Replies, clampStatus(v)) }
func (a *ackReader) addFlag(v uint64)  { a.Flags = append(a.Flags, uint32(v)) }

// clampStatus keeps a status that no version of the protocol has from being
// taken for one of those it has.
func clampStatus(v uint64) Status { return Status(min(v, 255)) }
