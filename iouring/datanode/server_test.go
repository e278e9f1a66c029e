//go:build linux || darwin

package datanode

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// startServer serves s on a unix socket and returns its address. The server is
// shut down in the end, before the store closes.
func startServer(t testing.TB, s *Store, cfg ServerConfig) (*Server, net.Addr) {
	t.Helper()
	return startServerOn(t, s, cfg, "unix", filepath.Join(t.TempDir(), "s"))
}

func startServerOn(t testing.TB, s *Store, cfg ServerConfig, network, address string) (*Server, net.Addr) {
	t.Helper()
	server := NewServer(s, cfg)
	return server, serveOn(t, server, network, address)
}

func serveOn(t testing.TB, server *Server, network, address string) net.Addr {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(bg, 5*time.Second)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr()
}

// filesServer returns a server that sends files directly, or never does.
func filesServer(s *Store, cfg ServerConfig, files bool) *Server {
	server := NewServer(s, cfg)
	server.sendFilesTo = func(net.Addr) bool { return files && canSendFiles }
	return server
}

// A peer is the client's side of a connection, byte by byte.
type peer struct {
	testing.TB
	net.Conn
	in *bufio.Reader
}

func dial(t testing.TB, addr net.Addr) *peer {
	t.Helper()
	c, err := net.Dial(addr.Network(), addr.String())
	if err != nil {
		t.Fatal(err)
	}
	return newPeer(t, c)
}

func newPeer(t testing.TB, c net.Conn) *peer {
	t.Helper()
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return &peer{TB: t, Conn: c, in: bufio.NewReader(c)}
}

// write sends b. That the server has closed meanwhile is no failure.
func (p *peer) write(b []byte) { _, _ = p.Conn.Write(b) }

func writeRequest(b packet.Block, c crc.Chunks) *packet.WriteBlock {
	return &packet.WriteBlock{
		Block: b, ClientName: "DFSClient_NONMAPREDUCE_1_1", Stage: packet.SetupCreate, PipelineSize: 1,
		Checksum: packet.ChecksumOf(c), StorageID: "DS-1",
	}
}

// open asks for a new block and expects success.
func (p *peer) open(b packet.Block, c crc.Chunks) {
	p.Helper()
	p.write(writeRequest(b, c).Append(nil))
	if r := p.response(); r.Status != packet.Success || !r.HasFirstBadLink || r.FirstBadLink != "" {
		p.Fatalf("response %+v", r)
	}
}

func (p *peer) response() packet.BlockOpResponse {
	p.Helper()
	r, err := packet.ReadBlockOpResponse(p.in)
	if err != nil {
		p.Fatalf("response: %v", err)
	}
	return r
}

func wirePacket(h packet.Header, sums, data []byte) []byte {
	h.DataLen = len(data)
	return append(append(h.Append(nil, len(sums)), sums...), data...)
}

func (p *peer) packet(h packet.Header, c crc.Chunks, data []byte) {
	p.write(wirePacket(h, oracleSums(c, data), data))
}

func (p *peer) ack(seqno int64, status packet.Status) {
	p.Helper()
	a, err := packet.ReadAck(p.in)
	if err != nil {
		p.Fatalf("ack of %d: %v", seqno, err)
	}
	if a.Seqno != seqno || a.Nodes() != 1 || a.Status(0) != status {
		p.Fatalf("ack %+v, expected %d %v", a, seqno, status)
	}
}

// eof expects that the server closes without another byte.
func (p *peer) eof() {
	p.Helper()
	if b, err := io.ReadAll(p.in); len(b) > 0 || err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
		p.Fatalf("expected the end, got % x, %v", b, err)
	}
}

// put writes a whole block in packets of n bytes.
func (p *peer) put(b packet.Block, c crc.Chunks, data []byte, n int) {
	p.Helper()
	p.open(b, c)
	done := make(chan struct{})
	go func() {
		defer close(done)
		seqno := int64(0)
		for off := 0; off < len(data); off += n {
			p.packet(packet.Header{Offset: int64(off), Seqno: seqno}, c, data[off:min(off+n, len(data))])
			seqno++
		}
		p.packet(packet.Header{Offset: int64(len(data)), Seqno: seqno, Last: true}, c, nil)
	}()
	for seqno := range int64((len(data)+n-1)/n + 1) {
		p.ack(seqno, packet.Success)
	}
	<-done
}

// get reads a range and returns the packets' data and where it begins.
func (p *peer) get(req packet.ReadBlock) (data []byte, offset int64) {
	p.Helper()
	p.write(req.Append(nil))
	r := p.response()
	if r.Status != packet.Success || r.ReadChecksum == nil {
		p.Fatalf("response %+v", r)
	}
	in := packet.NewReceiver(p.in, 0)
	at := r.ReadChecksum.ChunkOffset
	for seqno := int64(0); ; seqno++ {
		h, sumsLen, err := in.Next()
		if err != nil {
			p.Fatal(err)
		}
		if h.Seqno != seqno || h.Offset != at {
			p.Fatalf("packet %+v, expected seqno %d at %d", h, seqno, at)
		}
		sums, body, err := in.Body(make([]byte, sumsLen+h.DataLen))
		if err != nil {
			p.Fatal(err)
		}
		if h.Last {
			break
		}
		if err := r.ReadChecksum.Chunks.Verify(body, sums, at); err != nil {
			p.Fatal(err)
		}
		data = append(data, body...)
		at += int64(len(body))
	}
	p.write(packet.AppendReadStatus(nil, packet.ChecksumOK))
	return data, r.ReadChecksum.ChunkOffset
}

func readRequest(b packet.Block, off, n int64) packet.ReadBlock {
	return packet.ReadBlock{Block: b, ClientName: "c", Offset: off, Length: n, SendChecksums: true}
}

func TestServerRoundTrip(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	_, unix := startServer(t, s, ServerConfig{})
	_, tcp := startServerOn(t, s, ServerConfig{}, "tcp", "127.0.0.1:0")
	id := int64(0)
	for _, addr := range []net.Addr{unix, tcp} {
		for _, kind := range []crc.Kind{crc.CRC32C, crc.CRC32, crc.None} {
			for _, n := range []int{0, 1, 511, 512, 513, 64512, 64513, 1<<20 + 77} {
				id++
				c, b, data := crc.Chunks{Kind: kind}, testBlock(id), randomBytes(uint64(n), n)
				p := dial(t, addr)
				p.put(b, c, data, 64512)
				p.eof()
				checkFiles(t, s, b, c, data)
				q := dial(t, addr)
				for range 3 { // one connection, several reads
					if got, off := q.get(readRequest(b, 0, -1)); off != 0 || !bytes.Equal(got, data) {
						t.Fatalf("%v %d bytes: got %d from %d on", kind, n, len(got), off)
					}
				}
				q.Close()
			}
		}
	}
}

// The known answers of the protocol, byte by byte.
func TestServerBytes(t *testing.T) {
	s := openStore(t, t.TempDir())
	_, addr := startServer(t, s, ServerConfig{})
	p := dial(t, addr)
	hex := func(s string) []byte {
		var b []byte
		_, err := fmt.Sscanf(strings.ReplaceAll(s, " ", ""), "%x", &b)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	expect := func(s string) {
		t.Helper()
		got := make([]byte, len(hex(s)))
		if _, err := io.ReadFull(p.in, got); err != nil || !bytes.Equal(got, hex(s)) {
			t.Fatalf("got % x, %v, expected %s", got, err, s)
		}
	}
	p.write(hex("001c506c0a4a0a2c0a200a1042502d312d3132372e302e302e312d3110818080800418e907208080804012080a0012001a002200121a444653436c69656e745f4e4f4e4d41505245445543455f315f31200628013000380040004a050802108004520058016800700082010444532d31"))
	expect("0408001200")
	p.write(append(hex("00000208 0019 090000000000000000 110000000000000000 1800 2500020000 30fcedc0"), make([]byte, 512)...))
	expect("09 0800 1000 1800 220100")
	p.write(hex("00000004 0019 090000000000000000 11ffffffffffffffff 1800 2500000000"))
	expect("09 0801 1000 1800 220100")
	p.write(hex("00000008 0019 090002000000000000 110100000000000000 1801 2500000000 00000000"))
	expect("09 0802 1000 1800 220100")
	p.eof()
	p = dial(t, addr)
	req := readRequest(packet.Block{Pool: testPool, ID: 1073741825, Stamp: 1001}, 0, 512)
	p.write(req.Append(nil))
	expect("0d 0800 2209 0a05 0802 108004 1000")
	expect("00000208 0019 090000000000000000 110000000000000000 1800 2500020000 30fcedc0")
	if _, err := io.CopyN(io.Discard, p.in, 512); err != nil {
		t.Fatal(err)
	}
	expect("00000004 0019 090002000000000000 110100000000000000 1801 2500000000")
}

// Every row of HDFS.md 2.5 that a receiver on the write path has to refuse. What
// was acknowledged before stays, and nothing else.
func TestServerMalformedPackets(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	server, addr := startServer(t, s, ServerConfig{})
	c := crc.Chunks{}
	first := randomBytes(9, 700)
	more := randomBytes(10, 2048)
	raw := func(plen, hlen int, header, rest []byte) []byte {
		b := binary.BigEndian.AppendUint32(nil, uint32(plen))
		b = binary.BigEndian.AppendUint16(b, uint16(hlen))
		return append(append(b, header...), rest...)
	}
	header := func(h packet.Header) []byte { return h.Append(nil, 0)[6:] }
	const silent = packet.Status(255)
	for i, test := range []struct {
		name  string
		bytes []byte
		want  packet.Status // of an ack before the end
	}{
		{"PLEN 3", raw(3, 25, header(packet.Header{Seqno: 1}), nil), silent},
		{"PLEN negative", raw(-1, 25, header(packet.Header{Seqno: 1}), nil), silent},
		{"HLEN negative", raw(4, -1, header(packet.Header{Seqno: 1}), nil), silent},
		{"too long", raw(packet.MaxPacketLen-24, 25, header(packet.Header{Seqno: 1}), nil), silent},
		{"PLEN 2^31-1", raw(1<<31-1, 25, header(packet.Header{Seqno: 1}), nil), silent},
		{"HLEN 0", raw(4, 0, nil, nil), silent},
		{"no protobuf", raw(4, 3, []byte{0xff, 0xff, 0xff}, nil), silent},
		{"required field missing", raw(4, 9, header(packet.Header{})[:9], nil), silent},
		{"data beyond the packet", raw(4, 25, header(packet.Header{Seqno: 1, DataLen: 1, Offset: 700}), []byte{1}), silent},
		{"negative data length", raw(4, 25, header(packet.Header{Seqno: 1, DataLen: -1, Offset: 700}), nil), silent},
		{"negative offset", wirePacket(packet.Header{Offset: -1, Seqno: 1}, []byte{1, 2, 3, 4}, more[:1]), silent},
		{"gap", wirePacket(packet.Header{Offset: 701, Seqno: 1}, oracleSums(c, more[:5]), more[:5]), packet.Error},
		{"empty in a gap", wirePacket(packet.Header{Offset: 701, Seqno: 1}, nil, nil), packet.Error},
		{"checksums too short", wirePacket(packet.Header{Offset: 512, Seqno: 1}, make([]byte, 4), more[:513]), packet.Error},
		{"checksums too long", wirePacket(packet.Header{Offset: 512, Seqno: 1}, make([]byte, 8), more[:512]), packet.Error},
		{"last with data", wirePacket(packet.Header{Offset: 700, Seqno: 1, Last: true}, oracleSums(c, more[:5]), more[:5]), silent},
		{"repeated seqno", wirePacket(packet.Header{Offset: 700, Seqno: 0}, oracleSums(c, more[:5]), more[:5]), packet.Error},
		{"unaligned, longer than a chunk", wirePacket(packet.Header{Offset: 700, Seqno: 1}, oracleSums(c, more[:513]), more[:513]), packet.Error},
		{"unaligned, crosses a chunk", wirePacket(packet.Header{Offset: 700, Seqno: 1}, oracleSums(c, more[:400]), more[:400]), packet.Error},
		{"duplicate that crosses a chunk", wirePacket(packet.Header{Offset: 500, Seqno: 1}, oracleSums(c, first[500:600]), first[500:600]), packet.Error},
		{"wrong checksum", wirePacket(packet.Header{Offset: 512, Seqno: 1}, oracleSums(c, more[:600]), append(bytes.Clone(more[:599]), more[599]^1)), packet.ErrorChecksum},
		{"wrong checksum of a duplicate", wirePacket(packet.Header{Offset: 0, Seqno: 1}, oracleSums(c, more[:100]), first[:100]), packet.ErrorChecksum},
		{"other bytes in the partial chunk", wirePacket(packet.Header{Offset: 512, Seqno: 1}, oracleSums(c, more[:600]), more[:600]), packet.Error},
		{"two stray checksums", wirePacket(packet.Header{Offset: 700, Seqno: 1, Last: true}, make([]byte, 8), nil), silent},
		{"heartbeat with data", wirePacket(packet.Header{Offset: 700, Seqno: -1}, oracleSums(c, more[:5]), more[:5]), silent},
		{"half a header", wirePacket(packet.Header{Offset: 700, Seqno: 1}, nil, nil)[:20], silent},
		{"half a body", wirePacket(packet.Header{Offset: 512, Seqno: 1}, oracleSums(c, more), more)[:1000], silent},
	} {
		b := testBlock(int64(i))
		p := dial(t, addr)
		p.open(b, c)
		p.packet(packet.Header{}, c, first)
		p.ack(0, packet.Success)
		p.write(test.bytes)
		if test.want == silent {
			p.Conn.(*net.UnixConn).CloseWrite()
		} else {
			p.ack(1-btoi(test.name == "repeated seqno"), test.want)
		}
		p.Conn.(*net.UnixConn).CloseWrite()
		p.eof()
		waitFor(t, func() bool { r := s.find(b); r.mu.Lock(); defer r.mu.Unlock(); return r.state == waiting })
		checkFiles(t, s, b, c, first)
		if got, err := readAll(s, b); err != nil || !bytes.Equal(got, first) {
			t.Errorf("%s: read %d bytes, %v", test.name, len(got), err)
		}
	}
	if n := server.Stats().Load(statMalformed); n < 20 {
		t.Errorf("%d of them are counted as malformed", n)
	}
}

func btoi(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// waitFor waits for what another goroutine is about to do.
func waitFor(t testing.TB, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not happen")
		}
	}
}

// A packet may come as slowly as it likes.
func TestServerSlowPeer(t *testing.T) {
	s := openStore(t, t.TempDir())
	_, addr := startServer(t, s, ServerConfig{})
	c, data := crc.Chunks{}, randomBytes(11, 1000)
	stream := writeRequest(testBlock(1), c).Append(nil)
	stream = append(stream, wirePacket(packet.Header{}, oracleSums(c, data), data)...)
	stream = append(stream, wirePacket(packet.Header{Offset: 1000, Seqno: 1, Last: true, Sync: true}, nil, nil)...)
	p := dial(t, addr)
	for i := range stream {
		p.write(stream[i : i+1])
	}
	if r := p.response(); r.Status != packet.Success {
		t.Fatalf("%+v", r)
	}
	p.ack(0, packet.Success)
	p.ack(1, packet.Success)
	checkFiles(t, s, testBlock(1), c, data)
}

func TestServerRequests(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	_, addr := startServer(t, s, ServerConfig{})
	writeBlock(t, s, testBlock(1), crc.Chunks{}, randomBytes(1, 4096))
	good := writeRequest(testBlock(2), crc.Chunks{})

	t.Run("closed at once", func(t *testing.T) {
		long := append([]byte{0, 28, 80}, 0x80, 0x80, 0x80, 0x80, 0x08) // 2 GiB
		over := append([]byte{0, 28, 80}, bytes.Repeat([]byte{0xff}, 11)...)
		for name, b := range map[string][]byte{
			"version":        {0, 27, 80, 0},
			"opcode":         {0, 28, 99, 0},
			"message length": long,
			"varint":         over,
			"no protobuf":    {0, 28, 81, 2, 0xff, 0xff},
			"missing fields": {0, 28, 81, 0},
			"nothing":        {},
			"half":           good.Append(nil)[:50],
		} {
			t.Run(name, func(t *testing.T) {
				p := dial(t, addr)
				p.write(b)
				p.Conn.(*net.UnixConn).CloseWrite()
				p.eof()
			})
		}
	})
	t.Run("writes refused", func(t *testing.T) {
		for name, test := range map[string]struct {
			change func(*packet.WriteBlock)
			want   packet.Status
		}{
			"exists":           {func(r *packet.WriteBlock) { r.Block.ID = 1 }, packet.ErrorExists},
			"pool":             {func(r *packet.WriteBlock) { r.Block.Pool = "BP-a/b" }, packet.ErrorInvalid},
			"pool with dots":   {func(r *packet.WriteBlock) { r.Block.Pool = "BP-..x" }, packet.ErrorInvalid},
			"stage":            {func(r *packet.WriteBlock) { r.Stage = 77 }, packet.ErrorUnsupported},
			"checksum type":    {func(r *packet.WriteBlock) { r.Checksum.Type = 3 }, packet.ErrorUnsupported},
			"chunk size 0":     {func(r *packet.WriteBlock) { r.Checksum.BytesPerChunk = 0 }, packet.ErrorUnsupported},
			"chunk size 2^31":  {func(r *packet.WriteBlock) { r.Checksum.BytesPerChunk = 1 << 31 }, packet.ErrorUnsupported},
			"chunk size 16M+1": {func(r *packet.WriteBlock) { r.Checksum.BytesPerChunk = 16<<20 + 1 }, packet.ErrorUnsupported},
			"space":            {func(r *packet.WriteBlock) { r.Block.NumBytes = 1 << 60 }, packet.Error},
			"negative stamp":   {func(r *packet.WriteBlock) { r.Block.Stamp = -1 }, packet.ErrorInvalid},
		} {
			t.Run(name, func(t *testing.T) {
				req := *good
				test.change(&req)
				p := dial(t, addr)
				p.write(req.Append(nil))
				r := p.response()
				if r.Status != test.want || r.Message == "" || r.FirstBadLink != "" {
					t.Errorf("%+v, expected %v", r, test.want)
				}
				p.eof()
			})
		}
	})
	t.Run("reads refused", func(t *testing.T) {
		for name, req := range map[string]packet.ReadBlock{
			"unknown":              readRequest(testBlock(9), 0, 1),
			"newer stamp":          readRequest(packet.Block{Pool: testPool, ID: 1, Stamp: 1002}, 0, 1),
			"too long":             readRequest(testBlock(1), 0, 4097),
			"beyond":               readRequest(testBlock(1), 4097, 0),
			"negative offset":      readRequest(testBlock(1), -1, 1),
			"overflow":             readRequest(testBlock(1), 1, 1<<63-1),
			"all from the middle":  readRequest(testBlock(1), 1, -1),
			"pool that is no pool": readRequest(packet.Block{Pool: "../..", ID: 1}, 0, 1),
		} {
			t.Run(name, func(t *testing.T) {
				p := dial(t, addr)
				p.write(req.Append(nil))
				r := p.response()
				if r.Status != packet.Error || !strings.HasPrefix(r.Message, "opReadBlock ") {
					t.Errorf("%+v", r)
				}
				p.eof()
			})
		}
	})
}

// Every range of a small block, in whole chunks around it.
func TestServerRanges(t *testing.T) {
	s := openStore(t, t.TempDir())
	_, addr := startServer(t, s, ServerConfig{})
	data := randomBytes(12, 30)
	c := crc.Chunks{Size: 7}
	writeBlock(t, s, testBlock(1), c, data)
	older := packet.Block{Pool: testPool, ID: 1, Stamp: 1}
	p := dial(t, addr)
	for off := 0; off <= len(data); off++ {
		for n := 0; off+n <= len(data); n++ {
			from := off - off%7
			to := min((off+n+6)/7*7, len(data))
			got, at := p.get(readRequest(older, int64(off), int64(n)))
			if at != int64(from) || !bytes.Equal(got, data[from:to]) {
				t.Fatalf("%d bytes at %d: got %d at %d", n, off, len(got), at)
			}
		}
	}
	req := readRequest(older, 29, 1)
	req.SendChecksums = false
	p.write(req.Append(nil))
	if r := p.response(); r.ReadChecksum.Chunks != (crc.Chunks{Kind: crc.None, Size: 512}) || r.ReadChecksum.ChunkOffset != 0 {
		t.Errorf("without checksums: %+v", r.ReadChecksum)
	}
}

// Acks come without more being sent, however little was.
func TestServerAcksAtOnce(t *testing.T) {
	s := openStore(t, t.TempDir())
	_, addr := startServerOn(t, s, ServerConfig{}, "tcp", "127.0.0.1:0")
	c, data := crc.Chunks{}, randomBytes(13, 5000)
	p := dial(t, addr)
	p.open(testBlock(1), c)
	at := 0
	for seqno := range int64(100) {
		end := at + 1 + int(seqno)%70
		start := at - at%512
		h := packet.Header{Offset: int64(start), Seqno: seqno, Sync: seqno%10 == 0}
		p.packet(h, c, data[start:end])
		p.ack(seqno, packet.Success)
		at = end
		if got, err := readAll(s, testBlock(1)); err != nil || !bytes.Equal(got, data[:at]) {
			t.Fatalf("after ack %d: %d bytes visible, %v", seqno, len(got), err)
		}
	}
}

// Many streams share an arena that holds one packet each at best, and none of
// them starves.
func TestServerSmallArena(t *testing.T) {
	checkLeaks(t)
	s := openStoreWith(t, StoreConfig{Dirs: []string{t.TempDir()}, Arena: testArena(t, 256<<10)})
	_, addr := startServer(t, s, ServerConfig{})
	data := randomBytes(14, 1<<20)
	var wg sync.WaitGroup
	for id := range int64(8) {
		p := dial(t, addr)
		wg.Add(1)
		go func() {
			defer wg.Done()
			p.put(testBlock(id), crc.Chunks{}, data, 64512)
		}()
	}
	wg.Wait()
	for id := range int64(8) {
		checkFiles(t, s, testBlock(id), crc.Chunks{}, data)
	}
}

// A client that goes away leaves what it sent, acknowledged or not, verified.
func TestServerLostClient(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	_, addr := startServer(t, s, ServerConfig{})
	c, data := crc.Chunks{}, randomBytes(15, 300000)
	rnd := rand.New(rand.NewPCG(1, 2))
	var stream []byte
	for off, seqno := 0, int64(0); off < len(data); off, seqno = off+64512, seqno+1 {
		d := data[off:min(off+64512, len(data))]
		stream = append(stream, wirePacket(packet.Header{Offset: int64(off), Seqno: seqno}, oracleSums(c, d), d)...)
	}
	for id := range int64(30) {
		b := testBlock(id)
		p := dial(t, addr)
		p.open(b, c)
		cut := rnd.IntN(len(stream))
		p.write(stream[:cut])
		p.Close()
		waitFor(t, func() bool { r := s.find(b); r.mu.Lock(); defer r.mu.Unlock(); return r.state == waiting })
		r := s.find(b)
		if r.length%64512 != 0 && r.length != int64(len(data)) {
			t.Errorf("%d bytes of packets of 64512", r.length)
		}
		checkFiles(t, s, b, c, data[:r.length])
	}
}

func TestServerShutdown(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	server, addr := startServer(t, s, ServerConfig{})
	idle := dial(t, addr)
	c, data := crc.Chunks{}, randomBytes(16, 1000)
	busy := dial(t, addr)
	busy.open(testBlock(1), c)
	busy.packet(packet.Header{}, c, data)
	busy.ack(0, packet.Success)
	stuck := dial(t, addr)
	stuck.open(testBlock(2), c)
	stuck.packet(packet.Header{}, c, data)
	stuck.ack(0, packet.Success)

	ctx, cancel := context.WithCancel(bg)
	down := make(chan error, 1)
	go func() { down <- server.Shutdown(ctx) }()
	idle.eof()
	busy.packet(packet.Header{Offset: 1000, Seqno: 1, Last: true}, c, nil)
	busy.ack(1, packet.Success)
	busy.eof()
	cancel()
	stuck.ack(packet.UnknownSeqno, packet.OOBRestart)
	stuck.eof()
	stuck.Close()
	if err := <-down; err != context.Canceled {
		t.Errorf("Shutdown: %v", err)
	}
	for id := int64(1); id <= 2; id++ {
		checkFiles(t, s, testBlock(id), c, data)
	}
	if _, err := net.Dial(addr.Network(), addr.String()); err == nil {
		t.Error("the server still accepts")
	}
}

func TestServerLimits(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	server, addr := startServer(t, s, ServerConfig{MaxConns: 3, MaxRequestLen: 1000, MaxPacketLen: 2000})
	t.Run("silent peers", func(t *testing.T) { // are closed after the timeout
		_, addr := startServer(t, s, ServerConfig{ReadTimeout: 20 * time.Millisecond, KeepAlive: time.Millisecond})
		a, b := dial(t, addr), dial(t, addr)
		a.write([]byte{0, 28})
		a.eof()
		b.eof()
	})
	t.Run("connections", func(t *testing.T) {
		waitFor(t, func() bool { server.mu.Lock(); defer server.mu.Unlock(); return len(server.conns) == 0 })
		var peers []*peer
		for id := range int64(3) {
			p := dial(t, addr)
			p.open(testBlock(id), crc.Chunks{})
			peers = append(peers, p)
		}
		dial(t, addr).eof()
		for _, p := range peers {
			p.Close()
		}
		waitFor(t, func() bool { server.mu.Lock(); defer server.mu.Unlock(); return len(server.conns) == 0 })
	})
	t.Run("request", func(t *testing.T) {
		p := dial(t, addr)
		req := writeRequest(testBlock(7), crc.Chunks{})
		req.ClientName = strings.Repeat("x", 1000)
		p.write(req.Append(nil))
		p.eof()
	})
	t.Run("packet", func(t *testing.T) {
		data := randomBytes(17, 2000)
		p := dial(t, addr)
		p.open(testBlock(8), crc.Chunks{})
		fits := data[:2000-25-4-4*4]
		p.packet(packet.Header{}, crc.Chunks{}, fits)
		p.ack(0, packet.Success)
		start := len(fits) - len(fits)%512
		p.packet(packet.Header{Offset: int64(start), Seqno: 1}, crc.Chunks{}, data[start:start+1])
		p.ack(1, packet.Success)
		p = dial(t, addr)
		p.open(testBlock(9), crc.Chunks{})
		p.packet(packet.Header{}, crc.Chunks{}, data[:len(fits)+1])
		p.eof()
	})
}

// An ack takes no memory, from whichever node: there is one for every packet.
func TestServerAckAllocations(t *testing.T) {
	s := openStore(t, t.TempDir())
	server := NewServer(s, ServerConfig{})
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := dial(t, l.Addr())
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		buf := make([]byte, 4096)
		for {
			if _, err := p.Read(buf); err != nil {
				return
			}
		}
	}()
	c := &conn{server: server, Conn: nc}
	c.out.init(nc, false)
	session := &writeSession{conn: c, ctx: bg, pending: make([]pendingAck, 0, 8)}
	for _, lost := range []bool{false, true} {
		session.lost = lost
		if n := testing.AllocsPerRun(100, func() {
			for i := range int64(4) {
				session.pending = append(session.pending, pendingAck{seqno: i})
			}
			session.done = 3
			if err := session.sendLocked(); err != nil {
				t.Fatal(err)
			}
			session.pending = session.pending[:0]
		}); n > 0 {
			t.Errorf("three acks take %v allocations", n)
		}
	}
	nc.Close()
	<-drained
}
