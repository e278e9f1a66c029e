package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

var recoveryChecks = []check{
	{"peer/our writer: idle, and far ahead", writerWaits},
	{"peer/our writer: datanodes die", writerRecovers},
	{"peer/our writer: the last ack is lost", writerRecoversClose},
}

// A pipeline is what a Writer writes a block to, and what is left of it.
type pipeline struct {
	hadoop.Located // the block as a name node knows it
	size           int64
	keep           bool // a connection that is lost does not mean that a node is

	newStamp func(packet.Block) (int64, error)
	update   func(before, after packet.Block, nodes hadoop.Located) error

	ready chan struct{} // closed when it may be recovered
	calls []string
}

// pipeline returns one of the cluster.
func (t *trial) pipeline(l hadoop.Located, blockSize int) *pipeline {
	return &pipeline{
		Located: l, size: int64(blockSize), ready: make(chan struct{}),
		newStamp: func(b packet.Block) (int64, error) {
			answer, err := t.judge.ask("cluster.newStamp", hadoop.BlockText(b))
			if err != nil {
				return 0, err
			}
			return hadoop.Int(answer[0]), nil
		},
		update: func(before, after packet.Block, l hadoop.Located) error {
			_, err := t.judge.ask("cluster.updatePipeline", hadoop.BlockText(before), after.Stamp, after.NumBytes,
				hadoop.Join(l.Nodes, hadoop.NodeText), hadoop.Join(l.IDs, hadoop.Text))
			return err
		},
	}
}

// pipeline returns a pipeline of nodes of ours for a block.
func (p ownPipeline) pipeline(b packet.Block, blockSize int) *pipeline {
	l := hadoop.Located{Block: b}
	for _, n := range p {
		one := l.At(n.info())
		l.Nodes, l.Types, l.IDs = append(l.Nodes, one.Nodes...), append(l.Types, one.Types...), append(l.IDs, one.IDs...)
	}
	return &pipeline{
		Located: l, size: int64(blockSize), ready: make(chan struct{}),
		newStamp: func(b packet.Block) (int64, error) { return b.Stamp + 1, nil },
		update:   func(_, _ packet.Block, _ hadoop.Located) error { return nil },
	}
}

// open opens the block. Its first connection goes to address.
func (p *pipeline) open(ctx context.Context, address string, cfg packet.WriterConfig) (*packet.Writer, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	cfg.Nodes, cfg.Recover, cfg.Recovered = p.Addrs(), p.recover, p.recovered
	return packet.NewWriter(ctx, conn, p.Request(packet.SetupCreate, p.size), cfg)
}

// recover does what Hadoop's client does: it leaves out the node to blame, asks
// the name node for another generation stamp, and connects to the nodes that
// are left. The requests name the block as the name node knows it.
func (p *pipeline) recover(ctx context.Context, failure *packet.WriteError) (io.ReadWriteCloser, packet.WriteBlock, error) {
	select {
	case <-p.ready:
	case <-ctx.Done():
		return nil, packet.WriteBlock{}, ctx.Err()
	}
	bad := max(failure.Node, 0)
	for {
		if !p.keep {
			if len(p.Nodes) == 1 {
				return nil, packet.WriteBlock{}, failure
			}
			p.Located = p.Without(bad)
		}
		stamp, err := p.newStamp(p.Block)
		if err != nil {
			return nil, packet.WriteBlock{}, err
		}
		p.calls = append(p.calls, "newStamp")
		stage := packet.SetupStreamingRecovery
		if failure.Closing {
			stage = packet.PipelineCloseRecovery
		}
		req := p.Request(stage, p.size)
		req.LatestStamp, req.MinBytesRcvd, req.MaxBytesRcvd = stamp, failure.Acked, failure.Sent
		conn, err := net.Dial("tcp", hadoop.Addr(p.Nodes[0]))
		if err == nil {
			return conn, req, nil
		}
		if p.keep {
			return nil, packet.WriteBlock{}, err
		}
		bad = 0
	}
}

// recovered tells the name node of a pipeline that stands.
func (p *pipeline) recovered(_ context.Context, b packet.Block) error {
	p.calls = append(p.calls, "update")
	if err := p.update(p.Block, b, p.Located); err != nil {
		return err
	}
	p.Block = b
	return nil
}

// locate makes a file in the cluster and its only block.
func (t *trial) locate(f goFile) (fileID string, l hadoop.Located, err error) {
	answer, refused := t.ask("cluster.create", f.hdfsPath(), f.nodes, f.blockSize)
	if refused != nil {
		return "", l, refused
	}
	fileID = answer[0]
	if answer, refused = t.ask("cluster.addBlock", f.hdfsPath(), fileID); refused != nil {
		return "", l, refused
	}
	return fileID, hadoop.ParseLocated(answer), nil
}

// complete ends a file of one block, and judges it.
func (t *trial) complete(f goFile, fileID string, l hadoop.Located, own *ownNode) error {
	if _, refused := t.ask("cluster.complete", f.hdfsPath(), fileID, hadoop.BlockText(l.Block)); refused != nil {
		return refused
	}
	return t.judgeFile(f, []hadoop.Located{l}, own)
}

// writerRecovers stops datanodes of a pipeline in mid-block: each one of three,
// and two, so that the first pipeline that is tried instead fails as well. The
// rest must go on where it was, the name node must agree, and the replicas must
// be those of a pipeline of ours to which the same is done.
func writerRecovers(t *trial) error {
	if err := t.startCluster(); err != nil {
		return err
	}
	for round := range t.times(1) {
		for _, victims := range [][]int{{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}} {
			f := goFile{
				fileShape{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 8 << 20, 4<<20 + 77},
				fmt.Sprint("recovered-", round, victims), packet.DefaultPacketSize, clusterNodes, nil,
			}
			f.name = strings.ReplaceAll(f.name, " ", "")
			if err := t.recovered(f, victims); err != nil {
				return fmt.Errorf("%v without nodes %v: %w", f, victims, err)
			}
		}
	}
	return nil
}

func (t *trial) recovered(f goFile, victims []int) (err error) {
	id, l, err := t.locate(f)
	if err != nil {
		return err
	}
	theirs := t.pipeline(l, f.blockSize)
	if err := f.writeDying(theirs, func() error {
		for _, v := range victims {
			if _, refused := t.ask("cluster.stopNode", l.Nodes[v].XferPort); refused != nil {
				return refused
			}
		}
		return nil
	}); err != nil {
		return err
	}
	want := append(slices.Repeat([]string{"newStamp"}, len(victims)), "update")
	t.same(theirs.calls, want, "%v without nodes %v: what the name node was asked", f, victims)
	t.same(len(theirs.Nodes), f.nodes-len(victims), "%v without nodes %v: nodes that are left", f, victims)

	t.dir = filepath.Join(t.dir, f.name)
	defer func() { t.dir = filepath.Dir(t.dir) }()
	own, err := t.startOwn(f.nodes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.close()) }()
	ours := own.pipeline(l.Block, f.blockSize)
	if err := f.writeDying(ours, func() error {
		for _, v := range victims {
			if err := own[v].stop(); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	t.same(ours.calls, want, "%v without nodes %v of ours: what a name node would be asked", f, victims)
	data := f.data()
	for i, n := range own {
		if !slices.Contains(victims, i) {
			t.sameReplica(n.replica(ours.Block), data, metaOf(f.Chunks, data), "%v without nodes %v: our replica", f, victims)
		}
	}

	f.nodes = len(theirs.Nodes)
	if err := t.complete(f, id, theirs.Located, nil); err != nil {
		return err
	}
	var ports []any
	for _, v := range victims {
		ports = append(ports, l.Nodes[v].XferPort)
	}
	if _, refused := t.ask("cluster.startNodes", ports...); refused != nil {
		return refused
	}
	return nil
}

// writeDying writes f to the pipeline, and calls stop when half of it is flushed
// and packets are under way.
func (f goFile) writeDying(p *pipeline, stop func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w, err := p.open(ctx, hadoop.Addr(p.Nodes[0]), packet.WriterConfig{StreamConfig: f.config()})
	if err != nil {
		return err
	}
	defer w.Abort()
	data := f.data()
	flushed, loose := len(data)/2+100, len(data)/2+200000
	if _, err := w.Write(data[:flushed]); err != nil {
		return err
	}
	if err := w.Flush(ctx); err != nil {
		return err
	}
	if _, err := w.Write(data[flushed:loose]); err != nil {
		return err
	}
	if err := stop(); err != nil {
		return err
	}
	close(p.ready)
	if _, err := w.Write(data[loose:]); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	p.Block = w.Block()
	return nil
}

// writerRecoversClose loses the ack of a block's last packet, so that all
// datanodes have finalized the block and the writer does not know. It asks for
// that once more, with a new stamp, without the first node or with all of them.
func writerRecoversClose(t *trial) (err error) {
	if err := t.startCluster(); err != nil {
		return err
	}
	own, err := t.startOwn(clusterNodes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.close()) }()
	for i, keep := range []bool{false, true} {
		f := goFile{
			fileShape{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 1 << 20, 100077},
			fmt.Sprint("close-", i), packet.DefaultPacketSize, clusterNodes, nil,
		}
		id, l, err := t.locate(f)
		if err != nil {
			return err
		}
		theirs, ours := t.pipeline(l, f.blockSize), own.pipeline(l.Block, f.blockSize)
		for _, p := range []*pipeline{theirs, ours} {
			p.keep = keep
			if err := f.writeWithoutLastAck(p); err != nil {
				return fmt.Errorf("%v: %w", f, err)
			}
			t.same(p.calls, []string{"newStamp", "update"}, "%v: what the name node was asked", f)
		}
		data := f.data()
		for j, n := range own {
			if j > 0 || keep {
				t.sameReplica(n.replica(ours.Block), data, metaOf(f.Chunks, data), "%v: our replica %d", f, j)
			}
		}
		f.nodes = len(theirs.Nodes)
		if err := t.complete(f, id, theirs.Located, nil); err != nil {
			return err
		}
	}
	return nil
}

func (f goFile) writeWithoutLastAck(p *pipeline) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	between, err := startTap(hadoop.Addr(p.Nodes[0]))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, between.close()) }()
	between.change = func(m *message) {
		if m.kind == ackMessage && m.last {
			m.bytes, m.cut = nil, true
		}
	}
	close(p.ready)
	w, err := p.open(ctx, between.address(), packet.WriterConfig{StreamConfig: f.config()})
	if err != nil {
		return err
	}
	defer w.Abort()
	if _, err := w.Write(f.data()); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	p.Block = w.Block()
	return nil
}

// writerWaits lets our writer be idle, so that it sends heartbeats, which all
// nodes ack, and then run ahead until 80 packets are under way.
func writerWaits(t *trial) (err error) {
	if err := t.startCluster(); err != nil {
		return err
	}
	own, err := startOwnNode(t.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.close()) }()
	for _, nodes := range []int{1, clusterNodes} {
		f := goFile{
			fileShape{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 16 << 20, 7<<20 + 77},
			fmt.Sprint("waits-", nodes), packet.DefaultPacketSize, nodes, nil,
		}
		id, l, err := t.locate(f)
		if err != nil {
			return err
		}
		if err := t.writeWaiting(f, l); err != nil {
			return fmt.Errorf("%v: %w", f, err)
		}
		if err := t.writeWaiting(f, l.At(own.info())); err != nil {
			return fmt.Errorf("%v on our node: %w", f, err)
		}
		l.Block.NumBytes = int64(f.length)
		if err := t.complete(f, id, l, own); err != nil {
			return err
		}
	}
	return nil
}

const aheadPackets = 80 // as many as Hadoop's client has under way

func (t *trial) writeWaiting(f goFile, l hadoop.Located) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	between, err := startTap(hadoop.Addr(l.Nodes[0]))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, between.close()) }()
	conn, err := net.Dial("tcp", between.address())
	if err != nil {
		return err
	}
	stream := f.config()
	stream.InFlight = (aheadPackets + 1) * packet.DefaultPacketSize
	w, err := packet.NewWriter(ctx, conn, l.Request(packet.SetupCreate, int64(f.blockSize)), packet.WriterConfig{
		StreamConfig: stream, Nodes: l.Addrs(), Timeout: time.Second,
	})
	if err != nil {
		return err
	}
	defer w.Abort()
	data := f.data()
	at := 0
	for i, to := range []int{700, 70000} {
		if _, err := w.Write(data[at:to]); err != nil {
			return err
		}
		at = to
		if err := w.Flush(ctx); err != nil {
			return err
		}
		if err := between.wait(func(seen traffic) bool { return seen.beats >= 2*(i+1) }); err != nil {
			return fmt.Errorf("acks of heartbeats: %w", err)
		}
		t.same(between.traffic().replies, len(l.Nodes), "%v: nodes that ack a heartbeat", f)
	}
	between.holdUntil(aheadPackets)
	if _, err := w.Write(data[at:]); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	seen := between.traffic()
	t.same(seen.most >= aheadPackets, true, "%v: packets under way together: %d", f, seen.most)
	t.same(seen.refused, 0, "%v: packets refused", f)
	t.same(w.Stats().Heartbeats >= 4, true, "%v: heartbeats", f)
	return nil
}
