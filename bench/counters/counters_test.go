package counters

import (
	"bytes"
	"context"
	"hash/crc32"
	"io"
	"testing"

	"github.com/blockpath/blockpath/bench/internal/lab"
)

// TestExperiment runs a tiny version, whose rows check their own totals, and
// looks for every target.
func TestExperiment(t *testing.T) {
	r := lab.NewReport("counters", io.Discard)
	if err := measure(context.Background(), size{warm: 1, rounds: 3, adds: 2000, appends: 7000, loads: 100}, r); err != nil {
		t.Fatal(err)
	}
	if len(r.Targets) != 10 {
		t.Errorf("%d targets, want 10", len(r.Targets))
	}
	for _, target := range r.Targets {
		if target.Skipped != "" {
			t.Logf("%s skipped: %s", target.Name, target.Skipped)
		}
	}
	if err := r.WriteJSON(io.Discard); err != nil {
		t.Error(err)
	}
}

// TestChecksums compares both checksums of the experiment with hash/crc32.
func TestChecksums(t *testing.T) {
	data := make([]byte, 5*chunk+77)
	for i := range data {
		data[i] = byte(i * 31)
	}
	var want []byte
	for rest := data; len(rest) > 0; {
		n := min(chunk, len(rest))
		c := crc32.Checksum(rest[:n], crc32.MakeTable(crc32.Castagnoli))
		want = append(want, byte(c>>24), byte(c>>16), byte(c>>8), byte(c))
		rest = rest[n:]
	}
	for name, sum := range map[string]func(sums, data []byte){"table": tableCRC, "kernel": kernelCRC} {
		got := make([]byte, len(want))
		sum(got, data)
		if !bytes.Equal(got, want) {
			t.Errorf("%s: %x, want %x", name, got, want)
		}
	}
}

// TestPackets writes records through a packetWriter and looks
// at what the packets hold.
func TestPackets(t *testing.T) {
	var total int
	w := &silentWriter{newPacketWriter(func(sums, data []byte) {
		if len(data) == 0 || len(data) > packetData || len(sums)*chunk/4 < len(data) {
			t.Errorf("a packet of %d bytes, sums of %d", len(data), len(sums))
		}
		total += len(data)
	})}
	const n = 20000
	appendAll(w, n)
	w.send()
	if total != n*recordBytes {
		t.Errorf("%d bytes in packets, want %d", total, n*recordBytes)
	}
}
