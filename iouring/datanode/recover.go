//go:build linux || darwin

package datanode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/blockpath/blockpath/crc"
)

// found is what a pool's directories hold of one block.
type found struct {
	blocks []string // directories with blk_<id>
	infos  []fs.FileInfo
	metas  []string // directories with blk_<id>_<stamp>.meta
	stamps []int64
	young  bool // a crash may have taken something from a .meta file, see volume.young
}

// scan enters the replicas of a volume into the store, and recovers those that
// were being written. One that cannot be read is left alone: it is no reason not
// to serve the others.
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
	if err := s.clearCopies(v, pool); err != nil {
		return err
	}
	files := map[int64]*found{}
	rbw := rbwPath(v.root, pool)
	if err := s.list(v, rbw, false, files); err != nil {
		return err
	}
	if err := s.list(v, filepath.Join(poolDir(v.root, pool), finalizedDir), true, files); err != nil {
		return err
	}
	for id, f := range files {
		r := &replica{key: blockKey{pool, id}, vol: v}
		if err := s.adopt(r, f, rbw); err != nil {
			v.unread = true
			s.log.Error("cannot recover a block, left alone", "pool", pool, "block", id, "directory", v.root, "error", err)
		}
	}
	return nil
}

// list collects the block and .meta files in dir, or anywhere below it. The
// error is that of reading dir.
func (s *Store) list(v *volume, dir string, deep bool, files map[int64]*found) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil && path == dir {
			return err
		}
		if err != nil {
			v.unread = true
			s.log.Error("cannot read a directory, left alone", "directory", path, "error", err)
			return fs.SkipDir
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
		info, err := e.Info()
		if err != nil {
			v.unread = true
			s.log.Error("cannot look at a file, left alone", "file", path, "error", err)
			return nil
		}
		f := files[id]
		if f == nil {
			f = new(found)
			files[id] = f
		}
		if isMeta {
			f.metas, f.stamps = append(f.metas, filepath.Dir(path)), append(f.stamps, stamp)
			f.young = f.young || v.young(info)
			return nil
		}
		f.blocks, f.infos = append(f.blocks, filepath.Dir(path)), append(f.infos, info)
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
	// What a file lacks may be in a directory that could not be read.
	if len(f.blocks) == 0 {
		if !r.vol.unread && len(f.metas) == 1 && f.metas[0] == rbw && f.young {
			return s.setAside(filepath.Join(rbw, MetaName(r.key.id, f.stamps[0])))
		}
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
		if !r.vol.unread && f.blocks[0] == rbw && r.vol.young(f.infos[0]) {
			return s.setAside(filepath.Join(rbw, BlockName(r.key.id)))
		}
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
	r.stamp, r.length, r.state = f.stamps[m], f.infos[b].Size(), waiting
	if dir := f.blocks[b]; dir != rbw {
		r.state = finalized
		if dir != r.directory() {
			r.dir = dir
		}
	}
	young := r.vol.young(f.infos[b])
	if r.state == waiting || young {
		kept, err := s.recover(r, young)
		if err != nil {
			return err
		}
		if !kept {
			return nil
		}
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

// young reports whether a crash may have taken something from a file: it has
// changed since everything was known to be durable, and the store was not closed.
// A file has its time stamp from the beginning of a write, which may then have to
// wait for the disk.
func (v *volume) young(info fs.FileInfo) bool {
	return !v.intact && info.ModTime().After(v.durable.Add(-longestWrite))
}

const longestWrite = time.Minute

// setAside renames files that a failure has left and that make no replica, so
// that the block can be made again, and nothing is lost that somebody may want to
// look at.
func (s *Store) setAside(paths ...string) error {
	for _, path := range paths {
		aside, err := lostName(path)
		if err != nil {
			return err
		}
		s.log.Warn("a file that makes no replica is set aside", "file", path, "as", aside)
		if err := renameNew(path, aside); err != nil {
			return err
		}
	}
	return syncDir(filepath.Dir(paths[0]))
}

// keepAside copies files of which a recovery is going to cut something off that
// has its checksums.
func (s *Store) keepAside(files ...*os.File) error {
	for _, f := range files {
		aside, err := lostName(f.Name())
		if err != nil {
			return err
		}
		s.log.Warn("a file that is going to be cut is kept aside", "file", f.Name(), "as", aside)
		if err := copyFile(aside, f); err != nil {
			return err
		}
	}
	return syncDir(filepath.Dir(files[0].Name()))
}

func copyFile(to string, from *os.File) error {
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, io.NewSectionReader(from, 0, math.MaxInt64))
	return errors.Join(err, f.Sync(), f.Close())
}

// lostName returns a name for a file that is set aside, which nothing has yet.
func lostName(path string) (string, error) {
	name := path + ".lost"
	for n := 2; ; n++ {
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			return name, nil
		} else if err != nil {
			return "", err
		}
		name = fmt.Sprintf("%s.lost%d", path, n)
	}
}

// recover checks a replica that was being written, or that a power cut may have
// taken something from, against its checksums. It cuts it to the longest valid
// prefix and makes that durable. A finalized replica that is not whole goes back
// to the unfinished ones. If there are valid chunks behind the bad one, it keeps
// copies of the files: pages get to a disk in any order, but it may also be a
// chunk that was synced, and is damaged. It reports whether there is a replica.
func (s *Store) recover(r *replica, young bool) (kept bool, err error) {
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
	// What of a failed sync has not reached the disk is to be seen as missing: the
	// files are read from there.
	if r.state == waiting {
		if err := errors.Join(blk.Sync(), meta.Sync()); err != nil {
			return false, err
		}
	}
	_ = errors.Join(dropBehind(blk, 0), dropBehind(meta, 0))
	h, err := readMetaHeader(meta)
	var bad *MetaError
	switch {
	case errors.As(err, &bad) && young: // cut short, or a page of zeros
		return false, s.setAside(blk.Name(), meta.Name())
	case errors.As(err, &bad) && r.state == finalized:
		s.log.Error("a finalized block has no usable .meta file", "file", meta.Name(), "error", err)
		return true, nil
	case errors.As(err, &bad):
		s.log.Warn("files left alone", "file", meta.Name(), "error", err)
		return false, nil
	case err != nil:
		return false, err
	}
	n, lastSum, err := validPrefix(blk, meta, h.Chunks, r.length)
	more, metaSize := false, int64(0)
	if err == nil && n < r.length {
		more, err = validBehind(blk, meta, h.Chunks, n, r.length)
	}
	if err == nil {
		metaSize, err = fileSize(meta)
	}
	switch {
	case err != nil && r.state == finalized:
		r.vol.unread = true
		s.log.Error("a finalized block cannot be read", "file", blk.Name(), "error", err)
		return true, nil
	case err != nil:
		return false, err
	case r.state == finalized && n == r.length && metaSize == metaLen(h.Chunks, n):
		return true, nil
	}
	if more {
		if err := s.keepAside(blk, meta); err != nil {
			return false, err // nothing is cut off then
		}
	}
	if r.state == finalized {
		from := r.directory()
		if err := r.move(rbwPath(r.vol.root, r.key.pool), r.stamp); err != nil {
			return false, err
		}
		r.state = waiting
		if err := errors.Join(syncDir(r.directory()), syncDir(from)); err != nil {
			return false, err
		}
	}
	if err := truncate(blk, meta, h.Chunks, n, lastSum); err != nil {
		return false, err
	}
	if err := errors.Join(blk.Sync(), meta.Sync()); err != nil {
		return false, err
	}
	s.log.Info("an unfinished block was recovered", "file", r.blockPath(), "bytes", n, "dropped", r.length-n)
	s.stats.Add2(statBlocksRecovered, 1, statBytesDropped, r.length-n)
	r.length, r.lastSum = n, lastSum
	r.chunks, r.known = h.Chunks, true
	return true, nil
}

// validBehind reports whether a chunk behind the one that holds offset n has its
// checksum.
func validBehind(blk, meta io.ReaderAt, c crc.Chunks, n, size int64) (bool, error) {
	bpc := int64(c.BytesPerChunk())
	data, sum := make([]byte, bpc), make([]byte, 4)
	for off := n - n%bpc + bpc; off < size; off += bpc {
		got, err := readFull(blk, data[:min(bpc, size-off)], off)
		if err != nil {
			return false, err
		}
		gotSum, err := readFull(meta, sum, sumOffset(c, off))
		if err != nil {
			return false, err
		}
		if got == 0 || gotSum < len(sum) {
			return false, nil
		}
		if c.Verify(data[:got], sum, off) == nil {
			return true, nil
		}
	}
	return false, nil
}

// validPrefix returns how many of the first size bytes of a block file are
// covered by right checksums, and the checksum of the last chunk if that is
// partial.
//
// The first chunk that does not verify ends the prefix, but a part of it may
// still be valid: data reaches the file before the checksum that covers it, so
// the stored checksum may be that of a shorter chunk.
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
			part, sum := validPart(c.Kind, chunk, bad.Expected, sumOffset(c, bad.Offset))
			return bad.Offset + int64(part), sum, nil
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

// sectorSize is what a disk writes whole or not at all.
const sectorSize = 512

// validPart returns the length of the longest proper prefix of chunk whose
// checksum is stored at offset off of the .meta file, and that checksum; or 0.
//
// A checksum may lie across two sectors. If a power cut let only one of them
// reach the disk, stored is made of an old checksum and a newer one, of more
// data, which was made durable before. A part of a checksum does not say much:
// the longest prefix that has the old part, and a longer one behind it that has
// the new, lies between the two.
func validPart(k crc.Kind, chunk []byte, stored uint32, off int64) (n int, sum uint32) {
	sums := make([]uint32, len(chunk)) // of every prefix
	running := uint32(0)
	for i := range chunk {
		running = crc.Update(k, running, chunk[i:i+1])
		sums[i] = running
		if running == stored && i < len(chunk)-1 {
			n, sum = i+1, running
		}
	}
	first := sectorSize - off%sectorSize // bytes of the checksum in the first sector
	if n > 0 || first >= 4 {
		return n, sum
	}
	second := ^uint32(0) >> (8 * first)
	for _, old := range []uint32{second, ^second} {
		newer := false
		for i := len(sums) - 1; i >= n; i-- {
			if newer && (sums[i]^stored)&old == 0 {
				n, sum = i+1, sums[i]
				break
			}
			newer = newer || (sums[i]^stored)&^old == 0
		}
	}
	return n, sum
}

// readFull reads len(p) bytes at off, or up to the end of the file.
func readFull(r io.ReaderAt, p []byte, off int64) (int, error) {
	n, err := r.ReadAt(p, off)
	if err == io.EOF {
		err = nil
	}
	return n, err
}
