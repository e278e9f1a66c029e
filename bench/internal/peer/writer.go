package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// inFlight bounds the bytes that a Writer has queued and not acked.
const inFlight = 4 << 20

// A WriterConfig configures a Writer.
type WriterConfig struct {
	PacketSize int // length of a packet buffer in bytes
	Checksum   Checksum
	Reuse      bool // packet buffers, instead of allocating each
}

// A Writer is a reference for the client's end of a write: packets of one size, a
// copy and then a checksum loop, one Write per packet, one goroutine that sends
// and one that takes acks. It does not recover, time out or send heartbeats.
type Writer struct {
	conn   net.Conn
	cfg    WriterConfig
	chunks int // of a full packet
	ends   sync.WaitGroup

	mu     sync.Mutex
	change *sync.Cond
	cur    []byte   // header room, sums, data
	n      int      // bytes of data in it
	old    int      // of them repeated
	pos    int64    // block offset of it
	seqno  int64    // of it
	acked  int64    // seqno
	bytes  int      // in flight
	queue  []queued // packets in flight
	sent   int      // of them handed to the connection
	free   [][]byte
	closed bool
	err    error
}

// A queued packet is what is sent, and the buffer that it is in.
type queued struct{ wire, buf []byte }

// Dial opens a block at a datanode. Close must be called.
func Dial(ctx context.Context, addr string, block packet.Block, cfg WriterConfig) (*Writer, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	request := packet.WriteBlock{
		Block: block, ClientName: "reference", Stage: packet.SetupCreate, PipelineSize: 1,
		Checksum: packet.Checksum{Type: 2, BytesPerChunk: Chunk},
	}
	in := bufio.NewReaderSize(conn, 1024)
	if _, err = conn.Write(request.Append(nil)); err == nil {
		var res packet.BlockOpResponse
		if res, err = packet.ReadBlockOpResponse(in); err == nil && res.Status != packet.Success {
			err = fmt.Errorf("the datanode answered %v: %s", res.Status, res.Message)
		}
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	w := &Writer{
		conn: conn, cfg: cfg, chunks: packet.PacketChunks(cfg.PacketSize, crc.Chunks{}), acked: -1,
	}
	w.change = sync.NewCond(&w.mu)
	w.ends.Add(2)
	go w.send()
	go w.takeAcks(in)
	return w, nil
}

func (w *Writer) dataAt() int { return packet.MaxHeaderLen + 4*w.chunks }

// Write appends p to the block.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	written := 0
	for len(p) > 0 && w.err == nil {
		w.room()
		n := copy(w.cur[w.dataAt()+w.n:], p)
		p = p[n:]
		written += n
		w.n += n
		if w.n == w.chunks*Chunk {
			w.seal()
		}
	}
	return written, w.err
}

// ReadFrom appends what r yields.
func (w *Writer) ReadFrom(r io.Reader) (total int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.err == nil {
		w.room()
		n, err := r.Read(w.cur[w.dataAt()+w.n:])
		total += int64(n)
		if w.n += n; w.n == w.chunks*Chunk {
			w.seal()
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
	return total, w.err
}

// room makes sure that there is a packet; w.mu is held.
func (w *Writer) room() {
	if w.cur != nil {
		return
	}
	for w.bytes > inFlight && w.err == nil {
		w.change.Wait()
	}
	if w.cur == nil {
		w.cur = w.packet()
	}
}

// packet returns a packet buffer; w.mu is held.
func (w *Writer) packet() []byte {
	if n := len(w.free); n > 0 {
		b := w.free[n-1]
		w.free = w.free[:n-1]
		return b
	}
	return make([]byte, w.dataAt()+w.chunks*Chunk)
}

// seal finishes the packet and queues it; w.mu is held.
func (w *Writer) seal() {
	dataAt := w.dataAt()
	data := w.cur[dataAt : dataAt+w.n]
	sumsLen := 4 * ((w.n + Chunk - 1) / Chunk)
	w.cfg.Checksum.Put(w.cur[dataAt-sumsLen:dataAt], data)
	h := packet.Header{Offset: w.pos, Seqno: w.seqno, DataLen: w.n}
	const headerLen = packet.MaxHeaderLen - 2 // that of a packet without sync
	at := dataAt - sumsLen - headerLen
	h.Append(w.cur[at:at], sumsLen)
	w.post(queued{w.cur[at : dataAt+w.n], w.cur})

	tail := data[w.n-w.n%Chunk:] // the next packet repeats a chunk that is not full
	w.pos += int64(w.n - len(tail))
	w.cur, w.n, w.old = nil, 0, 0
	if len(tail) > 0 {
		w.cur = w.packet()
		w.n = copy(w.cur[dataAt:], tail)
		w.old = w.n
	}
}

// post queues a packet; w.mu is held.
func (w *Writer) post(p queued) {
	w.seqno++
	w.bytes += len(p.wire)
	w.queue = append(w.queue, p)
	w.change.Broadcast()
}

// Flush sends what has been written and waits until it is acked.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n > w.old {
		w.seal()
	}
	return w.await(w.seqno - 1)
}

// await waits for an ack; w.mu is held.
func (w *Writer) await(seqno int64) error {
	for w.acked < seqno && w.err == nil {
		w.change.Wait()
	}
	if w.acked >= seqno {
		return nil // the datanode closes the connection after the last ack
	}
	return w.err
}

// Close ends the block.
func (w *Writer) Close() error {
	err := w.Flush()
	w.mu.Lock()
	if err == nil {
		h := packet.Header{Offset: w.pos + int64(w.n), Seqno: w.seqno, Last: true}
		w.post(queued{wire: h.Append(nil, 0)})
		err = w.await(w.seqno - 1)
	}
	w.closed = true
	w.change.Broadcast()
	w.mu.Unlock()
	w.conn.Close()
	w.ends.Wait()
	return err
}

func (w *Writer) send() {
	defer w.ends.Done()
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for w.sent == len(w.queue) && !w.closed && w.err == nil {
			w.change.Wait()
		}
		if w.closed || w.err != nil {
			return
		}
		wire := w.queue[w.sent].wire
		w.sent++
		w.mu.Unlock()
		_, err := w.conn.Write(wire)
		w.mu.Lock()
		if err != nil {
			w.fail(err)
		}
	}
}

// takeAcks counts acks: a datanode that does not answer Success closes the
// connection.
func (w *Writer) takeAcks(in *bufio.Reader) {
	defer w.ends.Done()
	for {
		length, err := in.ReadByte()
		if err == nil && length > 127 {
			err = errors.New("an ack of more than 127 bytes")
		}
		if err == nil {
			_, err = in.Discard(int(length))
		}
		w.mu.Lock()
		if err == nil && w.sent == 0 {
			err = errors.New("an ack for nothing")
		}
		if err != nil {
			w.fail(err)
			w.mu.Unlock()
			return
		}
		w.acked++
		w.bytes -= len(w.queue[0].wire)
		if b := w.queue[0].buf; w.cfg.Reuse && b != nil {
			w.free = append(w.free, b)
		}
		w.queue = append(w.queue[:0], w.queue[1:]...)
		w.sent--
		w.change.Broadcast()
		w.mu.Unlock()
	}
}

// fail ends the stream; w.mu is held.
func (w *Writer) fail(err error) {
	if w.err == nil {
		w.err = err
	}
	w.change.Broadcast()
}
