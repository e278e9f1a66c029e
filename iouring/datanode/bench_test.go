//go:build linux || darwin

package datanode

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring"
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

// BenchmarkServerShortReads reads 4 KiB at a time over one connection.
func BenchmarkServerShortReads(b *testing.B) {
	s := openStore(b, b.TempDir())
	_, addr := startServerOn(b, s, ServerConfig{}, "tcp", "127.0.0.1:0")
	writeBlock(b, s, testBlock(1), crc.Chunks{}, randomBytes(2, 1<<20))
	request := readRequest(testBlock(1), 8192, 4096)
	wire := packet.AppendReadStatus(request.Append(nil), packet.ChecksumOK)
	p := dial(b, addr)
	first, _ := p.get(request)
	buf := make([]byte, 8192)
	b.ReportAllocs()
	b.SetBytes(4096)
	for b.Loop() {
		p.write(wire)
		for n := 0; n < len(first)+32+31+31; {
			k, err := p.Conn.Read(buf)
			if err != nil {
				b.Fatal(err)
			}
			n += k
		}
	}
}

// BenchmarkWriter writes blocks without a connection, a copy standing for what
// reads a packet from it: through a BlockWriter into the page cache.
func BenchmarkWriter(b *testing.B) {
	const blockLen = 64 << 20
	for _, size := range []int{64 << 10, 1 << 20} {
		n := packet.PacketChunks(size, crc.Chunks{}) * 512
		data := randomBytes(1, n)
		sums := oracleSums(crc.Chunks{}, data)
		b.Run(fmt.Sprintf("packet=%d", size), func(b *testing.B) {
			s := openStore(b, b.TempDir())
			b.SetBytes(blockLen / int64(n) * int64(n))
			for id := int64(0); b.Loop(); id++ {
				w, err := s.Create(bg, testBlock(id), crc.Chunks{})
				if err != nil {
					b.Fatal(err)
				}
				for seqno := int64(0); (seqno+1)*int64(n) <= blockLen; seqno++ {
					if err := sendSums(b, w, packet.Header{Offset: seqno * int64(n), Seqno: seqno}, sums, data); err != nil {
						b.Fatal(err)
					}
				}
				if err := w.Finalize(bg, false); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				r := s.find(testBlock(id))
				os.Remove(r.blockPath())
				os.Remove(r.metaPath())
				b.StartTimer()
			}
		})
	}
}

// BenchmarkSync has many blocks written at once, a packet and a sync at a time.
func BenchmarkSync(b *testing.B) {
	data := randomBytes(1, 64512)
	sums := oracleSums(crc.Chunks{}, data)
	for _, backend := range []iouring.Choice{iouring.RingBackend, iouring.SyscallBackend} {
		for _, blocks := range []int{1, 16} {
			b.Run(fmt.Sprintf("backend=%s/blocks=%d", backend, blocks), func(b *testing.B) {
				be, err := iouring.Open(iouring.Config{Backend: backend})
				if err != nil {
					b.Skip(err)
				}
				defer be.Close()
				s := openStoreWith(b, StoreConfig{Dirs: []string{b.TempDir()}, Backend: be, Arena: testArena(b, 64<<20)})
				writers := make([]*BlockWriter, blocks)
				for i := range writers {
					if writers[i], err = s.Create(bg, testBlock(int64(i)), crc.Chunks{}); err == nil {
						err = writers[i].Sync(bg)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				before := map[string]int64{}
				for name, v := range be.Stats().All() {
					before[name] = v
				}
				b.SetBytes(int64(len(data) * blocks))
				for seqno := int64(0); b.Loop(); seqno++ {
					var wg sync.WaitGroup
					for _, w := range writers {
						wg.Add(1)
						go func() {
							defer wg.Done()
							if err := errors.Join(sendSums(b, w, packet.Header{Offset: seqno * int64(len(data)), Seqno: seqno}, sums, data), w.Sync(bg)); err != nil {
								b.Error(err)
							}
						}()
					}
					wg.Wait()
				}
				after := map[string]int64{}
				for name, v := range be.Stats().All() {
					after[name] = v - before[name]
				}
				if after["enter"] > 0 {
					b.ReportMetric(float64(after["sqe"])/float64(after["enter"]), "sqe/enter")
				}
				b.StopTimer()
				for _, w := range writers {
					if err := w.Abort(bg); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
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

// BenchmarkOpen opens a block whose files are kept open, and reads 4 KiB of it with
// the checksums, which is what a short read costs beside the socket.
func BenchmarkOpen(b *testing.B) {
	s := openStore(b, b.TempDir())
	writeBlock(b, s, testBlock(1), crc.Chunks{}, randomBytes(4, 1<<20))
	buf, err := s.arena.Get(bg, 4096+32)
	if err != nil {
		b.Fatal(err)
	}
	defer buf.Release()
	for _, read := range []bool{false, true} {
		b.Run(fmt.Sprintf("read=%t", read), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r, err := s.Open(testBlock(1))
				if err == nil && read {
					err = r.ReadChunks(bg, buf.Slice(32, 4096+32), buf.Slice(0, 32), 8192)
				}
				if err := errors.Join(err, r.Close()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
