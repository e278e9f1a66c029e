package disk

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring"
	"github.com/blockpath/blockpath/iouring/datanode"
)

var (
	cuts     = flag.Int("cuts", 0, "power cuts in TestPowerCuts; 0 means a few")
	diskFrom = flag.Int("disk-from", 0, "number of the first disk, which says what the writers do; a disk has 100 cuts")
)

const (
	diskSize    = 256 << 20
	cutsPerDisk = 100
	diskBytes   = 48 << 20 // written to a disk before it is cut
	writers     = 8
	maxBlock    = 700 << 10 // more than one flush, and checksums on several pages
)

func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return nil
}

// unmount waits for what the kernel has still to do.
func unmount(dir string) (err error) {
	for range 500 {
		if err = run("umount", dir); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// A promise is that a block is there up to a length, made when the disk had done
// so much.
type promise struct {
	id, length int64
	position   int
}

func content(id int64) []byte {
	rnd := rand.New(rand.NewPCG(uint64(id), 5))
	return randomBytes(uint64(id), 1+rnd.IntN(maxBlock))
}

// writeLives writes blocks, one after another, until stop is closed, and calls
// durable for what has been synced.
func writeLives(s *datanode.Store, seed int64, stop <-chan struct{}, durable func(id int64, length int)) error {
	rnd := rand.New(rand.NewPCG(uint64(seed), 6))
	for n := int64(0); ; n++ {
		b := block(seed<<32 | n)
		data := content(b.ID)
		b.NumBytes = int64(len(data))
		c := crc.Chunks{Kind: crc.Kind(n % 2)}
		w, err := s.Create(bg, b, c)
		if err != nil {
			return err
		}
		syncs := rnd.IntN(3) == 0 // like a log; the others sync at the end or not at all
		at, seqno := 0, int64(0)
		for at < len(data) {
			select {
			case <-stop:
				return w.Abort(bg)
			default:
			}
			from := at - at%512
			if rnd.IntN(20) == 0 && from >= 1024 {
				from -= 1024
			}
			to := min(at+1+rnd.IntN([]int{300, 5000, 65000}[rnd.IntN(3)]), len(data))
			if err := send(s, w, packet.Header{Offset: int64(from), Seqno: seqno}, data[from:to]); err != nil {
				return err
			}
			at, seqno = to, seqno+1
			switch k := rnd.IntN(40); {
			case syncs && k < 10:
				if err := w.Sync(bg); err != nil {
					return err
				}
				durable(b.ID, at)
			case k < 20:
				if err := w.Flush(bg); err != nil {
					return err
				}
			case k == 20:
				if err := w.Finalize(bg, syncs); err != nil {
					return err
				}
				if syncs {
					durable(b.ID, at)
				}
				if w, err = s.Append(bg, b, b.Stamp+1, int64(at), c); err != nil {
					return err
				}
				b.Stamp++
			case k == 21:
				if w, err = s.Recover(bg, b, b.Stamp+1, 0, int64(at), c); err != nil {
					return err
				}
				b.Stamp++
				at = int(w.Visible())
			}
		}
		sync := rnd.IntN(2) == 0
		if err := w.Finalize(bg, sync); err != nil {
			return err
		}
		if sync {
			durable(b.ID, at)
		}
	}
}

// emptyDisk returns a file that holds an empty ext4.
func emptyDisk(t *testing.T) string {
	t.Helper()
	name := filepath.Join(memoryDir(t), "initial")
	if err := errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, diskSize)); err != nil {
		t.Fatal(err)
	}
	if err := run("mkfs.ext4", "-q", "-b", "4096", "-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0", name); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: no power cut without ext4: %v", err)
	}
	return name
}

// newRecorder records a disk that is empty at first.
func newRecorder(t *testing.T, initial string) *Recorder {
	t.Helper()
	r, err := NewRecorder(t.TempDir(), initial)
	if err != nil {
		t.Skipf("SKIPPED, NOT TESTED: no disk without FUSE: %v", err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// The power goes at any moment under many writers, and the disk loses what it was
// not told to flush, in any order and in the middle of a write: everything synced
// before that moment is there, nothing wrong can be read, and everything verifies,
// also after another opening.
func TestPowerCuts(t *testing.T) {
	asked := *cuts
	if asked == 0 {
		needRoot(t)
		asked = 40
	} else if os.Getuid() != 0 {
		t.Fatal("NOT TESTED: a power cut takes root, for a disk that is recorded")
	}
	initial := emptyDisk(t)
	synced, kept, blocks := 0, 0, 0
	for left, n := asked, *diskFrom; left > 0 && !t.Failed(); left, n = left-cutsPerDisk, n+1 {
		t.Run(fmt.Sprintf("disk=%d", n), func(t *testing.T) {
			r := newRecorder(t, initial)
			mnt := t.TempDir()
			first, promises := recordLives(t, r, mnt, n)
			last := r.Position()
			chance := rand.New(rand.NewPCG(uint64(n), 7))
			positions := make([]int, min(left, cutsPerDisk))
			for i := range positions {
				positions[i] = first + chance.IntN(last-first+1)
				if i%8 == 0 { // around the end, when the store is closed
					positions[i] = last - chance.IntN(min(100, last-first))
				}
			}
			slices.Sort(positions)
			for _, position := range positions {
				b, k := checkCut(t, r.Cut(position, chance), mnt, position, promises)
				blocks, kept = blocks+b, kept+k
			}
			synced += len(promises)
		})
	}
	t.Logf("%d power cuts, %d syncs; on average %.1f blocks and %.1f promises at a cut", asked, synced,
		float64(blocks)/float64(asked), float64(kept)/float64(asked))
}

// recordLives has many writers on the disk, and returns what they were promised,
// and where they began.
func recordLives(t *testing.T, r *Recorder, mnt string, n int) (first int, promises []promise) {
	t.Helper()
	if err := run("mount", "-o", "loop", r.Disk, mnt); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: no power cut without a loop device: %v", err)
	}
	defer func() {
		if err := unmount(mnt); err != nil {
			t.Error(err)
		}
	}()
	l := &lab{TB: t, direct: n/2%2 == 1}
	l.setUp([]iouring.Choice{iouring.AutoBackend, iouring.SyscallBackend}[n%2])
	defer l.tearDown()
	s := l.mustOpen(filepath.Join(mnt, "store"))
	first = r.Position()
	var mu sync.Mutex
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for g := range int64(writers) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := writeLives(s, int64(n)*writers+g+1, stop, func(id int64, length int) {
				p := promise{id, int64(length), r.Position()}
				mu.Lock()
				promises = append(promises, p)
				mu.Unlock()
			}); err != nil {
				t.Error(err)
			}
		}()
	}
	for r.Bytes() < diskBytes && !t.Failed() {
		time.Sleep(5 * time.Millisecond)
	}
	close(stop)
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	return first, promises
}

// checkCut opens the store on what a power cut has left, and returns how many
// blocks there are, and how many promises were to be kept.
func checkCut(t *testing.T, left, mnt string, position int, promises []promise) (blocks, kept int) {
	t.Helper()
	if err := run("mount", "-o", "loop", left, mnt); err != nil {
		t.Fatalf("cut at %d: %v", position, err)
	}
	defer func() {
		if err := unmount(mnt); err != nil {
			t.Error(err)
		}
		if err := run("e2fsck", "-fn", left); err != nil { // or the disk is not one
			t.Error(err)
		}
	}()
	promised := map[int64]int64{}
	for _, p := range promises {
		if p.position <= position {
			promised[p.id] = max(promised[p.id], p.length)
		}
	}
	l := &lab{TB: t}
	l.setUp(iouring.SyscallBackend)
	defer l.tearDown()
	dir := filepath.Join(mnt, "store")
	for opening := range 2 {
		s := l.mustOpen(dir)
		defer s.Close() // before the disk is unmounted, if this ends early
		found := map[int64]bool{}
		for _, b := range s.Blocks() {
			found[b.ID] = true
			got, err := readBlock(s, b)
			if err != nil || int64(len(got)) < promised[b.ID] || !bytes.HasPrefix(content(b.ID), got) {
				t.Fatalf("cut at %d, opening %d: block %d: %d bytes can be read of %d, %d were promised: %v",
					position, opening, b.ID, len(got), len(content(b.ID)), promised[b.ID], err)
			}
		}
		for id, n := range promised {
			if !found[id] {
				t.Fatalf("cut at %d, opening %d: block %d is gone, %d bytes were promised", position, opening, id, n)
			}
		}
		if dropped := s.Stats(); opening > 0 {
			for name, n := range dropped.All() {
				if name == "bytes_dropped" && n != 0 {
					t.Fatalf("cut at %d: a second recovery drops %d bytes", position, n)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := verify(dir); err != nil {
			t.Fatalf("cut at %d, opening %d: %v", position, opening, err)
		}
		blocks = len(found)
	}
	return blocks, len(promised)
}

// A disk loses data of a block that is in the page cache, and the sync fails. The
// kernel keeps the pages that it could not write and thinks of them as written,
// until it drops them. So nobody is told that they are durable, the block is not
// gone on with, and another opening keeps of it what is on the disk in fact.
func TestLostWrites(t *testing.T) {
	needRoot(t)
	r := newRecorder(t, emptyDisk(t))
	mnt := t.TempDir()
	if err := run("mount", "-o", "loop", r.Disk, mnt); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: no loop device: %v", err)
	}
	defer func() {
		if err := unmount(mnt); err != nil {
			t.Error(err)
		}
	}()
	l := &lab{TB: t}
	l.setUp(iouring.AutoBackend)
	defer l.tearDown()
	dir := filepath.Join(mnt, "store")
	s := l.mustOpen(dir)
	defer func() { s.Close() }()

	mark := []byte("page of the block")
	data := randomBytes(9, 4<<20)
	for at := 0; at < len(data); at += pageSize {
		copy(data[at:], mark)
	}
	life := &life{s: s, b: block(1), data: data}
	var err error
	if life.w, err = s.Create(bg, life.b, crc.Chunks{}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(life.send(1<<20), life.w.Sync(bg)); err != nil {
		t.Fatal(err)
	}
	synced := life.sent
	r.SetFault(func(p []byte, _ int64) syscall.Errno {
		if bytes.HasPrefix(p, mark) {
			return syscall.EIO
		}
		return 0
	})
	if err := life.send(len(data)); err != nil {
		t.Fatal(err)
	}
	var failed *iouring.IOError
	if err := life.w.Sync(bg); !errors.As(err, &failed) || failed.Op != "datasync" || !errors.Is(err, syscall.EIO) {
		t.Fatalf("a sync of what the disk does not take: %v", err)
	}
	if _, err := s.Recover(bg, life.b, 1002, 0, int64(len(data)), crc.Chunks{}); !errors.As(err, &failed) {
		t.Errorf("a recovery after it: %v", err)
	}
	if err := s.RecoverClose(bg, life.b, 1002, life.w.Visible()); !errors.As(err, &failed) {
		t.Errorf("a close recovery after it: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = l.mustOpen(dir)
	got, err := readBlock(s, packet.Block{Pool: pool, ID: 1})
	if err != nil || len(got) < synced || len(got) == len(data) || !bytes.HasPrefix(data, got) {
		t.Fatalf("%d bytes can be read of %d, %d had been synced: %v", len(got), len(data), synced, err)
	}
	// They are there also when the page cache is gone.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unmount(mnt), run("mount", "-o", "loop", r.Disk, mnt)); err != nil {
		t.Fatal(err)
	}
	s = l.mustOpen(dir)
	if again, err := readBlock(s, packet.Block{Pool: pool, ID: 1}); err != nil || !bytes.Equal(again, got) {
		t.Errorf("%d bytes are on the disk, %d could be read: %v", len(again), len(got), err)
	}
}
