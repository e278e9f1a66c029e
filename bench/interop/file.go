package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet/client"
	"github.com/blockpath/blockpath/iouring/datanode"
)

var fileChecks = []check{
	{"file/replicas of a datanode: ours", replicasJudged},
	{"file/checksums", fileChecksums},
	{"file/blockpath checksum", checksumCommand},
	{"file/blockpath get from Hadoop", getCommand},
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
	if t.judge.files[s.String()] {
		return nil
	}
	t.judge.files[s.String()] = true
	if _, refused := t.ask("cluster.write", s.path(), hadoopKind(s.Kind), s.Size, s.blockSize, s.data()); refused != nil {
		return refused
	}
	return nil
}

// located lets Hadoop's client write the file, and returns where its first block is.
func (t *trial) located(s fileShape) (l hadoop.Located, err error) {
	if err := t.put(s); err != nil {
		return l, err
	}
	answer, refused := t.ask("cluster.locate", s.path())
	if refused != nil {
		return l, refused
	}
	return hadoop.ParseLocated(answer), nil
}

// replicasJudged compares what a real datanode stored with what we would.
func replicasJudged(t *trial) error {
	for _, s := range fileShapes() {
		if err := t.put(s); err != nil {
			return err
		}
		replicas, err := t.replicas(hadoop.Text(string(s.path())))
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
	report, err := datanode.Verify(context.Background(), []string{t.judge.clusterDir}, datanode.VerifyConfig{})
	if err != nil {
		return err
	}
	t.same(report.OK() && len(report.Misplaced) == 0, true, "the data directory of the datanode: %+v", report)
	return nil
}

// fileChecksums compares the checksums of whole files and of their first bytes,
// in both of HDFS's modes. Where a file is cut Hadoop computes the checksum of
// the last chunk anew.
func fileChecksums(t *trial) error {
	for _, s := range fileShapes() {
		if err := t.put(s); err != nil {
			return err
		}
		if err := t.sameChecksums(hadoop.Text(string(s.path())), s, "-"); err != nil {
			return err
		}
		if s.length < 2 || s.length > 1<<16 {
			continue
		}
		for range t.times(3) {
			cut := s
			cut.length = 1 + t.rng.IntN(s.length-1)
			if err := t.sameChecksums(hadoop.Text(string(s.path())), cut, cut.length); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameChecksums asks Hadoop for the checksums of a file in the cluster, or of
// its first length bytes if that is not "-"; they must be ours of s.
func (t *trial) sameChecksums(hexPath string, s fileShape, length any) error {
	return t.judgeChecksums(s, length != "-", func(mode string) ([]string, *hadoop.Refusal) {
		return t.ask("cluster.checksum", hexPath, mode, length)
	})
}

// judgeChecksums asks Hadoop for the checksums of a file, in both modes; they
// must be ours of s. cut says that the file goes on behind s.
func (t *trial) judgeChecksums(s fileShape, cut bool, ask func(mode string) ([]string, *hadoop.Refusal)) error {
	sum, err := t.fileSum(s)
	if err != nil {
		return err
	}
	answer, refused := ask("MD5MD5CRC")
	if refused != nil {
		return refused
	}
	if !cut {
		t.same(sum.MD5Name(), answer[0], "%v: name", s)
		// getBytes returns Hadoop's whole buffer, with zeros at the end
		b := hadoop.Bytes(answer[1])
		t.same(hadoop.Hex(append(sum.AppendMD5(nil), make([]byte, 4)...)), hadoop.Hex(b), "%v: bytes", s)
		t.same(fmt.Sprintf("%s:%x", sum.MD5Name(), sum.MD5), answer[2], "%v", s)
	} else { // the name tells the chunks of a whole block, if there are several
		t.same(fmt.Sprintf("%x", sum.MD5), answer[2][strings.Index(answer[2], ":")+1:], "%v: first bytes", s)
	}
	if answer, refused = ask("COMPOSITE_CRC"); refused != nil {
		return refused
	}
	if s.length == 0 { // of an empty file there is only the other one
		t.same(fmt.Sprintf("%s:%x", sum.MD5Name(), sum.MD5), answer[2], "%v", s)
		return nil
	}
	t.same(sum.CompositeName(), answer[0], "%v: name", s)
	t.same(hadoop.Hex(sum.AppendComposite(nil)), answer[1], "%v: bytes", s)
	t.same(fmt.Sprintf("%s:0x%08x", sum.CompositeName(), sum.CRC), answer[2], "%v", s)
	return nil
}

// checksumCommand compares what our command prints for a local file with what
// "hdfs dfs -checksum" prints for the same file in the cluster, but for the
// path.
func checksumCommand(t *trial) error {
	if err := t.mkdir(); err != nil {
		return err
	}
	command, err := buildCommand(filepath.Join(t.dir, "bin"))
	if err != nil {
		return err
	}
	for _, s := range fileShapes() {
		if err := t.put(s); err != nil {
			return err
		}
		local := filepath.Join(t.dir, "file")
		if err := os.WriteFile(local, s.data(), 0o644); err != nil {
			return err
		}
		for ours, theirs := range map[string]string{"md5": "MD5MD5CRC", "composite": "COMPOSITE_CRC"} {
			answer, refused := t.ask("cluster.shell", theirs, hadoop.Text("-checksum"), s.path())
			if refused != nil {
				return refused
			}
			out, err := exec.Command(command, "checksum", "--mode", ours, "--checksum", s.Kind.String(),
				"--bytes-per-checksum", fmt.Sprint(s.Size), "--block-size", fmt.Sprint(s.blockSize), local).Output()
			if err != nil {
				t.disagree("%v: blockpath checksum: %v", s, err)
				continue
			}
			t.same(strings.ReplaceAll(string(out), local, string(s.path())), string(hadoop.Bytes(answer[1])), "%v: %s", s, ours)
		}
	}
	return nil
}

// getCommand fetches files that Hadoop's client has written from Hadoop's
// datanodes with "blockpath get". The manifest has the file's checksums from
// Hadoop, with which the command compares what it gets.
func getCommand(t *trial) error {
	command, err := buildCommand(filepath.Join(t.dir, "bin"))
	if err != nil {
		return err
	}
	for _, s := range []fileShape{
		{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 1 << 20, 3<<20 + 77},
		{crc.Chunks{Kind: crc.CRC32, Size: 4096}, 1 << 20, 1<<20 + 4097},
		{crc.Chunks{Kind: crc.CRC32, Size: 7}, 14, 113},
		{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 1024, 1},
	} {
		if err := t.put(s); err != nil {
			return err
		}
		manifest, err := t.manifest(s)
		if err != nil {
			return err
		}
		args := []string{"get", manifest, "-o", filepath.Join(t.dir, "got")}
		nodes, refused := t.ask("cluster.nodes")
		if refused != nil {
			return refused
		}
		for _, n := range nodes { // the replica of a block is on one of them
			args = append(args, "--from", hadoop.Addr(hadoop.ParseNode(n)))
		}
		data := s.data()
		from := len(data) / 3
		for _, part := range []struct {
			flags []string
			want  []byte
		}{{nil, data}, {[]string{"--offset", fmt.Sprint(from), "--length", fmt.Sprint(len(data) - 2*from)}, data[from : len(data)-from]}} {
			out, err := exec.Command(command, append(args, part.flags...)...).CombinedOutput()
			if err != nil {
				t.disagree("%v: blockpath get %v: %v: %s", s, part.flags, err, out)
				continue
			}
			got, err := os.ReadFile(filepath.Join(t.dir, "got"))
			if err != nil {
				return err
			}
			t.same(bytes.Equal(got, part.want), true, "%v: blockpath get %v", s, part.flags)
		}
	}
	return nil
}

// manifest writes what Hadoop says of a file as a manifest.
func (t *trial) manifest(s fileShape) (path string, err error) {
	l, err := t.located(s)
	if err != nil {
		return "", err
	}
	m := client.NewManifest(l.Block.Pool, s.Chunks)
	f := client.File{Name: "file", Length: int64(s.length)}
	replicas, err := t.replicas(hadoop.Text(string(s.path())))
	if err != nil {
		return "", err
	}
	for i, block := range s.blocks() {
		id, stamp, ok := datanode.ParseMetaName(filepath.Base(replicas[i][0].meta))
		if !ok {
			return "", fmt.Errorf("%s is no .meta file", replicas[i][0].meta)
		}
		f.Blocks = append(f.Blocks, client.Block{
			ID: id, Stamp: stamp, Length: int64(len(block)), CRC: fmt.Sprintf("%08x", crc.Checksum(s.Kind, block)),
		})
	}
	for mode, to := range map[string]*string{"MD5MD5CRC": &f.MD5, "COMPOSITE_CRC": &f.Composite} {
		answer, refused := t.ask("cluster.checksum", s.path(), mode, "-")
		if refused != nil {
			return "", refused
		}
		*to = answer[2]
	}
	m.Files = []client.File{f}
	path = filepath.Join(t.dir, "manifest")
	out, err := os.Create(path)
	if err != nil {
		return "", err
	}
	return path, errors.Join(m.Write(out), out.Close())
}

// fileSum computes the checksums of a file from those of its chunks, which
// come in pieces.
func (t *trial) fileSum(s fileShape) (crc.FileSum, error) {
	var blocks []crc.BlockSum
	for _, data := range s.blocks() {
		b := crc.NewBlockSummer(s.Chunks)
		for sums := s.Append(nil, data); len(sums) > 0; {
			n := 4 * (1 + t.rng.IntN(len(sums)/4))
			b.Add(sums[:n])
			sums = sums[n:]
		}
		sum, err := b.Sum(int64(len(data)))
		if err != nil {
			return crc.FileSum{}, err
		}
		blocks = append(blocks, sum)
	}
	return crc.NewFileSum(s.Chunks, blocks), nil
}

// composedSums compares the composition of a block's chunk checksums.
func composedSums(t *trial) error {
	for range t.times(someValues) {
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
