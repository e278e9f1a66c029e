package peer

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring/datanode"
)

// A Receiver is a reference for the datanode's end of a write: it takes blocks,
// verifies and writes them, and does nothing else.
type Receiver struct {
	Addr string

	cfg    ReceiverConfig
	l      net.Listener
	conns  sync.WaitGroup
	mu     sync.Mutex
	failed error
}

// A ReceiverConfig configures a Receiver.
type ReceiverConfig struct {
	Dir      string // of the block and .meta files
	Checksum Checksum

	// Gather is how many bytes of data are written at once, with one pwritev of
	// the data and one of the checksums; what the sender waits for is written
	// before that. 0 writes the data and the checksums of each packet with one
	// pwrite each, as a datanode of HDFS does.
	Gather int
}

// StartReceiver starts a receiver on a loopback port. Close must be called.
func StartReceiver(cfg ReceiverConfig) (*Receiver, error) {
	l, err := Listen()
	if err != nil {
		return nil, err
	}
	r := &Receiver{Addr: l.Addr().String(), cfg: cfg, l: l}
	r.conns.Add(1)
	go func() {
		defer r.conns.Done()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.conns.Add(1)
			go func() {
				defer r.conns.Done()
				defer c.Close()
				if err := r.serve(c); err != nil {
					r.mu.Lock()
					r.failed = errors.Join(r.failed, err)
					r.mu.Unlock()
				}
			}()
		}
	}()
	return r, nil
}

// Close waits for the connections that are open and returns what went wrong on
// any.
func (r *Receiver) Close() error {
	r.l.Close()
	r.conns.Wait()
	return r.failed
}

// Forget removes all blocks.
func (r *Receiver) Forget() error {
	if err := os.RemoveAll(r.cfg.Dir); err != nil {
		return err
	}
	return os.Mkdir(r.cfg.Dir, 0o755)
}

// serve takes one block.
func (r *Receiver) serve(c net.Conn) error {
	in := bufio.NewReaderSize(c, 512)
	req, err := packet.ReadRequest(in, 0)
	if err != nil {
		return err
	}
	write, ok := req.(*packet.WriteBlock)
	if !ok {
		return fmt.Errorf("the receiver got a %T", req)
	}
	name := filepath.Join(r.cfg.Dir, fmt.Sprintf("%s_%d", write.Block.Pool, write.Block.ID))
	w := &blockFiles{}
	if w.blk, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644); err != nil {
		return err
	}
	defer w.blk.Close()
	if w.meta, err = os.OpenFile(name+".meta", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644); err != nil {
		return err
	}
	defer w.meta.Close()
	if err := w.begin(); err != nil {
		return err
	}
	if _, err := c.Write((&packet.BlockOpResponse{HasFirstBadLink: true}).Append(nil)); err != nil {
		return err
	}
	return r.packets(c, packet.NewReceiver(in, 0), w)
}

func (r *Receiver) packets(c net.Conn, in *packet.Receiver, w *blockFiles) error {
	ack := packet.Ack{Replies: []packet.Status{packet.Success}, Flags: []uint32{0}}
	var acks []byte
	gathered := 0
	for {
		h, sumsLen, err := in.Next()
		if err != nil {
			return err
		}
		sums, data, err := in.Body(w.buffer(sumsLen + h.DataLen))
		if err != nil {
			return err
		}
		if h.DataLen > 0 {
			if !r.cfg.Checksum.Verify(data, sums) {
				return fmt.Errorf("the packet at offset %d does not verify", h.Offset)
			}
			if h.Offset != w.offset+int64(gathered) {
				return fmt.Errorf("a packet at offset %d, want %d", h.Offset, w.offset+int64(gathered))
			}
			w.add(data, sums)
			gathered += len(data)
		}
		ack.Seqno = h.Seqno
		acks = ack.Append(acks)
		if gathered < r.cfg.Gather && in.Buffered() > 0 && !h.Last && len(w.data) < maxGather {
			continue
		}
		if err := w.flush(r.cfg.Gather == 0); err != nil {
			return err
		}
		gathered = 0
		if _, err := c.Write(acks); err != nil || h.Last {
			return err
		}
		acks = acks[:0]
	}
}

// maxGather bounds the packets of a gathering write.
const maxGather = 64

// blockFiles are the files of a block, and packets that are not written.
type blockFiles struct {
	blk, meta    *os.File
	offset, sums int64 // end of what is in them
	buffers      [][]byte
	data, crcs   [][]byte
}

// begin writes the header of the .meta file.
func (w *blockFiles) begin() error {
	header := datanode.MetaHeader{Version: datanode.MetaVersion}.Append(nil)
	w.sums = int64(len(header))
	_, err := w.meta.WriteAt(header, 0)
	return err
}

// buffer returns memory for the next packet, and some for the header behind it.
func (w *blockFiles) buffer(n int) []byte {
	i := len(w.data)
	if i == len(w.buffers) {
		w.buffers = append(w.buffers, nil)
	}
	if cap(w.buffers[i]) < n+packet.MaxHeaderLen {
		w.buffers[i] = make([]byte, n+packet.MaxHeaderLen)
	}
	return w.buffers[i][:n]
}

func (w *blockFiles) add(data, sums []byte) {
	w.data, w.crcs = append(w.data, data), append(w.crcs, sums)
}

// flush writes what has been added: packet by packet, or together.
func (w *blockFiles) flush(single bool) error {
	write := func(f *os.File, bs [][]byte, off *int64) error {
		n, err := unix.Pwritev(int(f.Fd()), bs, *off)
		want := 0
		for _, b := range bs {
			want += len(b)
		}
		if err == nil && n != want {
			err = fmt.Errorf("%s: %d of %d bytes written", f.Name(), n, want)
		}
		*off += int64(n)
		return err
	}
	if single {
		write = func(f *os.File, bs [][]byte, off *int64) error {
			n, err := f.WriteAt(bs[0], *off)
			*off += int64(n)
			return err
		}
	}
	if len(w.data) == 0 {
		return nil
	}
	if err := write(w.blk, w.data, &w.offset); err != nil {
		return err
	}
	if err := write(w.meta, w.crcs, &w.sums); err != nil {
		return err
	}
	w.data, w.crcs = w.data[:0], w.crcs[:0]
	return nil
}
