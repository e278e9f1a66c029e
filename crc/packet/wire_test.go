package packet

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/blockpath/blockpath/crc"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func buffered(b []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(b)) }

// The vectors are bytes that Hadoop's own protobuf schema produces.
var headerVectors = []struct {
	name string
	h    Header
	sums int
	wire string
}{
	{"data", Header{0, 0, 512, false, false}, 4, "00000208 0019 090000000000000000 110000000000000000 1800 2500020000"},
	{"second", Header{64512, 1, 64512, false, false}, 504, "0000fdfc 0019 0900fc000000000000 110100000000000000 1800 2500fc0000"},
	{"hsync", Header{512, 2, 100, false, true}, 4, "0000006c 001b 090002000000000000 110200000000000000 1800 2564000000 2801"},
	{"empty hsync", Header{612, 3, 0, false, true}, 0, "00000004 001b 096402000000000000 110300000000000000 1800 2500000000 2801"},
	{"last", Header{134217728, 2081, 0, true, false}, 0, "00000004 0019 090000000800000000 112108000000000000 1801 2500000000"},
	{"last and sync", Header{612, 4, 0, true, true}, 0, "00000004 001b 096402000000000000 110400000000000000 1801 2500000000 2801"},
	{"heartbeat", Header{0, -1, 0, false, false}, 0, "00000004 0019 090000000000000000 11ffffffffffffffff 1800 2500000000"},
}

func TestHeaderKnownAnswers(t *testing.T) {
	for _, v := range headerVectors {
		wire := unhex(t, v.wire)
		if got := v.h.Append(nil, v.sums); !bytes.Equal(got, wire) {
			t.Errorf("%s: %x, want %x", v.name, got, wire)
		}
		if got, err := ParseHeader(wire[6:]); err != nil || got != v.h {
			t.Errorf("%s: parsed %+v, %v", v.name, got, err)
		}
		if got, err := parseAny(wire[6:]); err != nil || got != v.h {
			t.Errorf("%s: parsed field by field %+v, %v", v.name, got, err)
		}
	}
}

func TestHeaderFieldsInAnyOrder(t *testing.T) {
	want := Header{Offset: 512, Seqno: 7, DataLen: 9, Last: false, Sync: true}
	b := unhex(t, "2801 2509000000 7a03616263 1800 110700000000000000 080f 090002000000000000")
	if got, err := ParseHeader(b); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for _, cut := range []string{"110700000000000000 1800 2509000000", "090002000000000000 1800 2509000000", "090002000000000000 110700000000000000 2509000000",
		"090002000000000000 110700000000000000 1800", "", "09", "ffff"} {
		var e *FormatError
		if _, err := ParseHeader(unhex(t, cut)); !errors.As(err, &e) {
			t.Errorf("%s: %v", cut, err)
		}
	}
}

var ackVectors = []struct {
	name string
	ack  Ack
	wire string
}{
	{"one", Ack{0, []Status{0}, []uint32{0}, 0}, "09 0800 1000 1800 220100"},
	{"three", Ack{1, []Status{0, 0, 0}, []uint32{0, 0, 0}, 1000000}, "11 0802 1000 1000 1000 18c0843d 2203000000"},
	{"heartbeat", Ack{-1, []Status{0}, []uint32{0}, 0}, "09 0801 1000 1800 220100"},
	{"restart", Ack{-2, []Status{OOBRestart}, []uint32{8}, 0}, "09 0803 1008 1800 220108"},
	{"checksum", Ack{5, []Status{ErrorChecksum}, []uint32{2}, 0}, "09 080a 1002 1800 220102"},
	{"mirror lost", Ack{5, []Status{0, Error}, []uint32{0, 1}, 0}, "0c 080a 1000 1001 1800 22020001"},
	{"congested", Ack{300, []Status{0}, []uint32{0x60}, 0}, "0a 08d804 1000 1800 220160"},
	{"no flags", Ack{7, []Status{0, 0}, nil, 0}, "08 080e 1000 1000 1800"},
}

func TestAckKnownAnswers(t *testing.T) {
	var all []byte
	for _, v := range ackVectors {
		wire := unhex(t, v.wire)
		all = append(all, wire...)
		if got := v.ack.Append(nil); !bytes.Equal(got, wire) {
			t.Errorf("%s: %x, want %x", v.name, got, wire)
		}
		got, err := ReadAck(buffered(wire))
		if len(got.Flags) == 0 {
			got.Flags = nil
		}
		if err != nil || !reflect.DeepEqual(got, v.ack) {
			t.Errorf("%s: read %+v, %v", v.name, got, err)
		}
		for i := range v.ack.Replies {
			if got.Status(i) != v.ack.Replies[i] {
				t.Errorf("%s: status %d is %v", v.name, i, got.Status(i))
			}
		}
		for n := range wire {
			_, err := ReadAck(buffered(wire[:n]))
			if n == 0 && err != io.EOF {
				t.Errorf("%s: end of stream before it: %v", v.name, err)
			}
			if n > 0 && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%s: cut after %d bytes: %v", v.name, n, err)
			}
		}
	}
	r := bufio.NewReader(iotest.OneByteReader(bytes.NewReader(all)))
	for _, v := range ackVectors {
		if got, err := ReadAck(r); err != nil || got.Seqno != v.ack.Seqno {
			t.Errorf("%s: in a row: %+v, %v", v.name, got, err)
		}
	}
}

func TestBadAcks(t *testing.T) {
	for name, wire := range map[string]string{
		"no reply":        "04 0800 1800",
		"no seqno":        "04 1000 1800",
		"too long":        "8120",
		"overlong length": "808080808001",
		"not protobuf":    "02 ffff",
		"flags cut":       "06 0800 1000 2202",
		"open group":      "05 0800 1000 0b",
	} {
		b := append(unhex(t, wire), make([]byte, 5000)...)
		var e *FormatError
		if _, err := ReadAck(buffered(b)); !errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func exampleBlock() Block {
	return Block{Pool: "BP-1-127.0.0.1-1", ID: 1073741825, Stamp: 1001, NumBytes: 128 << 20}
}

const (
	writeBlockWire = "001c506c0a4a0a2c0a200a1042502d312d3132372e302e302e312d3110818080800418e907208080804012080a0012001a002200121a444653436c69656e745f4e4f4e4d41505245445543455f315f31200628013000380040004a050802108004520058016800700082010444532d31"
	readBlockWire  = "001c51560a4a0a2c0a200a1042502d312d3132372e302e302e312d3110818080800418e907208080804012080a0012001a002200121a444653436c69656e745f4e4f4e4d41505245445543455f315f3110e80718d00f20012a00"
)

func TestRequestKnownAnswers(t *testing.T) {
	empty := Token{Identifier: []byte{}, Password: []byte{}}
	w := &WriteBlock{Block: exampleBlock(), Token: empty, ClientName: "DFSClient_NONMAPREDUCE_1_1", Stage: SetupCreate, PipelineSize: 1,
		Checksum: ChecksumOf(crc.Chunks{}), StorageType: Disk, StorageID: "DS-1"}
	r := &ReadBlock{Block: exampleBlock(), Token: empty, ClientName: "DFSClient_NONMAPREDUCE_1_1", Offset: 1000, Length: 2000, SendChecksums: true}
	for _, v := range []struct {
		request interface{ Append([]byte) []byte }
		wire    string
	}{{w, writeBlockWire}, {r, readBlockWire}} {
		wire := unhex(t, v.wire)
		if got := v.request.Append([]byte{1})[1:]; !bytes.Equal(got, wire) {
			t.Errorf("%x\nwant %x", got, wire)
		}
		got, err := ReadRequest(buffered(wire), 0)
		if err != nil || !reflect.DeepEqual(got, v.request) {
			t.Errorf("%+v, %v\nwant %+v", got, err, v.request)
		}
		for n := range wire {
			_, err := ReadRequest(buffered(wire[:n]), 0)
			if n == 0 && err != io.EOF {
				t.Errorf("end of stream before the request: %v", err)
			}
			if n > 0 && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("cut after %d bytes: %v", n, err)
			}
		}
	}
}

func TestRequestRoundTrip(t *testing.T) {
	yes, no, ahead := true, false, int64(-1)
	node := func(ip string, port uint32) DatanodeInfo {
		return DatanodeInfo{IPAddr: ip, HostName: "h" + ip, UUID: "u" + ip, XferPort: port, InfoPort: 2, IPCPort: 3, InfoSecurePort: 4}
	}
	source := node("10.0.0.9", 9)
	requests := []interface{ Append([]byte) []byte }{
		&WriteBlock{
			Block:      Block{Pool: "BP-x", ID: math.MinInt64, Stamp: math.MaxInt64, NumBytes: -1},
			Token:      Token{Identifier: []byte{1, 2}, Password: bytes.Repeat([]byte{3}, 300), Kind: "k", Service: "s"},
			TraceInfo:  []byte{8, 1, 16, 2},
			ClientName: strings.Repeat("c", 200),
			Targets:    []DatanodeInfo{node("10.0.0.1", 9866), node("10.0.0.2", 65535)},
			Source:     &source,
			Stage:      SetupStreamingRecovery, PipelineSize: 3, MinBytesRcvd: 1 << 40, MaxBytesRcvd: 1 << 41, LatestStamp: 1002,
			Checksum: Checksum{Type: 77, BytesPerChunk: math.MaxUint32}, Caching: Caching{DropBehind: &yes, Readahead: &ahead},
			StorageType: SSD, StorageID: "DS-0", TargetStorageTypes: []StorageType{Disk, Archive}, TargetStorageIDs: []string{"a", ""},
			AllowLazyPersist: true, Pinning: true, TargetPinnings: []bool{true, false},
		},
		&ReadBlock{Block: exampleBlock(), Token: Token{Identifier: []byte{}, Password: []byte{9}}, Offset: 1 << 40, Length: -1, Caching: Caching{DropBehind: &no}},
	}
	var all []byte
	for _, want := range requests {
		wire := want.Append(nil)
		all = append(all, wire...)
		if _, err := ReadRequest(buffered(wire), len(wire)-6); err == nil {
			t.Error("a message longer than the limit was read")
		}
	}
	r := buffered(all)
	for _, want := range requests {
		if got, err := ReadRequest(r, 0); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v\nwant %+v", got, err, want)
		}
	}
}

func TestBadRequests(t *testing.T) {
	var version *VersionError
	if _, err := ReadRequest(buffered(unhex(t, "001b50 00")), 0); !errors.As(err, &version) || version.Got != 27 {
		t.Errorf("version 27: %v", err)
	}
	var opcode *OpcodeError
	if _, err := ReadRequest(buffered(unhex(t, "001c00 00")), 0); !errors.As(err, &opcode) || opcode.Opcode != 0 {
		t.Errorf("opcode 0: %v", err)
	}
	for name, wire := range map[string]string{
		"empty message":      "001c50 00",
		"empty read":         "001c51 00",
		"overlong length":    "001c50 ffffffffff01",
		"above the limit":    "001c50 81808001",
		"header of ff":       "001c51 09 0a01ff 1000 1800",
		"header no block":    "001c51 0a 0a041200 0a00 10001800",
		"length of 2 GiB":    "001c51 ffffffff07",
		"field number zero":  "001c51 020000",
		"trailing half of a": "001c51 01 08",
	} {
		var e *FormatError
		if _, err := ReadRequest(buffered(append(unhex(t, wire), make([]byte, 100)...)), 0); !errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Memory for a message is only taken once its length has passed the limit, and
// then twice as much as has come of it.
func TestRequestLimitBeforeAllocation(t *testing.T) {
	for _, v := range []struct {
		wire string
		come int // bytes of the message
		most uint64
	}{
		{"001c50 ffffffff0f", 0, 16 << 10},
		{"001c50 808040", 0, 16 << 10},
		{"001c50 808040", 10000, 64 << 10},
		{"001c50 808040", 300000, 1400 << 10},
	} {
		wire := append(unhex(t, v.wire), make([]byte, v.come)...)
		in := buffered(wire)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := ReadRequest(in, 0)
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Fatal("accepted")
		}
		if allocated := after.TotalAlloc - before.TotalAlloc; allocated > v.most {
			t.Errorf("%s and %d bytes: %d bytes allocated", v.wire, v.come, allocated)
		}
	}
}

func TestResponseKnownAnswers(t *testing.T) {
	info := func(k crc.Kind, offset int64) *ReadChecksumInfo {
		return &ReadChecksumInfo{Chunks: crc.Chunks{Kind: k, Size: 512}, ChunkOffset: offset}
	}
	for wire, want := range map[string]BlockOpResponse{
		"0408001200":                             {HasFirstBadLink: true},
		"120801120e3132372e302e302e313a39383636": {Status: Error, FirstBadLink: "127.0.0.1:9866", HasFirstBadLink: true},
		"0e0800220a0a050802108004108004":         {ReadChecksum: info(crc.CRC32C, 512)},
		"0d080022090a0508001080041000":           {ReadChecksum: info(crc.None, 0)},
		"08080412000a" + "2a026e6f"[:6]:          {},
	} {
		b := unhex(t, wire)
		got, err := ReadBlockOpResponse(buffered(b))
		if reflect.DeepEqual(want, BlockOpResponse{}) {
			var e *FormatError
			if !errors.As(err, &e) {
				t.Errorf("malformed %s: %+v, %v", wire, got, err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", wire, got, err)
		}
		if again := want.Append(nil); !bytes.Equal(again, b) {
			t.Errorf("%x, want %s", again, wire)
		}
	}
	want := BlockOpResponse{Status: Error, Message: strings.Repeat("x", 300)}
	if got, err := ReadBlockOpResponse(buffered(want.Append(nil))); err != nil || got != want {
		t.Errorf("message: %+v, %v", got, err)
	}
	var header *crc.HeaderError
	for _, wire := range []string{"0d080022090a0508031080041000", "0c080022080a04080210001000"} {
		if _, err := ReadBlockOpResponse(buffered(unhex(t, wire))); !errors.As(err, &header) {
			t.Errorf("%s: %v", wire, err)
		}
	}
}

func TestReadStatusKnownAnswers(t *testing.T) {
	for wire, want := range map[string]Status{"020806": ChecksumOK, "020800": Success, "020802": ErrorChecksum} {
		b := unhex(t, wire)
		if got, err := ReadReadStatus(buffered(b)); err != nil || got != want {
			t.Errorf("%s: %v, %v", wire, got, err)
		}
		if got := AppendReadStatus(nil, want); !bytes.Equal(got, b) {
			t.Errorf("%x, want %s", got, wire)
		}
	}
}

func TestPacketChunks(t *testing.T) {
	for _, v := range []struct{ size, chunk, want int }{
		{0, 512, 1}, {-5, 512, 1}, {512, 512, 1}, {545, 512, 1}, {549, 512, 1}, {1024, 512, 1}, {33 + 2*516 - 1, 512, 1}, {33 + 2*516, 512, 2},
		{65536, 512, 126}, {131072, 512, 253}, {262144, 512, 507}, {524288, 512, 1015}, {1048576, 512, 2032}, {1056252, 512, 2046},
		{1056405, 512, 2047}, {2097152, 512, 4064}, {4194304, 512, 8128}, {8388608, 512, 16256}, {16777216, 512, 32513}, {1 << 30, 512, 32513},
		{0, 412, 1}, {65536, 4096, 15}, {1048576, 4096, 255}, {1048576, 1024, 1019},
	} {
		if got := PacketChunks(v.size, crc.Chunks{Size: v.chunk}); got != v.want {
			t.Errorf("%d bytes, chunks of %d: %d, want %d", v.size, v.chunk, got, v.want)
		}
	}
	if got := PacketChunks(65536, crc.Chunks{Kind: crc.None}); got != 127 {
		t.Errorf("without checksums: %d", got)
	}
}

// packetBytes returns a whole packet as it is on the wire.
func packetBytes(h Header, sums, data []byte) []byte {
	h.DataLen = len(data)
	return append(append(h.Append(nil, len(sums)), sums...), data...)
}

func TestReceiver(t *testing.T) {
	var stream []byte
	var want [][]byte
	for i, n := range []int{512, 0, 100, 64512, 1, 4096} {
		data := bytes.Repeat([]byte{byte(i + 1)}, n)
		want = append(want, data)
		stream = append(stream, packetBytes(Header{Offset: int64(1000 * i), Seqno: int64(i), Sync: i == 2}, crc.Chunks{}.Append(nil, data), data)...)
	}
	stream = append(stream, packetBytes(Header{Last: true, Seqno: 6}, []byte{0, 0, 0, 0}, nil)...)
	stream = append(stream, "more"...)
	for name, r := range map[string]io.Reader{
		"whole":        bytes.NewReader(stream),
		"byte by byte": iotest.OneByteReader(bytes.NewReader(stream)),
		"halves":       iotest.HalfReader(bytes.NewReader(stream)),
		"data and EOF": iotest.DataErrReader(bytes.NewReader(stream)),
		"bufio":        buffered(stream),
	} {
		rec := NewReceiver(r, 0)
		buf := make([]byte, 70000)
		for i, data := range want {
			h, sumsLen, err := rec.Next()
			if err != nil || h.Seqno != int64(i) || h.Offset != int64(1000*i) || h.DataLen != len(data) || sumsLen != (crc.Chunks{}).SumsLen(len(data)) || h.Sync != (i == 2) {
				t.Fatalf("%s: packet %d: %+v, %d, %v", name, i, h, sumsLen, err)
			}
			sums, got, err := rec.Body(buf[: 0 : sumsLen+h.DataLen+i*7%34])
			if err != nil || !bytes.Equal(got, data) || (crc.Chunks{}).Verify(got, sums, 0) != nil {
				t.Fatalf("%s: packet %d: body %v", name, i, err)
			}
			if name == "bufio" && rec.Buffered() == 0 {
				t.Errorf("%s: packet %d: nothing is said to be buffered", name, i)
			}
		}
		if h, n, err := rec.Next(); err != nil || !h.Last || n != 4 {
			t.Fatalf("%s: last packet: %+v, %d, %v", name, h, n, err)
		}
		if _, _, err := rec.Body(buf); err != nil {
			t.Fatalf("%s: last packet: %v", name, err)
		}
		rest, _ := io.ReadAll(r)
		if name == "whole" && string(rest) != "more" {
			t.Errorf("%s: %q left behind the last packet", name, rest)
		}
	}
}

// countingReader counts calls and returns as much as there is.
type countingReader struct {
	b     []byte
	calls int
}

func (r *countingReader) Read(p []byte) (int, error) {
	r.calls++
	if len(r.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.b)
	r.b = r.b[n:]
	return n, nil
}

func TestReceiverOneReadPerPacket(t *testing.T) {
	const packets = 100
	data := make([]byte, 65536)
	sums := crc.Chunks{}.Append(nil, data)
	r := new(countingReader)
	for i := range packets {
		r.b = append(r.b, packetBytes(Header{Seqno: int64(i)}, sums, data)...)
	}
	rec := NewReceiver(r, 0)
	buf := make([]byte, len(sums)+len(data)+MaxHeaderLen)
	for range packets {
		if _, _, err := rec.Next(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := rec.Body(buf); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := rec.Next(); err != io.EOF {
		t.Fatalf("at the end: %v", err)
	}
	if r.calls > packets+2 {
		t.Errorf("%d reads for %d packets", r.calls, packets)
	}
}

func TestReceiverMalformed(t *testing.T) {
	good := packetBytes(Header{Seqno: 1}, make([]byte, 4), make([]byte, 10))
	header := func(h Header, sums int) []byte { return h.Append(nil, sums) }
	with := func(b []byte, at int, v ...byte) []byte {
		b = bytes.Clone(b)
		copy(b[at:], v)
		return b
	}
	for _, v := range []struct {
		name, what string
		wire       []byte
		max        int
	}{
		{"PLEN 3", "PLEN", with(good, 0, 0, 0, 0, 3), 0},
		{"PLEN negative", "PLEN", with(good, 0, 0xff, 0xff, 0xff, 0xff), 0},
		{"HLEN negative", "HLEN", with(good, 4, 0xff, 0xff), 0},
		{"PLEN + HLEN over the limit", "PLEN + HLEN", with(good, 0, 0x00, 0xff, 0xff, 0xe8), 0},
		{"PLEN + HLEN overflow", "PLEN + HLEN", with(good, 0, 0x7f, 0xff, 0xff, 0xff), 0},
		{"over a small limit", "PLEN + HLEN", good, 42},
		{"HLEN 0", "header", with(good, 4, 0, 0), 0},
		{"header of zeros", "header", with(good, 6, make([]byte, 25)...), 0},
		{"dataLen above PLEN - 4", "dataLen", with(good, 0, 0, 0, 0, 13), 0},
		{"dataLen negative", "dataLen", header(Header{DataLen: -1}, 20), 0},
		{"offset negative", "offsetInBlock", header(Header{Offset: -1, DataLen: 10}, 4), 0},
		{"two stray checksums", "empty packet", header(Header{Last: true}, 5), 0},
		{"last with data", "last packet", header(Header{Last: true, DataLen: 10}, 4), 0},
		{"heartbeat with data", "heartbeat", header(Header{Seqno: -1, DataLen: 10}, 4), 0},
		{"heartbeat and last", "heartbeat", header(Header{Seqno: -1, Last: true}, 0), 0},
	} {
		rec := NewReceiver(bytes.NewReader(append(bytes.Clone(good), v.wire...)), max(v.max, 0))
		offset := int64(len(good))
		if v.max > 0 {
			offset = 0
		} else {
			if _, _, err := rec.Next(); err != nil {
				t.Fatal(err)
			}
			if _, _, err := rec.Body(make([]byte, 14)); err != nil {
				t.Fatal(err)
			}
		}
		_, _, err := rec.Next()
		var e *FormatError
		if !errors.As(err, &e) || !strings.Contains(e.What, v.what) || e.Offset != offset {
			t.Errorf("%s: %v", v.name, err)
		}
	}
	// The largest legal packet is PLEN + HLEN = 16 MiB.
	if _, _, err := NewReceiver(bytes.NewReader(with(good, 0, 0x00, 0xff, 0xff, 0xe7)), 0).Next(); err != nil {
		t.Errorf("PLEN + HLEN at the limit: %v", err)
	}
	rec := NewReceiver(bytes.NewReader(append(packetBytes(Header{Last: true}, nil, nil), good...)), 0)
	if _, _, err := rec.Next(); err != nil {
		t.Fatal(err)
	}
	var e *FormatError
	if _, _, err := rec.Next(); !errors.As(err, &e) || !strings.Contains(e.Expected, "after the last") {
		t.Errorf("packet after the last one: %v", err)
	}
	for n := range good {
		rec := NewReceiver(bytes.NewReader(good[:n]), 0)
		_, _, err := rec.Next()
		if err == nil {
			_, _, err = rec.Body(make([]byte, 100))
		}
		if n == 0 && err != io.EOF {
			t.Errorf("end of stream before a packet: %v", err)
		}
		if n > 0 && !(errors.As(err, &e) && errors.Is(err, io.ErrUnexpectedEOF)) {
			t.Errorf("cut after %d bytes: %v", n, err)
		}
	}
}

func TestReceiverLongHeader(t *testing.T) {
	h := Header{Offset: 5, Seqno: 6, DataLen: 7}
	proto := append(bytes.Repeat([]byte{0x7a, 126}, 1), make([]byte, 126)...)
	proto = bytes.Repeat(proto, 255)
	proto = append(proto, h.Append(nil, 4)[6:]...)
	wire := append([]byte{0, 0, 0, 4 + 4 + 7, byte(len(proto) >> 8), byte(len(proto))}, proto...)
	wire = append(wire, "sumsseventh"...)
	wire = append(wire, h.Append(nil, 4)...)
	rec := NewReceiver(bytes.NewReader(wire), 0)
	got, n, err := rec.Next()
	if err != nil || got != h || n != 4 {
		t.Fatalf("%+v, %d, %v", got, n, err)
	}
	sums, data, err := rec.Body(make([]byte, 0, 100))
	if err != nil || string(sums) != "sums" || string(data) != "seventh" {
		t.Fatalf("%q, %q, %v", sums, data, err)
	}
	if got, _, err := rec.Next(); err != nil || got != h {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestWireAllocations(t *testing.T) {
	data := make([]byte, 65536)
	packet := packetBytes(Header{Offset: 1}, crc.Chunks{}.Append(nil, data), data)
	ack := ackVectors[1].ack.Append(nil)
	buf := make([]byte, 70000)
	in := bytes.NewReader(nil)
	rec := NewReceiver(in, 0)
	acks := bytes.NewReader(nil)
	ackBuf := bufio.NewReader(acks)
	var a ackReader
	n := testing.AllocsPerRun(100, func() {
		in.Reset(packet)
		if _, _, err := rec.Next(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := rec.Body(buf); err != nil {
			t.Fatal(err)
		}
		acks.Reset(ack)
		if err := a.read(ackBuf); err != nil {
			t.Fatal(err)
		}
		if out := a.Append(buf[:0]); len(out) != len(ack) {
			t.Fatal(out)
		}
		Header{}.Append(buf[:0], 4)
	})
	if n > 0 {
		t.Errorf("%v allocations per packet", n)
	}
}
