package main

import (
	"context"
	"crypto/md5"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/iouring/datanode"
)

var fileChecks = []check{
	{"file/replicas of a datanode: ours", replicasJudged},
	{"file/checksums", fileChecksums},
	{"sums/composer", composedSums},
}

// A fileShape is how a file is stored.
type fileShape struct {
	crc.Chunks
	blockSize int
	length    int
}

func (s fileShape) String() string {
	return fmt.Sprintf("%v/%d, %d bytes in blocks of %d", s.Kind, s.Size, s.length, s.blockSize)
}

func (s fileShape) path() []byte {
	return fmt.Appendf(nil, "/%v-%d-%d-%d", s.Kind, s.Size, s.blockSize, s.length)
}

// fileShapes has files of no block and of one to seventeen, with and without a
// short last block and a short last chunk.
func fileShapes() (all []fileShape) {
	for _, k := range diskKinds {
		for _, size := range []int{512, 7, 4096} {
			c := crc.Chunks{Kind: k, Size: size}
			block := 2 * size
			for _, n := range []int{0, 1, size - 1, size, size + 1, block, block + 1, 2 * block, 3*block - 1, 4 * block, 5*block + size, 8 * block, 9 * block, 16*block + 1} {
				all = append(all, fileShape{c, block, n})
			}
		}
		all = append(all, fileShape{crc.Chunks{Kind: k, Size: 512}, 1 << 20, 3<<20 + 77})
	}
	return all
}

// data is the file's content.
func (s fileShape) data() []byte {
	b := ramp(s.length)
	for i := range b {
		b[i] += byte(i / s.blockSize) // no two blocks alike
	}
	return b
}

// blocks cuts the content.
func (s fileShape) blocks() (blocks [][]byte) {
	for data := s.data(); len(data) > 0; {
		n := min(s.blockSize, len(data))
		blocks = append(blocks, data[:n])
		data = data[n:]
	}
	return blocks
}

// put lets Hadoop's client write the file if it is not there yet.
func (t *trial) put(s fileShape) error {
	if err := t.startCluster(); err != nil {
		return err
	}
	if t.hadoop.files[s.String()] {
		return nil
	}
	t.hadoop.files[s.String()] = true
	if _, refused := t.ask("cluster.write", s.path(), hadoopKind(s.Kind), s.Size, s.blockSize, s.data()); refused != nil {
		return refused
	}
	return nil
}

// replicasJudged compares what a real datanode stored with what we would.
func replicasJudged(t *trial) error {
	for _, s := range fileShapes() {
		if err := t.put(s); err != nil {
			return err
		}
		replicas, err := t.replicas(textOf(string(s.path())))
		if err != nil {
			return err
		}
		for i, block := range s.blocks() {
			t.same(len(replicas[i]), 1, "%v: replicas of block %d", s, i)
			for _, r := range replicas[i] {
				t.sameReplica(r, block, metaOf(s.Chunks, block), "%v: block %d", s, i)
			}
		}
	}
	report, err := datanode.Verify(context.Background(), []string{t.hadoop.clusterDir}, datanode.VerifyConfig{})
	if err != nil {
		return err
	}
	t.same(report.OK() && len(report.Misplaced) == 0, true, "the data directory of the datanode: %+v", report)
	return nil
}

// fileChecksums compares the checksums of whole files, in both of HDFS's modes.
func fileChecksums(t *trial) error {
	for _, s := range fileShapes() {
		if err := t.put(s); err != nil {
			return err
		}
		answer, refused := t.ask("cluster.checksum", s.path(), "MD5MD5CRC", "-")
		if refused != nil {
			return refused
		}
		t.same(md5Text(s), answer[2], "%v", s)
		if answer, refused = t.ask("cluster.checksum", s.path(), "COMPOSITE_CRC", "-"); refused != nil {
			return refused
		}
		text := md5Text(s) // of an empty file also in this mode
		if s.length > 0 {
			var err error
			if text, err = compositeText(s); err != nil {
				return err
			}
		}
		t.same(text, answer[2], "%v", s)
	}
	return t.prefixChecksums()
}

// prefixChecksums compares the checksums of the first bytes of files. Hadoop
// computes the checksum of the last chunk anew where it is cut.
func (t *trial) prefixChecksums() error {
	for _, s := range fileShapes() {
		if s.length < 2 || s.length > 1<<16 {
			continue
		}
		for range 3 {
			n := 1 + t.rng.IntN(s.length-1)
			answer, refused := t.ask("cluster.checksum", s.path(), "MD5MD5CRC", n)
			if refused != nil {
				return refused
			}
			_, md5OfMD5, _ := strings.Cut(md5Text(fileShape{s.Chunks, s.blockSize, n}), ":")
			t.same(md5OfMD5, answer[2][strings.Index(answer[2], ":")+1:], "%v, the first %d", s, n)
			if answer, refused = t.ask("cluster.checksum", s.path(), "COMPOSITE_CRC", n); refused != nil {
				return refused
			}
			text, err := compositeText(fileShape{s.Chunks, s.blockSize, n})
			if err != nil {
				return err
			}
			t.same(text, answer[2], "%v, the first %d", s, n)
		}
	}
	return nil
}

// md5Text is the MD5-of-MD5 checksum as Hadoop prints it.
func md5Text(s fileShape) string {
	var sums [][md5.Size]byte
	blocks := s.blocks()
	for _, b := range blocks {
		sums = append(sums, md5.Sum(s.Append(nil, b)))
	}
	size, perBlock, kind := s.Size, 0, hadoopKind(s.Kind)
	if len(blocks) > 1 {
		perBlock = s.blockSize / s.Size
	}
	if len(blocks) == 0 { // no block says how it was checksummed
		size, kind = 0, "CRC32"
	}
	return fmt.Sprintf("MD5-of-%dMD5-of-%d%s:%x", perBlock, size, kind, crc.FileMD5(sums))
}

// compositeText is the composite checksum as Hadoop prints it, from the chunk
// checksums of the blocks.
func compositeText(s fileShape) (string, error) {
	sum := uint32(0)
	for _, b := range s.blocks() {
		block, err := s.Compose(s.Append(nil, b), int64(len(b)))
		if err != nil {
			return "", err
		}
		sum = crc.Combine(s.Kind, sum, block, int64(len(b)))
	}
	return fmt.Sprintf("COMPOSITE-%s:0x%08x", hadoopKind(s.Kind), sum), nil
}

// composedSums compares the composition of a block's chunk checksums.
func composedSums(t *trial) error {
	for range someValues {
		c := crc.Chunks{Kind: t.kind(), Size: 1 + t.rng.IntN(1<<(1+t.rng.IntN(20)))}
		n := int64(c.Size)*int64(t.rng.IntN(40)) + int64(1+t.rng.IntN(c.Size))
		var sums []byte
		for range c.Count(n) {
			sums = binary.BigEndian.AppendUint32(sums, t.rng.Uint32())
		}
		last := (n-1)%int64(c.Size) + 1
		answer, refused := t.ask("composer", hadoopKind(c.Kind), c.Size, 0, sums, c.Size, last)
		if refused != nil {
			t.disagree("%+v, %d bytes: %v", c, n, refused)
			continue
		}
		sum, err := c.Compose(sums, n)
		if err != nil {
			t.disagree("%+v, %d bytes: %v", c, n, err)
			continue
		}
		t.same(fmt.Sprintf("%08x", sum), answer[0], "%+v, %d bytes", c, n)
	}
	return nil
}
