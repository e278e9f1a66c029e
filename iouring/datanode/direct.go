//go:build linux || darwin

package datanode

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/iouring"
)

const (
	directAlign  = 4096    // of offsets, lengths and memory of direct writes; every disk takes it
	directBuffer = 1 << 20 // what is gathered for one direct write
)

// A direct gathers a block for writes past the page cache. Whole pages go to the
// disk directly. What a flush leaves over at the end, less than a page, goes
// through the page cache, and so does what then fills that page: no page is ever
// written both ways.
type direct struct {
	file *iouring.File  // the block file, opened with O_DIRECT; nil if that does not work
	data iouring.Buffer // directBuffer bytes
	at   int64          // block offset of the first of them, a multiple of directAlign
	sums iouring.Buffer // room for their checksums
}

// goDirect makes the writer of a new block write past the page cache, if the
// chunks fit into pages, the file system takes it, and there is memory. What is
// reserved is allocated at once, so that no write waits for an allocation.
func (w *BlockWriter) goDirect() error {
	bpc, arena := w.disk.BytesPerChunk(), w.store.arena
	if w.end > 0 || directAlign%bpc != 0 || bpc < 128 || arena.MaxBuffer() < directBuffer {
		return nil
	}
	file, err := openDirect(w.blk.Name())
	if err != nil || file == nil {
		return err
	}
	data, err := arena.Get(ended, directBuffer)
	if err != nil {
		return noMemory(err, file.Close())
	}
	sums, err := arena.Get(ended, w.disk.SumsLen(directBuffer))
	if err != nil {
		return noMemory(err, errors.Join(data.Release(), file.Close()))
	}
	w.direct = &direct{file: file, data: data, sums: sums}
	w.preallocate(w.reserved)
	return nil
}

// noMemory turns the want of memory, for which there is a way without, into no
// error but what came of giving back.
func noMemory(err, released error) error {
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, released)
}

// release gives back what d holds.
func (d *direct) release() error {
	err := errors.Join(d.data.Release(), d.sums.Release())
	if d.file != nil {
		err = errors.Join(err, d.file.Close())
	}
	return err
}

// leaveDirect writes everything and makes the writer go through the page cache
// from now on, with packets where they are.
func (w *BlockWriter) leaveDirect(ctx context.Context) error {
	if err := w.flush(ctx); err != nil {
		return err
	}
	d := w.direct
	w.direct = nil
	return d.release()
}

// makeRoom writes whole pages if n bytes more do not fit. A packet for which
// there is never room goes the usual way, with all that follow it.
func (w *BlockWriter) makeRoom(ctx context.Context, n int) error {
	fits := func() bool { return w.end-w.direct.at+int64(n) <= directBuffer }
	if !fits() {
		if err := w.flushTo(ctx, w.end-w.end%directAlign); err != nil || w.direct == nil {
			return err
		}
	}
	if !fits() {
		return w.leaveDirect(ctx)
	}
	return nil
}

// keep puts what is new in a packet behind what has gathered. copied says that
// the data is there already.
func (w *BlockWriter) keep(data, sums []byte, copied bool) {
	d := w.direct
	at := int(w.end - d.at)
	if !copied {
		copy(d.data.Slice(at, at+len(data)).Bytes(), data)
	}
	w.data = append(w.data[:0], d.data.Slice(int(w.written-d.at), at+len(data)))
	have := 0
	if len(w.sums) > 0 {
		have = w.sums[0].Len()
	}
	copy(d.sums.Slice(have, have+len(sums)).Bytes(), sums)
	w.sums = w.sums[:0]
	if have+len(sums) > 0 {
		w.sums = append(w.sums, d.sums.Slice(0, have+len(sums)))
	}
}

// writeDirect writes the bytes up to offset to. If it turns out that the file
// system does not take direct writes after all, the writer stops making them.
func (w *BlockWriter) writeDirect(ctx context.Context, to int64) error {
	d, be := w.direct, w.store.backend
	write := func(f *iouring.File, from, to int64) error {
		if from >= to {
			return nil
		}
		return be.WriteAt(ctx, f, []iouring.Buffer{d.data.Slice(int(from-d.at), int(to-d.at))}, from)
	}
	head := min(roundUp(w.written, directAlign), to)
	body := max(to-to%directAlign, head)
	if err := write(w.blk, w.written, head); err != nil {
		return err
	}
	err := write(d.file, head, body)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		d.file, err = nil, errors.Join(d.file.Close(), write(w.blk, head, body))
	}
	if err != nil {
		return err
	}
	return write(w.blk, body, to)
}

// advance drops what has been written up to offset to and moves the rest, less
// than a page and whole chunks, to the front.
func (w *BlockWriter) advance(to int64, sumsWritten int) {
	d := w.direct
	at := to - to%directAlign
	copy(d.data.Bytes(), d.data.Slice(int(at-d.at), int(w.end-d.at)).Bytes())
	d.at = at
	w.data = w.data[:0]
	if to < w.end {
		w.data = append(w.data, d.data.Slice(int(to-d.at), int(w.end-d.at)))
	}
	if len(w.sums) > 0 {
		rest := w.sums[0].Slice(sumsWritten, w.sums[0].Len())
		n := copy(d.sums.Bytes(), rest.Bytes())
		w.sums = w.sums[:0]
		if n > 0 {
			w.sums = append(w.sums, d.sums.Slice(0, n))
			w.sumsAt += int64(sumsWritten)
		}
	}
}

// verifyInto verifies a packet that begins at the block's end while copying it to
// where it is going to be kept.
func (w *BlockWriter) verifyInto(data, sums []byte) error {
	at := int(w.end - w.direct.at)
	_, err := w.wire.CopyVerify(w.direct.data.Slice(at, at+len(data)).Bytes(), data, sums, w.end)
	return err
}
