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
		c.refuse(req.Block, packet.BlockOpResponse{Status: packet.Error, Message: fmt.Sprintf("opReadBlock %s received exception %s", req.Block, reason)})
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
	send := rangeSend{conn: c, r: r, rng: rng, off: rng.from}
	if err := send.run(); err != nil {
		if !send.begun && !lost(err) {
			return refuse(err.Error())
		}
		if !lost(err) {
			c.server.stats.Add(statFailed, 1)
			c.server.log.Error("read failed", "peer", c.RemoteAddr(), "block", r.Block(), "error", err)
		}
		return false
	}
	// A client that does not say how it went does not want the connection again.
	c.expect(c.server.cfg.ReadTimeout)
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
	from, to   int64
	chunks     crc.Chunks // as told to the client
	perPacket  int64      // bytes of data
	dropBehind bool       // the client has no use for it in the page cache
}

// A packet has as much data as Hadoop's datanodes send, or with a long read as
// fits into a buffer of 256 KiB, whole pages of it: that takes a fifth less CPU
// time, and Hadoop's clients take packets of up to 16 MiB. A single chunk may be
// longer.
const (
	sendPacket     = 64 << 10
	sendLongPacket = 252 << 10
	longRead       = 256 << 10 // as Hadoop has it
)

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
	rng.perPacket = max(sendPacket/bpc, 1) * bpc
	if rng.to-rng.from >= longRead {
		rng.perPacket = max(sendLongPacket/bpc, 1) * bpc
	}
	rng.dropBehind = req.Caching.DropBehind != nil && *req.Caching.DropBehind
	longest := min(rng.perPacket, rng.to-rng.from)
	if longest > int64(s.cfg.MaxPacketLen)-packet.MaxHeaderLen-int64(rng.chunks.Kind.Size()) {
		return rng, fmt.Sprintf("a chunk of %d bytes is too long for a packet", longest)
	}
	return rng, ""
}
