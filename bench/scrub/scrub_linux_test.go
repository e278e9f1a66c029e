package scrub

import (
	"context"
	"io"
	"os"
	"testing"
	"time"

	"github.com/blockpath/blockpath/bench/internal/lab"
	"github.com/blockpath/blockpath/bench/internal/peer"
)

// TestExperiment runs a tiny version and looks for every target.
func TestExperiment(t *testing.T) {
	r := lab.NewReport("scrub", io.Discard)
	if err := measure(context.Background(), size{rounds: 3, budget: time.Second, blocks: 2, blockLen: 1<<20 + 77}, r); err != nil {
		t.Fatal(err)
	}
	if len(r.Targets) != 3 {
		t.Errorf("%d targets, want 3", len(r.Targets))
	}
	if err := r.WriteJSON(io.Discard); err != nil {
		t.Error(err)
	}
}

// TestDamage looks whether what is compared finds a flipped bit.
func TestDamage(t *testing.T) {
	tr, err := makeTree(t.TempDir(), size{blocks: 2, blockLen: 1<<20 + 77})
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.read(peer.HashCRC32.Verify); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(tr.blocks[1], os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteAt([]byte{0}, 1<<20+76)
	f.WriteAt([]byte{1}, 3)
	f.Close()
	if tr.read(peer.HashCRC32.Verify) == nil || tr.verify(context.Background()) == nil {
		t.Error("damage went unnoticed")
	}
	if err := tr.read(nil); err != nil {
		t.Error(err)
	}
}
