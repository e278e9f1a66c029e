//go:build linux || darwin

package datanode

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/blockpath/blockpath/crc/packet"
)

// transfer carries out a TRANSFER_BLOCK: it sends a copy of a replica, of what is
// visible of it, to other datanodes. It reports whether the connection may be
// used for another request.
func (c *conn) transfer(req *packet.TransferBlock) bool {
	err := c.sendCopy(req)
	if err == nil {
		return c.send((&packet.BlockOpResponse{HasFirstBadLink: true}).Append(nil)) == nil
	}
	status := statusOf(err)
	var refused *packet.OpError
	if errors.As(err, &refused) {
		status = refused.Status
	}
	c.refuse(req.Block, packet.BlockOpResponse{Status: status, Message: err.Error()})
	return false
}

func (c *conn) sendCopy(req *packet.TransferBlock) error {
	s := c.server
	r, err := s.store.Open(req.Block)
	if err != nil {
		return err
	}
	defer r.Close()
	if len(req.Targets) == 0 {
		return s.store.refuse("transfer", req.Block, packet.ErrorInvalid, "there is no target", nil)
	}
	first, storageType := req.Targets[0], packet.Disk
	write := packet.WriteBlock{
		Block: r.Block(), Token: req.Token, TraceInfo: req.TraceInfo, ClientName: req.ClientName,
		Targets: req.Targets[1:], Source: datanodeAt(c.LocalAddr()), Stage: packet.TransferFinalized,
		Checksum: packet.ChecksumOf(r.Chunks()),
	}
	if r.open {
		write.Stage = packet.TransferRBW
	}
	if len(req.TargetStorageTypes) > 0 {
		storageType, write.TargetStorageTypes = shift(req.TargetStorageTypes)
	}
	write.StorageType = storageType
	write.StorageID, write.TargetStorageIDs = shift(req.TargetStorageIDs)

	m, err := s.dialNode(s.ctx, &first, len(req.Targets))
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.put(write.Append(nil)); err != nil {
		return err
	}
	err = m.sendBlock(s.ctx, r, &c.remote.memory)
	if err != nil && !lost(err) || req.ClientName == "" { // then nothing is answered
		return err
	}
	// What a node says that refuses the copy counts more than that it takes no more
	// of it.
	if deadlineErr := m.SetReadDeadline(time.Now().Add(m.ackTimeout)); deadlineErr != nil {
		return errors.Join(err, deadlineErr)
	}
	res, readErr := packet.ReadBlockOpResponse(m.in)
	switch {
	case readErr != nil:
		return errors.Join(err, readErr)
	case res.Status != packet.Success:
		return &packet.OpError{Op: "TRANSFER_BLOCK", Block: r.Block(), Status: res.Status, FirstBadLink: m.name, Message: res.Message}
	}
	return err
}

// datanodeAt describes the node at an address, if it is one of the protocol.
func datanodeAt(a net.Addr) *packet.DatanodeInfo {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return nil
	}
	ip := tcp.IP.String()
	return &packet.DatanodeInfo{IPAddr: ip, HostName: ip, XferPort: uint32(tcp.Port)}
}

// put sends all of b.
func (m *mirror) put(b []byte) error {
	if err := m.SetWriteDeadline(time.Now().Add(m.writeTimeout)); err != nil {
		return err
	}
	_, err := m.Conn.Write(b)
	return err
}

// sendBlock sends the packets of a whole block, verified: a damaged replica is
// not to be copied. The memory is that of whoever asked for it.
func (m *mirror) sendBlock(ctx context.Context, r *BlockReader, memory *budget) error {
	chunks := r.Chunks()
	perPacket := int64(packet.PacketChunks(sendPacket, chunks)) * int64(chunks.BytesPerChunk())
	longest := int(min(perPacket, r.Len()))
	room := packet.MaxHeaderLen
	need := room + chunks.SumsLen(longest) + longest
	if err := memory.take(ctx, int64(need)); err != nil {
		return err
	}
	defer memory.give(int64(need))
	buf, err := r.store.arena.Get(ctx, need)
	if err != nil {
		return err
	}
	defer buf.Release()
	seqno, off := int64(0), int64(0)
	for off < r.Len() {
		n := int(min(perPacket, r.Len()-off))
		sums := buf.Slice(room, room+chunks.SumsLen(n))
		data := buf.Slice(room+sums.Len(), room+sums.Len()+n)
		if err := r.ReadChunks(ctx, data, sums, off); err != nil {
			return err
		}
		if err := r.verify(data, sums, off); err != nil {
			return err
		}
		if err := m.put(frame(buf.Bytes(), packet.Header{Offset: off, Seqno: seqno, DataLen: n}, sums.Len())); err != nil {
			return err
		}
		seqno++
		off += int64(n)
	}
	return m.put(packet.Header{Offset: off, Seqno: seqno, Last: true}.Append(nil, 0))
}
