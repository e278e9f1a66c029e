package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring/datanode"
)

var clientChecks = []check{
	{"peer/Hadoop's reader from us", hadoopReads},
	{"peer/Hadoop's writer to us", hadoopWrites},
	{"peer/Hadoop's writer to us: append", hadoopAppends},
}

// A stored block is one that a node of ours has.
type stored struct {
	shape
	id   int64
	data []byte
}

// hadoopReads lets Hadoop's BlockReaderRemote read from "blockpath serve": from
// every boundary of a block, its chunks and its packets to every other one,
// verified and not, at once and in pieces.
func hadoopReads(t *trial) (err error) {
	command, err := buildCommand(filepath.Join(t.dir, "bin"))
	if err != nil {
		return err
	}
	dir := filepath.Join(t.dir, "data")
	blocks, err := t.store(dir)
	if err != nil {
		return err
	}
	node, err := startServe(command, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.stop()) }()
	reused := 0
	for _, b := range blocks {
		ranges := b.ranges()
		for range t.times(5) {
			from := t.rng.IntN(b.length)
			ranges = append(ranges, [2]int{from, 1 + from + t.rng.IntN(b.length-from)})
		}
		for i, r := range ranges {
			from, n := r[0], r[1]-r[0]
			piece := n
			if i%3 == 2 {
				piece = 1 + max(n/7, t.rng.IntN(n))
			}
			answer, refused := t.ask("reader.read", hadoop.NodeText(node.info()), hadoop.Text(pool), b.id, 1001, b.length, from, n, i%4 != 3, piece)
			if refused != nil {
				t.disagree("%v: %d bytes from %d: %v", b.shape, n, from, refused)
				continue
			}
			t.same(fmt.Sprintf("%d %x", n, sha256.Sum256(b.data[from:from+n])), strings.Join(answer[:2], " "), "%v: %d bytes from %d, %d at a time", b.shape, n, from, piece)
			if answer[2] == "true" {
				reused++
			}
		}
		// beyond the end, and a block that is not there
		for _, q := range [][3]int64{{b.id, 0, int64(b.length) + 1}, {b.id, int64(b.length) + 1, 1}, {b.id + 1<<40, 0, 1}} {
			if answer, refused := t.ask("reader.read", hadoop.NodeText(node.info()), hadoop.Text(pool), q[0], 1001, b.length, q[1], q[2], true, q[2]); refused == nil {
				t.disagree("%v: block %d, %d bytes from %d: %v", b.shape, q[0], q[2], q[1], answer)
			} else {
				t.same(strings.HasPrefix(refused.Exception, "IOException: Got error, status"), true, "%v: refusal: %v", b.shape, refused)
			}
		}
	}
	t.same(reused > 0, true, "a connection carries several requests")
	return nil
}

// store lets our store write blocks to dir.
func (t *trial) store(dir string) (blocks []stored, err error) {
	store, err := datanode.OpenStore(datanode.StoreConfig{Dirs: []string{dir}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	for _, k := range []crc.Kind{crc.CRC32C, crc.CRC32, crc.None} {
		for _, size := range []int{512, 4096, 7, 1} {
			for _, length := range []int{1, 511, 512, 513, 65536, 1<<20 + 77} {
				if size == 1 && length > 65536 {
					continue
				}
				b := stored{shape{crc.Chunks{Kind: k, Size: size}, length}, int64(len(blocks) + 1), t.bytes(length)}
				if _, err := t.write(store, b.id, b.Chunks, b.data); err != nil {
					return nil, err
				}
				blocks = append(blocks, b)
			}
		}
	}
	return blocks, nil
}

// ranges returns from where to where to read: from every boundary to every later
// one, of a long block only between some.
func (b stored) ranges() (all [][2]int) {
	const packetData = 252 << 10 // of a packet, if chunks have 512 bytes
	var bounds []int
	for _, at := range []int{0, 1, b.Size - 1, b.Size, b.Size + 1, b.length / 2, packetData - 1, packetData, packetData + 1, b.length - b.Size, b.length - 1, b.length} {
		if at >= 0 && at <= b.length {
			bounds = append(bounds, at)
		}
	}
	slices.Sort(bounds)
	bounds = slices.Compact(bounds)
	for i, from := range bounds {
		for _, to := range bounds[i+1:] {
			all = append(all, [2]int{from, to})
		}
	}
	return all
}

// A javaFile is a file that Hadoop's client writes.
type javaFile struct {
	fileShape
	name     string
	settings []string // of the client, KEY=VALUE
	flushes  []int    // offsets at which to hflush, every second time hsync
	beats    int      // after each flush it is idle until so many heartbeats are acked
	ahead    int      // so many packets have to be under way before the first is acked
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
	const packetSize = "dfs.client-write-packet-size="
	// A client's buffers are managed as the first client of its context was told.
	const byteArrays = "dfs.client.write.byte-array-manager."
	managed := []string{"dfs.client.context=managed", byteArrays + "enabled=true", byteArrays + "count-threshold=4", byteArrays + "count-limit=16"}
	for _, f := range []javaFile{
		{fileShape: fileShape{c(crc.CRC32C, 512), mib, 3*mib + 77}, name: "blocks"},
		{fileShape: fileShape{c(crc.CRC32, 512), mib, 3*mib + 77}, name: "crc32"},
		{fileShape: fileShape{c(crc.None, 512), mib, mib + 1}, name: "none"},
		{fileShape: fileShape{c(crc.CRC32C, 512), mib, mib}, name: "full"},
		{fileShape: fileShape{c(crc.CRC32C, 512), mib, 1}, name: "byte"},
		{fileShape: fileShape{c(crc.CRC32C, 4096), mib, mib + 4097}, name: "chunks-4096", flushes: []int{5000}},
		{fileShape: fileShape{c(crc.CRC32, 7), 7000, 7100}, name: "chunks-7", flushes: []int{3, 8, 50, 7005}},
		{fileShape: fileShape{c(crc.CRC32C, 512), mib, 2*mib + 300000}, name: "flushed", flushes: []int{1, 100, 512, 700, 701, 66000, 66000, 200000, 200512, mib, mib + 10, 2*mib + 513}},
		{fileShape: fileShape{c(crc.CRC32C, 512), 16 * mib, 9*mib + 5}, name: "packets-1m", settings: []string{packetSize + "1048576"}},
		{fileShape: fileShape{c(crc.CRC32C, 512), 16 * mib, 3*mib + 5}, name: "packets-128k", settings: []string{packetSize + "131072"}},
		{fileShape: fileShape{c(crc.CRC32C, 512), 16 * mib, 2 * mib}, name: "packets-small", settings: []string{packetSize + "1024"}, ahead: aheadPackets},
		{fileShape: fileShape{c(crc.CRC32, 512), 16 * mib, 9*mib + 5}, name: "ahead", ahead: aheadPackets},
		{fileShape: fileShape{c(crc.CRC32C, 512), 16 * mib, 9*mib + 5}, name: "byte-arrays", settings: managed, flushes: []int{mib + 3}},
		{fileShape: fileShape{c(crc.CRC32C, 512), 16 * mib, 20*mib + 5}, name: "byte-arrays-1m", settings: append([]string{packetSize + "1048576"}, managed...)},
		{fileShape: fileShape{c(crc.CRC32C, 512), mib, 5000}, name: "heartbeats", settings: []string{"dfs.client.socket-timeout=1000"}, flushes: []int{700, 1500}, beats: 2},
	} {
		if err := t.javaWrites(f, own); err != nil {
			return err
		}
	}
	return nil
}

// hadoopAppends lets Hadoop's client append to files on a node of ours, at the end
// of a chunk and in the middle of one, with flushes in the chunk that was there.
// It appends CRC32C whatever the file has: the node must keep to what is there.
func hadoopAppends(t *trial) (err error) {
	own, err := startOwnNode(t.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.close()) }()
	if _, refused := t.ask("client.start", hadoop.NodeText(own.info())); refused != nil {
		return refused
	}
	for i, a := range []struct {
		kind    crc.Kind
		lengths []int // after which it is closed and opened again
		flushes []int // behind the last of them
		end     int
	}{
		{crc.CRC32C, []int{200}, nil, 700},
		{crc.CRC32C, []int{200}, []int{250, 300, 512}, 700},
		{crc.CRC32, []int{1024}, []int{1025, 1537}, 71024},
		{crc.CRC32C, []int{1, 2, 511, 512, 513}, []int{700}, 100000},
		{crc.CRC32C, []int{1<<20 - 3, 1 << 20, 1<<20 + 5}, []int{1<<20 + 6}, 2<<20 + 1},
	} {
		f := javaFile{fileShape: fileShape{crc.Chunks{Kind: a.kind, Size: 512}, 1 << 20, a.end}, name: fmt.Sprint("append-", i)}
		path, data := hadoop.Text("/"+f.name), f.data()
		questions := [][]any{{"client.create", path, hadoopKind(f.Kind), f.Size, f.blockSize}}
		at := 0
		for _, n := range a.lengths {
			questions = append(questions, []any{"client.write", data[at:n]}, []any{"client.close"}, []any{"client.append", path})
			at = n
		}
		for _, n := range a.flushes {
			questions = append(questions, []any{"client.write", data[at:n]}, []any{"client.hflush"})
			at = n
		}
		questions = append(questions, []any{"client.write", data[at:]}, []any{"client.close"})
		for _, q := range questions {
			if _, refused := t.ask(q[0].(string), q[1:]...); refused != nil {
				return fmt.Errorf("%v: %s: %w", f, q[0], refused)
			}
		}
		if err := t.judgeJavaFile(f, path, own); err != nil {
			return err
		}
	}
	return nil
}

// packetLen is how long the client's packets are, by its settings.
func (f javaFile) packetLen() int {
	size := packet.DefaultPacketSize
	for _, s := range f.settings {
		if n, ok := strings.CutPrefix(s, "dfs.client-write-packet-size="); ok {
			size, _ = strconv.Atoi(n)
		}
	}
	n := min(packet.PacketChunks(size, f.Chunks)*f.Size, f.blockSize)
	return 31 + n + f.SumsLen(n)
}

func (t *trial) javaWrites(f javaFile, own *ownNode) (err error) {
	between, err := startTap(own.addr.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, between.close()) }()
	args := []any{hadoop.NodeText(between.before(own.info()))}
	for _, s := range f.settings {
		args = append(args, s)
	}
	if _, refused := t.ask("client.start", args...); refused != nil {
		return refused
	}
	between.holdUntil(f.ahead)
	if answer, refused := t.ask("client.byteArrays"); refused != nil {
		return refused
	} else if slices.Contains(f.settings, "dfs.client.context=managed") {
		t.same(answer[0], "Impl", "%v: manager of its buffers", f)
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
		if err := between.wait(func(seen traffic) bool { return seen.beats >= f.beats*(i+1) }); err != nil {
			return fmt.Errorf("%v: acks of heartbeats: %w", f, err)
		}
	}
	if _, refused := t.ask("client.write", data[at:]); refused != nil {
		t.disagree("%v: write: %v", f, refused)
		return nil
	}
	if _, refused := t.ask("client.close"); refused != nil {
		t.disagree("%v: close: %v", f, refused)
		return nil
	}
	seen := between.traffic()
	t.same(seen.refused, 0, "%v: packets refused", f)
	syncs := 0
	for i, to := range f.flushes {
		if i%2 == 1 && to%f.blockSize != 0 { // at the end of a block Hadoop's client has nothing more to say
			syncs++
		}
	}
	t.same(seen.syncs, syncs, "%v: packets that ask for a sync", f)
	if f.length > 2*f.packetLen() && len(f.flushes) == 0 {
		t.same(f.packetLen(), seen.longest, "%v: longest packet", f)
	}
	if f.ahead > 0 { // it waits when more are queued
		t.same(seen.most == f.ahead || seen.most == f.ahead+1, true, "%v: packets under way together: %d", f, seen.most)
	}
	return t.judgeJavaFile(f, path, own)
}

// flushed reads the block that Hadoop's client is writing with Hadoop's reader
// and ours: everything up to the flush is there.
func (t *trial) flushed(f javaFile, hexPath string, own *ownNode, n int) error {
	blocks, err := t.clientBlocks(hexPath)
	if err != nil {
		return err
	}
	start := (len(blocks) - 1) * f.blockSize
	b := blocks[len(blocks)-1]
	answer, refused := t.ask("reader.read", hadoop.NodeText(own.info()), hadoop.Text(b.Pool), b.ID, b.Stamp, n-start, 0, n-start, true, n-start)
	if refused != nil {
		t.disagree("%v: Hadoop's read up to the flush at %d: %v", f, n, refused)
	} else {
		t.same(fmt.Sprintf("%d %x", n-start, sha256.Sum256(f.data()[start:n])), strings.Join(answer[:2], " "), "%v: what is flushed at %d", f, n)
	}
	got, err := readBlock(own.addr.String(), b, packet.Token{}, int64(n-start))
	if err != nil {
		t.disagree("%v: read up to the flush at %d: %v", f, n, err)
		return nil
	}
	t.same(bytes.Equal(got, f.data()[start:n]), true, "%v: what is flushed at %d", f, n)
	return nil
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
