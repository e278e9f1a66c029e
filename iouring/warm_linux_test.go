package iouring

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWarmFile reads a file that is in the page cache, then no more.
func TestWarmFile(t *testing.T) {
	b, err := Open(Config{Backend: RingBackend})
	if err != nil {
		t.Skipf("SKIPPED, NOT TESTED, NO RING HERE: %v", err)
	}
	defer b.Close()
	a, err := NewArena(ArenaConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	buf, err := a.Get(t.Context(), 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Release()
	want := bytes.Repeat([]byte("page"), 1024)
	f, err := OpenFile(filepath.Join(t.TempDir(), "file"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.OS().Write(want); err != nil {
		t.Fatal(err)
	}
	if err := b.Datasync(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	// Another operation is under way, or every read is a plain one.
	d := b.(*backend).dev.(*ringDevice)
	if !d.ops.enter() {
		t.Fatal("closed")
	}
	defer d.ops.leave()
	read := func() {
		t.Helper()
		clear(buf.Bytes())
		if n, err := b.ReadAt(t.Context(), f, buf, 0); n != len(want) || err != nil || !bytes.Equal(buf.Bytes(), want) {
			t.Fatalf("read %d bytes, %v", n, err)
		}
	}
	for range warmHits {
		read()
	}
	if f.noNowait.Load() {
		t.Skip("SKIPPED, NOT TESTED: the file system of the temporary directory reads nothing without waiting")
	}
	if got := f.hits.Load(); got != warmHits {
		t.Fatalf("%d reads of cached data counted, want %d", got, warmHits)
	}
	read()
	for tries := 0; f.hits.Load() == warmHits; tries++ {
		if tries == 2000 {
			t.Skip("SKIPPED, NOT TESTED: the file system of the temporary directory does not drop what it has cached")
		}
		if err := unix.Fadvise(int(f.OS().Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			t.Fatal(err)
		}
		read()
	}
	if got := f.hits.Load(); got != 0 {
		t.Errorf("%d reads of cached data counted after one that had to wait", got)
	}
	if reads := b.Stats().Load(statRingReads); reads != 1 {
		t.Errorf("%d reads through the ring, want 1", reads)
	}
}
