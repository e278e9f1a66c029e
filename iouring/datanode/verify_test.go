//go:build linux || darwin

package datanode

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// pairFiles writes a block and its .meta file to dir.
func pairFiles(t testing.TB, dir string, id int64, data, meta []byte) (block, metaPath string) {
	t.Helper()
	block, metaPath = filepath.Join(dir, BlockName(id)), filepath.Join(dir, MetaName(id, 1001))
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(block, data, 0o644), os.WriteFile(metaPath, meta, 0o644)); err != nil {
		t.Fatal(err)
	}
	return block, metaPath
}

func verify(t testing.TB, cfg VerifyConfig, paths ...string) *Report {
	t.Helper()
	r, err := Verify(bg, paths, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Every bit of a block and of its checksums is found, and named.
func TestVerifyFlippedBits(t *testing.T) {
	dir := fastDir(t)
	for _, kind := range []crc.Kind{crc.CRC32C, crc.CRC32} {
		c := crc.Chunks{Kind: kind, Size: 16}
		data := randomBytes(30, 40)
		meta := oracleMeta(c, data)
		for bit := range 8 * len(data) {
			damaged := bytes.Clone(data)
			damaged[bit/8] ^= 1 << (bit % 8)
			block, _ := pairFiles(t, dir, 1, damaged, meta)
			r := verify(t, VerifyConfig{}, block)
			chunk := bit / 128
			if r.OK() || len(r.Bad) != 1 || r.Bad[0].File != block || r.Bad[0].Offset != int64(16*chunk) || r.Bad[0].Bit != int64(bit-128*chunk) {
				t.Fatalf("%v bit %d: %+v", kind, bit, r)
			}
		}
		for bit := 8 * MetaHeaderLen; bit < 8*len(meta); bit++ {
			damaged := bytes.Clone(meta)
			damaged[bit/8] ^= 1 << (bit % 8)
			_, metaPath := pairFiles(t, dir, 1, data, damaged)
			r := verify(t, VerifyConfig{}, metaPath)
			chunk := (bit/8 - MetaHeaderLen) / 4
			n := min(16, 40-16*chunk)
			if len(r.Bad) != 1 || r.Bad[0].Offset != int64(16*chunk) || r.Bad[0].Bit != int64(8*n+bit-8*(MetaHeaderLen+4*chunk)) {
				t.Fatalf("%v bit %d of the checksums: %+v", kind, bit, r)
			}
		}
	}
}

// All bad chunks are found, not just the first, and more than one flipped bit is
// not taken for one.
func TestVerifyManyBadChunks(t *testing.T) {
	data := randomBytes(31, 2<<20+100)
	meta := oracleMeta(crc.Chunks{}, data)
	want := []int64{0, 512, 262144 - 512, 262144, 1 << 20, 2 << 20}
	for _, off := range want {
		data[off] ^= 0x11
		data[off+50] ^= 1
	}
	block, _ := pairFiles(t, t.TempDir(), 1, data, meta)
	r := verify(t, VerifyConfig{}, block)
	var got []int64
	for _, bad := range r.Bad {
		got = append(got, bad.Offset)
		if bad.Bit != -1 {
			t.Errorf("%+v", bad)
		}
	}
	if !slices.Equal(got, want) || r.Chunks != 4097 || r.Bytes != int64(len(data)) {
		t.Errorf("bad chunks at %v, expected %v; %d chunks, %d bytes", got, want, r.Chunks, r.Bytes)
	}
}

// Files cut off at every byte. The only cut that may go unnoticed is one that
// Hadoop's computeMeta could have made.
func TestVerifyTruncated(t *testing.T) {
	dir := fastDir(t)
	c := crc.Chunks{Size: 8}
	for _, n := range []int{0, 1, 8, 9, 21, 24} {
		data := randomBytes(32, n)
		meta := oracleMeta(c, data)
		for m := range len(meta) {
			_, metaPath := pairFiles(t, dir, 1, data, meta[:m])
			r := verify(t, VerifyConfig{}, dir)
			if r.OK() || len(r.ShortMeta) != 1 || r.ShortMeta[0] != metaPath || len(r.Errors) != 1 || r.Errors[0].Offset != int64(m) {
				t.Errorf("%d bytes, .meta cut to %d: %+v", n, m, r)
			}
		}
		for d := range n {
			block, metaPath := pairFiles(t, dir, 1, data[:d], meta)
			r := verify(t, VerifyConfig{}, dir)
			// Either the checksum of the cut chunk is wrong, or there are too many.
			named := len(r.Bad) > 0 && r.Bad[0].File == block || len(r.Errors) > 0 && r.Errors[0].File == block && r.Errors[0].Offset == int64(d) && slices.Contains(r.LongMeta, metaPath)
			if r.OK() || !named {
				t.Errorf("%d bytes cut to %d: %+v", n, d, r)
			}
		}
	}
}

// The word too many that Hadoop's computeMeta writes for whole chunks.
func TestVerifyStaleWord(t *testing.T) {
	dir := t.TempDir()
	data := randomBytes(33, 200*512)
	meta := oracleMeta(crc.Chunks{}, data)
	for i, extra := range [][]byte{meta[7:11], meta[7+4*128:][:4], {1, 2, 3, 4}, append(bytes.Clone(meta[7:11]), 0), append(bytes.Clone(meta[7:11]), meta[7:11]...)} {
		_, metaPath := pairFiles(t, dir, 1, data, append(bytes.Clone(meta), extra...))
		r := verify(t, VerifyConfig{}, dir)
		if r.OK() != (i < 2) || !slices.Equal(r.LongMeta, []string{metaPath}) {
			t.Errorf("%d: %+v", i, r)
		}
	}
	pairFiles(t, dir, 1, nil, append(bytes.Clone(meta[:7]), 0, 0, 0, 0))
	if r := verify(t, VerifyConfig{}, dir); !r.OK() {
		t.Errorf("an empty block: %+v", r)
	}
	pairFiles(t, dir, 1, data, append(bytes.Clone(meta), meta[7:11]...))
	s := openStore(t, t.TempDir())
	pairFiles(t, finalizedPath(s.volumes[0].root, testPool, 1), 1, data, append(bytes.Clone(meta), meta[7:11]...))
	s.Close()
	s = openStore(t, s.volumes[0].root)
	if got, err := readAll(s, testBlock(1)); err != nil || !bytes.Equal(got, data) {
		t.Errorf("a reader: %d bytes, %v", len(got), err)
	}
}

func TestVerifyTree(t *testing.T) {
	root := t.TempDir()
	data := randomBytes(34, 1000)
	meta := oracleMeta(crc.Chunks{}, data)
	fin := filepath.Join(poolDir(root, testPool), finalizedDir)
	rbw := rbwPath(root, testPool)
	pairFiles(t, filepath.Join(fin, subdirs(1)), 1, data, meta)
	pairFiles(t, filepath.Join(fin, subdirs(-77)), -77, data, meta)
	misplaced, _ := pairFiles(t, filepath.Join(fin, "subdir3"), 2, data, meta)
	misplaced2, _ := pairFiles(t, fin, 3, data, meta)
	pairFiles(t, rbw, 4, data, append(bytes.Clone(meta), 9, 9, 9, 9, 9, 9, 9, 9)) // checksums ahead of the data
	null, _ := pairFiles(t, filepath.Join(fin, subdirs(5)), 5, data, oracleMeta(crc.Chunks{Kind: crc.None}, data))
	version, _ := pairFiles(t, filepath.Join(fin, subdirs(6)), 6, data, append([]byte{0, 9}, meta[2:]...)) // another version is read all the same
	_, badHeader := pairFiles(t, rbw, 7, data, []byte{0, 1, 7, 0, 0, 2, 0, 1, 2, 3, 4})
	_, noChunk := pairFiles(t, rbw, 8, data, []byte{0, 1, 2, 0, 0, 0, 0, 1, 2, 3, 4})
	lonely, _ := pairFiles(t, rbw, 9, data, meta)
	os.Remove(filepath.Join(rbw, MetaName(9, 1001)))
	_, orphan := pairFiles(t, rbw, 10, data, meta)
	os.Remove(filepath.Join(rbw, BlockName(10)))
	older := filepath.Join(fin, subdirs(1), MetaName(1, 9))
	link, dir := filepath.Join(rbw, "blk_11"), filepath.Join(rbw, "blk_12")
	if err := errors.Join(os.WriteFile(older, meta, 0o644), os.Symlink(null, link), os.Mkdir(dir, 0o755),
		os.WriteFile(filepath.Join(root, "VERSION"), nil, 0o644), os.WriteFile(filepath.Join(rbw, "blk_1x"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	// To what is young, a writer might still be coming.
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		return os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour))
	})
	if err != nil {
		t.Fatal(err)
	}
	r := verify(t, VerifyConfig{}, root)
	sort := func(s ...string) []string { slices.Sort(s); return s }
	var errs []string
	for _, e := range r.Errors {
		errs = append(errs, e.File)
	}
	for name, got := range map[string][2][]string{
		"misplaced": {sort(r.Misplaced...), sort(misplaced, misplaced2)},
		"orphans":   {sort(r.Orphans...), sort(lonely, orphan, older)},
		"irregular": {sort(r.Irregular...), sort(link, dir)},
		"errors":    {sort(errs...), sort(badHeader, noChunk)},
		"short":     {r.ShortMeta, []string{}},
		"long":      {r.LongMeta, []string{}},
	} {
		if !slices.Equal(got[0], got[1]) {
			t.Errorf("%s: %v, expected %v", name, got[0], got[1])
		}
	}
	if r.Files != 9 || r.Chunks != 6*2 || len(r.Bad) != 0 || r.OK() {
		t.Errorf("%+v", r)
	}
	_ = version

	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{`"files":9`, `"chunks":12`, `"bytes":6000`, `"bad":[]`, `"orphans":["`, `"short_meta":[]`, `"misplaced":["`} {
		if !strings.Contains(string(text), key) {
			t.Errorf("no %s in %s", key, text)
		}
	}
}

// An interrupted run goes on behind the last file it has reported, wherever that
// is, and finds the same.
func TestVerifyResume(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	data := randomBytes(35, 600)
	meta := oracleMeta(crc.Chunks{}, data)
	for id := range int64(6) {
		pairFiles(t, filepath.Join(a, fmt.Sprintf("d%d", id%2), fmt.Sprintf("e%d", id%3)), id, data, meta)
		pairFiles(t, filepath.Join(a, "d0"), 100+id, data, meta)
		pairFiles(t, b, 200+id, data, meta)
		older := filepath.Join(a, "d0", MetaName(100+id, 5))
		if err := errors.Join(os.WriteFile(older, meta, 0o644), os.Chtimes(older, time.Time{}, time.Now().Add(-time.Hour))); err != nil {
			t.Fatal(err)
		}
	}
	var order []string
	whole := verify(t, VerifyConfig{Progress: func(p string, _ *Report) { order = append(order, p) }}, a, b)
	if len(order) != 18 || whole.Files != 18 || len(whole.Orphans) != 6 {
		t.Fatalf("%d files, %+v", len(order), whole)
	}
	for i, after := range order {
		var rest []string
		r := verify(t, VerifyConfig{After: after, Progress: func(p string, _ *Report) { rest = append(rest, p) }}, a, b)
		if !slices.Equal(rest, order[i+1:]) || r.Files != int64(len(rest)) {
			t.Errorf("after %s: %v, expected %v", after, rest, order[i+1:])
		}
		ctx, cancel := context.WithCancel(bg)
		first, err := Verify(ctx, []string{a, b}, VerifyConfig{Progress: func(p string, _ *Report) {
			if p == after {
				cancel()
			}
		}})
		cancel()
		if err != nil != (i < len(order)-1) {
			t.Errorf("interrupted after %s: %v", after, err)
		}
		if r := verify(t, VerifyConfig{After: after, Report: first}, a, b); !reflect.DeepEqual(r, whole) {
			t.Errorf("after %s: %+v in two runs, expected %+v", after, r, whole)
		}
	}
	if _, err := Verify(bg, []string{a}, VerifyConfig{After: filepath.Join(b, "blk_200")}); err == nil {
		t.Error("a file below none of the paths is accepted")
	}
}

func TestVerifyArguments(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(bg, []string{other}, VerifyConfig{}); err == nil || !strings.Contains(err.Error(), other) {
		t.Errorf("a file that is no block: %v", err)
	}
	if _, err := Verify(bg, []string{filepath.Join(dir, "none")}, VerifyConfig{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a path that does not exist: %v", err)
	}
	if r := verify(t, VerifyConfig{}, dir); !r.OK() || r.Files != 0 {
		t.Errorf("nothing: %+v", r)
	}
	ctx, cancel := context.WithCancel(bg)
	cancel()
	pairFiles(t, dir, 1, []byte("x"), oracleMeta(crc.Chunks{}, []byte("x")))
	if _, err := Verify(ctx, []string{dir}, VerifyConfig{}); err != context.Canceled {
		t.Errorf("after the end of the context: %v", err)
	}
}

// A limit below one read's length holds, and ends with its context.
func TestVerifyRate(t *testing.T) {
	dir := t.TempDir()
	data := randomBytes(36, 1<<20)
	pairFiles(t, dir, 1, data, oracleMeta(crc.Chunks{}, data))
	ctx, cancel := context.WithTimeout(bg, 100*time.Millisecond)
	defer cancel()
	r, err := Verify(ctx, []string{dir}, VerifyConfig{Rate: 1 << 20})
	if err != context.DeadlineExceeded || r.Bytes >= 1<<20 {
		t.Errorf("%d bytes in 0.1 s at 1 MiB/s, %v", r.Bytes, err)
	}
	start := time.Now()
	r, err = Verify(bg, []string{dir}, VerifyConfig{Rate: 4 << 20})
	if err != nil || r.Bytes != 1<<20 || time.Since(start) < 100*time.Millisecond {
		t.Errorf("%d bytes in %v at 4 MiB/s, %v", r.Bytes, time.Since(start), err)
	}
}

// Verify finds no fault in a store that is being written all the time.
func TestVerifyLive(t *testing.T) {
	checkLeaks(t)
	root := fastDir(t)
	s := openStore(t, root)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for g := range int64(3) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for id := g << 32; ; id++ {
				select {
				case <-stop:
					return
				default:
				}
				data := randomBytes(uint64(id), 5000)
				w, err := s.Create(bg, testBlock(id), crc.Chunks{})
				if err != nil {
					t.Error(err)
					return
				}
				at := 0
				for seqno := int64(0); at < len(data); seqno++ {
					start := at - at%512
					at = min(at+1+int(id*7+seqno*13)%400, len(data))
					if err := errors.Join(send(t, w, packet.Header{Offset: int64(start), Seqno: seqno}, data[start:at]), w.Flush(bg)); err != nil {
						t.Error(err)
					}
				}
				if err := w.Finalize(bg, false); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	for s.Stats().Load(statBlocksFinalized) < 300 {
		if r := verify(t, VerifyConfig{}, root); !r.OK() || len(r.Misplaced) > 0 {
			t.Errorf("%+v", r)
		}
	}
	close(stop)
	wg.Wait()
	if r := verify(t, VerifyConfig{}, root); !r.OK() || r.Files == 0 {
		t.Errorf("%+v", r)
	}
}
