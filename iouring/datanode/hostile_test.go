//go:build linux || darwin

package datanode

import (
	"bytes"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// hostiles are what peers do that mean no good, or are broken. Each gets a
// connection of its own and the id of a block that nobody else has.
var hostiles = map[string]func(p *peer, id int64){
	"stalls before a request":  func(p *peer, _ int64) {},
	"stalls in a request":      func(p *peer, id int64) { p.write(writeRequest(testBlock(id), crc.Chunks{}).Append(nil)[:20]) },
	"announces a long request": func(p *peer, _ int64) { p.write([]byte{0, 28, 80, 0xff, 0xff, 0x3f}) },
	"garbage":                  func(p *peer, id int64) { p.write(randomBytes(uint64(id), 5000)) },
	"resets": func(p *peer, id int64) {
		p.write(writeRequest(testBlock(id), crc.Chunks{}).Append(nil))
		if tcp, ok := p.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		p.Close()
	},
	"announces 16 MiB": func(p *peer, id int64) {
		p.open(testBlock(id), crc.Chunks{})
		p.write(announced(16 << 20)[:31])
	},
	"512 bytes of 16 MiB": func(p *peer, id int64) {
		p.open(testBlock(id), crc.Chunks{})
		p.write(announced(16 << 20))
	},
	"half a packet": func(p *peer, id int64) {
		p.open(testBlock(id), crc.Chunks{})
		data := randomBytes(uint64(id), 64512)
		b := wirePacket(packet.Header{}, oracleSums(crc.Chunks{}, data), data)
		p.write(b[:len(b)/2])
	},
	"all but a byte, after some packets": func(p *peer, id int64) {
		p.open(testBlock(id), crc.Chunks{})
		data := randomBytes(uint64(id), 5*64512)
		var b []byte
		for i := range 5 {
			d := data[i*64512:][:64512]
			b = append(b, wirePacket(packet.Header{Offset: int64(i * 64512), Seqno: int64(i)}, oracleSums(crc.Chunks{}, d), d)...)
		}
		p.write(b[:len(b)-1])
	},
	"never reads": func(p *peer, _ int64) {
		req := readRequest(testBlock(1), 0, -1)
		p.write(req.Append(nil))
	},
	"damaged packets": func(p *peer, id int64) {
		p.open(testBlock(id), crc.Chunks{})
		p.write(wirePacket(packet.Header{}, []byte{1, 2, 3, 4}, make([]byte, 512)))
	},
	"a pipeline to nowhere": func(p *peer, id int64) {
		req := writeRequest(testBlock(id), crc.Chunks{})
		req.Targets = []packet.DatanodeInfo{{IPAddr: "127.0.0.1", XferPort: 1}}
		p.write(req.Append(nil))
	},
}

// announced returns the header of a packet of n bytes or a little less, the first
// of a block, and 512 bytes of it.
func announced(n int) []byte {
	n = n / 516 * 512
	return append(packet.Header{DataLen: n}.Append(nil, n/128), make([]byte, 512)...)
}

// Other clients are served while peers do their worst, many of each kind; the
// store is whole afterwards and nothing is held.
func TestServerHostile(t *testing.T) {
	checkLeaks(t)
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			dir := t.TempDir()
			arena := testArena(t, 64<<20)
			s := openStoreWith(t, StoreConfig{Dirs: []string{dir}, Arena: arena})
			address := "127.0.0.1:0"
			if network == "unix" {
				address = filepath.Join(t.TempDir(), "s")
			}
			server, addr := startServerOn(t, s, ServerConfig{}, network, address)
			data := randomBytes(101, 2<<20)
			writeBlock(t, s, testBlock(1), crc.Chunks{}, data)

			id := int64(1000)
			serve := func(n int) []time.Duration {
				var times []time.Duration
				for range n {
					id++
					start := time.Now()
					p := dial(t, addr)
					p.put(testBlock(id), crc.Chunks{}, data[:300000], 64512)
					p.Close()
					p = dial(t, addr)
					if got, _ := p.get(readRequest(testBlock(1), 4096, 64<<10)); !bytes.Equal(got, data[4096:4096+64<<10]) {
						t.Fatal("wrong bytes")
					}
					p.Close()
					times = append(times, time.Since(start))
				}
				slices.Sort(times)
				return times
			}
			before := serve(20)
			var peers []*peer
			for name, act := range hostiles {
				for range 25 {
					id++
					p := dial(t, addr)
					peers = append(peers, p)
					act(p, id)
				}
				if n := arena.InUse(); n > arena.Bytes() {
					t.Fatalf("%s: %d bytes in use", name, n)
				}
			}
			during := serve(20)
			t.Logf("median of a put and a get: %v, with hostile peers %v", before[10], during[10])
			for _, p := range peers {
				p.Close()
			}
			waitFor(t, func() bool {
				server.mu.Lock()
				defer server.mu.Unlock()
				return len(server.conns) == 0 && arena.InUse() == 0
			})
			if got, err := readAll(s, testBlock(1)); err != nil || !bytes.Equal(got, data) {
				t.Errorf("the block that was there: %d bytes, %v", len(got), err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			report, err := Verify(bg, []string{dir}, VerifyConfig{})
			if err != nil || !report.OK() || len(report.LongMeta)+len(report.Misplaced) > 0 {
				t.Errorf("%+v, %v", report, err)
			}
		})
	}
}

// Peers that announce packets and do not send them do not get all of a small
// arena, whatever the length of the packets: the others' packets, which arrive,
// find room.
func TestServerAnnouncedMemory(t *testing.T) {
	checkLeaks(t)
	for _, network := range []string{"tcp", "unix"} {
		for _, n := range []int{64512, 512 << 10} {
			t.Run(fmt.Sprintf("%s/%d", network, n), func(t *testing.T) {
				arena := testArena(t, 2<<20)
				s := openStoreWith(t, StoreConfig{Dirs: []string{t.TempDir()}, Arena: arena})
				address := "127.0.0.1:0"
				if network == "unix" {
					address = filepath.Join(t.TempDir(), "s")
				}
				_, addr := startServerOn(t, s, ServerConfig{}, network, address)
				var peers []*peer
				for id := range int64(60) {
					p := dial(t, addr)
					p.open(testBlock(id), crc.Chunks{})
					d := randomBytes(uint64(id), n)
					b := wirePacket(packet.Header{}, oracleSums(crc.Chunks{}, d), d)
					p.write(b[:100])
					peers = append(peers, p)
				}
				data := randomBytes(102, 1<<20)
				for id := int64(100); id < 103; id++ {
					dial(t, addr).put(testBlock(id), crc.Chunks{}, data, 64512)
					checkFiles(t, s, testBlock(id), crc.Chunks{}, data)
				}
				if used := arena.InUse(); used > arena.Bytes()/2+1<<20 {
					t.Errorf("%d of %d bytes are in use for packets that were only announced", used, arena.Bytes())
				}
				// One that sends the rest after all is served, too.
				d := randomBytes(59, n)
				b := wirePacket(packet.Header{}, oracleSums(crc.Chunks{}, d), d)
				for _, p := range peers[:59] {
					p.Close()
				}
				peers[59].write(b[100:])
				peers[59].ack(0, packet.Success)
				checkFiles(t, s, testBlock(59), crc.Chunks{}, d)
				peers[59].Close()
			})
		}
	}
}

// Connections that come and go, faster than anything is done about them.
func TestServerManyConnections(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	server, addr := startServer(t, s, ServerConfig{MaxConns: 100})
	writeBlock(t, s, testBlock(1), crc.Chunks{}, []byte("content"))
	n := 10000
	if testing.Short() {
		n = 1000
	}
	for i := range n {
		c, err := net.Dial(addr.Network(), addr.String())
		if err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			_, _ = c.Write([]byte{0, 28, 81}[:1+i%3])
		}
		c.Close()
		if i%1000 == 0 {
			p := dial(t, addr)
			if got, _ := p.get(readRequest(testBlock(1), 0, -1)); string(got) != "content" {
				t.Fatalf("%q", got)
			}
			p.Close()
		}
	}
	waitFor(t, func() bool { server.mu.Lock(); defer server.mu.Unlock(); return len(server.conns) == 0 })
}
