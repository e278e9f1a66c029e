package iouring_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/blockpath/blockpath/iouring"
	"golang.org/x/sys/unix"
)

// Some tests need a process with limits of its own: they start the test binary
// again, with the name of a child in the environment.
const childEnv = "BLOCKPATH_TEST_CHILD"

var children = map[string]func(args []string) (any, error){
	"seccomp":      seccompChild,
	"seccomp-late": seccompLateChild,
	"memlock":      memlockChild,
	"churn":        churnChild,
	"fsize":        fsizeChild,
}

func TestMain(m *testing.M) {
	name, args, _ := strings.Cut(os.Getenv(childEnv), " ")
	child := children[name]
	if child == nil {
		os.Exit(m.Run())
	}
	v, err := child(strings.Fields(args))
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(v)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runChild(t *testing.T, v any, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join(append([]string{name}, args...), " "))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, syscall.ENOEXEC) {
		t.Skipf("SKIPPED, UNDER EMULATION the test binary cannot start itself: %v", err)
	}
	if err != nil {
		t.Fatalf("child %s %v: %v\n%s", name, args, err, stderr.Bytes())
	}
	if err := json.Unmarshal(out, v); err != nil {
		t.Fatalf("child %s: %v in %q", name, err, out)
	}
}

// opened is what a child tells of its backend.
type opened struct {
	Caps    iouring.Capabilities
	Ring    string // error of asking for the ring
	RingErr int    // the errno in it
	Works   bool
}

func openInChild(cfg iouring.Config) (o opened, err error) {
	b, err := iouring.Open(cfg)
	if err != nil {
		return o, err
	}
	defer b.Close()
	o.Caps = b.Capabilities()
	o.Works, err = worksInChild(b)
	cfg.Backend = iouring.RingBackend
	r, ringErr := iouring.Open(cfg)
	if ringErr == nil {
		return o, errors.Join(err, r.Close())
	}
	o.Ring = ringErr.Error()
	var ue *iouring.UnavailableError
	if !errors.As(ringErr, &ue) {
		return o, fmt.Errorf("not an UnavailableError: %w", ringErr)
	}
	var errno syscall.Errno
	errors.As(ringErr, &errno)
	o.RingErr = int(errno)
	return o, err
}

func worksInChild(b iouring.Backend) (bool, error) {
	fd, err := unix.MemfdCreate("file", 0)
	if err != nil {
		return false, err
	}
	f, err := iouring.NewFile(os.NewFile(uintptr(fd), "memfd"))
	if err != nil {
		return false, err
	}
	defer f.Close()
	a, err := iouring.NewArena(iouring.ArenaConfig{Bytes: 1 << 20})
	if err != nil {
		return false, err
	}
	defer a.Close()
	ctx := context.Background()
	buf, err := a.Get(ctx, 10_000)
	if err != nil {
		return false, err
	}
	defer buf.Release()
	fill(buf.Bytes(), 3)
	if err := b.WriteAt(ctx, f, []iouring.Buffer{buf}, 5); err != nil {
		return false, err
	}
	if err := b.Datasync(ctx, f, f); err != nil {
		return false, err
	}
	fill(buf.Bytes(), 0)
	n, err := b.ReadAt(ctx, f, buf, 5)
	return n == 10_000 && holds(buf.Bytes(), 3), err
}

// deny makes a system call fail with errno, in all threads.
func deny(nr uint32, errno syscall.Errno) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return e
	}
	return nil
}

var ringCalls = map[string]uint32{
	"setup": unix.SYS_IO_URING_SETUP, "enter": unix.SYS_IO_URING_ENTER, "register": unix.SYS_IO_URING_REGISTER,
}

var errnos = map[string]syscall.Errno{"EPERM": unix.EPERM, "ENOSYS": unix.ENOSYS}

func seccompChild(args []string) (any, error) {
	if err := deny(ringCalls[args[0]], errnos[args[1]]); err != nil {
		return nil, err
	}
	return openInChild(iouring.Config{})
}

// TestSeccomp forbids each of the ring's system calls.
func TestSeccomp(t *testing.T) {
	needRing(t)
	for call := range ringCalls {
		for name, errno := range errnos {
			t.Run(call+"/"+name, func(t *testing.T) {
				var o opened
				runChild(t, &o, "seccomp", call, name)
				if o.Caps.Backend != "syscall" || !o.Works {
					t.Errorf("%+v", o)
				}
				if !strings.Contains(o.Caps.Reason, "seccomp") || !strings.Contains(o.Caps.Reason, "io_uring_"+call) {
					t.Errorf("reason %q", o.Caps.Reason)
				}
				if syscall.Errno(o.RingErr) != errno || !strings.Contains(o.Ring, o.Caps.Reason) {
					t.Errorf("ring: %d %s", o.RingErr, o.Ring)
				}
			})
		}
	}
}

// seccompLateChild forbids submitting when the engine is already at work.
func seccompLateChild(args []string) (any, error) {
	dedicated := args[0] == "dedicated"
	e, err := iouring.NewEngine(iouring.EngineConfig{Dedicated: dedicated})
	if err != nil {
		return nil, err
	}
	if err := deny(unix.SYS_IO_URING_ENTER, unix.EPERM); err != nil {
		return nil, err
	}
	var errs []string
	ops := make([]iouring.Op, 3)
	for i := range ops {
		if err := e.Submit(&ops[i]); err != nil {
			return nil, err
		}
	}
	for i := range ops {
		_, err := e.Wait(context.Background(), &ops[i])
		errs = append(errs, fmt.Sprint(err))
	}
	// A dedicated ring always has something in flight, which now cannot be waited
	// for.
	if err := e.Close(); dedicated != errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("close: %w", err)
	}
	return errs, nil
}

func TestSeccompLate(t *testing.T) {
	needRing(t)
	for _, mode := range []string{"shared", "dedicated"} {
		var errs []string
		runChild(t, &errs, "seccomp-late", mode)
		for _, e := range errs {
			if e != unix.EPERM.Error() {
				t.Errorf("%s: operation that could not be submitted: %s", mode, e)
			}
		}
		if len(errs) != 3 {
			t.Errorf("%s: %d results", mode, len(errs))
		}
	}
}

func memlockChild(args []string) (any, error) {
	var limit uint64
	var arena int64
	fmt.Sscan(args[0], &limit)
	fmt.Sscan(args[1], &arena)
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return nil, err
	}
	if err := syscall.Setuid(65534); err != nil { // nobody has no CAP_IPC_LOCK
		return nil, err
	}
	a, err := iouring.NewArena(iouring.ArenaConfig{Bytes: arena})
	if err != nil {
		return nil, err
	}
	return openInChild(iouring.Config{Register: []*iouring.Arena{a}})
}

// TestMemlock runs as nobody with little memory to lock.
func TestMemlock(t *testing.T) {
	needRing(t)
	if os.Getuid() != 0 {
		t.Skip("SKIPPED, NOT ROOT: cannot become another user")
	}
	var o opened
	runChild(t, &o, "memlock", "0", "1048576")
	switch {
	case o.Caps.Backend == "ring":
		t.Log("this kernel does not count rings against RLIMIT_MEMLOCK")
	case !strings.Contains(o.Caps.Reason, "RLIMIT_MEMLOCK (0 bytes)"):
		t.Errorf("reason %q", o.Caps.Reason)
	}
	if !o.Works {
		t.Errorf("%+v", o)
	}
	const limit = 4 << 20 // within what systemd and Docker give everybody
	for _, arena := range []int{1 << 20, 16 << 20} {
		runChild(t, &o, "memlock", fmt.Sprint(limit), fmt.Sprint(arena))
		fits := arena < limit
		if o.Caps.Backend != "ring" || o.Caps.Registered != fits || !o.Works || strings.Contains(o.Caps.Reason, "not registered") == fits {
			t.Errorf("%d of %d bytes: %+v", arena, limit, o)
		}
	}
}

// churnChild opens and closes rings as nobody, whose memory to lock is short.
func churnChild(args []string) (any, error) {
	var n int
	fmt.Sscan(args[0], &n)
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 8 << 20, Max: 8 << 20}); err != nil {
		return nil, err
	}
	if err := syscall.Setuid(65534); err != nil {
		return nil, err
	}
	for i := range n {
		e, err := iouring.NewEngine(iouring.EngineConfig{Dedicated: i%2 == 0})
		if err != nil {
			return nil, fmt.Errorf("ring %d: %w", i, err)
		}
		var op iouring.Op
		if _, err := e.Do(context.Background(), &op); err != nil {
			return nil, err
		}
		if err := e.Close(); err != nil {
			return nil, err
		}
	}
	return "ok", nil
}

// TestMemlockChurn opens and closes a thousand rings where some hundred fit:
// the kernel gives the memory of a ring back a while after it was closed.
func TestMemlockChurn(t *testing.T) {
	needRing(t)
	if os.Getuid() != 0 {
		t.Skip("SKIPPED, NOT ROOT: cannot become another user")
	}
	var ok string
	runChild(t, &ok, "churn", "1000")
}

// limited is what a child tells of a write beyond RLIMIT_FSIZE.
type limited struct {
	Done  int64
	Errno int
	Short int64
	Size  int64
}

func fsizeChild(args []string) (any, error) {
	signal.Notify(make(chan os.Signal, 1), unix.SIGXFSZ)
	const limit = 100_000
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return nil, err
	}
	b, err := iouring.Open(iouring.Config{Backend: iouring.Choice(args[0])})
	if err != nil {
		return nil, err
	}
	defer b.Close()
	f, err := iouring.OpenFile(args[1], os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	a, err := iouring.NewArena(iouring.ArenaConfig{})
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	var bs []iouring.Buffer
	for range 3 {
		buf, err := a.Get(ctx, 60_000)
		if err != nil {
			return nil, err
		}
		bs = append(bs, buf)
	}
	err = b.WriteAt(ctx, f, bs, 10)
	var e *iouring.IOError
	var l limited
	if !errors.As(err, &e) {
		return nil, fmt.Errorf("not an IOError: %v", err)
	}
	var errno syscall.Errno
	errors.As(err, &errno)
	st, err := f.OS().Stat()
	if err != nil {
		return nil, err
	}
	l.Done, l.Errno, l.Size = e.Done, int(errno), st.Size()
	for name, v := range b.Stats().All() {
		if name == "short" {
			l.Short = v
		}
	}
	return l, nil
}

// TestFileSizeLimit writes across RLIMIT_FSIZE: a short write, and an error when
// the rest is tried.
func TestFileSizeLimit(t *testing.T) {
	for _, backend := range []string{"ring", "syscall"} {
		t.Run(backend, func(t *testing.T) {
			if backend == "ring" {
				needRing(t)
			}
			var l limited
			runChild(t, &l, "fsize", backend, filepath.Join(t.TempDir(), "file"))
			if l != (limited{Done: 99_990, Errno: int(unix.EFBIG), Short: 1, Size: 100_000}) {
				t.Errorf("%+v", l)
			}
		})
	}
}
