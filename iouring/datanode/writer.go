//go:build linux || darwin

package datanode

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring"
)

// A flush happens when this much data has gathered, which sixteen packets of
// 64 KiB do, whole pages of data, or as many packets as fit into one gathering
// write.
const (
	flushBytes   = 960 << 10
	flushPackets = 64
)

// A BlockWriter writes the replica of one block. Packets go in by WritePacket
// and gather in memory; Flush writes them, and only then may they be
// acknowledged. At the end comes Finalize or Abort.
//
// After an error of the disk every further call returns that error; the files
// hold what had been flushed. Somebody else may stop a writer, by a recovery of
// the block or by closing the store; it then behaves as if aborted, and calls
// return an error that says so.
//
// A BlockWriter is meant for one goroutine, but safe for concurrent use.
type BlockWriter struct {
	store *Store
	r     *replica
	blk   *iouring.File
	meta  *iouring.File
	wire  crc.Chunks // of the packets
	disk  crc.Chunks // of the .meta file

	mu       sync.Mutex // all below
	err      error      // sticky
	ended    bool
	onStop   func()
	seqno    int64
	last     bool // the packet that ends the block has come
	end      int64
	written  int64 // data and checksums are in the files
	reserved int64 // behind what is written, or allocated

	// While end is not a multiple of the chunk size: the bytes from the last
	// chunk's start to end, and their checksum.
	tail    []byte
	tailSum uint32

	// What has been accepted and not yet written: the bytes from written to end,
	// the checksums that go to sumsAt of the .meta file, and the allocations that
	// these are views of.
	data   []iouring.Buffer
	sums   []iouring.Buffer
	held   []iouring.Buffer
	sumsAt int64

	relaying     bool    // another node verifies, see relay
	transfer     bool    // as Store.Copy was told
	direct       *direct // if the block goes past the page cache
	dropBehind   bool
	preallocated int64 // up to here the block file has been allocated
	unallocable  bool  // the file system does not do that
	trimming     bool  // there may be something allocated behind the end
	hinted       int64 // up to here the kernel has been told what to do with the page cache

	synced    int64 // durable, with their checksums
	dirSynced bool

	// Statistics, added to the store's with every flush.
	packets int64
}

// newWriter returns a writer that goes on at the replica's length. The replica
// is not yet anybody else's.
func newWriter(s *Store, r *replica, wire crc.Chunks, reserved int64) *BlockWriter {
	w := &BlockWriter{
		store: s, r: r, wire: wire, disk: r.chunks,
		seqno: math.MinInt64, end: r.length, written: r.length, reserved: reserved,
	}
	r.writer = w
	return w
}

// create makes the files of a new block, the .meta file with its header.
func (w *BlockWriter) create(ctx context.Context) (err error) {
	r := w.r
	if err := r.vol.addPool(r.key.pool); err != nil {
		return err
	}
	if w.blk, err = w.store.createFile(r.blockPath()); err != nil {
		return err
	}
	if w.meta, err = w.store.createFile(r.metaPath()); err == nil {
		header := MetaHeader{Version: MetaVersion, Chunks: w.disk}.Append(nil)
		if _, err = w.meta.OS().WriteAt(header, 0); err == nil {
			return nil
		}
		err = errors.Join(err, w.meta.Close(), os.Remove(r.metaPath()))
	}
	return errors.Join(err, w.blk.Close(), os.Remove(r.blockPath()))
}

// createFile creates a file of a new replica. What is in its place is no replica:
// an earlier failure has left it.
func (s *Store) createFile(name string) (*iouring.File, error) {
	const flags = os.O_RDWR | os.O_CREATE | os.O_EXCL
	f, err := s.openFile(name, flags, 0o644)
	if errors.Is(err, fs.ErrExist) {
		if err := s.setAside(name); err != nil {
			return nil, err
		}
		f, err = s.openFile(name, flags, 0o644)
	}
	return f, err
}

// Block returns the block, NumBytes being its visible length.
func (w *BlockWriter) Block() packet.Block {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	return w.r.block()
}

// Chunks returns what checksums the packets have to bring.
func (w *BlockWriter) Chunks() crc.Chunks { return w.wire }

// Visible returns the length that readers see: everything before it is in the
// files with its checksums.
func (w *BlockWriter) Visible() int64 {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	return w.r.length
}

// Written returns up to where the block is in the files. That is what readers
// see, unless another node has to accept it first.
func (w *BlockWriter) Written() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written
}

// Pending returns how many bytes of data wait for a flush.
func (w *BlockWriter) Pending() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.end - w.written
}

// gathers reports whether the writer holds buffers that it was given.
func (w *BlockWriter) gathers() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.held) > 0
}

// NotifyStop makes f be called once, on another goroutine, when somebody else
// stops the writer; at once if that has happened already.
func (w *BlockWriter) NotifyStop(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended && w.err != nil {
		go f()
		return
	}
	w.onStop = f
}

// BufferLen returns how long the buffer has to be in which WritePacket takes a
// packet: the checksums and the data, and room for checksums that the packet
// does not bring.
func (w *BlockWriter) BufferLen(h packet.Header, sumsLen int) int {
	n := sumsLen + h.DataLen
	if w.disk.Kind != crc.None && sumsLen == 0 {
		n += w.disk.SumsLen(h.DataLen)
	}
	return n
}

// Check reports whether a packet may come next, by its header and the length of
// its checksums in bytes: a *[PacketError] if not. Nothing is changed, so it can
// be asked before there is memory for the packet.
//
// The rules are those of HDFS, and those it should have. Data must not begin
// before the block or beyond its end so far. A packet that does not begin at a
// chunk must lie in that chunk. Checksums are one per chunk of the packet or
// none at all. Sequence numbers grow, but for the heartbeat's, and nothing comes
// after the last packet, which has no data.
func (w *BlockWriter) Check(h packet.Header, sumsLen int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.check(h, sumsLen)
}

func (w *BlockWriter) check(h packet.Header, sumsLen int) error {
	bad := func(reason string, expected, got int64) error {
		block := w.Block()
		block.NumBytes = w.written
		return &PacketError{Block: block, Seqno: h.Seqno, Offset: h.Offset, Reason: reason, Expected: expected, Got: got}
	}
	length, sums := int64(h.DataLen), int64(sumsLen)
	if w.last {
		return bad("it comes after the last packet", w.seqno, h.Seqno)
	}
	if h.Seqno == packet.HeartbeatSeqno {
		if length > 0 || h.Last {
			return bad("a heartbeat has no data", 0, length)
		}
	} else if h.Seqno <= w.seqno || h.Seqno < 0 {
		return bad("the sequence number does not grow", max(w.seqno+1, 0), h.Seqno)
	}
	if h.Offset < 0 || length < 0 || h.Offset > math.MaxInt64-length {
		return bad("negative offset or length", 0, min(h.Offset, length))
	}
	if h.Offset > w.end {
		return bad("data is missing before it", w.end, h.Offset)
	}
	if length == 0 {
		if sums > 4 {
			return bad("an empty packet has more than one checksum", 4, sums)
		}
		return nil
	}
	if h.Last {
		return bad("the last packet has data", 0, length)
	}
	if want := w.wire.Count(length) * int64(w.wire.Kind.Size()); sums != 0 && sums != want {
		return bad("wrong length of checksums", want, sums)
	}
	bpc := int64(w.disk.BytesPerChunk())
	if into := h.Offset % bpc; into != 0 && length > bpc-into {
		return bad("it begins inside a chunk and goes beyond it", bpc-into, length)
	}
	return nil
}

// WritePacket takes a packet: h, then buf with sumsLen bytes of checksums and
// h.DataLen bytes of data, and as much capacity as [BlockWriter.BufferLen] says.
// The buffer is the writer's from then on, whatever the outcome; a packet without
// data may come with the zero Buffer. WritePacket panics if the buffer is too
// short.
//
// Data is verified before anything else is done with it. A chunk that does not
// verify gives a *[crc.MismatchError] with its offset in the block, a packet that
// does not fit (see [BlockWriter.Check]) a *[PacketError]; both leave the writer
// as it was, and the packets before can still be flushed. Bytes that the block
// has already are not written again; of a last chunk that is not yet full they
// have to be the same.
func (w *BlockWriter) WritePacket(ctx context.Context, h packet.Header, sumsLen int, buf iouring.Buffer) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.direct != nil && !w.ended {
		if err := w.makeRoom(ctx, max(h.DataLen, 0)); err != nil {
			return errors.Join(err, buf.Release())
		}
	}
	kept, err := w.accept(h, sumsLen, buf)
	if !kept && buf.Cap() > 0 {
		err = errors.Join(err, buf.Release())
	}
	if err != nil {
		return err
	}
	w.packets++
	if h.Seqno != packet.HeartbeatSeqno {
		w.seqno, w.last = h.Seqno, h.Last
	}
	if w.direct == nil && (w.end-w.written >= flushBytes || len(w.data) >= flushPackets) {
		return w.flush(ctx)
	}
	return nil
}

// accept verifies a packet and gathers what is new in it. It reports whether it
// keeps the buffer.
func (w *BlockWriter) accept(h packet.Header, sumsLen int, buf iouring.Buffer) (kept bool, err error) {
	if err := w.usable(); err != nil {
		return false, err
	}
	if err := w.check(h, sumsLen); err != nil {
		return false, err
	}
	if h.DataLen == 0 {
		return false, nil
	}
	sums, body := buf.Slice(0, sumsLen), buf.Slice(sumsLen, sumsLen+h.DataLen)
	data := body.Bytes()
	verify := sumsLen > 0 && !w.relaying
	copied := verify && w.direct != nil && h.Offset == w.end
	if copied {
		err = w.verifyInto(data, sums.Bytes())
	} else if verify {
		err = w.wire.Verify(data, sums.Bytes(), h.Offset)
	}
	if err != nil {
		w.store.stats.Add(statChecksumErrors, 1)
		return false, err
	}

	// F and E are the packet's ends in the block, D is the block's, and B is where
	// D's chunk begins. The packet's checksums count from F.
	bpc := int64(w.disk.BytesPerChunk())
	F, E, D := h.Offset, h.Offset+int64(len(data)), w.end
	B := D - D%bpc
	if B < min(D, E) && F < D { // it brings bytes of the partial last chunk again
		from := max(F, B)
		have, again := w.tail[from-B:], data[from-F:]
		n := min(len(have), len(again))
		if !bytes.Equal(have[:n], again[:n]) {
			i := 0
			for have[i] == again[i] {
				i++
			}
			return false, &PacketError{
				Block: w.Block(), Seqno: h.Seqno, Offset: F,
				Reason:   fmt.Sprintf("the byte at offset %d is not the one received before", from+int64(i)),
				Expected: int64(have[i]), Got: int64(again[i]),
			}
		}
	}
	if E <= D {
		return false, nil
	}

	if w.disk.Kind != crc.None && (sumsLen == 0 || w.wire.Kind != w.disk.Kind) {
		if sumsLen == 0 {
			sums = buf.Slice(h.DataLen, h.DataLen+w.disk.SumsLen(h.DataLen))
		}
		w.disk.Put(sums.Bytes(), data)
	}
	size := w.disk.Kind.Size()
	if size > 0 {
		if F > B {
			// It goes on in a partial chunk: its one checksum covers its own bytes only.
			w.tailSum = crc.Update(w.disk.Kind, w.tailSum, data[D-F:])
			binary.BigEndian.PutUint32(sums.Bytes(), w.tailSum)
		} else {
			// It brings the chunk at B from its beginning; before that are chunks that
			// the block has.
			sums = sums.Slice(int((B-F)/bpc)*size, sums.Len())
			w.tailSum = binary.BigEndian.Uint32(sums.Bytes()[sums.Len()-size:])
		}
		switch n := len(w.sums); {
		case n == 0:
			w.sumsAt = sumOffset(w.disk, B)
		case D > B:
			// The first of the new checksums replaces the last of the old.
			if last := w.sums[n-1]; last.Len() > size {
				w.sums[n-1] = last.Slice(0, last.Len()-size)
			} else {
				w.sums = w.sums[:n-1]
			}
		}
	}
	if w.direct != nil {
		w.keep(data[D-F:], sums.Bytes(), copied)
	} else {
		kept = true
		w.data = append(w.data, body.Slice(int(D-F), len(data)))
		w.held = append(w.held, buf)
		if size > 0 {
			w.sums = append(w.sums, sums)
		}
	}
	if start := E - E%bpc; start > B {
		w.tail = append(w.tail[:0], data[start-F:]...)
	} else {
		w.tail = append(w.tail[:D-B], data[D-F:]...)
	}
	w.end = E
	if w.relaying {
		w.mark()
	}
	return kept, nil
}

// usable returns why the writer takes no more calls, or nil.
func (w *BlockWriter) usable() error {
	if w.err != nil {
		return w.err
	}
	if w.ended {
		return &BlockError{Op: "write", Block: w.Block(), Status: packet.Error, Reason: "the writer has ended", Err: os.ErrClosed}
	}
	return nil
}

// Flush writes what has gathered, data first, then checksums, and makes it
// visible to readers. When it returns nil, every packet so far may be
// acknowledged. On an error the files are cut back to the visible length.
func (w *BlockWriter) Flush(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flush(ctx)
}

func (w *BlockWriter) flush(ctx context.Context) error { return w.flushTo(ctx, w.end) }

// flushTo is flush up to offset to: the end, or where a chunk ends before it.
func (w *BlockWriter) flushTo(ctx context.Context, to int64) error {
	if err := w.usable(); err != nil {
		return err
	}
	if to <= w.written {
		w.count()
		return nil
	}
	start := time.Now()
	if w.direct == nil && !w.unallocable && to >= allocateFrom && to > w.preallocated {
		// Further and further ahead: an allocation for many pages costs less than the
		// page cache's reservations for each, and a short block has none.
		w.preallocate(min(4*to, max(w.written, w.preallocated)+w.reserved))
	}
	sumsLen, err := w.write(ctx, to)
	if err != nil {
		return w.fail("write", err)
	}
	if told := w.store.cfg.Flushed; told != nil {
		told(time.Since(start))
	}
	grown := to - w.written
	w.unreserve(to - max(w.written, w.preallocated))
	w.written = to
	if !w.relaying {
		w.r.mu.Lock()
		w.r.length, w.r.lastSum = to, w.tailSum // which counts only if the last chunk is partial
		w.r.mu.Unlock()
	}
	if w.direct != nil {
		w.advance(to, sumsLen)
		if w.direct.file == nil { // the file system did not take it
			if err := w.leaveDirect(ctx); err != nil {
				return err
			}
		}
	} else {
		w.drop()
	}
	w.hint()
	w.store.stats.Add2(statBytesWritten, grown, statFlushes, 1)
	w.count()
	return nil
}

// write brings what has gathered, up to offset to, into the files. It returns
// how many bytes of checksums that took.
func (w *BlockWriter) write(ctx context.Context, to int64) (sumsLen int, err error) {
	be := w.store.backend
	sums := w.sums
	if w.direct == nil {
		err = be.WriteAt(ctx, w.blk, w.data, w.written)
	} else {
		err = w.writeDirect(ctx, to)
		if len(sums) > 0 {
			sumsLen = int(metaLen(w.disk, to) - w.sumsAt)
			sums = []iouring.Buffer{sums[0].Slice(0, sumsLen)}
		}
	}
	if err != nil || len(sums) == 0 {
		return sumsLen, err
	}
	bpc := int64(w.disk.BytesPerChunk())
	if w.synced%bpc != 0 && w.sumsAt == sumOffset(w.disk, w.synced-w.synced%bpc) {
		// The checksum that vouches for durable bytes is about to be replaced by one
		// that covers more: after a power cut the new one is worth nothing without
		// these.
		if err := be.Datasync(ctx, w.blk); err != nil {
			return 0, err
		}
	}
	return sumsLen, be.WriteAt(ctx, w.meta, sums, w.sumsAt)
}

// count flushes the stream's statistics.
func (w *BlockWriter) count() {
	if w.packets > 0 {
		w.store.stats.Add(statPacketsWritten, w.packets)
		w.packets = 0
	}
}

// drop releases the gathered packets.
func (w *BlockWriter) drop() {
	for _, b := range w.held {
		if err := b.Release(); err != nil {
			panic(err) // WritePacket was given a buffer that was not its caller's
		}
	}
	w.data, w.sums, w.held = w.data[:0], w.sums[:0], w.held[:0]
}

// allocateFrom is how long a block has to be before its reservation is used to
// allocate it.
const allocateFrom = 1 << 20

// preallocate allocates the block file up to offset to. If that does not work, it
// was a try, and the space stays reserved.
func (w *BlockWriter) preallocate(to int64) {
	from := max(w.written, w.preallocated)
	if from >= to {
		return
	}
	w.trimming = true
	if preallocate(w.blk.OS(), from, to-from) != nil {
		w.unallocable = true
		return
	}
	w.preallocated = to
	w.unreserve(to - from)
}

// trim gives back what has been allocated and is not needed.
func (w *BlockWriter) trim() error {
	if !w.trimming {
		return nil
	}
	w.trimming = false
	return w.blk.OS().Truncate(w.written)
}

func (w *BlockWriter) unreserve(n int64) {
	n = min(max(n, 0), w.reserved)
	w.reserved -= n
	w.r.vol.reserved.Add(-n)
}

// fail makes err the writer's end: it cuts the files back to what is visible,
// closes them, and leaves the replica for a recovery.
func (w *BlockWriter) fail(op string, err error) error {
	reason := "the disk failed"
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		reason = "the disk is full"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		reason = "interrupted"
	}
	if cut := w.cut(); cut != nil {
		reason += ", and the files could not be cut back"
		err = errors.Join(err, cut)
	}
	w.err = &BlockError{Op: op, Block: w.Block(), Status: packet.Error, Reason: reason, Err: err}
	w.finish()
	if w.r.state == copying {
		w.store.remove(w.r)
	}
	return w.err
}

// cut removes from the files what is not visible. Nothing becomes visible after
// it.
func (w *BlockWriter) cut() error {
	w.r.mu.Lock()
	n, lastSum := w.r.length, w.r.lastSum
	w.r.marks = nil
	w.r.mu.Unlock()
	w.written, w.end = n, n
	return truncate(w.blk.OS(), w.meta.OS(), w.disk, n, lastSum)
}

// truncate cuts the files of a replica to n bytes of data. If the last chunk is
// then partial, lastSum is its checksum.
func truncate(blk, meta *os.File, c crc.Chunks, n int64, lastSum uint32) error {
	if err := blk.Truncate(n); err != nil {
		return err
	}
	if err := meta.Truncate(metaLen(c, n)); err != nil {
		return err
	}
	bpc := int64(c.BytesPerChunk())
	if n%bpc == 0 || c.Kind == crc.None {
		return nil
	}
	_, err := meta.WriteAt(binary.BigEndian.AppendUint32(nil, lastSum), sumOffset(c, n-n%bpc))
	return err
}

// finish gives back everything that the writer holds and leaves the replica
// without a writer. It returns the error of closing the files.
func (w *BlockWriter) finish() error {
	var errs []error
	w.drop()
	if d := w.direct; d != nil {
		w.direct = nil
		errs = append(errs, d.release())
	}
	errs = append(errs, w.trim())
	w.count()
	w.unreserve(w.reserved)
	w.store.writers.Add(-1)
	w.ended = true
	w.tail = nil
	r := w.r
	r.mu.Lock()
	r.writer = nil
	if r.failed = w.blk.Err(); r.failed == nil {
		r.failed = w.meta.Err()
	}
	if r.state == writing {
		r.state = waiting
	}
	r.mu.Unlock()
	return errors.Join(append(errs, w.blk.Close(), w.meta.Close())...)
}

// DropBehind says whether the block is of no use in the page cache: it is then
// written past it, if nothing has been written yet and the file system has that,
// and else dropped from it as it gets to the disk.
func (w *BlockWriter) DropBehind(drop bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropBehind = drop
	if drop && w.direct == nil {
		return w.goDirect()
	}
	return nil
}

// hintEvery is how much data there is between two hints to the kernel, and how
// far dropping stays behind.
const hintEvery = 8 << 20

// hint tells the kernel what to do with the pages of the block file. Errors do
// not matter: these are hints.
func (w *BlockWriter) hint() {
	if w.written <= w.hinted+hintEvery || w.direct != nil {
		return
	}
	f := w.blk.OS()
	if w.store.cfg.SyncBehind {
		_ = writeBehind(f, w.hinted, w.written-w.hinted)
	}
	if w.dropBehind && w.hinted > hintEvery {
		_ = dropBehind(f, w.hinted-hintEvery)
	}
	w.hinted = w.written
}

// Sync flushes, and returns after everything is on stable storage: both files,
// and the first time the directory that names them. Nothing is done for what is
// durable already.
func (w *BlockWriter) Sync(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sync(ctx)
}

func (w *BlockWriter) sync(ctx context.Context) error {
	if err := w.flush(ctx); err != nil {
		return err
	}
	if w.dirSynced && w.synced == w.written {
		return nil
	}
	start := time.Now()
	if err := w.store.backend.Datasync(ctx, w.meta, w.blk); err != nil {
		return w.fail("sync", err)
	}
	if !w.dirSynced {
		dir := filepath.Dir(w.blk.Name())
		err := w.r.vol.mkdir(dir, true)
		if err == nil {
			err = syncDir(dir)
		}
		if err != nil {
			return w.fail("sync", err)
		}
		w.dirSynced = true
	}
	w.synced = w.written
	w.store.stats.Add(statSyncs, 1)
	if told := w.store.cfg.Synced; told != nil {
		told(time.Since(start))
	}
	return nil
}

// Finalize flushes and moves the block to the finalized ones. With durable set,
// or if the store syncs on close, everything is on stable storage when it
// returns. The writer has then ended.
func (w *BlockWriter) Finalize(ctx context.Context, durable bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	durable = durable || w.store.cfg.SyncOnClose
	if err := w.flush(ctx); err != nil {
		return err
	}
	if err := w.trim(); err != nil {
		return w.fail("truncate", err)
	}
	if durable {
		if err := w.sync(ctx); err != nil {
			return err
		}
	}
	if w.r.state == copying {
		return w.install(finalized, durable)
	}
	if n := w.Visible(); n < w.end {
		w.err = &BlockError{
			Op: "finalize", Block: w.Block(), Status: packet.Error,
			Reason: fmt.Sprintf("the next node has accepted %d of %d bytes", n, w.end),
		}
		return errors.Join(w.err, w.abort(ctx))
	}
	w.r.mu.Lock()
	err := w.r.finalize(w.r.stamp, durable)
	w.r.mu.Unlock()
	if err != nil {
		w.err = &BlockError{Op: "finalize", Block: w.Block(), Status: packet.Error, Reason: "cannot move the files", Err: err}
		w.finish()
		return w.err
	}
	w.store.stats.Add(statBlocksFinalized, 1)
	if err := w.finish(); err != nil {
		return &BlockError{Op: "finalize", Block: w.Block(), Status: packet.Error, Reason: "cannot close the files", Err: err}
	}
	return nil
}

// Abort ends the writer and leaves the replica unfinished, for a recovery: with
// everything that was accepted, and readable. An incomplete copy is deleted.
// Aborting after Finalize, after an error, or twice, does nothing.
func (w *BlockWriter) Abort(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.abort(ctx)
}

func (w *BlockWriter) abort(ctx context.Context) error {
	if w.ended {
		return nil
	}
	if w.r.state == copying {
		return w.discard()
	}
	if w.relaying {
		w.drop()
		if err := w.cut(); err != nil {
			return w.fail("abort", err)
		}
	} else if err := w.flush(ctx); err != nil {
		return err
	}
	w.store.stats.Add(statBlocksAborted, 1)
	return w.finish()
}

// stop aborts the writer in the name of somebody else.
func (w *BlockWriter) stop(why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	err := w.abort(context.Background())
	if w.err == nil {
		w.err = &BlockError{Op: "write", Block: w.Block(), Status: packet.Error, Reason: "the writer was stopped", Err: errors.Join(why, err)}
	}
	if w.onStop != nil {
		go w.onStop()
	}
}
