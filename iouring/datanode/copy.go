//go:build linux || darwin

package datanode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// errReplaced is why a writer is stopped by a newer copy of its block.
var errReplaced = errors.New("datanode: another datanode sends a newer copy of the block")

// Copy begins a copy of a replica that another datanode sends: b.NumBytes bytes
// with b's stamp. It stays apart, and unreadable, until it is complete and
// finalized; ended in any other way, it is deleted. An older replica that is not
// finalized is replaced then, with transfer set also one that is; but none that
// has more bytes, since what was acknowledged once is in every newer one.
//
// The error is that of [Store.Create]; ErrorExists if the store has a replica
// that is not to be replaced.
func (s *Store) Copy(ctx context.Context, b packet.Block, c crc.Chunks, transfer bool) (*BlockWriter, error) {
	const op = "copy"
	if err := s.checkNew(op, b, c); err != nil {
		return nil, err
	}
	if old := s.find(b); old != nil {
		old.mu.Lock()
		err := s.checkReplaced(op, b, old, transfer)
		old.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
	s.mu.RLock()
	other := s.copies[keyOf(b)]
	s.mu.RUnlock()
	if other != nil {
		other.mu.Lock()
		older, w := other.stamp < b.Stamp, other.writer
		other.mu.Unlock()
		if older && w != nil {
			w.stop(errReplaced)
		}
	}
	w, err := s.begin(ctx, op, b, c, copying)
	if err != nil {
		return nil, err
	}
	w.transfer = transfer
	return w, nil
}

// checkReplaced refuses to replace a replica. The caller holds old.mu.
func (s *Store) checkReplaced(op string, b packet.Block, old *replica, transfer bool) *BlockError {
	if old.stamp < b.Stamp && old.length <= b.NumBytes && (transfer || old.state != finalized) {
		return nil
	}
	return s.refuse(op, b, packet.ErrorExists, fmt.Sprintf("the block exists, %s, with stamp %d and %d bytes", old.state, old.stamp, old.length), nil)
}

// convert ends the writer of a complete copy of a replica that is being written:
// it is then an unfinished replica, for a recovery to go on with.
func (w *BlockWriter) convert(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.flush(ctx); err != nil {
		return err
	}
	return w.install(waiting, false)
}

// install makes a complete copy, whose writer has then ended, the store's replica
// of the block, in the given state.
func (w *BlockWriter) install(state replicaState, durable bool) error {
	err := w.store.replace(w.r, state, w.transfer, durable)
	if err != nil {
		w.err = err
		return errors.Join(err, w.discard())
	}
	if state == finalized {
		w.store.stats.Add(statBlocksFinalized, 1)
	}
	return w.finish()
}

// replace puts the copy r in the place of the replica that the store has of the
// block, if it has one.
func (s *Store) replace(r *replica, state replicaState, transfer, durable bool) error {
	const op = "copy"
	b := packet.Block{Pool: r.key.pool, ID: r.key.id, Stamp: r.stamp, NumBytes: r.length}
	var old *replica
	for {
		s.mu.Lock()
		if old = s.blocks[r.key]; old == nil {
			break
		}
		old.mu.Lock()
		refused := s.checkReplaced(op, b, old, transfer)
		w := old.writer
		if refused == nil && w == nil {
			break
		}
		old.mu.Unlock()
		s.mu.Unlock()
		if refused != nil {
			return refused
		}
		w.stop(errReplaced)
	}
	// Whoever finds the new replica waits until its files are where they belong.
	r.mu.Lock()
	s.blocks[r.key] = r
	delete(s.copies, r.key)
	s.mu.Unlock()
	err := r.moveOver(old, state, durable)
	if err != nil {
		r.gone = true
	} else if old != nil {
		old.gone = true
	}
	if old != nil {
		old.mu.Unlock()
	}
	r.mu.Unlock()
	if err == nil {
		if old != nil {
			s.log.Info("a replica was replaced by a newer copy", "block", b, "stamp of the old one", old.stamp)
		}
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.blocks, r.key)
	if old != nil {
		s.blocks[r.key] = old
	}
	return s.refuse(op, b, packet.Error, "cannot move the files", err)
}

// moveOver moves the files of a complete copy to where those of a replica in the
// given state are, the .meta file first, and then removes those of the old
// replica, if there is one. At every moment there are files of one of the two,
// or of the new checksums and the old data, which is the same as far as it goes.
// The caller holds the mutexes of both.
func (r *replica) moveOver(old *replica, state replicaState, durable bool) error {
	to := rbwPath(r.vol.root, r.key.pool)
	if state == finalized {
		to = finalizedPath(r.vol.root, r.key.pool, r.key.id)
	}
	if err := r.vol.mkdir(to, durable); err != nil {
		return err
	}
	oldMeta, newMeta := r.metaPath(), filepath.Join(to, MetaName(r.key.id, r.stamp))
	if err := renameNew(oldMeta, newMeta); err != nil {
		return err
	}
	newBlock, rename := filepath.Join(to, BlockName(r.key.id)), renameNew
	if old != nil && old.blockPath() == newBlock {
		rename = os.Rename
	}
	if err := rename(r.blockPath(), newBlock); err != nil {
		return errors.Join(err, os.Rename(newMeta, oldMeta))
	}
	r.state = state
	r.vol.dirty.Store(true)
	r.forget()
	if old != nil {
		old.forget()
		// What is left of it an opening of the store takes for what it is, older.
		_ = os.Remove(old.metaPath())
		if old.blockPath() != newBlock {
			_ = os.Remove(old.blockPath())
		}
	}
	if !durable {
		return nil
	}
	return syncDir(to)
}

// Discard ends the writer and deletes the replica: it is for a block of which
// nothing has been promised to its client. After the end of the writer it does
// nothing.
func (w *BlockWriter) Discard() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.discard()
}

func (w *BlockWriter) discard() error {
	if w.ended {
		return nil
	}
	w.store.stats.Add(statBlocksAborted, 1)
	return errors.Join(w.finish(), w.store.remove(w.r))
}

// remove removes a replica, which has no writer, and its files.
func (s *Store) remove(r *replica) error {
	r.mu.Lock()
	r.gone = true
	r.forget()
	err := errors.Join(os.Remove(r.blockPath()), os.Remove(r.metaPath()))
	r.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, replicas := range []map[blockKey]*replica{s.blocks, s.copies} {
		if replicas[r.key] == r {
			delete(replicas, r.key)
		}
	}
	return err
}

// clearCopies removes the copies of a pool that a crash has left incomplete.
func (s *Store) clearCopies(v *volume, pool string) error {
	dir := tmpPath(v.root, pool)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		_, isBlock := ParseBlockName(e.Name())
		_, _, isMeta := ParseMetaName(e.Name())
		if !e.Type().IsRegular() || !isBlock && !isMeta {
			continue
		}
		s.log.Info("an incomplete copy is removed", "file", filepath.Join(dir, e.Name()))
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
