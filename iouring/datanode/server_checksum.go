//go:build linux || darwin

package datanode

import (
	"context"
	"crypto/md5"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring"
)

// checksum carries out a BLOCK_CHECKSUM. It reports whether the connection may
// be used for another request.
func (c *conn) checksum(req *packet.BlockChecksum) bool {
	refuse := func(reason string) bool {
		c.refuse(req.Block, packet.BlockOpResponse{Status: packet.Error, Message: fmt.Sprintf("opBlockChecksum %s received exception %s", req.Block, reason)})
		return false
	}
	r, err := c.server.store.Open(req.Block)
	if err != nil {
		return refuse(err.Error())
	}
	defer r.Close()
	info, err := r.checksum(c.server.ctx, req)
	if err != nil {
		return refuse(err.Error())
	}
	return c.send((&packet.BlockOpResponse{BlockChecksum: info}).Append(nil)) == nil
}

// checksum makes of the stored checksums what a request asks for, as Hadoop's
// BlockChecksumHelper does.
func (r *BlockReader) checksum(ctx context.Context, req *packet.BlockChecksum) (*packet.BlockChecksumInfo, error) {
	info := &packet.BlockChecksumInfo{Chunks: r.chunks, Type: req.Type, StripeLength: req.StripeLength}
	length, err := r.Len(), error(nil)
	whole := req.Block.NumBytes >= length
	if !whole {
		length = req.Block.NumBytes
	}
	if length < 0 {
		return nil, fmt.Errorf("datanode: checksum of %d bytes", length)
	}
	buf, err := r.store.arena.Get(ctx, readBatch)
	if err != nil {
		return nil, err
	}
	defer buf.Release()
	if r.chunks.Kind != crc.None {
		if info.ChunksPerBlock, err = r.storedSums(); err != nil {
			return nil, err
		}
	}
	switch req.Type {
	case packet.MD5CRC:
		h := md5.New()
		err = r.eachSum(ctx, buf, length, func(sums []byte, _ int64) error { h.Write(sums); return nil })
		if extra := info.ChunksPerBlock - r.chunks.Count(r.Len()); err == nil && whole && extra > 0 {
			// Hadoop's computeMeta leaves a checksum too many, and its datanodes digest
			// it.
			_, err = io.Copy(h, io.NewSectionReader(r.meta.OS(), metaLen(r.chunks, r.Len()), extra*4))
		}
		info.Checksum = h.Sum(nil)
	case packet.CompositeCRC:
		if r.chunks.Kind == crc.None {
			return nil, fmt.Errorf("datanode: %s of a block without checksums", req.Type)
		}
		info.Checksum, err = r.composite(ctx, buf, length, req.StripeLength)
	default:
		return nil, fmt.Errorf("datanode: unknown checksum type %s", req.Type)
	}
	return info, err
}

// storedSums returns how many checksums the .meta file has. Of a block that is
// being written only those count that cover what is visible.
func (r *BlockReader) storedSums() (int64, error) {
	n := r.chunks.Count(r.Len())
	if r.open {
		return n, nil
	}
	size, err := fileSize(r.meta.OS())
	return max(n, (size-MetaHeaderLen)/4), err
}

// composite returns the CRCs of the stripes of the first length bytes.
func (r *BlockReader) composite(ctx context.Context, buf iouring.Buffer, length, stripe int64) ([]byte, error) {
	bpc := int64(r.chunks.BytesPerChunk())
	if stripe <= 0 || stripe > length {
		stripe = length
	}
	if stripe%bpc != 0 && stripe != length {
		return nil, fmt.Errorf("datanode: stripes of %d bytes cut chunks of %d", stripe, bpc)
	}
	var out []byte
	sum, left := uint32(0), stripe
	err := r.eachSum(ctx, buf, length, func(sums []byte, n int64) error {
		for n > 0 {
			part := min(n, left)
			k := r.chunks.SumsLen(int(part))
			composed, err := r.chunks.Compose(sums[:k], part)
			if err != nil {
				return err
			}
			sum = crc.Combine(r.chunks.Kind, sum, composed, part)
			sums, n, left = sums[k:], n-part, left-part
			if left == 0 {
				out = binary.BigEndian.AppendUint32(out, sum)
				sum, left = 0, stripe
			}
		}
		return nil
	})
	if err == nil && left < stripe {
		out = binary.BigEndian.AppendUint32(out, sum)
	}
	return out, err
}

// eachSum calls f for the checksums of the first length bytes, in pieces, with
// how many bytes they cover. If length is inside a chunk, its checksum is
// computed from the data, which has to verify.
func (r *BlockReader) eachSum(ctx context.Context, buf iouring.Buffer, length int64, f func(sums []byte, n int64) error) error {
	size, bpc := int64(r.chunks.Kind.Size()), int64(r.chunks.BytesPerChunk())
	if size == 0 {
		return nil
	}
	part := int64(0)
	if length < r.Len() {
		part = length % bpc
	}
	step := int64(buf.Len()) / size * bpc
	for off := int64(0); off < length-part; {
		n := min(step, length-part-off)
		sums := buf.Slice(0, int(r.chunks.Count(n)*size))
		if _, err := r.readSums(ctx, sums, off, off+n); err != nil {
			return err
		}
		if err := f(sums.Bytes(), n); err != nil {
			return err
		}
		off += n
	}
	if part == 0 {
		return nil
	}
	data := make([]byte, min(bpc, r.Len()-(length-part)))
	if _, err := r.ReadAt(data, length-part); err != nil {
		return err
	}
	return f(binary.BigEndian.AppendUint32(nil, crc.Checksum(r.chunks.Kind, data[:part])), part)
}
