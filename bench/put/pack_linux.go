package put

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/blockpath/blockpath/bench/internal/lab"
	"github.com/blockpath/blockpath/bench/internal/peer"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// pack measures the packetizer without a datanode. First the part that touches
// every byte: writes of 1 MiB are copied into packet buffers and checksummed in
// one pass, as packet.Writer does it, beside a copy into the same buffers. Then a
// whole Writer, whose packets go to a connection that takes and acks them at
// once.
func pack(ctx context.Context, sz size, r *lab.Report) error {
	sizes := []struct {
		name   string
		length int
	}{{"packets=64k", packet64k}, {"packets=1m", packet1m}}
	data := peer.Pattern[:1<<20]
	var rows, writers []*lab.Row
	for _, ps := range sizes {
		chunks := packet.PacketChunks(ps.length, crc.Chunks{})
		// One fills, one is sent, one waits for its ack.
		b := &buffers{mem: make([][]byte, 3), sumsLen: 4 * chunks, dataLen: peer.Chunk * chunks}
		for i := range b.mem {
			b.mem[i] = make([]byte, b.sumsLen+b.dataLen)
		}
		rows = append(rows,
			&lab.Row{Name: "packetize/crc32c/" + ps.name, Work: float64(len(data)), Do: func() error {
				b.fill(data, func(dst, sums, src []byte) { crc.Chunks{}.CopyPut(dst, sums, src) })
				return nil
			}},
			&lab.Row{Name: "packetize/copy/" + ps.name, Work: float64(len(data)), Do: func() error {
				b.fill(data, func(dst, _, src []byte) { copy(dst, src) })
				return nil
			}})

		var w *packet.Writer
		writers = append(writers, &lab.Row{
			Name: "writer/" + ps.name, Work: float64(sz.adds * len(data)),
			Prepare: func() (err error) {
				w, err = packet.NewWriter(ctx, newSink(), packet.WriteBlock{Block: packet.Block{Pool: peer.Pool, ID: 1, NumBytes: 1 << 40}},
					packet.WriterConfig{StreamConfig: packet.StreamConfig{PacketSize: ps.length}})
				return err
			},
			Do: func() error {
				for range sz.adds {
					if _, err := w.Write(data); err != nil {
						return err
					}
				}
				return nil
			},
			Check: func() error {
				w.Abort()
				return nil
			},
		})
	}
	noise, err := lab.Calibrated(ctx, sz.calibrated, 400, rows...)
	if err != nil {
		return err
	}
	if _, err := lab.Alternate(ctx, 1, sz.rounds, writers...); err != nil {
		return err
	}
	r.Printf("writes of 1 MiB into packets; %v\n%-30s %14s\n", noise, "", "GB/s")
	for _, row := range append(rows, writers...) {
		speed := 1e-9 / lab.Median(row.Wall)
		r.Metric(row.Name+"/gb-per-s", speed)
		r.Printf("%-30s %14.2f\n", row.Name, speed)
	}
	r.Printf("\n")
	r.Ratio("packetize/crc32c/packets=64k/vs=copy-into-same-buffers", lab.Quotient(rows[1].Wall, rows[0].Wall))
	const name = "packetize/crc32c/vs=copy-into-same-buffers"
	v := lab.Quotient(rows[3].Wall, rows[2].Wall)
	r.Ratio(name, v)
	r.Target(name, ">=0.9", v)
	return nil
}

// buffers are packet buffers that are filled in turn.
type buffers struct {
	mem              [][]byte
	sumsLen, dataLen int
	at, filled       int
}

// fill puts src into packets by way of put.
func (b *buffers) fill(src []byte, put func(dst, sums, src []byte)) {
	for len(src) > 0 {
		mem := b.mem[b.at]
		n := min(len(src), b.dataLen-b.filled)
		put(mem[b.sumsLen+b.filled:], mem[b.filled/peer.Chunk*4:b.sumsLen], src[:n])
		src = src[n:]
		if b.filled += n; b.filled == b.dataLen {
			b.at, b.filled = (b.at+1)%len(b.mem), 0
		}
	}
}

// A sink is a connection to a datanode that accepts everything at once.
type sink struct {
	mu     sync.Mutex
	some   *sync.Cond
	opened bool
	closed bool
	out    []byte // answers that have not been read
}

func newSink() *sink {
	s := new(sink)
	s.some = sync.NewCond(&s.mu)
	return s
}

// Write takes the request or a packet.
func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.opened {
		s.opened = true
		s.out = (&packet.BlockOpResponse{HasFirstBadLink: true}).Append(s.out)
	} else {
		hlen := int(binary.BigEndian.Uint16(p[4:]))
		h, err := packet.ParseHeader(p[6 : 6+hlen])
		if err != nil || int(binary.BigEndian.Uint32(p))+hlen+2 != len(p) {
			return 0, fmt.Errorf("no packet: %w", err)
		}
		ack := packet.Ack{Seqno: h.Seqno, Flags: accepted}
		s.out = ack.Append(s.out)
	}
	s.some.Signal()
	return len(p), nil
}

var accepted = []uint32{uint32(packet.Success)}

// Read waits for answers.
func (s *sink) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.out) == 0 {
		if s.closed {
			return 0, io.EOF
		}
		s.some.Wait()
	}
	n := copy(p, s.out)
	s.out = append(s.out[:0], s.out[n:]...)
	return n, nil
}

// Close makes Read return.
func (s *sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.some.Signal()
	return nil
}
