//go:build linux || darwin

package datanode

import (
	"fmt"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// read carries out a READ_BLOCK. It reports whether the connection may be used
// for another request.
func (c *conn) read(req *packet.ReadBlock) bool {
	refuse := func(reason string) bool {
		// Hadoop's text, by which clients may know it.
		c.refuse(req.Block, packet.Error, fmt.Sprintf("opReadBlock %s received exception %s", req.Block, reason))
		return false
	}
	r, err := c.server.store.Open(req.Block)
	if err != nil {
		return refuse(err.Error())
	}
	defer r.Close()
	rng, problem := c.server.plan(r, req)
	if problem != "" {
		return refuse(problem)
	}
	if answered, err := c.sendRange(r, rng); err != nil {
		if !answered && !lost(err) {
			return refuse(err.Error())
		}
		if !lost(err) {
			c.server.stats.Add(statFailed, 1)
			c.server.log.Error("read failed", "peer", c.RemoteAddr(), "block", r.Block(), "error", err)
		}
		return false
	}
	// A client that does not say how it went does not want the connection again.
	if err := c.expect(c.server.cfg.ReadTimeout); err != nil {
		return false
	}
	status, err := packet.ReadReadStatus(c.in)
	if err != nil {
		c.malformed(err)
		return false
	}
	if status == packet.ErrorChecksum {
		c.server.log.Error("a client found a damaged chunk", "peer", c.RemoteAddr(), "block", r.Block(), "from", rng.from, "to", rng.to)
	}
	return true
}

// A chunkRange is what a read sends: whole chunks, but for the end of the block.
type chunkRange struct {
	from, to  int64
	chunks    crc.Chunks // as told to the client
	perPacket int64      // bytes of data
}

// sendPacket is the greatest length of a packet that is sent, unless a single
// chunk is longer.
const sendPacket = packet.DefaultPacketSize

// plan returns the chunks that a request needs, or why it cannot be.
func (s *Server) plan(r *BlockReader, req *packet.ReadBlock) (rng chunkRange, problem string) {
	length := req.Length
	if length < 0 {
		length = r.Len()
	}
	if req.Offset < 0 || req.Offset > r.Len() || length > r.Len()-req.Offset {
		return rng, fmt.Sprintf("Offset %d and length %d don't match block %s ( blockLen %d )", req.Offset, length, r.Block(), r.Len())
	}
	rng.chunks = r.Chunks()
	if !req.SendChecksums {
		rng.chunks = crc.Chunks{Kind: crc.None, Size: crc.DefaultChunkSize}
	}
	bpc := int64(rng.chunks.BytesPerChunk())
	rng.from = req.Offset - req.Offset%bpc
	rng.to = min(roundUp(req.Offset+length, bpc), r.Len())
	rng.perPacket = int64(packet.PacketChunks(sendPacket, rng.chunks)) * bpc
	longest := min(rng.perPacket, rng.to-rng.from)
	if longest > int64(s.cfg.MaxPacketLen)-packet.MaxHeaderLen-int64(rng.chunks.Kind.Size()) {
		return rng, fmt.Sprintf("a chunk of %d bytes is too long for a packet", longest)
	}
	return rng, ""
}

// readRoom is what a packet buffer has before the checksums: enough for a
// response and a packet header.
const readRoom = 64 + packet.MaxHeaderLen

// sendRange sends the response and the packets of a read. The response goes with
// the first packet and the empty last packet with the last data, so that a short
// read is answered with one write. It reports whether the response has been sent.
func (c *conn) sendRange(r *BlockReader, rng chunkRange) (answered bool, err error) {
	longest := int(min(rng.perPacket, rng.to-rng.from))
	buf, err := c.server.store.arena.Get(c.server.ctx, readRoom+rng.chunks.SumsLen(longest)+longest+packet.MaxHeaderLen)
	if err != nil {
		return false, err
	}
	defer buf.Release()

	response := packet.BlockOpResponse{ReadChecksum: &packet.ReadChecksumInfo{Chunks: rng.chunks, ChunkOffset: rng.from}}
	head := response.Append(make([]byte, 0, readRoom))
	seqno, off := int64(0), rng.from
	for {
		n := int(min(rng.perPacket, rng.to-off))
		sumsLen := rng.chunks.SumsLen(n)
		sums := buf.Slice(readRoom, readRoom+sumsLen)
		data := buf.Slice(readRoom+sumsLen, readRoom+sumsLen+n)
		if err := r.ReadChunks(c.server.ctx, data, sums, off); err != nil {
			return answered, err
		}
		if n > 0 {
			head = packet.Header{Offset: off, Seqno: seqno, DataLen: n}.Append(head, sumsLen)
			seqno++
		}
		off += int64(n)
		out := buf.Slice(readRoom-len(head), readRoom+sumsLen+n).Bytes()
		copy(out, head)
		if off == rng.to {
			out = packet.Header{Offset: off, Seqno: seqno, Last: true}.Append(out, 0)
		}
		answered = true
		if err := c.send(out); err != nil {
			return answered, err
		}
		c.server.stats.Add2(statPacketsSent, 1, statBytesSent, int64(n))
		if off == rng.to {
			return answered, nil
		}
		head = head[:0]
	}
}
