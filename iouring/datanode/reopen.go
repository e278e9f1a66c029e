//go:build linux || darwin

package datanode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// errRecovered is why a writer is stopped by a recovery.
var errRecovered = errors.New("datanode: another client recovers the block")

// Append reopens a finalized block of the given length to write on at its end,
// under a new generation stamp. b.NumBytes is how long it is going to be at
// most, as for [Store.Create]. wire is how the packets are going to be
// checksummed: over as many bytes as the stored checksums, but the type may be
// another one and is then translated.
//
// The error is a *[BlockError]: with the status ErrorInvalid if the block has
// another stamp, length or state, or if newStamp is not greater than its stamp;
// ErrorUnsupported if the chunk sizes differ; ErrorChecksum if the last chunk,
// which is going to be extended, does not verify; else Error.
func (s *Store) Append(ctx context.Context, b packet.Block, newStamp, length int64, wire crc.Chunks) (*BlockWriter, error) {
	const op = "append"
	return s.reopen(ctx, op, b, newStamp, wire, func(r *replica) *BlockError {
		switch {
		case r.writer != nil || r.state != finalized:
			return s.refuse(op, b, packet.ErrorInvalid, fmt.Sprintf("the block is %s", r.state), nil)
		case r.stamp != b.Stamp:
			return s.refuse(op, b, packet.ErrorInvalid, fmt.Sprintf("the replica has the stamp %d", r.stamp), nil)
		case newStamp <= r.stamp:
			return s.refuse(op, b, packet.ErrorInvalid, fmt.Sprintf("the new stamp %d is not greater", newStamp), nil)
		}
		return s.checkLength(op, b, r, length, length)
	})
}

// RecoverAppend is Append after a failure: the replica may also have been
// reopened already, and have any stamp from b's to the new one. Its writer, if
// there is one, is stopped.
func (s *Store) RecoverAppend(ctx context.Context, b packet.Block, newStamp, length int64, wire crc.Chunks) (*BlockWriter, error) {
	return s.recoverWriter(ctx, "append recovery", b, newStamp, length, length, true, wire)
}

// Recover reopens an unfinished block after a failure of its pipeline, under a
// new generation stamp: the replica may have any stamp from b's to the new one.
// Its writer, if there is one, is stopped. At least minLen bytes must be there
// and at most maxLen, which is what its client has had acknowledged and what it
// has sent.
//
// A replica of which a sync has failed is not reopened, nor by the other
// recoveries: the node has to be left out of the pipeline.
func (s *Store) Recover(ctx context.Context, b packet.Block, newStamp, minLen, maxLen int64, wire crc.Chunks) (*BlockWriter, error) {
	return s.recoverWriter(ctx, "recovery", b, newStamp, minLen, maxLen, false, wire)
}

func (s *Store) recoverWriter(ctx context.Context, op string, b packet.Block, newStamp, minLen, maxLen int64, complete bool, wire crc.Chunks) (*BlockWriter, error) {
	return s.reopen(ctx, op, b, newStamp, wire, func(r *replica) *BlockError {
		if err := s.checkStamp(op, b, r, newStamp); err != nil {
			return err
		}
		if r.state == finalized && !complete {
			return s.refuse(op, b, packet.ErrorInvalid, "the block is finalized", nil)
		}
		if r.writer != nil {
			return nil // its length shows when it has stopped
		}
		return s.checkLength(op, b, r, minLen, maxLen)
	})
}

// RecoverClose finalizes a block of the given length, under a new generation
// stamp, after a failure at its end. The replica may be finalized already, and
// have any stamp from b's to the new one. Its writer, if there is one, is
// stopped.
func (s *Store) RecoverClose(ctx context.Context, b packet.Block, newStamp, length int64) error {
	const op = "close recovery"
	r, refused := s.claim(op, b, func(r *replica) *BlockError {
		if err := s.checkStamp(op, b, r, newStamp); err != nil || r.writer != nil {
			return err
		}
		return s.checkLength(op, b, r, length, length)
	})
	if refused != nil {
		return refused
	}
	defer r.mu.Unlock()
	if r.state != finalized {
		if err := r.trim(); err != nil {
			return s.refuse(op, b, packet.Error, "cannot cut the files to their length", err)
		}
		s.stats.Add(statBlocksFinalized, 1)
	}
	if err := r.finalize(newStamp, s.cfg.SyncOnClose); err != nil {
		return s.refuse(op, b, packet.Error, "cannot move the files", err)
	}
	return nil
}

// trim cuts the files of an unfinished replica, which a failure may have left
// longer, to its length. The caller holds r.mu.
func (r *replica) trim() error {
	blk, err := os.OpenFile(r.blockPath(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer blk.Close()
	meta, err := os.OpenFile(r.metaPath(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer meta.Close()
	return truncate(blk, meta, r.chunks, r.length, r.lastSum)
}

// checkStamp is the rule of all recoveries. The caller holds r.mu.
func (s *Store) checkStamp(op string, b packet.Block, r *replica, newStamp int64) *BlockError {
	if r.stamp < b.Stamp || r.stamp > newStamp {
		return s.refuse(op, b, packet.ErrorInvalid, fmt.Sprintf("the replica has the stamp %d, the new one is %d", r.stamp, newStamp), nil)
	}
	return nil
}

func (s *Store) checkLength(op string, b packet.Block, r *replica, minLen, maxLen int64) *BlockError {
	if r.length < minLen || r.length > maxLen {
		return s.refuse(op, b, packet.ErrorInvalid, fmt.Sprintf("the replica has %d bytes, expected %d to %d", r.length, minLen, maxLen), nil)
	}
	return nil
}

// claim returns the replica of a block, its mutex held, if check has nothing
// against it. A writer that check does not object to is stopped, and the replica
// checked again.
func (s *Store) claim(op string, b packet.Block, check func(*replica) *BlockError) (*replica, *BlockError) {
	r := s.find(b)
	if r == nil {
		return nil, s.refuse(op, b, packet.Error, "the store does not have the block", nil)
	}
	for {
		r.mu.Lock()
		// Close looks at every replica after it has set this.
		if s.closed.Load() {
			r.mu.Unlock()
			return nil, s.refuse(op, b, packet.Error, "shutting down", ErrStoreClosed)
		}
		if r.gone {
			r.mu.Unlock()
			return nil, s.refuse(op, b, packet.Error, "the store does not have the block any more", nil)
		}
		if err := check(r); err != nil {
			r.mu.Unlock()
			return nil, err
		}
		w := r.writer
		if w == nil {
			if r.failed == nil {
				return r, nil
			}
			// The kernel may have dropped what it could not write, and would say of
			// another sync that all is well.
			err := s.refuse(op, b, packet.Error, "a sync of the replica has failed", r.failed)
			r.mu.Unlock()
			return nil, err
		}
		r.mu.Unlock()
		w.stop(errRecovered)
	}
}

// reopen gives a replica that check has nothing against a writer and the new
// stamp, and moves it to rbw.
func (s *Store) reopen(ctx context.Context, op string, b packet.Block, newStamp int64, wire crc.Chunks, check func(*replica) *BlockError) (*BlockWriter, error) {
	r, refused := s.claim(op, b, check)
	if refused != nil {
		return nil, refused
	}
	defer r.mu.Unlock()
	if refused := s.admit(op, b); refused != nil {
		return nil, refused
	}
	begun := false
	defer func() {
		if !begun {
			s.writers.Add(-1)
		}
	}()
	blk, err := s.openFile(r.blockPath(), os.O_RDWR, 0)
	if err != nil {
		return nil, s.refuse(op, b, packet.Error, "cannot open the block file", err)
	}
	meta, err := s.openFile(r.metaPath(), os.O_RDWR, 0)
	if err != nil {
		return nil, s.refuse(op, b, packet.Error, "cannot open the .meta file", errors.Join(err, blk.Close()))
	}
	fail := func(status packet.Status, reason string, err error) (*BlockWriter, error) {
		return nil, s.refuse(op, b, status, reason, errors.Join(err, blk.Close(), meta.Close()))
	}
	if !r.known {
		if err := r.learn(meta.OS()); err != nil {
			return fail(packet.Error, "cannot use the .meta file", err)
		}
	}
	if wire.BytesPerChunk() != r.chunks.BytesPerChunk() {
		return fail(packet.ErrorUnsupported, fmt.Sprintf("checksums over %d bytes, the replica has them over %d", wire.BytesPerChunk(), r.chunks.BytesPerChunk()), nil)
	}
	tail, err := r.readTail(blk.OS(), meta.OS())
	if err != nil {
		status := packet.Error
		var bad *crc.MismatchError
		if errors.As(err, &bad) {
			status = packet.ErrorChecksum
		}
		return fail(status, "the replica is damaged", err)
	}
	// What a crash or Hadoop's computeMeta has left beyond the end would come to
	// lie between what is there and what is written.
	if err := truncate(blk.OS(), meta.OS(), r.chunks, r.length, r.lastSum); err != nil {
		return fail(packet.Error, "cannot cut the files to their length", err)
	}
	reserved := max(b.NumBytes-r.length, 0)
	if err := r.vol.reserve(reserved); err != nil {
		return fail(packet.Error, "no room", err)
	}
	if err := r.move(rbwPath(r.vol.root, r.key.pool), newStamp); err != nil {
		r.vol.reserved.Add(-reserved)
		return fail(packet.Error, "cannot move the files", err)
	}
	r.state, begun = writing, true
	w := newWriter(s, r, wire, reserved)
	w.blk, w.meta, w.tail, w.tailSum = blk, meta, tail, r.lastSum
	// For all that is known this has been synced.
	w.synced = r.length
	return w, nil
}

// readTail returns the bytes of the partial last chunk, verified. It fails if
// the files are shorter than the replica. The caller holds r.mu.
func (r *replica) readTail(blk, meta *os.File) ([]byte, error) {
	for _, f := range []struct {
		*os.File
		want int64
	}{{blk, r.length}, {meta, metaLen(r.chunks, r.length)}} {
		if size, err := fileSize(f.File); err != nil {
			return nil, err
		} else if size < f.want {
			return nil, fmt.Errorf("%s has %d bytes, expected %d: %w", f.Name(), size, f.want, io.ErrUnexpectedEOF)
		}
	}
	n := r.length % int64(r.chunks.BytesPerChunk())
	tail := make([]byte, n)
	if _, err := blk.ReadAt(tail, r.length-n); err != nil {
		return nil, err
	}
	if r.chunks.Kind != crc.None && n > 0 {
		if sum := crc.Checksum(r.chunks.Kind, tail); sum != r.lastSum {
			return nil, &crc.MismatchError{Kind: r.chunks.Kind, Offset: r.length - n, Length: int(n), Expected: r.lastSum, Computed: sum}
		}
	}
	return tail, nil
}
