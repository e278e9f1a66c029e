package iouring_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/blockpath/blockpath/iouring"
	"golang.org/x/sys/unix"
)

func init() { children["enter"] = enterChild }

// enterChild works with an engine while strace makes some of its enters fail,
// and returns its counters.
func enterChild(args []string) (any, error) {
	e, err := iouring.NewEngine(iouring.EngineConfig{Dedicated: args[0] == "dedicated"})
	if err != nil {
		return nil, err
	}
	a, err := iouring.NewArena(iouring.ArenaConfig{})
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	for i := range 40 {
		buf, err := a.Get(ctx, 16)
		if err != nil {
			return nil, err
		}
		var nop, read iouring.Op
		read.PrepRead(p[0], buf, -1)
		if err := e.Submit(&nop, &read); err != nil {
			return nil, err
		}
		if _, err := unix.Write(p[1], []byte{byte(i)}); err != nil {
			return nil, err
		}
		if _, err := e.Wait(ctx, &nop); err != nil {
			return nil, fmt.Errorf("no-op %d: %w", i, err)
		}
		if n, err := e.Wait(ctx, &read); n != 1 || err != nil || buf.Bytes()[0] != byte(i) {
			return nil, fmt.Errorf("read %d: %d, %w", i, n, err)
		}
		if err := buf.Release(); err != nil {
			return nil, err
		}
	}
	stats := json.RawMessage(e.Stats().String())
	return stats, errors.Join(e.Close(), a.Close())
}

// TestEnterErrors has strace make every third io_uring_enter fail with what a
// busy kernel says: nothing is lost.
func TestEnterErrors(t *testing.T) {
	needRing(t)
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skipf("SKIPPED, NO STRACE: %v", err)
	}
	for _, mode := range []string{"shared", "dedicated"} {
		for _, errno := range []string{"EBUSY", "EAGAIN", "EINTR"} {
			cmd := exec.CommandContext(t.Context(), strace, "-f", "-o", os.DevNull, "-e", "trace=io_uring_enter",
				"-e", "inject=io_uring_enter:error="+errno+":when=3+3", os.Args[0])
			cmd.Env = append(os.Environ(), childEnv+"=enter "+mode)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				if strings.Contains(stderr.String(), "ptrace") {
					t.Skipf("SKIPPED, NO PTRACE: %s", stderr.String())
				}
				t.Fatalf("%s, %s: %v\n%s", mode, errno, err, stderr.String())
			}
			var stats map[string]int64
			if err := json.Unmarshal(out, &stats); err != nil {
				t.Fatalf("%s, %s: %q: %v", mode, errno, out, err)
			}
			if stats["sqe"] < 80 || stats["stale_cqe"] != 0 || (errno != "EINTR") != (stats["busy"] > 0) {
				t.Errorf("%s, %s: %v", mode, errno, stats)
			}
		}
	}
}

// TestLostWriteback fills a file system below the one that is written to: the
// writes succeed and the sync does not, at least not every time it is asked.
func TestLostWriteback(t *testing.T) {
	for _, tool := range []string{"mkfs.ext4", "mount", "umount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED, NO %s: %v", tool, err)
		}
	}
	eachBackend(t, func(t *testing.T, b iouring.Backend) {
		below := mount(t, "6m")
		image := filepath.Join(below, "image")
		above := t.TempDir()
		err := os.WriteFile(image, nil, 0o600)
		if err == nil {
			err = os.Truncate(image, 64<<20)
		}
		if err != nil {
			t.Fatal(err)
		}
		run := func(name string, args ...string) error {
			out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s: %w: %s", name, err, out)
			}
			return nil
		}
		if err := run("mkfs.ext4", "-q", "-O", "^has_journal", image); err != nil {
			t.Skipf("SKIPPED, NO FILE SYSTEM IN A FILE: %v", err)
		}
		if err := run("mount", "-o", "loop", image, above); err != nil {
			t.Skipf("SKIPPED, NO LOOP MOUNT: %v", err)
		}
		defer func() {
			// The kernel lets go of a ring's files in its own time.
			err := run("umount", above)
			for tries := 0; err != nil && tries < 500; tries++ {
				time.Sleep(10 * time.Millisecond)
				err = run("umount", above)
			}
			if err != nil {
				t.Error(err)
			}
		}()
		a := newArena(t, iouring.ArenaConfig{})
		ctx := t.Context()
		f := openFile(t, filepath.Join(above, "file"), os.O_RDWR|os.O_CREATE)
		g := openFile(t, filepath.Join(above, "other"), os.O_RDWR|os.O_CREATE)
		defer f.Close()
		defer g.Close()
		buf := get(t, a, 1<<20)
		defer release(t, buf)
		fill(buf.Bytes(), 1)
		for off := range int64(16) {
			if err := b.WriteAt(ctx, f, []iouring.Buffer{buf}, off<<20); err != nil {
				t.Fatal(err)
			}
		}
		var e *iouring.IOError
		if err := b.Datasync(ctx, f, g); !errors.As(err, &e) || !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("datasync of lost pages: %v", err)
		}
		for range 3 {
			if err := b.Datasync(ctx, f); !errors.As(err, &e) || !e.Sticky {
				t.Errorf("datasync again: %v", err)
			}
		}
		if err := b.WriteAt(ctx, f, []iouring.Buffer{buf}, 0); !errors.As(err, &e) || !e.Sticky {
			t.Errorf("write after it: %v", err)
		}
	})
}
