package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// A memoryNode is a datanode that keeps its blocks in memory.
type memoryNode struct {
	t      testing.TB
	addr   string
	chunks crc.Chunks

	mu     sync.Mutex
	blocks map[int64]*memoryBlock
	conns  int
	dead   int64   // from this block on nothing is heard of it, and other connections break
	opens  []int64 // ids of the blocks that were opened for writing

	onPacket func(h packet.Header, id int64) (drop bool, status packet.Status) // before the ack
	onRead   func(id, offset int64) (drop, damage bool)                        // before a packet is sent
	perSend  int64                                                             // chunks per packet
}

type memoryBlock struct {
	data  []byte
	stamp int64
	final bool
}

func startNode(t testing.TB, network string) *memoryNode {
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "dn.sock")
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	n := &memoryNode{t: t, addr: l.Addr().String(), blocks: map[int64]*memoryBlock{}, perSend: 100}
	if network == "unix" {
		n.addr = "unix:" + address
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Add(1)
			go func() {
				defer wg.Done()
				defer conn.Close()
				defer context.AfterFunc(ctx, func() { conn.Close() })()
				n.serve(conn)
			}()
		}
	}()
	t.Cleanup(func() { l.Close(); cancel(); wg.Wait() })
	return n
}

func (n *memoryNode) serve(conn net.Conn) error {
	n.mu.Lock()
	n.conns++
	dead := n.dead
	n.mu.Unlock()
	if dead != 0 {
		return nil
	}
	in := bufio.NewReader(conn)
	for {
		req, err := packet.ReadRequest(in, 0)
		if err != nil {
			return err
		}
		switch req := req.(type) {
		case *packet.WriteBlock:
			return n.write(conn, in, req)
		case *packet.ReadBlock:
			if err := n.read(conn, in, req); err != nil {
				return err
			}
		}
	}
}

func (n *memoryNode) write(conn net.Conn, in *bufio.Reader, req *packet.WriteBlock) error {
	chunks, err := req.Checksum.Chunks()
	if err != nil {
		return err
	}
	id := req.Block.ID
	n.mu.Lock()
	n.chunks = chunks
	n.opens = append(n.opens, id)
	b := n.blocks[id]
	res := packet.BlockOpResponse{HasFirstBadLink: true}
	switch {
	case req.Stage == packet.SetupCreate && b == nil:
		b = &memoryBlock{stamp: req.Block.Stamp}
		n.blocks[id] = b
	case req.Stage != packet.SetupCreate && b != nil && req.LatestStamp >= b.stamp && int64(len(b.data)) >= req.MinBytesRcvd && int64(len(b.data)) <= req.MaxBytesRcvd:
		b.stamp = req.LatestStamp
		b.final = req.Stage == packet.PipelineCloseRecovery
	default:
		res = packet.BlockOpResponse{Status: packet.Error, Message: fmt.Sprintf("%v of %v", req.Stage, req.Block)}
	}
	var stamp int64 // a recovery stops the writer that has an older one
	if b != nil {
		stamp = b.stamp
	}
	n.mu.Unlock()

	// The node behind this one.
	var mirror net.Conn
	var mirrorIn *bufio.Reader
	if res.Status == packet.Success && len(req.Targets) > 0 {
		next := *req
		next.Targets = req.Targets[1:]
		addr := net.JoinHostPort(req.Targets[0].IPAddr, fmt.Sprint(req.Targets[0].XferPort))
		if mirror, err = net.Dial("tcp", addr); err == nil {
			defer mirror.Close()
			mirrorIn = bufio.NewReader(mirror)
			mirror.Write(next.Append(nil))
			res, err = packet.ReadBlockOpResponse(mirrorIn)
		}
		if err != nil {
			res = packet.BlockOpResponse{Status: packet.Error, FirstBadLink: addr, HasFirstBadLink: true}
		}
	}
	conn.Write(res.Append(nil))
	if res.Status != packet.Success || req.Stage == packet.PipelineCloseRecovery {
		return nil
	}
	rec := packet.NewReceiver(in, 0)
	for {
		h, sumsLen, err := rec.Next()
		if err != nil {
			return err
		}
		buf := make([]byte, sumsLen+h.DataLen)
		sums, data, err := rec.Body(buf)
		if err != nil {
			return err
		}
		n.mu.Lock()
		dead := n.dead
		n.mu.Unlock()
		if dead != 0 {
			if id >= dead {
				_, err = io.Copy(io.Discard, in)
			}
			return err
		}
		ack := packet.Ack{Seqno: h.Seqno, Replies: []packet.Status{packet.Success}}
		if mirror != nil {
			mirror.Write(append(h.Append(nil, sumsLen), buf...))
			down, err := packet.ReadAck(mirrorIn)
			if err != nil {
				down.Replies = []packet.Status{packet.Error}
			}
			ack.Replies = append(ack.Replies, down.Replies...)
		}
		if h.Seqno != packet.HeartbeatSeqno {
			var drop bool
			n.mu.Lock()
			onPacket := n.onPacket
			n.mu.Unlock()
			if onPacket != nil {
				drop, ack.Replies[0] = onPacket(h, id)
			}
			if err := chunks.Verify(data, sums, h.Offset); err != nil {
				ack.Replies[0] = packet.ErrorChecksum
			}
			if drop {
				return nil
			}
			n.mu.Lock()
			stopped := b.stamp != stamp
			if !stopped && ack.Replies[0] == packet.Success {
				b.data = append(b.data[:h.Offset], data...)
				b.final = h.Last
			}
			n.mu.Unlock()
			if stopped {
				return nil
			}
		}
		if _, err := conn.Write(ack.Append(nil)); err != nil {
			return err
		}
		if ack.Replies[0] != packet.Success {
			// A reset, which closing with unread input makes, could overtake the ack.
			conn.SetReadDeadline(time.Now().Add(time.Second))
			io.Copy(io.Discard, in)
			return nil
		}
		if h.Last {
			return nil
		}
	}
}

func (n *memoryNode) read(conn net.Conn, in *bufio.Reader, req *packet.ReadBlock) error {
	n.mu.Lock()
	b, chunks, onRead := n.blocks[req.Block.ID], n.chunks, n.onRead
	readable := b != nil && b.final && req.Offset+req.Length <= int64(len(b.data)) && b.stamp >= req.Block.Stamp
	var block []byte
	if readable {
		block = bytes.Clone(b.data)
	}
	n.mu.Unlock()
	if !readable {
		res := packet.BlockOpResponse{Status: packet.Error, Message: "no such block"}
		conn.Write(res.Append(nil))
		return io.EOF
	}
	bpc := int64(chunks.BytesPerChunk())
	at := req.Offset - req.Offset%bpc
	end := min((req.Offset+req.Length+bpc-1)/bpc*bpc, int64(len(block)))
	res := packet.BlockOpResponse{ReadChecksum: &packet.ReadChecksumInfo{Chunks: chunks, ChunkOffset: at}}
	conn.Write(res.Append(nil))
	for seqno := int64(0); ; seqno++ {
		k := min(end-at, n.perSend*bpc)
		data := bytes.Clone(block[at : at+k])
		sums := chunks.Append(nil, data)
		h := packet.Header{Offset: at, Seqno: seqno, DataLen: int(k), Last: k == 0}
		if onRead != nil {
			drop, damage := onRead(req.Block.ID, at)
			if drop {
				return io.EOF
			}
			if damage && k > 0 {
				data[k-1] ^= 4
			}
		}
		if _, err := conn.Write(append(append(h.Append(nil, len(sums)), sums...), data...)); err != nil {
			return err
		}
		if k == 0 {
			break
		}
		at += k
	}
	_, err := packet.ReadReadStatus(in)
	return err
}

// set changes the node's behaviour.
func (n *memoryNode) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func (n *memoryNode) connections() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.conns
}

func content(n int) []byte {
	b := make([]byte, n)
	x := uint32(n)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func noLeaks(t testing.TB) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for wait := time.Millisecond; runtime.NumGoroutine() > before; wait *= 2 {
			if wait > 2*time.Second {
				buf := make([]byte, 1<<20)
				t.Errorf("goroutines remain:\n%s", buf[:runtime.Stack(buf, true)])
				return
			}
			time.Sleep(wait)
		}
	})
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestPutGet(t *testing.T) {
	noLeaks(t)
	ctx := testContext(t)
	for _, network := range []string{"tcp", "unix"} {
		if network == "unix" && runtime.GOOS == "windows" {
			t.Log("SKIPPED on windows: unix sockets")
			continue
		}
		n := startNode(t, network)
		for _, chunks := range []crc.Chunks{{}, {Kind: crc.CRC32, Size: 128}, {Kind: crc.None}} {
			m := NewManifest(RandomPool(), chunks)
			for _, size := range []int{0, 1, 511, 512, 513, 4096, 4097, 3*4096 - 1, 3 * 4096, 100000} {
				for _, known := range []bool{false, true} {
					data := content(size)
					cfg := PutConfig{Pool: m.Pool, Chunks: chunks, BlockSize: 4096, SHA256: true}
					if known {
						cfg.Size = int64(size)
					}
					var seen int64
					cfg.Progress = func(n int64) { seen += n }
					f, stats, err := Put(ctx, bytes.NewReader(data), "f", []string{n.addr}, cfg)
					if err != nil {
						t.Fatal(err)
					}
					if f.Length != int64(size) || len(f.Blocks) != (size+4095)/4096 || stats.Bytes != int64(size) || stats.Blocks != len(f.Blocks) || seen != int64(size) {
						t.Fatalf("%d bytes: %+v, %+v, progress %d", size, f, stats, seen)
					}
					if want := fmt.Sprintf("%x", sha256.Sum256(data)); f.SHA256 != want {
						t.Errorf("SHA-256 %s, want %s", f.SHA256, want)
					}
					if chunks.Kind != crc.None {
						want := fmt.Sprintf(":0x%08x", crc.Checksum(chunks.Kind, data))
						if !strings.HasSuffix(f.Composite, want) {
							t.Errorf("composite %s, want %s", f.Composite, want)
						}
					}
					m.Files = []File{f}
					var text bytes.Buffer
					if err := m.Write(&text); err != nil {
						t.Fatal(err)
					}
					again, err := ReadManifest(&text)
					if err != nil {
						t.Fatal(err)
					}
					conns := n.connections()
					var out bytes.Buffer
					if _, err := Get(ctx, &out, again, &again.Files[0], []string{n.addr}, GetConfig{SHA256: true}); err != nil || !bytes.Equal(out.Bytes(), data) {
						t.Fatalf("%d bytes: %d came back, %v", size, out.Len(), err)
					}
					if now := n.connections() - conns; now > 1 {
						t.Errorf("%d connections to read %d blocks", now, len(f.Blocks))
					}
				}
			}
		}
	}
}

func TestGetRanges(t *testing.T) {
	noLeaks(t)
	ctx := testContext(t)
	n := startNode(t, "tcp")
	data := content(50000)
	m := NewManifest(RandomPool(), crc.Chunks{})
	f, _, err := Put(ctx, bytes.NewReader(data), "f", []string{n.addr}, PutConfig{Pool: m.Pool, BlockSize: 4096})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		off := rng.Int64N(50001)
		length := rng.Int64N(60000)
		want := data[off:]
		if length > 0 && length < int64(len(want)) {
			want = want[:length]
		}
		var out bytes.Buffer
		stats, err := Get(ctx, &out, m, &f, []string{n.addr}, GetConfig{Offset: off, Length: length})
		if err != nil || !bytes.Equal(out.Bytes(), want) || stats.Bytes != int64(len(want)) {
			t.Fatalf("%d+%d: %d bytes, %v", off, length, out.Len(), err)
		}
	}
	var bad *ConfigError
	for _, cfg := range []GetConfig{{Offset: -1}, {Offset: 50001}, {Length: -1}} {
		if _, err := Get(ctx, io.Discard, m, &f, []string{n.addr}, cfg); !errors.As(err, &bad) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// A file all of whose chunks verify and that is another one nevertheless.
func TestGetOtherContent(t *testing.T) {
	noLeaks(t)
	ctx := testContext(t)
	n := startNode(t, "tcp")
	for _, chunks := range []crc.Chunks{{}, {Kind: crc.None}} {
		m := NewManifest(RandomPool(), chunks)
		data := content(50000)
		f, _, err := Put(ctx, bytes.NewReader(data), "f", []string{n.addr}, PutConfig{Pool: m.Pool, Chunks: chunks, BlockSize: 20480, SHA256: true})
		if err != nil {
			t.Fatal(err)
		}
		n.set(func() { n.blocks[f.Blocks[1].ID].data[5] ^= 1 })
		if chunks.Kind != crc.None { // the CRC of the block is the other one's, too
			f.Blocks[1].CRC = fmt.Sprintf("%08x", crc.Checksum(chunks.Kind, n.blocks[f.Blocks[1].ID].data))
		}
		var other *ContentError
		if _, err := Get(ctx, io.Discard, m, &f, []string{n.addr}, GetConfig{SHA256: true}); !errors.As(err, &other) || other.What != "SHA-256" || other.Expected != f.SHA256 {
			t.Error(err)
		}
		if _, err := Get(ctx, io.Discard, m, &f, []string{n.addr}, GetConfig{}); err != nil { // nobody has asked
			t.Error(err)
		}
	}
}

// A replica that breaks off, or is damaged, is left in mid-block for another.
func TestGetFailover(t *testing.T) {
	noLeaks(t)
	ctx := testContext(t)
	a, b := startNode(t, "tcp"), startNode(t, "tcp")
	a.perSend, b.perSend = 3, 5
	data := content(100000)
	m := NewManifest(RandomPool(), crc.Chunks{})
	f, _, err := Put(ctx, bytes.NewReader(data), "f", []string{a.addr, b.addr}, PutConfig{Pool: m.Pool, BlockSize: 20480})
	if err != nil {
		t.Fatal(err)
	}
	for name, onRead := range map[string]func(id, offset int64) (bool, bool){
		"breaks off": func(id, offset int64) (bool, bool) { return offset > 10000, false },
		"damaged":    func(id, offset int64) (bool, bool) { return false, offset > 10000 },
		"refuses":    func(id, offset int64) (bool, bool) { return true, false },
	} {
		a.set(func() { a.onRead = onRead })
		var out bytes.Buffer
		if _, err := Get(ctx, &out, m, &f, []string{a.addr, b.addr}, GetConfig{}); err != nil || !bytes.Equal(out.Bytes(), data) {
			t.Errorf("%s: %d bytes, %v", name, out.Len(), err)
		}
		out.Reset()
		_, err := Get(ctx, &out, m, &f, []string{a.addr}, GetConfig{})
		var get *GetError
		if !errors.As(err, &get) || get.Offset != int64(out.Len()) || !bytes.Equal(out.Bytes(), data[:out.Len()]) {
			t.Errorf("%s, no other replica: %d bytes, %v", name, out.Len(), err)
		}
		var mismatch *crc.MismatchError
		if name == "damaged" && !errors.As(err, &mismatch) {
			t.Error(err)
		}
	}
	// The other replica is checksummed in another way.
	a.set(func() { a.onRead = func(id, offset int64) (bool, bool) { return offset > 10000, false } })
	for _, chunks := range []crc.Chunks{{Size: 1000}, {Size: 100}, {Kind: crc.CRC32}} {
		b.set(func() { b.chunks = chunks })
		var out bytes.Buffer
		if _, err := Get(ctx, &out, m, &f, []string{a.addr, b.addr}, GetConfig{}); err != nil || !bytes.Equal(out.Bytes(), data) {
			t.Errorf("%v of %d: %d bytes, %v", chunks.Kind, chunks.Size, out.Len(), err)
		}
	}
	full := errors.New("full")
	if _, err := Get(ctx, failingWriter{full}, m, &f, []string{b.addr, a.addr}, GetConfig{}); err != full {
		t.Error(err)
	}
	// Another block under the same id.
	b.set(func() { b.blocks[f.Blocks[1].ID].data[5] ^= 1 })
	var other *ContentError
	for _, chunks := range []crc.Chunks{{}, {Size: 1000}} {
		b.set(func() { b.chunks = chunks })
		if _, err := Get(ctx, io.Discard, m, &f, []string{b.addr}, GetConfig{}); !errors.As(err, &other) || other.Offset != 20480 {
			t.Error(err)
		}
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// The pipeline loses a node, or the connection, in mid-block.
func TestPutRecovers(t *testing.T) {
	noLeaks(t)
	ctx := testContext(t)
	for _, v := range []struct {
		name     string
		nodes    int
		victim   int
		close    bool // the last packet is what fails
		status   packet.Status
		survives bool
	}{
		{"first of three breaks off", 3, 0, false, packet.Success, true},
		{"second of three breaks off", 3, 1, false, packet.Success, true},
		{"last of three breaks off", 3, 2, false, packet.Success, true},
		{"last of two says ERROR", 2, 1, false, packet.Error, true},
		{"first of two at the end", 2, 0, true, packet.Success, true},
		{"connection to one lost", 1, 0, false, packet.Success, true},
		{"connection to one lost at the end", 1, 0, true, packet.Success, true},
		{"one says ERROR", 1, 0, false, packet.Error, false},
		{"one restarts", 1, 0, false, packet.OOBRestart, true},
		{"first of two restarts", 2, 0, false, packet.OOBRestart, true},
	} {
		var to []string
		var nodes []*memoryNode
		for range v.nodes {
			n := startNode(t, "tcp")
			nodes = append(nodes, n)
			to = append(to, n.addr)
		}
		var mu sync.Mutex
		done := false
		nodes[v.victim].onPacket = func(h packet.Header, id int64) (bool, packet.Status) {
			mu.Lock()
			defer mu.Unlock()
			if done || h.Last != v.close || !v.close && h.Offset < 200000 {
				return false, packet.Success
			}
			done = true
			return v.status == packet.Success, v.status
		}
		data := content(1000000)
		m := NewManifest(RandomPool(), crc.Chunks{})
		cfg := PutConfig{Pool: m.Pool, BlockSize: 512 << 10, PacketSize: 65536, Recover: WithoutBadNode}
		f, stats, err := Put(ctx, bytes.NewReader(data), "f", to, cfg)
		if !v.survives {
			var put *PutError
			var ack *packet.AckError
			if !errors.As(err, &put) || !errors.As(err, &ack) || !strings.Contains(err.Error(), "no datanode is left") {
				t.Errorf("%s: %v", v.name, err)
			}
			continue
		}
		if err != nil || stats.Recoveries == 0 {
			t.Errorf("%s: %d recoveries, %v", v.name, stats.Recoveries, err)
			continue
		}
		if f.Blocks[0].Stamp == firstStamp && f.Blocks[1].Stamp == firstStamp {
			t.Errorf("%s: no new stamp", v.name)
		}
		m.Files = []File{f}
		var out bytes.Buffer
		// Which node was given up may depend on which sign of its failure came first.
		if _, err := Get(ctx, &out, m, &f, to, GetConfig{}); err != nil || !bytes.Equal(out.Bytes(), data) {
			t.Errorf("%s: %d bytes came back, %v", v.name, out.Len(), err)
		}
	}
}

// A datanode that dies in one block is left out of the pipelines of all further
// ones, also of one that has been opened ahead, in which it would be waited for.
func TestPutLosesNode(t *testing.T) {
	noLeaks(t)
	ctx := testContext(t)
	const blocks, blockSize = 5, 1 << 20
	data := content(blocks * blockSize)
	for victim := range 3 {
		for _, size := range []int64{0, blocks * blockSize} { // without and with opening ahead
			var nodes []*memoryNode
			var to []string
			for range 3 {
				n := startNode(t, "tcp")
				nodes = append(nodes, n)
				to = append(to, n.addr)
			}
			dies, first := nodes[victim], RandomPool()
			conns := 0
			dies.onPacket = func(h packet.Header, id int64) (bool, packet.Status) {
				dies.mu.Lock()
				defer dies.mu.Unlock()
				ahead := size == 0 || dies.opens[len(dies.opens)-1] > id
				if id != 1001 || !ahead || dies.dead != 0 || h.Offset < blockSize/2 && !h.Last {
					return dies.dead != 0, packet.Success
				}
				dies.dead, conns = 1002, dies.conns
				return true, packet.Success
			}
			cfg := PutConfig{Pool: first, FirstID: 1000, BlockSize: blockSize, PacketSize: 65536, Size: size, Recover: WithoutBadNode}
			f, stats, err := Put(ctx, bytes.NewReader(data), "f", to, cfg)
			if err != nil || len(f.Blocks) != blocks {
				t.Fatalf("node %d, size %d: %d blocks, %v", victim, size, len(f.Blocks), err)
			}
			if len(stats.Lost) != 1 || stats.Lost[0].Address != dies.addr || stats.Lost[0].Block.ID > 1003 || stats.Lost[0].Err == nil {
				t.Errorf("node %d, size %d: lost %+v", victim, size, stats.Lost)
			}
			if n := dies.connections() - conns; n > 1 { // one that was under way
				t.Errorf("node %d, size %d: %d more connections to the dead node", victim, size, n)
			}
			for i, n := range nodes {
				for j, b := range f.Blocks {
					if i == victim { // also the block before may not have been complete
						continue
					}
					got := n.blocks[b.ID]
					if got == nil || !got.final || !bytes.Equal(got.data, data[j*blockSize:(j+1)*blockSize]) {
						t.Errorf("node %d, size %d: block %d of node %d is not what was put", victim, size, j, i)
					}
				}
			}
		}
	}
}

// A datanode that cannot be reached is left out from the beginning, and what is
// refused for another reason is final.
func TestPutCannotOpen(t *testing.T) {
	noLeaks(t)
	ctx := testContext(t)
	data := content(2 << 20)
	for victim := range 3 {
		var to []string
		for range 3 {
			to = append(to, startNode(t, "tcp").addr)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		to[victim] = l.Addr().String()
		l.Close()
		cfg := PutConfig{Pool: RandomPool(), FirstID: 1000, BlockSize: 1 << 20, Recover: WithoutBadNode}
		f, stats, err := Put(ctx, bytes.NewReader(data), "f", to, cfg)
		if err != nil || len(f.Blocks) != 2 || f.Blocks[0].ID != 1001 || f.Blocks[1].ID != 1002 || len(stats.Lost) != 1 || stats.Lost[0].Address != to[victim] {
			t.Errorf("node %d: %+v, %+v, %v", victim, f.Blocks, stats.Lost, err)
		}
		var put *PutError
		var no *packet.OpError
		cfg.FirstID = 1002 // which exists
		if victim == 0 {
			to = to[1:]
		}
		_, _, err = Put(ctx, bytes.NewReader(data), "f", to[:1], cfg)
		if !errors.As(err, &put) || !errors.As(err, &no) {
			t.Errorf("an existing block: %v", err)
		}
	}
	// All are lost, one after another.
	var put *PutError
	_, _, err := Put(ctx, bytes.NewReader(data), "f", []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"}, PutConfig{Recover: WithoutBadNode})
	if !errors.As(err, &put) || len(put.Lost) != 2 || !strings.Contains(err.Error(), "127.0.0.1:1 lost") {
		t.Errorf("%v", err)
	}
}

// A datanode that restarts is waited for if there is no other.
func TestAwaitRestart(t *testing.T) {
	noLeaks(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	failure := &packet.WriteError{Block: packet.Block{Stamp: 7}, Err: &packet.AckError{Status: packet.OOBRestart}}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	var ack *packet.AckError
	if _, _, err := WithoutBadNode(ctx, []string{addr}, failure); !errors.As(err, &ack) {
		t.Error(err)
	}
	up := make(chan net.Listener, 1)
	time.AfterFunc(50*time.Millisecond, func() {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Error(err)
		}
		up <- l
	})
	rest, stamp, err := WithoutBadNode(testContext(t), []string{addr}, failure)
	if err != nil || len(rest) != 1 || rest[0] != addr || stamp != 8 {
		t.Error(rest, stamp, err)
	}
	if l := <-up; l != nil {
		l.Close()
	}
}

// What is in flight is bounded: while nothing is acked, no more is read.
func TestPutInFlight(t *testing.T) {
	noLeaks(t)
	const window, packetSize = 1 << 20, 65536
	n := startNode(t, "tcp")
	var read atomic.Int64
	n.onPacket = func(h packet.Header, _ int64) (bool, packet.Status) {
		if h.Offset == 0 {
			time.Sleep(50 * time.Millisecond) // to read too much, if it were allowed
		}
		if got := read.Load(); got > h.Offset+window+packetSize {
			t.Errorf("%d bytes were read when %d were acked", got, h.Offset)
		}
		return false, packet.Success
	}
	data := content(6 << 20)
	cfg := PutConfig{InFlight: window, PacketSize: packetSize, Progress: func(n int64) { read.Add(n) }}
	f, _, err := Put(testContext(t), bytes.NewReader(data), "f", []string{n.addr}, cfg)
	if err != nil || f.Length != int64(len(data)) {
		t.Errorf("%d bytes put, %v", f.Length, err)
	}
}

// Without Recover a failure is final and says what is safe.
func TestPutFails(t *testing.T) {
	noLeaks(t)
	ctx := testContext(t)
	n := startNode(t, "tcp")
	n.onPacket = func(h packet.Header, id int64) (bool, packet.Status) { return h.Offset >= 129024, packet.Success }
	_, _, err := Put(ctx, bytes.NewReader(content(1<<20)), "f", []string{n.addr}, PutConfig{PacketSize: 65536})
	var put *PutError
	if !errors.As(err, &put) || put.Acked != 129024 {
		t.Error(err)
	}
	n.set(func() {
		for _, b := range n.blocks {
			if b.final {
				t.Error("the block is final")
			}
		}
		n.onPacket = nil
	})
	source := errors.New("disk broke")
	if _, _, err := Put(ctx, io.MultiReader(bytes.NewReader(content(100000)), failingReader{source}), "f", []string{n.addr}, PutConfig{BlockSize: 65536, Size: 1 << 20}); err != source {
		t.Error(err)
	}
	var address *AddressError
	for _, to := range [][]string{{"nonsense"}, {"unix:"}, {n.addr, "unix:/x"}, {n.addr, "127.0.0.1:99999"}} {
		if _, _, err := Put(ctx, bytes.NewReader([]byte{1}), "f", to, PutConfig{}); !errors.As(err, &address) {
			t.Errorf("%v: %v", to, err)
		}
	}
	var config *ConfigError
	for _, cfg := range []PutConfig{{BlockSize: 1000}, {BlockSize: -512}, {Chunks: crc.Chunks{Size: -1}}} {
		if _, _, err := Put(ctx, bytes.NewReader(nil), "f", []string{n.addr}, cfg); !errors.As(err, &config) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	done, cancel := context.WithCancel(ctx)
	n.set(func() {
		n.onPacket = func(packet.Header, int64) (bool, packet.Status) { cancel(); return false, packet.Success }
	})
	if _, _, err := Put(done, bytes.NewReader(content(10<<20)), "f", []string{n.addr}, PutConfig{BlockSize: 1 << 20}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

// The next block's pipeline is there before the block before it has ended.
func TestPutOpensAhead(t *testing.T) {
	noLeaks(t)
	ctx := testContext(t)
	n := startNode(t, "tcp")
	n.onPacket = func(h packet.Header, id int64) (bool, packet.Status) {
		if h.Last && h.Offset == 1<<20 { // not the end of the file
			for range 3000 {
				n.mu.Lock()
				next := n.opens[len(n.opens)-1] > id
				n.mu.Unlock()
				if next {
					return false, packet.Success
				}
				time.Sleep(time.Millisecond)
			}
			t.Errorf("block %d ends and no pipeline follows", id)
		}
		return false, packet.Success
	}
	for _, size := range []int64{0, 5<<20 + 1000} {
		f, _, err := Put(ctx, bytes.NewReader(content(5<<20+1000)), "f", []string{n.addr}, PutConfig{BlockSize: 1 << 20, Size: size})
		if err != nil || len(f.Blocks) != 6 {
			t.Fatal(err)
		}
	}
	// A source that ends early: what was opened for nothing is given up.
	f, _, err := Put(ctx, bytes.NewReader(content(1<<20)), "f", []string{n.addr}, PutConfig{BlockSize: 1 << 20, Size: 5 << 20})
	if err != nil || len(f.Blocks) != 1 {
		t.Fatal(err)
	}
}

// Between blocks there is no pause: the next one's data is there before the last
// data of the one before it is acked, on a path of 80 ms, too.
func TestPutNoPause(t *testing.T) {
	noLeaks(t)
	const blockSize, blocks = 1 << 20, 5
	n := startNode(t, "tcp")
	begun := map[int64]chan struct{}{}
	for id := range int64(blocks + 1) {
		begun[id+1] = make(chan struct{})
	}
	n.onPacket = func(h packet.Header, id int64) (bool, packet.Status) {
		id &= 0xFF
		if h.Offset == 0 && h.DataLen > 0 {
			close(begun[id])
		}
		if h.Offset+int64(h.DataLen) == blockSize && h.DataLen > 0 && id < blocks {
			select {
			case <-begun[id+1]:
			case <-time.After(10 * time.Second):
				t.Errorf("block %d is not acked and the next one does not begin", id)
			}
		}
		return false, packet.Success
	}
	for i, delay := range []time.Duration{0, 40 * time.Millisecond} {
		if i > 0 {
			for id := range begun {
				begun[id] = make(chan struct{})
			}
		}
		cfg := PutConfig{FirstID: int64(i)<<8 + 1, BlockSize: blockSize, Size: blocks * blockSize}
		f, _, err := Put(testContext(t), bytes.NewReader(content(blocks*blockSize)), "f", []string{slowPath(t, n.addr, delay)}, cfg)
		if err != nil || len(f.Blocks) != blocks {
			t.Fatal(err)
		}
	}
}

// slowPath returns an address that leads to addr, on which everything takes so
// much longer in each direction.
func slowPath(t testing.TB, addr string, delay time.Duration) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	type piece struct {
		at time.Time
		b  []byte
	}
	pass := func(to, from net.Conn) {
		pieces := make(chan piece, 1<<16)
		go func() {
			defer close(pieces)
			for {
				b := make([]byte, 64<<10)
				n, err := from.Read(b)
				if err != nil {
					return
				}
				pieces <- piece{time.Now().Add(delay), b[:n]}
			}
		}()
		defer to.Close()
		for p := range pieces {
			time.Sleep(time.Until(p.at))
			to.Write(p.b)
		}
	}
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", addr)
			if err != nil {
				near.Close()
				continue
			}
			wg.Add(2)
			go func() { defer wg.Done(); pass(far, near) }()
			go func() { defer wg.Done(); pass(near, far) }()
		}
	}()
	return l.Addr().String()
}

func TestRate(t *testing.T) {
	ctx := testContext(t)
	n := startNode(t, "tcp")
	start := time.Now()
	m := NewManifest(RandomPool(), crc.Chunks{})
	f, _, err := Put(ctx, bytes.NewReader(content(192<<10)), "f", []string{n.addr}, PutConfig{Pool: m.Pool, Rate: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	// A burst of 64 KiB is free.
	if took := time.Since(start); took < 120*time.Millisecond {
		t.Errorf("192 KiB at 1 MiB/s took %v", took)
	}
	start = time.Now()
	if _, err := Get(ctx, io.Discard, m, &f, []string{n.addr}, GetConfig{Rate: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 120*time.Millisecond {
		t.Errorf("192 KiB at 1 MiB/s took %v", took)
	}
}

// The statistics that Puts share are the sums of each one's.
func TestPutStatistics(t *testing.T) {
	noLeaks(t)
	ctx := testContext(t)
	n := startNode(t, "tcp")
	set := packet.NewStatistics()
	var packets, size, wire, writes atomic.Int64
	var puts sync.WaitGroup
	for i := range 4 {
		puts.Add(1)
		go func() {
			defer puts.Done()
			data := content(100000 + i)
			cfg := PutConfig{Pool: RandomPool(), BlockSize: 64 << 10, PacketSize: 16 << 10, Statistics: set}
			_, stats, err := Put(ctx, bytes.NewReader(data), "f", []string{n.addr}, cfg)
			if err != nil {
				t.Error(err)
			}
			packets.Add(stats.Packets)
			size.Add(stats.Bytes)
			wire.Add(stats.Wire)
			writes.Add(stats.Writes)
		}()
	}
	puts.Wait()
	got := map[string]int64{}
	for name, value := range set.All() {
		got[name] = value
	}
	for name, want := range map[string]int64{
		"packets": packets.Load(), "bytes": size.Load(), "wire_bytes": wire.Load(), "writes": writes.Load(), "acks": packets.Load(),
	} {
		if got[name] != want || want == 0 {
			t.Errorf("%s is %d, want %d", name, got[name], want)
		}
	}
}
