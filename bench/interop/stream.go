package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

var streamChecks = []check{
	{"wire/packets: ours to Hadoop", packetsToHadoop},
	{"wire/packets: Hadoop's to us", packetsToUs},
	{"wire/packets: damaged", packetsDamaged},
}

// A wirePacket is a packet as it stands in a stream.
type wirePacket struct {
	packet.Header
	sums, data []byte
}

func (p wirePacket) append(dst []byte) []byte {
	dst = p.Header.Append(dst, len(p.sums))
	return append(append(dst, p.sums...), p.data...)
}

func (p wirePacket) String() string {
	return fmt.Sprintf("%v %s %s", wireHeader{int32(4 + len(p.sums) + len(p.data)), p.Header}, hadoop.Hex(p.sums), hadoop.Hex(p.data))
}

// A stream is the packets of one block.
type stream struct {
	chunks    crc.Chunks
	maxChunks int
	packets   []wirePacket
}

func (s stream) bytes() (b []byte) {
	for _, p := range s.packets {
		b = p.append(b)
	}
	return b
}

// stream generates the packets that a client may send for a block: full and
// short ones, flushes that send a chunk's beginning again, empty syncs,
// heartbeats and at the end the last packet.
func (t *trial) stream() stream {
	sizes := []int{1, 7, 16, 512, 4096}
	s := stream{
		chunks:    crc.Chunks{Kind: crc.Kind(t.rng.IntN(3)), Size: sizes[t.rng.IntN(len(sizes))]},
		maxChunks: 1 + t.rng.IntN(1<<t.rng.IntN(8)),
	}
	size := s.chunks.Size
	seqno := t.int64() & (1<<62 - 1)
	offset := t.int64() & (1<<62 - 1)
	offset -= offset % int64(size)
	for range t.rng.IntN(8) {
		p := wirePacket{Header: packet.Header{Offset: offset, Seqno: seqno, Sync: t.rng.IntN(4) == 0}}
		switch t.rng.IntN(8) {
		case 0: // an empty sync
			p.Sync = true
		case 1:
			p.Header = packet.Header{Seqno: packet.HeartbeatSeqno}
			seqno--
		default:
			n := s.maxChunks * size
			if t.rng.IntN(2) == 0 {
				n = 1 + t.rng.IntN(n)
			}
			p.data = t.bytes(n)
			p.sums = s.chunks.Append(nil, p.data)
			p.DataLen = n
			offset += int64(n - n%size)
		}
		seqno++
		s.packets = append(s.packets, p)
	}
	s.packets = append(s.packets, wirePacket{Header: packet.Header{Offset: offset, Seqno: seqno, Last: true, Sync: t.rng.IntN(4) == 0}})
	return s
}

// streamText is a stream as packets.parse answers it; ended says how it ended.
func streamText(packets []wirePacket, ended string) string {
	var b strings.Builder
	for _, p := range packets {
		fmt.Fprintf(&b, "%v ", p)
	}
	return b.String() + ended
}

// receive reads a stream with our receiver. The error is nil if the stream
// ended where a packet may begin.
func receive(b []byte) ([]wirePacket, error) {
	r := packet.NewReceiver(bytes.NewReader(b), 0)
	var packets []wirePacket
	for {
		h, sumsLen, err := r.Next()
		if err == io.EOF {
			return packets, nil
		}
		if err != nil {
			return packets, err
		}
		sums, data, err := r.Body(make([]byte, sumsLen+h.DataLen+packet.MaxHeaderLen))
		if err != nil {
			return packets, err
		}
		packets = append(packets, wirePacket{h, sums, data})
	}
}

func packetsToHadoop(t *trial) error {
	for range t.times(someValues / 2) {
		s := t.stream()
		b := s.bytes()
		answer, refused := t.ask("packets.parse", b)
		if refused != nil {
			t.disagree("stream %x: %v", b, refused)
			continue
		}
		t.same(streamText(s.packets, "end"), strings.Join(answer, " "), "stream of %d bytes", len(b))
	}
	return nil
}

func packetsToUs(t *trial) error {
	for range t.times(someValues / 2) {
		s := t.stream()
		b, refused := t.packetsByHadoop(s)
		if refused != nil {
			t.disagree("packets: %v", refused)
			continue
		}
		got, err := receive(b)
		if err != nil {
			t.disagree("stream %x: %v", b, err)
			continue
		}
		t.same(streamText(got, "end"), streamText(s.packets, "end"), "stream of %d bytes", len(b))
		t.same(hadoop.Hex(s.bytes()), hadoop.Hex(b), "bytes of the stream")
		for _, p := range got {
			if err := s.chunks.Verify(p.data, p.sums, p.Offset); err != nil {
				t.disagree("packet %d: %v", p.Seqno, err)
			}
		}
	}
	return nil
}

// packetsByHadoop lets Hadoop's client make the bytes of a stream.
func (t *trial) packetsByHadoop(s stream) ([]byte, *hadoop.Refusal) {
	args := []any{hadoopKind(s.chunks.Kind), s.chunks.Size, s.maxChunks}
	for _, p := range s.packets {
		args = append(args, p.Offset, p.Seqno, p.Last, p.Sync, p.data)
	}
	answer, refused := t.ask("packets.make", args...)
	if refused != nil {
		return nil, refused
	}
	return hadoop.Bytes(answer[0]), nil
}

// packetsDamaged cuts streams off and overwrites lengths and header bytes. Both
// must read the same packets and find the same one bad.
func packetsDamaged(t *trial) error {
	for range t.times(someValues) {
		s := t.stream()
		var starts []int
		var b []byte
		for _, p := range s.packets {
			starts = append(starts, len(b))
			b = p.append(b)
		}
		at := starts[t.rng.IntN(len(starts))]
		switch t.rng.IntN(5) {
		case 0:
			b = b[:t.rng.IntN(len(b))]
		case 1: // PLEN
			limit := int32(packet.MaxPacketLen)
			lengths := []int32{-1 << 31, -1, 0, 3, 4, 5, int32(t.rng.Uint32()), limit - 26, limit - 25, limit, limit + 1, 1<<31 - 1}
			binary.BigEndian.PutUint32(b[at:], uint32(lengths[t.rng.IntN(len(lengths))]))
		case 2: // HLEN
			lengths := []int16{-1 << 15, -1, 0, 1, 24, 25, 26, 27, 28, 1<<15 - 1}
			binary.BigEndian.PutUint16(b[at+4:], uint16(lengths[t.rng.IntN(len(lengths))]))
		case 3: // a header byte
			b[at+6+t.rng.IntN(25)] ^= byte(1 + t.rng.IntN(255))
		case 4: // something after the end
			b = append(b, t.stream().packets[0].append(nil)...)
		}
		t.sameStream(b)
	}
	return nil
}

// sameStream records whether both read the same packets and come to the same
// end.
func (t *trial) sameStream(b []byte) {
	ours, err := receive(b)
	answer, refused := t.ask("packets.parse", b)
	if refused != nil {
		t.disagree("stream %x: %v", b, refused)
		return
	}
	hadoops := strings.Join(answer, " ")
	if err == nil {
		t.same(streamText(ours, "end"), hadoops, "stream %x", b)
		return
	}
	read := streamText(ours, "")
	rest, ok := strings.CutPrefix(hadoops, read)
	if !ok {
		t.disagree("stream %x: packets before the end: ours %s, Hadoop's %s", b, read, hadoops)
		return
	}
	if strings.HasPrefix(rest, "error ") {
		t.agreed++
		return
	}
	// Hadoop goes on where we stop.
	var f *packet.FormatError
	if errors.As(err, &f) {
		switch f.What {
		case "packet: checksums of an empty packet", "packet: last packet in block", "packet: heartbeat", "packet",
			"packet header: dataLen", "packet header: offsetInBlock":
			t.strict(f.What + ": expected " + f.Expected)
			return
		}
	}
	t.disagree("stream %x: ours %v, Hadoop's %s", b, err, rest)
}

// hadoopKind is the name of DataChecksum.Type.
func hadoopKind(k crc.Kind) string {
	return map[crc.Kind]string{crc.CRC32C: "CRC32C", crc.CRC32: "CRC32", crc.None: "NULL"}[k]
}
