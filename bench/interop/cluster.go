package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring/datanode"
)

var clusterChecks = []check{
	{"peer/our writer to Hadoop's datanode", writerToDatanode},
	{"peer/our writer: append", writerAppends},
	{"peer/our reader from Hadoop", readerFromDatanode},
}

// clusterNodes is how many datanodes the cluster has.
const clusterNodes = 3

// startCluster starts the cluster unless it runs already.
func (t *trial) startCluster() error {
	if t.judge.files != nil {
		return nil
	}
	if err := t.mkdir(); err != nil {
		return err
	}
	if _, refused := t.ask("cluster.start", hadoop.Text(t.dir), clusterNodes); refused != nil {
		return refused
	}
	t.judge.files = map[string]bool{}
	t.judge.clusterDir = t.dir
	return nil
}

// A goFile is a file that our client writes.
type goFile struct {
	fileShape
	name       string
	packetSize int
	nodes      int   // of the pipeline
	flushes    []int // offsets in each block at which to flush, every second time to sync
}

func (f goFile) String() string {
	return fmt.Sprintf("%s (%v, packets of %d, %d nodes)", f.name, f.fileShape, f.packetSize, f.nodes)
}

func (f goFile) hdfsPath() string { return hadoop.Text("/" + f.name) }

func (f goFile) config() packet.StreamConfig {
	return packet.StreamConfig{Chunks: f.Chunks, PacketSize: f.packetSize}
}

// patience bounds what waits for Hadoop.
const patience = 60 * time.Second

// stream writes data to w, flushing and syncing where f says. flushed is called
// after each flush with the block's visible length.
func (f goFile) stream(ctx context.Context, w *packet.Writer, data []byte, flushed func(int) error) error {
	at := 0
	for i, to := range f.flushes {
		if to > len(data) {
			break
		}
		if _, err := w.Write(data[at:to]); err != nil {
			return err
		}
		at = to
		flush := w.Flush
		if i%2 == 1 {
			flush = w.Sync
		}
		if err := flush(ctx); err != nil {
			return err
		}
		if err := flushed(to); err != nil {
			return err
		}
	}
	if _, err := w.ReadFrom(bytes.NewReader(data[at:])); err != nil && !errors.Is(err, packet.ErrBlockFull) {
		return err
	}
	return w.Close()
}

// put writes one block to the pipeline of l.
func (f goFile) put(ctx context.Context, l hadoop.Located, data []byte, flushed func(int) error) (packet.Block, error) {
	conn, err := net.Dial("tcp", hadoop.Addr(l.Nodes[0]))
	if err != nil {
		return packet.Block{}, err
	}
	w, err := packet.NewWriter(ctx, conn, l.Request(packet.SetupCreate, int64(f.blockSize)), packet.WriterConfig{
		StreamConfig: f.config(), Nodes: l.Addrs(),
	})
	if err != nil {
		return packet.Block{}, err
	}
	defer w.Abort()
	if err := f.stream(ctx, w, data, flushed); err != nil {
		return packet.Block{}, err
	}
	return w.Block(), nil
}

// writeFile writes f to the cluster with our client, and the same blocks to our
// own node. It returns them as they are located.
func (t *trial) writeFile(ctx context.Context, f goFile, own *ownNode) ([]hadoop.Located, error) {
	answer, refused := t.ask("cluster.create", f.hdfsPath(), f.nodes, f.blockSize)
	if refused != nil {
		return nil, refused
	}
	id := answer[0]
	var all []hadoop.Located
	before := ""
	for i, data := range f.blocks() {
		if answer, refused = t.ask("cluster.addBlock", f.hdfsPath(), strings.TrimSpace(id+" "+before)); refused != nil {
			return nil, refused
		}
		l := hadoop.ParseLocated(answer)
		if len(l.Nodes) != f.nodes {
			return nil, fmt.Errorf("%v: %d nodes for block %d", f, len(l.Nodes), i)
		}
		b, err := f.put(ctx, l, data, func(n int) error {
			if f.blockSize*i+n > 8<<20 {
				return nil
			}
			return t.visible(f, f.blockSize*i+n)
		})
		if err != nil {
			return nil, fmt.Errorf("%v: block %d: %w", f, i, err)
		}
		if own != nil {
			if _, err := f.put(ctx, l.At(own.info()), data, func(int) error { return nil }); err != nil {
				return nil, fmt.Errorf("%v: block %d on our node: %w", f, i, err)
			}
		}
		l.Block = b
		all = append(all, l)
		before = hadoop.BlockText(b)
	}
	if _, refused = t.ask("cluster.complete", f.hdfsPath(), id, before); refused != nil {
		return nil, refused
	}
	return all, nil
}

// visible lets Hadoop's client read what is visible of f, which must be n bytes.
func (t *trial) visible(f goFile, n int) error {
	answer, refused := t.ask("cluster.read", f.hdfsPath())
	if refused != nil {
		t.disagree("%v: read up to %d: %v", f, n, refused)
		return nil
	}
	t.same(fmt.Sprintf("%d %x", n, sha256.Sum256(f.data()[:n])), strings.Join(answer, " "), "%v: visible", f)
	return nil
}

// judgeFile compares everything that Hadoop says about a file that our client
// has written.
func (t *trial) judgeFile(f goFile, all []hadoop.Located, own *ownNode) error {
	if err := t.visible(f, f.length); err != nil {
		return err
	}
	if err := t.sameChecksums(f.hdfsPath(), f.fileShape, "-"); err != nil {
		return err
	}
	replicas, err := t.replicas(f.hdfsPath())
	if err != nil {
		return err
	}
	blocks := f.blocks()
	t.same(len(all), len(replicas), "%v: blocks", f)
	for i, block := range blocks {
		t.same(len(replicas[i]) >= min(f.nodes, 2), true, "%v: replicas of block %d: %d", f, i, len(replicas[i]))
		for _, r := range replicas[i] {
			t.sameReplica(r, block, metaOf(f.Chunks, block), "%v: block %d: %s", f, i, r.block)
			if ok, said := t.verifyMeta(r); !ok {
				t.disagree("%v: block %d: verifyMeta: %s", f, i, said)
			}
		}
		if own != nil {
			t.sameReplica(own.replica(all[i].Block), block, metaOf(f.Chunks, block), "%v: block %d in our store", f, i)
		}
	}
	return nil
}

func (t *trial) sameReplica(r replica, block, meta []byte, what string, args ...any) {
	for path, want := range map[string][]byte{r.block: block, r.meta: meta} {
		got, err := os.ReadFile(path)
		if err != nil {
			t.disagree("%s: %v", fmt.Sprintf(what, args...), err)
			continue
		}
		if bytes.Equal(got, want) {
			t.agreed++
		} else {
			t.disagree("%s: %s has %d bytes, expected %d", fmt.Sprintf(what, args...), filepath.Base(path), len(got), len(want))
		}
	}
}

// replicas returns the files of all replicas of every block of a file.
func (t *trial) replicas(hexPath string) (all [][]replica, err error) {
	answer, refused := t.ask("cluster.replicas", hexPath)
	if refused != nil {
		return nil, refused
	}
	for len(answer) > 0 {
		n := int(hadoop.Int(answer[0]))
		answer = answer[1:]
		var rs []replica
		for range n {
			rs = append(rs, replica{string(hadoop.Bytes(answer[0])), string(hadoop.Bytes(answer[1]))})
			answer = answer[2:]
		}
		all = append(all, rs)
	}
	return all, nil
}

// An ownNode is a datanode of ours in this process.
type ownNode struct {
	store    *datanode.Store
	server   *datanode.Server
	listener *net.TCPListener
	addr     *net.TCPAddr
}

func startOwnNode(dir string) (*ownNode, error) {
	return startOwnNodeWith(dir, datanode.ServerConfig{})
}

func startOwnNodeWith(dir string, cfg datanode.ServerConfig) (*ownNode, error) {
	store, err := datanode.OpenStore(datanode.StoreConfig{Dirs: []string{dir}})
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	n := &ownNode{addr: l.Addr().(*net.TCPAddr)}
	n.serve(store, l.(*net.TCPListener), cfg)
	return n, nil
}

func (n *ownNode) serve(store *datanode.Store, l *net.TCPListener, cfg datanode.ServerConfig) {
	n.store, n.server, n.listener = store, datanode.NewServer(store, cfg), l
	go n.server.Serve(l)
}

func (n *ownNode) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return errors.Join(n.server.Shutdown(ctx), n.store.Close())
}

func (n *ownNode) info() packet.DatanodeInfo {
	return packet.DatanodeInfo{IPAddr: n.addr.IP.String(), HostName: "localhost", UUID: fmt.Sprint("ours-", n.addr.Port), XferPort: uint32(n.addr.Port)}
}

// replica returns the files of a finalized block.
func (n *ownNode) replica(b packet.Block) replica {
	dir := filepath.Join(n.store.Dirs()[0], "current", b.Pool, "current", "finalized",
		fmt.Sprintf("subdir%d", b.ID>>16&31), fmt.Sprintf("subdir%d", b.ID>>8&31))
	return replica{filepath.Join(dir, datanode.BlockName(b.ID)), filepath.Join(dir, datanode.MetaName(b.ID, b.Stamp))}
}

// writerToDatanode streams files of several shapes to real datanodes and to a
// node of ours. Hadoop's client must read them, and both must store the same.
func writerToDatanode(t *trial) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := t.startCluster(); err != nil {
		return err
	}
	own, err := startOwnNode(filepath.Join(t.dir, "own"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.close()) }()
	const mib = 1 << 20
	c512, crc32 := crc.Chunks{Kind: crc.CRC32C, Size: 512}, crc.Chunks{Kind: crc.CRC32, Size: 512}
	for _, f := range []goFile{
		{fileShape{c512, mib, 3*mib + 77}, "blocks", packet.DefaultPacketSize, 1, nil},
		{fileShape{crc32, mib, 3*mib + 77}, "crc32", mib, 1, nil},
		{fileShape{c512, 4 * mib, 4*mib + 1}, "adaptive", 0, 1, nil},
		{fileShape{c512, mib, mib}, "full", mib, 1, nil},
		{fileShape{c512, mib, 1}, "byte", packet.DefaultPacketSize, 1, nil},
		{fileShape{c512, mib, mib + 300000}, "flushed", packet.DefaultPacketSize, 1, []int{1, 100, 512, 700, 701, 66000, 66000, 200000, 200512}},
		{fileShape{crc32, mib, mib + 5000}, "flushed-pipeline", mib, 3, []int{77, 1000, 3000, 4097}},
		{fileShape{c512, mib, 2*mib + 12345}, "pipeline", packet.DefaultPacketSize, 3, nil},
		{fileShape{crc.Chunks{Kind: crc.CRC32C, Size: 4096}, mib, mib + 4097}, "chunks-4096", packet.DefaultPacketSize, 2, []int{10, 5000}},
		{fileShape{crc.Chunks{Kind: crc.CRC32, Size: 7}, 7 * 1000, 7*1000 + 100}, "chunks-7", packet.DefaultPacketSize, 2, []int{3, 8, 50}},
	} {
		all, err := t.writeFile(ctx, f, own)
		if err != nil {
			return err
		}
		if err := t.judgeFile(f, all, own); err != nil {
			return err
		}
	}
	return nil
}

// writerAppends appends to files, at the end of a chunk and in the middle of
// one, with a flush inside the chunk that was there.
func writerAppends(t *trial) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := t.startCluster(); err != nil {
		return err
	}
	own, err := startOwnNode(filepath.Join(t.dir, "own"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.close()) }()
	for i, a := range []struct {
		kind          crc.Kind
		nodes         int
		before, after int
		flushes       []int // offsets from the old end
	}{
		{crc.CRC32C, 1, 200, 700, nil},
		{crc.CRC32C, 3, 200, 500, []int{50, 100}},
		{crc.CRC32, 2, 1024, 70000, []int{1, 513}},
		{crc.CRC32C, 3, 100000, 300001, []int{3, 200}},
	} {
		c := crc.Chunks{Kind: a.kind, Size: 512}
		f := goFile{fileShape{c, 1 << 20, a.after}, fmt.Sprintf("append-%d", i), packet.DefaultPacketSize, a.nodes, nil}
		short := f
		short.length = a.before
		all, err := t.writeFile(ctx, short, own)
		if err != nil {
			return err
		}
		answer, refused := t.ask("cluster.append", f.hdfsPath())
		if refused != nil {
			return refused
		}
		id, l := answer[0], hadoop.ParseLocated(answer[1:])
		old := l.Block
		if answer, refused = t.ask("cluster.newStamp", hadoop.BlockText(old)); refused != nil {
			return refused
		}
		stamp := hadoop.Int(answer[0])
		rest := f
		rest.flushes = a.flushes
		open := func(l hadoop.Located) (*packet.Writer, error) {
			conn, err := net.Dial("tcp", hadoop.Addr(l.Nodes[0]))
			if err != nil {
				return nil, err
			}
			req := l.Request(packet.SetupAppend, int64(f.blockSize))
			req.LatestStamp, req.MinBytesRcvd, req.MaxBytesRcvd = stamp, int64(a.before), int64(a.before)
			return packet.NewWriter(ctx, conn, req, packet.WriterConfig{StreamConfig: f.config(), Nodes: l.Addrs()})
		}
		w, err := open(l)
		if err != nil {
			return fmt.Errorf("%v: %w", f, err)
		}
		defer w.Abort()
		if _, refused = t.ask("cluster.updatePipeline", hadoop.BlockText(old), stamp, old.NumBytes, hadoop.Join(l.Nodes, hadoop.NodeText), hadoop.Join(l.IDs, hadoop.Text)); refused != nil {
			return refused
		}
		added := f.data()[a.before:]
		if err := rest.stream(ctx, w, added, func(n int) error { return t.visible(f, a.before+n) }); err != nil {
			return fmt.Errorf("%v: %w", f, err)
		}
		if _, refused = t.ask("cluster.complete", f.hdfsPath(), id, hadoop.BlockText(w.Block())); refused != nil {
			return refused
		}
		ours, err := open(hadoop.Located{Block: all[0].Block}.At(own.info()))
		if err != nil {
			return fmt.Errorf("%v on our node: %w", f, err)
		}
		defer ours.Abort()
		if err := rest.stream(ctx, ours, added, func(int) error { return nil }); err != nil {
			return fmt.Errorf("%v on our node: %w", f, err)
		}
		all[0].Block = w.Block()
		if err := t.judgeFile(f, all, own); err != nil {
			return err
		}
	}
	return nil
}

// readerFromDatanode reads ranges of blocks that Hadoop's client has written
// from Hadoop's datanode.
func readerFromDatanode(t *trial) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := t.startCluster(); err != nil {
		return err
	}
	for _, s := range []fileShape{
		{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 1 << 20, 1<<20 - 3},
		{crc.Chunks{Kind: crc.CRC32, Size: 512}, 1 << 20, 70000},
		{crc.Chunks{Kind: crc.CRC32C, Size: 7}, 7 << 10, 1000},
		{crc.Chunks{Kind: crc.CRC32C, Size: 4096}, 1 << 20, 4096 * 5},
		{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 1 << 20, 1},
	} {
		l, err := t.located(s)
		if err != nil {
			return err
		}
		data := s.data()
		conn, err := net.Dial("tcp", hadoop.Addr(l.Nodes[0]))
		if err != nil {
			return err
		}
		for i := range t.times(60) {
			from := t.rng.IntN(len(data))
			n := 1 + t.rng.IntN(len(data)-from)
			if i == 0 {
				from, n = 0, len(data)
			}
			req := packet.ReadBlock{
				Block: l.Block, Token: l.Token, ClientName: "blockpath-interop",
				Offset: int64(from), Length: int64(n), SendChecksums: i%8 != 7,
			}
			r, err := packet.NewReader(ctx, conn, req, packet.ReaderConfig{AllowNone: !req.SendChecksums})
			if err != nil {
				return fmt.Errorf("%v: %w", s, err)
			}
			got, err := io.ReadAll(r)
			if err != nil {
				t.disagree("%v: %d bytes from %d: %v", s, n, from, err)
			} else {
				t.same(bytes.Equal(got, data[from:from+n]), true, "%v: %d bytes from %d", s, n, from)
			}
			reusable := r.Close()
			t.same(reusable, true, "%v: the connection is good for another request", s)
			if !reusable {
				conn.Close()
				if conn, err = net.Dial("tcp", hadoop.Addr(l.Nodes[0])); err != nil {
					return err
				}
			}
		}
		// a range that the block does not have
		req := packet.ReadBlock{Block: l.Block, Token: l.Token, ClientName: "blockpath-interop", Length: int64(len(data)) + 1, SendChecksums: true}
		_, err = packet.NewReader(ctx, conn, req, packet.ReaderConfig{})
		var op *packet.OpError
		t.same(errors.As(err, &op), true, "%v: a range beyond the end: %v", s, err)
		conn.Close()
	}
	return nil
}
