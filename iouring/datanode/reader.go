//go:build linux || darwin

package datanode

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring"
)

// A BlockReader reads one replica as it was when it was opened: its length, and
// the checksum of its last chunk if that is not full. A writer may go on
// meanwhile, and an append or a recovery may move the files. A BlockReader is
// safe for concurrent use.
type BlockReader struct {
	store *Store
	block packet.Block
	replicaFiles
	open    bool // the block is being written, or was not finished
	chunks  crc.Chunks
	lastSum uint32
}

// Open opens a block for reading, up to its visible length. b.NumBytes is
// ignored. The store may have a newer generation stamp than b's, but not an
// older one.
//
// The error is a *[BlockError], which wraps a *[MetaError] if the .meta file
// cannot be used.
func (s *Store) Open(b packet.Block) (*BlockReader, error) {
	const op = "read"
	r := s.find(b)
	if r == nil {
		return nil, s.refuse(op, b, packet.Error, "the store does not have the block", nil)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return nil, s.refuse(op, b, packet.Error, "the store does not have the block any more", nil)
	}
	if r.stamp < b.Stamp {
		return nil, s.refuse(op, b, packet.Error, fmt.Sprintf("the replica has the older stamp %d", r.stamp), nil)
	}
	files, reason, err := r.acquire()
	if err != nil {
		return nil, s.refuse(op, b, packet.Error, reason, err)
	}
	if !r.known {
		if err := r.learn(files.meta.OS()); err != nil {
			return nil, s.refuse(op, b, packet.Error, "cannot use the .meta file", errors.Join(err, files.release()))
		}
	}
	return &BlockReader{
		store: s, block: r.block(), replicaFiles: files,
		open: r.state != finalized, chunks: r.chunks, lastSum: r.lastSum,
	}, nil
}

// learn reads from the .meta file what the replica has to know about it: the
// header, and the checksum of a partial last chunk. If that is missing, the
// checksum is taken for 0, so that a reader finds out. The caller holds r.mu.
func (r *replica) learn(meta *os.File) error {
	h, err := readMetaHeader(meta)
	if err != nil {
		return err
	}
	bpc := int64(h.Chunks.BytesPerChunk())
	if r.length%bpc != 0 && h.Chunks.Kind != crc.None {
		var b [4]byte
		if _, err := meta.ReadAt(b[:], sumOffset(h.Chunks, r.length-r.length%bpc)); err != nil && err != io.EOF {
			return err
		}
		r.lastSum = binary.BigEndian.Uint32(b[:])
	}
	r.chunks, r.known = h.Chunks, true
	return nil
}

// Block returns the block with the stamp that the replica has and the length
// that the reader sees.
func (r *BlockReader) Block() packet.Block { return r.block }

// Len returns the length of the block in bytes.
func (r *BlockReader) Len() int64 { return r.block.NumBytes }

// Chunks returns how the block is checksummed.
func (r *BlockReader) Chunks() crc.Chunks { return r.chunks }

// Close ends the use of the files, when no calls of ReadChunks and ReadAt are
// under way.
func (r *BlockReader) Close() error { return r.release() }

// ReadChunks fills data with the block's bytes from off on and sums with their
// checksums, without verifying. With a sums of length 0 it reads no checksums,
// and any range of the block. Otherwise off must be a multiple of the chunk
// size, data must end at such a multiple or at the end of the block, and sums
// has the length that belongs to that. ReadChunks panics on anything else.
//
// Checksums that the .meta file does not have, or that cannot be read, are 0, as
// in HDFS, so that whoever verifies finds out. A block file that is shorter than
// it was gives an error that wraps io.ErrUnexpectedEOF.
func (r *BlockReader) ReadChunks(ctx context.Context, data, sums iouring.Buffer, off int64) error {
	bpc, end := int64(r.chunks.BytesPerChunk()), off+int64(data.Len())
	if off < 0 || end > r.Len() || sums.Len() != 0 &&
		(off%bpc != 0 || end%bpc != 0 && end != r.Len() || sums.Len() != r.chunks.SumsLen(data.Len())) {
		panic(fmt.Sprintf("datanode: ReadChunks: %d bytes at %d with %d bytes of checksums, of a block of %d bytes in chunks of %d",
			data.Len(), off, sums.Len(), r.Len(), bpc))
	}
	if data.Len() == 0 {
		return nil
	}
	n, err := r.store.backend.ReadAt(ctx, r.blk.File, data, off)
	if err == io.EOF {
		err = fmt.Errorf("%s ends at %d: %w", r.blk.Name(), off+int64(n), io.ErrUnexpectedEOF)
	}
	if err != nil {
		return &BlockError{Op: "read", Block: r.block, Status: packet.Error, Reason: fmt.Sprintf("cannot read the data at %d", off), Err: err}
	}
	r.store.stats.Add2(statBytesRead, int64(n), statReads, 1)
	return r.readSumsOrZeros(ctx, sums, off, end)
}

// readSumsOrZeros is readSums for whoever passes them on: what cannot be read is
// 0.
func (r *BlockReader) readSumsOrZeros(ctx context.Context, sums iouring.Buffer, off, end int64) error {
	if sums.Len() == 0 {
		return nil
	}
	n, err := r.readSums(ctx, sums, off, end)
	if err == nil || ctx.Err() != nil {
		return err
	}
	r.store.log.Error("checksums are missing", "file", r.meta.Name(), "block offset", off, "error", err)
	clear(sums.Bytes()[n:])
	r.putLastSum(sums, end)
	return nil
}

// readSums fills sums with the checksums of the chunks from off to end, and
// returns how many bytes of them it could read.
func (r *BlockReader) readSums(ctx context.Context, sums iouring.Buffer, off, end int64) (int, error) {
	n, err := r.store.backend.ReadAt(ctx, r.meta.File, sums, sumOffset(r.chunks, off))
	if err != nil {
		return n, &BlockError{Op: "read", Block: r.block, Status: packet.Error, Reason: fmt.Sprintf("cannot read the checksums at %d", off), Err: err}
	}
	r.putLastSum(sums, end)
	return n, nil
}

// putLastSum puts the checksum of a partial last chunk to the end of sums, if
// they reach to there: the one in the file may already be that of more.
func (r *BlockReader) putLastSum(sums iouring.Buffer, end int64) {
	if end%int64(r.chunks.BytesPerChunk()) != 0 {
		binary.BigEndian.PutUint32(sums.Bytes()[sums.Len()-4:], r.lastSum)
	}
}

// ReadAt reads len(p) bytes at block offset off, any range, and verifies them:
// it is an [io.ReaderAt]. A chunk that does not verify gives a
// *[crc.MismatchError] in a *[BlockError]; n then counts the bytes before it,
// and the rest of p is cleared or as it was.
func (r *BlockReader) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, &BlockError{Op: "read", Block: r.block, Status: packet.Error, Reason: "negative offset", Err: fs.ErrInvalid}
	}
	want := min(int64(len(p)), max(r.Len()-off, 0))
	bpc := int64(r.chunks.BytesPerChunk())
	batch := max(readBatch/bpc, 1) * bpc
	for int64(n) < want {
		at := off + int64(n)
		start := at - at%bpc
		end := min(roundUp(off+want, bpc), start+batch, r.Len())
		got, err := r.readVerified(p[n:want], start, end, int(at-start))
		n += got
		if err != nil {
			return n, err
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// readBatch is how much ReadAt reads at once.
const readBatch = 64 << 10

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

// readVerified copies to p what the whole chunks from start to end hold behind
// the first skip bytes.
func (r *BlockReader) readVerified(p []byte, start, end int64, skip int) (int, error) {
	ctx := context.Background()
	length := int(end - start)
	buf, err := r.store.arena.Get(ctx, length+r.chunks.SumsLen(length))
	if err != nil {
		return 0, err
	}
	defer buf.Release()
	data, sums := buf.Slice(0, length), buf.Slice(length, buf.Len())
	if err := r.ReadChunks(ctx, data, sums, start); err != nil {
		return 0, err
	}
	good := length
	if err = r.verify(data, sums, start); err != nil {
		var bad *crc.MismatchError
		if errors.As(err, &bad) {
			good = int(bad.Offset - start)
		}
	}
	return copy(p, data.Bytes()[min(skip, good):good]), err
}

// verify checks data at block offset off against its checksums.
func (r *BlockReader) verify(data, sums iouring.Buffer, off int64) error {
	err := r.chunks.Verify(data.Bytes(), sums.Bytes(), off)
	if err == nil {
		return nil
	}
	r.store.stats.Add(statChecksumErrors, 1)
	return &BlockError{Op: "read", Block: r.block, Status: packet.ErrorChecksum, Reason: "the data is damaged", Err: err}
}
