//go:build linux || darwin

package datanode

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/blockpath/blockpath/crc"
)

// A VerifyConfig configures [Verify]. Its zero value reads as fast as it can.
type VerifyConfig struct {
	Rate int64 // bytes of block data per second; 0 means no limit

	// After makes Verify go on where an earlier run stopped: it skips everything
	// that the walk meets before this block file, and the file itself.
	After string

	// Progress, if set, is called after each block file, with its path, which is
	// what After takes, and with the report so far. It must not keep r.
	Progress func(path string, r *Report)
}

// A Report says what [Verify] found. The paths are those of the walk.
type Report struct {
	Files  int64 `json:"files"`  // block files checked
	Chunks int64 `json:"chunks"` // chunks checked
	Bytes  int64 `json:"bytes"`  // bytes of them

	Bad       []BadChunk  `json:"bad"`
	Orphans   []string    `json:"orphans"`    // block files without a .meta file, and the reverse
	ShortMeta []string    `json:"short_meta"` // .meta files that do not cover their block
	LongMeta  []string    `json:"long_meta"`  // .meta files with checksums for data that is not there
	Misplaced []string    `json:"misplaced"`  // block files outside the directory that their id asks for
	Irregular []string    `json:"irregular"`  // things named like a block that are not regular files
	Errors    []FileError `json:"errors"`     // what could not be checked, and why
}

// OK reports whether everything that should be there is, and verified. A
// misplaced block and a .meta file of Hadoop with a stale word behind its last
// checksum do not count against it.
func (r *Report) OK() bool {
	return len(r.Bad)+len(r.Orphans)+len(r.ShortMeta)+len(r.Irregular)+len(r.Errors) == 0
}

// A BadChunk is a chunk that does not have its stored checksum.
type BadChunk struct {
	File     string `json:"file"`   // the block file
	Offset   int64  `json:"offset"` // where the chunk starts in it
	Length   int    `json:"length"`
	Expected uint32 `json:"expected"`
	Computed uint32 `json:"computed"`

	// Bit is the bit that explains the mismatch if it alone was flipped, else
	// -1: bit Bit%8, 0 being the least significant, of the chunk's byte Bit/8.
	// Bytes from Length on are those of the stored checksum.
	Bit int64 `json:"bit"`
}

// A FileError is a problem with a file as a whole.
type FileError struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"` // from where on the file is unusable
	Reason string `json:"error"`
}

func (e *FileError) Error() string {
	return fmt.Sprintf("datanode: %s: at offset %d: %s", e.File, e.Offset, e.Reason)
}

// Verify checks every chunk of every block below paths against its stored
// checksum. A path is a directory, such as a data directory of a datanode, ours
// or Hadoop's, or a single block or .meta file. Nothing is written and
// directories are walked in lexical order.
//
// What is wrong with the blocks is in the report. The error is ctx's, or says
// that a path does not exist or is not a block; the report then holds what was
// found so far.
//
// A store may be in use meanwhile: files that vanish are skipped, and a chunk
// whose files have changed since they were opened is read again.
func Verify(ctx context.Context, paths []string, cfg VerifyConfig) (*Report, error) {
	s := &scrubber{
		ctx: ctx, cfg: cfg, after: cfg.After,
		report: &Report{
			Bad: []BadChunk{}, Orphans: []string{}, ShortMeta: []string{}, LongMeta: []string{},
			Misplaced: []string{}, Irregular: []string{}, Errors: []FileError{},
		},
	}
	if cfg.Rate > 0 {
		s.limit = rate.NewLimiter(rate.Limit(cfg.Rate), scrubRead)
	}
	if s.after != "" {
		i := slices.IndexFunc(paths, func(p string) bool { return within(p, s.after) })
		if i < 0 {
			return s.report, fmt.Errorf("datanode: cannot go on after %s: it is below none of the paths", s.after)
		}
		paths = paths[i:]
	}
	for _, p := range paths {
		if err := s.path(p); err != nil {
			return s.report, err
		}
		s.after = ""
	}
	return s.report, nil
}

// scrubRead is how much data is read and checked at once: little enough to stay
// in the second-level cache between the two.
const scrubRead = 256 << 10

type scrubber struct {
	ctx    context.Context
	cfg    VerifyConfig
	after  string
	limit  *rate.Limiter
	report *Report
	data   []byte
	sums   []byte
}

func (s *scrubber) path(p string) error {
	info, err := os.Stat(p)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return s.walk(filepath.Clean(p))
	}
	dir, name := filepath.Split(p)
	dir = filepath.Clean(dir)
	id, ok := ParseBlockName(name)
	if !ok {
		if id, _, ok = ParseMetaName(name); !ok {
			return fmt.Errorf("datanode: %s is not named like a block or .meta file", p)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	return s.blocks(dir, slices.DeleteFunc(entries, func(e fs.DirEntry) bool {
		other, isBlock := ParseBlockName(e.Name())
		if !isBlock {
			var isMeta bool
			if other, _, isMeta = ParseMetaName(e.Name()); !isMeta {
				return true
			}
		}
		return other != id
	}))
}

// walk checks a directory: first its own blocks, then those below it.
func (s *scrubber) walk(dir string) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.fail(dir, 0, err.Error())
		}
		return nil
	}
	if err := s.blocks(dir, entries); err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() || blockLike(e.Name()) {
			continue
		}
		sub := filepath.Join(dir, e.Name())
		if s.after != "" && !within(sub, s.after) && walkOrder(filepath.Join(sub, "blk"), s.after) < 0 {
			continue
		}
		if err := s.walk(sub); err != nil {
			return err
		}
	}
	return nil
}

func blockLike(name string) bool {
	if _, ok := ParseBlockName(name); ok {
		return true
	}
	_, _, ok := ParseMetaName(name)
	return ok
}

// A pair is what a directory holds of a block.
type pair struct {
	id        int64
	block     bool     // the block file is there
	stamps    []int64  // of the .meta files
	irregular []string // names
}

// blocks pairs the files among entries, which stand in dir, and checks them.
func (s *scrubber) blocks(dir string, entries []fs.DirEntry) error {
	pairs := map[int64]*pair{}
	for _, e := range entries {
		id, isBlock := ParseBlockName(e.Name())
		metaID, stamp, isMeta := ParseMetaName(e.Name())
		if !isBlock && !isMeta {
			continue
		}
		if isMeta {
			id = metaID
		}
		p := pairs[id]
		if p == nil {
			p = &pair{id: id}
			pairs[id] = p
		}
		switch {
		case !e.Type().IsRegular():
			p.irregular = append(p.irregular, e.Name())
		case isBlock:
			p.block = true
		default:
			p.stamps = append(p.stamps, stamp)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(pairs), func(a, b int64) int {
		return cmp.Compare(BlockName(a), BlockName(b))
	}) {
		p := pairs[id]
		path := filepath.Join(dir, BlockName(p.id))
		if s.after != "" && walkOrder(path, s.after) <= 0 {
			continue
		}
		if err := s.ctx.Err(); err != nil {
			return err
		}
		if err := s.pair(dir, p); err != nil {
			return err
		}
		if s.cfg.Progress != nil {
			s.cfg.Progress(path, s.report)
		}
	}
	return nil
}

func (s *scrubber) pair(dir string, p *pair) error {
	for _, name := range p.irregular {
		s.report.Irregular = append(s.report.Irregular, filepath.Join(dir, name))
	}
	// Of several .meta files the newest counts.
	slices.Sort(p.stamps)
	n := len(p.stamps)
	if p.block && n > 0 {
		n--
	}
	for _, stamp := range p.stamps[:n] {
		s.orphan(filepath.Join(dir, MetaName(p.id, stamp)))
	}
	switch {
	case p.block && len(p.stamps) > 0:
		return s.block(dir, p.id, p.stamps[n])
	case p.block:
		s.orphan(filepath.Join(dir, BlockName(p.id)))
	}
	return nil
}

// orphan reports a file, unless it has been renamed or deleted meanwhile.
func (s *scrubber) orphan(path string) {
	if _, err := os.Lstat(path); err == nil {
		s.report.Orphans = append(s.report.Orphans, path)
	}
}

// walkOrder compares two paths by the order in which the walk meets them: the
// files of a directory come before what is in its subdirectories.
func walkOrder(a, b string) int {
	da, fa := filepath.Split(filepath.Clean(a))
	db, fb := filepath.Split(filepath.Clean(b))
	if c := slices.Compare(strings.Split(da, "/"), strings.Split(db, "/")); c != 0 {
		return c
	}
	return cmp.Compare(fa, fb)
}

// within reports whether path is root or below it.
func within(root, path string) bool {
	rel, err := filepath.Rel(root, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

func (s *scrubber) fail(file string, offset int64, reason string) {
	s.report.Errors = append(s.report.Errors, FileError{File: file, Offset: offset, Reason: reason})
}

// A placement is what the directory of a block file says about it.
type placement struct {
	misplaced bool
	open      bool // still being written: rbw or tmp
}

// place judges the directory of a block file. Outside a datanode's tree any
// directory will do.
func place(dir string, id int64) placement {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return placement{}
	}
	parts := strings.Split(abs, "/")
	for i := len(parts) - 1; i >= 0; i-- {
		rest := strings.Join(parts[i+1:], "/")
		switch parts[i] {
		case finalizedDir:
			return placement{misplaced: rest != subdirs(id)}
		case rbwDir, tmpDir:
			if i > 1 && (parts[i-1] == currentDir || strings.HasPrefix(parts[i-1], "BP-")) {
				return placement{misplaced: rest != "", open: true}
			}
		}
	}
	return placement{}
}

// block checks a block file and its .meta file. The error is ctx's.
func (s *scrubber) block(dir string, id, stamp int64) error {
	path, metaPath := filepath.Join(dir, BlockName(id)), filepath.Join(dir, MetaName(id, stamp))
	f, err := os.Open(path)
	if err == nil {
		defer f.Close()
	}
	meta, metaErr := os.Open(metaPath)
	if metaErr == nil {
		defer meta.Close()
	}
	if err := errors.Join(err, metaErr); err != nil {
		// What a datanode renames or deletes meanwhile is not missing.
		if !errors.Is(err, fs.ErrNotExist) {
			s.fail(path, 0, err.Error())
		}
		return nil
	}
	at := place(dir, id)
	if at.misplaced {
		s.report.Misplaced = append(s.report.Misplaced, path)
	}
	s.report.Files++

	size, err := fileSize(f)
	if err != nil {
		s.fail(path, 0, err.Error())
		return nil
	}
	h, err := readMetaHeader(meta)
	if err != nil {
		var bad *MetaError
		if errors.As(err, &bad) && bad.Err == nil {
			s.report.ShortMeta = append(s.report.ShortMeta, metaPath)
			s.fail(metaPath, bad.Got, bad.Reason)
		} else {
			s.fail(metaPath, 0, err.Error())
		}
		return nil
	}
	return s.chunks(f, meta, h.Chunks, size, at)
}

func fileSize(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// chunks checks the data and the length of a block file against its .meta file.
func (s *scrubber) chunks(f, meta *os.File, c crc.Chunks, size int64, at placement) error {
	metaSize, err := fileSize(meta)
	if err != nil {
		s.fail(meta.Name(), 0, err.Error())
		return nil
	}
	bpc, sum := int64(c.BytesPerChunk()), int64(c.Kind.Size())
	covered := size
	if want := metaLen(c, size); metaSize < want {
		if sum > 0 {
			covered = min(size, (metaSize-MetaHeaderLen)/sum*bpc)
		}
		now, err := fileSize(meta)
		if err != nil || now < want && !changed(f, size) {
			s.report.ShortMeta = append(s.report.ShortMeta, meta.Name())
			s.fail(meta.Name(), metaSize, fmt.Sprintf("expected %d bytes for a block of %d, got %d", want, size, metaSize))
		}
	}
	// Hadoop's computeMeta puts the first checksum of its last batch, or zero for
	// an empty block, behind those of a block of whole chunks.
	var stale []byte
	staleKnown := true
	if metaSize == metaLen(c, size)+4 && size%bpc == 0 && sum > 0 {
		stale = make([]byte, 4)
		if _, err := meta.ReadAt(stale, metaSize-4); err != nil {
			stale = nil
		}
		staleKnown = size == 0 && binary.BigEndian.Uint32(stale) == 0
	}

	batch := max(scrubRead/bpc, 1) * bpc
	for off := int64(0); off < covered; off += batch {
		n := min(batch, covered-off)
		if err := s.wait(n); err != nil {
			return err
		}
		s.data = slices.Grow(s.data[:0], int(n))[:n]
		s.sums = slices.Grow(s.sums[:0], c.SumsLen(int(n)))[:c.SumsLen(int(n))]
		if got, err := f.ReadAt(s.data, off); int64(got) < n {
			if !changed(f, size) {
				s.fail(f.Name(), off+int64(got), err.Error())
			}
			return nil
		}
		if got, err := meta.ReadAt(s.sums, sumOffset(c, off)); got < len(s.sums) {
			if !changed(f, size) {
				s.fail(meta.Name(), sumOffset(c, off)+int64(got), err.Error())
			}
			return nil
		}
		if !staleKnown {
			for i := 0; i < len(s.sums) && !staleKnown; i += 4 {
				staleKnown = [4]byte(s.sums[i:]) == [4]byte(stale)
			}
		}
		s.report.Bytes += n
		s.report.Chunks += c.Count(n)
		s.mismatches(f, meta, c, size, off)
	}
	if metaSize > metaLen(c, size) && !at.open && !changed(f, size) {
		s.report.LongMeta = append(s.report.LongMeta, meta.Name())
		if stale == nil || !staleKnown {
			s.fail(f.Name(), size, fmt.Sprintf("the block ends here, but its .meta file has %d bytes instead of %d", metaSize, metaLen(c, size)))
		}
	}
	return nil
}

// wait pays for n bytes.
func (s *scrubber) wait(n int64) error {
	if s.limit == nil {
		return s.ctx.Err()
	}
	for n > 0 {
		part := min(n, int64(s.limit.Burst()))
		if err := s.limit.WaitN(s.ctx, int(part)); err != nil {
			if s.ctx.Err() == nil { // the deadline is nearer than the bytes
				<-s.ctx.Done()
			}
			return s.ctx.Err()
		}
		n -= part
	}
	return nil
}

// mismatches reports the bad chunks of what has been read at offset off.
func (s *scrubber) mismatches(f, meta *os.File, c crc.Chunks, size, off int64) {
	bpc, sum := c.BytesPerChunk(), c.Kind.Size()
	data, sums := s.data, s.sums
	for len(data) > 0 {
		var bad *crc.MismatchError
		if !errors.As(c.Verify(data, sums, off), &bad) {
			return
		}
		if !s.settles(f, meta, c, size, bad.Offset) {
			s.report.Bad = append(s.report.Bad, BadChunk{
				File: f.Name(), Offset: bad.Offset, Length: bad.Length,
				Expected: bad.Expected, Computed: bad.Computed,
				Bit: flippedBit(c.Kind, bad.Length, bad.Expected, bad.Computed),
			})
		}
		skip := int(bad.Offset-off) + bad.Length
		data, sums = data[skip:], sums[(skip+bpc-1)/bpc*sum:]
		off += int64(skip)
	}
}

// settles reads a chunk that does not verify again if a writer may just have
// been between its data and its checksum, and reports whether it then verifies.
func (s *scrubber) settles(f, meta *os.File, c crc.Chunks, size, off int64) bool {
	var sum [4]byte
	data := make([]byte, c.BytesPerChunk())
	for try := 0; try < 5 && changed(f, size); try++ {
		n, err := f.ReadAt(data, off)
		if err != nil && err != io.EOF || n == 0 {
			return false
		}
		if _, err := meta.ReadAt(sum[:], sumOffset(c, off)); err != nil {
			return false
		}
		if c.Verify(data[:n], sum[:], off) == nil {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// changed reports whether a block file has another length than before, or has
// been renamed or deleted.
func changed(f *os.File, size int64) bool {
	open, err := f.Stat()
	if err != nil {
		return true
	}
	named, err := os.Lstat(f.Name())
	return err != nil || open.Size() != size || !os.SameFile(open, named)
}
