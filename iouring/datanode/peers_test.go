//go:build linux || darwin

package datanode

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

func TestRemoteName(t *testing.T) {
	for _, c := range []struct {
		a, b net.Addr
		same bool
	}{
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, &net.TCPAddr{IP: net.ParseIP("::ffff:127.0.0.1"), Port: 2}, true},
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2), Port: 1}, false},
		{&net.UnixAddr{Name: "@", Net: "unix"}, &net.UnixAddr{Net: "unix"}, true},
		{&net.UnixAddr{Net: "unix"}, &net.TCPAddr{IP: net.IPv6loopback}, false},
	} {
		if same := remoteName(c.a) == remoteName(c.b); same != c.same {
			t.Errorf("%v and %v are the same: %t", c.a, c.b, same)
		}
	}
}

// What waits is served in its order; whoever gives up makes way.
func TestBudgetOrder(t *testing.T) {
	b := budget{limit: 10}
	if !b.tryTake(100) || b.tryTake(1) {
		t.Fatal("one may take more than the limit, if it is the only one")
	}
	served := make(chan int64, 3)
	wait := func(ctx context.Context, n int64) {
		queued := b.queue.Len()
		go func() {
			if b.take(ctx, n) == nil {
				served <- n
			} else {
				served <- -n
			}
		}()
		waitFor(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.queue.Len() > queued })
	}
	ctx, cancel := context.WithCancel(bg)
	wait(bg, 9)
	wait(ctx, 8)
	wait(bg, 1)
	b.give(100)
	if n := <-served; n != 9 {
		t.Errorf("%d were served first", n)
	}
	if b.tryTake(1) {
		t.Error("it was not its turn")
	}
	cancel()
	if n, m := <-served, <-served; n+m != -7 {
		t.Errorf("%d and %d were served", n, m)
	}
	b.give(9)
	b.give(1)
	if b.used != 0 || b.queue.Len() != 0 {
		t.Errorf("%d are used, %d wait", b.used, b.queue.Len())
	}
}

func TestBudgetStress(t *testing.T) {
	b := budget{limit: 100}
	var used, given atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			for range 2000 {
				n := 1 + rng.Int64N(60)
				ctx, cancel := context.WithCancel(bg)
				if rng.IntN(3) == 0 {
					go cancel()
				}
				if b.take(ctx, n) == nil {
					if now := used.Add(n); now > 100 {
						t.Errorf("%d are used", now)
					}
					given.Add(1)
					used.Add(-n)
					b.give(n)
				}
				cancel()
			}
		}()
	}
	wg.Wait()
	if b.used != 0 || b.queue.Len() != 0 || given.Load() == 0 {
		t.Errorf("%d are used, %d wait, %d were served", b.used, b.queue.Len(), given.Load())
	}
}

// An address does not get more than its share of the connections; what it has
// waiting makes room for it.
func TestServerPeerConns(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	writeBlock(t, s, testBlock(1), crc.Chunks{}, []byte("content"))
	server := NewServer(s, ServerConfig{MaxConns: 10, MaxPeerConns: 2})
	addr := serveOn(t, server, "tcp", "127.0.0.1:0")
	unixAddr := serveOn(t, server, "unix", filepath.Join(t.TempDir(), "s"))
	idle := dial(t, addr)
	idle.get(readRequest(testBlock(1), 0, -1))
	writes := dial(t, addr)
	writes.open(testBlock(2), crc.Chunks{})
	waitFor(t, func() bool {
		n := 0
		server.each(func(c *conn) { n += int(min(c.idle.Load(), 1)) })
		return n == 1
	})
	also := dial(t, addr)
	also.open(testBlock(3), crc.Chunks{})
	idle.eof()
	refused := dial(t, addr)
	refused.eof()
	other := dial(t, unixAddr)
	if got, _ := other.get(readRequest(testBlock(1), 0, -1)); string(got) != "content" {
		t.Errorf("%q", got)
	}
	also.Close()
	waitFor(t, func() bool { server.mu.Lock(); defer server.mu.Unlock(); return len(server.conns) == 2 })
	again := dial(t, addr)
	again.open(testBlock(4), crc.Chunks{})
	for _, p := range []*peer{writes, other, again} {
		p.Close()
	}
	waitFor(t, func() bool { server.mu.Lock(); defer server.mu.Unlock(); return len(server.remotes) == 0 })
	if refused, evicted := server.stats.Load(statConnsRefused), server.stats.Load(statConnsEvicted); refused != 1 || evicted != 1 {
		t.Errorf("%d refused, %d evicted", refused, evicted)
	}
}

// longPacketBytes returns a packet of n bytes or a little less, the first of a
// block.
func longPacketBytes(n int) []byte {
	data := make([]byte, (n-100)/516*512)
	return wirePacket(packet.Header{}, oracleSums(crc.Chunks{}, data), data)
}

// Many peers send a little of packets of a quarter of the arena, and nothing more. Short packets
// of others do not wait for them, even of those at the same address; those that
// got memory as long as there was plenty are not waited for much longer; and a
// long packet that comes has its turn.
func TestServerStalledLongPackets(t *testing.T) {
	checkLeaks(t)
	long := longPacketBytes(4 << 20)
	for _, from := range []string{"tcp", "unix", "tcp from many addresses"} {
		t.Run(from, func(t *testing.T) {
			many := from == "tcp from many addresses"
			if many && runtime.GOOS != "linux" {
				t.Skip("SKIPPED, NOT TESTED: there is one loopback address")
			}
			arena := testArena(t, 16<<20)
			s := openStoreWith(t, StoreConfig{Dirs: []string{fastDir(t)}, Arena: arena})
			network, address := "tcp", "127.0.0.1:0"
			if from == "unix" {
				network, address = "unix", filepath.Join(t.TempDir(), "s")
			}
			server, addr := startServerOn(t, s, ServerConfig{}, network, address)
			var stalled []*peer
			for i := range 20 {
				var d net.Dialer
				if many {
					d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%7))}
				}
				c, err := d.Dial(addr.Network(), addr.String())
				if err != nil {
					t.Fatal(err)
				}
				p := newPeer(t, c)
				p.open(testBlock(int64(i)), crc.Chunks{})
				p.write(long[:[]int{31, 512, 20000, 60000}[i%4]])
				stalled = append(stalled, p)
				waitFor(t, func() bool { return arena.InUse() > 0 })
			}
			data := randomBytes(111, 1<<20)
			for id := int64(100); id < 110; id++ {
				p := dial(t, addr)
				p.put(testBlock(id), crc.Chunks{}, data, 64512)
				checkFiles(t, s, testBlock(id), crc.Chunks{}, data)
				p.Close()
			}
			if used := arena.InUse(); used > server.cfg.MaxPeerMemory {
				t.Errorf("%d bytes are in use, at most %d may be", used, server.cfg.MaxPeerMemory)
			}
			if from == "tcp" {
				stalled[0].eof() // it had memory first
			}
			for _, p := range stalled {
				p.Close()
			}
			p := dial(t, addr)
			p.open(testBlock(200), crc.Chunks{})
			p.write(long)
			p.ack(0, packet.Success)
			p.Close()
			waitFor(t, func() bool {
				server.mu.Lock()
				defer server.mu.Unlock()
				return len(server.conns) == 0 && len(server.remotes) == 0 && arena.InUse() == 0
			})
		})
	}
}

// A remote's memory is what its packets have, and nothing is left of it when they
// are written, or do not come.
func TestServerPeerMemory(t *testing.T) {
	checkLeaks(t)
	s := openStoreWith(t, StoreConfig{Dirs: []string{fastDir(t)}, Arena: testArena(t, 8<<20)})
	server, addr := startServerOn(t, s, ServerConfig{MaxPeerMemory: 100 << 10}, "tcp", "127.0.0.1:0")
	data := randomBytes(112, 2<<20)
	var peak atomic.Int64
	stop := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for !closed(stop) {
			peak.Store(max(peak.Load(), s.arena.InUse()))
			time.Sleep(time.Millisecond)
		}
	}()
	// One stays in mid-packet with what its packet needs.
	holds := dial(t, addr)
	holds.open(testBlock(1000), crc.Chunks{})
	holds.packet(packet.Header{}, crc.Chunks{}, data[:512])
	holds.ack(0, packet.Success)
	var wg sync.WaitGroup
	for id := range int64(6) {
		p := dial(t, addr)
		wg.Add(1)
		go func() {
			defer wg.Done()
			p.put(testBlock(id), crc.Chunks{}, data, []int{64512, 512, 1 << 20}[id%3])
			p.Close()
		}()
	}
	wg.Wait()
	close(stop)
	<-watched
	for id := range int64(6) {
		checkFiles(t, s, testBlock(id), crc.Chunks{}, data)
	}
	// One packet of 1 MiB takes 2 MiB of the arena, and may be there alone.
	if n := peak.Load(); n > 2<<20+128<<10 {
		t.Errorf("%d bytes were in use", n)
	}
	b := wirePacket(packet.Header{Offset: 512, Seqno: 1}, oracleSums(crc.Chunks{}, data[:1024]), data[:1024])
	holds.write(b[:len(b)-1])
	remote := func() (used int64) {
		server.each(func(c *conn) {
			c.remote.memory.mu.Lock()
			defer c.remote.memory.mu.Unlock()
			used = c.remote.memory.used
		})
		return used
	}
	waitFor(t, func() bool { return remote() == 8+1024 })
	holds.write(b[len(b)-1:])
	holds.ack(1, packet.Success)
	waitFor(t, func() bool { return remote() == 0 })
	if got, err := readAll(s, testBlock(1000)); err != nil || !bytes.Equal(got, append(data[:512:512], data[:1024]...)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// Requests that are long take turns, and those that do not come do not keep the
// others waiting for long, nor have memory for what has not come.
func TestServerLongRequests(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	data := randomBytes(113, 5000)
	writeBlock(t, s, testBlock(1), crc.Chunks{}, data)
	server, addr := startServer(t, s, ServerConfig{MaxPeerMemory: 4 << 20})
	long := func(id int64) []byte {
		req := writeRequest(testBlock(id), crc.Chunks{})
		req.Token.Password = make([]byte, 900<<10)
		return req.Append(nil)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var stalled []*peer
	for i := range 40 {
		p := dial(t, addr)
		p.write(long(int64(100 + i))[:20000])
		stalled = append(stalled, p)
	}
	waitFor(t, func() bool { return server.stats.Load(statConns) == 40 })
	for range 10 {
		p := dial(t, addr)
		if got, _ := p.get(readRequest(testBlock(1), 0, -1)); !bytes.Equal(got, data) {
			t.Fatal("wrong bytes")
		}
		p.Close()
	}
	stalled[0].eof()
	runtime.ReadMemStats(&after)
	if n := int64(after.HeapAlloc) - int64(before.HeapAlloc); n > 40*900<<10/2 {
		t.Errorf("%d bytes are in use for requests that were only announced", n)
	}
	for _, p := range stalled {
		p.Close()
	}
	p := dial(t, addr)
	p.write(long(2))
	if r := p.response(); r.Status != packet.Success {
		t.Fatalf("%+v", r)
	}
	p.packet(packet.Header{}, crc.Chunks{}, data)
	p.ack(0, packet.Success)
	p.Close()
	waitFor(t, func() bool { server.mu.Lock(); defer server.mu.Unlock(); return len(server.remotes) == 0 })
}
