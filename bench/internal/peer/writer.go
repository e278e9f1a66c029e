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

// A Writer is a reference for the client's end of a write: packets of one size
// that are filled and then checksummed, the sums of the block for the file's
// checksums, one Write per packet, one goroutine that sends and one that takes
// acks. It does not flush, recover, time out or send heartbeats.
type Writer struct {
	conn   net.Conn
	sum    Checksum
	chunks int // of a full packet
	ends   sync.WaitGroup

	pos    int64 // block offset of the next packet
	seqno  int64 // of it
	summer *crc.BlockSummer

	mu     sync.Mutex
	change *sync.Cond
	acked  int64 // seqno
	bytes  int   // in flight
	queue  []queued
	sent   int      // of queue, handed to the connection
	free   [][]byte // packet buffers
	closed bool
	err    error
}

// A queued packet is what is sent, and the buffer that it is in.
type queued struct{ wire, buf []byte }

// Dial opens a block at a datanode. packetSize is the length of a packet buffer
// in bytes. Close must be called.
func Dial(ctx context.Context, addr string, block packet.Block, packetSize int, sum Checksum) (*Writer, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	request := packet.WriteBlock{
		Block: block, ClientName: "reference", Stage: packet.SetupCreate, PipelineSize: 1,
		Checksum: packet.ChecksumOf(crc.Chunks{}),
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
	w := &Writer{conn: conn, sum: sum, chunks: packet.PacketChunks(packetSize, crc.Chunks{}), acked: -1, summer: crc.NewBlockSummer(crc.Chunks{})}
	w.change = sync.NewCond(&w.mu)
	w.ends.Add(2)
	go w.send()
	go w.takeAcks(in)
	return w, nil
}

// ReadFrom appends what r yields. It is called once.
func (w *Writer) ReadFrom(r io.Reader) (total int64, err error) {
	dataAt, length := packet.MaxHeaderLen+4*w.chunks, Chunk*w.chunks
	for {
		buf, err := w.room()
		if err != nil {
			return total, err
		}
		n, err := io.ReadFull(r, buf[dataAt:])
		total += int64(n)
		if n > 0 {
			sumsLen := crc.Chunks{}.SumsLen(n)
			w.sum.Put(buf[dataAt-sumsLen:dataAt], buf[dataAt:dataAt+n])
			w.summer.Add(buf[dataAt-sumsLen : dataAt])
			const headerLen = packet.MaxHeaderLen - 2 // that of a packet without sync
			at := dataAt - sumsLen - headerLen
			packet.Header{Offset: w.pos, Seqno: w.seqno, DataLen: n}.Append(buf[at:at], sumsLen)
			w.pos += int64(n)
			w.post(queued{buf[at : dataAt+n], buf})
		}
		if n < length {
			if err == io.EOF || err == io.ErrUnexpectedEOF {
				err = nil
			}
			return total, err
		}
	}
}

// room waits until a packet may be started and returns memory for it.
func (w *Writer) room() ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.bytes > inFlight && w.err == nil {
		w.change.Wait()
	}
	if n := len(w.free); n > 0 {
		b := w.free[n-1]
		w.free = w.free[:n-1]
		return b, w.err
	}
	return make([]byte, packet.MaxHeaderLen+(4+Chunk)*w.chunks), w.err
}

func (w *Writer) post(p queued) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seqno++
	w.bytes += len(p.wire)
	w.queue = append(w.queue, p)
	w.change.Broadcast()
}

// await waits until everything is acked.
func (w *Writer) await() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.acked < w.seqno-1 && w.err == nil {
		w.change.Wait()
	}
	if w.acked == w.seqno-1 {
		return nil // the datanode closes the connection after the last ack
	}
	return w.err
}

// Close ends the block and returns its sums.
func (w *Writer) Close() (crc.BlockSum, error) {
	err := w.await()
	if err == nil {
		h := packet.Header{Offset: w.pos, Seqno: w.seqno, Last: true}
		w.post(queued{wire: h.Append(nil, 0)})
		err = w.await()
	}
	w.mu.Lock()
	w.closed = true
	w.change.Broadcast()
	w.mu.Unlock()
	w.conn.Close()
	w.ends.Wait()
	sum, sumErr := w.summer.Sum(w.pos)
	return sum, errors.Join(err, sumErr)
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
		if b := w.queue[0].buf; b != nil {
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
