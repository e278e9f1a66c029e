//go:build linux || darwin

package datanode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring"
)

// opened returns how many files the store has opened for readers.
func opened(s *Store) int64 { return s.stats.Load(statFilesOpened) }

// Files are opened once, and anew after they have been moved.
func TestFilesStayOpen(t *testing.T) {
	s := openStore(t, t.TempDir())
	c, data, b := crc.Chunks{}, randomBytes(91, 2000), testBlock(1)
	expect := func(b packet.Block, want []byte, n int64) {
		t.Helper()
		for range 3 {
			if got, err := readAll(s, b); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
		}
		if opened(s) != n {
			t.Errorf("%d files were opened, expected %d", opened(s), n)
		}
	}
	w, err := s.Create(bg, b, c)
	if err != nil {
		t.Fatal(err)
	}
	if err := send(t, w, packet.Header{}, data[:700]); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(bg); err != nil {
		t.Fatal(err)
	}
	expect(b, data[:700], 2)
	held, err := s.Open(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := send(t, w, packet.Header{Offset: 512, Seqno: 1}, data[512:1000]); err != nil {
		t.Fatal(err)
	}
	if err := w.Finalize(bg, false); err != nil {
		t.Fatal(err)
	}
	expect(b, data[:1000], 4)
	w, err = s.Append(bg, b, 1002, 1000, c)
	if err != nil {
		t.Fatal(err)
	}
	b.Stamp = 1002
	expect(b, data[:1000], 6)
	if err := send(t, w, packet.Header{Offset: 1000}, data[1000:1024]); err != nil {
		t.Fatal(err)
	}
	if err := w.Finalize(bg, false); err != nil {
		t.Fatal(err)
	}
	expect(b, data[:1024], 8)
	// A newer copy has other files of the same names, but for the stamp.
	b.Stamp, b.NumBytes = 1003, 2000
	w, err = s.Copy(bg, b, c, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := send(t, w, packet.Header{}, data); err != nil {
		t.Fatal(err)
	}
	if err := w.Finalize(bg, false); err != nil {
		t.Fatal(err)
	}
	expect(b, data, 10)
	p := make([]byte, 700)
	if _, err := held.ReadAt(p, 0); err != nil || !bytes.Equal(p, data[:700]) {
		t.Errorf("what was opened first: %v", err)
	}
	if err := held.Close(); err != nil {
		t.Error(err)
	}
	if n := s.files.Len(); n != 2 {
		t.Errorf("%d files are open", n)
	}
}

func TestFilesBound(t *testing.T) {
	checkLeaks(t)
	for _, bound := range []int{-1, 1, 5, 100} {
		s := openStoreWith(t, StoreConfig{Dirs: []string{fastDir(t)}, Arena: testArena(t, 1<<20), OpenFiles: bound})
		for id := range int64(20) {
			writeBlock(t, s, testBlock(id), crc.Chunks{}, randomBytes(uint64(id), 600))
		}
		var readers []*BlockReader
		for range 3 {
			for id := range int64(20) {
				r, err := s.Open(testBlock(id))
				if err != nil {
					t.Fatal(err)
				}
				readers = append(readers, r)
			}
		}
		if n := s.files.Len(); n != 40 {
			t.Errorf("%d files in use", n)
		}
		for _, r := range readers {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
		if n := s.files.Len(); n > max(bound, 0) {
			t.Errorf("%d files are kept, at most %d may be", n, bound)
		}
	}
}

// limitFiles leaves the process n more file descriptors than it has open.
func limitFiles(t testing.TB, n int) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	fd := 0
	for free := 0; free < n; fd++ { // the limit is one of numbers, and the lowest free one is taken
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			free++
		}
	}
	limit := old
	limit.Cur = uint64(fd)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: the number of open files cannot be limited: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Error(err)
		}
	})
}

// When descriptors run out, those of files that nobody uses are given back, for
// whatever they are wanted. No block is lost over it.
func TestFilesRunOut(t *testing.T) {
	s := openStoreWith(t, StoreConfig{Dirs: []string{fastDir(t)}, Arena: testArena(t, 8<<20), OpenFiles: 1000, MaxWriters: 100})
	const blocks = 60
	for id := range int64(blocks) {
		writeBlock(t, s, testBlock(id), crc.Chunks{}, randomBytes(uint64(id), 600))
	}
	_, addr := startServerOn(t, s, ServerConfig{KeepAlive: time.Minute}, "tcp", "127.0.0.1:0")
	p := dial(t, addr)
	limitFiles(t, 40)
	for range 2 {
		for id := range int64(blocks) {
			if got, _ := p.get(readRequest(testBlock(id), 0, -1)); !bytes.Equal(got, randomBytes(uint64(id), 600)) {
				t.Fatalf("block %d", id)
			}
		}
	}
	if n := s.stats.Load(statFilesEvicted); n == 0 {
		t.Error("nothing was evicted")
	}
	// A writer, a connection and the way to another node have their turn, too.
	writeBlock(t, s, testBlock(1000), crc.Chunks{}, []byte("new"))
	for id := range int64(20) {
		if _, err := readAll(s, testBlock(id)); err != nil {
			t.Fatal(err)
		}
	}
	s.files.Evict(1) // for the client's end, which has nothing to do with the store
	q := dial(t, addr)
	q.get(readRequest(testBlock(1000), 0, -1))
	// With nothing left to give back it is an error, and only that.
	var held []*BlockReader
	var refused *BlockError
	for id := range int64(blocks) {
		r, err := s.Open(testBlock(id))
		if err != nil {
			if !errors.As(err, &refused) || !errors.Is(err, unix.EMFILE) {
				t.Errorf("%v", err)
			}
			break
		}
		held = append(held, r)
	}
	if refused == nil {
		t.Error("descriptors did not run out")
	}
	for _, r := range held {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := len(s.Blocks()); n != blocks+1 {
		t.Errorf("%d blocks are left", n)
	}
	for id := range int64(blocks) {
		if got, err := readAll(s, testBlock(id)); err != nil || !bytes.Equal(got, randomBytes(uint64(id), 600)) {
			t.Errorf("block %d: %v", id, err)
		}
	}
}

// Peers that take what they asked for slowly, a little at a time, get the right
// bytes, in whatever way they are sent.
func TestServerSlowReaders(t *testing.T) {
	checkLeaks(t)
	backends := []iouring.Choice{iouring.SyscallBackend}
	if runtime.GOOS == "linux" {
		backends = append(backends, iouring.AutoBackend)
	}
	for _, choice := range backends {
		backend, err := iouring.Open(iouring.Config{Backend: choice})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { backend.Close() })
		s := openStoreWith(t, StoreConfig{Dirs: []string{t.TempDir()}, Arena: testArena(t, 4<<20), Backend: backend})
		data := randomBytes(92, 4<<20+77)
		c := crc.Chunks{}
		writeBlock(t, s, testBlock(1), c, data)
		for _, files := range []bool{false, true} {
			for _, network := range []string{"tcp", "unix"} {
				t.Run(fmt.Sprintf("%s/%s/%t", backend.Name(), network, files), func(t *testing.T) {
					address := "127.0.0.1:0"
					if network == "unix" {
						address = filepath.Join(t.TempDir(), "s")
					}
					addr := serveOn(t, filesServer(s, ServerConfig{Workers: 2}, files), network, address)
					var wg sync.WaitGroup
					for i := range 4 {
						p := dial(t, addr)
						if tcp, ok := p.Conn.(*net.TCPConn); ok {
							if err := tcp.SetReadBuffer(128 << 10); err != nil {
								t.Fatal(err)
							}
						}
						wg.Add(1)
						go func() {
							defer wg.Done()
							for _, r := range [][2]int{{0, len(data)}, {i * 1000, 900000}, {i, 3}, {len(data) - 100, 100}, {1 << 20, 64 << 10}} {
								got, at := slowGet(p, readRequest(testBlock(1), int64(r[0]), int64(r[1])))
								from, to := r[0]/512*512, min((r[0]+r[1]+511)/512*512, len(data))
								if at != int64(from) || !bytes.Equal(got, data[from:to]) {
									t.Errorf("%d bytes at %d: got %d at %d", r[1], r[0], len(got), at)
								}
							}
						}()
					}
					wg.Wait()
				})
			}
		}
	}
}

// slowGet is get through a reader that takes pieces and pauses between them.
func slowGet(p *peer, req packet.ReadBlock) ([]byte, int64) {
	p.in.Reset(&pieces{Conn: p.Conn})
	return p.get(req)
}

type pieces struct {
	net.Conn
	n int
}

func (r *pieces) Read(b []byte) (int, error) {
	r.n++
	if r.n%8 == 0 {
		time.Sleep(100 * time.Microsecond)
	}
	return r.Conn.Read(b[:min(len(b), 1+r.n%40*700)])
}

// Clients that never take what they asked for hold nothing but their connection:
// no memory of the arena and none of the few workers. The others are served.
func TestServerNeverRead(t *testing.T) {
	checkLeaks(t)
	arena := testArena(t, 1<<20)
	s := openStoreWith(t, StoreConfig{Dirs: []string{t.TempDir()}, Arena: testArena(t, 4<<20)})
	s.arena = arena
	data := randomBytes(93, 8<<20)
	writeBlock(t, s, testBlock(1), crc.Chunks{}, data)
	server, addr := startServerOn(t, s, ServerConfig{Workers: 2}, "tcp", "127.0.0.1:0")
	var stuck []*peer
	for range 40 {
		p := dial(t, addr)
		req := readRequest(testBlock(1), 0, -1)
		p.write(req.Append(nil))
		stuck = append(stuck, p)
	}
	good := dial(t, addr)
	for range 50 {
		if got, _ := good.get(readRequest(testBlock(1), 4096, 4096)); !bytes.Equal(got, data[4096:8192]) {
			t.Fatal("wrong bytes")
		}
	}
	waitFor(t, func() bool { return arena.InUse() == 0 && len(server.workers) == 0 })
	// Some go on after all.
	for _, p := range stuck[:3] {
		in := packet.NewReceiver(p.in, 0)
		if r := p.response(); r.Status != packet.Success {
			t.Fatalf("%+v", r)
		}
		var got []byte
		for {
			h, sumsLen, err := in.Next()
			if err != nil {
				t.Fatal(err)
			}
			_, body, err := in.Body(make([]byte, sumsLen+h.DataLen))
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, body...)
			if h.Last {
				break
			}
		}
		if !bytes.Equal(got, data) {
			t.Error("wrong bytes")
		}
	}
	for _, p := range stuck {
		p.Close()
	}
}

// Those that do not take anything for too long are given up.
func TestServerWriteTimeout(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	writeBlock(t, s, testBlock(1), crc.Chunks{}, randomBytes(94, 8<<20))
	server, addr := startServerOn(t, s, ServerConfig{WriteTimeout: 50 * time.Millisecond}, "tcp", "127.0.0.1:0")
	p := dial(t, addr)
	req := readRequest(testBlock(1), 0, -1)
	p.write(req.Append(nil))
	waitFor(t, func() bool { server.mu.Lock(); defer server.mu.Unlock(); return len(server.conns) == 0 })
}

func TestServerVerifies(t *testing.T) {
	s := openStore(t, t.TempDir())
	server, addr := startServer(t, s, ServerConfig{VerifyReads: true})
	data := randomBytes(95, 1<<20)
	writeBlock(t, s, testBlock(1), crc.Chunks{}, data)
	p := dial(t, addr)
	if got, _ := p.get(readRequest(testBlock(1), 0, -1)); !bytes.Equal(got, data) {
		t.Error("wrong bytes")
	}
	damaged := bytes.Clone(data)
	damaged[700000] ^= 1
	if err := os.WriteFile(s.find(testBlock(1)).blockPath(), damaged, 0o644); err != nil {
		t.Fatal(err)
	}
	// Where it is the first that is sent, it is an answer.
	req := readRequest(testBlock(1), 700000, 10)
	p.write(req.Append(nil))
	if r := p.response(); r.Status != packet.Error || r.Message == "" {
		t.Errorf("%+v", r)
	}
	p.eof()
	// Later on the connection ends.
	p = dial(t, addr)
	req = readRequest(testBlock(1), 0, -1)
	p.write(req.Append(nil))
	if r := p.response(); r.Status != packet.Success {
		t.Errorf("%+v", r)
	}
	in := packet.NewReceiver(p.in, 0)
	at := 0
	for {
		h, sumsLen, err := in.Next()
		if err != nil {
			break
		}
		_, body, err := in.Body(make([]byte, sumsLen+h.DataLen))
		if err != nil || !bytes.Equal(body, data[at:at+len(body)]) {
			t.Fatal(err)
		}
		at += len(body)
	}
	if at == 0 || at > 700000 {
		t.Errorf("%d bytes were sent", at)
	}
	if n := s.stats.Load(statChecksumErrors); n != 2 {
		t.Errorf("%d checksum errors are counted", n)
	}
	if n := server.stats.Load(statFailed); n != 1 {
		t.Errorf("%d failures are counted", n)
	}
}

// Long reads of what is not in the page cache, and of what is not to stay there.
func TestServerUncached(t *testing.T) {
	checkLeaks(t)
	backend, err := iouring.Open(iouring.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { backend.Close() })
	s := openStoreWith(t, StoreConfig{Dirs: []string{t.TempDir()}, Arena: testArena(t, 4<<20), Backend: backend, SyncOnClose: true})
	data := randomBytes(96, 6<<20+1000)
	writeBlock(t, s, testBlock(1), crc.Chunks{}, data)
	for _, files := range []bool{false, true} {
		addr := serveOn(t, filesServer(s, ServerConfig{}, files), "unix", filepath.Join(t.TempDir(), "s"))
		p := dial(t, addr)
		for _, drop := range []bool{false, true} {
			r, err := s.Open(testBlock(1))
			if err != nil {
				t.Fatal(err)
			}
			dropRange(r.blk.File, 0, 0)
			dropRange(r.meta.File, 0, 0)
			req := readRequest(testBlock(1), 0, -1)
			req.Caching.DropBehind = &drop
			if got, _ := p.get(req); !bytes.Equal(got, data) {
				t.Error("wrong bytes")
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A block that others append to while it is read, also through the connection
// that stays: all see a prefix that verifies.
func TestServerReadWhileWriting(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	addr := serveOn(t, filesServer(s, ServerConfig{}, true), "tcp", "127.0.0.1:0")
	end := time.Now().Add(*concurrentTime)
	for id := int64(1); time.Now().Before(end); id++ {
		appendAndRead(t, s, addr, testBlock(id), time.Until(end))
	}
}

// idleBytes returns how much memory this process takes for a connection and the
// goroutine that waits on it.
func idleBytes(t testing.TB, addr net.Addr, b packet.Block, n int) float64 {
	memory := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapInuse + m.StackInuse)
	}
	req := readRequest(b, 0, 4096)
	wire := append(req.Append(nil), packet.AppendReadStatus(nil, packet.ChecksumOK)...)
	want := make([]byte, 0, 8192)
	before := memory()
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range n {
		c, err := net.Dial(addr.Network(), addr.String())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if _, err := c.Write(wire); err != nil {
			t.Fatal(err)
		}
		for got := 0; got < 4096+32+31; { // the data, its checksums, a header: what there is at least
			k, err := c.Read(want[:cap(want)])
			if err != nil {
				t.Fatal(err)
			}
			got += k
		}
	}
	return (memory() - before) / float64(n)
}

func TestServerIdleMemory(t *testing.T) {
	s := openStore(t, t.TempDir())
	writeBlock(t, s, testBlock(1), crc.Chunks{}, randomBytes(97, 4096))
	_, addr := startServer(t, s, ServerConfig{KeepAlive: time.Minute})
	if n := idleBytes(t, addr, testBlock(1), 500); n > 16384 {
		t.Errorf("an idle connection takes %.0f bytes", n)
	} else {
		t.Logf("an idle connection takes %.0f bytes, its other end included", n)
	}
}

// At the bound, whoever has waited for the longest time makes room, and nobody
// who does something.
func TestServerEvictsIdle(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	server, addr := startServer(t, s, ServerConfig{MaxConns: 3})
	writeBlock(t, s, testBlock(1), crc.Chunks{}, []byte("x"))
	busy := dial(t, addr)
	busy.open(testBlock(2), crc.Chunks{})
	idle := func(n int) {
		waitFor(t, func() bool {
			idle := 0
			server.each(func(c *conn) { idle += int(min(c.idle.Load(), 1)) })
			return idle == n
		})
	}
	idle(0)
	oldest := dial(t, addr)
	oldest.get(readRequest(testBlock(1), 0, -1))
	idle(1)
	newer := dial(t, addr)
	newer.get(readRequest(testBlock(1), 0, -1))
	idle(2)
	third := dial(t, addr)
	third.get(readRequest(testBlock(1), 0, -1))
	oldest.eof()
	newer.get(readRequest(testBlock(1), 0, -1))
	busy.packet(packet.Header{}, crc.Chunks{}, []byte("y"))
	busy.ack(0, packet.Success)
	if n := server.stats.Load(statConnsEvicted); n != 1 {
		t.Errorf("%d connections were evicted", n)
	}
}

// A shutdown does not wait for a client that does not take what it asked for.
func TestServerShutdownWhileSending(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	writeBlock(t, s, testBlock(1), crc.Chunks{}, randomBytes(98, 8<<20))
	server, addr := startServerOn(t, s, ServerConfig{}, "tcp", "127.0.0.1:0")
	p := dial(t, addr)
	req := readRequest(testBlock(1), 0, -1)
	p.write(req.Append(nil))
	p.response()
	ctx, cancel := context.WithCancel(bg)
	cancel()
	start := time.Now()
	if err := server.Shutdown(ctx); err != context.Canceled {
		t.Errorf("%v", err)
	}
	if d := time.Since(start); d > partingTime+5*time.Second {
		t.Errorf("it took %v", d)
	}
}

// Whatever is done to the files of a block by others, nobody is served one that
// is no longer there, from a moment later on.
func TestFilesReplacedOutside(t *testing.T) {
	s := openStore(t, t.TempDir())
	_, addr := startServer(t, s, ServerConfig{KeepAlive: time.Minute})
	p := dial(t, addr)
	c, b := crc.Chunks{}, testBlock(1)
	version := func(i int) []byte { return randomBytes(uint64(200+i), 3000) }
	writeBlock(t, s, b, c, version(0))
	block, meta := s.find(b).blockPath(), s.find(b).metaPath()
	put := func(name string, content []byte) string {
		t.Helper()
		if err := os.WriteFile(name, content, 0o644); err != nil {
			t.Fatal(err)
		}
		return name
	}
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(what string, i int) {
		t.Helper()
		time.Sleep(checkEvery)
		for range 2 {
			if got, _ := p.get(readRequest(b, 0, -1)); !bytes.Equal(got, version(i)) {
				t.Errorf("%s: the server sends something else", what)
			}
			if got, err := readAll(s, b); err != nil || !bytes.Equal(got, version(i)) {
				t.Errorf("%s: %d bytes, %v", what, len(got), err)
			}
		}
	}
	expect("as it was written", 0)
	rename(put(block+".new", version(1)), block)
	rename(put(meta+".new", oracleMeta(c, version(1))), meta)
	expect("renamed over", 1)
	if err := errors.Join(os.Remove(block), os.Remove(meta)); err != nil {
		t.Fatal(err)
	}
	put(block, version(2))
	put(meta, oracleMeta(c, version(2)))
	expect("removed and made anew", 2)
	rename(block, block+".old")
	rename(meta, meta+".old")
	put(block, version(3))
	put(meta, oracleMeta(c, version(3)))
	expect("moved away and made anew", 3)
	rename(block+".old", block)
	rename(meta+".old", meta)
	expect("moved back", 2)
	if err := errors.Join(os.Link(block, block+".link"), os.Link(meta, meta+".link")); err != nil {
		t.Fatal(err)
	}
	expect("linked", 2)
	rename(put(block+".new", version(4)), block)
	rename(put(meta+".new", oracleMeta(c, version(4))), meta)
	expect("replaced, and still linked elsewhere", 4)
	put(block, version(5))
	put(meta, oracleMeta(c, version(5)))
	expect("written in place", 5)
	rename(put(meta+".new", oracleMeta(crc.Chunks{Kind: crc.CRC32}, version(5))), meta)
	expect("with other checksums", 5)
	n := opened(s)
	expect("opened", 5)
	if opened(s) != n {
		t.Error("a file that has not changed is opened again")
	}
	// What is gone is an error, and comes back when it does.
	rename(block, block+".old")
	time.Sleep(checkEvery)
	if _, err := readAll(s, b); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a block without its file: %v", err)
	}
	rename(block+".old", block)
	expect("there again", 5)
	// An append goes on with what is there.
	w, err := s.Append(bg, b, b.Stamp+1, 3000, crc.Chunks{Kind: crc.CRC32})
	if err != nil {
		t.Fatal(err)
	}
	b.Stamp++
	expect("being appended to", 5)
	if err := w.Finalize(bg, false); err != nil {
		t.Fatal(err)
	}
	expect("appended to", 5)
}
