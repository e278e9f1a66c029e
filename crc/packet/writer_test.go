package packet

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/blockpath/blockpath/crc"
)

// checkLeaks fails the test if goroutines remain, or buffers in the pool.
func checkLeaks(t testing.TB, pool *Pool) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for wait := time.Millisecond; ; wait *= 2 {
			now := runtime.NumGoroutine()
			if now <= before {
				break
			}
			if wait > 2*time.Second {
				buf := make([]byte, 1<<20)
				t.Errorf("%d goroutines, %d before:\n%s", now, before, buf[:runtime.Stack(buf, true)])
				break
			}
			time.Sleep(wait)
		}
		if pool != nil {
			if s := pool.Stats(); s.InUse != 0 || s.Waiting != 0 || s.Streams != 0 {
				t.Errorf("pool: %+v", s)
			}
		}
	})
}

func TestWriterWholeBlock(t *testing.T) {
	for _, kind := range []string{"pipe", "tcp"} {
		for _, size := range []int{0, 1, 511, 512, 513, 64512, 64513, 65536, 1 << 20, 3<<20 + 77} {
			for _, c := range []crc.Chunks{{}, {Kind: crc.CRC32}, {Kind: crc.None}, {Size: 4096}, {Size: 1000}} {
				t.Run(fmt.Sprintf("%s/%d/%v/%d", kind, size, c.Kind, c.BytesPerChunk()), func(t *testing.T) {
					checkLeaks(t, nil)
					n := &node{chunks: c}
					conn, served := dial(t, kind, n.serve)
					counting := &countingConn{Conn: conn}
					var sums []byte
					w, err := NewWriter(deadline(t), counting, createRequest(4<<20), WriterConfig{
						StreamConfig: StreamConfig{Chunks: c, PacketSize: DefaultPacketSize},
						Sums:         func(s []byte) { sums = append(sums, s...) },
					})
					if err != nil {
						t.Fatal(err)
					}
					data := pattern(size, 1)
					if m, err := w.Write(data); m != size || err != nil {
						t.Fatal(m, err)
					}
					if err := w.Close(); err != nil {
						t.Fatal(err)
					}
					if err := <-served; err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(n.block, data) || !n.final {
						t.Fatalf("%d bytes arrived of %d, final %v", len(n.block), size, n.final)
					}
					if w.Acked() != int64(size) || w.Block().NumBytes != int64(size) {
						t.Errorf("acked %d", w.Acked())
					}
					if want := c.Append(nil, data); !bytes.Equal(sums, want) {
						t.Errorf("the hook got %d bytes of sums, want %d", len(sums), len(want))
					}
					for i, wr := range counting.writes[1:] {
						if wr[1] != 1 {
							t.Errorf("write %d of %d bytes is not one packet", i, wr[0])
						}
					}
					perPacket := PacketChunks(DefaultPacketSize, c) * c.BytesPerChunk()
					if want := (size+perPacket-1)/perPacket + 1; len(n.headers) != want || len(counting.writes) != want+1 {
						t.Errorf("%d packets in %d writes, want %d", len(n.headers), len(counting.writes), want)
					}
					if _, err := w.Write([]byte{1}); !errors.Is(err, ErrClosed) {
						t.Errorf("write after close: %v", err)
					}
					if err := w.Close(); err != nil {
						t.Errorf("second close: %v", err)
					}
				})
			}
		}
	}
}

// The bytes on the wire of a small block, hflush in mid-chunk, hsync, close.
func TestWriterKnownBytes(t *testing.T) {
	checkLeaks(t, nil)
	n := &node{}
	conn, served := dial(t, "tcp", n.serve)
	tee := &teeConn{Conn: conn}
	w, err := NewWriter(deadline(t), tee, createRequest(1<<20), WriterConfig{})
	if err != nil {
		t.Fatal(err)
	}
	tee.take()
	data := pattern(1000, 3)
	step := func(name string, f func() error, want ...[]byte) {
		t.Helper()
		if err := f(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := tee.take(); !bytes.Equal(got, bytes.Join(want, nil)) {
			t.Fatalf("%s: sent %x\nwant %x", name, got, bytes.Join(want, nil))
		}
	}
	packet := func(h Header, d []byte) []byte { return packetBytes(h, crc.Chunks{}.Append(nil, d), d) }
	write := func(a, b int) { w.Write(data[a:b]) }
	ctx := deadline(t)
	flush := func() error { return w.Flush(ctx) }
	sync := func() error { return w.Sync(ctx) }
	step("flush of nothing", flush)
	step("sync of nothing", sync)
	write(0, 100)
	step("flush", flush, packet(Header{Seqno: 0}, data[:100]))
	step("flush again", flush)
	step("sync", sync, packet(Header{Offset: 100, Seqno: 1, Sync: true}, nil))
	write(100, 612)
	step("sync of a re-sent chunk", sync, packet(Header{Seqno: 2, Sync: true}, data[:612]))
	write(612, 1000)
	step("flush", flush, packet(Header{Offset: 512, Seqno: 3}, data[512:]))
	step("close", w.Close, packet(Header{Offset: 1000, Seqno: 4, Last: true}, nil))
	if err := <-served; err != nil || !bytes.Equal(n.block, data) || n.synced != 612 {
		t.Fatal(err, len(n.block), n.synced)
	}
}

type teeConn struct {
	net.Conn
	mu  sync.Mutex
	out []byte
}

func (c *teeConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.out = append(c.out, p...)
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *teeConn) take() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.out
	c.out = nil
	return b
}

func TestWriterBlockEnd(t *testing.T) {
	for _, size := range []int64{1, 511, 512, 1000, 64512, 64512 + 512, 64512*8 + 512*3, 1 << 20} {
		for _, readFrom := range []bool{false, true} {
			checkLeaks(t, nil)
			n := &node{}
			conn, served := dial(t, "tcp", n.serve)
			w, err := NewWriter(deadline(t), conn, createRequest(size), WriterConfig{StreamConfig: StreamConfig{PacketSize: 65536}})
			if err != nil {
				t.Fatal(err)
			}
			data := pattern(int(size)+10, 9)
			var took int64
			if readFrom {
				took, err = w.ReadFrom(bytes.NewReader(data))
			} else {
				var m int
				m, err = w.Write(data)
				took = int64(m)
			}
			if took != size || err != ErrBlockFull {
				t.Fatalf("block of %d took %d: %v", size, took, err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if err := <-served; err != nil || !bytes.Equal(n.block, data[:size]) {
				t.Fatal(err)
			}
			// No splinters: every packet but the last with data is full, and the
			// last one has at least an eighth unless it is the only one.
			for i, h := range n.headers[:len(n.headers)-1] {
				if i < len(n.headers)-2 && h.DataLen != 64512 && i != len(n.headers)-2 {
					t.Errorf("block of %d: packet %d has %d bytes", size, i, h.DataLen)
				}
				if i > 0 && h.DataLen < 64512/8 {
					t.Errorf("block of %d: splinter of %d bytes", size, h.DataLen)
				}
			}
		}
	}
}

func TestWriterAppend(t *testing.T) {
	for _, base := range []int64{1, 100, 511, 512, 513, 700, 1024} {
		checkLeaks(t, nil)
		n := &node{}
		conn, served := dial(t, "tcp", n.serve)
		req := createRequest(1 << 20)
		req.Stage, req.MinBytesRcvd, req.MaxBytesRcvd, req.LatestStamp = SetupAppend, base, base, req.Block.Stamp+1
		w, err := NewWriter(deadline(t), conn, req, WriterConfig{})
		if err != nil {
			t.Fatal(err)
		}
		data := pattern(5000, 4)
		w.Write(data[:50])
		if err := w.Flush(deadline(t)); err != nil {
			t.Fatal(err)
		}
		w.Write(data[50:])
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-served; err != nil || !bytes.Equal(n.block[base:], data) {
			t.Fatalf("append at %d: %v", base, err)
		}
		if w.Block().Stamp != req.LatestStamp {
			t.Errorf("stamp %d", w.Block().Stamp)
		}
	}
}

// recordHeaders acks everything and keeps only the headers.
func recordHeaders(headers *[]Header) func(io.ReadWriteCloser) error {
	return func(c io.ReadWriteCloser) error {
		defer c.Close()
		in := bufio.NewReader(c)
		if _, err := ReadRequest(in, 0); err != nil {
			return err
		}
		ok := BlockOpResponse{HasFirstBadLink: true}
		c.Write(ok.Append(nil))
		rec := NewReceiver(in, 0)
		for {
			h, sumsLen, err := rec.Next()
			if err != nil {
				return err
			}
			if _, _, err := rec.Body(make([]byte, sumsLen+h.DataLen)); err != nil {
				return err
			}
			*headers = append(*headers, h)
			a := Ack{Seqno: h.Seqno, Replies: []Status{Success}}
			c.Write(a.Append(nil))
			if h.Last {
				return nil
			}
		}
	}
}

// Blocks and offsets above 2 and 4 GiB, and the last packets of such a block.
func TestWriterHugeBlock(t *testing.T) {
	checkLeaks(t, nil)
	const size = 9 << 30
	for _, base := range []int64{3<<30 + 100, 5 << 30, size - 100000, size - 100} {
		var headers []Header
		conn, served := dial(t, "tcp", recordHeaders(&headers))
		req := createRequest(size)
		req.Stage, req.MinBytesRcvd, req.MaxBytesRcvd, req.LatestStamp = SetupAppend, base, base, 1002
		w, err := NewWriter(deadline(t), conn, req, WriterConfig{StreamConfig: StreamConfig{PacketSize: 1 << 30, MaxPacketLen: 1 << 20}})
		if err != nil {
			t.Fatal(err)
		}
		n, err := w.Write(make([]byte, 3<<20))
		want := min(int64(3<<20), size-base)
		if int64(n) != want || (err == ErrBlockFull) != (want < 3<<20) {
			t.Fatalf("%d bytes, %v", n, err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-served; err != nil {
			t.Fatal(err)
		}
		at := base
		for i, h := range headers {
			if h.Offset != at || i == 0 && base%512 != 0 && h.DataLen > int(512-base%512) {
				t.Errorf("block from %d: packet %d is %+v, expected offset %d", base, i, h, at)
			}
			at += int64(h.DataLen)
		}
		if at != base+want || w.Acked() != at {
			t.Errorf("ends at %d", at)
		}
	}
}

// A stream's blocks all begin with a full packet, and keep the size that the
// stream has grown to.
func TestStreamAcrossBlocks(t *testing.T) {
	pool := NewPool(PoolConfig{})
	checkLeaks(t, pool)
	s, err := NewStream(deadline(t), StreamConfig{Pool: pool})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	full := 126
	for i := range 4 {
		var headers []Header
		conn, served := dial(t, "tcp", recordHeaders(&headers))
		w, err := NewWriter(deadline(t), conn, createRequest(4<<20), WriterConfig{Stream: s})
		if err != nil {
			t.Fatal(err)
		}
		if s.full < full {
			t.Errorf("block %d begins with %d chunks after %d", i, s.full, full)
		}
		full = s.full
		if _, err := w.Write(make([]byte, 4<<20)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		<-served
		if headers[0].DataLen != full*512 {
			t.Errorf("block %d begins with a packet of %d bytes, want %d", i, headers[0].DataLen, full*512)
		}
	}
}

// programs returns how many random programs a test is to run, and the first
// one's seed.
func programs(t testing.TB) (int, uint64) {
	n := 60
	if s := os.Getenv("PACKET_PROGRAMS"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("PACKET_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("PACKET_SEED=%d PACKET_PROGRAMS=%d", seed, n)
	return n, seed
}

// Random programs of write, flush, sync and close, some with faults, against a
// node that checks every rule. Whatever happens, what was acked is there.
func TestWriterPrograms(t *testing.T) {
	count, seed := programs(t)
	pool := NewPool(PoolConfig{Bytes: 8 << 20})
	checkLeaks(t, pool)
	for i := range count {
		seed := seed + uint64(i)
		rng := rand.New(rand.NewPCG(seed, 7))
		if err := program(rng, pool, func(kind string, n *node) (net.Conn, chan error) { return dial(t, kind, n.serve) }); err != nil {
			t.Fatalf("PACKET_SEED=%d PACKET_PROGRAMS=1: %v", seed, err)
		}
	}
}

// Faults of a program.
const (
	faultDrop      = iota + 1 // the connection is lost instead of an ack
	faultLose                 // and the packet, too
	faultNegative             // a negative ack
	faultReordered            // the ack of the packet behind comes first
	faultRepeated             // the ack of the packet before comes again
	faultRestart              // the node restarts
	faultCut                  // the connection is lost in mid-packet
	faultShort                // Write takes less than it was given, and says nothing
	faultCancel               // the stream's context ends
	faultCongested            // the node asks for a pause
	faultNone                 // from here on
)

func program(rng *rand.Rand, pool *Pool, dial func(kind string, n *node) (net.Conn, chan error)) error {
	c := crc.Chunks{Kind: crc.Kind(rng.IntN(3)), Size: []int{512, 512, 64, 4096, 1000}[rng.IntN(5)]}
	size := 1 + rng.Int64N(4<<20)
	fault := 1 + rng.IntN(faultNone+2)
	at := rng.IntN(30)
	times := 1
	if rng.IntN(4) == 0 {
		times += rng.IntN(8)
	}
	recovering := rng.IntN(2) == 0
	base := int64(0) // the block's length before
	if rng.IntN(4) == 0 {
		base = rng.Int64N(min(size, 3000))
	}
	request := createRequest(size)
	if base > 0 {
		request.Stage, request.LatestStamp = SetupAppend, request.Block.Stamp+1
		request.MinBytesRcvd, request.MaxBytesRcvd = base, base
	}
	n := &node{chunks: c}
	hits := 0
	delays := rand.New(rand.NewPCG(rng.Uint64(), 1))
	n.behave = func(i int, h Header) (a action) {
		if delays.IntN(20) == 0 {
			a.delay = time.Duration(delays.IntN(300)) * time.Microsecond
		}
		if hits == 0 && i < at || hits >= times {
			return a
		}
		hits++
		switch fault {
		case faultDrop:
			a.drop = true
		case faultLose:
			a.drop, a.before = true, true
		case faultNegative:
			a.status = Error
		case faultReordered:
			a.seqno = 1
		case faultRepeated:
			a.seqno = -1
			if h.Seqno == 0 { // -1 would be a heartbeat's
				a.seqno = 2
			}
		case faultRestart:
			a.oob = true
		case faultCongested:
			a.ecn = 3
			hits--
		default:
			hits--
		}
		return a
	}
	kind := []string{"pipe", "tcp"}[rng.IntN(2)]
	conn, served := dial(kind, n)
	counting := &countingConn{Conn: conn}
	switch fault {
	case faultCut:
		counting.cut = 200 + rng.IntN(1<<20)
	case faultShort:
		counting.short = 200 + rng.IntN(1<<20)
	}
	var recover func(context.Context, *WriteError) (io.ReadWriteCloser, WriteBlock, error)
	if recovering {
		recover = func(ctx context.Context, f *WriteError) (io.ReadWriteCloser, WriteBlock, error) {
			err := <-served
			served <- err
			if errors.Is(err, errRule) {
				return nil, WriteBlock{}, err
			}
			req := createRequest(size)
			req.Block.Stamp = f.Block.Stamp
			req.Stage, req.LatestStamp = SetupStreamingRecovery, f.Block.Stamp+1
			if f.Closing {
				req.Stage = PipelineCloseRecovery
			}
			req.MinBytesRcvd, req.MaxBytesRcvd = f.Acked, f.Sent
			var conn net.Conn
			conn, served = dial(kind, n)
			return conn, req, nil
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	streamCtx, cancelStream := context.WithCancel(ctx)
	defer cancelStream()
	cfg := WriterConfig{
		Recover: recover, Backoff: 100 * time.Microsecond,
		StreamConfig: StreamConfig{Chunks: c, Pool: pool, PacketSize: []int{0, 0, 65536, 1056252, 2000}[rng.IntN(5)], BufferHint: rng.IntN(2 << 20)},
	}
	if rng.IntN(3) == 0 {
		cfg.StreamConfig.InFlight = 1 + rng.Int64N(1<<20)
	}
	if rng.IntN(4) == 0 { // with heartbeats
		cfg.Timeout = time.Duration(1+rng.IntN(3)) * time.Millisecond
	}
	w, err := NewWriter(streamCtx, counting, request, cfg)
	if err != nil {
		return err
	}
	defer w.Abort()
	var others sync.WaitGroup
	defer others.Wait()
	if rng.IntN(4) == 0 { // another goroutine flushes
		others.Add(1)
		go func() {
			defer others.Done()
			for i := 0; i < 20 && w.Flush(ctx) == nil; i++ {
				if i%4 == 0 && w.Sync(ctx) != nil {
					return
				}
			}
		}()
	}
	data := pattern(int(size)+1000, byte(rng.Uint32()))
	clear(data[:base]) // as the node has it
	written, synced := int(base), 0
	cancelAt := rng.IntN(20)
	for i := range 1 + rng.IntN(40) {
		if fault == faultCancel && i == cancelAt {
			cancelStream()
		}
		switch op := rng.IntN(10); {
		case op < 6:
			k := 1 + rng.IntN(min(1<<rng.IntN(23), 3<<20))
			k = min(k, len(data)-written)
			var m int64
			if op == 5 {
				m, err = w.ReadFrom(&shortReader{rng: rng, b: data[written : written+k]})
			} else {
				var got int
				got, err = w.Write(data[written : written+k])
				m = int64(got)
			}
			written += int(m)
			if err == ErrBlockFull && written == int(size) {
				err = nil
			}
		case op < 8:
			err = w.Flush(ctx)
		case op < 9:
			if err = w.Sync(ctx); err == nil {
				synced = written
			}
		default:
			done, stop := context.WithCancel(ctx)
			stop()
			if err = w.Flush(done); errors.Is(err, context.Canceled) {
				err = w.Err()
			}
		}
		if err != nil {
			break
		}
		if acked := w.Acked(); acked > int64(written) {
			return fmt.Errorf("%d acked of %d written", acked, written)
		}
	}
	aborted := err == nil && rng.IntN(10) == 0
	if aborted {
		w.Abort()
		err = w.Err()
	} else if cerr := w.Close(); err == nil {
		err = cerr
	}
	others.Wait()
	if serr := <-served; errors.Is(serr, errRule) {
		return serr
	}
	if n.err != nil {
		return n.err
	}
	acked := w.Acked()
	if acked > int64(len(n.block)) || !bytes.Equal(n.block, data[:len(n.block)]) {
		return fmt.Errorf("%d bytes arrived, %d acked, %d written; equal %v", len(n.block), acked, written, bytes.Equal(n.block, data[:min(len(n.block), len(data))]))
	}
	var format *FormatError
	mayFail := fault == faultCancel || !recovering && (hits > 0 || fault == faultCut || fault == faultShort)
	switch {
	case err != nil && strings.Contains(err.Error(), "gave up after 5") && recovering && times > 5:
	case err != nil && !aborted && !mayFail:
		return fmt.Errorf("fault %d at %d, recovering %v: %w", fault, at, recovering, err)
	case err == nil && (len(n.block) != written || !n.final || n.synced < synced):
		return fmt.Errorf("closed, but %d of %d arrived, final %v, synced %d of %d", len(n.block), written, n.final, n.synced, synced)
	case err == nil && !recovering && hits > 0:
		return fmt.Errorf("fault %d at %d has not been noticed", fault, at)
	case (fault == faultReordered || fault == faultRepeated) && hits > 0 && !recovering && !errors.As(err, &format) && !errors.Is(err, ErrAborted):
		return fmt.Errorf("an ack out of order gave %w", err)
	case err != nil && n.final && fault != faultReordered && fault != faultRepeated:
		if int(acked) != len(n.block) {
			return fmt.Errorf("final after %w", err)
		}
	}
	var we *WriteError
	if err != nil && (!errors.As(err, &we) || we.Acked > acked) {
		return fmt.Errorf("error %T: %w", err, err)
	}
	return nil
}

type shortReader struct {
	rng *rand.Rand
	b   []byte
}

func (r *shortReader) Read(p []byte) (int, error) {
	if len(r.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), 1+r.rng.IntN(100000))], r.b)
	r.b = r.b[n:]
	return n, nil
}

// Damage on the way gets an error that names the place and the checksums.
func TestWriterChecksumError(t *testing.T) {
	checkLeaks(t, nil)
	n := &node{}
	conn, served := dial(t, "tcp", n.serve)
	damage := &countingConn{Conn: conn, damage: func(n int, p []byte) {
		if n == 2 {
			p[len(p)-1] ^= 0x10
		}
	}}
	w, err := NewWriter(deadline(t), damage, createRequest(1<<20), WriterConfig{Nodes: []string{"10.0.0.1:9866"}, StreamConfig: StreamConfig{PacketSize: 65536}})
	if err != nil {
		t.Fatal(err)
	}
	data := pattern(200000, 1)
	w.Write(data)
	err = w.Close()
	var ack *AckError
	var we *WriteError
	if !errors.As(err, &ack) || !errors.As(err, &we) {
		t.Fatalf("%T %v", err, err)
	}
	sums := crc.Chunks{}.Append(nil, data[64512:2*64512])
	if ack.Status != ErrorChecksum || ack.Offset != 64512 || ack.Seqno != 1 || ack.Err != nil || ack.Length != 64512 || !bytes.Equal(ack.Sums, sums) ||
		!strings.Contains(err.Error(), "damaged on the way") || !strings.Contains(err.Error(), fmt.Sprintf("%x", sums[:4])) || !strings.Contains(err.Error(), "10.0.0.1:9866") {
		t.Error(err)
	}
	if w.Acked() != 64512 || we.Acked != 64512 || we.Node != 0 {
		t.Errorf("acked %d, %+v", w.Acked(), we)
	}
	<-served
	if n.final || !bytes.Equal(n.block, data[:64512]) {
		t.Errorf("final %v, %d bytes", n.final, len(n.block))
	}
}

// Damage in the writer's memory is told apart.
func TestWriterMemoryDamage(t *testing.T) {
	checkLeaks(t, nil)
	n := &node{}
	conn, served := dial(t, "tcp", n.serve)
	w, err := NewWriter(deadline(t), conn, createRequest(1<<20), WriterConfig{
		Recover: func(context.Context, *WriteError) (io.ReadWriteCloser, WriteBlock, error) {
			t.Error("recovered from damaged memory")
			return nil, WriteBlock{}, io.EOF
		}})
	if err != nil {
		t.Fatal(err)
	}
	data := pattern(2000, 1)
	w.Write(data)
	w.cur.mem[w.cur.dataAt+513] ^= 1
	err = w.Close()
	var bad *crc.MismatchError
	if !errors.As(err, &bad) || bad.Offset != 512 || bad.Expected != crc.Checksum(crc.CRC32C, data[512:1024]) || !strings.Contains(err.Error(), "in memory") {
		t.Error(err)
	}
	<-served
}

func TestWriterRefused(t *testing.T) {
	checkLeaks(t, nil)
	n := &node{response: &BlockOpResponse{Status: Error, FirstBadLink: "127.0.0.1:9866", HasFirstBadLink: true, Message: "no"}}
	conn, served := dial(t, "tcp", n.serve)
	_, err := NewWriter(deadline(t), conn, createRequest(1), WriterConfig{})
	var op *OpError
	if !errors.As(err, &op) || op.Status != Error || op.FirstBadLink != "127.0.0.1:9866" || op.Message != "no" {
		t.Error(err)
	}
	<-served
	conn, served = dial(t, "tcp", func(c io.ReadWriteCloser) error { return c.Close() })
	if _, err = NewWriter(deadline(t), conn, createRequest(1), WriterConfig{}); err == nil {
		t.Error("a closed connection opened a stream")
	}
	<-served
	conn, served = dial(t, "tcp", func(c io.ReadWriteCloser) error { io.Copy(io.Discard, c); return nil })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err = NewWriter(ctx, conn, createRequest(1), WriterConfig{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	<-served
}

// A node that takes packets and never acks holds the writer at its bound; a
// cancelled Flush leaves the stream usable, and the stream's own context
// wakes everyone.
func TestWriterBoundAndCancel(t *testing.T) {
	checkLeaks(t, nil)
	release := make(chan struct{})
	n := &node{behave: func(i int, h Header) action {
		if i == 0 {
			<-release
		}
		return action{}
	}}
	conn, served := dial(t, "tcp", n.serve)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w, err := NewWriter(ctx, conn, createRequest(128<<20), WriterConfig{StreamConfig: StreamConfig{PacketSize: 65536, InFlight: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	short, stop := context.WithTimeout(ctx, 5*time.Millisecond)
	w.Write(make([]byte, 100))
	if err := w.Flush(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	stop()
	wrote := make(chan error, 1)
	go func() {
		_, err := w.Write(make([]byte, 8<<20))
		wrote <- err
	}()
	waitFor(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.roomFor > 0 })
	w.mu.Lock()
	inFlight := w.inFlight
	w.mu.Unlock()
	if inFlight > 1<<20 {
		t.Errorf("%d bytes in flight", inFlight)
	}
	close(release)
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := w.Flush(context.Background()); !errors.Is(err, context.Canceled) {
		waitFor(t, func() bool { return w.Err() != nil })
		if err := w.Flush(context.Background()); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if err := w.Close(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-served
	if n.final {
		t.Error("a cancelled block is final")
	}
}

func waitFor(t testing.TB, f func() bool) {
	t.Helper()
	for range 5000 {
		if f() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("waited in vain")
}

func TestWriterHeartbeats(t *testing.T) {
	checkLeaks(t, nil)
	// The pool is exhausted: heartbeats need no buffer.
	pool := NewPool(PoolConfig{Bytes: buffer64k})
	n := &node{}
	conn, served := dial(t, "tcp", n.serve)
	w, err := NewWriter(deadline(t), conn, createRequest(1<<20), WriterConfig{Timeout: 20 * time.Millisecond, StreamConfig: StreamConfig{Pool: pool}})
	if err != nil {
		t.Fatal(err)
	}
	w.Write(make([]byte, 100))
	waitFor(t, func() bool { return w.Stats().Heartbeats >= 3 })
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	beats := 0
	for _, h := range n.headers {
		if h == (Header{Seqno: -1}) {
			beats++
		}
	}
	if beats < 3 || len(n.block) != 100 {
		t.Errorf("%d heartbeats arrived", beats)
	}
}

// A node that stops answering is noticed, heartbeats or not.
func TestWriterDeadPeer(t *testing.T) {
	checkLeaks(t, nil)
	conn, served := dial(t, "tcp", func(c io.ReadWriteCloser) error {
		defer c.Close()
		ok := BlockOpResponse{HasFirstBadLink: true}
		c.Write(ok.Append(nil))
		io.Copy(io.Discard, c)
		return nil
	})
	w, err := NewWriter(deadline(t), hastyConn{conn}, createRequest(1<<20), WriterConfig{Timeout: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	w.Write(make([]byte, 100))
	if err := w.Close(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	<-served
}

// A hastyConn does not wait for seconds.
type hastyConn struct{ net.Conn }

func (c hastyConn) SetReadDeadline(t time.Time) error {
	return c.Conn.SetReadDeadline(t.Add(-5 * time.Second).Add(100 * time.Millisecond))
}

// What is not acked when a pipeline fails is sent again as it was, byte for
// byte, and then what was still to be sent.
func TestWriterSendsAgainUnchanged(t *testing.T) {
	checkLeaks(t, nil)
	const acked = 3 // packets, if the writer still hears of all
	dropped := false
	n := &node{behave: func(_ int, h Header) action {
		drop := h.Seqno == acked && !dropped
		dropped = dropped || drop
		return action{drop: drop}
	}}
	conn, served := dial(t, "tcp", n.serve)
	first, second := &teeConn{Conn: conn}, &teeConn{}
	w, err := NewWriter(deadline(t), first, createRequest(1<<20), WriterConfig{
		StreamConfig: StreamConfig{PacketSize: 65536},
		Recover: func(_ context.Context, f *WriteError) (io.ReadWriteCloser, WriteBlock, error) {
			<-served
			req := createRequest(1 << 20)
			req.Stage, req.LatestStamp = SetupStreamingRecovery, f.Block.Stamp+1
			req.MinBytesRcvd, req.MaxBytesRcvd = f.Acked, f.Sent
			second.Conn, served = dial(t, "tcp", n.serve)
			return second, req, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	first.take() // the request
	data := pattern(500000, 1)
	w.Write(data[:400100])
	if err := w.Sync(deadline(t)); err != nil {
		t.Fatal(err)
	}
	w.Write(data[400100:])
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil || !dropped || !bytes.Equal(n.block, data) || w.Block().Stamp != 1002 {
		t.Fatalf("%d bytes, stamp %d, %v", len(n.block), w.Block().Stamp, err)
	}
	again := second.take()
	at := bytes.Index(again, first.out[acked*(31+126*516):][:31]) // behind the request
	if at < 0 {
		t.Fatal("the packet that was not acked does not come again")
	}
	rest := first.out[acked*(31+126*516):]
	if !bytes.HasPrefix(again[at:], rest) {
		t.Errorf("%d bytes were sent again, and not as before", len(rest))
	}
}

func TestBackoff(t *testing.T) {
	const s = time.Second
	for _, v := range []struct {
		last   time.Duration
		random float64
		want   time.Duration
	}{{0, 0, 0}, {0, .5, 5 * s / 2}, {1 * s, 0, 3 * s}, {1 * s, .5, 4 * s}, {4 * s, 0, 5 * s}, {4 * s, .5, 17 * s / 2}, {40 * s, .999, 50 * s}, {50 * s, 0, 5 * s}} {
		if got := backoff(v.last, 5*s, v.random); got != v.want {
			t.Errorf("after %v, %v: %v, want %v", v.last, v.random, got, v.want)
		}
	}
}

// While a datanode is congested nothing but heartbeats goes out, and who waits
// can be stopped.
func TestWriterPausesWhenCongested(t *testing.T) {
	checkLeaks(t, nil)
	n := &node{behave: func(int, Header) action { return action{ecn: 3} }}
	conn, served := dial(t, "tcp", n.serve)
	w, err := NewWriter(deadline(t), conn, createRequest(1<<20), WriterConfig{Timeout: 20 * time.Millisecond, Backoff: 1 << 20 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	w.Write(make([]byte, 100))
	if err := w.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	w.Write(make([]byte, 100))
	ctx, cancel := context.WithCancel(context.Background())
	flushed := make(chan error, 1)
	go func() { flushed <- w.Flush(ctx) }()
	waitFor(t, func() bool { s := w.Stats(); return s.Backoffs == 1 && s.Heartbeats >= 3 })
	cancel()
	if err := <-flushed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	w.Abort()
	<-served
	if len(n.block) != 100 || w.Acked() != 100 {
		t.Errorf("%d bytes arrived", len(n.block))
	}
}

// Congestion that ends costs time and nothing else.
func TestWriterCongestion(t *testing.T) {
	checkLeaks(t, nil)
	n := &node{behave: func(i int, _ Header) action { return action{ecn: uint32(i % 4)} }} // disabled, supported, supported, congested
	conn, served := dial(t, "tcp", n.serve)
	w, err := NewWriter(deadline(t), conn, createRequest(4<<20), WriterConfig{Backoff: time.Millisecond, StreamConfig: StreamConfig{PacketSize: 65536, InFlight: 1 << 18}})
	if err != nil {
		t.Fatal(err)
	}
	data := pattern(4<<20, 1)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil || !bytes.Equal(n.block, data) || w.Stats().Backoffs == 0 {
		t.Errorf("%d bytes, %d pauses, %v", len(n.block), w.Stats().Backoffs, err)
	}
}

func TestWriterGivesUp(t *testing.T) {
	checkLeaks(t, nil)
	serve := func(c io.ReadWriteCloser) error {
		n := &node{behave: func(int, Header) action { return action{status: Error} }}
		return n.serve(c)
	}
	recoveries := 0
	conn, _ := dial(t, "tcp", serve)
	w, err := NewWriter(deadline(t), conn, createRequest(1<<20), WriterConfig{
		Recover: func(_ context.Context, f *WriteError) (io.ReadWriteCloser, WriteBlock, error) {
			recoveries++
			conn, _ := dial(t, "tcp", serve)
			return conn, createRequest(1 << 20), nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	w.Write(make([]byte, 1000))
	var ack *AckError
	if err := w.Close(); !errors.As(err, &ack) || !strings.Contains(err.Error(), "gave up after 5") {
		t.Error(err)
	}
	if recoveries != 5 {
		t.Errorf("%d recoveries", recoveries)
	}
}

// One goroutine writes, others flush, sync and at last close.
func TestWriterConcurrentFlush(t *testing.T) {
	checkLeaks(t, nil)
	n := &node{}
	conn, served := dial(t, "tcp", n.serve)
	w, err := NewWriter(deadline(t), conn, createRequest(64<<20), WriterConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				f := w.Flush
				if i == 0 {
					f = w.Sync
				}
				if err := f(context.Background()); err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	data := pattern(3<<20, 2)
	for i := 0; i < len(data); i += 3000 {
		if _, err := w.Write(data[i:min(i+3000, len(data))]); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	if err := <-served; err != nil || !bytes.Equal(n.block, data) {
		t.Fatal(err)
	}
}

// Open, write, kill, close, again and again: afterwards everything is back
// (HDFS-7276, HDFS-7358).
func TestWriterLeaks(t *testing.T) {
	pool := NewPool(PoolConfig{Bytes: 20 * buffer64k})
	checkLeaks(t, pool)
	count, seed := programs(t)
	rng := rand.New(rand.NewPCG(seed, 2))
	for i := range max(300, count/2) {
		n := &node{behave: func(k int, h Header) action { return action{drop: k == i%5, before: i%2 == 0} }}
		conn, served := dial(t, "pipe", n.serve)
		ctx, cancel := context.WithCancel(context.Background())
		w, err := NewWriter(ctx, conn, createRequest(1<<20), WriterConfig{StreamConfig: StreamConfig{Pool: pool, PacketSize: 65536}})
		if err != nil {
			t.Fatal(err)
		}
		w.Write(make([]byte, rng.IntN(400000)))
		switch rng.IntN(4) {
		case 0:
			w.Abort()
		case 1:
			cancel()
			w.Close()
		case 2:
			w.Close()
			w.Abort()
		case 3:
			conn.Close()
			w.Close()
		}
		cancel()
		<-served
	}
	if s := pool.Stats(); s.InUse != 0 || s.Idle > 20*buffer64k {
		t.Errorf("%+v", s)
	}
	var all []*Reservation
	for range 20 {
		r, err := pool.Reserve(deadline(t), "again", buffer64k)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	for _, r := range all {
		r.Close()
	}
}

func TestStreamSizes(t *testing.T) {
	ctx := deadline(t)
	for _, v := range []struct {
		cfg  StreamConfig
		want int
	}{
		{StreamConfig{}, 126}, {StreamConfig{BufferHint: 1}, 126}, {StreamConfig{BufferHint: 65537}, 253}, {StreamConfig{BufferHint: 1 << 20}, 2032},
		{StreamConfig{BufferHint: 1 << 30}, 2032}, {StreamConfig{PacketSize: 65536}, 126}, {StreamConfig{PacketSize: 1056252}, 2046},
		{StreamConfig{PacketSize: 1 << 30}, 32513}, {StreamConfig{PacketSize: 1}, 1}, {StreamConfig{PacketSize: 1 << 30, MaxPacketLen: 65536}, 126},
		{StreamConfig{Chunks: crc.Chunks{Size: 16<<20 - 100}}, 1},
	} {
		s, err := NewStream(ctx, v.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if s.full != v.want {
			t.Errorf("%+v: %d chunks, want %d", v.cfg, s.full, v.want)
		}
		s.Close()
	}
	if _, err := NewStream(ctx, StreamConfig{Chunks: crc.Chunks{Size: 16 << 20}}); err == nil {
		t.Error("a chunk of 16 MiB fits into a packet")
	}
	var e *crc.HeaderError
	if _, err := NewStream(ctx, StreamConfig{Chunks: crc.Chunks{Size: -1}}); !errors.As(err, &e) {
		t.Error(err)
	}
}

func TestStreamAdapts(t *testing.T) {
	s, err := NewStream(deadline(t), StreamConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sizes := func(size int) int { return PacketChunks(size, crc.Chunks{}) }
	for range 100 {
		s.queued(true, false, true)
	}
	if s.full != sizes(DefaultInFlight/4) {
		t.Fatalf("grown to %d chunks, more than a quarter of the window", s.full)
	}
	s.resize(minAdaptive)
	s.window.Store(4 << 20)
	for size := 64 << 10; size < 1<<20; size *= 2 {
		if s.full != sizes(size) {
			t.Fatalf("%d chunks, want %d", s.full, sizes(size))
		}
		for range growAfter {
			s.queued(true, false, true)
		}
	}
	for range 100 {
		s.queued(true, false, true)
	}
	if s.full != 2032 {
		t.Fatalf("grown to %d", s.full)
	}
	s.queued(false, false, true)
	if s.full != 2032 {
		t.Fatal("a flush of more than half a packet shrinks")
	}
	for range 10 {
		s.queued(false, true, false)
	}
	if s.full != 126 {
		t.Fatalf("shrunk to %d", s.full)
	}
	for range 100 {
		s.queued(true, false, false)
	}
	if s.full != 126 {
		t.Fatal("grows when nothing is under way")
	}
	// The tail: one chunk more than a packet goes with it, an eighth does not.
	for rest, want := range map[int64]int{1: 1, 512: 1, 513: 2, 126 * 512: 126, 127 * 512: 127, 140 * 512: 140, 141 * 512: 126, 1 << 40: 126} {
		if got, _ := s.next(rest); got != want {
			t.Errorf("%d bytes remain: %d chunks, want %d", rest, got, want)
		}
	}
}

func TestStreamWindow(t *testing.T) {
	s, err := NewStream(deadline(t), StreamConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	rtt := 80 * time.Millisecond
	// Acks that come together after a stall are no fast path.
	s.acked(DefaultInFlight, 4*rtt, rtt)
	// As long as the window caps the rate it doubles.
	for want := int64(DefaultInFlight); want < DefaultMaxInFlight; want *= 2 {
		if got := s.window.Load(); got != want {
			t.Fatalf("window %d, want %d", got, want)
		}
		s.acked(want, rtt, rtt)
	}
	s.acked(1<<40, rtt, rtt)
	if s.window.Load() != DefaultMaxInFlight {
		t.Error(s.window.Load())
	}
	small, err := NewStream(deadline(t), StreamConfig{MaxInFlight: 300 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	small.acked(1<<40, rtt, rtt)
	if small.window.Load() != 300<<10 {
		t.Errorf("window %d", small.window.Load())
	}
	fixed, err := NewStream(deadline(t), StreamConfig{InFlight: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer fixed.Close()
	fixed.acked(1<<40, rtt, rtt)
	if fixed.window.Load() != 1<<20 || !fixed.room(3<<20, 1<<20) || fixed.room(1<<20, 1000) {
		t.Error("a fixed window")
	}
}

// The sender fills its window without waiting for an ack: so a long path does
// not cap it below window / round trip.
func TestWriterFillsWindow(t *testing.T) {
	checkLeaks(t, nil)
	const window = 2 << 20
	full := make(chan struct{})
	conn, served := dial(t, "tcp", func(c io.ReadWriteCloser) error {
		defer c.Close()
		in := bufio.NewReader(c)
		if _, err := ReadRequest(in, 0); err != nil {
			return err
		}
		ok := BlockOpResponse{HasFirstBadLink: true}
		c.Write(ok.Append(nil))
		rec := NewReceiver(in, 0)
		var acks []byte
		got := 0
		for {
			h, sumsLen, err := rec.Next()
			if err != nil {
				return err
			}
			rec.Body(make([]byte, sumsLen+h.DataLen))
			got += h.len() + sumsLen + h.DataLen
			a := Ack{Seqno: h.Seqno, Replies: []Status{Success}}
			acks = a.Append(acks)
			if got > window-65536 {
				if got < 2*window {
					close(full)
					got = 2 * window
				}
				c.Write(acks)
				acks = acks[:0]
			}
			if h.Last {
				return nil
			}
		}
	})
	w, err := NewWriter(deadline(t), conn, createRequest(128<<20), WriterConfig{StreamConfig: StreamConfig{PacketSize: 65536, InFlight: window}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 2*window)); err != nil {
		t.Fatal(err)
	}
	<-full
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil {
		t.Fatal(err)
	}
}

// On a path with a round trip of 80 ms the window grows, and what is in flight
// with it.
func TestWriterLongPath(t *testing.T) {
	checkLeaks(t, nil)
	n := &node{}
	far, served := dial(t, "tcp", func(c io.ReadWriteCloser) error { return n.discard(c) })
	near, other := net.Pipe()
	path := delay(other, far, 40*time.Millisecond)
	w, err := NewWriter(deadline(t), near, createRequest(1<<40), WriterConfig{})
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 1<<20)
	for inFlight := int64(0); inFlight <= 8*DefaultInFlight; {
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		inFlight = w.inFlight
		w.mu.Unlock()
	}
	if s := w.Stats(); s.RTT < 80*time.Millisecond || s.Window <= 8*DefaultInFlight || s.Window > DefaultMaxInFlight {
		t.Errorf("%+v", s)
	}
	if err := w.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	w.Abort()
	path.Wait()
	<-served
}

// delay passes on what comes from a and b, each piece so much later.
func delay(a, b net.Conn, after time.Duration) *sync.WaitGroup {
	type piece struct {
		at time.Time
		b  []byte
	}
	var wg sync.WaitGroup
	pass := func(to, from net.Conn) {
		pieces := make(chan piece, 1<<16)
		wg.Add(2)
		go func() {
			defer wg.Done()
			defer close(pieces)
			for {
				b := make([]byte, 64<<10)
				n, err := from.Read(b)
				if err != nil {
					return
				}
				pieces <- piece{time.Now().Add(after), b[:n]}
			}
		}()
		go func() {
			defer wg.Done()
			defer to.Close()
			for p := range pieces {
				time.Sleep(time.Until(p.at))
				to.Write(p.b)
			}
		}()
	}
	pass(a, b)
	pass(b, a)
	return &wg
}

func TestWriterAllocations(t *testing.T) {
	n := &node{}
	conn, served := dial(t, "tcp", func(c io.ReadWriteCloser) error { return n.discard(c) })
	w, err := NewWriter(deadline(t), conn, createRequest(1<<40), WriterConfig{StreamConfig: StreamConfig{PacketSize: 65536}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { w.Abort(); <-served }()
	ctx := deadline(t)
	data := make([]byte, 100000)
	for range 200 {
		w.Write(data)
		w.Flush(ctx)
	}
	allocs := testing.AllocsPerRun(200, func() {
		w.Write(data)
		if err := w.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 0.1 {
		t.Errorf("%v allocations for two packets and a flush", allocs)
	}
}

// discard acks everything, without keeping it and without allocating.
func (n *node) discard(c io.ReadWriteCloser) error {
	defer c.Close()
	ok := BlockOpResponse{HasFirstBadLink: true}
	rec := NewReceiver(c, 0)
	one := make([]byte, 1)
	req := createRequest(1 << 40)
	req.Checksum = ChecksumOf(crc.Chunks{})
	for range len(req.Append(nil)) {
		if _, err := c.Read(one); err != nil {
			return err
		}
	}
	c.Write(ok.Append(nil))
	buf := make([]byte, 2<<20)
	out := make([]byte, 0, 100)
	a := Ack{Replies: []Status{0}, Flags: []uint32{0}}
	for {
		h, _, err := rec.Next()
		if err != nil {
			return err
		}
		if _, _, err := rec.Body(buf); err != nil {
			return err
		}
		a.Seqno = h.Seqno
		if _, err := c.Write(a.Append(out)); err != nil {
			return err
		}
	}
}
