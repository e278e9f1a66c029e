package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/iouring/datanode"
)

// A verification that is killed, and then interrupted, goes on where it was, and
// reports what an uninterrupted one does.
func TestVerifyState(t *testing.T) {
	dir := t.TempDir()
	data, err := os.ReadFile(randomFile(t, t.TempDir(), "data", 64<<10))
	if err != nil {
		t.Fatal(err)
	}
	var chunks crc.Chunks
	meta := datanode.MetaHeader{Version: datanode.MetaVersion, Chunks: chunks}.Append(nil)
	meta = chunks.Append(meta, data)
	old := time.Now().Add(-time.Hour)
	for id := range int64(40) {
		block, sums := filepath.Join(dir, datanode.BlockName(id)), filepath.Join(dir, datanode.MetaName(id, 1))
		if err := errors.Join(os.WriteFile(block, data, 0o644), os.WriteFile(sums, meta, 0o644)); err != nil {
			t.Fatal(err)
		}
		switch {
		case id%7 == 3:
			flip(t, block, 1000*int(id))
		case id%7 == 4:
			if err := errors.Join(os.Remove(sums), os.Chtimes(block, old, old)); err != nil {
				t.Fatal(err)
			}
		}
	}
	code, want, _ := blockpath(t, "verify", dir, "--json")
	if code != 1 {
		t.Fatalf("exit code %d", code)
	}

	state := filepath.Join(t.TempDir(), "state")
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		before, _ := os.ReadFile(state)
		cmd := exec.Command(os.Args[0], "verify", dir, "--state", state, "--rate", "256KiB")
		cmd.Env = append(os.Environ(), "BLOCKPATH_TEST_COMMAND=1")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for {
			if now, _ := os.ReadFile(state); len(now) > 0 && !bytes.Equal(now, before) {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Fatalf("the verification was through before the signal %v", signal)
		}
	}
	var left struct{ Report datanode.Report }
	if b, err := os.ReadFile(state); err != nil || json.Unmarshal(b, &left) != nil || left.Report.Files == 0 || left.Report.Files > 34 {
		t.Fatalf("%s, %v", b, err)
	}
	fails(t, 1, []string{"state", "remove it"}, "verify", t.TempDir(), "--state", state)
	code, got, stderr := blockpath(t, "verify", dir, "--json", "--state", state)
	if code != 1 || got != want {
		t.Errorf("exit code %d\n%s\n%sexpected\n%s", code, stderr, got, want)
	}
	if _, err := os.Stat(state); err == nil {
		t.Error("the state is left behind")
	}
	if err := os.WriteFile(state, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	fails(t, 1, []string{fmt.Sprintf("%s is not the state", state)}, "verify", dir, "--state", state)
}
