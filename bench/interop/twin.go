package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

var twinChecks = []check{
	{"twins/requests to write", twinWrites},
	{"twins/requests to read", twinReads},
}

// The twins are a datanode of Hadoop's and one of ours. A session says the same
// to both and the transcripts are compared: what each answered, and whether it
// closed the connection.

// A session talks to one of the twins.
type session struct {
	conn net.Conn
	in   *bufio.Reader
	log  strings.Builder
}

// sessionTimeout is how long a twin may take to answer.
const sessionTimeout = patience

func dialSession(address string) (*session, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(sessionTimeout))
	return &session{conn: conn, in: bufio.NewReader(conn)}, nil
}

func (s *session) say(format string, args ...any) {
	fmt.Fprintf(&s.log, format+"; ", args...)
}

// send sends bytes. A twin that has closed already is noticed by what follows.
func (s *session) send(b []byte) { s.conn.Write(b) }

// failed notes why nothing could be read.
func (s *session) failed(err error) {
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		s.say("silent")
	default: // end of the stream, in or before a message, or a reset
		s.say("closed")
	}
}

// response notes a response.
func (s *session) response() (packet.BlockOpResponse, bool) {
	r, err := packet.ReadBlockOpResponse(s.in)
	if err != nil {
		s.failed(err)
		return r, false
	}
	s.say("%v", r.Status)
	if i := r.ReadChecksum; i != nil {
		s.say("%v/%d from %d", i.Chunks.Kind, i.Chunks.BytesPerChunk(), i.ChunkOffset)
	}
	return r, r.Status == packet.Success
}

// ack notes an ack.
func (s *session) ack() {
	a, err := packet.ReadAck(s.in)
	if err != nil {
		s.failed(err)
		return
	}
	s.say("ack %d %v %v", a.Seqno, a.Replies, a.Flags)
}

// end notes whether the twin closes the connection.
func (s *session) end() {
	b, err := s.in.ReadByte()
	if err != nil {
		s.failed(err)
		return
	}
	s.say("more, %d", b)
}

// refused notes whether the twin refuses what it was sent: it closes the
// connection, perhaps after an ack that is no success.
func (s *session) refused() {
	a, err := packet.ReadAck(s.in)
	switch {
	case err != nil:
	case a.Status(0) == packet.Success:
		s.say("ack %d %v: accepted", a.Seqno, a.Replies)
		return
	default:
		_, err = s.in.ReadByte()
	}
	if err == nil {
		s.say("an ack of failure, and more")
		return
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		s.say("silent")
		return
	}
	s.say("refused")
}

// data sends a packet of data at an offset.
func (s *session) data(c crc.Chunks, seqno, offset int64, data []byte, change func(*wirePacket)) {
	p := wirePacket{
		Header: packet.Header{Offset: offset, Seqno: seqno, DataLen: len(data)},
		sums:   c.Append(nil, data), data: data,
	}
	if change != nil {
		change(&p)
	}
	s.send(p.append(nil))
}

// A writeCase is a session on a block that is being written. The request has
// been answered when it begins, unless raw is set.
type writeCase struct {
	name   string
	stores int    // finalized length that both must have at the end, -1 if not finalized
	strict string // why we refuse what Hadoop accepts; then the transcripts may differ
	raw    bool
	talk   func(s *session, l hadoop.Located, c crc.Chunks)
}

func last(s *session, seqno, offset int64, change func(*wirePacket)) {
	p := wirePacket{Header: packet.Header{Offset: offset, Seqno: seqno, Last: true}}
	if change != nil {
		change(&p)
	}
	s.send(p.append(nil))
	s.ack()
	s.end()
}

var writeCases = []writeCase{
	{name: "a block in two packets", stores: 1100, talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 0, 0, ramp(1024), nil)
		s.ack()
		s.data(c, 1, 1024, ramp(76), nil)
		s.ack()
		last(s, 2, 1100, nil)
	}},
	{name: "an empty block", stores: 0, talk: func(s *session, _ hadoop.Located, _ crc.Chunks) { last(s, 0, 0, nil) }},
	{name: "a stray checksum in the last packet", stores: 0, talk: func(s *session, _ hadoop.Located, _ crc.Chunks) {
		last(s, 0, 0, func(p *wirePacket) { p.sums = make([]byte, 4) })
	}},
	{name: "seqnos from 100 on", stores: 512, talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 100, 0, ramp(512), nil)
		s.ack()
		last(s, 101, 512, nil)
	}},
	{name: "heartbeats", stores: 512, talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		beat := func() {
			s.send(packet.Header{Seqno: packet.HeartbeatSeqno}.Append(nil, 0))
			s.ack()
		}
		beat()
		s.data(c, 0, 0, ramp(512), nil)
		s.ack()
		beat()
		last(s, 1, 512, nil)
	}},
	{name: "empty packets", stores: 10, talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.send(packet.Header{}.Append(nil, 0))
		s.ack()
		s.send(packet.Header{Seqno: 1, Sync: true}.Append(nil, 0))
		s.ack()
		s.data(c, 2, 0, ramp(10), nil)
		s.ack()
		s.send(packet.Header{Seqno: 3, Offset: 10, Sync: true}.Append(nil, 0))
		s.ack()
		last(s, 4, 10, nil)
	}},
	{name: "a chunk sent again, longer", stores: 700, talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 0, 0, ramp(100), nil)
		s.ack()
		s.data(c, 1, 0, ramp(700), nil)
		s.ack()
		last(s, 2, 700, nil)
	}},
	{name: "a duplicate", stores: 700, talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 0, 0, ramp(700), nil)
		s.ack()
		s.data(c, 1, 0, ramp(512), nil)
		s.ack()
		last(s, 2, 700, nil)
	}},
	{name: "data without checksums", stores: 1000, talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 0, 0, ramp(1000), func(p *wirePacket) { p.sums = nil })
		s.ack()
		last(s, 1, 1000, nil)
	}},
	{name: "sync in the last packet", stores: 512, talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 0, 0, ramp(512), nil)
		s.ack()
		last(s, 1, 512, func(p *wirePacket) { p.Sync = true })
	}},
	{name: "a damaged byte of data", stores: -1, talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 0, 0, ramp(512), nil)
		s.ack()
		s.data(c, 1, 512, ramp(2000), func(p *wirePacket) { p.data[1111] ^= 4 })
		s.ack()
		s.end()
	}},
	{name: "a damaged checksum", stores: -1, talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 7, 0, ramp(1024), func(p *wirePacket) { p.sums[7] ^= 1 })
		s.ack()
		s.end()
	}},
	{name: "a damaged duplicate", stores: -1, talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 0, 0, ramp(1024), nil)
		s.ack()
		s.data(c, 1, 0, ramp(512), func(p *wirePacket) { p.data[0] ^= 1 })
		s.ack()
		s.end()
	}},
	{name: "a gap", stores: -1, talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 0, 512, ramp(512), nil)
		s.refused()
	}},
	{name: "a negative offset", stores: -1, strict: "nothing is before the block", talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 0, -512, ramp(1024), nil)
		s.refused()
	}},
	{name: "data that ends where the block begins", stores: -1, strict: "nothing is before the block", talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 0, -512, ramp(512), nil)
		s.refused()
	}},
	{name: "a checksum too few", stores: -1, talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 0, 0, ramp(1024), func(p *wirePacket) { p.sums = p.sums[:4] })
		s.refused()
	}},
	{name: "a checksum too many", stores: -1, talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 0, 0, ramp(512), func(p *wirePacket) { p.sums = append(p.sums, 1, 2, 3, 4) })
		s.refused()
	}},
	{name: "more than a chunk from the middle of one", stores: -1, talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 0, 0, ramp(100), nil)
		s.ack()
		s.data(c, 1, 100, ramp(600), nil)
		s.refused()
	}},
	{name: "PLEN 3", stores: -1, talk: func(s *session, _ hadoop.Located, _ crc.Chunks) {
		s.send(binary.BigEndian.AppendUint32(nil, 3))
		s.send(make([]byte, 64))
		s.refused()
	}},
	{name: "PLEN -1", stores: -1, talk: func(s *session, _ hadoop.Located, _ crc.Chunks) {
		s.send([]byte{255, 255, 255, 255, 0, 25})
		s.send(make([]byte, 64))
		s.refused()
	}},
	{name: "PLEN above the limit", stores: -1, talk: func(s *session, _ hadoop.Located, _ crc.Chunks) {
		s.send(packet.Header{DataLen: packet.MaxPacketLen}.Append(nil, 4))
		s.refused()
	}},
	{name: "HLEN -1", stores: -1, talk: func(s *session, _ hadoop.Located, _ crc.Chunks) {
		s.send([]byte{0, 0, 0, 4, 255, 255})
		s.send(make([]byte, 64))
		s.refused()
	}},
	{name: "HLEN 0", stores: -1, talk: func(s *session, _ hadoop.Located, _ crc.Chunks) {
		s.send([]byte{0, 0, 0, 4, 0, 0})
		s.refused()
	}},
	{name: "dataLen above PLEN", stores: -1, talk: func(s *session, _ hadoop.Located, _ crc.Chunks) {
		b := packet.Header{DataLen: 512}.Append(nil, 4)
		binary.BigEndian.PutUint32(b, 100)
		s.send(append(b, make([]byte, 96)...))
		s.refused()
	}},
	{name: "dataLen -1", stores: -1, talk: func(s *session, _ hadoop.Located, _ crc.Chunks) {
		b := packet.Header{DataLen: -1}.Append(nil, 0)
		binary.BigEndian.PutUint32(b, 4)
		s.send(b)
		s.refused()
	}},
	{name: "a connection cut in a packet", stores: -1, talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 0, 0, ramp(512), nil)
		s.ack()
		s.send(packet.Header{Offset: 512, Seqno: 1, DataLen: 512}.Append(nil, 4))
		s.conn.(*net.TCPConn).CloseWrite()
		s.refused()
	}},
	{name: "data in the last packet", stores: -1, strict: "the data would be counted but not stored", talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 0, 0, ramp(100), func(p *wirePacket) { p.Last = true })
		s.refused()
	}},
	{name: "a packet across a chunk boundary", stores: -1, strict: "the .meta file would lack a checksum", talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 0, 0, ramp(100), nil)
		s.ack()
		s.data(c, 1, 100, ramp(500), nil)
		s.refused()
	}},
	{name: "a seqno again", stores: -1, strict: "packets are in order", talk: func(s *session, _ hadoop.Located, c crc.Chunks) {
		s.data(c, 0, 0, ramp(512), nil)
		s.ack()
		s.data(c, 0, 512, ramp(512), nil)
		s.refused()
	}},
	{name: "version 27", stores: -1, raw: true, talk: func(s *session, l hadoop.Located, c crc.Chunks) {
		req := l.Request(packet.SetupCreate, int64(1<<20))
		req.Checksum = packet.ChecksumOf(c)
		b := req.Append(nil)
		b[1] = 27
		s.send(b)
		s.end()
	}},
	{name: "operation 99", stores: -1, raw: true, talk: func(s *session, l hadoop.Located, c crc.Chunks) {
		req := l.Request(packet.SetupCreate, int64(1<<20))
		req.Checksum = packet.ChecksumOf(c)
		b := req.Append(nil)
		b[2] = 99
		s.send(b)
		s.end()
	}},
	{name: "a request without its required fields", stores: -1, raw: true, talk: func(s *session, _ hadoop.Located, _ crc.Chunks) {
		s.send([]byte{0, packet.Version, packet.OpWriteBlock, 0})
		s.end()
	}},
	{name: "a request that is not protobuf", stores: -1, raw: true, talk: func(s *session, _ hadoop.Located, _ crc.Chunks) {
		s.send([]byte{0, packet.Version, packet.OpWriteBlock, 4, 255, 255, 255, 255})
		s.end()
	}},
	{name: "nothing but a hang-up", stores: -1, raw: true, talk: func(s *session, _ hadoop.Located, _ crc.Chunks) {
		s.conn.(*net.TCPConn).CloseWrite()
		s.end()
	}},
}

// twinWrites says the same to both twins, well-formed and malformed, and
// compares the answers and what is stored. Both must go on serving.
func twinWrites(t *trial) (err error) {
	if err := t.startCluster(); err != nil {
		return err
	}
	own, err := startOwnNode(filepath.Join(t.dir, "own"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.close()) }()
	c := crc.Chunks{Kind: crc.CRC32C, Size: 512}
	for i, w := range writeCases {
		path := hadoop.Text(fmt.Sprintf("/twin-%d", i))
		answer, refused := t.ask("cluster.create", path, 1, 1<<20)
		if refused != nil {
			return refused
		}
		file := answer[0]
		if answer, refused = t.ask("cluster.addBlock", path, file); refused != nil {
			return refused
		}
		l := hadoop.ParseLocated(answer)
		var logs [2]string
		for j, at := range []hadoop.Located{l, l.At(own.info())} {
			s, err := dialSession(hadoop.Addr(at.Nodes[0]))
			if err != nil {
				return err
			}
			if w.raw {
				w.talk(s, at, c)
			} else {
				req := at.Request(packet.SetupCreate, int64(1<<20))
				req.Checksum = packet.ChecksumOf(c)
				s.send(req.Append(nil))
				if _, ok := s.response(); ok {
					w.talk(s, at, c)
				}
			}
			s.conn.Close()
			logs[j] = s.log.String()
		}
		if w.strict != "" && logs[0] != logs[1] {
			t.strict(fmt.Sprintf("%s: %s: Hadoop: %sours: %s", w.name, w.strict, logs[0], logs[1]))
		} else {
			t.same(logs[1], logs[0], "%s", w.name)
		}
		if w.stores >= 0 {
			if err := t.sameStored(w, path, file, l, own); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameStored completes the file and compares the twins' replicas.
func (t *trial) sameStored(w writeCase, hexPath, file string, l hadoop.Located, own *ownNode) error {
	l.Block.NumBytes = int64(w.stores)
	if _, refused := t.ask("cluster.complete", hexPath, file, hadoop.BlockText(l.Block)); refused != nil {
		return refused
	}
	replicas, err := t.replicas(hexPath)
	if err != nil {
		return err
	}
	if len(replicas) != 1 || len(replicas[0]) != 1 {
		t.disagree("%s: the cluster has %d blocks", w.name, len(replicas))
		return nil
	}
	theirs := replicas[0][0]
	block, err := os.ReadFile(theirs.block)
	if err != nil {
		return err
	}
	meta, err := os.ReadFile(theirs.meta)
	if err != nil {
		return err
	}
	t.same(len(block), w.stores, "%s: length of Hadoop's replica", w.name)
	t.sameReplica(own.replica(l.Block), block, meta, "%s: replica", w.name)
	return nil
}

// twinReads asks both twins for ranges of the same blocks, some of which are
// impossible, and compares the answers: how the data is said to be checksummed
// and where it begins, every byte of data and checksums, and the end.
func twinReads(t *trial) (err error) {
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
	for i, s := range []fileShape{
		{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 1 << 20, 300001},
		{crc.Chunks{Kind: crc.CRC32, Size: 4096}, 1 << 20, 16384},
		{crc.Chunks{Kind: crc.CRC32C, Size: 7}, 7000, 1000},
		{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 1 << 20, 1},
	} {
		f := goFile{s, fmt.Sprintf("twin-read-%d", i), packet.DefaultPacketSize, 1, nil}
		all, err := t.writeFile(ctx, f, own)
		if err != nil {
			return err
		}
		l := all[0]
		n := int64(s.length)
		ranges := []packet.ReadBlock{
			{Offset: 0, Length: n}, {Offset: 0, Length: -1}, {Offset: 0, Length: 0}, {Offset: n, Length: 0}, {Offset: n - 1, Length: 1},
			{Offset: 1, Length: -1}, {Offset: 0, Length: n + 1}, {Offset: n, Length: 1}, {Offset: n + 1, Length: 0},
			{Offset: -1, Length: 1}, {Offset: 1 << 62, Length: 1 << 62}, {Offset: 0, Length: 1<<63 - 1},
		}
		for range t.times(30) {
			from := t.rng.Int64N(n)
			ranges = append(ranges, packet.ReadBlock{Offset: from, Length: 1 + t.rng.Int64N(n-from)})
		}
		for j, r := range ranges {
			r.Block, r.Token, r.ClientName, r.SendChecksums = l.Block, l.Token, "blockpath-interop", j%5 != 4
			switch {
			case j == 20:
				r.Block.Stamp--
			case j == 21:
				r.Block.Stamp++
			case j == 22:
				r.Block.ID += 1 << 40
			case j == 23:
				r.Block.Pool += "-other"
			}
			var logs [2]string
			for k, address := range []string{hadoop.Addr(l.Nodes[0]), own.addr.String()} {
				if logs[k], err = readSession(address, r); err != nil {
					return err
				}
			}
			if j == 23 { // Hadoop waits for the pool and closes, we say so at once
				t.same(strings.Contains(strings.Join(logs[:], ""), "SUCCESS"), false, "%v: another pool: %v", f, logs)
				continue
			}
			t.same(logs[1], logs[0], "%v: %d bytes from %d of %v, sums %t", f, r.Length, r.Offset, r.Block, r.SendChecksums)
		}
	}
	return nil
}

// readSession reads a range twice over one connection, if the node lets it.
func readSession(address string, r packet.ReadBlock) (string, error) {
	s, err := dialSession(address)
	if err != nil {
		return "", err
	}
	defer s.conn.Close()
	for range 2 {
		s.send(r.Append(nil))
		if _, ok := s.response(); !ok {
			s.end()
			break
		}
		var sums, data bytes.Buffer
		rec := packet.NewReceiver(s.in, 0)
		for {
			h, sumsLen, err := rec.Next()
			if err != nil {
				s.failed(err)
				return s.log.String(), nil
			}
			a, b, err := rec.Body(make([]byte, sumsLen+h.DataLen))
			if err != nil {
				s.failed(err)
				return s.log.String(), nil
			}
			sums.Write(a)
			data.Write(b)
			if h.Last {
				s.say("end at %d", h.Offset)
				break
			}
		}
		s.say("%d bytes %x, %d of checksums %x", data.Len(), sha256.Sum256(data.Bytes()), sums.Len(), sha256.Sum256(sums.Bytes()))
		status := packet.Success
		if r.SendChecksums {
			status = packet.ChecksumOK
		}
		s.send(packet.AppendReadStatus(nil, status))
	}
	return s.log.String(), nil
}
