//go:build linux

package peer

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/crc/packet/client"
	"github.com/blockpath/blockpath/iouring/datanode"
)

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(b)
	return b
}

// TestWriter lets our datanode judge the reference writer.
func TestWriter(t *testing.T) {
	d, err := StartDatanode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	block := packet.Block{Pool: Pool, ID: 1, Stamp: 1001, NumBytes: 1 << 20}
	w, err := Dial(context.Background(), d.Addr, block, 8192, HashCRC32)
	if err != nil {
		t.Fatal(err)
	}
	data := random(300_000)
	if n, err := w.ReadFrom(bytes.NewReader(data)); err != nil || n != int64(len(data)) {
		t.Fatal(n, err)
	}
	sum, err := w.Close()
	if err != nil || sum.CRC != crc.Checksum(crc.CRC32C, data) {
		t.Fatalf("CRC %08x, %v", sum.CRC, err)
	}
	r, err := d.Store.Open(block)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(data)+1)
	if n, err := r.ReadAt(got, 0); err != io.EOF || !bytes.Equal(got[:n], data) {
		t.Errorf("%d bytes differ from %d, error %v", n, len(data), err)
	}
	r.Close()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestReceiver lets the scrubber judge what the reference receiver makes of our
// client's packets.
func TestReceiver(t *testing.T) {
	data := random(3_000_077)
	for name, gather := range map[string]int{"two pwrites": 0, "gathered": 300_000} {
		for _, sum := range []Checksum{Kernels, HashCRC32} {
			dir := t.TempDir()
			r, err := StartReceiver(ReceiverConfig{Dir: dir, Checksum: sum, Gather: gather})
			if err != nil {
				t.Fatal(err)
			}
			path, err := StartPath(r.Addr, time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			_, _, err = client.Put(context.Background(), bytes.NewReader(data), "x", []string{path.Addr},
				client.PutConfig{Pool: Pool, FirstID: 7, PacketSize: packet.DefaultPacketSize})
			if err != nil {
				t.Fatal(err)
			}
			if err := path.Close(); err != nil {
				t.Error(err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(dir, Pool+"_7"))
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%s, %s: %d bytes differ, error %v", name, sum.Name, len(got), err)
			}
			want := crc.Chunks{}.Append(datanode.MetaHeader{Version: 1}.Append(nil), data)
			meta, err := os.ReadFile(filepath.Join(dir, Pool+"_7.meta"))
			if err != nil || !bytes.Equal(meta, want) {
				t.Errorf("%s, %s: the .meta file differs, error %v", name, sum.Name, err)
			}
			if err := r.Forget(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestChecksums(t *testing.T) {
	data := random(5*Chunk + 77)
	for _, sum := range []Checksum{Kernels, HashCRC32} {
		sums := make([]byte, 24)
		sum.Put(sums, data)
		if want := (crc.Chunks{}).Append(nil, data); !bytes.Equal(sums, want) {
			t.Errorf("%s: %x, want %x", sum.Name, sums, want)
		}
		if !sum.Verify(data, sums) {
			t.Errorf("%s does not verify its own", sum.Name)
		}
		sums[23]++
		if sum.Verify(data, sums) {
			t.Errorf("%s verifies damage", sum.Name)
		}
	}
}

// TestPath looks at the delay of a path, which is at least what was asked for.
func TestPath(t *testing.T) {
	l, err := Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	path, err := StartPath(l.Addr().String(), 20*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(context.Background(), path.Addr)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	data := random(1 << 20)
	go func() { c.Write(data) }()
	got := make([]byte, len(data))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the path changed the bytes, error %v", err)
	}
	if d := time.Since(start); d < 40*time.Millisecond {
		t.Errorf("there and back in %v", d)
	}
	c.Close()
	if err := path.Close(); err != nil {
		t.Error(err)
	}
}
