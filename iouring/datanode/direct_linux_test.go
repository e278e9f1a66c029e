package datanode

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// goesDirect makes a block and says whether its writer writes past the page cache.
func goesDirect(t *testing.T, s *Store) bool {
	t.Helper()
	w, err := s.Create(bg, testBlock(-1), crc.Chunks{})
	if err != nil {
		t.Fatal(err)
	}
	is := w.direct != nil
	if err := w.Finalize(bg, false); err != nil {
		t.Fatal(err)
	}
	return is
}

// Blocks that go past the page cache are byte for byte like others, whatever the
// packets are, with flushes and syncs in between and bytes sent again.
func TestDirectWrites(t *testing.T) {
	checkLeaks(t)
	s := openStoreWith(t, StoreConfig{Dirs: []string{t.TempDir()}, Arena: testArena(t, 64<<20), Direct: true})
	if !goesDirect(t, s) {
		t.Skip("SKIPPED, NOT TESTED: the file system of the temporary directory has no direct writes")
	}
	data := randomBytes(70, 2<<20+777)
	id := int64(0)
	for _, packetLen := range []int{512, 5120, 64512, 519680, 1040384, 1 << 20, 2 << 20} {
		for _, flushes := range []int{0, 3, 50} { // percent of the packets
			if flushes > 0 && packetLen < 64512 {
				continue
			}
			id++
			kind := crc.Kind(id % 3)
			rnd := rand.New(rand.NewPCG(uint64(id), 1))
			b := testBlock(id)
			b.NumBytes = 16 << 20
			c := crc.Chunks{Kind: kind}
			w, err := s.Create(bg, b, c)
			if err != nil {
				t.Fatal(err)
			}
			at, acked := 0, 0
			for seqno := int64(0); at < len(data); seqno++ {
				from := at - at%512
				if rnd.IntN(10) == 0 {
					from = max(0, from-1024)
				}
				to := min(max(at+1, from+packetLen), len(data))
				if flushes > 0 && rnd.IntN(3) == 0 {
					to -= rnd.IntN(max(1, min(to-at, 600)))
				}
				sums := oracleSums(c, data[from:to])
				if rnd.IntN(5) == 0 {
					sums = nil
				}
				if err := sendSums(t, w, packet.Header{Offset: int64(from), Seqno: seqno}, sums, data[from:to]); err != nil {
					t.Fatalf("packets of %d, %d to %d: %v", packetLen, from, to, err)
				}
				at = to
				if v := int(w.Visible()); v < acked || v > at {
					t.Fatalf("%d bytes are visible of %d", v, at)
				}
				if rnd.IntN(100) < flushes {
					if rnd.IntN(4) == 0 {
						err = w.Sync(bg)
					} else {
						err = w.Flush(bg)
					}
					if err != nil {
						t.Fatal(err)
					}
					acked = at
					checkFiles(t, s, b, c, data[:at])
				}
			}
			if err := w.Finalize(bg, rnd.IntN(2) == 0); err != nil {
				t.Fatal(err)
			}
			checkFiles(t, s, b, c, data)
			info, err := os.Stat(s.find(b).blockPath())
			if err != nil {
				t.Fatal(err)
			}
			if used := info.Sys().(*syscall.Stat_t).Blocks * 512; used > int64(len(data))+1<<20 {
				t.Errorf("%d bytes are allocated for %d", used, len(data))
			}
			os.Remove(s.find(b).blockPath())
		}
	}
}

// A damaged packet changes nothing, also where it is verified while it is copied.
func TestDirectDamaged(t *testing.T) {
	s := openStoreWith(t, StoreConfig{Dirs: []string{t.TempDir()}, Arena: testArena(t, 64<<20), Direct: true})
	data := randomBytes(71, 200000)
	b, c := testBlock(1), crc.Chunks{}
	w, err := s.Create(bg, b, c)
	if err != nil {
		t.Fatal(err)
	}
	for off, seqno := 0, int64(0); off < len(data); off, seqno = off+20480, seqno+1 {
		good := data[off:min(off+20480, len(data))]
		damaged := bytes.Clone(good)
		damaged[len(good)/2] ^= 8
		var bad *crc.MismatchError
		if err := sendSums(t, w, packet.Header{Offset: int64(off), Seqno: seqno}, oracleSums(c, good), damaged); !errors.As(err, &bad) || bad.Offset/512 != int64(off+len(good)/2)/512 {
			t.Fatal(err)
		}
		if err := send(t, w, packet.Header{Offset: int64(off), Seqno: seqno}, good); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finalize(bg, false); err != nil {
		t.Fatal(err)
	}
	checkFiles(t, s, b, c, data)
}

// Chunks that do not fit into pages, memory that is not there, and a block with
// something in it already go the usual way.
func TestDirectNot(t *testing.T) {
	s := openStoreWith(t, StoreConfig{Dirs: []string{t.TempDir()}, Arena: testArena(t, 512<<10), Direct: true})
	data := randomBytes(72, 100000)
	if goesDirect(t, s) {
		t.Error("direct writes without memory")
	}
	s = openStoreWith(t, StoreConfig{Dirs: []string{t.TempDir()}, Arena: testArena(t, 64<<20), Direct: true})
	for id, size := range []int{500, 64, 8192} {
		w, err := s.Create(bg, testBlock(int64(id)), crc.Chunks{Size: size})
		if err != nil {
			t.Fatal(err)
		}
		if w.direct != nil {
			t.Errorf("direct writes with chunks of %d", size)
		}
		if err := errors.Join(send(t, w, packet.Header{}, data), w.DropBehind(true), w.Finalize(bg, false)); err != nil {
			t.Fatal(err)
		}
		checkFiles(t, s, testBlock(int64(id)), crc.Chunks{Size: size}, data)
	}
}

// Direct writes that fail do what others do.
func TestDirectFaults(t *testing.T) {
	data := randomBytes(73, 3<<20)
	for countdown := range 8 {
		for _, err := range []error{unix.EIO, unix.ENOSPC, unix.EINVAL} {
			backend := newFaultyBackend(t, 0, err)
			s := openStoreWith(t, StoreConfig{Dirs: []string{t.TempDir()}, Arena: testArena(t, 64<<20), Backend: backend, Direct: true})
			b := testBlock(1)
			b.NumBytes = 4 << 20
			w, werr := s.Create(bg, b, crc.Chunks{})
			if werr != nil {
				t.Fatal(werr)
			}
			backend.countdown = countdown
			end := 0
			for off, seqno := 0, int64(0); off < len(data) && werr == nil; off, seqno = off+64512, seqno+1 {
				end = min(off+64512, len(data))
				werr = send(t, w, packet.Header{Offset: int64(off), Seqno: seqno}, data[off:end])
			}
			if werr == nil {
				werr = w.Finalize(bg, false)
			}
			backend.countdown = -1
			if backend.failed != "" && !errors.Is(werr, err) || backend.failed == "" && werr != nil {
				t.Errorf("%v in operation %d, %q: %v", err, countdown, backend.failed, werr)
			}
			checkFiles(t, s, b, crc.Chunks{}, data[:w.Visible()])
			s.Close()
		}
	}
}

// The hints to the page cache change nothing of what is written.
func TestHints(t *testing.T) {
	s := openStoreWith(t, StoreConfig{Dirs: []string{t.TempDir()}, Arena: testArena(t, 8<<20), SyncBehind: true, DropBehind: true})
	data := randomBytes(75, 3*hintEvery+100000)
	b := testBlock(1)
	w, err := s.Create(bg, b, crc.Chunks{})
	if err != nil {
		t.Fatal(err)
	}
	hints := int64(0)
	for off, seqno := 0, int64(0); off < len(data); off, seqno = off+64512, seqno+1 {
		before := w.hinted
		if err := send(t, w, packet.Header{Offset: int64(off), Seqno: seqno}, data[off:min(off+64512, len(data))]); err != nil {
			t.Fatal(err)
		}
		if w.hinted != before {
			hints++
			if w.hinted <= before+hintEvery || w.hinted > w.Visible() {
				t.Errorf("after a hint at %d one at %d, %d bytes are written", before, w.hinted, w.Visible())
			}
		}
	}
	if err := w.Finalize(bg, false); err != nil {
		t.Fatal(err)
	}
	if hints != 2 { // each a little more than 8 MiB behind the one before
		t.Errorf("%d hints in %d bytes", hints, len(data))
	}
	checkFiles(t, s, b, crc.Chunks{}, data)
}

// A store that opens its own backend and arena for direct writes.
func TestDirectOwnBackend(t *testing.T) {
	checkLeaks(t)
	data := randomBytes(76, 3<<20+5)
	s, err := OpenStore(StoreConfig{Dirs: []string{t.TempDir()}, Direct: true})
	if err != nil {
		t.Fatal(err)
	}
	b := testBlock(1)
	b.NumBytes = int64(len(data))
	writeBlock(t, s, b, crc.Chunks{}, data)
	checkFiles(t, s, b, crc.Chunks{}, data)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Over the wire, asked for by drop-behind.
func TestServerDirect(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	_, addr := startServer(t, s, ServerConfig{})
	data := randomBytes(74, 5<<20+99)
	drop := true
	p := dial(t, addr)
	req := writeRequest(testBlock(1), crc.Chunks{})
	req.Caching.DropBehind = &drop
	p.write(req.Append(nil))
	if r := p.response(); r.Status != packet.Success {
		t.Fatalf("%+v", r)
	}
	n := 64512
	packets := (len(data) + n - 1) / n
	go func() {
		for i := range packets {
			p.packet(packet.Header{Offset: int64(i * n), Seqno: int64(i)}, crc.Chunks{}, data[i*n:min(i*n+n, len(data))])
		}
		p.packet(packet.Header{Offset: int64(len(data)), Seqno: int64(packets), Last: true}, crc.Chunks{}, nil)
	}()
	for i := range packets + 1 {
		p.ack(int64(i), packet.Success)
	}
	checkFiles(t, s, testBlock(1), crc.Chunks{}, data)
}
