package iouring_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/blockpath/blockpath/iouring"
	"golang.org/x/sys/unix"
)

// needRing skips a test where the kernel has no ring for us.
func needRing(t testing.TB) {
	t.Helper()
	b, err := iouring.Open(iouring.Config{Backend: iouring.RingBackend})
	if err != nil {
		t.Skipf("SKIPPED, NO RING HERE: %v", err)
	}
	b.Close()
}

func newRing(t testing.TB, cfg iouring.RingConfig) *iouring.Ring {
	t.Helper()
	needRing(t)
	r, err := iouring.NewRing(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func push(t testing.TB, r *iouring.Ring, s *iouring.SQE) iouring.Token {
	t.Helper()
	token, err := r.Push(s)
	if err == iouring.ErrSQFull { // the kernel's thread of SQPOLL may be behind
		if _, err := r.Submit(); err != nil {
			t.Fatal(err)
		}
		token, err = r.Push(s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// wait takes n completions, by user data.
func wait(t testing.TB, r *iouring.Ring, n int) map[uint64]iouring.CQE {
	t.Helper()
	got := map[uint64]iouring.CQE{}
	for range n {
		c, err := r.WaitCQE()
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := got[c.UserData]; twice {
			t.Fatalf("two completions for %d", c.UserData)
		}
		got[c.UserData] = c
	}
	return got
}

func pipe(t testing.TB) (r, w int) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
	return p[0], p[1]
}

func socketpair(t testing.TB) (a, b int) {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
	return p[0], p[1]
}

// signalStorm sends the runtime's preemption signal to every thread, again and
// again, until the test ends.
func signalStorm(t *testing.T) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		pid := os.Getpid()
		for {
			select {
			case <-stop:
				return
			default:
			}
			tasks, err := os.ReadDir("/proc/self/task")
			if err != nil {
				t.Error(err)
				return
			}
			for _, task := range tasks {
				tid, _ := strconv.Atoi(task.Name())
				_ = unix.Tgkill(pid, tid, unix.SIGURG) // a thread may be gone by now
			}
			runtime.Gosched()
		}
	}()
	t.Cleanup(func() { close(stop); wg.Wait() })
}

func TestRingNop(t *testing.T) {
	r := newRing(t, iouring.RingConfig{Entries: 5})
	if sq, cq := r.Entries(); sq != 8 || cq != 16 {
		t.Errorf("queues of %d and %d", sq, cq)
	}
	if _, err := r.WaitCQE(); err != iouring.ErrNothingInFlight {
		t.Errorf("wait for nothing: %v", err)
	}
	s := iouring.SQE{UserData: 1<<64 - 1} // also what tokens look like
	push(t, r, &s)
	if n, err := r.Submit(); n != 1 || err != nil {
		t.Errorf("Submit: %d, %v", n, err)
	}
	c := wait(t, r, 1)[1<<64-1]
	if c.Res != 0 || c.Err() != nil || c.More() || c.Message || r.InFlight() != 0 {
		t.Errorf("%+v, %d in flight", c, r.InFlight())
	}
	if _, ok := r.PeekCQE(); ok {
		t.Error("a completion out of nothing")
	}
}

func TestRingConfig(t *testing.T) {
	needRing(t)
	var ce *iouring.ConfigError
	for _, cfg := range []iouring.RingConfig{{Entries: -1}, {CQEntries: -1}, {CQEntries: 65537}} {
		if _, err := iouring.NewRing(cfg); !errors.As(err, &ce) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	r := newRing(t, iouring.RingConfig{Entries: 1 << 20})
	if sq, _ := r.Entries(); sq != 32768 {
		t.Errorf("1<<20 entries became %d", sq)
	}
	r = newRing(t, iouring.RingConfig{Entries: 1, CQEntries: 100})
	if sq, cq := r.Entries(); sq != 1 || cq != 128 {
		t.Errorf("queues of %d and %d", sq, cq)
	}
}

// TestRingTiny runs 1000 operations through queues of 2: a full queue is
// reported, and nothing is lost.
func TestRingTiny(t *testing.T) {
	for _, cq := range []int{2, 4} {
		r := newRing(t, iouring.RingConfig{Entries: 2, CQEntries: cq})
		done := 0
		sqFull, cqFull := 0, 0
		for i := 0; i < 1000; {
			s := iouring.SQE{UserData: uint64(i)}
			switch _, err := r.Push(&s); err {
			case nil:
				i++
				continue
			case iouring.ErrSQFull:
				sqFull++
				if _, err := r.Submit(); err != nil {
					t.Fatal(err)
				}
			case iouring.ErrCQFull:
				cqFull++
				for {
					c, ok := r.PeekCQE()
					if !ok {
						break
					}
					if c.UserData != uint64(done) {
						t.Fatalf("completion %d, want %d", c.UserData, done)
					}
					done++
				}
			default:
				t.Fatal(err)
			}
		}
		for ; done < 1000; done++ {
			if c, err := r.WaitCQE(); err != nil || c.UserData != uint64(done) {
				t.Fatalf("completion %d, want %d (%v)", c.UserData, done, err)
			}
		}
		if sqFull == 0 || cqFull == 0 {
			t.Errorf("full queues seen: %d and %d", sqFull, cqFull)
		}
	}
}

// TestRingOverflow sends more messages to a ring than its queue holds.
func TestRingOverflow(t *testing.T) {
	to := newRing(t, iouring.RingConfig{Entries: 4, CQEntries: 4})
	from := newRing(t, iouring.RingConfig{Entries: 64})
	const n = 20
	for i := range uint64(n) {
		var s iouring.SQE
		s.UserData = i
		s.PrepMsgRing(to.FD(), int32(i), 1000+i)
		push(t, from, &s)
	}
	if _, err := from.SubmitAndWait(n); err != nil {
		t.Fatal(err)
	}
	for i, c := range wait(t, from, n) {
		if c.Err() != nil {
			t.Errorf("message %d: %v", i, c.Err())
		}
	}
	for i := range uint64(n) {
		c, ok := to.PeekCQE()
		if !ok || !c.Message || c.UserData != 1000+i || c.Res != int32(i) {
			t.Fatalf("message %d: %+v, %v", i, c, ok)
		}
	}
	if _, ok := to.PeekCQE(); ok {
		t.Error("one message too many")
	}
}

// TestRingStale makes a completion arrive for an operation that has ended, and
// for one that never was: they are dropped.
func TestRingStale(t *testing.T) {
	r := newRing(t, iouring.RingConfig{})
	from := newRing(t, iouring.RingConfig{})
	var s iouring.SQE
	old := push(t, r, &s)
	wait(t, r, 1)
	now := push(t, r, &s) // takes the same place
	for _, data := range []uint64{uint64(old), uint64(now) + 1, 1<<63 | 1<<31} {
		var m iouring.SQE
		m.PrepMsgRing(r.FD(), 0, data)
		push(t, from, &m)
		if c := wait(t, from, 1)[0]; c.Err() != nil {
			t.Fatal(c.Err())
		}
	}
	if c, ok := r.PeekCQE(); ok || r.InFlight() != 1 {
		t.Errorf("%+v, %d in flight", c, r.InFlight())
	}
	wait(t, r, 1)
}

func TestRingFileOps(t *testing.T) {
	r := newRing(t, iouring.RingConfig{})
	a := newArena(t, iouring.ArenaConfig{})
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	var s iouring.SQE

	one := func(what string) int {
		t.Helper()
		s.UserData = 7
		push(t, r, &s)
		c := wait(t, r, 1)[7]
		if c.Err() != nil {
			t.Fatalf("%s: %v", what, c.Err())
		}
		return int(c.Res)
	}
	s.PrepOpenat(unix.AT_FDCWD, name, unix.O_RDWR|unix.O_CREAT, 0o600)
	fd := one("openat")
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("openat without O_CLOEXEC: %#x, %v", flags, err)
	}

	b1, b2, b3 := get(t, a, 5000), get(t, a, 0), get(t, a, 3000)
	defer release(t, b1, b2, b3)
	fill(b1.Bytes(), 1)
	fill(b3.Bytes(), 3)
	s.PrepWritev(fd, []iouring.Buffer{b1, b2, b3}, 10)
	if n := one("writev"); n != 8000 {
		t.Errorf("writev: %d", n)
	}
	s.PrepWrite(fd, b3.Slice(0, 10), 0)
	if n := one("write"); n != 10 {
		t.Errorf("write: %d", n)
	}
	s.PrepFsync(fd, true)
	one("fdatasync")
	s.PrepFsync(fd, false)
	one("fsync")
	want := slicesConcat(bytes.Repeat([]byte{3}, 10), bytes.Repeat([]byte{1}, 5000), bytes.Repeat([]byte{3}, 3000))
	if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file has %d bytes (%v)", len(got), err)
	}

	in := get(t, a, 9000)
	defer release(t, in)
	s.PrepRead(fd, in, 0)
	if n := one("read"); n != 8010 || !bytes.Equal(in.Bytes()[:n], want) {
		t.Errorf("read: %d", n)
	}
	fill(in.Bytes(), 0)
	s.PrepReadv(fd, []iouring.Buffer{in.Slice(0, 100), in.Slice(100, 9000)}, 1)
	if n := one("readv"); n != 8009 || !bytes.Equal(in.Bytes()[:n], want[1:]) {
		t.Errorf("readv: %d", n)
	}

	s.PrepFallocate(fd, 0, 0, 100_000)
	one("fallocate")
	st := new(unix.Statx_t)
	s.PrepStatx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_SIZE, st)
	one("statx")
	if st.Size != 100_000 {
		t.Errorf("size %d after fallocate", st.Size)
	}
	*st = unix.Statx_t{}
	s.PrepStatx(unix.AT_FDCWD, name, 0, unix.STATX_SIZE, st)
	one("statx by name")
	if st.Size != 100_000 {
		t.Errorf("size %d by name", st.Size)
	}

	pr, pw := pipe(t)
	s.PrepSplice(fd, 10, pw, -1, 4000, 0)
	if n := one("splice"); n != 4000 {
		t.Errorf("splice: %d", n)
	}
	s.PrepRead(pr, in, -1)
	if n := one("read of a pipe"); n != 4000 || !holds(in.Bytes()[:n], 1) {
		t.Errorf("read of a pipe: %d", n)
	}

	s.PrepClose(fd)
	one("close")
	s.PrepRead(fd, in, 0)
	s.UserData = 8
	push(t, r, &s)
	if c := wait(t, r, 1)[8]; c.Err() != unix.EBADF {
		t.Errorf("read of a closed file: %v", c.Err())
	}
}

func slicesConcat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestRingRegistered(t *testing.T) {
	r := newRing(t, iouring.RingConfig{})
	a := newArena(t, iouring.ArenaConfig{Bytes: 1 << 20})
	other := newArena(t, iouring.ArenaConfig{Bytes: 1 << 20})
	if err := r.RegisterArenas(a, other); err != nil {
		t.Fatal(err)
	}
	if err := r.RegisterFilesSparse(10); err != nil {
		t.Fatal(err)
	}
	f := tempFile(t)
	fd := int32(f.OS().Fd())
	if err := r.UpdateFiles(3, []int32{fd, -1, fd}); err != nil {
		t.Fatal(err)
	}
	if err := r.UpdateFiles(9, []int32{-1, fd}); err == nil {
		t.Error("an update beyond the table worked")
	}
	if err := r.UpdateFiles(0, []int32{1 << 20}); err == nil {
		t.Error("a descriptor that is none was registered")
	}

	out, in := get(t, a, 10_000), get(t, other, 10_000)
	defer release(t, out, in)
	fill(out.Bytes(), 9)
	var s iouring.SQE
	s.UserData = 1
	s.PrepWriteFixed(5, out, 0, 0)
	s.SetFlags(iouring.SQEFixedFile)
	push(t, r, &s)
	if c := wait(t, r, 1)[1]; c.Res != 10_000 {
		t.Fatalf("write: %+v", c)
	}
	s.PrepReadFixed(3, in, 0, 1)
	s.SetFlags(iouring.SQEFixedFile)
	push(t, r, &s)
	if c := wait(t, r, 1)[1]; c.Res != 10_000 || !holds(in.Bytes(), 9) {
		t.Fatalf("read: %+v", c)
	}
	s.PrepReadFixed(3, in, 0, 0) // not in that arena
	s.SetFlags(iouring.SQEFixedFile)
	push(t, r, &s)
	if c := wait(t, r, 1)[1]; c.Err() != unix.EFAULT {
		t.Errorf("read into memory that is not registered: %v", c.Err())
	}
	s.PrepReadFixed(4, in, 0, 1)
	s.SetFlags(iouring.SQEFixedFile)
	push(t, r, &s)
	if c := wait(t, r, 1)[1]; c.Err() != unix.EBADF {
		t.Errorf("read of an empty place: %v", c.Err())
	}
	if err := r.UnregisterFiles(); err != nil {
		t.Error(err)
	}
	if err := r.UnregisterArenas(); err != nil {
		t.Error(err)
	}
}

func TestRingLinks(t *testing.T) {
	r := newRing(t, iouring.RingConfig{})
	a := newArena(t, iouring.ArenaConfig{})
	f := tempFile(t)
	fd := int(f.OS().Fd())
	buf := get(t, a, 100)
	defer release(t, buf)
	fill(buf.Bytes(), 5)
	var s iouring.SQE

	// write, then read what was written
	in := get(t, a, 100)
	defer release(t, in)
	s.UserData = 1
	s.PrepWrite(fd, buf, 0)
	s.SetFlags(iouring.SQEIOLink)
	push(t, r, &s)
	s.UserData = 2
	s.PrepRead(fd, in, 0)
	push(t, r, &s)
	got := wait(t, r, 2)
	if got[1].Res != 100 || got[2].Res != 100 || !holds(in.Bytes(), 5) {
		t.Errorf("chain: %+v", got)
	}

	// A short read breaks a chain, and not one of hard links.
	for _, link := range []iouring.SQEFlags{iouring.SQEIOLink, iouring.SQEIOHardlink} {
		s.UserData = 1
		s.PrepRead(fd, in, 50)
		s.SetFlags(link)
		push(t, r, &s)
		s.UserData = 2
		s.PrepFsync(fd, true)
		push(t, r, &s)
		got = wait(t, r, 2)
		var want error
		if link == iouring.SQEIOLink {
			want = unix.ECANCELED
		}
		if got[1].Res != 50 || got[2].Err() != want {
			t.Errorf("short read with link %#x: %+v", link, got)
		}
	}

	// A time limit, met and not met.
	pr, pw := pipe(t)
	limited := func(d time.Duration) map[uint64]iouring.CQE {
		s.UserData = 1
		s.PrepRead(pr, in, -1)
		s.SetFlags(iouring.SQEIOLink)
		push(t, r, &s)
		s.UserData = 2
		s.PrepLinkTimeout(d)
		push(t, r, &s)
		if _, err := r.Submit(); err != nil {
			t.Fatal(err)
		}
		if d > time.Minute {
			unix.Write(pw, []byte("x"))
		}
		return wait(t, r, 2)
	}
	got = limited(time.Millisecond)
	if got[1].Err() != unix.ECANCELED || got[2].Err() != unix.ETIME {
		t.Errorf("limit that runs out: %+v", got)
	}
	got = limited(time.Hour)
	if got[1].Res != 1 || got[2].Err() != unix.ECANCELED {
		t.Errorf("limit that holds: %+v", got)
	}

	// A drained operation starts after everything before it.
	s.UserData = 1
	s.PrepRead(pr, in, -1)
	push(t, r, &s)
	s.UserData = 2
	s.PrepNop()
	s.SetFlags(iouring.SQEIODrain)
	push(t, r, &s)
	if _, err := r.Submit(); err != nil {
		t.Fatal(err)
	}
	if c, ok := r.PeekCQE(); ok {
		t.Errorf("the drained no-op overtook: %+v", c)
	}
	unix.Write(pw, []byte("x"))
	if c, err := r.WaitCQE(); err != nil || c.UserData != 1 {
		t.Errorf("first %+v, %v", c, err)
	}
	if c, err := r.WaitCQE(); err != nil || c.UserData != 2 {
		t.Errorf("second %+v, %v", c, err)
	}

	s.PrepNop()
	s.SetFlags(1 << 6)
	var ce *iouring.ConfigError
	if _, err := r.Push(&s); !errors.As(err, &ce) {
		t.Errorf("CQE_SKIP_SUCCESS: %v", err)
	}
}

func TestRingTimeoutAndCancel(t *testing.T) {
	r := newRing(t, iouring.RingConfig{})
	a := newArena(t, iouring.ArenaConfig{})
	var s iouring.SQE
	s.UserData = 1
	s.PrepTimeout(time.Microsecond, 0)
	push(t, r, &s)
	if c := wait(t, r, 1)[1]; c.Err() != unix.ETIME {
		t.Errorf("timer: %v", c.Err())
	}
	s.PrepTimeout(time.Hour, 1)
	push(t, r, &s)
	s.UserData = 2
	s.PrepNop()
	push(t, r, &s)
	if c := wait(t, r, 2); c[1].Res != 0 {
		t.Errorf("timer with a count: %+v", c)
	}
	s.UserData = 1
	s.PrepTimeout(time.Hour, 0)
	timer := push(t, r, &s)
	s.UserData = 2
	s.PrepTimeoutRemove(timer)
	push(t, r, &s)
	if c := wait(t, r, 2); c[1].Err() != unix.ECANCELED || c[2].Res != 0 {
		t.Errorf("timer removed: %+v", c)
	}

	pr, _ := pipe(t)
	buf := get(t, a, 10)
	defer release(t, buf)
	s.UserData = 1
	s.PrepRead(pr, buf, -1)
	read := push(t, r, &s)
	if _, err := r.Submit(); err != nil {
		t.Fatal(err)
	}
	if n, err := r.SubmitAndWaitTimeout(1, time.Millisecond); n != 0 || !errors.Is(err, unix.ETIME) {
		t.Errorf("wait with a limit: %d, %v", n, err)
	}
	s.UserData = 2
	s.PrepCancel(read)
	push(t, r, &s)
	if c := wait(t, r, 2); c[1].Err() != unix.ECANCELED || c[2].Res != 0 {
		t.Errorf("cancel: %+v", c)
	}
	s.PrepCancel(read) // no longer there
	push(t, r, &s)
	if c := wait(t, r, 1); c[2].Err() != unix.ENOENT {
		t.Errorf("cancel of nothing: %+v", c)
	}
	for i := range uint64(3) {
		s.UserData = 10 + i
		s.PrepRead(pr, buf, -1)
		push(t, r, &s)
	}
	s.UserData = 2
	s.PrepCancelFD(pr)
	push(t, r, &s)
	if c := wait(t, r, 4); c[2].Res != 3 || c[10].Err() != unix.ECANCELED || c[12].Err() != unix.ECANCELED {
		t.Errorf("cancel by descriptor: %+v", c)
	}
}

func TestRingPoll(t *testing.T) {
	r := newRing(t, iouring.RingConfig{})
	pr, pw := pipe(t)
	var s iouring.SQE
	s.UserData = 1
	s.PrepPollAdd(pr, unix.POLLIN)
	push(t, r, &s)
	if _, err := r.Submit(); err != nil {
		t.Fatal(err)
	}
	if _, ok := r.PeekCQE(); ok {
		t.Error("an empty pipe is readable")
	}
	unix.Write(pw, []byte("x"))
	if c := wait(t, r, 1)[1]; c.Res&unix.POLLIN == 0 || c.More() {
		t.Errorf("poll: %+v", c)
	}
	s.PrepPollMultishot(pr, unix.POLLIN)
	poll := push(t, r, &s)
	for range 3 {
		if c := wait(t, r, 1)[1]; c.Res&unix.POLLIN == 0 || !c.More() {
			t.Errorf("multishot poll: %+v", c)
		}
		unix.Write(pw, []byte("x"))
	}
	s.UserData = 2
	s.PrepPollRemove(poll)
	push(t, r, &s)
	ended, removed := false, false
	for !ended || !removed {
		c, err := r.WaitCQE()
		if err != nil {
			t.Fatal(err)
		}
		removed = removed || c.UserData == 2 && c.Res == 0
		ended = ended || c.UserData == 1 && !c.More() && c.Err() == unix.ECANCELED
	}
}

func TestRingSockets(t *testing.T) {
	r := newRing(t, iouring.RingConfig{})
	a := newArena(t, iouring.ArenaConfig{})
	x, y := socketpair(t)
	out, in := get(t, a, 1000), get(t, a, 2000)
	defer release(t, out, in)
	fill(out.Bytes(), 4)
	var s iouring.SQE
	s.UserData = 1
	s.PrepRecv(y, in, 0)
	push(t, r, &s)
	s.UserData = 2
	s.PrepSend(x, out, 0)
	push(t, r, &s)
	if c := wait(t, r, 2); c[1].Res != 1000 || c[2].Res != 1000 || !holds(in.Bytes()[:1000], 4) {
		t.Errorf("send and receive: %+v", c)
	}
	s.UserData = 1
	s.PrepShutdown(x, unix.SHUT_WR)
	push(t, r, &s)
	wait(t, r, 1)
	s.PrepRecv(y, in, 0)
	push(t, r, &s)
	if c := wait(t, r, 1)[1]; c.Res != 0 {
		t.Errorf("receive after shutdown: %+v", c)
	}
}

// listen returns a TCP listener on the loopback and an address to connect to.
func listen(t testing.TB) (fd int, addr unix.Sockaddr) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 64); err != nil {
		t.Fatal(err)
	}
	if addr, err = unix.Getsockname(fd); err != nil {
		t.Fatal(err)
	}
	return fd, addr
}

func dial(t testing.TB, addr unix.Sockaddr) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Connect(fd, addr); err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestRingAcceptAndSendZC(t *testing.T) {
	r := newRing(t, iouring.RingConfig{})
	a := newArena(t, iouring.ArenaConfig{})
	l, addr := listen(t)
	var s iouring.SQE
	s.UserData = 1
	s.PrepAccept(l, 0)
	push(t, r, &s)
	if _, err := r.Submit(); err != nil {
		t.Fatal(err)
	}
	client := dial(t, addr)
	c := wait(t, r, 1)[1]
	if c.Err() != nil {
		t.Fatal(c.Err())
	}
	server := int(c.Res)
	defer unix.Close(server)

	out := get(t, a, 50_000)
	fill(out.Bytes(), 6)
	s.UserData = 2
	s.PrepSendZC(server, out, 0)
	push(t, r, &s)
	release(t, out) // only takes effect when the kernel has let go
	c = wait(t, r, 1)[2]
	if c.Err() == unix.EINVAL || c.Err() == unix.EOPNOTSUPP {
		t.Skipf("SKIPPED, NO ZERO-COPY SEND HERE: %v", c.Err())
	}
	if c.Res <= 0 || !c.More() {
		t.Fatalf("zero-copy send: %+v", c)
	}
	if a.InUse() == 0 {
		t.Error("the buffer is free before the notification")
	}
	got := make([]byte, c.Res)
	for n := 0; n < len(got); {
		k, err := unix.Read(client, got[n:])
		if err != nil || k == 0 {
			t.Fatal(k, err)
		}
		n += k
	}
	if c = wait(t, r, 1)[2]; c.Flags&iouring.CQENotif == 0 || c.More() {
		t.Errorf("notification: %+v", c)
	}
	if a.InUse() != 0 || !holds(got, 6) {
		t.Error("the buffer is not free after the notification")
	}
}

func TestRingMultishotAccept(t *testing.T) {
	r := newRing(t, iouring.RingConfig{})
	l, addr := listen(t)
	var s iouring.SQE
	s.UserData = 1
	s.PrepMultishotAccept(l, 0)
	accept := push(t, r, &s)
	if _, err := r.Submit(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		dial(t, addr)
		c := wait(t, r, 1)[1]
		if c.Err() != nil || !c.More() {
			t.Fatalf("%+v", c)
		}
		unix.Close(int(c.Res))
	}
	s.UserData = 2
	s.PrepCancel(accept)
	push(t, r, &s)
	if c := wait(t, r, 2); c[1].Err() != unix.ECANCELED || c[1].More() {
		t.Errorf("%+v", c)
	}
}

// TestRingSignals waits for completions while every thread is bombed with
// signals: nothing is lost, nothing hangs.
func TestRingSignals(t *testing.T) {
	r := newRing(t, iouring.RingConfig{Entries: 16})
	signalStorm(t)
	a := newArena(t, iouring.ArenaConfig{})
	pr, pw := pipe(t)
	buf := get(t, a, 64)
	defer release(t, buf)
	for i := range 300 {
		var s iouring.SQE
		for k := range uint64(4) {
			s.UserData = k
			s.PrepRead(pr, buf.Slice(int(k)*16, int(k)*16+1), -1)
			push(t, r, &s)
		}
		go func() {
			time.Sleep(time.Duration(i%5) * 50 * time.Microsecond)
			unix.Write(pw, []byte("abcd"))
		}()
		if n, err := r.SubmitAndWait(4); n != 4 || err != nil {
			t.Fatalf("round %d: %d, %v", i, n, err)
		}
		for k := range 4 {
			if c, ok := r.PeekCQE(); !ok || c.Res != 1 {
				t.Fatalf("round %d, completion %d: %+v, %v", i, k, c, ok)
			}
		}
	}
}

// TestRingBufferPinned lets go of a buffer while the kernel has it.
func TestRingBufferPinned(t *testing.T) {
	r := newRing(t, iouring.RingConfig{})
	a := newArena(t, iouring.ArenaConfig{Bytes: 1 << 20, MaxBuffer: 1 << 20})
	pr, pw := pipe(t)
	buf := get(t, a, 1<<20)
	var s iouring.SQE
	s.PrepRead(pr, buf, -1)
	push(t, r, &s)
	if _, err := r.Submit(); err != nil {
		t.Fatal(err)
	}
	release(t, buf)
	var be *iouring.BufferError
	if err := buf.Release(); !errors.As(err, &be) {
		t.Errorf("double release: %v", err)
	}
	if _, err := r.Push(&s); !errors.As(err, &be) {
		t.Errorf("push of a released buffer: %v", err)
	}
	if a.InUse() == 0 {
		t.Fatal("the kernel's buffer is free")
	}
	got := make(chan iouring.Buffer)
	go func() { got <- get(t, a, 1<<20) }()
	waiting(a, 1)
	unix.Write(pw, []byte("late"))
	if c := wait(t, r, 1)[0]; c.Res != 4 {
		t.Errorf("%+v", c)
	}
	release(t, <-got)
}

func TestRingClose(t *testing.T) {
	needRing(t)
	a := newArena(t, iouring.ArenaConfig{Bytes: 8 << 20})
	pr, _ := pipe(t)
	for _, flags := range []iouring.SetupFlags{0, iouring.SetupCoopTaskrun, iouring.SetupSingleIssuer | iouring.SetupDeferTaskrun, iouring.SetupSQPoll} {
		t.Run(fmt.Sprintf("%#x", flags), func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			r, err := iouring.NewRing(iouring.RingConfig{Entries: 64, CQEntries: 1024, Flags: flags})
			if errors.Is(err, unix.EINVAL) {
				t.Skipf("SKIPPED, THE KERNEL HAS NO SUCH FLAG: %v", err)
			} else if err != nil {
				t.Fatal(err)
			}
			for i := 0; i < 1000; {
				b := get(t, a, 4096)
				var s iouring.SQE
				s.PrepRead(pr, b, -1)
				switch _, err := r.Push(&s); err {
				case nil:
					i++
				case iouring.ErrSQFull:
					if _, err := r.Submit(); err != nil {
						t.Fatal(err)
					}
				default:
					t.Fatal(err)
				}
				release(t, b)
			}
			if a.InUse() != 1000*4096 {
				t.Errorf("%d bytes in flight", a.InUse())
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			if a.InUse() != 0 {
				t.Errorf("%d bytes after Close", a.InUse())
			}
			if err := r.Close(); err != nil {
				t.Errorf("second Close: %v", err)
			}
			var s iouring.SQE
			if _, err := r.Push(&s); err != iouring.ErrClosed {
				t.Errorf("Push: %v", err)
			}
			if _, err := r.Submit(); err != iouring.ErrClosed {
				t.Errorf("Submit: %v", err)
			}
			if _, err := r.WaitCQE(); err != iouring.ErrClosed {
				t.Errorf("WaitCQE: %v", err)
			}
			if _, err := r.Probe(); err != iouring.ErrClosed {
				t.Errorf("Probe: %v", err)
			}
		})
	}
}

// TestRingFlags runs the same work under every mode of set-up.
func TestRingFlags(t *testing.T) {
	needRing(t)
	a := newArena(t, iouring.ArenaConfig{})
	for _, flags := range []iouring.SetupFlags{
		0, iouring.SetupCoopTaskrun, iouring.SetupCoopTaskrun | iouring.SetupTaskrunFlag,
		iouring.SetupSingleIssuer, iouring.SetupSingleIssuer | iouring.SetupDeferTaskrun, iouring.SetupSQPoll,
	} {
		t.Run(fmt.Sprintf("%#x", flags), func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			r, err := iouring.NewRing(iouring.RingConfig{Entries: 8, Flags: flags, SQThreadIdle: time.Millisecond})
			if errors.Is(err, unix.EINVAL) {
				t.Skipf("SKIPPED, THE KERNEL HAS NO SUCH FLAG: %v", err)
			} else if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			f := tempFile(t)
			fd := int(f.OS().Fd())
			for round := range 100 {
				buf := get(t, a, 8*512)
				var s iouring.SQE
				for i := range 8 {
					part := buf.Slice(i*512, i*512+512)
					fill(part.Bytes(), byte(round+i))
					s.UserData = uint64(i)
					s.PrepWrite(fd, part, int64(i*512))
					push(t, r, &s)
				}
				for i, c := range wait(t, r, 8) {
					if c.Res != 512 {
						t.Fatalf("round %d, write %d: %+v", round, i, c)
					}
				}
				fill(buf.Bytes(), 0)
				s.UserData = 9
				s.PrepRead(fd, buf, 0)
				push(t, r, &s)
				if c := wait(t, r, 1)[9]; c.Res != 8*512 {
					t.Fatalf("round %d: %+v", round, c)
				}
				for i := range 8 {
					if !holds(buf.Bytes()[i*512:][:512], byte(round+i)) {
						t.Fatalf("round %d: part %d is wrong", round, i)
					}
				}
				if flags&iouring.SetupSQPoll != 0 && round%30 == 0 {
					time.Sleep(3 * time.Millisecond) // the kernel's thread goes to sleep
				}
				release(t, buf)
			}
		})
	}
}

func TestRingMaxWorkers(t *testing.T) {
	r := newRing(t, iouring.RingConfig{})
	if _, _, err := r.SetMaxWorkers(3, 5); err != nil {
		t.Fatal(err)
	}
	if b, u, err := r.SetMaxWorkers(0, 0); b != 3 || u != 5 || err != nil {
		t.Errorf("limits %d and %d, %v", b, u, err)
	}
}

func TestRingProbe(t *testing.T) {
	r := newRing(t, iouring.RingConfig{})
	p, err := r.Probe()
	if err != nil {
		t.Fatal(err)
	}
	if !p.Supports(iouring.OpNop) || !p.Supports(iouring.OpRead) || p.Supports(255) {
		t.Error("the probe says nonsense")
	}
	if r.Features()&iouring.FeatNoDrop == 0 {
		t.Errorf("features %#x", r.Features())
	}
}

// TestRingRecvMultishot receives a stream into buffers that the kernel picks,
// until they run out, and again after they were given back.
func TestRingRecvMultishot(t *testing.T) {
	r := newRing(t, iouring.RingConfig{})
	a := newArena(t, iouring.ArenaConfig{})
	for _, n := range []int{0, 3, 65536} {
		var ce *iouring.ConfigError
		if _, err := r.NewBufRing(t.Context(), a, 1, n, 100); !errors.As(err, &ce) {
			t.Errorf("%d buffers: %v", n, err)
		}
	}
	const n, size = 4, 100
	group, err := r.NewBufRing(t.Context(), a, 7, n, size)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.NewBufRing(t.Context(), a, 7, n, size); !errors.Is(err, unix.EEXIST) {
		t.Errorf("a group that is taken: %v", err)
	}
	defer func() {
		if err := group.Close(); err != nil {
			t.Error(err)
		}
		if err := group.Close(); err != nil {
			t.Error(err)
		}
	}()
	x, y := socketpair(t)
	sent, received := byte(0), byte(0)
	var s iouring.SQE
	start := func() {
		s.PrepRecvMultishot(y, group.Group(), 0)
		push(t, r, &s)
		if _, err := r.Submit(); err != nil {
			t.Fatal(err)
		}
	}
	start()
	for round := range 30 {
		// One more than there are buffers.
		for range n + 1 {
			msg := bytes.Repeat([]byte{sent}, size)
			if _, err := unix.Write(x, msg); err != nil {
				t.Fatal(err)
			}
			sent++
		}
		var kept []iouring.CQE
		for {
			c := wait(t, r, 1)[0]
			if c.Err() == unix.ENOBUFS && !c.More() {
				break
			}
			b, err := group.Buffer(c)
			if err != nil || b.Len() != size || !holds(b.Bytes(), received) {
				t.Fatalf("round %d: %+v, %v", round, c, err)
			}
			received++
			var be *iouring.BufferError
			if _, err := group.Buffer(c); !errors.As(err, &be) {
				t.Errorf("the same completion again: %v", err)
			}
			kept = append(kept, c)
		}
		if len(kept) != n {
			t.Fatalf("round %d: %d buffers came", round, len(kept))
		}
		for _, c := range kept {
			if err := group.Recycle(c); err != nil {
				t.Error(err)
			}
			var be *iouring.BufferError
			if err := group.Recycle(c); !errors.As(err, &be) {
				t.Errorf("given back twice: %v", err)
			}
		}
		start()
		c := wait(t, r, 1)[0] // the one that found no buffer
		if b, err := group.Buffer(c); err != nil || !holds(b.Bytes(), received) {
			t.Fatalf("round %d: %+v, %v", round, c, err)
		}
		received++
		if err := group.Recycle(c); err != nil {
			t.Error(err)
		}
	}
	unix.Shutdown(x, unix.SHUT_WR)
	if c := wait(t, r, 1)[0]; c.Res != 0 || c.More() {
		t.Errorf("end of the stream: %+v", c)
	}
}
