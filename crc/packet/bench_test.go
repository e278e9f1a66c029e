package packet

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/blockpath/blockpath/crc"
)

// BenchmarkWriter packs 1 MiB writes and sends them over loopback TCP to a node
// that reads and acks, without looking at what it gets.
func BenchmarkWriter(b *testing.B) {
	for _, kind := range []crc.Kind{crc.CRC32C, crc.None} {
		for _, size := range []int{DefaultPacketSize, 1 << 20, 0} {
			name := fmt.Sprint(size)
			if size == 0 {
				name = "adaptive"
			}
			b.Run(fmt.Sprintf("kind=%v/packet=%s", kind, name), func(b *testing.B) {
				n := &node{chunks: crc.Chunks{Kind: kind}}
				conn, served := dial(b, "tcp", func(c io.ReadWriteCloser) error { return n.discard(c) })
				w, err := NewWriter(context.Background(), conn, createRequest(1<<40), WriterConfig{StreamConfig: StreamConfig{PacketSize: size, Chunks: n.chunks}})
				if err != nil {
					b.Fatal(err)
				}
				data := make([]byte, 1<<20)
				b.SetBytes(int64(len(data)))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := w.Write(data); err != nil {
						b.Fatal(err)
					}
				}
				w.Flush(context.Background())
				w.Abort()
				<-served
			})
		}
	}
}

// BenchmarkFlush writes 150 bytes and waits for the ack, as a log does.
func BenchmarkFlush(b *testing.B) {
	n := &node{}
	conn, served := dial(b, "tcp", func(c io.ReadWriteCloser) error { return n.discard(c) })
	w, err := NewWriter(context.Background(), conn, createRequest(1<<40), WriterConfig{})
	if err != nil {
		b.Fatal(err)
	}
	data := make([]byte, 150)
	b.ReportAllocs()
	for b.Loop() {
		w.Write(data)
		if err := w.Flush(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	w.Abort()
	<-served
}

// BenchmarkPack fills packet buffers from 1 MiB writes without sending them,
// beside a copy into the same buffers.
func BenchmarkPack(b *testing.B) {
	data := make([]byte, 1<<20)
	for _, way := range []string{"crc32c", "copy"} {
		for _, size := range []int{DefaultPacketSize, 1 << 20} {
			b.Run(fmt.Sprintf("way=%s/packet=%d", way, size), func(b *testing.B) {
				s, err := NewStream(context.Background(), StreamConfig{PacketSize: size, Chunks: crc.Chunks{}})
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				var bufs []current
				for range 4 {
					buf, _ := s.reservation.Acquire(context.Background(), s.bufferLen(s.full))
					bufs = append(bufs, current{buf: buf, mem: buf.Bytes(), sumsAt: s.dataAt(s.full) - 4*s.full, dataAt: s.dataAt(s.full), limit: 512 * s.full})
				}
				b.SetBytes(int64(len(data)))
				k := 0
				for b.Loop() {
					for p := data; len(p) > 0; {
						c := &bufs[k%len(bufs)]
						var n int
						if way == "copy" {
							n = copy(c.mem[c.dataAt+c.n:c.dataAt+c.limit], p)
							c.n += n
						} else {
							n = c.copy(s, p)
						}
						p = p[n:]
						if c.n == c.limit {
							c.n, c.summed = 0, 0
							k++
						}
					}
				}
			})
		}
	}
}

// BenchmarkReader reads a block that is in memory.
func BenchmarkReader(b *testing.B) {
	const size = 8 << 20
	block := pattern(size, 1)
	res := BlockOpResponse{ReadChecksum: &ReadChecksumInfo{}}
	stream := res.Append(nil)
	seqno := int64(0)
	for at := 0; at < size; at += 65536 {
		data := block[at : at+65536]
		stream = append(stream, packetBytes(Header{Offset: int64(at), Seqno: seqno}, crc.Chunks{}.Append(nil, data), data)...)
		seqno++
	}
	stream = Header{Offset: size, Seqno: seqno, Last: true}.Append(stream, 0)
	buf := make([]byte, 1<<20)
	for _, way := range []string{"Read", "WriteTo"} {
		b.Run("way="+way, func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				r, err := NewReader(context.Background(), &memoryConn{in: bytes.NewReader(stream)}, readRequest(0, size), ReaderConfig{})
				if err != nil {
					b.Fatal(err)
				}
				if way == "WriteTo" {
					_, err = r.WriteTo(io.Discard)
				} else {
					for err == nil {
						_, err = r.Read(buf)
					}
					if err == io.EOF {
						err = nil
					}
				}
				if err != nil || !r.Close() {
					b.Fatal(err)
				}
			}
		})
	}
}
