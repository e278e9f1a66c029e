package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

const (
	manyValues = 4000 // per direction, of small messages
	someValues = 2000 // of larger ones
)

var wireChecks = []check{
	{"wire/header: ours to Hadoop", headersToHadoop},
	{"wire/header: Hadoop's to us", headersToUs},
	{"wire/header: any order, unknown", headersAnyForm},
	{"wire/header: damaged", headersDamaged},
	{"wire/ack: ours to Hadoop", acksToHadoop},
	{"wire/ack: Hadoop's to us", acksToUs},
	{"wire/write request: ours to Hadoop", writesToHadoop},
	{"wire/write request: Hadoop's to us", writesToUs},
	{"wire/read request: ours to Hadoop", readsToHadoop},
	{"wire/read request: Hadoop's to us", readsToUs},
	{"wire/response: both ways", responses},
	{"wire/read status: both ways", readStatuses},
}

// A wireHeader is a packet header as PacketHeader has it.
type wireHeader struct {
	plen int32
	packet.Header
}

func (h wireHeader) String() string {
	return fmt.Sprintf("%d %d %d %t %d %t", h.plen, h.Offset, h.Seqno, h.Last, h.DataLen, h.Sync)
}

// parseWireHeader reads PLEN, HLEN and the header.
func parseWireHeader(b []byte) (wireHeader, error) {
	h := wireHeader{plen: int32(binary.BigEndian.Uint32(b))}
	if n := int(binary.BigEndian.Uint16(b[4:])); n != len(b)-6 {
		return h, fmt.Errorf("HLEN %d of a header of %d bytes", n, len(b)-6)
	}
	var err error
	h.Header, err = packet.ParseHeader(b[6:])
	return h, err
}

// header generates a header whose numbers are not negative.
func (t *trial) header() packet.Header {
	return packet.Header{
		Offset: t.int64() & (1<<63 - 1), Seqno: t.int64(),
		DataLen: int(t.rng.Int32N(1 << (1 + t.rng.IntN(24)))),
		Last:    t.rng.IntN(4) == 0, Sync: t.rng.IntN(2) == 0,
	}
}

func headersToHadoop(t *trial) error {
	for range t.times(manyValues) {
		h, sums := t.header(), t.rng.IntN(1<<16)
		b := h.Append(nil, sums)
		answer, refused := t.ask("header.parse", b)
		if refused != nil {
			t.disagree("%+v: %v", h, refused)
			continue
		}
		if t.same(wireHeader{int32(4 + sums + h.DataLen), h}, strings.Join(answer, " "), "parse %x", b) {
			answer, _ = t.ask("header.make", 4+sums+h.DataLen, h.Offset, h.Seqno, h.Last, h.DataLen, h.Sync)
			t.same(hadoop.Hex(b), answer[0], "bytes of %+v", h)
		}
	}
	return nil
}

func headersToUs(t *trial) error {
	for range t.times(manyValues) {
		h := wireHeader{int32(t.int64()), t.header()}
		if t.rng.IntN(4) > 0 {
			h.plen = 4 + t.rng.Int32N(1<<30)
		}
		if t.rng.IntN(4) == 0 {
			h.Offset, h.DataLen = t.int64(), int(int32(t.int64()))
		}
		answer, refused := t.ask("header.make", h.plen, h.Offset, h.Seqno, h.Last, h.DataLen, h.Sync)
		if refused != nil {
			// PacketHeader asserts that PLEN covers itself
			if h.plen >= 4 {
				t.disagree("%v: %v", h, refused)
			}
			continue
		}
		got, err := parseWireHeader(hadoop.Bytes(answer[0]))
		switch {
		case err == nil:
			t.same(got, h, "parse %s", answer[0])
		case h.Offset < 0 || h.DataLen < 0:
			t.strict("negative offset or length")
		default:
			t.disagree("%s: %v", answer[0], err)
		}
	}
	return nil
}

// headersAnyForm sends headers as another protobuf library might write them.
func headersAnyForm(t *trial) error {
	for range t.times(manyValues) {
		h := t.header()
		parts := [][]byte{
			protowire.AppendFixed64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), uint64(h.Offset)),
			protowire.AppendFixed64(protowire.AppendTag(nil, 2, protowire.Fixed64Type), uint64(h.Seqno)),
			protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), protowire.EncodeBool(h.Last)),
			protowire.AppendFixed32(protowire.AppendTag(nil, 4, protowire.Fixed32Type), uint32(h.DataLen)),
			protowire.AppendVarint(protowire.AppendTag(nil, 5, protowire.VarintType), t.rng.Uint64()&255),
		}
		for range t.rng.IntN(3) {
			parts = append(parts, t.unknownField(6))
		}
		if t.rng.IntN(3) == 0 {
			parts = append(parts, parts[t.rng.IntN(5)]) // the last of two counts
		}
		t.rng.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		if t.rng.IntN(3) == 0 {
			parts = parts[1:] // perhaps a required one
		}
		t.sameHeader(bytes.Join(parts, nil))
	}
	return nil
}

// unknownField returns a field of any type with a number from min on.
func (t *trial) unknownField(min int) []byte {
	num := protowire.Number(min + t.rng.IntN(1<<(1+t.rng.IntN(20))))
	switch t.rng.IntN(5) {
	case 0:
		return protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), t.rng.Uint64())
	case 1:
		return protowire.AppendFixed32(protowire.AppendTag(nil, num, protowire.Fixed32Type), t.rng.Uint32())
	case 2:
		return protowire.AppendFixed64(protowire.AppendTag(nil, num, protowire.Fixed64Type), t.rng.Uint64())
	case 3:
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), t.bytes(t.rng.IntN(300)))
	}
	b := protowire.AppendTag(nil, num, protowire.StartGroupType)
	b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), t.rng.Uint64())
	return protowire.AppendTag(b, num, protowire.EndGroupType)
}

func headersDamaged(t *trial) error {
	for range t.times(manyValues) {
		b := t.header().Append(nil, 0)[6:]
		if t.rng.IntN(3) == 0 {
			b = append(b, t.unknownField(1)...)
		}
		for range 1 + t.rng.IntN(3) {
			b[t.rng.IntN(len(b))] ^= byte(1 << t.rng.IntN(8))
		}
		if t.rng.IntN(4) == 0 {
			b = b[:t.rng.IntN(len(b)+1)]
		}
		t.sameHeader(b)
	}
	return nil
}

// sameHeader records whether both read b alike or both refuse it.
func (t *trial) sameHeader(b []byte) {
	ours, err := packet.ParseHeader(b)
	answer, refused := t.ask("header.proto", 4, b)
	switch {
	case (err != nil) != (refused != nil):
		switch {
		case err != nil && (strings.HasPrefix(answer[1], "-") || strings.HasPrefix(answer[4], "-")):
			t.strict("negative offset or length")
			return
		case err != nil && strings.Contains(err.Error(), "integer overflow"):
			t.strict("varint of more than 64 bits")
			return
		case err != nil && strings.Contains(err.Error(), "invalid field number"):
			t.strict("field number above 2^29-1")
			return
		}
		t.disagree("header %x: ours %v, Hadoop's %v (%v)", b, err, refused, answer)
	case err != nil:
		t.agreed++
	default:
		t.same(wireHeader{4, ours}, strings.Join(answer, " "), "header %x", b)
	}
}

// ack generates an ack of 1 to 10 nodes, as PipelineAck can hold it.
func (t *trial) ack() packet.Ack {
	a := packet.Ack{Seqno: t.int64()}
	if t.rng.IntN(8) == 0 {
		a.Seqno = -1 - int64(t.rng.IntN(2)) // heartbeat, out of band
	}
	if t.rng.IntN(2) == 0 {
		a.DownstreamNanos = uint64(t.int64())
	}
	for range 1 + t.rng.IntN(10) {
		s := packet.Success
		if t.rng.IntN(3) == 0 {
			s = packet.Status(t.rng.IntN(14))
		}
		a.Replies = append(a.Replies, s)
		a.Flags = append(a.Flags, uint32(s)|uint32(t.rng.IntN(4))<<5|uint32(t.rng.IntN(3))<<7)
	}
	return a
}

// ackFields are the fields as ack.parse gives them.
func ackFields(a packet.Ack) string {
	success, oob := true, "-"
	nodes := ""
	for i := range a.Nodes() {
		s := a.Status(i)
		if s != packet.Success {
			success = false
		}
		if a.Seqno == packet.UnknownSeqno && oob == "-" && s >= packet.OOBRestart && s <= packet.OOBReserved3 {
			oob = s.String()
		}
		flag := uint32(s)
		if len(a.Flags) > 0 {
			flag = a.Flags[i]
		}
		nodes += fmt.Sprintf(" %d:%d", s, flag)
	}
	return fmt.Sprintf("%d %d %t %s%s", a.Seqno, a.DownstreamNanos, success, oob, nodes)
}

func acksToHadoop(t *trial) error {
	for range t.times(manyValues) {
		a := t.ack()
		if t.rng.IntN(4) == 0 {
			a.Flags = nil // a datanode from before there were flags
		}
		b := a.Append(nil)
		answer, refused := t.ask("ack.parse", b)
		if refused != nil {
			t.disagree("%+v: %v", a, refused)
			continue
		}
		t.same(ackFields(a), strings.Join(answer, " "), "ack %x", b)
		if a.Flags != nil {
			answer, _ = t.ask("ack.make", a.Seqno, int64(a.DownstreamNanos), list(a.Flags))
			t.same(hadoop.Hex(b), answer[0], "bytes of %+v", a)
		}
	}
	return nil
}

func numbers(statuses []packet.Status) (n []uint8) {
	for _, s := range statuses {
		n = append(n, uint8(s))
	}
	return n
}

func list[E any](values []E) string {
	if len(values) == 0 {
		return "-"
	}
	return strings.Join(strings.Fields(strings.Trim(fmt.Sprint(values), "[]")), ",")
}

func acksToUs(t *trial) error {
	for range t.times(manyValues) {
		a := t.ack()
		var question string
		var args []any
		if t.rng.IntN(2) == 0 {
			question, args = "ack.make", []any{a.Seqno, int64(a.DownstreamNanos), list(a.Flags)}
		} else {
			nanos := fmt.Sprint(int64(a.DownstreamNanos))
			if a.DownstreamNanos == 0 {
				nanos = "-"
			}
			if t.rng.IntN(2) == 0 {
				a.Flags = nil
			}
			question, args = "ack.raw", []any{a.Seqno, nanos, list(numbers(a.Replies)), list(a.Flags)}
		}
		answer, refused := t.ask(question, args...)
		if refused != nil {
			t.disagree("%+v: %v", a, refused)
			continue
		}
		r := bufio.NewReader(bytes.NewReader(hadoop.Bytes(answer[0])))
		got, err := packet.ReadAck(r)
		if err != nil || r.Buffered() > 0 {
			t.disagree("ack %s: %v, %d bytes left over", answer[0], err, r.Buffered())
			continue
		}
		t.same(ackFields(got), ackFields(a), "ack %s", answer[0])
	}
	return nil
}

func storageName(s packet.StorageType) string {
	if int(s) < len(hadoop.StorageTypes) {
		return hadoop.StorageTypes[s]
	}
	return fmt.Sprint(uint32(s))
}

func headText(b packet.Block, k packet.Token) string {
	return fmt.Sprintf("%s %d %d %d %s %s %s %s", hadoop.Text(b.Pool), b.ID, b.Stamp, b.NumBytes,
		hadoop.Hex(k.Identifier), hadoop.Hex(k.Password), hadoop.Text(k.Kind), hadoop.Text(k.Service))
}

func cachingText(c packet.Caching) string {
	drop, ahead := ".", "."
	if c.DropBehind != nil {
		drop = fmt.Sprint(*c.DropBehind)
	}
	if c.Readahead != nil {
		ahead = fmt.Sprint(*c.Readahead)
	}
	return drop + " " + ahead
}

var wireKinds = map[uint32]string{0: "NULL", 1: "CRC32", 2: "CRC32C"}

// writeText is a write request as Ops.java takes and gives it, type of storage
// where Sender has it.
func writeText(w *packet.WriteBlock) string {
	head := headText(w.Block, w.Token)
	fields := strings.Fields(head)
	block, token := strings.Join(fields[:4], " "), strings.Join(fields[4:], " ")
	source := "."
	if w.Source != nil {
		source = hadoop.NodeText(*w.Source)
	}
	return strings.Join([]string{
		block, storageName(w.StorageType), token, hadoop.Text(w.ClientName), hadoop.Join(w.Targets, hadoop.NodeText),
		hadoop.Join(w.TargetStorageTypes, storageName), source, w.Stage.String(), fmt.Sprint(w.PipelineSize),
		fmt.Sprint(w.MinBytesRcvd), fmt.Sprint(w.MaxBytesRcvd), fmt.Sprint(w.LatestStamp),
		wireKinds[w.Checksum.Type], fmt.Sprint(w.Checksum.BytesPerChunk), cachingText(w.Caching),
		fmt.Sprint(w.AllowLazyPersist), fmt.Sprint(w.Pinning),
		hadoop.Join(w.TargetPinnings, func(b bool) string { return fmt.Sprint(b) }), hadoop.Text(w.StorageID),
		hadoop.Join(w.TargetStorageIDs, hadoop.Text),
	}, " ")
}

func readText(r *packet.ReadBlock) string {
	return fmt.Sprintf("%s %s %d %d %t %s", headText(r.Block, r.Token), hadoop.Text(r.ClientName), r.Offset, r.Length,
		r.SendChecksums, cachingText(r.Caching))
}

func (t *trial) head() (b packet.Block, k packet.Token, client string) {
	b = packet.Block{Pool: "BP-" + t.word(), ID: t.int64(), Stamp: t.int64(), NumBytes: t.int64()}
	if t.rng.IntN(2) == 0 {
		k = packet.Token{Identifier: t.bytes(t.rng.IntN(80)), Password: t.bytes(t.rng.IntN(40)), Kind: t.word(), Service: t.word()}
	}
	return b, k, t.word()
}

func (t *trial) caching() (c packet.Caching) {
	if t.rng.IntN(2) == 0 {
		drop := t.rng.IntN(2) == 0
		c.DropBehind = &drop
	}
	if t.rng.IntN(2) == 0 {
		ahead := t.int64()
		c.Readahead = &ahead
	}
	return c
}

func (t *trial) node() packet.DatanodeInfo {
	port := func() uint32 { return t.rng.Uint32N(1 << 16) }
	return packet.DatanodeInfo{
		IPAddr: fmt.Sprintf("10.0.%d.%d", t.rng.IntN(256), t.rng.IntN(256)), HostName: "h" + t.word(), UUID: "u" + t.word(),
		XferPort: port(), InfoPort: port(), IPCPort: port(), InfoSecurePort: port(),
	}
}

func (t *trial) writeBlock() *packet.WriteBlock {
	w := &packet.WriteBlock{
		Stage: packet.Stage(t.rng.IntN(9)), PipelineSize: uint32(t.int64()) & (1<<31 - 1),
		MinBytesRcvd: t.int64(), MaxBytesRcvd: t.int64(), LatestStamp: t.int64(),
		Checksum:    packet.Checksum{Type: uint32(t.rng.IntN(3)), BytesPerChunk: 1 + t.rng.Uint32N(1<<(1+t.rng.IntN(30)))},
		Caching:     t.caching(),
		StorageType: packet.StorageType(1 + t.rng.IntN(6)), AllowLazyPersist: t.rng.IntN(2) == 0, Pinning: t.rng.IntN(2) == 0,
	}
	w.Block, w.Token, w.ClientName = t.head()
	if t.rng.IntN(2) == 0 {
		w.StorageID = "DS-" + t.word()
	}
	if t.rng.IntN(2) == 0 {
		for range 1 + t.rng.IntN(4) {
			w.Targets = append(w.Targets, t.node())
			w.TargetStorageTypes = append(w.TargetStorageTypes, packet.StorageType(1+t.rng.IntN(6)))
			w.TargetPinnings = append(w.TargetPinnings, t.rng.IntN(2) == 0)
			w.TargetStorageIDs = append(w.TargetStorageIDs, "DS-"+t.word())
		}
		if t.rng.IntN(2) == 0 {
			d := t.node()
			w.Source = &d
		}
	}
	return w
}

func (t *trial) readBlock() *packet.ReadBlock {
	r := &packet.ReadBlock{Offset: t.int64(), Length: t.int64(), SendChecksums: t.rng.IntN(2) == 0, Caching: t.caching()}
	r.Block, r.Token, r.ClientName = t.head()
	return r
}

func writesToHadoop(t *trial) error {
	for range t.times(someValues) {
		w := t.writeBlock()
		b := w.Append(nil)
		answer, refused := t.ask("op.parse", b)
		if refused != nil {
			t.disagree("%s: %v", writeText(w), refused)
			continue
		}
		t.same("WRITE_BLOCK "+writeText(w), strings.Join(answer, " "), "request %x", b)
	}
	return nil
}

func writesToUs(t *trial) error {
	for range t.times(someValues) {
		w := t.writeBlock()
		text := writeText(w)
		question := text
		if w.StorageID == "" {
			fields := strings.Fields(text)
			fields[len(fields)-2] = "." // not there, instead of there and empty
			question = strings.Join(fields, " ")
		}
		b, request := t.request("op.write", question)
		if request == nil {
			continue
		}
		got, ok := request.(*packet.WriteBlock)
		if !ok {
			t.disagree("request %x: read as a %T", b, request)
			continue
		}
		t.same(writeText(got), text, "request %x", b)
		// Hadoop writes a node's statistics too, which we do not keep
		if len(w.Targets) == 0 && w.Source == nil {
			t.same(hadoop.Hex(w.Append(nil)), hadoop.Hex(b), "bytes of %s", text)
		}
	}
	return nil
}

// request lets Hadoop make a request and reads it. It returns a nil request
// after a disagreement.
func (t *trial) request(question, text string) ([]byte, any) {
	answer, refused := t.ask(question, text)
	if refused != nil {
		t.disagree("%s %s: %v", question, text, refused)
		return nil, nil
	}
	b := hadoop.Bytes(answer[0])
	r := bufio.NewReader(bytes.NewReader(b))
	request, err := packet.ReadRequest(r, 0)
	if err != nil {
		t.disagree("request %x: %v", b, err)
		return b, nil
	}
	if _, err := r.ReadByte(); err != io.EOF {
		t.disagree("request %x: bytes left over", b)
	}
	return b, request
}

func readsToHadoop(t *trial) error {
	for range t.times(someValues) {
		r := t.readBlock()
		b := r.Append(nil)
		answer, refused := t.ask("op.parse", b)
		if refused != nil {
			t.disagree("%s: %v", readText(r), refused)
			continue
		}
		t.same("READ_BLOCK "+readText(r), strings.Join(answer, " "), "request %x", b)
	}
	return nil
}

func readsToUs(t *trial) error {
	for range t.times(someValues) {
		r := t.readBlock()
		b, request := t.request("op.read", readText(r))
		if request == nil {
			continue
		}
		got, ok := request.(*packet.ReadBlock)
		if !ok {
			t.disagree("request %x: read as a %T", b, request)
			continue
		}
		t.same(readText(got), readText(r), "request %x", b)
		t.same(hadoop.Hex(r.Append(nil)), hadoop.Hex(b), "bytes of %s", readText(r))
	}
	return nil
}

func responseText(r packet.BlockOpResponse) string {
	link, sums, message := ".", ". 0 0", "."
	if r.HasFirstBadLink {
		link = hadoop.Text(r.FirstBadLink)
	}
	if i := r.ReadChecksum; i != nil {
		sums = fmt.Sprintf("%s %d %d", wireKinds[uint32(i.Chunks.Kind.Wire())], i.Chunks.BytesPerChunk(), i.ChunkOffset)
	}
	if r.Message != "" {
		message = hadoop.Text(r.Message)
	}
	return fmt.Sprintf("%d %s %s %s", r.Status, link, sums, message)
}

func (t *trial) response() packet.BlockOpResponse {
	r := packet.BlockOpResponse{Status: packet.Status(t.rng.IntN(14)), HasFirstBadLink: t.rng.IntN(2) == 0}
	if r.HasFirstBadLink {
		r.FirstBadLink = t.word()
	}
	if t.rng.IntN(2) == 0 {
		r.Message = t.word()
	}
	if t.rng.IntN(2) == 0 {
		r.ReadChecksum = &packet.ReadChecksumInfo{
			Chunks:      crc.Chunks{Kind: crc.Kind(t.rng.IntN(3)), Size: 1 + t.rng.IntN(1<<(1+t.rng.IntN(24)))},
			ChunkOffset: t.int64() & (1<<63 - 1),
		}
	}
	return r
}

func responses(t *trial) error {
	for range t.times(someValues) {
		r := t.response()
		text := responseText(r)
		b := r.Append(nil)
		if answer, refused := t.ask("response.parse", b); refused != nil {
			t.disagree("%s: %v", text, refused)
		} else {
			t.same(text, strings.Join(answer, " "), "response %x", b)
		}
		answer, refused := t.ask("response.make", text)
		if refused != nil {
			t.disagree("%s: %v", text, refused)
			continue
		}
		t.same(hadoop.Hex(b), answer[0], "bytes of %s", text)
		got, err := packet.ReadBlockOpResponse(bufio.NewReader(bytes.NewReader(hadoop.Bytes(answer[0]))))
		if err != nil {
			t.disagree("response %s: %v", answer[0], err)
			continue
		}
		t.same(responseText(got), text, "response %s", answer[0])
	}
	return nil
}

func readStatuses(t *trial) error {
	for s := packet.Success; s <= packet.ErrorBlockPinned; s++ {
		b := packet.AppendReadStatus(nil, s)
		answer, _ := t.ask("readstatus.make", uint8(s))
		t.same(hadoop.Hex(b), answer[0], "status %v", s)
		answer, _ = t.ask("readstatus.parse", b)
		t.same(uint8(s), answer[0], "status %v", s)
		got, err := packet.ReadReadStatus(bufio.NewReader(bytes.NewReader(b)))
		t.same(fmt.Sprint(got, err), fmt.Sprint(s, error(nil)), "status %v", s)
	}
	return nil
}
