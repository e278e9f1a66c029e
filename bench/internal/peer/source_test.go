package peer

import (
	"bytes"
	"io"
	"testing"
)

// TestSource compares reads from anywhere with the file in one piece.
func TestSource(t *testing.T) {
	whole, err := io.ReadAll(&Source{Left: 9<<20 + 1})
	if err != nil || len(whole) != 9<<20+1 {
		t.Fatal(len(whole), err)
	}
	if bytes.Equal(whole[:4<<20], whole[4<<20:8<<20]) {
		t.Error("the file repeats itself every 4 MiB")
	}
	for _, at := range []int64{0, 1, 61<<16 - 1, 61 << 16, 8 << 20} {
		part, err := io.ReadAll(&Source{At: at, Left: 70000})
		if err != nil || !bytes.Equal(part, whole[at:at+70000]) {
			t.Errorf("from %d: %d bytes differ, error %v", at, len(part), err)
		}
	}
}
