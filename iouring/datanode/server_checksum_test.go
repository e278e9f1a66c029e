//go:build linux || darwin

package datanode

import (
	"bytes"
	"crypto/md5"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"testing"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

func plainCRC(k crc.Kind, data []byte) []byte {
	table := crc32.MakeTable(crc32.Castagnoli)
	if k == crc.CRC32 {
		table = crc32.IEEETable
	}
	return binary.BigEndian.AppendUint32(nil, crc32.Checksum(data, table))
}

func TestServerChecksum(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	_, addr := startServer(t, s, ServerConfig{})
	p := dial(t, addr)
	ask := func(req packet.BlockChecksum) *packet.BlockChecksumInfo {
		t.Helper()
		p.write(req.Append(nil))
		r := p.response()
		if r.Status != packet.Success || r.BlockChecksum == nil {
			t.Fatalf("%+v", r)
		}
		return r.BlockChecksum
	}
	id := int64(0)
	for _, kind := range []crc.Kind{crc.CRC32C, crc.CRC32} {
		for _, size := range []int{1, 7, 512, 4096} {
			for _, n := range []int{0, 1, 511, 512, 513, 8192, 100000} {
				id++
				c, b, data := crc.Chunks{Kind: kind, Size: size}, testBlock(id), randomBytes(uint64(n), n)
				writeBlock(t, s, b, c, data)
				for _, part := range []int{n, n + 1, n - 1, n / 2, n / 2 / size * size, 0} {
					part = max(part, 0)
					covered := data[:min(part, n)]
					req := packet.BlockChecksum{Block: b, Type: packet.MD5CRC}
					req.Block.NumBytes = int64(part)
					info := ask(req)
					if want := md5.Sum(oracleSums(c, covered)); !bytes.Equal(info.Checksum, want[:]) || info.Chunks != c || info.ChunksPerBlock != c.Count(int64(n)) || info.Type != packet.MD5CRC {
						t.Errorf("%v/%d: MD5 of %d bytes of %d: %+v, expected %x", kind, size, part, n, info, want)
					}
					req.Type = packet.CompositeCRC
					info = ask(req)
					want := plainCRC(kind, covered)
					if len(covered) == 0 {
						want = nil // Hadoop's composer of nothing
					}
					if !bytes.Equal(info.Checksum, want) || info.Type != packet.CompositeCRC {
						t.Errorf("%v/%d: composite of %d bytes of %d: %x, expected %x", kind, size, part, n, info.Checksum, want)
					}
					req.StripeLength = int64(3 * size)
					want = nil
					for at := 0; at < len(covered); at += 3 * size {
						want = append(want, plainCRC(kind, covered[at:min(at+3*size, len(covered))])...)
					}
					if len(want) > 60000 {
						continue // more than a response holds
					}
					if info = ask(req); !bytes.Equal(info.Checksum, want) || info.StripeLength != req.StripeLength {
						t.Errorf("%v/%d: stripes of %d bytes of %d: %x, expected %x", kind, size, part, n, info.Checksum, want)
					}
				}
			}
		}
	}
	t.Run("without checksums", func(t *testing.T) {
		c, b := crc.Chunks{Kind: crc.None, Size: 512}, testBlock(1000)
		writeBlock(t, s, b, c, randomBytes(1, 1000))
		req := packet.BlockChecksum{Block: b}
		req.Block.NumBytes = 1000
		if info, want := ask(req), md5.Sum(nil); !bytes.Equal(info.Checksum, want[:]) || info.ChunksPerBlock != 0 || info.Chunks != c {
			t.Errorf("%+v", info)
		}
	})
	t.Run("of Hadoop", func(t *testing.T) {
		// ramp(1000), as HDFS's MD5-of-MD5 of a file of one block.
		data := make([]byte, 1000)
		for i := range data {
			data[i] = byte(7*i + i>>8)
		}
		for kind, want := range map[crc.Kind][2]string{
			crc.CRC32:  {"1bcfc0ff48c6043f7243bb73f246faa8", "668f073d"},
			crc.CRC32C: {"9c5ab90daf65570f5fae8f4ad98d86a3", "22c9a2b3"},
		} {
			b := testBlock(2000 + int64(kind))
			writeBlock(t, s, b, crc.Chunks{Kind: kind}, data)
			req := packet.BlockChecksum{Block: b}
			req.Block.NumBytes = 1000
			if got := crc.FileMD5([][md5.Size]byte{[md5.Size]byte(ask(req).Checksum)}); fmt.Sprintf("%x", got) != want[0] {
				t.Errorf("%v: %x", kind, got)
			}
			req.Type = packet.CompositeCRC
			if got := ask(req).Checksum; fmt.Sprintf("%x", got) != want[1] {
				t.Errorf("%v: %x", kind, got)
			}
		}
	})
	t.Run("a checksum too many", func(t *testing.T) { // as Hadoop's computeMeta makes it
		b, data := testBlock(3000), randomBytes(3, 1024)
		writeBlock(t, s, b, crc.Chunks{}, data)
		sums := append(oracleSums(crc.Chunks{}, data), 1, 2, 3, 4)
		r := s.find(b)
		if err := os.WriteFile(r.metaPath(), append(oracleMeta(crc.Chunks{}, nil), sums...), 0o644); err != nil {
			t.Fatal(err)
		}
		req := packet.BlockChecksum{Block: b}
		req.Block.NumBytes = 1024
		if info, want := ask(req), md5.Sum(sums); !bytes.Equal(info.Checksum, want[:]) || info.ChunksPerBlock != 3 {
			t.Errorf("%+v, expected %x", info, want)
		}
		req.Type = packet.CompositeCRC
		if info := ask(req); !bytes.Equal(info.Checksum, plainCRC(crc.CRC32C, data)) {
			t.Errorf("%x", info.Checksum)
		}
	})
	t.Run("being written", func(t *testing.T) { // the stored checksum of the last chunk is that of more
		b, data, c := testBlock(4000), randomBytes(4, 1000), crc.Chunks{}
		w, err := s.Create(bg, b, c)
		if err != nil {
			t.Fatal(err)
		}
		w.relay()
		for i, end := range []int{700, 900} {
			if err := send(t, w, packet.Header{Offset: 512 * int64(i), Seqno: int64(i)}, data[512*i:end]); err != nil {
				t.Fatal(err)
			}
			if err := w.Flush(bg); err != nil {
				t.Fatal(err)
			}
		}
		w.publish(700)
		req := packet.BlockChecksum{Block: b}
		for _, n := range []int{700, 5000, 600, 100} {
			req.Block.NumBytes = int64(n)
			want := md5.Sum(oracleSums(c, data[:min(n, 700)]))
			if info := ask(req); !bytes.Equal(info.Checksum, want[:]) || info.ChunksPerBlock != 2 {
				t.Errorf("%d bytes: %+v, expected %x", n, info, want)
			}
		}
		if err := w.Abort(bg); err != nil {
			t.Fatal(err)
		}
	})
	for name, change := range map[string]func(*packet.BlockChecksum){
		"unknown block":      func(r *packet.BlockChecksum) { r.Block.ID = 1 << 40 },
		"newer stamp":        func(r *packet.BlockChecksum) { r.Block.Stamp = 1002 },
		"negative length":    func(r *packet.BlockChecksum) { r.Block.NumBytes = -1 },
		"unknown type":       func(r *packet.BlockChecksum) { r.Type = 3 },
		"stripes cut chunks": func(r *packet.BlockChecksum) { r.Type, r.StripeLength = packet.CompositeCRC, 100 },
		"composite of none":  func(r *packet.BlockChecksum) { r.Type, r.Block.ID = packet.CompositeCRC, 1000 },
	} {
		t.Run(name, func(t *testing.T) {
			req := packet.BlockChecksum{Block: testBlock(2000)}
			req.Block.NumBytes = 1000
			change(&req)
			p := dial(t, addr)
			p.write(req.Append(nil))
			if r := p.response(); r.Status != packet.Error || r.Message == "" {
				t.Errorf("%+v", r)
			}
			p.eof()
		})
	}
	t.Run("damaged", func(t *testing.T) { // a checksum of a part of a chunk is computed of what verifies
		b, data := testBlock(5000), randomBytes(5, 1000)
		writeBlock(t, s, b, crc.Chunks{}, data)
		data[600] ^= 1
		if err := os.WriteFile(s.find(b).blockPath(), data, 0o644); err != nil {
			t.Fatal(err)
		}
		req := packet.BlockChecksum{Block: b}
		req.Block.NumBytes = 550
		p := dial(t, addr)
		p.write(req.Append(nil))
		if r := p.response(); r.Status != packet.Error {
			t.Errorf("%+v", r)
		}
	})
}
