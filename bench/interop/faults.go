package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

var faultChecks = []check{
	{"faults/Hadoop's writer to us", hadoopWritesDamaged},
	{"faults/our writer to Hadoop", weWriteDamaged},
	{"faults/Hadoop's reader from us", hadoopReadsDamaged},
	{"faults/our reader from Hadoop", weReadDamaged},
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
}

// once makes the tap damage the first message that the fault is about. The
// message is kept as it was.
func (f *fault) once(p *tap) *message {
	was := new(message)
	done := false
	p.change = func(m *message) {
		if done || m.kind != f.kind || m.index != f.index {
			return
		}
		done = true
		*was = *m
		m.bytes = append([]byte{}, m.bytes...)
		f.damage(m)
	}
	return was
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
	{"a byte of data", writtenPacket, 2, flipData, noNode, refusedByAck},
	{"a checksum", writtenPacket, 2, flipSum, noNode, refusedByAck},
	{"version 27", requestMessage, 0, version27, noPipeline, lost},
	{"operation 99", requestMessage, 0, operation99, noPipeline, lost},
	{"a request cut short", requestMessage, 0, cutInside, noPipeline, lost},
	{"PLEN 3", writtenPacket, 1, plen(3), noNode, lost},
	{"PLEN -1", writtenPacket, 1, plen(-1), noNode, lost},
	{"PLEN above the limit", writtenPacket, 1, plen(packet.MaxPacketLen + 1), noNode, lost},
	{"HLEN -1", writtenPacket, 1, hlen(-1), noNode, lost},
	{"HLEN 0", writtenPacket, 1, hlen(0), noNode, lost},
	{"dataLen above PLEN", writtenPacket, 1, header(func(h *packet.Header) { h.DataLen *= 2 }), noNode, lost},
	{"dataLen too short", writtenPacket, 1, header(func(h *packet.Header) { h.DataLen -= 512 }), noNode, lost},
	{"a gap", writtenPacket, 1, header(func(h *packet.Header) { h.Offset += 512 }), noNode, lost},
	{"cut in a packet", writtenPacket, 2, cutInside, noNode, lost},
	{"cut between packets", writtenPacket, 2, cutBehind, noNode, lost},
	{"cut in an ack", ackMessage, 1, cutInside, noNode, lost},
	{"the response lost", responseMessage, 0, leaveOut, noPipeline, lost},
	{"the response cut short", responseMessage, 0, cutInside, noPipeline, lost},
}

// readFaults happen to a block on its way from a datanode.
var readFaults = []fault{
	{"a byte of data", readPacket, 1, flipData, `ChecksumException`, mismatch(512)},
	{"a checksum", readPacket, 1, flipSum, `ChecksumException`, mismatch(1024)},
	{"version 27", requestMessage, 0, version27, `EOFException|Connection reset|Premature EOF`, lost},
	{"operation 99", requestMessage, 0, operation99, `EOFException|Connection reset|Premature EOF`, lost},
	{"a request cut short", requestMessage, 0, cutInside, `EOFException|Connection reset|Premature EOF`, lost},
	{"PLEN 3", readPacket, 1, plen(3), `Invalid payload length 3`, malformed},
	{"PLEN -1", readPacket, 1, plen(-1), `Invalid payload length -1`, malformed},
	{"PLEN above the limit", readPacket, 1, plen(packet.MaxPacketLen + 1), `Incorrect value for packet payload size: 16777217`, malformed},
	{"HLEN -1", readPacket, 1, hlen(-1), `Invalid header length -1`, malformed},
	{"HLEN 0", readPacket, 1, hlen(0), `InvalidProtocolBufferException`, malformed},
	{"dataLen above PLEN", readPacket, 1, header(func(h *packet.Header) { h.DataLen *= 2 }), `data length in packet header exceeds data length received`, malformed},
	{"a packet left out", readPacket, 1, header(func(h *packet.Header) { h.Seqno++ }), `error in packet header`, malformed},
	{"data in the last packet", readPacket, 1, header(func(h *packet.Header) { h.Last = true }), `error in packet header`, malformed},
	{"cut in a packet", readPacket, 1, cutInside, `Premature EOF`, lost},
	{"cut between packets", readPacket, 1, cutBehind, `Premature EOF`, lost},
	{"the response lost", responseMessage, 0, leaveOut, `EOFException|Connection reset|Premature EOF`, lost},
	{"the response cut short", responseMessage, 0, cutInside, `EOFException|Connection reset|Premature EOF|Protobuf|protocol message`, lost},
	{"an answer that is an error", responseMessage, 0, func(m *message) {
		r := packet.BlockOpResponse{Status: packet.Error, Message: "no"}
		m.bytes = r.Append(nil)
	}, `Got error, status=ERROR, status message no`, func(err error, _ message) bool {
		var op *packet.OpError
		return errors.As(err, &op) && op.Status == packet.Error && op.Message == "no"
	}},
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

// hadoopWritesDamaged damages what Hadoop's client writes to a node of ours.
func hadoopWritesDamaged(t *trial) (err error) {
	own, err := startOwnNode(t.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.close()) }()
	for i := range writeFaults {
		if err := t.hadoopWriteDamaged(&writeFaults[i], own); err != nil {
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

func (t *trial) hadoopWriteDamaged(f *fault, own *ownNode) (err error) {
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
	t.same(err != nil && f.ours(err, *was), true, "%s: what our client says: %v", f.name, err)
	return t.acked(f, between, l.Block, g.fileShape, hadoop.Addr(l.Nodes[0]))
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
	if err := t.put(s); err != nil {
		return err
	}
	answer, refused := t.ask("cluster.locate", s.path())
	if refused != nil {
		return refused
	}
	l := hadoop.ParseLocated(answer)
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
		t.same(err != nil && f.ours(err, *was), true, "%s: what our client says: %v", f.name, err)
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
