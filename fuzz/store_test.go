//go:build linux || darwin

package fuzz

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring/datanode"
)

// FuzzBlockNames parses file names. What is accepted is the name that the numbers
// have.
func FuzzBlockNames(f *testing.F) {
	for _, name := range []string{
		"blk_1073741825", "blk_1073741825_1001.meta", "blk_-5", "blk_-5_0.meta", "blk_05", "blk_+5", "blk_5_-1.meta", "blk_", "blk__1.meta",
		"blk_9223372036854775808", "blk_-9223372036854775808", "blk_1_1.meta.lost", "blk_1_1_1.meta", "BLK_1", "blk_1 ", "blk_-0",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		id, isBlock := datanode.ParseBlockName(name)
		if isBlock && datanode.BlockName(id) != name {
			t.Errorf("%q is accepted as %d, which is %q", name, id, datanode.BlockName(id))
		}
		id, stamp, isMeta := datanode.ParseMetaName(name)
		if isMeta && (datanode.MetaName(id, stamp) != name || stamp < 0) {
			t.Errorf("%q is accepted as %d, %d, which is %q", name, id, stamp, datanode.MetaName(id, stamp))
		}
		if isBlock && isMeta {
			t.Errorf("%q is both", name)
		}
	})
}

// storedChunks is what a .meta file says, by itself: the checksum table, nil if
// there are none, the chunk size, and the checksums. ok says that the head makes
// sense.
func storedChunks(meta []byte) (table *crc32.Table, size int, sums []byte, ok bool) {
	if len(meta) < 7 {
		return nil, 0, nil, false
	}
	n := binary.BigEndian.Uint32(meta[3:])
	if n == 0 || n > 16<<20 || meta[2] > 2 {
		return nil, 0, nil, false
	}
	return []*crc32.Table{nil, crc32.IEEETable, crc32.MakeTable(crc32.Castagnoli)}[meta[2]], int(n), meta[7:], true
}

// FuzzRecovery opens a store with one unfinished block of any data and any
// checksums. What is left is the longest prefix whose checksums are right, whole
// chunks and of the next one what its checksum covers; the files say just that;
// and another opening changes nothing.
func FuzzRecovery(f *testing.F) {
	for _, kind := range []crc.Kind{crc.CRC32C, crc.CRC32, crc.None} {
		for _, size := range []int{1, 8, 100} {
			c := crc.Chunks{Kind: kind, Size: size}
			data := stretch([]byte("data"), 250)
			meta := c.Append(datanode.MetaHeader{Version: datanode.MetaVersion, Chunks: c}.Append(nil), data)
			f.Add(data, meta)
			f.Add(data[:201], meta)
			f.Add(data, meta[:len(meta)-1])
			f.Add(data, c.Append(datanode.MetaHeader{Version: 7, Chunks: c}.Append(nil), data[:155]))
			damaged := bytes.Clone(data)
			damaged[120] ^= 4
			f.Add(damaged, meta)
		}
	}
	f.Add([]byte("data"), []byte{0, 1, 2, 0, 0, 2})
	f.Add([]byte{}, []byte{0, 1, 2, 0, 0, 2, 0})
	f.Add([]byte("data"), []byte{0, 1, 2, 255, 255, 255, 255, 0, 0, 0, 0})
	f.Add([]byte("data"), []byte{0, 1, 3, 0, 0, 2, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data, meta []byte) {
		root := memoryDir(t)
		rbw := filepath.Join(root, "current", fuzzPool, "current", "rbw")
		block, sumsFile := filepath.Join(rbw, datanode.BlockName(1)), filepath.Join(rbw, datanode.MetaName(1, 5))
		if err := errors.Join(os.MkdirAll(rbw, 0o755), os.WriteFile(block, data, 0o644), os.WriteFile(sumsFile, meta, 0o644)); err != nil {
			t.Fatal(err)
		}
		s, _ := fuzzStore(t, root)
		table, size, sums, ok := storedChunks(meta)
		blocks := s.Blocks()
		if len(blocks) == 1 != ok {
			t.Fatalf("the blocks are %v, the .meta file makes sense: %v", blocks, ok)
		}
		if !ok {
			for name, want := range map[string][]byte{block: data, sumsFile: meta} {
				got, err := os.ReadFile(name)
				if err != nil {
					got, err = os.ReadFile(name + ".lost")
				}
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s has changed: %v", name, err)
				}
			}
			return
		}
		// By hand: whole chunks, and then of what is left the longest part that has
		// the next checksum.
		least, most := 0, len(data)
		if table != nil {
			n := 0
			for n < len(data) {
				chunk := data[n:min(n+size, len(data))]
				at := n / size * 4
				if len(sums) < at+4 {
					break
				}
				stored := binary.BigEndian.Uint32(sums[at:])
				part := len(chunk)
				for part > 0 && crc32.Checksum(chunk[:part], table) != stored {
					part--
				}
				if part < len(chunk) {
					least, most = n+part, n+part
					if part == 0 && (7+at)%512 > 508 { // it may be torn: half of another
						most = n + len(chunk) - 1
					}
					n = -1
					break
				}
				n += len(chunk)
			}
			if n >= 0 {
				least, most = n, n
			}
		}
		left := int(blocks[0].NumBytes)
		if left < least || left > most {
			t.Errorf("%d bytes are left of %d, expected %d to %d", left, len(data), least, most)
		}
		want := append([]byte(nil), meta[:7]...)
		for at := 0; table != nil && at < left; at += size {
			want = binary.BigEndian.AppendUint32(want, crc32.Checksum(data[at:min(at+size, left)], table))
		}
		for name, want := range map[string][]byte{block: data[:left], sumsFile: want} {
			if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: % x, %v, expected % x", name, got, err, want)
			}
		}
		if got := readBlocks(t, s)[nameOf(blocks[0])]; !bytes.Equal(got, data[:left]) {
			t.Errorf("% x can be read, expected % x", got, data[:left])
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if r, err := datanode.Verify(context.Background(), []string{root}, datanode.VerifyConfig{}); err != nil || !r.OK() || r.Files != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		again, _ := fuzzStore(t, root)
		if b := again.Blocks(); len(b) != 1 || b[0] != (packet.Block{Pool: fuzzPool, ID: 1, Stamp: 5, NumBytes: int64(left)}) {
			t.Errorf("after another opening the blocks are %v", b)
		}
	})
}
