package packet

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// A Header is a packet's header (PacketHeaderProto).
type Header struct {
	Offset  int64 // of the first data byte in the block
	Seqno   int64
	DataLen int  // bytes of data
	Last    bool // the empty packet that ends the block
	Sync    bool // the receiver is to make everything durable before it acks
}

const (
	tagOffset  = 1<<3 | byte(protowire.Fixed64Type)
	tagSeqno   = 2<<3 | byte(protowire.Fixed64Type)
	tagLast    = 3<<3 | byte(protowire.VarintType)
	tagDataLen = 4<<3 | byte(protowire.Fixed32Type)
	tagSync    = 5<<3 | byte(protowire.VarintType)
)

// len returns the encoded length, PLEN and HLEN included: 31 or 33 bytes.
func (h Header) len() int {
	if h.Sync {
		return lengthsLen + fixedSyncLen
	}
	return lengthsLen + fixedLen
}

// Append appends PLEN, HLEN and the header of a packet with sumsLen bytes of
// checksums: 31 bytes, or 33 with Sync, which is left out when false because
// old receivers expect that (HDFS-3721).
func (h Header) Append(dst []byte, sumsLen int) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(4+sumsLen+h.DataLen))
	dst = binary.BigEndian.AppendUint16(dst, uint16(h.len()-lengthsLen))
	dst = binary.LittleEndian.AppendUint64(append(dst, tagOffset), uint64(h.Offset))
	dst = binary.LittleEndian.AppendUint64(append(dst, tagSeqno), uint64(h.Seqno))
	dst = append(dst, tagLast, bit(h.Last))
	dst = binary.LittleEndian.AppendUint32(append(dst, tagDataLen), uint32(h.DataLen))
	if h.Sync {
		dst = append(dst, tagSync, 1)
	}
	return dst
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// ParseHeader decodes a header without PLEN and HLEN, its fields in any order,
// unknown ones skipped. A message that is not protobuf, lacks a required field
// or has a negative offset or data length gives a *[FormatError].
func ParseHeader(b []byte) (Header, error) {
	h, ok := parseFixed(b)
	if !ok {
		var err error
		if h, err = parseAny(b); err != nil {
			return Header{}, err
		}
	}
	if h.DataLen < 0 {
		return Header{}, malformed("packet header: dataLen", 0, "at least 0", fmt.Sprint(h.DataLen))
	}
	if h.Offset < 0 {
		return Header{}, malformed("packet header: offsetInBlock", 0, "at least 0", fmt.Sprint(h.Offset))
	}
	return h, nil
}

// parseFixed decodes what Append and Hadoop write.
func parseFixed(b []byte) (h Header, ok bool) {
	if len(b) != fixedLen && len(b) != fixedSyncLen {
		return h, false
	}
	if b[0] != tagOffset || b[9] != tagSeqno || b[18] != tagLast || b[19] > 1 || b[20] != tagDataLen {
		return h, false
	}
	if len(b) == fixedSyncLen {
		if b[25] != tagSync || b[26] > 1 {
			return h, false
		}
		h.Sync = b[26] == 1
	}
	h.Offset = int64(binary.LittleEndian.Uint64(b[1:]))
	h.Seqno = int64(binary.LittleEndian.Uint64(b[10:]))
	h.Last = b[19] == 1
	h.DataLen = int(int32(binary.LittleEndian.Uint32(b[21:])))
	return h, true
}

func parseAny(b []byte) (h Header, err error) {
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(1, protowire.Fixed64Type):
			h.Offset = int64(f.value)
		case f.is(2, protowire.Fixed64Type):
			h.Seqno = int64(f.value)
		case f.is(3, protowire.VarintType):
			h.Last = f.value != 0
		case f.is(4, protowire.Fixed32Type):
			h.DataLen = int(int32(f.value))
		case f.is(5, protowire.VarintType):
			h.Sync = f.value != 0
		}
	}
	return h, f.finish("packet header", 1, 2, 3, 4)
}
