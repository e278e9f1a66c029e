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
	"runtime"
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

	// Report, if set, is what the earlier run has found. This one adds to it.
	Report *Report

	// Progress, if set, is called after each block file, with its path, which is
	// what After takes, and with the report so far, which is what Report takes. It
	// must not keep r.
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
// found in the files that were checked to their end. The reads have a low
// priority.
//
// A store may be in use meanwhile: files that vanish are skipped, and a chunk
// whose files have changed since they were opened is read again.
func Verify(ctx context.Context, paths []string, cfg VerifyConfig) (*Report, error) {
	s := &scrubber{
		ctx: ctx, cfg: cfg, after: cfg.After, report: cfg.Report,
	}
	if s.report == nil {
		s.report = &Report{
			Bad: []BadChunk{}, Orphans: []string{}, ShortMeta: []string{}, LongMeta: []string{},
			Misplaced: []string{}, Irregular: []string{}, Errors: []FileError{},
		}
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
	done := make(chan error, 1)
	go func() {
		// The thread has the low priority, and ends with the goroutine.
		runtime.LockOSThread()
		lowPriority()
		done <- s.run(paths)
	}()
	return s.report, <-done
}

func (s *scrubber) run(paths []string) error {
	defer s.settleOrphans()
	for _, p := range paths {
		if err := s.path(p); err != nil {
			return err
		}
		s.after = ""
	}
	return nil
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
		before := *s.report
		if err := s.pair(dir, p); err != nil {
			*s.report = before // a later run checks the file from its start
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

// orphan notes a file whose partner was not there when the directory was read.
// Whether it is an orphan shows at the end: it may just be created or moved.
func (s *scrubber) orphan(path string) { s.report.Orphans = append(s.report.Orphans, path) }

// settleOrphans takes from the report the orphans that are none any more. To
// those that have changed lately it gives a little time.
func (s *scrubber) settleOrphans() {
	for try := 0; ; try++ {
		moving := false
		s.report.Orphans = slices.DeleteFunc(s.report.Orphans, func(path string) bool {
			info, err := os.Lstat(path)
			if err != nil || hasPartner(path) {
				return true
			}
			moving = moving || time.Since(info.ModTime()) < time.Minute
			return false
		})
		if !moving || try == 50 || s.ctx.Err() != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// hasPartner reports whether a block file has a .meta file beside it, or a .meta
// file is the newest of its block.
func hasPartner(path string) bool {
	dir, name := filepath.Split(path)
	id, isBlock := ParseBlockName(name)
	if !isBlock {
		id, _, _ = ParseMetaName(name)
		if _, err := os.Lstat(filepath.Join(dir, BlockName(id))); err != nil {
			return false
		}
	}
	entries, err := os.ReadDir(dir)
	metas := 0
	for _, e := range entries {
		if other, _, isMeta := ParseMetaName(e.Name()); isMeta && other == id {
			metas++
		}
	}
	return err == nil && (isBlock && metas > 0 || metas == 1)
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

// A scrubbed is a block file and its .meta file being checked.
type scrubbed struct {
	*scrubber
	f, meta  *os.File
	at       placement
	c        crc.Chunks
	size     int64 // of the block file when it was opened
	patience int
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
	b := &scrubbed{scrubber: s, f: f, meta: meta, at: place(dir, id), patience: 50}
	if b.at.misplaced {
		s.report.Misplaced = append(s.report.Misplaced, path)
	}
	s.report.Files++
	if b.size, err = fileSize(f); err != nil {
		s.fail(path, 0, err.Error())
		return nil
	}
	h, err := readMetaHeader(meta)
	for err != nil && b.pause() {
		h, err = readMetaHeader(meta)
	}
	var bad *MetaError
	switch {
	case errors.As(err, &bad) && bad.Err == nil:
		s.report.ShortMeta = append(s.report.ShortMeta, metaPath)
		s.fail(metaPath, bad.Got, bad.Reason)
		return nil
	case err != nil:
		s.fail(metaPath, 0, err.Error())
		return nil
	}
	b.c = h.Chunks
	return b.check()
}

func fileSize(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// pause waits a little if the files may be in the hands of a writer, who comes
// to the checksums after the data, and reports whether to look again.
func (b *scrubbed) pause() bool {
	if b.patience == 0 || b.ctx.Err() != nil || !b.moving() {
		return false
	}
	b.patience--
	time.Sleep(10 * time.Millisecond)
	return true
}

func (b *scrubbed) moving() bool {
	open, err := b.f.Stat()
	if err != nil || open.Size() != b.size || b.at.open && time.Since(open.ModTime()) < time.Minute {
		return true
	}
	named, err := os.Lstat(b.f.Name())
	return err != nil || !os.SameFile(open, named)
}

// check checks the data and the length of a block file against its .meta file.
func (b *scrubbed) check() error {
	c, bpc, sum := b.c, int64(b.c.BytesPerChunk()), int64(b.c.Kind.Size())
	want := metaLen(c, b.size)
	metaSize, err := fileSize(b.meta)
	for err == nil && metaSize < want && b.pause() {
		metaSize, err = fileSize(b.meta)
	}
	if err != nil {
		b.fail(b.meta.Name(), 0, err.Error())
		return nil
	}
	readOnce(b.f)
	covered := b.size
	switch {
	case sum == 0:
		covered = 0 // nothing to check it against
	case metaSize < want:
		covered = min(b.size, (metaSize-MetaHeaderLen)/sum*bpc)
		b.report.ShortMeta = append(b.report.ShortMeta, b.meta.Name())
		b.fail(b.meta.Name(), metaSize, fmt.Sprintf("expected %d bytes for a block of %d, got %d", want, b.size, metaSize))
	}
	// Hadoop's computeMeta puts the first checksum of its last batch, or zero for
	// an empty block, behind those of a block of whole chunks.
	var stale []byte
	staleKnown := false
	if metaSize == want+4 && b.size%bpc == 0 && sum > 0 {
		stale = make([]byte, 4)
		if _, err := b.meta.ReadAt(stale, want); err != nil {
			b.fail(b.meta.Name(), want, err.Error())
			return nil
		}
		staleKnown = b.size == 0 && binary.BigEndian.Uint32(stale) == 0
	}

	batch := max(scrubRead/bpc, 1) * bpc
	for off := int64(0); off < covered; off += batch {
		n := min(batch, covered-off)
		if err := b.wait(n); err != nil {
			return err
		}
		b.data = slices.Grow(b.data[:0], int(n))[:n]
		b.sums = slices.Grow(b.sums[:0], c.SumsLen(int(n)))[:c.SumsLen(int(n))]
		if !b.read(b.f, b.data, off) || !b.read(b.meta, b.sums, sumOffset(c, off)) {
			return nil
		}
		for i := 0; stale != nil && !staleKnown && i < len(b.sums); i += 4 {
			staleKnown = [4]byte(b.sums[i:]) == [4]byte(stale)
		}
		b.report.Bytes += n
		b.report.Chunks += c.Count(n)
		b.mismatches(off)
	}
	if metaSize > want && !b.at.open && !b.moving() {
		b.report.LongMeta = append(b.report.LongMeta, b.meta.Name())
		if !staleKnown {
			b.fail(b.f.Name(), b.size, fmt.Sprintf("the block ends here, but its .meta file has %d bytes instead of %d", metaSize, want))
		}
	}
	return nil
}

// read fills p from f. What it cannot read it reports, unless a writer has just
// cut the file.
func (b *scrubbed) read(f *os.File, p []byte, off int64) bool {
	n, err := f.ReadAt(p, off)
	if n == len(p) {
		return true
	}
	if err != io.EOF || !b.moving() {
		b.fail(f.Name(), off+int64(n), err.Error())
	}
	return false
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
func (b *scrubbed) mismatches(off int64) {
	bpc, sum := b.c.BytesPerChunk(), b.c.Kind.Size()
	data, sums := b.data, b.sums
	for len(data) > 0 {
		var bad *crc.MismatchError
		if !errors.As(b.c.Verify(data, sums, off), &bad) {
			return
		}
		if !b.settles(bad.Offset) {
			b.report.Bad = append(b.report.Bad, BadChunk{
				File: b.f.Name(), Offset: bad.Offset, Length: bad.Length,
				Expected: bad.Expected, Computed: bad.Computed,
				Bit: flippedBit(b.c.Kind, bad.Length, bad.Expected, bad.Computed),
			})
		}
		skip := int(bad.Offset-off) + bad.Length
		data, sums = data[skip:], sums[(skip+bpc-1)/bpc*sum:]
		off += int64(skip)
	}
}

// settles reads a chunk that does not verify again as long as a writer may be
// between its data and its checksum, and reports whether it then verifies.
func (b *scrubbed) settles(off int64) bool {
	var sum [4]byte
	var data []byte
	for b.pause() {
		if data == nil {
			data = make([]byte, b.c.BytesPerChunk())
		}
		n, err := readFull(b.f, data, off)
		if err != nil || n == 0 {
			return false
		}
		if _, err := b.meta.ReadAt(sum[:], sumOffset(b.c, off)); err != nil {
			return false
		}
		if b.c.Verify(data[:n], sum[:], off) == nil {
			return true
		}
	}
	return false
}
