package packet

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/blockpath/blockpath/crc"
)

// A source serves READ_BLOCK from memory, as a datanode does: whole chunks
// around the range, checksums of the whole block, an empty last packet.
type source struct {
	block    []byte
	chunks   crc.Chunks
	perSend  int // chunks per packet
	response *BlockOpResponse
	mangle   func(i int, h *Header, sums, data *[]byte) (stop bool)
	status   chan Status // what the reader says at the end; closed without if it says nothing
	requests int
}

func (s *source) serve(conn io.ReadWriteCloser) error {
	defer conn.Close()
	defer close(s.status)
	in := bufio.NewReader(conn)
	for {
		req, err := ReadRequest(in, 0)
		if err != nil {
			return err
		}
		s.requests++
		r := req.(*ReadBlock)
		bpc := int64(s.chunks.BytesPerChunk())
		length := int64(len(s.block))
		want := r.Length
		if want < 0 {
			want = length - r.Offset
		}
		start := r.Offset - r.Offset%bpc
		end := min((r.Offset+want+bpc-1)/bpc*bpc, length)
		res := BlockOpResponse{ReadChecksum: &ReadChecksumInfo{Chunks: s.chunks, ChunkOffset: start}}
		if s.response != nil {
			res = *s.response
		}
		conn.Write(res.Append(nil))
		if s.response != nil && s.response.Status != Success {
			return nil
		}
		seqno := int64(0)
		for i := 0; ; i++ {
			n := min(end-start, int64(s.perSend)*bpc)
			data := bytes.Clone(s.block[start : start+n])
			sums := s.chunks.Append(nil, data)
			h := Header{Offset: start, Seqno: seqno, DataLen: int(n), Last: n == 0}
			if s.mangle != nil && s.mangle(i, &h, &sums, &data) {
				return nil
			}
			if _, err := conn.Write(append(append(h.Append(nil, len(sums)), sums...), data...)); err != nil {
				return err
			}
			seqno++
			start += n
			if n == 0 {
				break
			}
		}
		status, err := ReadReadStatus(in)
		if err != nil {
			return err
		}
		s.status <- status
	}
}

func newSource(n int, c crc.Chunks) *source {
	return &source{block: pattern(n, 5), chunks: c, perSend: 16, status: make(chan Status, 100)}
}

func readRequest(offset, length int64) ReadBlock {
	return ReadBlock{Block: exampleBlock(), ClientName: "test", Offset: offset, Length: length, SendChecksums: true}
}

func TestReaderRanges(t *testing.T) {
	checkLeaks(t, nil)
	for _, c := range []crc.Chunks{{}, {Kind: crc.CRC32, Size: 64}, {Kind: crc.None}, {Size: 1000}} {
		s := newSource(40000, c)
		conn, served := dial(t, "tcp", s.serve)
		ctx := deadline(t)
		rng := rand.New(rand.NewPCG(3, 4))
		want := ChecksumOK
		if c.Kind == crc.None {
			want = Success
		}
		ranges := [][2]int64{{0, 40000}, {0, 0}, {512, 0}, {1000, 0}, {40000, 0}, {0, 1}, {511, 2}, {39999, 1}, {39000, 1000}, {513, 39487}, {0, -1}, {700, -1}}
		for range 60 {
			a := rng.Int64N(40000)
			ranges = append(ranges, [2]int64{a, rng.Int64N(40001 - a)})
		}
		for i, v := range ranges {
			s.perSend = 1 + rng.IntN(200)
			var sums []byte
			covered := 0
			r, err := NewReader(ctx, conn, readRequest(v[0], v[1]), ReaderConfig{AllowNone: true, Sums: func(s []byte, n int) {
				sums = append(sums, s...)
				covered += n
			}})
			if err != nil {
				t.Fatalf("%v: %v", v, err)
			}
			end, way := v[0]+v[1], i%4
			if v[1] < 0 { // its end is only where the last packet says
				end, way = 40000, 0
			}
			if v[1] == 0 { // a chunk may come nevertheless, and has to be read
				way = 0
			}
			var got []byte
			switch way {
			case 0:
				var b bytes.Buffer
				_, err = r.WriteTo(&b)
				got = b.Bytes()
			case 1:
				got, err = io.ReadAll(iotest.OneByteReader(r))
			case 2:
				got = make([]byte, end-v[0])
				_, err = io.ReadFull(r, got) // Close reads the last packet
			case 3:
				got, err = io.ReadAll(struct{ io.Reader }{r})
			}
			if err != nil || !bytes.Equal(got, s.block[v[0]:end]) {
				t.Fatalf("%v: %d bytes, %v", v, len(got), err)
			}
			bpc := int64(c.BytesPerChunk())
			if v[0]%bpc == 0 && (end%bpc == 0 || end == 40000) && (covered != len(got) || !bytes.Equal(sums, c.Append(nil, got))) {
				t.Fatalf("%v: %d bytes of sums for %d of %d", v, len(sums), covered, len(got))
			}
			if !r.Close() {
				t.Fatalf("%v: the connection is not reusable", v)
			}
			if st := <-s.status; st != want {
				t.Fatalf("%v: status %v", v, st)
			}
			if _, err := r.Read(make([]byte, 1)); !errors.Is(err, ErrClosed) {
				t.Fatalf("read after close: %v", err)
			}
		}
		conn.Close()
		<-served
		if s.requests != len(ranges) {
			t.Errorf("%d requests over the connection, want %d", s.requests, len(ranges))
		}
	}
}

// Only verified bytes come out, whatever the way of reading.
func TestReaderDamage(t *testing.T) {
	checkLeaks(t, nil)
	rng := rand.New(rand.NewPCG(9, 9))
	told := 0 // datanodes that have heard of the damage
	for i := range 200 {
		s := newSource(20000, crc.Chunks{})
		offset := rng.Int64N(10000)
		length := 1 + rng.Int64N(20000-offset)
		at := offset/512*512 + rng.Int64N(offset+length-offset/512*512) // damaged byte, in a chunk of the range
		inSums := i%3 == 0
		s.mangle = func(_ int, h *Header, sums, data *[]byte) bool {
			if k := at - h.Offset; k >= 0 && k < int64(h.DataLen) {
				if inSums {
					(*sums)[k/512*4+k%4] ^= 1
				} else {
					(*data)[k] ^= 0x80
				}
			}
			return false
		}
		conn, served := dial(t, "tcp", s.serve)
		r, err := NewReader(deadline(t), conn, readRequest(offset, length), ReaderConfig{})
		if err != nil {
			t.Fatal(err)
		}
		var got []byte
		switch i % 4 {
		case 0:
			var b bytes.Buffer
			_, err = r.WriteTo(&b)
			got = b.Bytes()
		case 1:
			got, err = io.ReadAll(iotest.OneByteReader(r))
		default:
			p := make([]byte, 1+rng.IntN(20000))
			for err == nil {
				var n int
				clear(p)
				n, err = r.Read(p)
				if !bytes.Equal(p[n:], make([]byte, len(p)-n)) {
					t.Fatal("bytes behind the verified ones")
				}
				got = append(got, p[:n]...)
			}
		}
		chunk := at / 512 * 512
		var bad *crc.MismatchError
		var re *ReadError
		if !errors.As(err, &bad) || !errors.As(err, &re) || bad.Offset != chunk || re.Offset != chunk {
			t.Fatalf("byte %d: %v", at, err)
		}
		if want := s.block[offset:max(chunk, offset)]; !bytes.Equal(got, want) {
			t.Fatalf("%d bytes before the error, want %d", len(got), len(want))
		}
		if r.Close() {
			t.Fatal("reusable after a mismatch")
		}
		conn.Close()
		<-served
		if status, ok := <-s.status; ok {
			if told++; status != ErrorChecksum {
				t.Fatalf("the datanode is told %v", status)
			}
		}
	}
	if told == 0 {
		t.Error("no datanode is told of the damage")
	}
}

func TestReaderMalformed(t *testing.T) {
	checkLeaks(t, nil)
	for _, v := range []struct {
		name, want string
		mangle     func(i int, h *Header, sums, data *[]byte) bool
	}{
		{"gap", "offsetInBlock", func(i int, h *Header, _, _ *[]byte) bool { h.Offset += 512 * bool64(i == 1); return false }},
		{"repeat", "offsetInBlock", func(i int, h *Header, _, _ *[]byte) bool { h.Offset -= 512 * bool64(i == 1); return false }},
		{"seqno repeated", "seqno", func(i int, h *Header, _, _ *[]byte) bool { h.Seqno -= bool64(i == 1); return false }},
		{"seqno skipped", "seqno", func(i int, h *Header, _, _ *[]byte) bool { h.Seqno += bool64(i == 1); return false }},
		{"heartbeat", "seqno", func(i int, h *Header, sums, data *[]byte) bool {
			if i == 1 {
				*h, *sums, *data = Header{Seqno: -1}, nil, nil
			}
			return false
		}},
		{"early last packet", "last packet", func(i int, h *Header, sums, data *[]byte) bool {
			if i == 1 {
				h.Last, h.DataLen, *sums, *data = true, 0, nil, nil
			}
			return false
		}},
		{"empty packet", "dataLen", func(i int, h *Header, sums, data *[]byte) bool {
			if i == 1 {
				h.DataLen, *sums, *data = 0, nil, nil
			}
			return false
		}},
		{"no sums", "checksums", func(i int, h *Header, sums, _ *[]byte) bool {
			if i == 1 {
				*sums = nil
			}
			return false
		}},
		{"a sum too many", "checksums", func(i int, h *Header, sums, _ *[]byte) bool {
			if i == 1 {
				*sums = append(*sums, 0, 0, 0, 0)
			}
			return false
		}},
		{"short chunk before the end", "dataLen", func(i int, h *Header, sums, data *[]byte) bool {
			if i == 1 {
				h.DataLen -= 100
				*data = (*data)[:h.DataLen]
				*sums = crc.Chunks{}.Append(nil, *data)
			}
			return false
		}},
		{"trailer with wrong seqno", "seqno", func(i int, h *Header, _, _ *[]byte) bool { h.Seqno += bool64(h.Last); return false }},
		{"trailer with wrong offset", "offsetInBlock", func(i int, h *Header, _, _ *[]byte) bool { h.Offset += bool64(h.Last); return false }},
		{"data instead of the trailer", "behind the range", func(i int, h *Header, sums, data *[]byte) bool {
			if h.Last {
				h.Last, h.DataLen, *data, *sums = false, 1, []byte{1}, []byte{0, 0, 0, 0}
			}
			return false
		}},
		{"end of stream", "end of the stream", func(i int, h *Header, _, _ *[]byte) bool { return i == 1 }},
		{"no trailer", "end of the stream", func(i int, h *Header, _, _ *[]byte) bool { return h.Last }},
	} {
		s := newSource(20000, crc.Chunks{})
		s.mangle = v.mangle
		conn, served := dial(t, "tcp", s.serve)
		r, err := NewReader(deadline(t), conn, readRequest(0, 20000), ReaderConfig{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		var e *FormatError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), v.want) {
			t.Errorf("%s: %v", v.name, err)
		}
		if !bytes.Equal(got, s.block[:len(got)]) || len(got)%512 != 0 && len(got) != 20000 {
			t.Errorf("%s: %d bytes", v.name, len(got))
		}
		if r.Close() {
			t.Errorf("%s: reusable", v.name)
		}
		conn.Close()
		<-served
	}
}

func bool64(b bool) int64 { return int64(bit(b)) }

func TestReaderRefusals(t *testing.T) {
	checkLeaks(t, nil)
	info := func(k crc.Kind, offset int64) *ReadChecksumInfo {
		return &ReadChecksumInfo{Chunks: crc.Chunks{Kind: k}, ChunkOffset: offset}
	}
	var op *OpError
	var unverified *UnverifiedError
	var format *FormatError
	for _, v := range []struct {
		name string
		res  BlockOpResponse
		as   any
	}{
		{"error", BlockOpResponse{Status: Error, Message: "no such block"}, &op},
		{"no checksums", BlockOpResponse{ReadChecksum: info(crc.None, 512)}, &unverified},
		{"chunk after the offset", BlockOpResponse{ReadChecksum: info(crc.CRC32C, 1024)}, &format},
		{"chunk before the offset", BlockOpResponse{ReadChecksum: info(crc.CRC32C, 0)}, &format},
		{"no checksum information", BlockOpResponse{}, &format},
	} {
		s := newSource(2000, crc.Chunks{})
		s.response = &v.res
		conn, served := dial(t, "tcp", s.serve)
		if _, err := NewReader(deadline(t), conn, readRequest(600, 100), ReaderConfig{}); !errors.As(err, v.as) {
			t.Errorf("%s: %v", v.name, err)
		}
		conn.Close()
		<-served
	}
	// No checksums asked for: NULL is what was wanted.
	s := newSource(2000, crc.Chunks{Kind: crc.None})
	conn, served := dial(t, "tcp", s.serve)
	req := readRequest(600, 100)
	req.SendChecksums = false
	r, err := NewReader(deadline(t), conn, req, ReaderConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, s.block[600:700]) || !r.Close() {
		t.Error(err)
	}
	conn.Close()
	<-served
}

func TestReaderContext(t *testing.T) {
	checkLeaks(t, nil)
	s := newSource(20000, crc.Chunks{})
	hold := make(chan struct{})
	s.mangle = func(i int, h *Header, _, _ *[]byte) bool {
		if i == 1 {
			<-hold
		}
		return false
	}
	conn, served := dial(t, "tcp", s.serve)
	ctx, cancel := context.WithCancelCause(context.Background())
	r, err := NewReader(ctx, conn, readRequest(0, 20000), ReaderConfig{})
	if err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	time.AfterFunc(10*time.Millisecond, func() { cancel(enough) })
	got, err := io.ReadAll(r)
	if !errors.Is(err, enough) || len(got) != 16*512 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if r.Close() {
		t.Error("reusable")
	}
	close(hold)
	<-served
	s = newSource(20000, crc.Chunks{})
	s.mangle = func(i int, h *Header, _, _ *[]byte) bool { time.Sleep(200 * time.Millisecond); return true }
	conn, served = dial(t, "tcp", s.serve)
	if r, err = NewReader(deadline(t), conn, readRequest(0, 20000), ReaderConfig{Timeout: 20 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if _, err = io.ReadAll(r); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	conn.Close()
	<-served
}

// What a datanode claims is not believed before it is checked.
func TestReaderBoundsMemory(t *testing.T) {
	res := BlockOpResponse{ReadChecksum: &ReadChecksumInfo{}}
	for _, h := range []Header{{DataLen: 1 << 30}, {DataLen: 1<<20 + 512}} {
		wire := h.Append(res.Append(nil), (crc.Chunks{}).SumsLen(h.DataLen))
		r, err := NewReader(context.Background(), &memoryConn{in: bytes.NewReader(wire)}, readRequest(0, 1<<40), ReaderConfig{MaxPacketLen: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		var e *FormatError
		if _, err := r.Read(make([]byte, 10)); !errors.As(err, &e) || cap(r.buf) > 0 {
			t.Errorf("%d bytes of data: %v, and a buffer of %d", h.DataLen, err, cap(r.buf))
		}
	}
}

// A writer's error is the writer's; the Reader goes on behind what was taken.
func TestReaderWriteToError(t *testing.T) {
	s := newSource(20000, crc.Chunks{})
	conn, served := dial(t, "tcp", s.serve)
	r, err := NewReader(deadline(t), conn, readRequest(100, 15000), ReaderConfig{})
	if err != nil {
		t.Fatal(err)
	}
	full := errors.New("full")
	var got []byte
	n, err := r.WriteTo(writerFunc(func(p []byte) (int, error) {
		if len(got)+len(p) > 9000 {
			k := 9000 - len(got)
			got = append(got, p[:k]...)
			return k, full
		}
		got = append(got, p...)
		return len(p), nil
	}))
	if n != 9000 || err != full {
		t.Fatal(n, err)
	}
	rest, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(append(got, rest...), s.block[100:15100]) || !r.Close() {
		t.Fatal(err)
	}
	conn.Close()
	<-served
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestReaderAllocations(t *testing.T) {
	s := newSource(16<<20, crc.Chunks{})
	s.perSend = 128
	var stream []byte
	for at := 0; at < 16<<20; at += 65536 {
		data := s.block[at : at+65536]
		stream = append(stream, packetBytes(Header{Offset: int64(at), Seqno: int64(at / 65536)}, crc.Chunks{}.Append(nil, data), data)...)
	}
	res := BlockOpResponse{ReadChecksum: &ReadChecksumInfo{}}
	conn := &memoryConn{in: bytes.NewReader(append(res.Append(nil), stream...))}
	r, err := NewReader(context.Background(), conn, readRequest(0, 16<<20), ReaderConfig{})
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 65536)
	if allocs := testing.AllocsPerRun(200, func() {
		if _, err := io.ReadFull(r, p); err != nil {
			t.Fatal(err)
		}
	}); allocs > 0 {
		t.Errorf("%v allocations per packet", allocs)
	}
}

// A memoryConn reads what was there from the beginning.
type memoryConn struct {
	in io.Reader
}

func (c *memoryConn) Read(p []byte) (int, error)  { return c.in.Read(p) }
func (c *memoryConn) Write(p []byte) (int, error) { return len(p), nil }
func (c *memoryConn) Close() error                { return nil }

func ExampleHeader() {
	h := Header{Offset: 64512, Seqno: 1, DataLen: 64512}
	fmt.Printf("%x\n", h.Append(nil, 504))
	// Output: 0000fdfc00190900fc00000000000011010000000000000018002500fc0000
}
