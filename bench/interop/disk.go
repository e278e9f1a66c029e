package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring"
	"github.com/blockpath/blockpath/iouring/datanode"
)

var diskChecks = []check{
	{"disk/our store: judged by Hadoop", storeJudged},
	{"disk/our store: any byte flipped", storeFlipped},
	{"disk/computeMeta: judged by us", computeMetaJudged},
	{"disk/computeMeta: blockpath verify", computeMetaCommand},
}

// The shapes of the blocks that go over the disk.
var (
	diskKinds   = []crc.Kind{crc.CRC32C, crc.CRC32}
	diskChunks  = []int{512, 4096, 1, 7}
	diskLengths = []int{0, 1, 511, 512, 513, 65536, 3<<20 + 77}
)

// A shape is how a block is checksummed and how long it is.
type shape struct {
	crc.Chunks
	length int
}

func (s shape) String() string { return fmt.Sprintf("%v/%d, %d bytes", s.Kind, s.Size, s.length) }

func shapes() (all []shape) {
	for _, k := range diskKinds {
		for _, size := range diskChunks {
			for _, n := range diskLengths {
				all = append(all, shape{crc.Chunks{Kind: k, Size: size}, n})
			}
		}
	}
	return all
}

// A replica is a block file and its .meta file.
type replica struct {
	block, meta string
}

// verifyMeta asks Hadoop about a replica. It returns whether Hadoop accepts
// it, and what Hadoop said.
func (t *trial) verifyMeta(r replica) (bool, string) {
	answer, refused := t.ask("debug", hadoop.Text("verifyMeta"), hadoop.Text("-meta"), hadoop.Text(r.meta), hadoop.Text("-block"), hadoop.Text(r.block))
	if refused != nil {
		return false, refused.Exception
	}
	said := string(hadoop.Bytes(answer[1]))
	// the command's exit code alone would not tell a mismatch from a success
	return answer[0] == "0" && strings.Contains(said, "Checksum verification succeeded"), said
}

// verifyOurs asks our scrubber about a replica.
func verifyOurs(r replica) (*datanode.Report, error) {
	return datanode.Verify(context.Background(), []string{r.block}, datanode.VerifyConfig{})
}

// metaOf is the .meta file that belongs to data.
func metaOf(c crc.Chunks, data []byte) []byte {
	return c.Append(datanode.MetaHeader{Version: datanode.MetaVersion, Chunks: c}.Append(nil), data)
}

// pool is the block pool of the blocks that our store writes.
const pool = "BP-1-127.0.0.1-1"

// write writes data as a block of a store, in packets of random lengths, some
// of them ended in mid-chunk by a flush after which the chunk is sent again.
func (t *trial) write(store *datanode.Store, id int64, c crc.Chunks, data []byte) (replica, error) {
	ctx := context.Background()
	w, err := store.Create(ctx, packet.Block{Pool: pool, ID: id, Stamp: 1001, NumBytes: int64(len(data))}, c)
	if err != nil {
		return replica{}, err
	}
	send := func(h packet.Header, data []byte) error {
		sums := c.SumsLen(len(data))
		var buf iouring.Buffer
		if len(data) > 0 {
			if buf, err = store.Arena().Get(ctx, w.BufferLen(h, sums)); err != nil {
				return err
			}
			b := buf.Bytes()
			copy(b[c.Put(b[:sums], data):], data)
		}
		return w.WritePacket(ctx, h, sums, buf)
	}
	most := max(min(65536, 8192*c.Size)/c.Size, 1)
	seqno := int64(0)
	for at := 0; at < len(data); seqno++ {
		n := min(c.Size*(1+t.rng.IntN(most)), len(data)-at)
		flush := t.rng.IntN(4) == 0
		if flush && n > 1 {
			n -= t.rng.IntN(min(c.Size, n))
		}
		h := packet.Header{Offset: int64(at), Seqno: seqno, DataLen: n}
		if err := send(h, data[at:at+n]); err != nil {
			return replica{}, err
		}
		if flush {
			if err := w.Flush(ctx); err != nil {
				return replica{}, err
			}
		}
		if at += n; at < len(data) {
			at -= at % c.Size
		}
	}
	if err := send(packet.Header{Offset: int64(len(data)), Seqno: seqno, Last: true}, nil); err != nil {
		return replica{}, err
	}
	if err := w.Finalize(ctx, false); err != nil {
		return replica{}, err
	}
	dir := filepath.Join(store.Dirs()[0], "current", pool, "current", "finalized",
		fmt.Sprintf("subdir%d", id>>16&31), fmt.Sprintf("subdir%d", id>>8&31))
	return replica{filepath.Join(dir, datanode.BlockName(id)), filepath.Join(dir, datanode.MetaName(id, 1001))}, nil
}

// stored lets our store write a block of every shape and calls f for each.
func (t *trial) stored(f func(shape, replica) error) error {
	store, err := datanode.OpenStore(datanode.StoreConfig{Dirs: []string{t.dir}})
	if err != nil {
		return err
	}
	defer store.Close()
	for i, s := range shapes() {
		r, err := t.write(store, int64(1<<30+i), s.Chunks, t.bytes(s.length))
		if err != nil {
			return err
		}
		if err := f(s, r); err != nil {
			return err
		}
	}
	return store.Close()
}

func storeJudged(t *trial) error {
	return t.stored(func(s shape, r replica) error {
		ok, said := t.verifyMeta(r)
		t.same(ok, true, "%v: Hadoop on our file: %s", s, said)
		data, err := os.ReadFile(r.block)
		if err != nil {
			return err
		}
		meta, err := os.ReadFile(r.meta)
		if err != nil {
			return err
		}
		t.same(len(data), s.length, "%v: block", s)
		t.same(hadoop.Hex(meta), hadoop.Hex(metaOf(s.Chunks, data)), "%v: .meta file", s)
		// what Hadoop computes for the same data, apart from its stale word
		computed := r.meta + ".computed"
		if answer, refused := t.ask("debug.compute", hadoopKind(s.Kind), s.Size, hadoop.Text(r.block), hadoop.Text(computed)); refused != nil || answer[0] != "0" {
			t.disagree("%v: computeMeta: %v %v", s, refused, answer)
			return nil
		}
		theirs, err := os.ReadFile(computed)
		if err != nil {
			return err
		}
		t.same(hadoop.Hex(meta), hadoop.Hex(theirs[:min(len(theirs), len(meta))]), "%v: .meta file", s)
		report, err := verifyOurs(r)
		if err != nil {
			return err
		}
		t.same(report.OK(), true, "%v: our scrubber: %+v", s, report)
		return nil
	})
}

// storeFlipped damages blocks of our store, one byte at a time. Hadoop and our
// scrubber must both reject them.
func storeFlipped(t *trial) error {
	return t.stored(func(s shape, r replica) error {
		for _, file := range []string{r.block, r.meta} {
			f, err := os.OpenFile(file, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			size, err := f.Seek(0, io.SeekEnd)
			if err != nil {
				return err
			}
			header := file == r.meta && (t.full || s.Count(int64(s.length)) <= manyChunks)
			if header {
				// another checksum type: that of no checksum, that of the other CRC, none at all
				for mask := range byte(3) {
					if err := t.flip(s, r, f, 2, mask+1); err != nil {
						return err
					}
				}
			}
			for _, at := range t.positions(s, int(size)) {
				if file == r.meta && at < datanode.MetaHeaderLen && !header {
					continue
				}
				if err := t.flip(s, r, f, at, byte(1+t.rng.IntN(255))); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// manyChunks is how many chunks a block may have whose header is damaged also in
// a short run: then all of them are bad.
const manyChunks = 1 << 16

// positions returns which bytes of a file of a block to flip: of a short one all,
// of others the first and the last ones and some between. They are fewer where
// verifyMeta is slow: for chunks of 4096 bytes it clears 128 MiB each time, and
// blocks may have millions of chunks.
func (t *trial) positions(s shape, size int) (at []int) {
	every, some := 64, t.times(32)
	if t.full {
		every = 520
	}
	if s.Size == 4096 || s.Count(int64(s.length)) > manyChunks {
		every, some = every-64, some/4
	}
	if size <= max(every, some) {
		for i := range size {
			at = append(at, i)
		}
		return at
	}
	for i := range some / 4 {
		at = append(at, i, size-1-i)
	}
	for range some / 2 {
		at = append(at, t.rng.IntN(size))
	}
	return at
}

// flip flips the bits of mask in one byte, asks both, and flips them back.
func (t *trial) flip(s shape, r replica, f *os.File, at int, mask byte) error {
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, int64(at)); err != nil {
		return err
	}
	if _, err := f.WriteAt([]byte{b[0] ^ mask}, int64(at)); err != nil {
		return err
	}
	report, err := verifyOurs(r)
	if err != nil {
		return err
	}
	theirs, said := t.verifyMeta(r)
	switch ours := report.OK(); {
	case !ours && !theirs:
		t.agreed++
	case f.Name() == r.meta && ours == theirs:
		// nothing depends on this byte, such as the version's
		t.note(fmt.Sprintf("both accept a .meta file with another byte %d (%s)", at, emptyOr(s)))
		t.agreed++
	case !ours:
		t.strict(fmt.Sprintf("byte %d of the .meta file (%s)", at, emptyOr(s)))
	case strings.Contains(said, "OutOfMemoryError") || strings.Contains(said, "capacity < 0"):
		// verifyMeta keeps 32768 chunks in memory, so it cannot even try where the
		// chunk size has become large; the only chunk is still good
		t.note("a chunk size that is too large for Hadoop's verifyMeta, of a block of one chunk")
	default:
		t.disagree("%v: byte %d of %s xor %#x: ours %t, Hadoop's %t: %s", s, at, filepath.Base(f.Name()), mask, ours, theirs, said)
	}
	_, err = f.WriteAt(b, int64(at))
	return err
}

func emptyOr(s shape) string {
	if s.length == 0 {
		return "empty block"
	}
	return "block with data"
}

// computeMetaJudged lets Hadoop make .meta files and checks them with our
// scrubber, which must accept them, Hadoop's stale word included.
func computeMetaJudged(t *trial) error {
	return t.computed(func(s shape, r replica) error {
		data, err := os.ReadFile(r.block)
		if err != nil {
			return err
		}
		meta, err := os.ReadFile(r.meta)
		if err != nil {
			return err
		}
		want := metaOf(s.Chunks, data)
		if !bytes.HasPrefix(meta, want) {
			t.disagree("%v: computeMeta made %x, expected it to begin with %x", s, meta[:min(len(meta), 64)], want[:min(len(want), 64)])
			return nil
		}
		stale := len(meta) - len(want)
		if s.length%s.Size == 0 {
			t.same(stale, 4, "%v: bytes behind the last checksum", s)
		} else {
			t.same(stale, 0, "%v: bytes behind the last checksum", s)
		}
		report, err := verifyOurs(r)
		if err != nil {
			return err
		}
		t.same(report.OK(), true, "%v: %+v", s, report)
		t.same(report.Bytes, s.length, "%v: bytes checked", s)
		ok, said := t.verifyMeta(r)
		t.same(ok, true, "%v: Hadoop on its own file: %s", s, said)
		return nil
	})
}

// computed lets Hadoop compute the .meta files of blocks of every shape in
// t.dir and calls f for each.
func (t *trial) computed(f func(shape, replica) error) error {
	if err := t.mkdir(); err != nil {
		return err
	}
	for i, s := range shapes() {
		r := replica{
			filepath.Join(t.dir, datanode.BlockName(int64(i))),
			filepath.Join(t.dir, datanode.MetaName(int64(i), 1001)),
		}
		if err := os.WriteFile(r.block, t.bytes(s.length), 0o644); err != nil {
			return err
		}
		answer, refused := t.ask("debug.compute", hadoopKind(s.Kind), s.Size, hadoop.Text(r.block), hadoop.Text(r.meta))
		if refused != nil || answer[0] != "0" {
			t.disagree("%v: computeMeta: %v %v", s, refused, answer)
			continue
		}
		if err := f(s, r); err != nil {
			return err
		}
	}
	return nil
}

// computeMetaCommand runs the command over a directory that Hadoop filled.
func computeMetaCommand(t *trial) error {
	n := 0
	if err := t.computed(func(shape, replica) error { n++; return nil }); err != nil {
		return err
	}
	command, err := buildCommand(filepath.Join(t.dir, "bin"))
	if err != nil {
		return err
	}
	report, out, err := runVerify(command, []string{t.dir})
	if err != nil {
		return err
	}
	t.same(report.Files, n, "blockpath verify: files: %s", out)
	t.same(report.OK(), true, "blockpath verify: %s", out)
	return nil
}

// buildCommand builds the command of this work tree.
func buildCommand(dir string) (string, error) {
	path := filepath.Join(dir, "blockpath")
	c := exec.Command("go", "build", "-o", path, "./cmd/blockpath")
	c.Dir = ".."
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/blockpath: %w: %s", err, out)
	}
	return path, nil
}
