//go:build linux || darwin

package datanode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/blockpath/blockpath/crc"
)

// found is what a pool's directories hold of one block.
type found struct {
	blocks []string // directories with blk_<id>, and their lengths
	sizes  []int64
	metas  []string // directories with blk_<id>_<stamp>.meta
	stamps []int64
}

// scan enters the replicas of a volume into the store, and recovers those that
// were being written.
func (s *Store) scan(v *volume) error {
	entries, err := os.ReadDir(filepath.Join(v.root, currentDir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() || !ValidPool(e.Name()) {
			continue
		}
		if err := v.addPool(e.Name()); err != nil {
			return err
		}
		if err := s.scanPool(v, e.Name()); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) scanPool(v *volume, pool string) error {
	files := map[int64]*found{}
	rbw := rbwPath(v.root, pool)
	if err := s.list(rbw, false, files); err != nil {
		return err
	}
	if err := s.list(filepath.Join(poolDir(v.root, pool), finalizedDir), true, files); err != nil {
		return err
	}
	for id, f := range files {
		r := &replica{key: blockKey{pool, id}, vol: v}
		if err := s.adopt(r, f, rbw); err != nil {
			return fmt.Errorf("datanode: recovery of block %d of pool %s in %s: %w", id, pool, v.root, err)
		}
	}
	return nil
}

// list collects the block and .meta files in dir, or anywhere below it.
func (s *Store) list(dir string, deep bool, files map[int64]*found) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if path != dir && !deep {
				return fs.SkipDir
			}
			return nil
		}
		id, isBlock := ParseBlockName(e.Name())
		metaID, stamp, isMeta := ParseMetaName(e.Name())
		switch {
		case !isBlock && !isMeta:
			return nil
		case !e.Type().IsRegular():
			s.log.Warn("not a regular file, left alone", "file", path)
			return nil
		case isMeta:
			id = metaID
		}
		f := files[id]
		if f == nil {
			f = new(found)
			files[id] = f
		}
		if isMeta {
			f.metas, f.stamps = append(f.metas, filepath.Dir(path)), append(f.stamps, stamp)
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		f.blocks, f.sizes = append(f.blocks, filepath.Dir(path)), append(f.sizes, info.Size())
		return nil
	})
}

// adopt makes a replica of the files of a block and enters it. Files that make
// no replica are left alone; the error is one of the disk.
func (s *Store) adopt(r *replica, f *found, rbw string) error {
	alone := func(why string) error {
		s.log.Warn("files left alone", "pool", r.key.pool, "block", r.key.id, "reason", why,
			"block files in", f.blocks, "meta files in", f.metas)
		return nil
	}
	if len(f.blocks) == 0 {
		return alone("there is no block file")
	}
	// The newest .meta file counts, and with it a block file in its directory.
	b, m := -1, -1
	for i, stamp := range f.stamps {
		beside := slices.Index(f.blocks, f.metas[i])
		if m < 0 || stamp > f.stamps[m] || stamp == f.stamps[m] && b < 0 {
			b, m = beside, i
		}
	}
	if m < 0 {
		return alone("there is no .meta file")
	}
	if b < 0 {
		// A crash was between the two renames: of a finalization, which is taken
		// back, so that the replica is checked; or of an append, which is too, as
		// nothing has been appended.
		b = 0
		from, name := f.metas[m], MetaName(r.key.id, f.stamps[m])
		if err := renameNew(filepath.Join(from, name), filepath.Join(f.blocks[b], name)); err != nil {
			return err
		}
		s.log.Info("an interrupted move was taken back", "file", filepath.Join(f.blocks[b], name), "from", from)
		if err := errors.Join(syncDir(f.blocks[b]), syncDir(from)); err != nil {
			return err
		}
	}
	if len(f.blocks) > 1 || len(f.metas) > 1 {
		if err := alone("another replica is newer"); err != nil {
			return err
		}
	}
	dir := f.blocks[b]
	r.stamp, r.length = f.stamps[m], f.sizes[b]
	if dir == rbw {
		r.state = waiting
		usable, err := s.recover(r)
		if err != nil {
			return err
		}
		if !usable {
			return alone("the .meta file has no valid header")
		}
	} else if dir != r.directory() {
		r.dir = dir
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.blocks[r.key]
	if old != nil && (old.stamp > r.stamp || old.stamp == r.stamp && old.length >= r.length) {
		return alone("another directory has a newer replica")
	}
	s.blocks[r.key] = r
	return nil
}

// recover cuts an unfinished replica to its longest valid prefix and makes that
// durable. It reports whether there is a header to go by.
func (s *Store) recover(r *replica) (usable bool, err error) {
	blk, err := os.OpenFile(r.blockPath(), os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer blk.Close()
	meta, err := os.OpenFile(r.metaPath(), os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer meta.Close()
	h, err := readMetaHeader(meta)
	var bad *MetaError
	if errors.As(err, &bad) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	n, lastSum, err := validPrefix(blk, meta, h.Chunks, r.length)
	if err != nil {
		return false, err
	}
	if err := truncate(blk, meta, h.Chunks, n, lastSum); err != nil {
		return false, err
	}
	if err := errors.Join(blk.Sync(), meta.Sync()); err != nil {
		return false, err
	}
	s.log.Info("an unfinished block was recovered", "file", blk.Name(), "bytes", n, "dropped", r.length-n)
	s.stats.Add2(statBlocksRecovered, 1, statBytesDropped, r.length-n)
	r.length, r.lastSum = n, lastSum
	r.chunks, r.known = h.Chunks, true
	return true, nil
}

// validPrefix returns how many of the first size bytes of a block file are
// covered by right checksums, and the checksum of the last chunk if it is
// partial.
//
// The first chunk that does not verify ends the prefix, but a part of it may
// still be valid: data reaches the file before the checksum that covers it, so
// the stored checksum may be that of a shorter chunk. The longest part that has
// it is kept.
func validPrefix(blk, meta io.ReaderAt, c crc.Chunks, size int64) (n int64, lastSum uint32, err error) {
	if c.Kind == crc.None {
		return size, 0, nil
	}
	bpc := int64(c.BytesPerChunk())
	batch := max(scrubRead/bpc, 1) * bpc
	data, sums := make([]byte, min(batch, size)), make([]byte, c.SumsLen(int(min(batch, size))))
	for n < size {
		data = data[:min(batch, size-n)]
		got, err := readFull(blk, data, n)
		if err != nil {
			return 0, 0, err
		}
		data = data[:got]
		sums = sums[:c.SumsLen(len(data))]
		gotSums, err := readFull(meta, sums, sumOffset(c, n))
		if err != nil {
			return 0, 0, err
		}
		sums = sums[:gotSums/4*4]
		covered := data[:min(int64(len(data)), int64(len(sums))/4*bpc)]

		var bad *crc.MismatchError
		if errors.As(c.Verify(covered, sums, n), &bad) {
			chunk := covered[bad.Offset-n:][:bad.Length]
			part := longestPart(c.Kind, chunk, bad.Expected)
			return bad.Offset + int64(part), bad.Expected, nil
		}
		n += int64(len(covered))
		if int64(len(covered)) < min(batch, size) || n == size {
			if n%bpc != 0 {
				lastSum = binary.BigEndian.Uint32(sums[len(sums)-4:])
			}
			return n, lastSum, nil
		}
	}
	return n, 0, nil
}

// longestPart returns the length of the longest proper prefix of chunk that has
// the checksum sum, or 0.
func longestPart(k crc.Kind, chunk []byte, sum uint32) int {
	longest := 0
	running := uint32(0)
	for i := range chunk[:len(chunk)-1] {
		if running = crc.Update(k, running, chunk[i:i+1]); running == sum {
			longest = i + 1
		}
	}
	return longest
}

// readFull reads len(p) bytes at off, or up to the end of the file.
func readFull(r io.ReaderAt, p []byte, off int64) (int, error) {
	n, err := r.ReadAt(p, off)
	if err == io.EOF {
		err = nil
	}
	return n, err
}
