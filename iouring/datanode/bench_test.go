//go:build linux || darwin

package datanode

import (
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// BenchmarkServer writes and reads whole blocks over a unix socket, with a peer
// that does nothing but system calls.
func BenchmarkServer(b *testing.B) {
	const blockLen = 32 << 20
	for _, size := range []int{64 << 10, 1 << 20} {
		chunks := packet.PacketChunks(size, crc.Chunks{})
		n := chunks * 512
		data := randomBytes(1, n)
		var stream []byte
		off, seqno := int64(0), int64(0)
		for ; off+int64(n) <= blockLen; off, seqno = off+int64(n), seqno+1 {
			stream = append(stream, wirePacket(packet.Header{Offset: off, Seqno: seqno}, oracleSums(crc.Chunks{}, data), data)...)
		}
		wire := len(stream) / int(seqno)
		last := wirePacket(packet.Header{Offset: off, Seqno: seqno, Last: true}, nil, nil)
		b.Run(fmt.Sprintf("op=write/packet=%d", size), func(b *testing.B) {
			s := openStore(b, b.TempDir())
			_, addr := startServer(b, s, ServerConfig{})
			b.SetBytes(off)
			for id := int64(0); b.Loop(); id++ {
				p := dial(b, addr)
				p.open(testBlock(id), crc.Chunks{})
				go func() {
					for at := 0; at < len(stream); at += wire {
						p.write(stream[at : at+wire])
					}
					p.write(last)
				}()
				if _, err := io.Copy(io.Discard, p.in); err != nil {
					b.Fatal(err)
				}
				p.Close()
				b.StopTimer()
				r := s.find(testBlock(id))
				if r.state != finalized || r.length != off {
					b.Fatal("the block is not complete")
				}
				os.Remove(r.blockPath())
				os.Remove(r.metaPath())
				b.StartTimer()
			}
		})
	}
	b.Run("op=read", func(b *testing.B) {
		s := openStore(b, b.TempDir())
		_, addr := startServer(b, s, ServerConfig{})
		writeBlock(b, s, testBlock(1), crc.Chunks{}, randomBytes(2, blockLen))
		request := readRequest(testBlock(1), 0, -1)
		b.SetBytes(blockLen)
		buf := make([]byte, 1<<20)
		for b.Loop() {
			p := dial(b, addr)
			p.write(request.Append(nil))
			p.Conn.(*net.UnixConn).CloseWrite()
			for {
				if _, err := p.Conn.Read(buf); err != nil {
					break
				}
			}
			p.Close()
		}
	})
}

// BenchmarkVerify scrubs blocks in the page cache.
func BenchmarkVerify(b *testing.B) {
	const blocks, blockLen = 4, 64 << 20
	dir := b.TempDir()
	data := randomBytes(3, blockLen)
	meta := oracleMeta(crc.Chunks{}, data)
	for id := range int64(blocks) {
		pairFiles(b, dir, id, data, meta)
	}
	b.SetBytes(blocks * blockLen)
	for b.Loop() {
		if r := verify(b, VerifyConfig{}, dir); !r.OK() {
			b.Fatalf("%+v", r)
		}
	}
}
