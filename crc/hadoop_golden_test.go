package crc_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"testing"

	"github.com/blockpath/blockpath/crc"
)

// golden calls f for every line of a file that real Hadoop made; see
// testdata/hadoop/README.md.
func golden[T any](t *testing.T, name string, f func(T)) {
	t.Helper()
	b, err := os.ReadFile("testdata/hadoop/" + name)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for dec := json.NewDecoder(bytes.NewReader(b)); ; n++ {
		var v T
		if err := dec.Decode(&v); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		f(v)
	}
	if n == 0 {
		t.Fatalf("%s is empty", name)
	}
}

func goldenKind(t *testing.T, name string) crc.Kind {
	t.Helper()
	k, err := crc.ParseKind(name)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// ramp is the data of the golden files.
func ramp(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func TestHadoopGoldenSums(t *testing.T) {
	golden(t, "sums.jsonl", func(g struct {
		Kind           string
		Size, Length   int
		Sums           []byte
		A, B, Combined uint32
		LenB           int64
	}) {
		k := goldenKind(t, g.Kind)
		if g.Size == 0 {
			if got := crc.Combine(k, g.A, g.B, g.LenB); got != g.Combined {
				t.Errorf("%v: Combine(%08x, %08x, %d) = %08x, want %08x", k, g.A, g.B, g.LenB, got, g.Combined)
			}
			return
		}
		c := crc.Chunks{Kind: k, Size: g.Size}
		sums := c.Append(nil, ramp(g.Length))
		if len(sums) > 4096 { // the file has only their checksum
			sums = crc.Chunks{Kind: k, Size: len(sums)}.Append(nil, sums)
		} else if err := c.Verify(ramp(g.Length), g.Sums, 0); err != nil {
			t.Errorf("%v/%d, %d bytes: %v", k, g.Size, g.Length, err)
		}
		if !bytes.Equal(sums, g.Sums) {
			t.Errorf("%v/%d, %d bytes: sums %x, want %x", k, g.Size, g.Length, sums, g.Sums)
		}
	})
}
