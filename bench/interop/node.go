package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring/datanode"
)

// What datanodes say to each other, and what only a part of their clients asks
// for.
var nodeChecks = []check{
	{"wire/checksum request: to Hadoop", checksumsToHadoop},
	{"wire/checksum request: to us", checksumsToUs},
	{"wire/transfer request: to Hadoop", transfersToHadoop},
	{"wire/transfer request: to us", transfersToUs},
	{"peer/Hadoop's checksums from us", hadoopChecksums},
	{"peer/our writer: pipelines of both", mixedPipelines},
	{"peer/Hadoop's writer: pipelines of both", hadoopMixedPipelines},
	{"peer/transfers between both", transfers},
	{"peer/Hadoop's writer to our pipeline", hadoopPipeline},
	{"peer/Hadoop's writer: ours restarts", hadoopWriterRestart},
	{"peer/Hadoop's writer: ours dies", hadoopWriterRecovers},
}

func checksumText(r *packet.BlockChecksum) string {
	return fmt.Sprintf("%s %s %d", headText(r.Block, r.Token), r.Type, r.StripeLength)
}

func (t *trial) blockChecksum() *packet.BlockChecksum {
	r := &packet.BlockChecksum{Type: packet.ChecksumType(1 + t.rng.IntN(2)), StripeLength: t.int64()}
	r.Block, r.Token, _ = t.head()
	return r
}

func checksumsToHadoop(t *trial) error {
	for range t.times(someValues) {
		r := t.blockChecksum()
		b := r.Append(nil)
		answer, refused := t.ask("op.parse", b)
		if refused != nil {
			t.disagree("%s: %v", checksumText(r), refused)
			continue
		}
		t.same("BLOCK_CHECKSUM "+checksumText(r), strings.Join(answer, " "), "request %x", b)
	}
	return nil
}

func checksumsToUs(t *trial) error {
	for range t.times(someValues) {
		r := t.blockChecksum()
		b, request := t.request("op.checksum", checksumText(r))
		if request == nil {
			continue
		}
		got, ok := request.(*packet.BlockChecksum)
		if !ok {
			t.disagree("request %x: read as a %T", b, request)
			continue
		}
		t.same(checksumText(got), checksumText(r), "request %x", b)
		t.same(hadoop.Hex(r.Append(nil)), hadoop.Hex(b), "bytes of %s", checksumText(r))
	}
	return nil
}

func transferText(r *packet.TransferBlock) string {
	return strings.Join([]string{
		headText(r.Block, r.Token), hadoop.Text(r.ClientName), hadoop.Join(r.Targets, hadoop.NodeText),
		hadoop.Join(r.TargetStorageTypes, storageName), hadoop.Join(r.TargetStorageIDs, hadoop.Text),
	}, " ")
}

func (t *trial) transferBlock() *packet.TransferBlock {
	r := new(packet.TransferBlock)
	r.Block, r.Token, r.ClientName = t.head()
	for range t.rng.IntN(4) {
		r.Targets = append(r.Targets, t.node())
		r.TargetStorageTypes = append(r.TargetStorageTypes, packet.StorageType(1+t.rng.IntN(6)))
		r.TargetStorageIDs = append(r.TargetStorageIDs, "DS-"+t.word())
	}
	return r
}

func transfersToHadoop(t *trial) error {
	for range t.times(someValues) {
		r := t.transferBlock()
		b := r.Append(nil)
		answer, refused := t.ask("op.parse", b)
		if refused != nil {
			t.disagree("%s: %v", transferText(r), refused)
			continue
		}
		t.same("TRANSFER_BLOCK "+transferText(r), strings.Join(answer, " "), "request %x", b)
	}
	return nil
}

func transfersToUs(t *trial) error {
	for range t.times(someValues) {
		r := t.transferBlock()
		b, request := t.request("op.transfer", transferText(r))
		if request == nil {
			continue
		}
		got, ok := request.(*packet.TransferBlock)
		if !ok {
			t.disagree("request %x: read as a %T", b, request)
			continue
		}
		t.same(transferText(got), transferText(r), "request %x", b)
		if len(r.Targets) == 0 { // else Hadoop adds the nodes' statistics
			t.same(hadoop.Hex(r.Append(nil)), hadoop.Hex(b), "bytes of %s", transferText(r))
		}
	}
	return nil
}

// hadoopChecksums lets Hadoop's client write files to a node of ours and ask it
// for their checksums, of whole files and of their first bytes.
func hadoopChecksums(t *trial) (err error) {
	own, err := startOwnNode(t.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.close()) }()
	for i, s := range fileShapes() {
		if s.blockSize > 1<<16 && s.length > 1<<20 {
			s.length = 1<<20 + 77
		}
		f := javaFile{fileShape: s, name: fmt.Sprintf("sum-%d", i)}
		if s.length == 0 {
			continue // no block, and nothing to ask
		}
		if err := t.javaWrites(f, own); err != nil {
			return err
		}
		lengths := []int{s.length}
		if s.length > 1 {
			lengths = append(lengths, 1+t.rng.IntN(s.length-1), 1+t.rng.IntN(s.length-1))
		}
		for _, n := range lengths {
			cut := s
			cut.length = n
			err := t.judgeChecksums(cut, n < s.length, func(mode string) ([]string, *hadoop.Refusal) {
				if _, refused := t.ask("client.start", hadoop.NodeText(own.info()), "dfs.checksum.combine.mode="+mode); refused != nil {
					return nil, refused
				}
				length := any(n)
				if n == s.length {
					length = int64(1<<63 - 1)
				}
				return t.ask("client.checksum", hadoop.Text("/"+f.name), length)
			})
			if err != nil {
				t.disagree("%v: %d bytes: %v", f, n, err)
			}
		}
	}
	return nil
}

// mixedPipelines writes files to pipelines in which nodes of ours are before,
// between and behind Hadoop's.
func mixedPipelines(t *trial) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := t.startCluster(); err != nil {
		return err
	}
	const mib = 1 << 20
	c512, crc32 := crc.Chunks{Kind: crc.CRC32C, Size: 512}, crc.Chunks{Kind: crc.CRC32, Size: 512}
	for i, order := range []string{"oh", "ho", "oho", "hoh", "ooh", "hho", "ohh"} {
		for k, f := range []goFile{
			{fileShape{c512, mib, 2*mib + 12345}, "", packet.DefaultPacketSize, 0, nil},
			{fileShape{crc32, mib, mib + 5000}, "", mib, 0, []int{77, 1000, 3000, 4097}},
		} {
			f.name, f.nodes = fmt.Sprintf("mixed-%d-%d", i, k), strings.Count(order, "h")
			var own ownPipeline
			for j := range strings.Count(order, "o") {
				n, err := startOwnNode(filepath.Join(t.dir, fmt.Sprint("own-", i, k, j)))
				if err != nil {
					return err
				}
				own = append(own, n)
			}
			err := t.mixedPipeline(ctx, f, order, own)
			for _, n := range own {
				err = errors.Join(err, n.close())
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *trial) mixedPipeline(ctx context.Context, f goFile, order string, own ownPipeline) error {
	answer, refused := t.ask("cluster.create", f.hdfsPath(), f.nodes, f.blockSize)
	if refused != nil {
		return refused
	}
	id := answer[0]
	var all []hadoop.Located
	before := ""
	for i, data := range f.blocks() {
		if answer, refused = t.ask("cluster.addBlock", f.hdfsPath(), strings.TrimSpace(id+" "+before)); refused != nil {
			return refused
		}
		l := hadoop.ParseLocated(answer)
		mixed := mix(l, order, own)
		b, err := f.put(ctx, mixed, data, func(n int) error { return t.visible(f, f.blockSize*i+n) })
		if err != nil {
			t.disagree("%v in the pipeline %s: %v", f, order, err)
			return nil
		}
		l.Block = b
		all = append(all, l)
		before = hadoop.BlockText(b)
	}
	if _, refused = t.ask("cluster.complete", f.hdfsPath(), id, before); refused != nil {
		return refused
	}
	for _, n := range own {
		if err := t.judgeFile(f, all, n); err != nil {
			return err
		}
	}
	return nil
}

// mix returns where a block goes whose nodes are Hadoop's, those of l, and ours
// in the given order.
func mix(l hadoop.Located, order string, own ownPipeline) hadoop.Located {
	mixed := hadoop.Located{Block: l.Block, Token: l.Token}
	ours, theirs := 0, 0
	for _, who := range order {
		if who == 'o' {
			at := l.At(own[ours].info())
			mixed.Nodes, mixed.Types, mixed.IDs = append(mixed.Nodes, at.Nodes...), append(mixed.Types, at.Types...), append(mixed.IDs, at.IDs...)
			ours++
		} else {
			mixed.Nodes, mixed.Types, mixed.IDs = append(mixed.Nodes, l.Nodes[theirs]), append(mixed.Types, l.Types[theirs]), append(mixed.IDs, l.IDs[theirs])
			theirs++
		}
	}
	return mixed
}

// hadoopMixedPipelines lets Hadoop's client write to such pipelines, and be idle
// for a while: its heartbeats go through all nodes, and so do their acks.
func hadoopMixedPipelines(t *trial) (err error) {
	if err := t.startCluster(); err != nil {
		return err
	}
	own, err := t.startOwn(2)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.close()) }()
	const mib = 1 << 20
	for i, order := range []string{"oh", "ho", "oho", "hoh", "ooh", "hho", "ohh"} {
		f := goFile{
			fileShape{crc.Chunks{Kind: crc.Kind(i % 2), Size: 512}, 4 * mib, 2*mib + 12345},
			"hadoop-mixed-" + order, packet.DefaultPacketSize, strings.Count(order, "h"), nil,
		}
		if err := t.hadoopMixedPipeline(f, order, own[:strings.Count(order, "o")]); err != nil {
			return fmt.Errorf("%v in the pipeline %s: %w", f, order, err)
		}
	}
	return nil
}

func (t *trial) hadoopMixedPipeline(f goFile, order string, own ownPipeline) (err error) {
	id, l, err := t.locate(f)
	if err != nil {
		return err
	}
	mixed := mix(l, order, own)
	var taps []*tap
	defer func() {
		for _, between := range taps {
			err = errors.Join(err, between.close())
		}
	}()
	for i, n := range mixed.Nodes {
		between, err := startTap(hadoop.Addr(n))
		if err != nil {
			return err
		}
		taps = append(taps, between)
		mixed.Nodes[i] = between.before(n)
	}
	data := f.data()
	half := len(data)/2 + 77
	for _, q := range [][]any{
		{"client.start", hadoop.Join(mixed.Nodes, hadoop.NodeText), "dfs.client.socket-timeout=1000", "dfs.client.block.write.replace-datanode-on-failure.policy=NEVER"},
		{"client.next", hadoop.BlockText(l.Block)},
		{"client.create", f.hdfsPath(), hadoopKind(f.Kind), f.Size, f.blockSize},
		{"client.write", data[:half]}, {"client.hflush"},
	} {
		if _, refused := t.ask(q[0].(string), q[1:]...); refused != nil {
			return refused
		}
	}
	if err := t.visible(f, half); err != nil {
		return err
	}
	for i, between := range taps {
		if err := between.wait(func(seen traffic) bool { return seen.beats >= 2 }); err != nil {
			return fmt.Errorf("acks of heartbeats by node %d: %w", i, err)
		}
		t.same(between.traffic().replies, len(taps)-i, "%s, node %d: nodes that ack a heartbeat", order, i)
	}
	for _, q := range [][]any{{"client.write", data[half:]}, {"client.hsync"}, {"client.close"}} {
		if _, refused := t.ask(q[0].(string), q[1:]...); refused != nil {
			return refused
		}
	}
	for i, between := range taps {
		t.same(between.traffic().refused, 0, "%s, node %d: packets refused", order, i)
		t.same(between.traffic().syncs, 1, "%s, node %d: packets that ask for a sync", order, i)
	}
	l.Block.NumBytes = int64(f.length)
	for i, n := range own {
		if i > 0 {
			t.sameReplica(n.replica(l.Block), data, metaOf(f.Chunks, data), "%s: our replica %d", order, i)
		}
	}
	return t.complete(f, id, l, own[0])
}

// transfers has replicas copied from a node of Hadoop to one of ours and back to
// another one of Hadoop, and from ours to ours.
func transfers(t *trial) (err error) {
	if err := t.startCluster(); err != nil {
		return err
	}
	own, err := t.startOwn(2)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.close()) }()
	for _, s := range []fileShape{
		{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 1 << 20, 1<<20 - 3},
		{crc.Chunks{Kind: crc.CRC32, Size: 7}, 7 << 10, 1000},
		{crc.Chunks{Kind: crc.CRC32C, Size: 4096}, 1 << 20, 4096 * 5},
		{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 1 << 20, 1},
	} {
		l, err := t.located(s)
		if err != nil {
			return err
		}
		block, meta := s.blocks()[0], metaOf(s.Chunks, s.blocks()[0])
		for _, hop := range []struct {
			from, to packet.DatanodeInfo
			at       *ownNode
		}{{l.Nodes[0], own[0].info(), own[0]}, {own[0].info(), own[1].info(), own[1]}} {
			if err := transferOf(l.Block, l.Token, hop.from, hop.to); err != nil {
				t.disagree("%v: transfer from %s to %s: %v", s, hadoop.Addr(hop.from), hadoop.Addr(hop.to), err)
				continue
			}
			t.sameReplica(hop.at.replica(l.Block), block, meta, "%v: after the transfer from %s", s, hadoop.Addr(hop.from))
		}
		// To a node of Hadoop that has none.
		others, refused := t.ask("cluster.nodes")
		if refused != nil {
			return refused
		}
		for _, text := range others {
			to := hadoop.ParseNode(text)
			if hadoop.Addr(to) == hadoop.Addr(l.Nodes[0]) {
				continue
			}
			if err := transferOf(l.Block, l.Token, own[1].info(), to); err != nil {
				t.disagree("%v: transfer to Hadoop: %v", s, err)
				break
			}
			replicas, err := t.replicas(hadoop.Text(string(s.path())))
			if err != nil {
				return err
			}
			t.same(len(replicas[0]), 2, "%v: replicas after the transfer", s)
			for _, r := range replicas[0] {
				t.sameReplica(r, block, meta, "%v: after the transfer to Hadoop", s)
			}
			break
		}
	}
	return nil
}

// transferOf asks from for a copy of a block on to.
func transferOf(b packet.Block, token packet.Token, from, to packet.DatanodeInfo) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", hadoop.Addr(from))
	if err != nil {
		return err
	}
	defer conn.Close()
	req := packet.TransferBlock{
		Block: b, Token: token, ClientName: "blockpath-interop", Targets: []packet.DatanodeInfo{to},
		TargetStorageTypes: []packet.StorageType{packet.Disk}, TargetStorageIDs: []string{""},
	}
	if _, err := conn.Write(req.Append(nil)); err != nil {
		return err
	}
	res, err := packet.ReadBlockOpResponse(bufio.NewReader(conn))
	if err == nil && res.Status != packet.Success {
		err = fmt.Errorf("%v: %s", res.Status, res.Message)
	}
	return err
}

// An ownPipeline is nodes of ours to which Hadoop's client writes.
type ownPipeline []*ownNode

func (t *trial) startOwn(n int) (nodes ownPipeline, err error) {
	for i := range n {
		node, err := startOwnNode(filepath.Join(t.dir, fmt.Sprint(i)))
		if err != nil {
			return nil, errors.Join(err, nodes.close())
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

func (p ownPipeline) close() (err error) {
	for _, n := range p {
		err = errors.Join(err, n.close())
	}
	return err
}

func (p ownPipeline) text() string {
	return hadoop.Join(p, func(n *ownNode) string { return hadoop.NodeText(n.info()) })
}

// writeHalves lets Hadoop's client write a file to the pipeline, and calls between
// when half of it is flushed. In the end the nodes that are left must have it.
func (t *trial) writeHalves(f javaFile, p, left ownPipeline, between func() error) error {
	args := []any{p.text()}
	for _, s := range f.settings {
		args = append(args, s)
	}
	data := f.data()
	for _, q := range [][]any{
		append([]any{"client.start"}, args...),
		{"client.create", hadoop.Text("/" + f.name), hadoopKind(f.Kind), f.Size, f.blockSize},
		{"client.write", data[:len(data)/2]}, {"client.hflush"},
		{}, // between
		{"client.write", data[len(data)/2:]}, {"client.hsync"}, {"client.close"},
	} {
		if len(q) == 0 {
			if err := between(); err != nil {
				return err
			}
			continue
		}
		if _, refused := t.ask(q[0].(string), q[1:]...); refused != nil {
			t.disagree("%v: %s: %v", f, q[0], refused)
			return nil
		}
	}
	for _, n := range left {
		if err := t.judgeJavaFile(f, hadoop.Text("/"+f.name), n); err != nil {
			return err
		}
	}
	return nil
}

func hadoopPipeline(t *trial) (err error) {
	p, err := t.startOwn(3)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	const mib = 1 << 20
	for _, f := range []javaFile{
		{fileShape: fileShape{crc.Chunks{Kind: crc.CRC32C, Size: 512}, mib, 3*mib + 77}, name: "three"},
		{fileShape: fileShape{crc.Chunks{Kind: crc.CRC32, Size: 4096}, 16 * mib, 3*mib + 77}, name: "three-1m", settings: []string{"dfs.client-write-packet-size=1048576"}},
		{fileShape: fileShape{crc.Chunks{Kind: crc.CRC32C, Size: 7}, 70000, 100001}, name: "three-7"},
		{fileShape: fileShape{crc.Chunks{Kind: crc.None, Size: 512}, mib, mib + 1}, name: "three-none"},
	} {
		if err := t.writeHalves(f, p, p, func() error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

// hadoopWriterRestart restarts one node after another in mid-block: Hadoop's
// client, told of it, waits for the node and goes on.
func hadoopWriterRestart(t *trial) (err error) {
	p, err := t.startOwn(3)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	for victim := range p {
		f := javaFile{
			fileShape: fileShape{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 4 << 20, 2<<20 + 77}, name: fmt.Sprint("restart-", victim),
			settings: []string{"dfs.client.block.write.replace-datanode-on-failure.policy=NEVER"},
		}
		if err := t.writeHalves(f, p, p, func() error { return p[victim].restart() }); err != nil {
			return err
		}
	}
	return nil
}

// hadoopWriterRecovers stops one node in mid-block. Hadoop's client goes on with
// the others, or has the block copied to another node first.
func hadoopWriterRecovers(t *trial) error {
	for victim := range 3 {
		for _, replace := range []bool{false, true} {
			if err := t.hadoopWriterRecovers(victim, replace); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *trial) hadoopWriterRecovers(victim int, replace bool) (err error) {
	if err := os.RemoveAll(t.dir); err != nil {
		return err
	}
	p, err := t.startOwn(4)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	policy := "NEVER"
	spare := p[3]
	if replace {
		policy = "ALWAYS"
	}
	if _, refused := t.ask("client.spares", hadoop.NodeText(spare.info())); refused != nil {
		return refused
	}
	f := javaFile{
		fileShape: fileShape{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 4 << 20, 2<<20 + 77}, name: fmt.Sprint("dies-", victim, replace),
		settings: []string{
			"dfs.client.block.write.replace-datanode-on-failure.policy=" + policy, "dfs.client.datanode-restart.timeout=0",
		},
	}
	three := p[:3:3]
	left := append(append(ownPipeline{}, three[:victim]...), three[victim+1:]...)
	if replace {
		left = append(left, spare)
	}
	if err := t.writeHalves(f, three, left, func() error { return p[victim].stop() }); err != nil {
		return err
	}
	t.same(len(spare.store.Blocks()), map[bool]int{false: 0, true: 1}[replace], "%v: blocks of the spare node", f)
	return nil
}

// stop ends a node at once.
func (n *ownNode) stop() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := n.server.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return n.store.Close()
}

// restart ends a node at once and starts it again. The port stays its own in
// between.
func (n *ownNode) restart() error {
	port, err := n.listener.File()
	if err != nil {
		return err
	}
	defer port.Close()
	dirs := n.store.Dirs()
	if err := n.stop(); err != nil {
		return err
	}
	store, err := datanode.OpenStore(datanode.StoreConfig{Dirs: dirs})
	if err != nil {
		return err
	}
	l, err := net.FileListener(port)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	n.serve(store, l.(*net.TCPListener), datanode.ServerConfig{})
	return nil
}
