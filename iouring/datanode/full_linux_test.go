package datanode

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// smallDisk mounts a tmpfs of the given size.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED, NOT TESTED: a small file system takes root to mount")
	}
	dir := t.TempDir()
	if err := unix.Mount("blockpath", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// On a full disk writing fails with a clear error, what was acknowledged is
// there, reading goes on, and so does writing when there is room again.
func TestFullDisk(t *testing.T) {
	checkLeaks(t)
	dir := smallDisk(t, "2m")
	s := openStore(t, dir)
	_, addr := startServer(t, s, ServerConfig{})
	c, data := crc.Chunks{}, randomBytes(60, 64512)
	old := testBlock(1)
	writeBlock(t, s, old, c, data)

	full := testBlock(2)
	p := dial(t, addr)
	p.open(full, c)
	acked := 0
	for seqno := int64(0); ; seqno++ {
		p.packet(packet.Header{Offset: seqno * 64512, Seqno: seqno}, c, data)
		a, err := packet.ReadAck(p.in)
		if err != nil || a.Seqno != seqno {
			t.Fatalf("%+v, %v", a, err)
		}
		if a.Status(0) == packet.Error {
			break
		}
		acked++
	}
	p.eof()
	want := bytes.Repeat(data, acked)
	if acked < 20 {
		t.Errorf("the disk is full after %d packets", acked)
	}
	waitFor(t, func() bool { r := s.find(full); r.mu.Lock(); defer r.mu.Unlock(); return r.state == waiting })
	checkFiles(t, s, full, c, want)

	// Leave nothing, so that not even a file can be made.
	hog, err := os.Create(dir + "/hog")
	if err != nil {
		t.Fatal(err)
	}
	for _, err = hog.Write(data); err == nil; _, err = hog.Write(data) {
	}
	for {
		if _, err := hog.Write(data[:1]); err != nil {
			break
		}
	}
	hog.Close()
	_, err = s.Create(bg, testBlock(3), c)
	var space *SpaceError
	if !errors.As(err, &space) || space.Dir != dir {
		t.Errorf("create on a full disk: %v", err)
	}
	q := dial(t, addr)
	q.write(writeRequest(testBlock(4), c).Append(nil))
	if r := q.response(); r.Status != packet.Error || !bytes.Contains([]byte(r.Message), []byte("no space")) {
		t.Errorf("%+v", r)
	}
	reader := dial(t, addr)
	for b, want := range map[packet.Block][]byte{old: data, full: want} {
		if got, _ := reader.get(readRequest(b, 0, -1)); !bytes.Equal(got, want) {
			t.Errorf("%v: read %d bytes", b, len(got))
		}
	}
	reader.Close()
	// Reopening takes no space either.
	s2 := func() *Store { s.Close(); return openStore(t, dir) }()
	checkFiles(t, s2, full, c, want)

	if err := os.Remove(dir + "/hog"); err != nil {
		t.Fatal(err)
	}
	w, err := s2.Recover(bg, full, 1002, int64(len(want)), int64(len(want)), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Finalize(bg, true); err != nil {
		t.Fatal(err)
	}
	full.Stamp = 1002
	checkFiles(t, s2, full, c, want)
}

// Room is promised once: what writers are going to need counts as taken, and no
// longer when they have ended.
func TestReservation(t *testing.T) {
	s := openStore(t, smallDisk(t, "8m"))
	reserve := func(id, n int64) (*BlockWriter, error) {
		b := testBlock(id)
		b.NumBytes = n
		return s.Create(bg, b, crc.Chunks{})
	}
	first, err := reserve(1, 5<<20)
	if err != nil {
		t.Fatal(err)
	}
	var space *SpaceError
	if _, err := reserve(2, 5<<20); !errors.As(err, &space) || space.Need != 5<<20 || space.Free > 3<<20 {
		t.Errorf("5 MiB twice in 8: %v", err)
	}
	data := randomBytes(61, 2<<20)
	if err := errors.Join(send(t, first, packet.Header{}, data), first.Flush(bg)); err != nil {
		t.Fatal(err)
	}
	// What is reserved has been allocated, which comes to the same.
	if free, err := s.volumes[0].free(); err != nil || free > 3<<20 || free < 2<<20 {
		t.Errorf("%d bytes are free of 8 MiB of which 5 are promised, %v", free, err)
	}
	if got := first.blk.OS(); allocated(t, got.Name()) < 5<<20 {
		t.Errorf("%d bytes are allocated after 2 of 5 MiB", allocated(t, got.Name()))
	}
	if err := first.Finalize(bg, false); err != nil {
		t.Fatal(err)
	}
	second, err := reserve(2, 5<<20)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(send(t, second, packet.Header{}, data), second.Flush(bg), second.Abort(bg)); err != nil {
		t.Fatal(err)
	}
	for id := int64(1); id <= 2; id++ {
		if r := s.find(testBlock(id)); allocated(t, r.blockPath()) > 2<<20 {
			t.Errorf("%d bytes are allocated for 2 MiB", allocated(t, r.blockPath()))
		}
	}
	// Short blocks are not allocated ahead.
	third, err := reserve(3, 3<<20)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(send(t, third, packet.Header{}, data[:1<<19]), third.Flush(bg)); err != nil {
		t.Fatal(err)
	}
	if got := s.volumes[0].reserved.Load(); got != 5<<19 {
		t.Errorf("%d bytes are reserved after half a MiB of 3, expected %d", got, 5<<19)
	}
	if err := third.Abort(bg); err != nil {
		t.Fatal(err)
	}
}

// allocated returns how many bytes of the disk a file has.
func allocated(t *testing.T, name string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}
