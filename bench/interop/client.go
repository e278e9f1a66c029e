package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

var clientChecks = []check{
	{"peer/Hadoop's reader from us", hadoopReads},
	{"peer/Hadoop's writer to us", hadoopWrites},
}

// hadoopReads lets Hadoop's BlockReaderRemote read ranges of blocks from a node
// of ours.
func hadoopReads(t *trial) (err error) {
	own, err := startOwnNode(t.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.close()) }()
	id := int64(0)
	reused := 0
	for _, k := range []crc.Kind{crc.CRC32C, crc.CRC32, crc.None} {
		for _, size := range []int{512, 4096, 7, 1} {
			for _, length := range []int{1, 511, 512, 513, 65536, 1<<20 + 77} {
				if size == 1 && length > 65536 {
					continue
				}
				id++
				data := t.bytes(length)
				r, err := t.write(own.store, id, crc.Chunks{Kind: k, Size: size}, data)
				if err != nil {
					return err
				}
				what := fmt.Sprintf("%v/%d, %d bytes", k, size, length)
				for i := range 12 {
					from := t.rng.IntN(length)
					n := 1 + t.rng.IntN(length-from)
					if i == 0 {
						from, n = 0, length
					}
					answer, refused := t.ask("reader.read", hadoop.NodeText(own.info()), hadoop.Text(pool), id, 1001, length, from, n, i%4 != 3)
					if refused != nil {
						t.disagree("%s: %d bytes from %d: %v", what, n, from, refused)
						continue
					}
					t.same(fmt.Sprintf("%d %x", n, sha256.Sum256(data[from:from+n])), strings.Join(answer[:2], " "), "%s: %d bytes from %d of %s", what, n, from, filepath.Base(r.block))
					if answer[2] == "true" {
						reused++
					}
				}
				// beyond the end, and a block that is not there
				for _, q := range [][3]int64{{id, 0, int64(length) + 1}, {id, int64(length) + 1, 1}, {id + 1<<40, 0, 1}} {
					if answer, refused := t.ask("reader.read", hadoop.NodeText(own.info()), hadoop.Text(pool), q[0], 1001, length, q[1], q[2], true); refused == nil {
						t.disagree("%s: block %d, %d bytes from %d: %v", what, q[0], q[2], q[1], answer)
					} else {
						t.same(strings.HasPrefix(refused.Exception, "IOException: Got error, status"), true, "%s: hadoop.Refusal: %v", what, refused)
					}
				}
			}
		}
	}
	t.same(reused > 0, true, "a connection carries several requests")
	return nil
}

// A javaFile is a file that Hadoop's client writes.
type javaFile struct {
	fileShape
	name     string
	settings []string // of the client, KEY=VALUE
	flushes  []int    // offsets at which to hflush, every second time hsync
	idle     time.Duration
}

func (f javaFile) String() string {
	return fmt.Sprintf("%s (%v, %v)", f.name, f.fileShape, f.settings)
}

// hadoopWrites lets a whole client of Hadoop write to a node of ours, through
// its DataStreamer, and read back.
func hadoopWrites(t *trial) (err error) {
	own, err := startOwnNode(t.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.close()) }()
	const mib = 1 << 20
	c := func(k crc.Kind, size int) crc.Chunks { return crc.Chunks{Kind: k, Size: size} }
	for _, f := range []javaFile{
		{fileShape{c(crc.CRC32C, 512), mib, 3*mib + 77}, "blocks", nil, nil, 0},
		{fileShape{c(crc.CRC32, 512), mib, 3*mib + 77}, "crc32", nil, nil, 0},
		{fileShape{c(crc.None, 512), mib, mib + 1}, "none", nil, nil, 0},
		{fileShape{c(crc.CRC32C, 512), mib, mib}, "full", nil, nil, 0},
		{fileShape{c(crc.CRC32C, 512), mib, 1}, "byte", nil, nil, 0},
		{fileShape{c(crc.CRC32C, 4096), mib, mib + 4097}, "chunks-4096", nil, []int{5000}, 0},
		{fileShape{c(crc.CRC32, 7), 7000, 7100}, "chunks-7", nil, []int{3, 8, 50, 7005}, 0},
		{fileShape{c(crc.CRC32C, 512), mib, 2*mib + 300000}, "flushed", nil, []int{1, 100, 512, 700, 701, 66000, 66000, 200000, 200512, mib, mib + 10, 2*mib + 513}, 0},
		{fileShape{c(crc.CRC32C, 512), 16 * mib, 9*mib + 5}, "packets-1m", []string{"dfs.client-write-packet-size=1048576"}, nil, 0},
		{fileShape{c(crc.CRC32C, 512), 16 * mib, 9 * mib}, "packets-small", []string{"dfs.client-write-packet-size=1024"}, nil, 0},
		{fileShape{c(crc.CRC32C, 512), 16 * mib, 9*mib + 5}, "byte-arrays", []string{
			"dfs.client.write.byte-array-manager.enabled=true", "dfs.client.write.byte-array-manager.count-threshold=4", "dfs.client.write.byte-array-manager.count-limit=16",
		}, []int{mib + 3}, 0},
		{fileShape{c(crc.CRC32C, 512), mib, 5000}, "heartbeats", []string{"dfs.client.socket-timeout=1000"}, []int{700, 1500}, 1200 * time.Millisecond},
	} {
		if err := t.javaWrites(f, own); err != nil {
			return err
		}
	}
	return nil
}

func (t *trial) javaWrites(f javaFile, own *ownNode) error {
	args := []any{hadoop.NodeText(own.info())}
	for _, s := range f.settings {
		args = append(args, s)
	}
	if _, refused := t.ask("client.start", args...); refused != nil {
		return refused
	}
	path := hadoop.Text("/" + f.name)
	if _, refused := t.ask("client.create", path, hadoopKind(f.Kind), f.Size, f.blockSize); refused != nil {
		return refused
	}
	data := f.data()
	at := 0
	for i, to := range f.flushes {
		if _, refused := t.ask("client.write", data[at:to]); refused != nil {
			t.disagree("%v: write: %v", f, refused)
			return nil
		}
		at = to
		flush := [...]string{"client.hflush", "client.hsync"}[i%2]
		if _, refused := t.ask(flush); refused != nil {
			t.disagree("%v: %s at %d: %v", f, flush, to, refused)
			return nil
		}
		if err := t.flushed(f, path, own, to); err != nil {
			return err
		}
		time.Sleep(f.idle)
	}
	if _, refused := t.ask("client.write", data[at:]); refused != nil {
		t.disagree("%v: write: %v", f, refused)
		return nil
	}
	if _, refused := t.ask("client.close"); refused != nil {
		t.disagree("%v: close: %v", f, refused)
		return nil
	}
	return t.judgeJavaFile(f, path, own)
}

// flushed reads the block that Hadoop's client is writing with our reader:
// everything up to the flush is there.
func (t *trial) flushed(f javaFile, hexPath string, own *ownNode, n int) error {
	blocks, err := t.clientBlocks(hexPath)
	if err != nil {
		return err
	}
	start := (len(blocks) - 1) * f.blockSize
	got, err := own.read(blocks[len(blocks)-1], n-start)
	if err != nil {
		t.disagree("%v: read up to the flush at %d: %v", f, n, err)
		return nil
	}
	t.same(bytes.Equal(got, f.data()[start:n]), true, "%v: what is flushed at %d", f, n)
	return nil
}

// read reads the first n bytes of a block with our reader.
func (n *ownNode) read(b packet.Block, length int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := net.Dial("tcp", n.addr.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	r, err := packet.NewReader(ctx, conn, packet.ReadBlock{
		Block: b, ClientName: "blockpath-interop", Length: int64(length), SendChecksums: true,
	}, packet.ReaderConfig{AllowNone: true})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// clientBlocks returns the blocks of a file that Hadoop's client wrote.
func (t *trial) clientBlocks(hexPath string) (all []packet.Block, err error) {
	answer, refused := t.ask("client.blocks", hexPath)
	if refused != nil {
		return nil, refused
	}
	for ; len(answer) > 0; answer = answer[4:] {
		all = append(all, packet.Block{Pool: string(hadoop.Bytes(answer[0])), ID: hadoop.Int(answer[1]), Stamp: hadoop.Int(answer[2]), NumBytes: hadoop.Int(answer[3])})
	}
	return all, nil
}

func (t *trial) judgeJavaFile(f javaFile, hexPath string, own *ownNode) error {
	blocks, err := t.clientBlocks(hexPath)
	if err != nil {
		return err
	}
	want := f.blocks()
	t.same(len(blocks), len(want), "%v: blocks", f)
	for i, b := range blocks {
		t.same(b.NumBytes, len(want[i]), "%v: length of block %d", f, i)
		t.sameReplica(own.replica(b), want[i], metaOf(f.Chunks, want[i]), "%v: block %d", f, i)
	}
	answer, refused := t.ask("client.read", hexPath)
	if refused != nil {
		t.disagree("%v: read: %v", f, refused)
		return nil
	}
	t.same(fmt.Sprintf("%d %x", f.length, sha256.Sum256(f.data())), strings.Join(answer, " "), "%v: read back", f)
	return nil
}
