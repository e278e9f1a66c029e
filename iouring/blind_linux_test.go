package iouring

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestBlind is an engine whose ring the netpoller did not take.
func TestBlind(t *testing.T) {
	e, err := NewEngine(EngineConfig{})
	if err != nil {
		t.Skipf("SKIPPED, NO RING HERE: %v", err)
	}
	e.blind = true
	a, err := NewArena(ArenaConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	for i := range 10 {
		buf, err := a.Get(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		var op Op
		op.PrepRead(p[0], buf, -1)
		if err := e.Submit(&op); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(p[1], []byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		if n, err := e.Wait(t.Context(), &op); n != 1 || err != nil || buf.Bytes()[0] != byte(i) {
			t.Errorf("read %d: %d, %v", i, n, err)
		}
		if err := buf.Release(); err != nil {
			t.Error(err)
		}
	}
	if e.raw != nil {
		t.Error("the ring is in the netpoller")
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}
