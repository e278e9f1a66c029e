//go:build linux || darwin

package datanode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/crc/packet/client"
)

// A fault is what becomes of the bytes on their way to a node.
type fault int

const (
	noFault fault = iota
	reset         // the connection is lost, both ways
	stall         // nothing comes through any more, in any direction
	corrupt       // a bit is flipped
)

func (f fault) String() string { return [...]string{"none", "reset", "stall", "corrupt"}[f] }

// A link is the way to a node: a proxy that does something bad, once.
type link struct {
	net.Listener
	to string

	mu    sync.Mutex
	fault fault
	at    int64 // after so many bytes to the node
	conns []net.Conn
	dead  bool // nothing comes through at all any more

	closed chan struct{}
	done   sync.WaitGroup
}

func newLink(t testing.TB, to net.Addr) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{Listener: l, to: to.String(), closed: make(chan struct{})}
	k.done.Add(1)
	go func() {
		defer k.done.Done()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			k.done.Add(1)
			go func() {
				defer k.done.Done()
				k.carry(c)
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		close(k.closed)
		k.mu.Lock()
		for _, c := range k.conns {
			c.Close()
		}
		k.mu.Unlock()
		k.done.Wait()
	})
	return k
}

// breakAt makes the link do f to the next connection that carries so many bytes.
func (k *link) breakAt(f fault, at int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fault, k.at = f, at
}

// kill makes the node as good as dead: it closes its connections and takes no
// more, or with hang set stays silent. It returns how many connections there were.
func (k *link) kill(hang bool) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.conns)
	k.dead = true
	if !hang {
		k.Close()
		for _, c := range k.conns {
			c.Close()
		}
	}
	return n
}

func (k *link) isDead() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.dead
}

func (k *link) carry(from net.Conn) {
	to, err := net.Dial("tcp", k.to)
	if err != nil {
		from.Close()
		return
	}
	k.mu.Lock()
	k.conns = append(k.conns, from, to)
	k.mu.Unlock()
	stalled := make(chan struct{})
	back := make(chan struct{})
	go func() {
		defer close(back)
		buf := make([]byte, 4096)
		for {
			n, err := to.Read(buf)
			select {
			case <-stalled:
				return
			default:
			}
			if k.isDead() {
				return
			}
			if n > 0 {
				_, _ = from.Write(buf[:n])
			}
			if err != nil {
				_ = from.(*net.TCPConn).CloseWrite()
				return
			}
		}
	}()
	defer func() {
		from.Close()
		to.Close()
		<-back
	}()
	buf := make([]byte, 32<<10)
	total := int64(0)
	for {
		n, err := from.Read(buf)
		b := buf[:n]
		k.mu.Lock()
		f := noFault
		if k.fault != noFault && total+int64(n) > k.at {
			f, k.fault = k.fault, noFault
		}
		at := int(max(k.at-total, 0))
		k.mu.Unlock()
		total += int64(n)
		if k.isDead() {
			f = stall
		}
		switch f {
		case reset:
			_, _ = to.Write(b[:at])
			_ = from.(*net.TCPConn).SetLinger(0)
			_ = to.(*net.TCPConn).SetLinger(0)
			return
		case stall:
			if !k.isDead() {
				_, _ = to.Write(b[:at])
			}
			close(stalled)
			<-k.closed
			return
		case corrupt:
			b[at] ^= 4
		}
		if _, werr := to.Write(b); werr != nil || err != nil {
			return
		}
	}
}

// A testPipeline is datanodes and the ways to them.
type testPipeline struct {
	stores  []*Store
	servers []*Server
	dirs    []string
	links   []*link
	to      []string
}

func newPipeline(t testing.TB, nodes int, cfg ServerConfig) *testPipeline {
	t.Helper()
	p := &testPipeline{}
	for range nodes {
		dir := t.TempDir()
		s := openStore(t, dir)
		server, addr := startServerOn(t, s, cfg, "tcp", "127.0.0.1:0")
		k := newLink(t, addr)
		p.stores, p.servers, p.dirs = append(p.stores, s), append(p.servers, server), append(p.dirs, dir)
		p.links, p.to = append(p.links, k), append(p.to, k.Addr().String())
	}
	return p
}

// put puts data as one block, and returns it and which nodes have it.
func (p *testPipeline) put(t testing.TB, data []byte, cfg client.PutConfig) (packet.Block, []int, client.Stats) {
	t.Helper()
	rest := p.to
	cfg.Pool = testPool
	cfg.BlockSize = 8 << 20
	seen := cfg.Recover
	cfg.Recover = func(ctx context.Context, to []string, failure *packet.WriteError) ([]string, int64, error) {
		if seen != nil {
			_, _, _ = seen(ctx, to, failure)
		}
		next, stamp, err := client.WithoutBadNode(ctx, to, failure)
		if err == nil {
			rest = next
		}
		return next, stamp, err
	}
	ctx, cancel := context.WithTimeout(bg, 30*time.Second)
	defer cancel()
	f, stats, err := client.Put(ctx, bytes.NewReader(data), "f", p.to, cfg)
	if err != nil {
		t.Fatal(err)
	}
	var left []int
	for i, to := range p.to {
		if slices.Contains(rest, to) {
			left = append(left, i)
		}
	}
	return packet.Block{Pool: testPool, ID: f.Blocks[0].ID, Stamp: f.Blocks[0].Stamp, NumBytes: f.Blocks[0].Length}, left, stats
}

// check fails the test if the nodes do not have equal, finalized replicas, or if
// any of the others has something that does not verify.
func (p *testPipeline) check(t testing.TB, b packet.Block, nodes []int, data []byte) {
	t.Helper()
	for i, s := range p.stores {
		if slices.Contains(nodes, i) {
			checkFiles(t, s, b, crc.Chunks{}, data)
			if r := s.find(b); r.state != finalized || r.stamp != b.Stamp {
				t.Errorf("node %d: %s, stamp %d, expected %d", i, r.state, r.stamp, b.Stamp)
			}
		} else if r := s.find(b); r != nil {
			waitFor(t, func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.writer == nil })
			if got, err := readAll(s, packet.Block{Pool: b.Pool, ID: b.ID}); err != nil || !bytes.HasPrefix(data, got) {
				t.Errorf("node %d: %d bytes are visible, %v", i, len(got), err)
			}
		}
		report, err := Verify(bg, []string{p.dirs[i]}, VerifyConfig{})
		if err != nil || !report.OK() || len(report.LongMeta)+len(report.Misplaced) > 0 {
			t.Errorf("node %d: %+v, %v", i, report, err)
		}
	}
}

func TestPipeline(t *testing.T) {
	checkLeaks(t)
	for nodes := 1; nodes <= 4; nodes++ {
		p := newPipeline(t, nodes, ServerConfig{})
		for _, n := range []int{1, 511, 512, 64512, 64513, 1<<20 + 77} {
			data := randomBytes(uint64(n), n)
			for _, sync := range []bool{false, true} {
				b, left, _ := p.put(t, data, client.PutConfig{Sync: sync})
				if len(left) != nodes {
					t.Errorf("%d bytes, %d nodes: only %v are left", n, nodes, left)
				}
				p.check(t, b, left, data)
			}
		}
	}
}

// A node of a pipeline is lost, stalls, or gets damaged data, in mid-block. The
// client goes on with the others.
func TestPipelineFaults(t *testing.T) {
	data := randomBytes(61, 3<<20+77)
	for _, nodes := range []int{2, 3} {
		for victim := range nodes {
			for _, f := range []fault{reset, stall, corrupt} {
				if f == stall && victim == 0 {
					continue // it is the client's timeout that finds out
				}
				t.Run(fmt.Sprintf("%d nodes/%d/%s", nodes, victim, f), func(t *testing.T) {
					checkLeaks(t)
					p := newPipeline(t, nodes, ServerConfig{ReadTimeout: 600 * time.Millisecond})
					// Not in a header: that would be malformed, and the connection lost.
					p.links[victim].breakAt(f, 1<<20+30000)
					b, left, stats := p.put(t, data, client.PutConfig{PacketSize: packet.DefaultPacketSize})
					if stats.Recoveries == 0 || len(left) == nodes {
						t.Errorf("%d recoveries, the block is on %v", stats.Recoveries, left)
					}
					p.check(t, b, left, data)
					if f != corrupt {
						return
					}
					// The node before the one that noticed takes itself out.
					want := []int{1}
					if nodes == 3 {
						want = []int{0, 2}
					}
					if !slices.Equal(left, want) {
						t.Errorf("the block is on %v, expected %v", left, want)
					}
				})
			}
		}
	}
}

// A node dies, or hangs, in the second of several blocks. The others have all of
// them, and nobody waits for it any more after that.
func TestPipelineLosesNode(t *testing.T) {
	const blocks, blockSize = 5, 1 << 20
	data := randomBytes(69, blocks*blockSize)
	for victim := range 3 {
		for _, hang := range []bool{false, true} {
			if hang && victim != 1 {
				continue // it is the client's timeout that finds out, or one of two
			}
			t.Run(fmt.Sprintf("%d/hang=%t", victim, hang), func(t *testing.T) {
				checkLeaks(t)
				p := newPipeline(t, 3, ServerConfig{ReadTimeout: 600 * time.Millisecond})
				read, conns := int64(0), 0
				ctx, cancel := context.WithTimeout(bg, 30*time.Second)
				defer cancel()
				f, stats, err := client.Put(ctx, bytes.NewReader(data), "f", p.to, client.PutConfig{
					Pool: testPool, BlockSize: blockSize, Size: int64(len(data)), PacketSize: packet.DefaultPacketSize, Recover: client.WithoutBadNode,
					Progress: func(n int64) {
						if read += n; read > blockSize*3/2 && conns == 0 {
							conns = p.links[victim].kill(hang)
						}
					},
				})
				if err != nil || len(f.Blocks) != blocks {
					t.Fatalf("%d blocks, %v", len(f.Blocks), err)
				}
				if len(stats.Lost) != 1 || stats.Lost[0].Address != p.to[victim] {
					t.Errorf("lost: %+v", stats.Lost)
				}
				k := p.links[victim]
				k.mu.Lock()
				more := (len(k.conns) - conns) / 2
				k.mu.Unlock()
				if more > 1 { // one that was under way
					t.Errorf("%d more connections to the dead node", more)
				}
				for i, b := range f.Blocks {
					block := packet.Block{Pool: testPool, ID: b.ID, Stamp: b.Stamp}
					for j, s := range p.stores {
						if j != victim {
							checkFiles(t, s, block, crc.Chunks{}, data[i*blockSize:(i+1)*blockSize])
						}
					}
				}
				for _, dir := range p.dirs {
					report, err := Verify(bg, []string{dir}, VerifyConfig{})
					if err != nil || !report.OK() || len(report.LongMeta)+len(report.Misplaced) > 0 {
						t.Errorf("%+v, %v", report, err)
					}
				}
			})
		}
	}
}

// A node that is shut down tells the client, which goes on without it.
func TestPipelineRestart(t *testing.T) {
	data := randomBytes(68, 3<<20)
	for victim := range 3 {
		checkLeaks(t)
		p := newPipeline(t, 3, ServerConfig{})
		half := make(chan struct{})
		down := make(chan error, 1)
		go func() {
			<-half
			ctx, cancel := context.WithCancel(bg)
			cancel()
			down <- p.servers[victim].Shutdown(ctx)
		}()
		var failure *packet.WriteError
		var once sync.Once
		b, left, _ := p.put(t, data, client.PutConfig{PacketSize: packet.DefaultPacketSize, InFlight: 256 << 10, Progress: func(n int64) {
			r := p.stores[victim].find(packet.Block{Pool: testPool, ID: 1})
			if r != nil && p.visible(victim) > 1<<20 {
				once.Do(func() { close(half) })
			}
		}, FirstID: 1, Recover: func(_ context.Context, _ []string, f *packet.WriteError) ([]string, int64, error) {
			failure = f
			return nil, 0, nil
		}})
		if err := <-down; !errors.Is(err, context.Canceled) {
			t.Errorf("Shutdown: %v", err)
		}
		var ack *packet.AckError
		if !errors.As(failure, &ack) || ack.Status != packet.OOBRestart || ack.Node != victim || ack.Seqno != packet.UnknownSeqno {
			t.Errorf("node %d: the client heard %v", victim, failure)
		}
		if len(left) != 2 || slices.Contains(left, victim) {
			t.Errorf("without node %d the block is on %v", victim, left)
		}
		p.check(t, b, left, data)
	}
}

// visible returns how much of block 1 readers of a node see.
func (p *testPipeline) visible(node int) int64 {
	r := p.stores[node].find(packet.Block{Pool: testPool, ID: 1})
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.length
}

// A pipeline is set up to the end or not at all, and the client hears which node
// it was.
func TestPipelineSetup(t *testing.T) {
	checkLeaks(t)
	p := newPipeline(t, 3, ServerConfig{})
	data := randomBytes(62, 1000)
	writeBlock(t, p.stores[2], testBlock(5), crc.Chunks{}, data)
	dead := newLink(t, p.links[0].Addr())
	dead.Close()
	info := func(addr string) packet.DatanodeInfo {
		a, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		return *datanodeAt(a)
	}
	for name, test := range map[string]struct {
		id      int64
		targets []string
		status  packet.Status
		bad     string
	}{
		"exists on the last":    {5, []string{p.to[1], p.to[2]}, packet.ErrorExists, p.to[2]},
		"the last is dead":      {6, []string{p.to[1], dead.Addr().String()}, packet.Error, dead.Addr().String()},
		"the second is dead":    {7, []string{dead.Addr().String(), p.to[2]}, packet.Error, dead.Addr().String()},
		"the second is no node": {8, []string{"127.0.0.1:0"}, packet.Error, "127.0.0.1:0"},
	} {
		t.Run(name, func(t *testing.T) {
			req := writeRequest(testBlock(test.id), crc.Chunks{})
			for _, to := range test.targets {
				req.Targets = append(req.Targets, info(to))
			}
			req.PipelineSize = uint32(len(req.Targets) + 1)
			for range 2 { // nothing is left that would be in the way of another try
				c := dial(t, p.links[0].Addr())
				c.write(req.Append(nil))
				if r := c.response(); r.Status != test.status || r.FirstBadLink != test.bad {
					t.Errorf("%+v, expected %v by %s", r, test.status, test.bad)
				}
				c.eof()
			}
			for i, s := range p.stores[:2] {
				waitFor(t, func() bool { return s.find(testBlock(test.id)) == nil })
				if _, err := s.Open(testBlock(test.id)); err == nil {
					t.Errorf("node %d has the block", i)
				}
			}
		})
	}
	t.Run("exists, said to the node before", func(t *testing.T) {
		req := writeRequest(testBlock(5), crc.Chunks{})
		req.PipelineSize = 3
		last, err := net.ResolveTCPAddr("tcp", p.to[2])
		if err != nil {
			t.Fatal(err)
		}
		c := dial(t, last)
		c.write(req.Append(nil))
		if r := c.response(); r.Status != packet.ErrorExists || r.FirstBadLink != p.links[2].to {
			t.Errorf("%+v, expected %v by %s", r, packet.ErrorExists, p.links[2].to)
		}
		c.eof()
	})
	checkFiles(t, p.stores[2], testBlock(5), crc.Chunks{}, data)
}

// The request goes on without its first target.
func TestPipelineRequest(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	_, addr := startServer(t, s, ServerConfig{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	req := writeRequest(testBlock(1), crc.Chunks{Kind: crc.CRC32, Size: 1024})
	yes, ahead := true, int64(5)
	req.Token = packet.Token{Identifier: []byte{1}, Password: []byte{2}, Kind: "k", Service: "s"}
	req.TraceInfo = []byte{8, 1}
	req.Caching = packet.Caching{DropBehind: &yes, Readahead: &ahead}
	req.StorageType, req.PipelineSize, req.AllowLazyPersist = packet.SSD, 3, true
	second := packet.DatanodeInfo{IPAddr: "10.0.0.2", HostName: "h2", UUID: "u2", XferPort: 2, InfoPort: 3, IPCPort: 4, InfoSecurePort: 5}
	req.Targets = []packet.DatanodeInfo{*datanodeAt(l.Addr()), second}
	req.TargetStorageTypes, req.TargetStorageIDs, req.TargetPinnings = []packet.StorageType{packet.Archive, packet.RAMDisk}, []string{"DS-2", "DS-3"}, []bool{true, false}
	p := dial(t, addr)
	p.write(req.Append(nil))

	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	next := newPeer(t, c)
	got, err := packet.ReadRequest(next.in, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := *req
	want.Targets, want.StorageType, want.TargetStorageTypes = req.Targets[1:], packet.Archive, []packet.StorageType{packet.RAMDisk}
	want.StorageID, want.TargetStorageIDs, want.Pinning, want.TargetPinnings = "DS-3", nil, true, []bool{false}
	want.StorageID, want.TargetStorageIDs = "DS-2", []string{"DS-3"}
	if !bytes.Equal(want.Append(nil), got.(*packet.WriteBlock).Append(nil)) {
		t.Errorf("%+v\nexpected %+v", got, want)
	}
	// Some node behind refuses: the answer goes back as it is.
	next.write((&packet.BlockOpResponse{Status: packet.ErrorAccessToken, HasFirstBadLink: true, FirstBadLink: "10.0.0.2:2"}).Append(nil))
	if r := p.response(); r.Status != packet.ErrorAccessToken || r.FirstBadLink != "10.0.0.2:2" {
		t.Errorf("%+v", r)
	}
	p.eof()
}

// A pipeline of which this side plays the client and the second node.
type playedPipeline struct {
	*Store
	client, next *peer
	packets      *packet.Receiver
}

func playPipeline(t testing.TB, s *Store, addr net.Addr, req *packet.WriteBlock) *playedPipeline {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	req.Targets = []packet.DatanodeInfo{*datanodeAt(l.Addr())}
	p := &playedPipeline{Store: s, client: dial(t, addr)}
	p.client.write(req.Append(nil))
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p.next = newPeer(t, c)
	if _, err := packet.ReadRequest(p.next.in, 0); err != nil {
		t.Fatal(err)
	}
	if req.ClientName != "" {
		p.next.write((&packet.BlockOpResponse{HasFirstBadLink: true}).Append(nil))
		if r := p.client.response(); r.Status != packet.Success || !r.HasFirstBadLink || r.FirstBadLink != "" {
			t.Fatalf("%+v", r)
		}
	}
	p.packets = packet.NewReceiver(p.next.in, 0)
	return p
}

// forwarded expects a packet at the second node, as it was sent.
func (p *playedPipeline) forwarded(want packet.Header, sums, data []byte) {
	p.client.Helper()
	h, sumsLen, err := p.packets.Next()
	if err != nil {
		p.client.Fatalf("packet %d: %v", want.Seqno, err)
	}
	want.DataLen = len(data)
	gotSums, got, err := p.packets.Body(make([]byte, sumsLen+h.DataLen))
	if err != nil || h != want || !bytes.Equal(gotSums, sums) || !bytes.Equal(got, data) {
		p.client.Fatalf("packet %+v, expected %+v, %v", h, want, err)
	}
}

func (p *playedPipeline) answer(seqno int64, statuses ...packet.Status) {
	a := packet.Ack{Seqno: seqno}
	for _, s := range statuses {
		a.Replies, a.Flags = append(a.Replies, s), append(a.Flags, uint32(s))
	}
	p.next.write(a.Append(nil))
}

// acked expects an ack at the client.
func (p *playedPipeline) acked(seqno int64, statuses ...packet.Status) {
	p.client.Helper()
	a, err := packet.ReadAck(p.client.in)
	if err != nil {
		p.client.Fatalf("ack of %d: %v", seqno, err)
	}
	if a.Seqno != seqno || !slices.Equal(a.Replies, statuses) || len(a.Flags) != len(statuses) {
		p.client.Fatalf("ack %+v, expected %d %v", a, seqno, statuses)
	}
}

func (p *playedPipeline) visible(b packet.Block) int {
	r := p.find(b)
	r.mu.Lock()
	defer r.mu.Unlock()
	return int(r.length)
}

// Acks are combined, in order, and show what the nodes behind say; what they have
// not accepted is not visible, though it may be in the files.
func TestPipelineAcks(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	_, addr := startServer(t, s, ServerConfig{})
	c, data, b := crc.Chunks{}, randomBytes(63, 3000), testBlock(1)
	p := playPipeline(t, s, addr, writeRequest(b, c))
	sums := func(d []byte) []byte { return oracleSums(c, d) }

	p.client.packet(packet.Header{}, c, data[:700])
	p.client.packet(packet.Header{Seqno: packet.HeartbeatSeqno}, c, nil)
	p.client.packet(packet.Header{Offset: 512, Seqno: 1, Sync: true}, c, data[512:2000])
	p.forwarded(packet.Header{}, sums(data[:700]), data[:700])
	p.forwarded(packet.Header{Seqno: packet.HeartbeatSeqno}, nil, nil)
	p.forwarded(packet.Header{Offset: 512, Seqno: 1, Sync: true}, sums(data[512:2000]), data[512:2000])
	w := s.find(b).writer
	waitFor(t, func() bool { return w.Written() == 2000 })
	if n := p.visible(b); n != 0 {
		t.Errorf("%d bytes are visible before the next node has accepted any", n)
	}
	p.answer(0, packet.Success, packet.Success)
	p.acked(0, packet.Success, packet.Success, packet.Success)
	if got, err := readAll(s, b); err != nil || !bytes.Equal(got, data[:700]) {
		t.Errorf("%d bytes are visible, %v", len(got), err)
	}
	p.answer(packet.HeartbeatSeqno, packet.Success)
	p.acked(packet.HeartbeatSeqno, packet.Success, packet.Success)
	// Out of band, in between.
	p.answer(packet.UnknownSeqno, packet.OOBRestart)
	p.acked(packet.UnknownSeqno, packet.Success, packet.OOBRestart)
	p.answer(1, packet.Success)
	p.acked(1, packet.Success, packet.Success)
	if got, err := readAll(s, b); err != nil || !bytes.Equal(got, data[:2000]) {
		t.Errorf("%d bytes are visible, %v", len(got), err)
	}
	// A node far behind has a problem: the client hears, and nothing is visible.
	p.client.packet(packet.Header{Offset: 1536, Seqno: 2}, c, data[1536:2500])
	p.forwarded(packet.Header{Offset: 1536, Seqno: 2}, sums(data[1536:2500]), data[1536:2500])
	p.answer(2, packet.Success, packet.Error)
	p.acked(2, packet.Success, packet.Success, packet.Error)
	p.client.Close()
	p.next.eof()
	waitFor(t, func() bool { r := s.find(b); r.mu.Lock(); defer r.mu.Unlock(); return r.state == waiting })
	checkFiles(t, s, b, c, data[:2000])

	// A recovery goes on from there, in another pipeline.
	req := writeRequest(b, c)
	req.Stage, req.LatestStamp, req.MinBytesRcvd, req.MaxBytesRcvd = packet.SetupStreamingRecovery, 1002, 2000, 2500
	p = playPipeline(t, s, addr, req)
	p.client.packet(packet.Header{Offset: 1536, Seqno: 2}, c, data[1536:2500])
	p.client.packet(packet.Header{Offset: 2500, Seqno: 3, Last: true}, c, nil)
	p.forwarded(packet.Header{Offset: 1536, Seqno: 2}, sums(data[1536:2500]), data[1536:2500])
	p.forwarded(packet.Header{Offset: 2500, Seqno: 3, Last: true}, nil, nil)
	p.answer(2, packet.Success)
	p.acked(2, packet.Success, packet.Success)
	if r := s.find(b); r.state != writing {
		t.Errorf("the block is %s before the next node has finalized it", r.state)
	}
	p.answer(3, packet.Success)
	p.acked(3, packet.Success, packet.Success)
	p.client.eof()
	p.next.eof()
	checkFiles(t, s, b, c, data[:2500])
	if r := s.find(b); r.state != finalized {
		t.Errorf("the block is %s", r.state)
	}
}

// What a node does when the one behind it misbehaves, with a packet under way and
// one more to come.
func TestPipelineMirrorFails(t *testing.T) {
	c, data := crc.Chunks{}, randomBytes(64, 3000)
	id := int64(0)
	for name, test := range map[string]struct {
		fail func(*playedPipeline)
		acks bool // the client is told; else the connection ends
	}{
		"closes":                 {func(p *playedPipeline) { p.next.Close() }, true},
		"resets":                 {func(p *playedPipeline) { _ = p.next.Conn.(*net.TCPConn).SetLinger(0); p.next.Close() }, true},
		"garbage":                {func(p *playedPipeline) { p.next.write(bytes.Repeat([]byte{0xff}, 20)) }, true},
		"acks another":           {func(p *playedPipeline) { p.answer(7, packet.Success) }, true},
		"acks no node":           {func(p *playedPipeline) { p.next.write([]byte{4, 8, 2, 24, 0}) }, true},
		"stalls":                 {func(p *playedPipeline) {}, true},
		"received damaged data":  {func(p *playedPipeline) { p.answer(1, packet.ErrorChecksum) }, false},
		"the same, after others": {func(p *playedPipeline) { p.answer(1, packet.ErrorChecksum, packet.Success) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			s := openStore(t, t.TempDir())
			_, addr := startServer(t, s, ServerConfig{ReadTimeout: 300 * time.Millisecond})
			id++
			b := testBlock(id)
			p := playPipeline(t, s, addr, writeRequest(b, c))
			p.client.packet(packet.Header{}, c, data[:1000])
			p.forwarded(packet.Header{}, oracleSums(c, data[:1000]), data[:1000])
			p.answer(0, packet.Success)
			p.acked(0, packet.Success, packet.Success)
			p.client.packet(packet.Header{Offset: 512, Seqno: 1}, c, data[512:2000])
			p.forwarded(packet.Header{Offset: 512, Seqno: 1}, oracleSums(c, data[512:2000]), data[512:2000])
			test.fail(p)
			if test.acks {
				stop := make(chan struct{})
				if name == "stalls" { // a client that waits shows that it is alive
					go func() {
						for {
							select {
							case <-stop:
								return
							case <-time.After(50 * time.Millisecond):
								p.client.packet(packet.Header{Seqno: packet.HeartbeatSeqno}, c, nil)
							}
						}
					}()
				}
				p.acked(1, packet.Success, packet.Error)
				close(stop)
				if name != "stalls" {
					p.client.packet(packet.Header{Offset: 1536, Seqno: 2}, c, data[1536:])
					p.acked(2, packet.Success, packet.Error)
				}
				p.client.Close()
			} else {
				p.client.eof()
			}
			waitFor(t, func() bool { r := s.find(b); r.mu.Lock(); defer r.mu.Unlock(); return r.state == waiting })
			checkFiles(t, s, b, c, data[:1000])
		})
	}
}

// A client that ends the block before the rest of the pipeline has accepted it.
func TestPipelineLastTooEarly(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	_, addr := startServer(t, s, ServerConfig{})
	c, data, b := crc.Chunks{}, randomBytes(65, 1000), testBlock(1)
	p := playPipeline(t, s, addr, writeRequest(b, c))
	p.client.packet(packet.Header{}, c, data)
	p.client.packet(packet.Header{Offset: 1000, Seqno: 1, Last: true}, c, nil)
	p.forwarded(packet.Header{}, oracleSums(c, data), data)
	p.next.Close()
	p.acked(0, packet.Success, packet.Error)
	p.acked(1, packet.Error, packet.Error)
	p.client.eof()
	waitFor(t, func() bool { r := s.find(b); r.mu.Lock(); defer r.mu.Unlock(); return r.state == waiting })
	checkFiles(t, s, b, c, nil)
}

// A node that stores other checksums than it gets verifies what it passes on.
func TestPipelineTranslates(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	_, addr := startServer(t, s, ServerConfig{})
	stored, wire := crc.Chunks{Kind: crc.CRC32}, crc.Chunks{}
	data, b := randomBytes(66, 2000), testBlock(1)
	writeBlock(t, s, b, stored, data[:1024])
	req := writeRequest(b, wire)
	req.Stage, req.LatestStamp, req.MinBytesRcvd, req.MaxBytesRcvd = packet.SetupAppend, 1002, 1024, 1024
	p := playPipeline(t, s, addr, req)
	p.client.packet(packet.Header{Offset: 1024}, wire, data[1024:1600])
	p.forwarded(packet.Header{Offset: 1024}, oracleSums(wire, data[1024:1600]), data[1024:1600])
	p.answer(0, packet.Success)
	p.acked(0, packet.Success, packet.Success)
	p.client.write(wirePacket(packet.Header{Offset: 1536, Seqno: 1}, []byte{1, 2, 3, 4}, data[1536:2000]))
	p.acked(1, packet.ErrorChecksum)
	p.client.eof()
	b.Stamp = 1002
	waitFor(t, func() bool { r := s.find(b); r.mu.Lock(); defer r.mu.Unlock(); return r.state == waiting })
	checkFiles(t, s, b, stored, data[:1600])
}

// One write call passes a packet on.
func TestMirrorSend(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := openStore(t, t.TempDir())
	server := NewServer(s, ServerConfig{})
	ctx, cancel := context.WithCancel(bg)
	m, err := server.dialNode(ctx, datanodeAt(l.Addr()), 1)
	if err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	yields := 0
	if err := m.send(make([]byte, 1000), func() { yields++ }); err != nil || yields != 0 {
		t.Errorf("%v, %d yields for a packet that fits", err, yields)
	}
	// More than the socket takes: memory is given back before the wait, and all of
	// it gets there.
	sent := randomBytes(67, 16<<20)
	done := make(chan error, 1)
	go func() { done <- m.send(sent, func() { yields++ }) }()
	got := make([]byte, 1000+len(sent))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got[1000:], sent) {
		t.Errorf("%v", err)
	}
	if err := <-done; err != nil || yields != 1 {
		t.Errorf("%v, %d yields", err, yields)
	}
	cancel()
	if _, err := c.Read(got); err != io.EOF {
		t.Errorf("after the end of the server: %v", err)
	}
	if err := m.send(sent, func() {}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := m.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
