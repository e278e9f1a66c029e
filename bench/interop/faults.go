package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring/datanode"
)

var faultChecks = []check{
	{"faults/Hadoop's writer to us", hadoopWritesDamaged},
	{"faults/our writer to Hadoop", weWriteDamaged},
	{"faults/Hadoop's reader from us", hadoopReadsDamaged},
	{"faults/our reader from Hadoop", weReadDamaged},
	{"faults/between datanodes", damagedBetweenNodes},
}

// A fault is what happens to one message between a client and a datanode. The
// client must say so, and both must go on.
type fault struct {
	name   string
	kind   messageKind
	index  int
	damage func(*message)
	hadoop string                    // what Hadoop's client says then, a regular expression
	ours   func(error, message) bool // whether ours says it; the message is as it was before

	// What Hadoop's datanode and ours log, regular expressions; "" if it is nothing.
	hadoopNode, ourNode string
}

// once makes the tap damage the first message that the fault is about. The
// function that it returns tells how the message was before.
func (f *fault) once(p *tap) func() message {
	var was message
	done := false
	p.change = func(m *message) {
		if done || m.kind != f.kind || m.index != f.index {
			return
		}
		done = true
		was = *m
		m.bytes = slices.Clone(m.bytes)
		f.damage(m)
	}
	return func() message {
		p.mu.Lock()
		defer p.mu.Unlock()
		return was
	}
}

// faultLength is the length of the blocks that are written and read.
const faultLength = 300077

// Damage to a message.

func flipData(m *message)    { m.body()[len(m.body())-m.header.DataLen+1000] ^= 4 }
func flipSum(m *message)     { m.body()[9] ^= 1 }
func cutInside(m *message)   { m.bytes, m.cut = m.bytes[:len(m.bytes)/2], true }
func cutBehind(m *message)   { m.cut = true }
func leaveOut(m *message)    { m.bytes, m.cut = nil, true }
func version27(m *message)   { m.bytes[1] = 27 }
func operation99(m *message) { m.bytes[2] = 99 }

func plen(n int32) func(*message) {
	return func(m *message) { binary.BigEndian.PutUint32(m.bytes, uint32(n)) }
}

func hlen(n int16) func(*message) {
	return func(m *message) { binary.BigEndian.PutUint16(m.bytes[4:], uint16(n)) }
}

func header(change func(*packet.Header)) func(*message) {
	return func(m *message) {
		h := m.header
		change(&h)
		m.setHeader(h)
	}
}

// What our client says.

// lost says that the connection has ended.
func lost(err error, _ message) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// refusedByAck names a packet that was damaged on the way.
func refusedByAck(err error, was message) bool {
	var a *packet.AckError
	return errors.As(err, &a) && a.Status == packet.ErrorChecksum && a.Err == nil && a.Seqno == was.header.Seqno && a.Offset == was.header.Offset
}

// malformed says that what came does not follow the protocol.
func malformed(err error, _ message) bool {
	var f *packet.FormatError
	return errors.As(err, &f)
}

// mismatch names the chunk at an offset in the packet.
func mismatch(at int64) func(error, message) bool {
	return func(err error, was message) bool {
		var m *crc.MismatchError
		return errors.As(err, &m) && m.Offset == was.header.Offset+at
	}
}

// What Hadoop's client says when its only datanode fails: while it writes, and
// when it begins to, of two reasons the one that it comes to first.
const (
	noNode     = `All datanodes \[.*\] are bad\. Aborting`
	noPipeline = `Unable to create new block|` + noNode
)

// writeFaults happen to a block on its way to one datanode.
var writeFaults = []fault{
	{"a byte of data", writtenPacket, 2, flipData, noNode, refusedByAck,
		`Checksum error in block .* offsetInBlock = 129024 offsetInPacket = 512`, `damaged packet.* seqno=2 .*mismatch in the 512 bytes at offset 129536`},
	{"a checksum", writtenPacket, 2, flipSum, noNode, refusedByAck,
		`Checksum error in block .* offsetInBlock = 129024 offsetInPacket = 1024`, `damaged packet.* seqno=2 .*mismatch in the 512 bytes at offset 130048`},
	{"version 27", requestMessage, 0, version27, noPipeline, lost,
		`Version Mismatch \(Expected: 28, Received: 27 \)`, `data transfer version 27, expected 28`},
	{"operation 99", requestMessage, 0, operation99, noPipeline, lost,
		`processing unknown operation`, `unknown operation 99`},
	{"a request cut short", requestMessage, 0, cutInside, noPipeline, lost,
		`InvalidProtocolBufferException`, ""},
	{"PLEN 3", writtenPacket, 1, plen(3), noNode, lost,
		`Invalid payload length 3`, `PLEN at offset 65047: expected at least 4, got 3`},
	{"PLEN -1", writtenPacket, 1, plen(-1), noNode, lost,
		`Invalid payload length -1`, `PLEN at offset 65047: expected at least 4, got -1`},
	{"PLEN above the limit", writtenPacket, 1, plen(packet.MaxPacketLen + 1), noNode, lost,
		`Incorrect value for packet payload size: 16777217`, `PLEN \+ HLEN at offset 65047: expected at most 16777216`},
	{"HLEN -1", writtenPacket, 1, hlen(-1), noNode, lost,
		`Invalid header length -1`, `HLEN at offset 65047: expected at least 0, got -1`},
	{"HLEN 0", writtenPacket, 1, hlen(0), noNode, lost,
		`missing required fields: offsetInBlock`, `packet header at offset 65047: expected field 1`},
	{"dataLen above PLEN", writtenPacket, 1, header(func(h *packet.Header) { h.DataLen *= 2 }), noNode, lost,
		`data length in packet header exceeds data length received`, `dataLen at offset 65047: expected at most 65016 \(PLEN - 4\), got 129024`},
	{"dataLen too short", writtenPacket, 1, header(func(h *packet.Header) { h.DataLen -= 512 }), noNode, lost,
		`Invalid checksum length: received length is 1016 but expected length is 500`, `packet 1 at offset 64512 .*wrong length of checksums: expected 500, got 1016`},
	{"a gap", writtenPacket, 1, header(func(h *packet.Header) { h.Offset += 512 }), noNode, lost,
		`Received an out-of-sequence packet for .* at offset 65024. Expecting packet starting at 64512`, `packet 1 at offset 65024 .*data is missing before it: expected 64512`},
	{"cut in a packet", writtenPacket, 2, cutInside, noNode, lost,
		`Premature EOF|Connection reset`, ""},
	{"cut between packets", writtenPacket, 2, cutBehind, noNode, lost,
		`Premature EOF|Connection reset`, ""},
	{"cut in an ack", ackMessage, 1, cutInside, noNode, lost, "", ""},
	{"the response lost", responseMessage, 0, leaveOut, noPipeline, lost, "", ""},
	{"the response cut short", responseMessage, 0, cutInside, noPipeline, lost, "", ""},
}

// readFaults happen to a block on its way from a datanode.
var readFaults = []fault{
	{"a byte of data", readPacket, 1, flipData, `ChecksumException`, mismatch(512), "", ""},
	{"a checksum", readPacket, 1, flipSum, `ChecksumException`, mismatch(1024), "", ""},
	{"version 27", requestMessage, 0, version27, `EOFException|Connection reset|Premature EOF`, lost, "", ""},
	{"operation 99", requestMessage, 0, operation99, `EOFException|Connection reset|Premature EOF`, lost, "", ""},
	{"a request cut short", requestMessage, 0, cutInside, `EOFException|Connection reset|Premature EOF`, lost, "", ""},
	{"PLEN 3", readPacket, 1, plen(3), `Invalid payload length 3`, malformed, "", ""},
	{"PLEN -1", readPacket, 1, plen(-1), `Invalid payload length -1`, malformed, "", ""},
	{"PLEN above the limit", readPacket, 1, plen(packet.MaxPacketLen + 1), `Incorrect value for packet payload size: 16777217`, malformed, "", ""},
	{"HLEN -1", readPacket, 1, hlen(-1), `Invalid header length -1`, malformed, "", ""},
	{"HLEN 0", readPacket, 1, hlen(0), `InvalidProtocolBufferException`, malformed, "", ""},
	{"dataLen above PLEN", readPacket, 1, header(func(h *packet.Header) { h.DataLen *= 2 }), `data length in packet header exceeds data length received`, malformed, "", ""},
	{"a packet left out", readPacket, 1, header(func(h *packet.Header) { h.Seqno++ }), `error in packet header`, malformed, "", ""},
	{"data in the last packet", readPacket, 1, header(func(h *packet.Header) { h.Last = true }), `error in packet header`, malformed, "", ""},
	{"cut in a packet", readPacket, 1, cutInside, `Premature EOF`, lost, "", ""},
	{"cut between packets", readPacket, 1, cutBehind, `Premature EOF`, lost, "", ""},
	{"the response lost", responseMessage, 0, leaveOut, `EOFException|Connection reset|Premature EOF`, lost, "", ""},
	{"the response cut short", responseMessage, 0, cutInside, `EOFException|Connection reset|Premature EOF|Protobuf|protocol message`, lost, "", ""},
	{"an answer that is an error", responseMessage, 0, func(m *message) {
		r := packet.BlockOpResponse{Status: packet.Error, Message: "no"}
		m.bytes = r.Append(nil)
	}, `Got error, status=ERROR, status message no`, func(err error, _ message) bool {
		var op *packet.OpError
		return errors.As(err, &op) && op.Status == packet.Error && op.Message == "no"
	}, "", ""},
}

// said records whether Hadoop's client says of a fault what it should.
func (t *trial) said(f *fault, refused *hadoop.Refusal) {
	if refused == nil {
		t.disagree("%s: Hadoop's client says nothing", f.name)
		return
	}
	match, err := regexp.MatchString(f.hadoop, refused.Exception)
	t.same(err == nil && match, true, "%s: what Hadoop's client says is not %s: %v", f.name, f.hadoop, refused)
}

// A nodeLog keeps what a datanode of ours logs.
type nodeLog struct {
	mu   sync.Mutex
	more sync.Cond
	text []byte
	late bool
}

func newNodeLog() *nodeLog {
	l := new(nodeLog)
	l.more.L = &l.mu
	return l
}

func (l *nodeLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, line...)
	l.more.Broadcast()
	return len(line), nil
}

// await waits for a match, and forgets everything.
func (l *nodeLog) await(pattern string) error {
	match, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	timer := time.AfterFunc(patience, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.late = true
		l.more.Broadcast()
	})
	defer timer.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for !match.Match(l.text) {
		if l.late {
			return fmt.Errorf("our node does not log %s, but %s", pattern, l.text)
		}
		l.more.Wait()
	}
	l.text = nil
	return nil
}

// hadoopWritesDamaged damages what Hadoop's client writes to a node of ours.
func hadoopWritesDamaged(t *trial) (err error) {
	log := newNodeLog()
	own, err := startOwnNodeWith(t.dir, datanode.ServerConfig{Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.close()) }()
	for i := range writeFaults {
		if err := t.hadoopWriteDamaged(&writeFaults[i], own, log); err != nil {
			return fmt.Errorf("%s: %w", writeFaults[i].name, err)
		}
		// both go on
		if err := t.javaWrites(javaFile{
			fileShape: fileShape{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 1 << 20, 70001}, name: fmt.Sprint("good-", i),
		}, own); err != nil {
			return err
		}
	}
	return nil
}

func (t *trial) hadoopWriteDamaged(f *fault, own *ownNode, log *nodeLog) (err error) {
	between, err := startTap(own.addr.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, between.close()) }()
	f.once(between)
	if _, refused := t.ask("client.start", hadoop.NodeText(between.before(own.info())), "dfs.client.block.write.retries=0"); refused != nil {
		return refused
	}
	s := fileShape{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 1 << 20, faultLength}
	path := hadoop.Text("/" + strings.ReplaceAll(f.name, " ", "-"))
	if _, refused := t.ask("client.create", path, hadoopKind(s.Kind), s.Size, s.blockSize); refused != nil {
		return refused
	}
	_, refused := t.ask("client.write", s.data())
	if refused == nil {
		_, refused = t.ask("client.close")
	}
	t.said(f, refused)
	if f.ourNode != "" {
		err := log.await(f.ourNode)
		t.same(err, nil, "%s", f.name)
	}
	blocks, err := t.clientBlocks(path)
	if err != nil || len(blocks) == 0 { // it abandons a block that was not opened
		return err
	}
	return t.acked(f, between, blocks[0], s, own.addr.String())
}

// acked reads from the datanode what the client has seen acked.
func (t *trial) acked(f *fault, between *tap, b packet.Block, s fileShape, address string) error {
	n := between.traffic().acked
	if n == 0 {
		return nil
	}
	got, err := readBlock(address, b, packet.Token{}, n)
	if err != nil {
		t.disagree("%s: reading the %d bytes that were acked: %v", f.name, n, err)
		return nil
	}
	t.same(string(got) == string(s.data()[:n]), true, "%s: the %d bytes that were acked", f.name, n)
	return nil
}

// weWriteDamaged damages what our client writes to a datanode of Hadoop's.
func weWriteDamaged(t *trial) error {
	if err := t.startCluster(); err != nil {
		return err
	}
	if _, refused := t.ask("log.keep", "org.apache.hadoop.hdfs.server.datanode"); refused != nil {
		return refused
	}
	for i := range writeFaults {
		f := &writeFaults[i]
		g := goFile{
			fileShape{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 1 << 20, faultLength},
			"fault-" + strings.ReplaceAll(f.name, " ", "-"), packet.DefaultPacketSize, 1, nil,
		}
		_, l, err := t.locate(g)
		if err != nil {
			return err
		}
		if err := t.weWriteDamaged(f, g, l); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		// both go on, with the block in another file
		g.name += "-good"
		id, l, err := t.locate(g)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		l.Block, err = g.put(ctx, l, g.data(), func(int) error { return nil })
		cancel()
		if err != nil {
			return fmt.Errorf("%s: then: %w", f.name, err)
		}
		if err := t.complete(g, id, l, nil); err != nil {
			return err
		}
	}
	return nil
}

func (t *trial) weWriteDamaged(f *fault, g goFile, l hadoop.Located) (err error) {
	between, err := startTap(hadoop.Addr(l.Nodes[0]))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, between.close()) }()
	was := f.once(between)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	via := l
	via.Nodes = []packet.DatanodeInfo{between.before(l.Nodes[0])}
	_, err = g.put(ctx, via, g.data(), func(int) error { return nil })
	t.same(err != nil && f.ours(err, was()), true, "%s: what our client says: %v", f.name, err)
	if f.hadoopNode != "" {
		pattern := f.hadoopNode
		if f.kind == writtenPacket { // the message names the block
			pattern = fmt.Sprintf("^(?=.*blk_%d_).*(?:%s)", l.Block.ID, pattern)
		}
		if _, refused := t.ask("log.await", patience.Milliseconds(), hadoop.Text(pattern)); refused != nil {
			t.disagree("%s: %v", f.name, refused)
		} else {
			t.agreed++
		}
	}
	return t.acked(f, between, l.Block, g.fileShape, hadoop.Addr(l.Nodes[0]))
}

// betweenFaults happen between the two datanodes of a pipeline.
var betweenFaults = []fault{
	{name: "a byte of data", kind: writtenPacket, index: 2, damage: flipData},
	{name: "PLEN -1", kind: writtenPacket, index: 2, damage: plen(-1)},
	{name: "cut in a packet", kind: writtenPacket, index: 2, damage: cutInside},
	{name: "an ack lost", kind: ackMessage, index: 1, damage: leaveOut},
	{name: "version 27", kind: requestMessage, damage: version27},
	{name: "the response lost", kind: responseMessage, damage: leaveOut},
	{name: "an answer that is an error", kind: responseMessage, damage: func(m *message) {
		r := packet.BlockOpResponse{Status: packet.ErrorInvalid, HasFirstBadLink: true}
		m.bytes = r.Append(nil)
	}},
}

// damagedBetweenNodes damages what datanodes of both kinds say to each other.
// Whatever pair it is, the client must hear what it hears from two of Hadoop's.
func damagedBetweenNodes(t *trial) (err error) {
	if err := t.startCluster(); err != nil {
		return err
	}
	own, err := t.startOwn(2)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.close()) }()
	for i := range betweenFaults {
		f := &betweenFaults[i]
		want := ""
		for _, order := range []string{"hh", "ho", "oh", "oo"} {
			g := goFile{
				fileShape{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 1 << 20, faultLength},
				fmt.Sprint("between-", i, order), packet.DefaultPacketSize, max(strings.Count(order, "h"), 1), nil,
			}
			_, l, err := t.locate(g)
			if err != nil {
				return err
			}
			heard, err := writeBetween(f, g, mix(l, order, own))
			if err != nil {
				return fmt.Errorf("%s, %s: %w", f.name, order, err)
			}
			switch {
			case order == "hh":
				want = heard
				t.same(heard != "", true, "%s: the client hears of it", f.name)
			case f.kind == responseMessage && order[0] == 'o' && strings.HasSuffix(want, noBadLink):
				// Hadoop passes on what it was told, and its client blames the first node
				t.same(heard, strings.TrimSuffix(want, noBadLink)+"1", "%s, the pipeline %s", f.name, order)
			default:
				t.same(heard, want, "%s, the pipeline %s", f.name, order)
			}
		}
	}
	for _, order := range []string{"hh", "ho", "oh", "oo"} {
		if err := t.secondRefuses(order, own); err != nil {
			return fmt.Errorf("the second node refuses, %s: %w", order, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, order := range []string{"hho", "ooh"} { // all go on
		g := goFile{
			fileShape{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 1 << 20, faultLength},
			"between-good-" + order, packet.DefaultPacketSize, strings.Count(order, "h"), nil,
		}
		if err := t.mixedPipeline(ctx, g, order, own[:strings.Count(order, "o")]); err != nil {
			return err
		}
	}
	return nil
}

// secondRefuses opens a pipeline of two whose second node has the block already.
// The client must hear that it is the second one.
func (t *trial) secondRefuses(order string, own ownPipeline) error {
	g := goFile{
		fileShape{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 1 << 20, faultLength},
		"refused-" + order, packet.DefaultPacketSize, max(strings.Count(order, "h"), 1), nil,
	}
	_, l, err := t.locate(g)
	if err != nil {
		return err
	}
	l = mix(l, order, own)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	silent := func(int) error { return nil }
	if _, err := g.put(ctx, l.Without(0), g.data(), silent); err != nil {
		return err
	}
	_, err = g.put(ctx, l, g.data(), silent)
	var op *packet.OpError
	t.same(errors.As(err, &op) && op.FirstBadLink == hadoop.Addr(l.Nodes[1]), true, "the second node refuses, the pipeline %s: %v", order, err)
	return nil
}

// noBadLink ends what the client hears if nobody is to blame.
const noBadLink = "-1"

// writeBetween writes to a pipeline of two with a fault between them. It returns
// what the client hears.
func writeBetween(f *fault, g goFile, l hadoop.Located) (heard string, err error) {
	between, err := startTap(hadoop.Addr(l.Nodes[1]))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, between.close()) }()
	f.once(between)
	l.Nodes[1] = between.before(l.Nodes[1])
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, failed := g.put(ctx, l, g.data(), func(int) error { return nil })
	var a *packet.AckError
	var op *packet.OpError
	switch {
	case errors.As(failed, &a):
		heard = fmt.Sprintf("ack %v of node %d", a.Status, a.Node)
	case errors.As(failed, &op):
		heard = fmt.Sprintf("response %v, bad link %d", op.Status, slices.Index(l.Addrs(), op.FirstBadLink))
	case lost(failed, message{}):
		heard = "the connection is lost"
	case failed != nil:
		return "", failed
	}
	return heard, nil
}

// readBlock reads the first n bytes of a block with our reader.
func readBlock(address string, b packet.Block, token packet.Token, n int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	r, err := packet.NewReader(ctx, conn, packet.ReadBlock{
		Block: b, Token: token, ClientName: hadoop.ClientName, Length: n, SendChecksums: true,
	}, packet.ReaderConfig{AllowNone: true})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// hadoopReadsDamaged damages what Hadoop's client reads from a node of ours: on
// the way, and on the disk.
func hadoopReadsDamaged(t *trial) (err error) {
	own, err := startOwnNode(t.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.close()) }()
	data := t.bytes(faultLength)
	r, err := t.write(own.store, 1, crc.Chunks{Kind: crc.CRC32C, Size: 512}, data)
	if err != nil {
		return err
	}
	read := func(node packet.DatanodeInfo) *hadoop.Refusal {
		_, refused := t.ask("reader.read", hadoop.NodeText(node), hadoop.Text(pool), 1, 1001, faultLength, 0, faultLength, true, faultLength)
		return refused
	}
	good := func(what string) {
		if refused := read(own.info()); refused != nil {
			t.disagree("%s: then: %v", what, refused)
		}
	}
	for i := range readFaults {
		f := &readFaults[i]
		between, err := startTap(own.addr.String())
		if err != nil {
			return err
		}
		f.once(between)
		t.said(f, read(between.before(own.info())))
		if err := between.close(); err != nil {
			return err
		}
		good(f.name)
	}
	for _, d := range onDisk(r) {
		if err := flipByte(d.file, d.at); err != nil {
			return err
		}
		t.said(&fault{name: d.String(), hadoop: `ChecksumException`}, read(own.info()))
		if err := flipByte(d.file, d.at); err != nil {
			return err
		}
		good(d.String())
	}
	return nil
}

// A flipped byte of a replica.
type flipped struct {
	file  string
	at    int64
	chunk int64 // block offset of the chunk that it damages
}

func (d flipped) String() string { return fmt.Sprintf("byte %d of %s", d.at, filepath.Base(d.file)) }

func onDisk(r replica) []flipped {
	return []flipped{{r.block, 0, 0}, {r.block, 70001, 136 * 512}, {r.block, faultLength - 1, faultLength / 512 * 512}, {r.meta, 7 + 4*11 + 2, 11 * 512}}
}

// weReadDamaged damages what our client reads from a datanode of Hadoop's: on
// the way, and on the disk.
func weReadDamaged(t *trial) error {
	s := fileShape{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 1 << 20, faultLength}
	l, err := t.located(s)
	if err != nil {
		return err
	}
	read := func(address string) error {
		_, err := readBlock(address, l.Block, l.Token, faultLength)
		return err
	}
	good := func(what string) {
		if err := read(hadoop.Addr(l.Nodes[0])); err != nil {
			t.disagree("%s: then: %v", what, err)
		}
	}
	for i := range readFaults {
		f := &readFaults[i]
		between, err := startTap(hadoop.Addr(l.Nodes[0]))
		if err != nil {
			return err
		}
		was := f.once(between)
		err = read(between.address())
		t.same(err != nil && f.ours(err, was()), true, "%s: what our client says: %v", f.name, err)
		if err := between.close(); err != nil {
			return err
		}
		good(f.name)
	}
	replicas, err := t.replicas(hadoop.Text(string(s.path())))
	if err != nil {
		return err
	}
	for _, d := range onDisk(replicas[0][0]) {
		if err := flipByte(d.file, d.at); err != nil {
			return err
		}
		err := read(hadoop.Addr(l.Nodes[0]))
		t.same(mismatch(d.chunk)(err, message{}), true, "%v: what our client says: %v", d, err)
		if err := flipByte(d.file, d.at); err != nil {
			return err
		}
		good(d.String())
	}
	return nil
}
