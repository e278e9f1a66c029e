package disk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring"
	"github.com/blockpath/blockpath/iouring/datanode"
)

const pool = "BP-1-127.0.0.1-1"

var bg = context.Background()

func block(id int64) packet.Block { return packet.Block{Pool: pool, ID: id, Stamp: 1001} }

func randomBytes(seed uint64, n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24), byte(seed >> 32)}).Read(p)
	return p
}

// needRoot skips the test, aloud, where nothing can be mounted.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a failing disk takes root to mount")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: no failing disk without FUSE: %v", err)
	}
}

// memoryDir returns a directory that is in memory if there is such.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "blockpath")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func mountFS(t testing.TB) *FS {
	t.Helper()
	needRoot(t)
	f, err := MountFS(t.TempDir(), memoryDir(t))
	if err != nil {
		t.Skipf("SKIPPED, NOT TESTED: no failing disk without FUSE: %v", err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// counted is a plan that lets operations through and then, once or from then on,
// not any more.
type counted struct {
	mu        sync.Mutex
	countdown int // operations that still work; negative: all
	once      bool
	fault     Fault
	seen      []Op
	failed    *Op // the first
}

// means says whether a fault is one of that operation.
func (f Fault) means(op Op) bool {
	switch {
	case f.Short > 0:
		return op.Kind == "write" && op.Length > 1
	case f.Errno == syscall.ENOSPC:
		return strings.Contains("write create mkdir rename truncate fallocate fsync", op.Kind)
	case f.Errno == syscall.EINTR:
		return op.Kind == "write" || op.Kind == "read"
	}
	return true
}

func (c *counted) plan(op Op) Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.fault.means(op) {
		return Fault{}
	}
	c.seen = append(c.seen, op)
	switch {
	case c.countdown > 0:
		c.countdown--
		return Fault{}
	case c.countdown < 0:
		return Fault{}
	}
	if c.once {
		c.countdown = -1
	}
	if c.failed == nil {
		c.failed = &op
	}
	fault := c.fault
	fault.Short = min(fault.Short, op.Length-1)
	return fault
}

// A lab is a store on a failing disk.
type lab struct {
	testing.TB
	fs      *FS
	backend iouring.Backend
	arena   *iouring.Arena
	direct  bool
}

func newLab(t testing.TB, backend iouring.Choice, direct bool) *lab {
	l := &lab{TB: t, fs: mountFS(t), direct: direct}
	l.setUp(backend)
	t.Cleanup(l.tearDown)
	return l
}

func (l *lab) setUp(backend iouring.Choice) {
	l.Helper()
	var err error
	if l.backend, err = iouring.Open(iouring.Config{Backend: backend}); err != nil {
		l.Skipf("SKIPPED, NOT TESTED: no %s: %v", backend, err)
	}
	if l.arena, err = iouring.NewArena(iouring.ArenaConfig{Bytes: 32 << 20, MaxBuffer: 1 << 20}); err != nil {
		l.Fatal(err)
	}
}

func (l *lab) tearDown() {
	l.Helper()
	if n := l.arena.InUse(); n != 0 {
		l.Errorf("%d bytes of the arena are still in use", n)
	}
	if err := errors.Join(l.backend.Close(), l.arena.Close()); err != nil {
		l.Error(err)
	}
}

// dir returns the name of a new directory on the failing disk.
func (l *lab) dir() string {
	l.Helper()
	behind, err := os.MkdirTemp(l.fs.Backing, "store")
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { os.RemoveAll(behind) })
	return filepath.Join(l.fs.Dir, filepath.Base(behind))
}

// behind returns where a file of the failing disk is in fact.
func (l *lab) behind(name string) string {
	return filepath.Join(l.fs.Backing, strings.TrimPrefix(name, l.fs.Dir))
}

func (l *lab) open(dir string) (*datanode.Store, error) {
	return datanode.OpenStore(datanode.StoreConfig{Dirs: []string{dir}, Backend: l.backend, Arena: l.arena, Direct: l.direct})
}

func (l *lab) mustOpen(dir string) *datanode.Store {
	l.Helper()
	s, err := l.open(dir)
	if err != nil {
		l.Fatal(err)
	}
	return s
}

// send gives a packet with right checksums to a writer.
func send(s *datanode.Store, w *datanode.BlockWriter, h packet.Header, data []byte) error {
	h.DataLen = len(data)
	c := w.Chunks()
	n := c.SumsLen(len(data))
	buf, err := s.Arena().Get(bg, w.BufferLen(h, n))
	if err != nil {
		return err
	}
	c.Put(buf.Bytes(), data)
	copy(buf.Bytes()[n:], data)
	return w.WritePacket(bg, h, n, buf)
}

func readBlock(s *datanode.Store, b packet.Block) ([]byte, error) {
	r, err := s.Open(b)
	if err != nil {
		return nil, err
	}
	p := make([]byte, r.Len())
	n, err := r.ReadAt(p, 0)
	return p[:n], errors.Join(err, r.Close())
}

func writeBlock(s *datanode.Store, b packet.Block, data []byte) error {
	w, err := s.Create(bg, b, crc.Chunks{})
	if err != nil {
		return err
	}
	for at, seqno := 0, int64(0); at < len(data); at, seqno = at+64512, seqno+1 {
		if err := send(s, w, packet.Header{Offset: int64(at), Seqno: seqno}, data[at:min(at+64512, len(data))]); err != nil {
			return errors.Join(err, w.Abort(bg))
		}
	}
	return w.Finalize(bg, true)
}

// A life is that of one block, from its creation to the end of an append.
type life struct {
	s           *datanode.Store
	b           packet.Block
	data        []byte
	w           *datanode.BlockWriter
	seqno       int64
	sent, acked int
	complete    bool // finalized with everything
}

// run goes through the steps until one fails. At twelfths of the data it flushes,
// syncs, finalizes and appends; half of the packets overlap what was sent.
func (l *life) run() (err error) {
	if l.w, err = l.s.Create(bg, l.b, crc.Chunks{}); err != nil {
		return err
	}
	steps := []func() error{
		func() error { return l.w.Flush(bg) },
		func() error { return l.w.Sync(bg) },
		func() error { return l.w.Flush(bg) }, // of a synced partial chunk: a sync goes before
		func() error { return nil },
		func() error { return l.w.Sync(bg) },
		func() error { return l.w.Finalize(bg, true) },
		func() error {
			w, err := l.s.Append(bg, l.b, l.b.Stamp+1, int64(l.sent), crc.Chunks{})
			if err == nil {
				l.w = w
				l.b.Stamp++
			}
			return err
		},
		func() error { return l.w.Flush(bg) },
		func() error { return l.w.Sync(bg) },
		func() error { return nil },
		func() error { return l.w.Finalize(bg, false) },
	}
	for i, step := range steps {
		if i != 6 {
			if err := l.send((len(l.data)*(i+1)/len(steps) + i) - i*i%3); err != nil {
				return err
			}
		}
		if err := step(); err != nil {
			return err
		}
		if i != 3 && i != 9 {
			l.acked = l.sent
		}
	}
	l.complete = true
	return nil
}

// send sends the data up to offset to, in packets.
func (l *life) send(to int) error {
	to = min(to, len(l.data))
	for l.sent < to {
		from := l.sent - l.sent%512
		if l.seqno%2 == 0 && from >= 512 {
			from -= 512
		}
		end := min(from+64512, to)
		l.seqno++
		if err := send(l.s, l.w, packet.Header{Offset: int64(from), Seqno: l.seqno}, l.data[from:end]); err != nil {
			return err
		}
		l.sent = end
	}
	return nil
}

// finish takes a block that has failed to its end, after a recovery.
func (l *life) finish() error {
	w, err := l.s.Recover(bg, l.b, l.b.Stamp+1, int64(l.acked), int64(len(l.data)), crc.Chunks{})
	if err != nil {
		return err
	}
	l.w = w
	l.seqno, l.sent = 0, int(l.w.Visible())
	if err := l.send(len(l.data)); err != nil {
		return err
	}
	return l.w.Finalize(bg, true)
}

// readable checks that everything acknowledged can be read, and nothing else
// than what was sent.
func (l *life) readable() error {
	got, err := readBlock(l.s, packet.Block{Pool: pool, ID: l.b.ID})
	if err != nil || len(got) < l.acked || !bytes.HasPrefix(l.data, got) {
		return fmt.Errorf("%d bytes are readable, %d were acknowledged, of %d: %w", len(got), l.acked, len(l.data), err)
	}
	return nil
}

func verify(dir string) error {
	r, err := datanode.Verify(bg, []string{dir}, datanode.VerifyConfig{})
	if err == nil && (!r.OK() || len(r.Misplaced) > 0) {
		b, _ := json.Marshal(r)
		err = errors.New(string(b))
	}
	return err
}

// The life of a block on a disk that fails at one operation, or at all from
// there on, for every operation there is: the error says what and where; what was
// acknowledged can be read, and no wrong byte; another block is unharmed and
// another can be written; after another opening the block is recovered and taken
// to its end, and everything verifies.
func TestFaultsAtEveryOperation(t *testing.T) {
	for _, setup := range []struct {
		backend iouring.Choice
		direct  bool
		length  int
	}{
		{iouring.SyscallBackend, false, 3000},
		{iouring.RingBackend, false, 3000},
		{iouring.SyscallBackend, true, 2500000},
		{iouring.RingBackend, true, 2500000},
	} {
		t.Run(fmt.Sprintf("backend=%s/direct=%t", setup.backend, setup.direct), func(t *testing.T) {
			l := newLab(t, setup.backend, setup.direct)
			data, other := randomBytes(1, setup.length), randomBytes(2, 1000)
			runs, tolerated := 0, map[string]int{}
			for _, fault := range []Fault{{Errno: syscall.EIO}, {Errno: syscall.ENOSPC}, {Short: 700}, {Errno: syscall.EINTR}} {
				for _, once := range []bool{true, false} {
					if !once && (fault.Short > 0 || fault.Errno == syscall.EINTR) {
						continue // then nothing gets done
					}
					for n := 0; ; n++ {
						plan := &counted{countdown: n, once: once, fault: fault}
						if !l.faultyLife(t, plan, data, other, tolerated) {
							break
						}
						runs++
						if t.Failed() {
							return
						}
					}
				}
			}
			t.Logf("%d lives; faults that did no harm: %v", runs, tolerated)
		})
	}
}

// faultyLife reports whether the plan's fault came to pass.
func (l *lab) faultyLife(t *testing.T, plan *counted, data, other []byte, tolerated map[string]int) bool {
	dir := l.dir()
	s := l.mustOpen(dir)
	defer func() { s.Close() }()
	if err := writeBlock(s, block(2), other); err != nil {
		t.Fatal(err)
	}

	life := &life{s: s, b: block(1), data: data}
	life.b.NumBytes = int64(len(data)) + 100
	l.fs.SetPlan(plan.plan)
	err := life.run()
	l.fs.SetPlan(nil)
	if plan.failed == nil {
		if err != nil {
			t.Errorf("%v without a fault", err)
		}
		return false
	}
	name := fmt.Sprintf("%+v (once: %t) in %s of %s at %d", plan.fault, plan.once, plan.failed.Kind, filepath.Base(plan.failed.Path), plan.failed.Offset)
	fatal := func(err error, what string) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %s: %v", name, what, err)
		}
	}

	var refused *datanode.BlockError
	switch {
	case err == nil:
		tolerated[plan.failed.Kind]++
	case plan.fault.Errno == 0 || plan.fault.Errno == syscall.EINTR:
		t.Fatalf("%s: %v", name, err)
	case !errors.As(err, &refused) || refused.Block.ID != 1 || !errors.Is(err, plan.fault.Errno) || !strings.Contains(err.Error(), filepath.Base(dir)):
		t.Fatalf("%s: the error does not say what and where: %v", name, err)
	}
	created := life.w != nil
	if created {
		fatal(life.readable(), "after the fault")
	}
	got, err := readBlock(s, block(2))
	if err != nil || !bytes.Equal(got, other) {
		t.Fatalf("%s: another block has suffered: %v", name, err)
	}
	fatal(writeBlock(s, block(3), other), "another block")
	if created && !life.complete {
		// Goes on at once, unless it was a sync that failed.
		var failed *iouring.IOError
		if err := life.finish(); err == nil {
			life.complete, life.acked = true, len(data)
		} else if !errors.As(err, &failed) || failed.Op != "datasync" {
			// A replica that was finalized, or half, needs an opening.
			if !errors.As(err, &refused) {
				t.Fatalf("%s: recovery: %v", name, err)
			}
		}
	}

	fatal(s.Close(), "close")
	s = l.mustOpen(dir)
	n := len(data)
	life.s = s
	if created {
		fatal(life.readable(), "after another opening")
		if !life.complete {
			err := life.finish()
			if err != nil { // it has been finalized
				n = life.sent
				err = s.RecoverClose(bg, life.b, life.b.Stamp+1, int64(n))
			}
			fatal(err, "recovery after another opening")
		}
	} else {
		fatal(writeBlock(s, block(1), data), "the block once more")
	}
	got, err = readBlock(s, packet.Block{Pool: pool, ID: 1})
	if err != nil || !bytes.Equal(got, data[:n]) {
		t.Fatalf("%s: %d bytes in the end, %v", name, len(got), err)
	}
	fatal(verify(l.behind(dir)), "verify")
	return true
}

// Many blocks at once, so that their syncs are in the ring together, on a disk that fails at one operation, or at all from there on: those that are met say
// so, the others go on, and what was acknowledged of any of them can be read, at
// once and after another opening.
func TestFaultsAmongMany(t *testing.T) {
	const blocks = 6
	l := newLab(t, iouring.AutoBackend, true)
	rnd := rand.New(rand.NewPCG(1, 2))
	data := randomBytes(5, 1500000)
	failures := 0
	for i := range 60 {
		dir := l.dir()
		s := l.mustOpen(dir)
		plan := &counted{countdown: rnd.IntN(300), once: i%2 == 0, fault: Fault{Errno: []syscall.Errno{syscall.EIO, syscall.ENOSPC}[i/2%2]}}
		l.fs.SetPlan(plan.plan)
		lives, errs := make([]*life, blocks), make([]error, blocks)
		var wg sync.WaitGroup
		for g := range lives {
			lives[g] = &life{s: s, b: block(int64(g)), data: data}
			lives[g].b.NumBytes = int64(len(data))
			wg.Add(1)
			go func() {
				defer wg.Done()
				errs[g] = lives[g].run()
			}()
		}
		wg.Wait()
		l.fs.SetPlan(nil)
		name := fmt.Sprintf("%+v (once: %t) after %v", plan.fault, plan.once, plan.failed)
		check := func() {
			t.Helper()
			for g, life := range lives {
				var refused *datanode.BlockError
				if errs[g] != nil && (!errors.As(errs[g], &refused) || refused.Block.ID != int64(g) || !errors.Is(errs[g], plan.fault.Errno)) {
					t.Fatalf("%s: block %d: the error does not say what and where: %v", name, g, errs[g])
				}
				if life.w == nil {
					continue
				}
				if err := life.readable(); err != nil {
					t.Fatalf("%s: block %d: %v", name, g, err)
				}
			}
		}
		check()
		for _, err := range errs {
			if err != nil {
				failures++
			}
		}
		if err := s.Close(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s = l.mustOpen(dir)
		for _, life := range lives {
			life.s = s
		}
		check()
		if err := s.Close(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := verify(l.behind(dir)); err != nil && plan.once {
			t.Fatalf("%s: %v", name, err)
		}
	}
	stats := map[string]int64{}
	for name, n := range l.backend.Stats().All() {
		stats[name] = n
	}
	t.Logf("%d blocks met a fault of %d; %d datasyncs went through a ring", failures, 60*blocks, stats["ring_datasyncs"])
}

// A store that a crash has left, opened on a disk that fails at one operation or
// at all from there on: it is opened, without the blocks that could not be read,
// or it is not; and then, on a good disk, nothing is missing.
func TestFaultsAtOpening(t *testing.T) {
	l := newLab(t, iouring.SyscallBackend, false)
	origin := l.dir()
	s := l.mustOpen(origin)
	data := randomBytes(3, 3000)
	acked := map[int64]int{}
	for id := range int64(6) {
		w, err := s.Create(bg, block(id), crc.Chunks{})
		if err != nil {
			t.Fatal(err)
		}
		life := &life{s: s, data: data, w: w}
		if err := errors.Join(life.send(1000+int(id)*100), life.w.Flush(bg)); err != nil {
			t.Fatal(err)
		}
		acked[id] = life.sent
		if id >= 4 {
			if err := life.w.Finalize(bg, id == 5); err != nil {
				t.Fatal(err)
			}
		}
	}
	crashed := memoryDir(t)
	if err := os.CopyFS(crashed, os.DirFS(l.behind(origin))); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	rbw := filepath.Join(crashed, "current", pool, "current", "rbw")
	fin := filepath.Join(crashed, "current", pool, "current", "finalized", "subdir0", "subdir0")
	meta := func(dir string, id int64) string { return filepath.Join(dir, datanode.MetaName(id, 1001)) }
	extend := func(name string, tail string) error {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString(tail)
		return errors.Join(err, f.Close())
	}
	if err := errors.Join(
		extend(filepath.Join(rbw, datanode.BlockName(0)), "not yet in the checksums"),
		extend(meta(rbw, 1), "checksums of nothing"),
		os.Rename(meta(rbw, 2), meta(fin, 2)), // a finalization, half done
		os.Truncate(filepath.Join(fin, datanode.BlockName(4)), 700),
		os.WriteFile(filepath.Join(rbw, datanode.BlockName(9)), nil, 0o644),
	); err != nil {
		t.Fatal(err)
	}
	acked[4] = 512 // nobody has synced it

	check := func(name string, s *datanode.Store, all bool) {
		t.Helper()
		blocks := map[int64]bool{}
		for _, b := range s.Blocks() {
			blocks[b.ID] = true
			got, err := readBlock(s, b)
			if err != nil && all || !bytes.HasPrefix(data, got) || err == nil && len(got) < acked[b.ID] {
				t.Fatalf("%s: block %d: %d bytes are readable of %d, %v", name, b.ID, len(got), acked[b.ID], err)
			}
		}
		if all && len(blocks) != len(acked) {
			t.Fatalf("%s: the blocks are %v", name, blocks)
		}
		if err := s.Close(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	opened, refused := 0, 0
	for _, fault := range []Fault{{Errno: syscall.EIO}, {Errno: syscall.ENOSPC}, {Short: 10}} {
		for _, once := range []bool{true, false} {
			for n := 0; ; n++ {
				dir := l.dir()
				if err := os.CopyFS(l.behind(dir), os.DirFS(crashed)); err != nil {
					t.Fatal(err)
				}
				plan := &counted{countdown: n, once: once, fault: fault}
				l.fs.SetPlan(plan.plan)
				s, err := l.open(dir)
				l.fs.SetPlan(nil)
				if plan.failed == nil {
					if err == nil {
						err = s.Close()
					}
					if err != nil {
						t.Errorf("%v without a fault", err)
					}
					break
				}
				name := fmt.Sprintf("%+v (once: %t) in %s of %s", fault, once, plan.failed.Kind, plan.failed.Path)
				if err == nil {
					opened++
					check(name, s, false)
				} else {
					refused++
					if !errors.Is(err, fault.Errno) || !strings.Contains(err.Error(), filepath.Base(dir)) {
						t.Fatalf("%s: the error does not say what and where: %v", name, err)
					}
				}
				check(name, l.mustOpen(dir), true)
				if err := verify(l.behind(dir)); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
		}
	}
	t.Logf("%d openings in spite of a fault, %d refused", opened, refused)
}

// Reads that fail say so, and what they return before is right. A verification
// reports the file, and no damage.
func TestFaultsAtReading(t *testing.T) {
	for _, backend := range []iouring.Choice{iouring.SyscallBackend, iouring.RingBackend} {
		l := newLab(t, backend, false)
		s := l.mustOpen(filepath.Join(l.fs.Dir, "store"))
		data := randomBytes(4, 200000)
		if err := writeBlock(s, block(1), data); err != nil {
			t.Fatal(err)
		}
		faults := 0
		for n := 0; ; n++ {
			plan := &counted{countdown: n, once: true, fault: Fault{Errno: syscall.EIO}}
			l.fs.SetPlan(plan.plan)
			got, err := readBlock(s, block(1))
			l.fs.SetPlan(nil)
			if plan.failed == nil {
				break
			}
			faults++
			var bad *datanode.BlockError
			switch missing := plan.failed.Kind == "read" && strings.HasSuffix(plan.failed.Path, ".meta"); {
			case !bytes.HasPrefix(data, got):
				t.Fatalf("%+v: wrong bytes", *plan.failed)
			case err == nil && len(got) == len(data):
			case !errors.As(err, &bad) || bad.Block.ID != 1 || !missing && !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ENOENT):
				t.Errorf("%+v: %v", *plan.failed, err)
			}
		}
		for n := 0; ; n++ {
			plan := &counted{countdown: n, once: true, fault: Fault{Errno: syscall.EIO}}
			l.fs.SetPlan(plan.plan)
			r, err := datanode.Verify(bg, []string{l.fs.Dir}, datanode.VerifyConfig{})
			l.fs.SetPlan(nil)
			if plan.failed == nil {
				break
			}
			faults++
			if err != nil && !errors.Is(err, syscall.EIO) || err == nil && (len(r.Bad)+len(r.Orphans)+len(r.ShortMeta) > 0 || r.OK() && r.Files != 1) {
				t.Errorf("%+v: %+v, %v", *plan.failed, r, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if faults < 20 {
			t.Errorf("only %d faults", faults)
		}
	}
}
