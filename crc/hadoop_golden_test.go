package crc_test

import (
	"bytes"
	"crypto/md5"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
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

func TestHadoopGoldenFiles(t *testing.T) {
	golden(t, "files.jsonl", func(g struct {
		Kind                    string
		Size, BlockSize, Length int
		MD5, Composite          string // as "hdfs dfs -checksum" prints them
	}) {
		c := crc.Chunks{Kind: goldenKind(t, g.Kind), Size: g.Size}
		var blocks [][md5.Size]byte
		composite := uint32(0)
		data := ramp(g.Length)
		for at := 0; at < len(data); at += g.BlockSize {
			block := data[at:min(at+g.BlockSize, len(data))]
			for i := range block {
				block[i] += byte(at / g.BlockSize)
			}
			sums := c.Append(nil, block)
			blocks = append(blocks, md5.Sum(sums))
			sum, err := c.Compose(sums, int64(len(block)))
			if err != nil {
				t.Fatal(err)
			}
			composite = crc.Combine(c.Kind, composite, sum, int64(len(block)))
		}
		if _, want, _ := strings.Cut(g.MD5, ":"); want != fmt.Sprintf("%x", crc.FileMD5(blocks)) {
			t.Errorf("%+v: MD5 %x, want %s", g, crc.FileMD5(blocks), want)
		}
		if g.Length == 0 {
			return // Hadoop has no composite checksum of nothing
		}
		if _, want, _ := strings.Cut(g.Composite, ":"); want != fmt.Sprintf("0x%08x", composite) {
			t.Errorf("%+v: composite 0x%08x, want %s", g, composite, want)
		}
	})
}
