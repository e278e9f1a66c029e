package iouring_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/blockpath/blockpath/iouring"
	"golang.org/x/sys/unix"
)

func init() { children["fuse"] = fuseChild }

// A fuseFS is a file system with one file, "file", that does what rules say: the
// kernel's own short results and errors. It is served by a child, so that
// whatever happens to the test its requests end.
type fuseFS struct {
	dir    string
	events *bufio.Scanner
	rules  *json.Encoder
}

// fuseRules replace those before; the first that matches is for an operation.
type fuseRules struct {
	Reset int64 // length of a file of zeros to begin with, or -1
	Let   bool  // what hangs goes on
	Rules []fuseRule
}

type fuseRule struct {
	Op      string // "read", "write" or "datasync", all if empty
	MinOff  int64
	Times   int           // how often it matches, 0 for always
	Limit   int64         // bytes beyond this offset are not done, if not 0
	Errno   syscall.Errno // the operation fails
	Hang    bool          // until rules with Let come; the test is told
	matched int
}

func mountFuse(t *testing.T, direct bool, size int64) *fuseFS {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED, NOT ROOT: cannot mount FUSE")
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=fuse %s %v", childEnv, dir, direct))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); errors.Is(err, syscall.ENOEXEC) {
		t.Skipf("SKIPPED, UNDER EMULATION the test binary cannot start itself: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	fs := &fuseFS{dir: dir, events: bufio.NewScanner(out), rules: json.NewEncoder(in)}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("fuse server: %v", err)
		}
	})
	if event := fs.event(t); event != "ready" {
		t.Skipf("SKIPPED, NO FUSE: %s", event)
	}
	fs.set(t, fuseRules{Reset: size})
	return fs
}

func (fs *fuseFS) event(t *testing.T) string {
	t.Helper()
	if !fs.events.Scan() {
		t.Fatal("the fuse server is gone")
	}
	return fs.events.Text()
}

func (fs *fuseFS) set(t *testing.T, r fuseRules) {
	t.Helper()
	if err := fs.rules.Encode(r); err != nil {
		t.Fatal(err)
	}
	if e := fs.event(t); e != "set" {
		t.Fatalf("fuse server: %s", e)
	}
}

// A fuseServer speaks the protocol of include/uapi/linux/fuse.h, version 7.31.
type fuseServer struct {
	direct bool // without the page cache (FOPEN_DIRECT_IO)

	mu    sync.Mutex
	data  []byte
	rules []fuseRule
	let   chan struct{} // closed by rules with Let
}

func fuseChild(args []string) (any, error) {
	dir := args[0]
	fs := &fuseServer{direct: args[1] == "true", let: make(chan struct{})}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Mount("fuse", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,max_read=%d", fd, fuseMax))
	}
	if err != nil {
		return err.Error(), nil
	}
	fmt.Println("ready")
	for range 8 {
		go fs.serve(fd)
	}
	in := json.NewDecoder(os.Stdin)
	for {
		var r fuseRules
		if err := in.Decode(&r); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		fs.mu.Lock()
		if r.Reset >= 0 {
			fs.data = make([]byte, r.Reset)
		}
		fs.rules = r.Rules
		if r.Let {
			close(fs.let)
			fs.let = make(chan struct{})
		}
		fs.mu.Unlock()
		fmt.Println("set")
	}
	if err := unix.Unmount(dir, unix.MNT_FORCE); err != nil {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return nil, err
		}
	}
	os.Exit(0)
	return nil, nil
}

// decide returns how many bytes of an operation to do, or the error.
func (fs *fuseServer) decide(op string, off int64, n int) (int, syscall.Errno) {
	fs.mu.Lock()
	for i := range fs.rules {
		r := &fs.rules[i]
		if r.Op != "" && r.Op != op || off < r.MinOff || r.Times > 0 && r.matched == r.Times {
			continue
		}
		r.matched++
		limit, errno, hang, let := r.Limit, r.Errno, r.Hang, fs.let
		fs.mu.Unlock()
		if hang {
			fmt.Println("hung")
			<-let
		}
		if limit > 0 {
			n = int(max(0, min(int64(n), limit-off)))
		}
		return n, errno
	}
	fs.mu.Unlock()
	return n, 0
}

const (
	fuseLookup  = 1
	fuseForget  = 2
	fuseGetattr = 3
	fuseSetattr = 4
	fuseOpen    = 14
	fuseRead    = 15
	fuseWrite   = 16
	fuseRelease = 18
	fuseFsync   = 20
	fuseFlush   = 25
	fuseInit    = 26
	fuseIntr    = 36
	fuseBatch   = 42

	fuseRoot = 1
	fuseFile = 2
	fuseMax  = 128 << 10
)

var le = binary.LittleEndian

func (fs *fuseServer) serve(fd int) {
	req := make([]byte, fuseMax+4096)
	for {
		n, err := unix.Read(fd, req)
		if err == unix.EINTR || err == unix.EAGAIN || err == unix.ENOENT {
			continue
		}
		if err != nil {
			return // unmounted
		}
		body, errno, answer := fs.handle(le.Uint32(req[4:]), le.Uint64(req[16:]), req[40:n])
		if !answer {
			continue
		}
		out := le.AppendUint32(nil, uint32(16+len(body)))
		out = le.AppendUint32(out, uint32(-int32(errno)))
		out = append(out, req[8:16]...)
		_, _ = unix.Write(fd, append(out, body...)) // fails if the request was given up
	}
}

func (fs *fuseServer) handle(op uint32, node uint64, in []byte) (body []byte, errno syscall.Errno, answer bool) {
	switch op {
	case fuseInit:
		body = le.AppendUint32(body, 7)
		body = le.AppendUint32(body, 31)
		body = le.AppendUint32(body, 0)           // read-ahead
		body = le.AppendUint32(body, 1<<5|1<<22)  // big writes, max pages
		body = le.AppendUint16(body, 64)          // in the background
		body = le.AppendUint16(body, 64)          // congestion
		body = le.AppendUint32(body, fuseMax)     // largest write
		body = le.AppendUint32(body, 1)           // time granularity
		body = le.AppendUint16(body, fuseMax>>12) // pages
		return append(body, make([]byte, 34)...), 0, true
	case fuseLookup:
		if string(bytes.TrimRight(in, "\x00")) != "file" {
			return nil, unix.ENOENT, true
		}
		body = le.AppendUint64(body, fuseFile)
		body = append(body, make([]byte, 32)...) // generation, no caching
		return fs.attr(body, fuseFile), 0, true
	case fuseGetattr:
		return fs.attr(make([]byte, 16), node), 0, true
	case fuseSetattr:
		if le.Uint32(in)&8 != 0 { // size
			fs.mu.Lock()
			fs.resize(int64(le.Uint64(in[16:])))
			fs.mu.Unlock()
		}
		return fs.attr(make([]byte, 16), node), 0, true
	case fuseOpen:
		body = make([]byte, 16)
		if fs.direct {
			body[8] = 1
		}
		return body, 0, true
	case fuseRead:
		off, n := int64(le.Uint64(in[8:])), int(le.Uint32(in[16:]))
		n, errno = fs.decide("read", off, n)
		if errno != 0 {
			return nil, errno, true
		}
		fs.mu.Lock()
		defer fs.mu.Unlock()
		rest := fs.data[min(off, int64(len(fs.data))):]
		return bytes.Clone(rest[:min(n, len(rest))]), 0, true
	case fuseWrite:
		off, n := int64(le.Uint64(in[8:])), int(le.Uint32(in[16:]))
		n, errno = fs.decide("write", off, n)
		if errno != 0 {
			return nil, errno, true
		}
		fs.mu.Lock()
		defer fs.mu.Unlock()
		if end := off + int64(n); end > int64(len(fs.data)) {
			fs.resize(end)
		}
		copy(fs.data[off:], in[40:40+n])
		return le.AppendUint64(nil, uint64(n)), 0, true
	case fuseFsync:
		_, errno = fs.decide("datasync", 0, 0)
		return nil, errno, true
	case fuseRelease, fuseFlush:
		return nil, 0, true
	case fuseForget, fuseBatch, fuseIntr:
		return nil, 0, false
	}
	return nil, unix.ENOSYS, true
}

func (fs *fuseServer) resize(n int64) {
	fs.data = append(fs.data[:min(n, int64(len(fs.data)))], make([]byte, max(0, n-int64(len(fs.data))))...)
}

func (fs *fuseServer) attr(out []byte, node uint64) []byte {
	fs.mu.Lock()
	size := uint64(len(fs.data))
	fs.mu.Unlock()
	mode := uint32(unix.S_IFREG | 0o600)
	if node == fuseRoot {
		mode, size = unix.S_IFDIR|0o700, 0
	}
	out = le.AppendUint64(out, node)
	out = le.AppendUint64(out, size)
	out = append(out, make([]byte, 8+3*8+3*4)...) // blocks and times
	out = le.AppendUint32(out, mode)
	out = le.AppendUint32(out, 1)
	return append(out, make([]byte, 5*4)...)
}

// TestFuseRing sees short results and errors of a file system in completions,
// and what they do to a chain.
func TestFuseRing(t *testing.T) {
	r := newRing(t, iouring.RingConfig{})
	fs := mountFuse(t, false, 0)
	a := newArena(t, iouring.ArenaConfig{})
	// With O_DIRECT: else the page cache would stand between.
	f := openFile(t, filepath.Join(fs.dir, "file"), os.O_RDWR|unix.O_DIRECT)
	fd := int(f.OS().Fd())
	buf := get(t, a, 1000)
	defer release(t, buf)
	chain := func(prep func(s *iouring.SQE)) (first, sync iouring.CQE) {
		var s iouring.SQE
		s.UserData = 1
		prep(&s)
		s.SetFlags(iouring.SQEIOLink)
		push(t, r, &s)
		s.UserData = 2
		s.PrepFsync(fd, true)
		push(t, r, &s)
		got := wait(t, r, 2)
		return got[1], got[2]
	}
	read := func(s *iouring.SQE) { s.PrepRead(fd, buf, 0) }
	write := func(s *iouring.SQE) { s.PrepWrite(fd, buf, 0) }

	if c, sync := chain(write); c.Res != 1000 || sync.Res != 0 {
		t.Fatalf("write and sync: %+v, %+v", c, sync)
	}
	// The kernel goes on by itself after a short result of a file; what it then
	// finds ends the operation.
	for _, cut := range []int{1, 500, 999} {
		fs.set(t, fuseRules{Reset: -1, Rules: []fuseRule{{Op: "write", MinOff: 1, Errno: unix.ENOSPC}, {Limit: int64(cut)}}})
		for name, prep := range map[string]func(*iouring.SQE){"read": read, "write": write} {
			c, sync := chain(prep)
			// Linux 6.18 now and then lets a chain go on after a short write.
			goesOn := name == "write" && sync.Res == 0
			if int(c.Res) != cut || sync.Err() != unix.ECANCELED && !goesOn {
				t.Errorf("%s cut at %d: %+v, %+v", name, cut, c, sync)
			}
		}
	}
	for _, errno := range []syscall.Errno{unix.EIO, unix.ENOSPC, unix.EINTR, unix.EAGAIN} {
		fs.set(t, fuseRules{Reset: -1, Rules: []fuseRule{{Errno: errno}}})
		if c, sync := chain(write); c.Err() != errno || sync.Err() != unix.ECANCELED {
			t.Errorf("write with %v: %+v, %+v", errno, c, sync)
		}
		fs.set(t, fuseRules{Reset: -1, Rules: []fuseRule{{Op: "datasync", Errno: errno}}})
		if c, sync := chain(write); c.Res != 1000 || sync.Err() != errno {
			t.Errorf("sync with %v: %+v, %+v", errno, c, sync)
		}
	}
}

// TestFuseBackend makes a file system cut reads and writes at every place, and
// fail, under both backends. A read that hangs keeps the ring from being idle.
func TestFuseBackend(t *testing.T) {
	for _, direct := range []bool{false, true} {
		eachBackend(t, func(t *testing.T, b iouring.Backend) { testFuseBackend(t, b, direct) })
	}
}

func testFuseBackend(t *testing.T, b iouring.Backend, direct bool) {
	const hanging = 1 << 20
	fs := mountFuse(t, direct, 2*hanging)
	a := newArena(t, iouring.ArenaConfig{})
	ctx := t.Context()
	flag := os.O_RDWR
	if !direct {
		flag |= unix.O_DIRECT // else the page cache would stand between
	}
	f := openFile(t, filepath.Join(fs.dir, "file"), flag)
	const block = 4096
	total := 3 * block
	out, in := get(t, a, total), get(t, a, total)
	defer release(t, out, in)
	for i := range out.Bytes() {
		out.Bytes()[i] = byte(i + i>>8)
	}
	bs := []iouring.Buffer{out.Slice(0, block), out.Slice(block, block), out.Slice(block, total)}

	fs.set(t, fuseRules{Reset: -1, Rules: []fuseRule{{Op: "read", MinOff: hanging, Hang: true}}})
	ended := make(chan error, 1)
	spare := get(t, a, block)
	defer release(t, spare)
	go func() {
		_, err := b.ReadAt(ctx, f, spare, hanging)
		ended <- err
	}()
	if e := fs.event(t); e != "hung" {
		t.Fatal(e)
	}
	cuts := []int{1, 2, 511, 512, 513, block - 1, block, block + 1, 2 * block, 2*block + 1, total - 1, total}
	for _, cut := range cuts {
		fs.set(t, fuseRules{Reset: 2 * hanging, Rules: []fuseRule{
			{Op: "read", Times: 1, Limit: int64(cut)}, {Op: "write", Times: 1, Limit: int64(cut)},
		}})
		if err := b.WriteAt(ctx, f, bs, 0); err != nil {
			t.Errorf("write cut at %d: %v", cut, err)
		}
		fill(in.Bytes(), 0)
		if n, err := b.ReadAt(ctx, f, in, 0); n != total || err != nil || !bytes.Equal(in.Bytes(), out.Bytes()) {
			t.Errorf("read cut at %d: %d, %v", cut, n, err)
		}
	}
	fs.set(t, fuseRules{Reset: -1, Let: true})
	if err := <-ended; err != nil {
		t.Errorf("the read that hung: %v", err)
	}

	// A sync that fails once.
	g := openFile(t, f.Name(), os.O_RDWR)
	fs.set(t, fuseRules{Reset: -1, Rules: []fuseRule{{Op: "datasync", Times: 1, Errno: unix.EIO}}})
	var e *iouring.IOError
	if err := b.Datasync(ctx, f); !errors.As(err, &e) || !errors.Is(err, unix.EIO) {
		t.Fatalf("datasync: %v", err)
	}
	if err := b.Datasync(ctx, f, g); !errors.As(err, &e) || !e.Sticky {
		t.Errorf("datasync again: %v", err)
	}
	if g.Err() != nil {
		t.Errorf("another File of it: %v", g.Err())
	}
}

// TestFuseCancel ends the context of a read that a file system holds. The call
// returns only when the kernel has let go of the buffer.
func TestFuseCancel(t *testing.T) {
	needRing(t)
	fs := mountFuse(t, false, 4)
	e, err := iouring.NewEngine(iouring.EngineConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	a := newArena(t, iouring.ArenaConfig{})
	f := openFile(t, filepath.Join(fs.dir, "file"), os.O_RDWR)
	fs.set(t, fuseRules{Reset: -1, Rules: []fuseRule{{Op: "read", Hang: true}}})
	buf := get(t, a, 4)
	fill(buf.Bytes(), 'x')
	ctx, cancel := context.WithCancel(t.Context())
	var op iouring.Op
	op.PrepRead(int(f.OS().Fd()), buf, 0)
	result := make(chan error, 1)
	go func() {
		_, err := e.Do(ctx, &op)
		result <- err
	}()
	if e := fs.event(t); e != "hung" {
		t.Fatal(e)
	}
	cancel()
	time.Sleep(10 * time.Millisecond)
	fs.set(t, fuseRules{Reset: -1, Let: true})
	err = <-result
	got := string(buf.Bytes())
	release(t, buf)
	if (err != nil || got != "\x00\x00\x00\x00") && (!errors.Is(err, ctx.Err()) || got != "xxxx") {
		t.Errorf("%v with %q in the buffer", err, got)
	}
}
