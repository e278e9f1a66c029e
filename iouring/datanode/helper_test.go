//go:build linux || darwin

package datanode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring"
)

const testPool = "BP-1-127.0.0.1-1"

var bg = context.Background()

func testBlock(id int64) packet.Block { return packet.Block{Pool: testPool, ID: id, Stamp: 1001} }

// testArena returns an arena that has to be empty in the end.
func testArena(t testing.TB, bytes int64) *iouring.Arena {
	t.Helper()
	a, err := iouring.NewArena(iouring.ArenaConfig{Bytes: bytes, MaxBuffer: int(min(bytes, 32<<20))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := a.InUse(); n != 0 {
			t.Errorf("%d bytes of the arena are still in use", n)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func testBackend(t testing.TB) iouring.Backend {
	t.Helper()
	b, err := iouring.Open(iouring.Config{Backend: iouring.SyscallBackend})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// openStore opens a store in dir, which is closed in the end.
func openStore(t testing.TB, dirs ...string) *Store {
	t.Helper()
	return openStoreWith(t, StoreConfig{Dirs: dirs, Arena: testArena(t, 64<<20)})
}

func openStoreWith(t testing.TB, cfg StoreConfig) *Store {
	t.Helper()
	if cfg.Backend == nil {
		cfg.Backend = testBackend(t)
	}
	s, err := OpenStore(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for _, v := range s.volumes {
			if n := v.reserved.Load(); n != 0 {
				t.Errorf("%d bytes of %s are still reserved", n, v.root)
			}
		}
	})
	return s
}

// fastDir returns a temporary directory in memory if there is one: for tests of
// thousands of files that have no use for a disk.
func fastDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "datanode")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// checkLeaks fails the test if goroutines or file descriptors are left when it
// and its cleanups are done. Call it first.
func checkLeaks(t testing.TB) {
	t.Helper()
	goroutines, fds := runtime.NumGoroutine(), openFiles()
	t.Cleanup(func() {
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
			g, f := runtime.NumGoroutine(), openFiles()
			if g <= goroutines && f <= fds {
				return
			}
			if time.Now().After(deadline) {
				stacks := make([]byte, 1<<16)
				t.Errorf("leak: %d goroutines, were %d; %d open files, were %d\n%s", g, goroutines, f, fds,
					stacks[:runtime.Stack(stacks, true)])
				return
			}
		}
	})
}

func openFiles() int {
	for _, dir := range []string{"/proc/self/fd", "/dev/fd"} {
		if entries, err := os.ReadDir(dir); err == nil {
			n := 0
			for _, e := range entries {
				// The poller's own descriptors come when it is first used.
				if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.HasPrefix(target, "anon_inode:[event") {
					continue
				}
				n++
			}
			return n
		}
	}
	return 0
}

// randomBytes returns n bytes that depend on seed only.
func randomBytes(seed uint64, n int) []byte {
	src := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	p := make([]byte, n)
	_, _ = src.Read(p)
	return p
}

// oracleSums is what the checksums of data are, by the standard library.
func oracleSums(c crc.Chunks, data []byte) []byte {
	table := crc32.MakeTable(crc32.Castagnoli)
	if c.Kind == crc.CRC32 {
		table = crc32.IEEETable
	}
	var sums []byte
	if c.Kind == crc.None {
		return nil
	}
	for len(data) > 0 {
		n := min(len(data), c.BytesPerChunk())
		v := crc32.Checksum(data[:n], table)
		sums = append(sums, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
		data = data[n:]
	}
	return sums
}

func oracleMeta(c crc.Chunks, data []byte) []byte {
	id := map[crc.Kind]byte{crc.None: 0, crc.CRC32: 1, crc.CRC32C: 2}[c.Kind]
	n := c.BytesPerChunk()
	return append([]byte{0, 1, id, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, oracleSums(c, data)...)
}

// send gives a packet with right checksums to w.
func send(t testing.TB, w *BlockWriter, h packet.Header, data []byte) error {
	t.Helper()
	return sendSums(t, w, h, oracleSums(w.Chunks(), data), data)
}

func sendSums(t testing.TB, w *BlockWriter, h packet.Header, sums, data []byte) error {
	t.Helper()
	h.DataLen = len(data)
	if len(data) == 0 && len(sums) == 0 {
		return w.WritePacket(bg, h, 0, iouring.Buffer{})
	}
	buf, err := w.store.arena.Get(bg, w.BufferLen(h, len(sums)))
	if err != nil {
		t.Fatal(err)
	}
	copy(buf.Bytes()[copy(buf.Bytes(), sums):], data)
	return w.WritePacket(bg, h, len(sums), buf)
}

// checkFiles fails the test if the replica's files do not hold exactly data and
// its checksums.
func checkFiles(t testing.TB, s *Store, b packet.Block, c crc.Chunks, data []byte) {
	t.Helper()
	r := s.find(b)
	if r == nil {
		t.Fatalf("%v is not in the store", b)
		return
	}
	r.mu.Lock()
	block, meta := r.blockPath(), r.metaPath()
	r.mu.Unlock()
	if err := sameFiles(block, meta, c, data); err != nil {
		t.Fatal(err)
	}
}

func sameFiles(block, meta string, c crc.Chunks, data []byte) error {
	got, err := os.ReadFile(block)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, data) {
		return fmt.Errorf("%s: %d bytes that are not the %d written", block, len(got), len(data))
	}
	got, err = os.ReadFile(meta)
	if err != nil {
		return err
	}
	if want := oracleMeta(c, data); !bytes.Equal(got, want) {
		return fmt.Errorf("%s: % x, expected % x", meta, got, want)
	}
	return nil
}

// readAll reads a block through a BlockReader.
func readAll(s *Store, b packet.Block) ([]byte, error) {
	r, err := s.Open(b)
	if err != nil {
		return nil, err
	}
	p := make([]byte, r.Len())
	_, err = r.ReadAt(p, 0)
	return p, errors.Join(err, r.Close())
}

// writeBlock writes a finalized block.
func writeBlock(t testing.TB, s *Store, b packet.Block, c crc.Chunks, data []byte) {
	t.Helper()
	w, err := s.Create(bg, b, c)
	if err != nil {
		t.Fatal(err)
	}
	seqno, n := int64(0), 126*w.Chunks().BytesPerChunk()
	for off := 0; off < len(data); off += n {
		if err := send(t, w, packet.Header{Offset: int64(off), Seqno: seqno}, data[off:min(off+n, len(data))]); err != nil {
			t.Fatal(err)
		}
		seqno++
	}
	if err := send(t, w, packet.Header{Offset: int64(len(data)), Seqno: seqno, Last: true}, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Finalize(bg, false); err != nil {
		t.Fatal(err)
	}
}
