//go:build linux || darwin

package datanode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring"
)

// A faultyBackend fails from its n-th try of a write or a datasync on: a write
// after it has written a part of its bytes, which the backend goes on behind, or
// all of them, or none.
type faultyBackend struct {
	iouring.Backend
	done float64
	err  error

	mu        sync.Mutex // if a server uses it
	countdown int        // tries that still work; negative: all
	failed    string     // the operation that failed first, and its file
}

func newFaultyBackend(t testing.TB, done float64, err error) *faultyBackend {
	b := &faultyBackend{countdown: -1, done: done, err: err}
	b.Backend = iouring.WithFaults(testBackend(t), b.plan)
	return b
}

// failAt sets the countdown.
func (b *faultyBackend) failAt(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countdown = n
}

func (b *faultyBackend) plan(op iouring.FaultOp) iouring.Fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.countdown < 0 || op.Op == "read" {
		return iouring.Fault{}
	}
	if b.countdown > 0 {
		b.countdown--
		return iouring.Fault{}
	}
	if b.failed != "" {
		return iouring.Fault{Err: b.err}
	}
	b.failed = op.Op + " " + op.File
	if b.done == 1 {
		return iouring.Fault{ErrAfter: b.err}
	}
	if n := int(float64(op.Length) * b.done); n > 0 {
		return iouring.Fault{Short: n}
	}
	return iouring.Fault{Err: b.err}
}

// A block's life with the disk failing at every step of it, in every way: the
// error says what and where, what was acknowledged stays, nothing else does, the
// rest of the store is unharmed, and the block can be recovered and finished.
func TestFaultsAtEveryStep(t *testing.T) {
	checkLeaks(t)
	data := randomBytes(50, 3000)
	c := crc.Chunks{}
	for _, fault := range []struct {
		done float64
		err  error
		want string
	}{
		{0, unix.EIO, "the disk failed"}, {0.5, unix.ENOSPC, "the disk is full"}, {1, unix.EIO, "the disk failed"},
		{0.3, unix.EDQUOT, "the disk is full"}, {0.7, context.Canceled, "interrupted"},
	} {
		steps := 0
		for countdown := 0; ; countdown++ {
			backend := newFaultyBackend(t, fault.done, fault.err)
			cfg := StoreConfig{Dirs: []string{fastDir(t)}, Arena: testArena(t, 1<<20), Backend: backend}
			s := openStoreWith(t, cfg)
			other := testBlock(2)
			writeBlock(t, s, other, c, data)
			backend.countdown = countdown

			b := testBlock(1)
			acked, sent := 0, 0
			seqno := int64(0)
			var w *BlockWriter
			put := func(from, to int) error {
				seqno++
				err := send(t, w, packet.Header{Offset: int64(from), Seqno: seqno}, data[from:to])
				if err == nil {
					sent = to
				}
				return err
			}
			ack := func(err error) error {
				if err == nil {
					acked = sent
				}
				return err
			}
			life := []func() error{
				func() (err error) { w, err = s.Create(bg, b, c); return err },
				func() error { return put(0, 700) },
				func() error { return ack(w.Flush(bg)) },
				func() error { return put(512, 1000) },
				func() error { return ack(w.Sync(bg)) },
				func() error { return put(512, 1010) }, // the synced checksum goes: a sync before
				func() error { return ack(w.Flush(bg)) },
				func() error { return put(512, 1024) },
				func() error { return put(1024, 1700) },
				func() error { return ack(w.Finalize(bg, true)) },
				func() (err error) { w, err = s.Append(bg, b, 1002, 1700, c); b.Stamp = 1002; return err },
				func() error { return put(1700, 2000) },
				func() error { return put(1536, 2900) },
				func() error { return ack(w.Sync(bg)) },
				func() error { return ack(w.Finalize(bg, false)) },
			}
			var err error
			for _, step := range life {
				if err = step(); err != nil {
					break
				}
			}
			if err == nil {
				if backend.failed != "" || acked != 2900 {
					t.Fatalf("%s failed unnoticed", backend.failed)
				}
				steps = countdown
				break
			}
			name := fmt.Sprintf("%v after %d operations, in %s", fault, countdown, backend.failed)
			var blockErr *BlockError
			var ioErr *iouring.IOError
			if !errors.As(err, &blockErr) || !errors.As(err, &ioErr) || !errors.Is(err, fault.err) ||
				blockErr.Block.ID != 1 || blockErr.Reason != fault.want || !strings.Contains(backend.failed, ioErr.File) {
				t.Fatalf("%s: %v", name, err)
			}
			if again := w.Flush(bg); again != err {
				t.Fatalf("%s: the next call says %v", name, again)
			}
			visible := int(w.Visible()) // more than acknowledged if a sync failed after the write
			if visible != acked && (visible != sent || !strings.HasPrefix(backend.failed, "datasync")) {
				t.Fatalf("%s: %d bytes are visible, %d were acknowledged, %d sent", name, visible, acked, sent)
			}
			checkFiles(t, s, b, c, data[:visible])
			if got, err := readAll(s, b); err != nil || !bytes.Equal(got, data[:visible]) {
				t.Fatalf("%s: %d bytes are readable of %d: %v", name, len(got), visible, err)
			}
			if got, err := readAll(s, other); err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%s: another block has suffered: %v", name, err)
			}
			backend.countdown = -1
			stamp := b.Stamp + 1
			if strings.HasPrefix(backend.failed, "datasync") {
				// Whether the data is on the disk only an opening finds out.
				if _, err := s.Recover(bg, b, stamp, 0, int64(sent), c); !errors.As(err, &blockErr) || !errors.Is(err, fault.err) {
					t.Fatalf("%s: recovery: %v", name, err)
				}
				if err := s.RecoverClose(bg, b, stamp, int64(visible)); !errors.As(err, &blockErr) || !errors.Is(err, fault.err) {
					t.Fatalf("%s: close recovery: %v", name, err)
				}
				s.Close()
				s = openStoreWith(t, cfg)
			}
			w, err = s.Recover(bg, b, stamp, int64(acked), int64(sent), c)
			if err != nil {
				t.Fatalf("%s: recovery: %v", name, err)
			}
			b.Stamp, seqno = stamp, 0
			start := acked - acked%512
			if err := errors.Join(put(start, 2900), w.Finalize(bg, true)); err != nil {
				t.Fatal(err)
			}
			checkFiles(t, s, b, c, data[:2900])
			s.Close()
		}
		if steps < 12 {
			t.Errorf("only %d operations in a life", steps)
		}
	}
}

// A sync that has failed is not tried again, and what was acknowledged before it
// stays readable.
func TestSyncFailureSticks(t *testing.T) {
	backend := newFaultyBackend(t, 0, unix.EIO)
	s := openStoreWith(t, StoreConfig{Dirs: []string{t.TempDir()}, Arena: testArena(t, 1<<20), Backend: backend})
	data := randomBytes(51, 1000)
	w, err := s.Create(bg, testBlock(1), crc.Chunks{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(send(t, w, packet.Header{}, data), w.Flush(bg)); err != nil {
		t.Fatal(err)
	}
	backend.countdown = 0
	first := w.Sync(bg)
	backend.countdown = -1
	if second := w.Sync(bg); !errors.Is(first, unix.EIO) || second != first {
		t.Errorf("%v, then %v", first, second)
	}
	if err := w.Finalize(bg, false); err != first {
		t.Errorf("Finalize: %v", err)
	}
	if got, err := readAll(s, testBlock(1)); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// Syncs of many blocks are under way at the same time: none of them ends before
// all have begun.
func TestSyncsTogether(t *testing.T) {
	const blocks = 16
	for _, choice := range []iouring.Choice{iouring.SyscallBackend, iouring.AutoBackend} {
		inner, err := iouring.Open(iouring.Config{Backend: choice})
		if err != nil {
			t.Fatal(err)
		}
		var began sync.WaitGroup
		began.Add(2 * blocks) // files
		backend := iouring.WithFaults(inner, func(op iouring.FaultOp) iouring.Fault {
			if op.Op == "datasync" {
				began.Done()
				if !strings.HasSuffix(op.File, ".meta") { // the second of a block
					began.Wait()
				}
			}
			return iouring.Fault{}
		})
		s := openStoreWith(t, StoreConfig{Dirs: []string{t.TempDir()}, Arena: testArena(t, 1<<20), Backend: backend})
		var all sync.WaitGroup
		for id := range int64(blocks) {
			w, err := s.Create(bg, testBlock(id), crc.Chunks{})
			if err != nil {
				t.Fatal(err)
			}
			all.Add(1)
			go func() {
				defer all.Done()
				if err := errors.Join(send(t, w, packet.Header{}, []byte("data")), w.Sync(bg), w.Abort(bg)); err != nil {
					t.Error(err)
				}
			}()
		}
		all.Wait()
		if err := errors.Join(s.Close(), backend.Close()); err != nil {
			t.Error(err)
		}
	}
}

// Over the wire a failing disk is an ack with an error, after those of what was
// written.
func TestServerDiskFailure(t *testing.T) {
	checkLeaks(t)
	backend := newFaultyBackend(t, 0.5, unix.ENOSPC)
	s := openStoreWith(t, StoreConfig{Dirs: []string{t.TempDir()}, Arena: testArena(t, 8<<20), Backend: backend})
	server, addr := startServer(t, s, ServerConfig{})
	data, c := randomBytes(52, 2000), crc.Chunks{}
	for id, countdown := range []int{0, 1, 2, 3} {
		b := testBlock(int64(id))
		p := dial(t, addr)
		p.open(b, c)
		backend.failAt(countdown)
		p.packet(packet.Header{}, c, data[:1024])
		n := 0
		if countdown >= 2 {
			p.ack(0, packet.Success)
			p.packet(packet.Header{Offset: 1024, Seqno: 1}, c, data[1024:])
			p.ack(1, packet.Error)
			n = 1024
		} else {
			p.ack(0, packet.Error)
		}
		p.Conn.Close()
		waitFor(t, func() bool { r := s.find(b); r.mu.Lock(); defer r.mu.Unlock(); return r.state == waiting })
		backend.failAt(-1)
		checkFiles(t, s, b, c, data[:n])
	}
	if n := server.Stats().Load(statFailed); n != 4 {
		t.Errorf("%d failures are counted", n)
	}
}
