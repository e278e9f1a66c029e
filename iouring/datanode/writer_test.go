//go:build linux || darwin

package datanode

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// Every packet on every block of up to 17 bytes in chunks of 4: which are
// accepted, and what the files then hold (the merge rules of HDFS-4660 and later).
func TestMergeExhaustive(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, fastDir(t))
	c := crc.Chunks{Kind: crc.CRC32, Size: 4}
	oracle := randomBytes(1, 64)
	id, cases, rejected := int64(0), 0, 0
	for D := 0; D < 18; D++ {
		for _, flushed := range []bool{true, false} {
			for F := 0; F <= D; F++ {
				for L := 1; L < 20; L++ {
					id++
					cases++
					b := testBlock(id)
					w, err := s.Create(bg, b, c)
					if err != nil {
						t.Fatal(err)
					}
					if D > 0 {
						if err := send(t, w, packet.Header{}, oracle[:D]); err != nil {
							t.Fatal(err)
						}
					}
					if flushed {
						if err := w.Flush(bg); err != nil {
							t.Fatal(err)
						}
					}
					err = send(t, w, packet.Header{Offset: int64(F), Seqno: 1}, oracle[F:F+L])
					legal := F%4 == 0 || F+L <= (F/4+1)*4
					var bad *PacketError
					if legal != (err == nil) || err != nil && !errors.As(err, &bad) {
						t.Fatalf("D=%d F=%d L=%d: %v", D, F, L, err)
					}
					end := D
					if legal {
						end = max(D, F+L)
					} else {
						rejected++
					}
					if err := w.Abort(bg); err != nil {
						t.Fatal(err)
					}
					dir := rbwPath(s.volumes[0].root, testPool)
					block, meta := filepath.Join(dir, BlockName(id)), filepath.Join(dir, MetaName(id, 1001))
					if err := sameFiles(block, meta, c, oracle[:end]); err != nil {
						t.Fatalf("D=%d F=%d L=%d flushed=%t: %v", D, F, L, flushed, err)
					}
					os.Remove(block)
					os.Remove(meta)
				}
			}
		}
	}
	if cases != 6498 || rejected != 4096 {
		t.Errorf("%d cases, %d rejected; the model has 6498 and 4096", cases, rejected)
	}
}

// The cases of the merge rules at the usual chunk size, for every way in which data
// may be checksummed on the wire and on disk.
func TestMergeVectors(t *testing.T) {
	s := openStore(t, t.TempDir())
	oracle := randomBytes(2, 4096)
	id := int64(0)
	for _, kind := range []crc.Kind{crc.CRC32C, crc.CRC32, crc.None} {
		for _, v := range []struct{ D, F, L int }{
			{200, 200, 300}, {100, 0, 612}, {700, 512, 1024}, {700, 0, 2048}, {1024, 512, 1024},
			{1024, 0, 1024}, {512, 512, 1}, {511, 511, 1}, {511, 0, 513}, {513, 512, 2}, {700, 600, 50}, {700, 650, 374},
		} {
			for _, bare := range []bool{false, true} {
				id++
				c := crc.Chunks{Kind: kind, Size: 512}
				w, err := s.Create(bg, testBlock(id), c)
				if err != nil {
					t.Fatal(err)
				}
				put := func(seqno int64, from, to int) {
					t.Helper()
					sums := oracleSums(c, oracle[from:to])
					if bare {
						sums = nil
					}
					if err := sendSums(t, w, packet.Header{Offset: int64(from), Seqno: seqno}, sums, oracle[from:to]); err != nil {
						t.Fatal(err)
					}
				}
				put(0, 0, v.D)
				put(1, v.F, v.F+v.L)
				if err := w.Finalize(bg, true); err != nil {
					t.Fatal(err)
				}
				want := oracle[:max(v.D, v.F+v.L)]
				checkFiles(t, s, testBlock(id), c, want)
				if got, err := readAll(s, testBlock(id)); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("%v: read %d bytes, %v", v, len(got), err)
				}
			}
		}
	}
}

// Histories of writes, flushes with their re-sends, and repeated packets, with
// flushes, syncs and readers in between.
func TestRandomHistories(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, fastDir(t))
	const size = 600
	oracle := randomBytes(3, size)
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	for round := range rounds {
		rnd := rand.New(rand.NewPCG(7, uint64(round)))
		c := crc.Chunks{Kind: crc.Kind(rnd.IntN(3)), Size: []int{1, 3, 4, 16, 512}[rnd.IntN(5)]}
		b := testBlock(int64(round))
		w, err := s.Create(bg, b, c)
		if err != nil {
			t.Fatal(err)
		}
		acked := 0
		for seqno, D := int64(0), 0; D < size && seqno < 100; seqno++ {
			bpc := c.Size
			room := bpc - D%bpc
			var F, L int
			switch rnd.IntN(4) {
			case 0: // the partial chunk again and more
				F, L = D-D%bpc, 1+rnd.IntN(3*bpc+20)
			case 1: // on from the end, inside the chunk if it is not full
				F, L = D, 1+rnd.IntN(3*bpc+20)
				if D%bpc != 0 {
					L = 1 + rnd.IntN(room)
				}
			case 2: // from some chunks before
				F, L = max(0, D-D%bpc-bpc*rnd.IntN(3)), 1+rnd.IntN(4*bpc)
			case 3: // from anywhere, inside one chunk
				F = rnd.IntN(D + 1)
				L = 1 + rnd.IntN(bpc-F%bpc)
			}
			E := min(F+L, size)
			if E == F {
				break
			}
			if err := send(t, w, packet.Header{Offset: int64(F), Seqno: seqno}, oracle[F:E]); err != nil {
				t.Fatalf("round %d %v D=%d F=%d E=%d: %v", round, c, D, F, E, err)
			}
			D = max(D, E)
			switch rnd.IntN(6) {
			case 0:
				if err := w.Flush(bg); err != nil {
					t.Fatal(err)
				}
				acked = D
			case 1:
				if err := w.Sync(bg); err != nil {
					t.Fatal(err)
				}
				acked = D
				checkFiles(t, s, b, c, oracle[:D])
			case 2:
				got, err := readAll(s, b)
				if err != nil || !bytes.Equal(got, oracle[:acked]) {
					t.Fatalf("round %d: a reader sees %d bytes, %d are visible: %v", round, len(got), acked, err)
				}
			}
		}
		end := int(w.Visible() + w.Pending())
		if err := w.Finalize(bg, false); err != nil {
			t.Fatal(err)
		}
		checkFiles(t, s, b, c, oracle[:end])
	}
}

func TestCheckPackets(t *testing.T) {
	s := openStore(t, t.TempDir())
	w, err := s.Create(bg, testBlock(1), crc.Chunks{})
	if err != nil {
		t.Fatal(err)
	}
	data := randomBytes(4, 700)
	if err := send(t, w, packet.Header{Seqno: 100}, data); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		h    packet.Header
		sums int
		want string
	}{
		{"gap", packet.Header{Offset: 701, Seqno: 101, DataLen: 1}, 4, "data is missing before it"},
		{"empty packet in a gap", packet.Header{Offset: 701, Seqno: 101}, 0, "data is missing before it"},
		{"negative offset", packet.Header{Offset: -1, Seqno: 101, DataLen: 1}, 4, "negative offset or length"},
		{"negative length", packet.Header{Offset: 0, Seqno: 101, DataLen: -1}, 4, "negative offset or length"},
		{"overflow", packet.Header{Offset: 1<<63 - 1, Seqno: 101, DataLen: 1}, 4, "negative offset or length"},
		{"same seqno", packet.Header{Offset: 700, Seqno: 100, DataLen: 1}, 4, "the sequence number does not grow"},
		{"smaller seqno", packet.Header{Offset: 700, Seqno: 99, DataLen: 1}, 4, "the sequence number does not grow"},
		{"negative seqno", packet.Header{Offset: 700, Seqno: -2, DataLen: 1}, 4, "the sequence number does not grow"},
		{"heartbeat with data", packet.Header{Offset: 700, Seqno: -1, DataLen: 1}, 4, "a heartbeat has no data"},
		{"last with data", packet.Header{Offset: 700, Seqno: 101, DataLen: 1, Last: true}, 4, "the last packet has data"},
		{"a checksum too few", packet.Header{Offset: 512, Seqno: 101, DataLen: 513}, 4, "wrong length of checksums"},
		{"a checksum too many", packet.Header{Offset: 512, Seqno: 101, DataLen: 512}, 8, "wrong length of checksums"},
		{"half a checksum", packet.Header{Offset: 512, Seqno: 101, DataLen: 512}, 2, "wrong length of checksums"},
		{"two stray checksums", packet.Header{Offset: 700, Seqno: 101}, 8, "an empty packet has more than one checksum"},
		{"across a chunk", packet.Header{Offset: 700, Seqno: 101, DataLen: 325}, 4, "it begins inside a chunk and goes beyond it"},
		{"longer than a chunk", packet.Header{Offset: 700, Seqno: 101, DataLen: 1024}, 8, "it begins inside a chunk and goes beyond it"},
		{"a duplicate across a chunk", packet.Header{Offset: 500, Seqno: 101, DataLen: 100}, 4, "it begins inside a chunk and goes beyond it"},
	} {
		err := w.Check(test.h, test.sums)
		var bad *PacketError
		if !errors.As(err, &bad) || bad.Reason != test.want || bad.Seqno != test.h.Seqno || bad.Offset != test.h.Offset {
			t.Errorf("%s: %v, expected %q", test.name, err, test.want)
		}
	}
	for _, test := range []struct {
		name string
		h    packet.Header
		sums int
	}{
		{"up to the chunk's end", packet.Header{Offset: 700, Seqno: 101, DataLen: 324}, 4},
		{"the chunk again", packet.Header{Offset: 512, Seqno: 101, DataLen: 2000}, 16},
		{"without checksums", packet.Header{Offset: 700, Seqno: 101, DataLen: 324}, 0},
		{"seqno jumps", packet.Header{Offset: 700, Seqno: 1 << 40, DataLen: 1}, 4},
		{"heartbeat", packet.Header{Seqno: -1}, 0},
		{"empty, earlier", packet.Header{Offset: 0, Seqno: 101}, 0},
		{"empty with a stray checksum", packet.Header{Offset: 700, Seqno: 101, Last: true}, 4},
	} {
		if err := w.Check(test.h, test.sums); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	if err := send(t, w, packet.Header{Offset: 700, Seqno: 101, Last: true}, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Check(packet.Header{Offset: 700, Seqno: 102}, 0); err == nil {
		t.Error("a packet after the last one is accepted")
	}
	if err := w.Finalize(bg, false); err != nil {
		t.Fatal(err)
	}
}

// Every flipped bit of a packet is found, named, and changes nothing.
func TestFlippedBits(t *testing.T) {
	s := openStore(t, t.TempDir())
	for _, kind := range []crc.Kind{crc.CRC32C, crc.CRC32} {
		c := crc.Chunks{Kind: kind, Size: 32}
		b := testBlock(int64(kind))
		w, err := s.Create(bg, b, c)
		if err != nil {
			t.Fatal(err)
		}
		data := randomBytes(5, 150)
		if err := send(t, w, packet.Header{}, data[:64]); err != nil {
			t.Fatal(err)
		}
		sums := oracleSums(c, data[64:])
		whole := append(bytes.Clone(sums), data[64:]...)
		for bit := range len(whole) * 8 {
			damaged := bytes.Clone(whole)
			damaged[bit/8] ^= 1 << (bit % 8)
			err := sendSums(t, w, packet.Header{Offset: 64, Seqno: 1}, damaged[:len(sums)], damaged[len(sums):])
			var bad *crc.MismatchError
			if !errors.As(err, &bad) {
				t.Fatalf("bit %d: %v", bit, err)
			}
			chunk := bit / 8 / 4
			if bit/8 >= len(sums) {
				chunk = (bit/8 - len(sums)) / 32
			}
			if want := int64(64 + 32*chunk); bad.Offset != want || bad.Expected == bad.Computed {
				t.Fatalf("bit %d: %v, expected the chunk at %d", bit, bad, want)
			}
			if got, want := flippedBit(kind, bad.Length, bad.Expected, bad.Computed), int64(bit-8*len(sums)-8*32*chunk); bit/8 >= len(sums) && got != want {
				t.Fatalf("bit %d of the data is told to be bit %d of chunk %d", want, got, chunk)
			}
			if got, want := flippedBit(kind, bad.Length, bad.Expected, bad.Computed), int64(8*bad.Length+bit-32*chunk); bit/8 < len(sums) && got != want {
				t.Fatalf("bit %d of the checksum is told to be %d", want, got)
			}
		}
		if err := sendSums(t, w, packet.Header{Offset: 64, Seqno: 1}, sums, data[64:]); err != nil {
			t.Fatal(err)
		}
		if err := w.Finalize(bg, false); err != nil {
			t.Fatal(err)
		}
		checkFiles(t, s, b, c, data)
	}
}

// Bytes of the partial last chunk that come again have to be the same.
func TestDifferentAgain(t *testing.T) {
	s := openStore(t, t.TempDir())
	c := crc.Chunks{Size: 16}
	data := randomBytes(6, 64)
	other := bytes.Clone(data)
	other[20] ^= 0x40
	for i, again := range [][2]int{{16, 30}, {16, 24}, {16, 40}, {0, 40}, {20, 21}, {18, 26}, {20, 32}} {
		for _, flushed := range []bool{false, true} {
			w, err := s.Create(bg, testBlock(int64(2*i)+map[bool]int64{true: 1}[flushed]), c)
			if err != nil {
				t.Fatal(err)
			}
			if err := send(t, w, packet.Header{}, data[:25]); err != nil {
				t.Fatal(err)
			}
			if flushed {
				if err := w.Flush(bg); err != nil {
					t.Fatal(err)
				}
			}
			err = send(t, w, packet.Header{Offset: int64(again[0]), Seqno: 1}, other[again[0]:again[1]])
			var bad *PacketError
			if !errors.As(err, &bad) || bad.Expected != int64(data[20]) || bad.Got != int64(other[20]) {
				t.Errorf("%v: %v", again, err)
			}
			if err := w.Finalize(bg, false); err != nil {
				t.Fatal(err)
			}
			checkFiles(t, s, w.Block(), c, data[:25])
		}
	}
}

// A long block in packets of every size goes to the files whole, in few writes.
func TestCoalesce(t *testing.T) {
	s := openStore(t, t.TempDir())
	data := randomBytes(7, 3<<20+77)
	for i, packetLen := range []int{512, 64512, 519680, 1040384, 3 << 20} {
		b := testBlock(int64(i))
		before := s.Stats().Load(statFlushes)
		w, err := s.Create(bg, b, crc.Chunks{})
		if err != nil {
			t.Fatal(err)
		}
		for off, seqno := 0, int64(0); off < len(data); off, seqno = off+packetLen, seqno+1 {
			if err := send(t, w, packet.Header{Offset: int64(off), Seqno: seqno}, data[off:min(off+packetLen, len(data))]); err != nil {
				t.Fatal(err)
			}
			if w.Pending() >= flushBytes {
				t.Fatalf("%d bytes are pending", w.Pending())
			}
		}
		if err := w.Finalize(bg, false); err != nil {
			t.Fatal(err)
		}
		checkFiles(t, s, b, crc.Chunks{}, data)
		if n := s.Stats().Load(statFlushes) - before; packetLen == 64512 && n > 4 {
			t.Errorf("%d flushes for 3 MiB in packets of %d", n, packetLen)
		}
	}
	if got, want := s.Stats().Load(statBytesWritten), int64(5*len(data)); got != want {
		t.Errorf("bytes_written is %d, expected %d", got, want)
	}
}

func TestCreateRefusals(t *testing.T) {
	s := openStore(t, t.TempDir())
	good := testBlock(1)
	writeBlock(t, s, good, crc.Chunks{}, []byte("abc"))
	open, err := s.Create(bg, testBlock(2), crc.Chunks{})
	if err != nil {
		t.Fatal(err)
	}
	defer open.Abort(bg)
	with := func(change func(*packet.Block)) packet.Block {
		b := testBlock(3)
		change(&b)
		return b
	}
	for _, test := range []struct {
		b    packet.Block
		c    crc.Chunks
		want packet.Status
	}{
		{good, crc.Chunks{}, packet.ErrorExists},
		{testBlock(2), crc.Chunks{}, packet.ErrorExists},
		{with(func(b *packet.Block) { b.Pool = "BP-../../x" }), crc.Chunks{}, packet.ErrorInvalid},
		{with(func(b *packet.Block) { b.Pool = "" }), crc.Chunks{}, packet.ErrorInvalid},
		{with(func(b *packet.Block) { b.Stamp = -1 }), crc.Chunks{}, packet.ErrorInvalid},
		{with(func(b *packet.Block) { b.NumBytes = -1 }), crc.Chunks{}, packet.ErrorInvalid},
		{with(func(b *packet.Block) { b.NumBytes = 1 << 60 }), crc.Chunks{}, packet.Error},
		{testBlock(3), crc.Chunks{Kind: 9}, packet.ErrorUnsupported},
		{testBlock(3), crc.Chunks{Size: crc.MaxChunkSize + 1}, packet.ErrorUnsupported},
		{testBlock(3), crc.Chunks{Size: -1}, packet.ErrorUnsupported},
	} {
		_, err := s.Create(bg, test.b, test.c)
		var refused *BlockError
		if !errors.As(err, &refused) || refused.Status != test.want || refused.Block != test.b {
			t.Errorf("%v %v: %v, expected %v", test.b, test.c, err, test.want)
		}
	}
	var space *SpaceError
	if _, err := s.Create(bg, with(func(b *packet.Block) { b.NumBytes = 1 << 60 }), crc.Chunks{}); !errors.As(err, &space) || space.Need != 1<<60 {
		t.Errorf("no *SpaceError: %v", err)
	}
	// A file in the way is no replica: it is set aside, once.
	stray := filepath.Join(rbwPath(s.volumes[0].root, testPool), BlockName(3))
	if err := os.WriteFile(stray, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	writeBlock(t, s, testBlock(3), crc.Chunks{}, []byte("data"))
	if got, err := os.ReadFile(stray + ".lost"); err != nil || string(got) != "mine" {
		t.Errorf("the stray file is %q, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(stray), MetaName(3, 1002)), []byte("more"), 0o644); err != nil {
		t.Fatal(err)
	}
	if w, err := s.Append(bg, testBlock(3), 1002, 4, crc.Chunks{}); err == nil {
		t.Error("an append overwrites a stray file")
		w.Abort(bg)
	}
	second := filepath.Join(filepath.Dir(stray), BlockName(4))
	if err := errors.Join(os.WriteFile(second, []byte("second"), 0o644), os.WriteFile(second+".lost", []byte("first"), 0o644)); err != nil {
		t.Fatal(err)
	}
	writeBlock(t, s, testBlock(4), crc.Chunks{}, []byte("data"))
	for name, want := range map[string]string{second + ".lost": "first", second + ".lost2": "second"} {
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// After the end of a writer its calls say so and change nothing.
func TestEndedWriter(t *testing.T) {
	s := openStore(t, t.TempDir())
	for i, end := range []func(w *BlockWriter) error{
		func(w *BlockWriter) error { return w.Finalize(bg, false) },
		func(w *BlockWriter) error { return w.Abort(bg) },
		func(w *BlockWriter) error { w.stop(errors.New("because")); return nil },
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			w, err := s.Create(bg, testBlock(int64(i)), crc.Chunks{})
			if err != nil {
				t.Fatal(err)
			}
			stopped := make(chan bool, 1)
			w.NotifyStop(func() { stopped <- true })
			data := randomBytes(8, 1000)
			if err := send(t, w, packet.Header{}, data); err != nil {
				t.Fatal(err)
			}
			if err := end(w); err != nil {
				t.Fatal(err)
			}
			for name, call := range map[string]func() error{
				"WritePacket": func() error { return send(t, w, packet.Header{Offset: 1000, Seqno: 9}, data) },
				"Flush":       func() error { return w.Flush(bg) },
				"Sync":        func() error { return w.Sync(bg) },
				"Finalize":    func() error { return w.Finalize(bg, false) },
			} {
				var blockErr *BlockError
				if err := call(); !errors.As(err, &blockErr) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if err := w.Abort(bg); err != nil {
				t.Errorf("Abort: %v", err)
			}
			checkFiles(t, s, w.Block(), crc.Chunks{}, data)
			if i == 2 {
				<-stopped
			}
		})
	}
}

// Many want the same block at the same time, to create it, to recover it, to
// close the store: one creates it, and everything ends.
func TestCreateRaces(t *testing.T) {
	checkLeaks(t)
	for round := range int64(20) {
		s := openStore(t, fastDir(t))
		var wg sync.WaitGroup
		var created atomic.Int32
		for g := range 6 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for id := range int64(20) {
					var w *BlockWriter
					var err error
					if g < 3 {
						if w, err = s.Create(bg, testBlock(id), crc.Chunks{}); err == nil {
							created.Add(1)
						}
					} else {
						w, err = s.Recover(bg, testBlock(id), 1002+int64(g), 0, 100, crc.Chunks{})
					}
					var refused *BlockError
					if err != nil {
						if !errors.As(err, &refused) {
							t.Error(err)
						}
						continue
					}
					// Others may have stopped the writer already.
					_ = send(t, w, packet.Header{}, []byte("some data"))
					if g%2 == 0 {
						_ = w.Finalize(bg, false)
					} else {
						_ = w.Abort(bg)
					}
				}
			}()
		}
		if round%2 == 0 {
			s.Close()
		}
		wg.Wait()
		if n := created.Load(); round%2 == 1 && n != 20 {
			t.Errorf("%d blocks were created, expected 20", n)
		}
		s.Close()
		if r := verify(t, VerifyConfig{}, s.volumes[0].root); !r.OK() || len(r.Misplaced) > 0 {
			t.Errorf("%+v", r)
		}
	}
}

// The number of writers, and with it that of open files, is bounded; one that has
// ended, in whatever way, makes room for the next.
func TestMaxWriters(t *testing.T) {
	checkLeaks(t)
	s := openStoreWith(t, StoreConfig{Dirs: []string{fastDir(t)}, Arena: testArena(t, 1<<20), MaxWriters: 3})
	files := openFiles()
	var writers []*BlockWriter
	for id := range int64(3) {
		w, err := s.Create(bg, testBlock(id), crc.Chunks{})
		if err != nil {
			t.Fatal(err)
		}
		writers = append(writers, w)
	}
	refused := func() {
		t.Helper()
		_, err := s.Create(bg, testBlock(3), crc.Chunks{})
		var blockErr *BlockError
		if !errors.As(err, &blockErr) || blockErr.Status != packet.Error || !errors.Is(err, unix.EMFILE) {
			t.Errorf("a fourth writer of three: %v", err)
		}
	}
	refused()
	if err := writers[0].Finalize(bg, false); err != nil {
		t.Fatal(err)
	}
	for range 5 { // what fails takes no place
		if _, err := s.Create(bg, testBlock(1), crc.Chunks{}); err == nil {
			t.Fatal("a block is created twice")
		}
		if _, err := s.Append(bg, testBlock(0), 1002, 0, crc.Chunks{Size: 1024}); err == nil {
			t.Fatal("an append with another chunk size")
		}
	}
	if _, err := s.Append(bg, testBlock(0), 1002, 0, crc.Chunks{}); err != nil {
		t.Fatal(err)
	}
	refused()
	// Who takes the place of another writer needs none of its own.
	w, err := s.Recover(bg, testBlock(0), 1003, 0, 0, crc.Chunks{})
	if err != nil {
		t.Fatal(err)
	}
	refused()
	if got := openFiles() - files; got != 6 {
		t.Errorf("three writers have %d files open", got)
	}
	if err := w.Abort(bg); err != nil {
		t.Fatal(err)
	}
	for _, w := range writers[1:] {
		if err := w.Finalize(bg, true); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.writers.Load(); n != 0 {
		t.Errorf("%d writers are counted, there are none", n)
	}
}
