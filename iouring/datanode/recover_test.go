//go:build linux || darwin

package datanode

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// plant writes the files of an unfinished replica.
func plant(t testing.TB, root string, b packet.Block, data, meta []byte) {
	t.Helper()
	dir := rbwPath(root, b.Pool)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{BlockName(b.ID): data, MetaName(b.ID, b.Stamp): meta} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// wantPrefix is the oracle of the recovery: the longest prefix in which every
// chunk has its checksum, the last chunk being as long as it has it.
func wantPrefix(c crc.Chunks, data, meta []byte) int {
	if c.Kind == crc.None {
		return len(data)
	}
	n, bpc := 0, c.BytesPerChunk()
	for i := 0; n < len(data); i++ {
		if MetaHeaderLen+4*i+4 > len(meta) {
			break
		}
		stored := meta[MetaHeaderLen+4*i:][:4]
		best := 0
		for l := 1; l <= bpc && n+l <= len(data); l++ {
			if bytes.Equal(oracleSums(c, data[n:n+l]), stored) {
				best = l
			}
		}
		n += best
		if best < bpc {
			break
		}
	}
	return n
}

func checkRecovered(t testing.TB, root string, b packet.Block, c crc.Chunks, data []byte, n int) {
	t.Helper()
	s := openStore(t, root)
	defer s.Close()
	checkFiles(t, s, b, c, data[:n])
	got, err := readAll(s, b)
	if err != nil || !bytes.Equal(got, data[:n]) {
		t.Fatalf("read %d bytes of %d, %v", len(got), n, err)
	}
	report, err := Verify(bg, []string{root}, VerifyConfig{})
	if err != nil || !report.OK() || report.Bytes != int64(n) && c.Kind != crc.None {
		t.Fatalf("%+v, %v", report, err)
	}
}

// Files of an unfinished block cut off at every byte, data and checksums.
func TestRecoverTruncated(t *testing.T) {
	root := fastDir(t)
	data := randomBytes(20, 21)
	for _, kind := range []crc.Kind{crc.CRC32C, crc.None} {
		c := crc.Chunks{Kind: kind, Size: 8}
		meta := oracleMeta(c, data)
		id := int64(0)
		var cases []func(s *Store)
		for d := 0; d <= len(data); d++ {
			for m := MetaHeaderLen; m <= len(meta); m++ {
				id++
				b := testBlock(id)
				plant(t, root, b, data[:d], meta[:m])
				n := wantPrefix(c, data[:d], meta[:m])
				cases = append(cases, func(s *Store) { checkFiles(t, s, b, c, data[:n]) })
			}
		}
		s := openStore(t, root)
		for _, check := range cases {
			check(s)
		}
		report, err := Verify(bg, []string{root}, VerifyConfig{})
		if err != nil || !report.OK() || report.Files != id {
			t.Fatalf("%+v, %v", report, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(root, currentDir)); err != nil {
			t.Fatal(err)
		}
	}
}

// Every byte of the files of an unfinished block damaged.
func TestRecoverDamaged(t *testing.T) {
	root := fastDir(t)
	data := randomBytes(21, 21)
	c := crc.Chunks{Size: 8}
	meta := oracleMeta(c, data)
	var checks []func(s *Store)
	id := int64(0)
	add := func(data, meta []byte) {
		id++
		b, n := testBlock(id), wantPrefix(c, data, meta)
		plant(t, root, b, data, meta)
		checks = append(checks, func(s *Store) { checkFiles(t, s, b, c, data[:n]) })
	}
	for i := range data {
		d := bytes.Clone(data)
		d[i] ^= 1
		add(d, meta)
	}
	for i := MetaHeaderLen; i < len(meta); i++ {
		m := bytes.Clone(meta)
		m[i] ^= 0x80
		add(data, m)
	}
	s := openStore(t, root)
	for _, check := range checks {
		check(s)
	}
}

// What a kill between the data and the checksums of a flush leaves: more data,
// and the checksum of the partial chunk as it was.
func TestRecoverBetweenWrites(t *testing.T) {
	data := randomBytes(22, 3000)
	c := crc.Chunks{}
	for acked := 1; acked < 2000; acked += 97 {
		root := fastDir(t)
		plant(t, root, testBlock(1), data, oracleMeta(c, data[:acked]))
		checkRecovered(t, root, testBlock(1), c, data, acked)
	}
}

// A store that is closed without warning, which is what a kill looks like to the
// files, keeps what was flushed, through any number of openings.
func TestRecoverAfterKill(t *testing.T) {
	checkLeaks(t)
	root, data := t.TempDir(), randomBytes(23, 100000)
	c := crc.Chunks{Kind: crc.CRC32}
	s := openStore(t, root)
	w, err := s.Create(bg, testBlock(1), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := send(t, w, packet.Header{}, data[:70000]); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(bg); err != nil {
		t.Fatal(err)
	}
	if err := send(t, w, packet.Header{Offset: 70000 - 70000%512, Seqno: 1}, data[70000-70000%512:]); err != nil {
		t.Fatal(err)
	}
	// The packet that was not flushed is in memory only: copy the files as they are.
	killed := t.TempDir()
	if err := os.CopyFS(filepath.Join(killed, currentDir), os.DirFS(filepath.Join(root, currentDir))); err != nil {
		t.Fatal(err)
	}
	if err := w.Abort(bg); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		checkRecovered(t, killed, testBlock(1), c, data, 70000)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	checkRecovered(t, root, testBlock(1), c, data, 100000)
}

// The moves of a finalization and of an append, interrupted after the .meta
// file, are taken back.
func TestRecoverInterruptedMove(t *testing.T) {
	data := randomBytes(24, 1000)
	b := testBlock(0x12345)
	for _, test := range []struct{ block, meta func(root string) string }{
		{func(root string) string { return rbwPath(root, testPool) }, func(root string) string { return finalizedPath(root, testPool, b.ID) }},
		{func(root string) string { return finalizedPath(root, testPool, b.ID) }, func(root string) string { return rbwPath(root, testPool) }},
	} {
		root := t.TempDir()
		for name, dir := range map[string]string{BlockName(b.ID): test.block(root), MetaName(b.ID, 1001): test.meta(root)} {
			content := data
			if name != BlockName(b.ID) {
				content = oracleMeta(crc.Chunks{}, data)
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		s := openStore(t, root)
		checkFiles(t, s, b, crc.Chunks{}, data)
		if got := s.find(b).directory(); got != test.block(root) {
			t.Errorf("the replica is in %s, expected %s", got, test.block(root))
		}
		s.Close()
	}
}

// What makes no replica is left as it is.
func TestOpenLeavesAlone(t *testing.T) {
	root := t.TempDir()
	writeBlocks := openStore(t, root)
	writeBlock(t, writeBlocks, testBlock(1), crc.Chunks{}, []byte("finalized"))
	if err := writeBlocks.Close(); err != nil {
		t.Fatal(err)
	}
	rbw, fin := rbwPath(root, testPool), finalizedPath(root, testPool, 1)
	strays := map[string]string{
		filepath.Join(rbw, "blk_2"):                            "no meta",
		filepath.Join(rbw, "blk_3_1001.meta"):                  "no block",
		filepath.Join(rbw, "blk_4"):                            "bad meta",
		filepath.Join(rbw, "blk_4_1001.meta"):                  "\x00\x01\x02",
		filepath.Join(rbw, "blk_5"):                            "bad meta",
		filepath.Join(rbw, "blk_5_1001.meta"):                  "\x00\x01\x09\x00\x00\x02\x00",
		filepath.Join(fin, "blk_1_7.meta"):                     "an older meta",
		filepath.Join(fin, "blk_x"):                            "another name",
		filepath.Join(root, currentDir, "VERSION"):             "version",
		filepath.Join(root, currentDir, "BP-..x", "a"):         "no pool",
		filepath.Join(tmpPath(root, testPool), "blk_6.x"):      "another name",
		filepath.Join(rbw, "deeper", "blk_7"):                  "not flat",
		filepath.Join(rbw, "deeper", MetaName(7, 1)):           "not flat",
		filepath.Join(poolDir(root, testPool), "other", "f"):   "other",
		filepath.Join(root, currentDir, testPool, "scanner.x"): "cursor",
	}
	for path, content := range strays {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(rbw, "blk_8")); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, root)
	if blocks := s.Blocks(); len(blocks) != 1 || blocks[0].ID != 1 || blocks[0].NumBytes != 9 || blocks[0].Stamp != 1001 {
		t.Errorf("blocks %v", blocks)
	}
	for path, content := range strays {
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
}

// A finalized block outside its directory, as an older layout has it, is served
// from where it is.
func TestOpenMisplaced(t *testing.T) {
	root, data := t.TempDir(), randomBytes(25, 600)
	dir := filepath.Join(poolDir(root, testPool), finalizedDir, "subdir200", "subdir9")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "blk_-5"), data, 0o644),
		os.WriteFile(filepath.Join(dir, "blk_-5_3.meta"), oracleMeta(crc.Chunks{}, data), 0o644)); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, root)
	if got, err := readAll(s, packet.Block{Pool: testPool, ID: -5}); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestOpenTwice(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, root)
	_, err := OpenStore(StoreConfig{Dirs: []string{root}})
	var locked *LockError
	if !errors.As(err, &locked) || locked.Dir != root || locked.Holder == "" {
		t.Errorf("a second store: %v", err)
	}
	if want := fmt.Sprintf("%d@", os.Getpid()); locked != nil && !bytes.HasPrefix([]byte(locked.Holder), []byte(want)) {
		t.Errorf("the holder is %q, expected %s...", locked.Holder, want)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := openStore(t, root).Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Create(bg, testBlock(1), crc.Chunks{}); !errors.Is(err, ErrStoreClosed) {
		t.Errorf("create in a closed store: %v", err)
	}
}

// Blocks go to the directories in turn; all are found again.
func TestSeveralDirs(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	s := openStore(t, dirs...)
	for id := range int64(9) {
		writeBlock(t, s, testBlock(id), crc.Chunks{}, randomBytes(uint64(id), 700))
	}
	for _, dir := range dirs {
		report, err := Verify(bg, []string{dir}, VerifyConfig{})
		if err != nil || !report.OK() || report.Files != 3 || len(report.Misplaced) > 0 {
			t.Errorf("%s: %+v, %v", dir, report, err)
		}
	}
	s.Close()
	s = openStore(t, dirs[2], dirs[0], dirs[1])
	for id := range int64(9) {
		if got, err := readAll(s, testBlock(id)); err != nil || !bytes.Equal(got, randomBytes(uint64(id), 700)) {
			t.Errorf("block %d: %d bytes, %v", id, len(got), err)
		}
	}
	// The same block in two directories: the newer stamp counts, nothing is deleted.
	s.Close()
	old := filepath.Join(finalizedPath(dirs[1], testPool, 0), BlockName(0))
	if _, err := os.Stat(old); err == nil {
		old = filepath.Join(finalizedPath(dirs[0], testPool, 0), BlockName(0))
	}
	newer := randomBytes(99, 300)
	meta := filepath.Join(filepath.Dir(old), MetaName(0, 2000))
	if err := errors.Join(os.MkdirAll(filepath.Dir(old), 0o755), os.WriteFile(old, newer, 0o644), os.WriteFile(meta, oracleMeta(crc.Chunks{}, newer), 0o644)); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, dirs...)
	if got, err := readAll(s, testBlock(0)); err != nil || !bytes.Equal(got, newer) {
		t.Errorf("of two replicas: %d bytes, %v", len(got), err)
	}
	if len(s.Blocks()) != 9 {
		t.Errorf("%d blocks", len(s.Blocks()))
	}
}

// The checksum of a synced partial chunk that lies across two sectors, of which
// a power cut let one be overwritten, after the chunk's data was made durable.
func TestRecoverTornChecksum(t *testing.T) {
	data := randomBytes(26, 127*512)
	const start = 126 * 512 // the checksum of this chunk is at 511 of the .meta file
	for _, c := range []crc.Chunks{{Kind: crc.CRC32C, Size: 512}, {Kind: crc.CRC32, Size: 512}} {
		for _, lengths := range [][3]int{{100, 300, 300}, {1, 512, 512}, {100, 101, 512}, {400, 411, 450}, {511, 512, 512}} {
			synced, durable, written := start+lengths[0], start+lengths[1], start+lengths[2]
			for first := range 2 {
				meta, old := oracleMeta(c, data[:durable]), oracleMeta(c, data[:synced])
				if first == 0 {
					copy(meta[:512], old)
				} else {
					copy(meta[512:], old[512:])
				}
				root := fastDir(t)
				plant(t, root, testBlock(1), data[:written], meta)
				s := openStore(t, root)
				n := int(s.find(testBlock(1)).length)
				if n < synced || n > durable {
					t.Errorf("%d bytes are left of %d synced and %d durable", n, synced, durable)
				}
				s.Close()
				checkRecovered(t, root, testBlock(1), c, data, n)
			}
		}
	}
}

// What a power cut can leave of a finalized block that was not synced, and what
// it cannot.
func TestRecoverFinalized(t *testing.T) {
	data := randomBytes(27, 3000)
	c := crc.Chunks{}
	good := oracleMeta(c, data)
	flipped := bytes.Clone(data)
	flipped[1000] ^= 1
	for name, test := range map[string]struct {
		data, meta []byte
		closed     bool
		want       int // bytes that are left, -1: it stays as it is
	}{
		"whole":              {data, good, false, -1},
		"cut data":           {data[:1700], good, false, 1536},
		"cut at a chunk":     {data[:1536], good, false, 1536},
		"a chunk is missing": {data[:2560], good, false, 2560},
		"zeros at the end":   {append(bytes.Clone(data[:2000]), make([]byte, 1000)...), good, false, 1536},
		"cut checksums":      {data, good[:15], false, 1024},
		"damaged inside":     {flipped, good, false, 512},
		"closed, header":     {data, make([]byte, 100), true, -1},
		"closed, zeros":      {append(bytes.Clone(data[:2000]), make([]byte, 1000)...), good, true, -1},
		"closed, cut off":    {data, good[:15], true, -1},
		"nothing was there":  {nil, good[:7], false, -1},
	} {
		t.Run(name, func(t *testing.T) {
			root := fastDir(t)
			b := testBlock(1)
			s := openStore(t, root)
			writeBlock(t, s, b, c, data)
			if test.closed {
				if cacheID(s.volumes[0].lock) == "" {
					t.Skip("SKIPPED, NOT TESTED: the kernel does not tell one mount from another")
				}
				s.Close()
			} else {
				crash(t, s)
			}
			fin := finalizedPath(root, testPool, 1)
			pairFiles(t, fin, 1, test.data, test.meta)
			s = openStore(t, root)
			if test.want >= 0 {
				checkFiles(t, s, b, c, data[:test.want])
				if state := s.find(b).state; state != waiting {
					t.Errorf("the block is %v", state)
				}
				// What has its checksums behind a bad chunk is not thrown away.
				for name, want := range map[string][]byte{BlockName(1) + ".lost": test.data, MetaName(1, 1001) + ".lost": test.meta} {
					got, err := os.ReadFile(filepath.Join(fin, name))
					if kept := err == nil && bytes.Equal(got, want); kept != bytes.Equal(test.data, flipped) {
						t.Errorf("%s: %d bytes, %v", name, len(got), err)
					}
				}
				report := verify(t, VerifyConfig{}, root)
				if !report.OK() || report.Files != 1 {
					t.Errorf("%+v", report)
				}
				return
			}
			for name, want := range map[string][]byte{BlockName(1): test.data, MetaName(1, 1001): test.meta} {
				if got, err := os.ReadFile(filepath.Join(fin, name)); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s has changed: %v", name, err)
				}
			}
			if state := s.find(b).state; state != finalized {
				t.Errorf("the block is %v", state)
			}
		})
	}
}

// What a directory has that another program wrote is taken as it is, however new.
func TestOpenNew(t *testing.T) {
	root, b, data := t.TempDir(), testBlock(1), randomBytes(29, 1024)
	s := openStore(t, root)
	writeBlock(t, s, b, crc.Chunks{}, data)
	s.Close()
	fin := finalizedPath(root, testPool, 1)
	meta := append(oracleMeta(crc.Chunks{}, data), "more"...) // as Hadoop's computeMeta makes it
	if err := errors.Join(os.WriteFile(filepath.Join(root, lockFile), []byte("1234@hadoop"), 0o644),
		os.WriteFile(filepath.Join(fin, MetaName(1, b.Stamp)), meta, 0o644)); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, root)
	if got, err := os.ReadFile(filepath.Join(fin, MetaName(1, b.Stamp))); err != nil || !bytes.Equal(got, meta) {
		t.Errorf("the .meta file has changed: %v", err)
	}
	if got, err := readAll(s, b); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes can be read, %v", len(got), err)
	}
}

// crash closes a store without a trace of it in the lock file.
func crash(t testing.TB, s *Store) {
	t.Helper()
	lock := filepath.Join(s.volumes[0].root, lockFile)
	content, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(), os.WriteFile(lock, content, 0o644)); err != nil {
		t.Fatal(err)
	}
}

// What a crash has left of a block that was being made, and can be no replica, is
// set aside, so that it can be made again.
func TestRecoverSetsAside(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, root)
	writeBlock(t, s, testBlock(9), crc.Chunks{}, nil) // makes the pool
	crash(t, s)
	rbw := rbwPath(root, testPool)
	for name, content := range map[string]string{"blk_1": "", "blk_2": "data", "blk_2_1001.meta": "\x00\x01", "blk_3": "data", "blk_4_1001.meta": "\x00\x01"} {
		if err := os.WriteFile(filepath.Join(rbw, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s = openStore(t, root)
	for id := int64(1); id <= 4; id++ {
		writeBlock(t, s, testBlock(id), crc.Chunks{}, []byte("again"))
	}
	for name, content := range map[string]string{"blk_1.lost": "", "blk_2.lost": "data", "blk_2_1001.meta.lost": "\x00\x01", "blk_3.lost": "data", "blk_4_1001.meta.lost": "\x00\x01"} {
		if got, err := os.ReadFile(filepath.Join(rbw, name)); err != nil || string(got) != content {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	crash(t, s)
	if err := os.WriteFile(filepath.Join(finalizedPath(root, testPool, 9), MetaName(9, 1001)), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, root)
	writeBlock(t, s, testBlock(9), crc.Chunks{}, []byte("again"))
	if r := verify(t, VerifyConfig{}, root); !r.OK() || r.Files != 5 {
		t.Errorf("%+v", r)
	}
}

// A checkpoint makes what was finalized known to be durable, and later openings
// do not look at it again.
func TestCheckpoint(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, root)
	data := randomBytes(28, 1000)
	writeBlock(t, s, testBlock(1), crc.Chunks{}, data)
	v := s.volumes[0]
	if !v.dirty.Load() {
		t.Error("a finalized block does not make the volume dirty")
	}
	path := s.find(testBlock(1)).blockPath()
	if err := os.Chtimes(path, time.Time{}, v.durable.Add(-2*longestWrite)); err != nil {
		t.Fatal(err)
	}
	before := v.durable
	if err := v.checkpoint(); err != nil || v.dirty.Load() || !v.durable.After(before) {
		t.Errorf("checkpoint: %v, durable %v, was %v", err, v.durable, before)
	}
	crash(t, s)
	if err := os.Truncate(path, 900); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, time.Time{}, before.Add(-2*longestWrite)); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, root)
	if r := s.find(testBlock(1)); r.state != finalized || r.length != 900 || s.Stats().Load(statBlocksRecovered) != 0 {
		t.Errorf("an old block was checked: %v, %d bytes", r.state, r.length)
	}

	// A clock that was ahead has told nothing.
	crash(t, s)
	lock := filepath.Join(root, lockFile)
	content, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(content), "\n")
	ahead := time.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano)
	if err := os.WriteFile(lock, []byte(line+"\n"+durableLine+ahead+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, root)
	if r := s.find(testBlock(1)); r.state != waiting || r.length != 512 {
		t.Errorf("a block that may be new was not checked: %v, %d bytes", r.state, r.length)
	}
}
