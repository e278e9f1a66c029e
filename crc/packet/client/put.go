package client

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/minio/sha256-simd"
	"golang.org/x/time/rate"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/stripedcounter"
)

// DefaultBlockSize is HDFS's dfs.blocksize in bytes.
const DefaultBlockSize = 128 << 20

// firstStamp is the generation stamp that HDFS gives the first block.
const firstStamp = 1001

// A PutConfig configures [Put]. Its zero value is HDFS's default, with packets
// that adapt to the stream.
type PutConfig struct {
	Pool    string // block pool id; "" means a random one
	FirstID int64  // id of the first block, the others follow it; 0 means a random one

	Chunks     crc.Chunks // how the data is checksummed
	BlockSize  int64      // bytes, a multiple of the chunk size; 0 means DefaultBlockSize
	PacketSize int        // as packet.StreamConfig has it
	BufferHint int        // as packet.StreamConfig has it
	InFlight   int64      // as packet.StreamConfig has it

	// Size is what r yields in bytes, if that is known. Then a block's pipeline
	// is opened while the block before it is being written, so that there is no
	// pause between them.
	Size int64

	Sync       bool   // every block is durable when it is finalized
	SHA256     bool   // compute an SHA-256 of the whole stream
	Rate       int64  // bytes per second at most; 0 means no limit
	ClientName string // in requests; "" means "blockpath"

	Timeout time.Duration // of the sockets; 0 means packet.DefaultTimeout

	// Recover, if set, is asked for what is left of a block's pipeline when it
	// fails: the datanodes to go on with, and a generation stamp above
	// failure.Block's. What is not acknowledged is sent again. [WithoutBadNode]
	// is such a function. nil means that every failure is final.
	Recover func(ctx context.Context, to []string, failure *packet.WriteError) (rest []string, stamp int64, err error)

	Statistics *stripedcounter.Set // of packet.NewStatistics, shared by any Puts; nil: none

	// Progress, if set, is told of every piece of the file that has been read.
	Progress func(bytes int64)
}

// Stats say what a transfer took.
type Stats struct {
	Bytes      int64 // of the file
	Blocks     int
	Packets    int64 // sent, those without data included
	Wire       int64 // bytes sent, headers and checksums included
	Writes     int64 // calls of the sockets' Write
	Recoveries int64 // pipelines that were rebuilt
}

// A PutError reports a file that could not be put. The blocks before Block are
// complete, and Acked bytes of it are on the datanodes.
type PutError struct {
	Name   string
	Offset int64 // in the file, of the block
	Block  packet.Block
	Acked  int64
	Err    error // *packet.WriteError, *packet.OpError, or of the connection or context
}

func (e *PutError) Error() string {
	return fmt.Sprintf("client: putting %s: block %v at offset %d, %d bytes acknowledged: %v", e.Name, e.Block, e.Offset, e.Acked, e.Err)
}

// Unwrap returns Err.
func (e *PutError) Unwrap() error { return e.Err }

// A ConfigError reports a configuration that cannot be used.
type ConfigError struct {
	Field string
	Want  string
	Got   any
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("client: %s is %v, want %s", e.Field, e.Got, e.Want)
}

// RandomPool returns a block pool id that nobody else uses, BP- with a random
// number, an address and the time in milliseconds, as HDFS makes them.
func RandomPool() string {
	return fmt.Sprintf("BP-%d-127.0.0.1-%d", randomID()>>32, time.Now().UnixMilli())
}

// randomID returns a random number with room above it for the ids of a file's
// blocks, above those that HDFS hands out first.
func randomID() int64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return int64(binary.LittleEndian.Uint64(b[:])>>2)&^0xFFFFFF | 1<<40
}

// Put streams what r yields to the pipeline of datanodes at the addresses in to,
// as blocks, and returns what a manifest says of the file called name. It holds
// packets in memory, never a block, and sets up the next block's pipeline while
// the last acks of a block are under way.
//
// An error of a datanode, a connection or the context is a *[PutError]; one of r
// is returned as it is.
func Put(ctx context.Context, r io.Reader, name string, to []string, cfg PutConfig) (File, Stats, error) {
	if err := cfg.setDefaults(to); err != nil {
		return File{}, Stats{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	behind, err := targets(ctx, to[1:])
	if err != nil {
		return File{}, Stats{}, err
	}
	stream, err := packet.NewStream(ctx, packet.StreamConfig{
		Name: name, Chunks: cfg.Chunks, PacketSize: cfg.PacketSize, BufferHint: cfg.BufferHint, Statistics: cfg.Statistics, InFlight: cfg.InFlight,
	})
	if err != nil {
		return File{}, Stats{}, err
	}
	defer stream.Close()

	in := newMeter(ctx, cfg.Rate, cfg.Progress)
	in.r = r
	if cfg.SHA256 {
		in.hash = sha256.New()
	}
	p := &putter{cfg: cfg, ctx: ctx, to: to, behind: behind, stream: stream, in: in, file: File{Name: name, Blocks: []Block{}}}
	err = p.run()
	if waitErr := p.wait(); err == nil {
		err = waitErr
	}
	cancel()
	p.dropAhead()
	if err != nil {
		return File{}, p.stats, err
	}
	if in.hash != nil {
		p.file.SHA256 = hex.EncodeToString(in.hash.Sum(nil))
	}
	p.finish()
	return p.file, p.stats, nil
}

func (cfg *PutConfig) setDefaults(to []string) error {
	if len(to) == 0 {
		return &ConfigError{"number of datanodes", "at least 1", 0}
	}
	if cfg.BlockSize == 0 {
		cfg.BlockSize = DefaultBlockSize
	}
	if cfg.Chunks.Size < 0 || cfg.Chunks.Size > crc.MaxChunkSize {
		return &ConfigError{"bytes per checksum", fmt.Sprintf("1..%d", crc.MaxChunkSize), cfg.Chunks.Size}
	}
	if bpc := int64(cfg.Chunks.BytesPerChunk()); cfg.BlockSize < 0 || cfg.BlockSize%bpc != 0 {
		return &ConfigError{"block size", fmt.Sprintf("a multiple of the chunk size, %d", bpc), cfg.BlockSize}
	}
	if cfg.Pool == "" {
		cfg.Pool = RandomPool()
	}
	if cfg.FirstID == 0 {
		cfg.FirstID = randomID()
	}
	if cfg.ClientName == "" {
		cfg.ClientName = "blockpath"
	}
	return nil
}

// A putter is a Put under way.
type putter struct {
	cfg    PutConfig
	ctx    context.Context
	to     []string
	behind []packet.DatanodeInfo
	stream *packet.Stream
	in     *meter

	file  File
	sums  []crc.BlockSum
	stats Stats

	closing chan error // the block before the current one, while its last acks are under way
	last    *putBlock  // that block
	ahead   *putBlock  // the next one, while its pipeline is being opened
}

// A putBlock is a block that is being put.
type putBlock struct {
	w      *packet.Writer
	block  packet.Block
	summer *crc.BlockSummer
	offset int64      // in the file
	opened chan error // what came of opening its pipeline
}

func (p *putter) run() error {
	for {
		// A block is made only for data.
		var first [1]byte
		if _, err := io.ReadFull(p.in, first[:]); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		b := p.ahead
		if b == nil {
			b = p.start(p.stats.Blocks)
		}
		p.ahead = nil
		if err := <-b.opened; err != nil {
			return p.failed(b, err)
		}
		source := &trigger{r: p.in}
		if next := b.offset + p.cfg.BlockSize; next < p.cfg.Size {
			source.left, source.f = p.cfg.BlockSize/2, func() { p.ahead = p.start(p.stats.Blocks + 1) }
		}
		n, err := b.w.Write(first[:])
		if err == nil {
			var more int64
			more, err = b.w.ReadFrom(source)
			n += int(more)
		}
		full := errors.Is(err, packet.ErrBlockFull)
		if err != nil && !full {
			broken := b.w.Err() != nil
			b.w.Abort()
			p.count(b)
			if broken {
				return p.failed(b, err)
			}
			return err // of the file that is read
		}
		p.stats.Bytes += int64(n)
		p.stats.Blocks++
		if err := p.wait(); err != nil {
			b.w.Abort()
			return err
		}
		p.last, p.closing = b, make(chan error, 1)
		go func() { p.closing <- b.w.Close() }()
		if !full {
			return nil
		}
	}
}

// start begins to open the pipeline of the i-th block.
func (p *putter) start(i int) *putBlock {
	b := &putBlock{
		summer: crc.NewBlockSummer(p.cfg.Chunks),
		offset: int64(i) * p.cfg.BlockSize,
		block: packet.Block{
			Pool: p.cfg.Pool, ID: p.cfg.FirstID + int64(i), Stamp: firstStamp, NumBytes: p.cfg.BlockSize,
		},
		opened: make(chan error, 1),
	}
	go func() { b.opened <- p.open(b) }()
	return b
}

// dropAhead gives up a pipeline that was opened for a block that did not come.
func (p *putter) dropAhead() {
	if p.ahead == nil {
		return
	}
	if err := <-p.ahead.opened; err == nil {
		p.ahead.w.Abort()
	}
}

// open opens a block's pipeline.
func (p *putter) open(b *putBlock) error {
	conn, err := Dial(p.ctx, p.to[0])
	if err != nil {
		return err
	}
	request := packet.WriteBlock{
		Block: b.block, ClientName: p.cfg.ClientName, Stage: packet.SetupCreate,
		PipelineSize: uint32(len(p.to)), Targets: p.behind,
	}
	cfg := packet.WriterConfig{Stream: p.stream, Nodes: p.to, SyncOnClose: p.cfg.Sync, Timeout: p.cfg.Timeout}
	if p.cfg.Chunks.Kind != crc.None {
		cfg.Sums = b.summer.Add
	}
	if p.cfg.Recover != nil {
		to := p.to
		cfg.Recover = func(ctx context.Context, failure *packet.WriteError) (io.ReadWriteCloser, packet.WriteBlock, error) {
			for {
				rest, stamp, err := p.cfg.Recover(ctx, to, failure)
				if err != nil {
					return nil, packet.WriteBlock{}, err
				}
				to = rest
				conn, request, err := p.reopen(ctx, to, stamp, failure)
				if err == nil || ctx.Err() != nil {
					return conn, request, err
				}
				next := *failure
				next.Node, next.Err = 0, err
				failure = &next
			}
		}
	}
	b.w, err = packet.NewWriter(p.ctx, conn, request, cfg)
	return err
}

// reopen connects to a pipeline that goes on with a block.
func (p *putter) reopen(ctx context.Context, to []string, stamp int64, failure *packet.WriteError) (io.ReadWriteCloser, packet.WriteBlock, error) {
	if len(to) == 0 {
		return nil, packet.WriteBlock{}, &ConfigError{"number of datanodes", "at least 1", 0}
	}
	behind, err := targets(ctx, to[1:])
	if err != nil {
		return nil, packet.WriteBlock{}, err
	}
	request := packet.WriteBlock{
		Block: failure.Block, ClientName: p.cfg.ClientName, Stage: packet.SetupStreamingRecovery,
		PipelineSize: uint32(len(to)), Targets: behind,
		MinBytesRcvd: failure.Acked, MaxBytesRcvd: failure.Sent, LatestStamp: stamp,
	}
	request.Block.NumBytes = p.cfg.BlockSize
	if failure.Closing {
		request.Stage = packet.PipelineCloseRecovery
	}
	conn, err := Dial(ctx, to[0])
	return conn, request, err
}

// restartTimeout is Hadoop's dfs.client.datanode-restart.timeout.
const restartTimeout = 30 * time.Second

// WithoutBadNode yields the pipeline without the datanode that is to blame for
// a failure: the one that is named, else the first, to which the connection
// was. A pipeline of one, whose connection was lost, is tried again; if the
// datanode has said that it restarts, it gets 30 s to do so. The new generation
// stamp is the next one. It is for [PutConfig.Recover].
func WithoutBadNode(ctx context.Context, to []string, failure *packet.WriteError) (rest []string, stamp int64, err error) {
	bad := failure.Node
	var ack *packet.AckError
	switch {
	case len(to) == 1 && errors.As(failure, &ack) && ack.Status == packet.OOBRestart:
		if err := awaitRestart(ctx, to[0]); err != nil {
			return nil, 0, fmt.Errorf("client: %w, after: %w", err, failure)
		}
		rest = to
	case len(to) == 1 && bad >= 0, bad >= len(to):
		return nil, 0, fmt.Errorf("client: no datanode is left: %w", failure)
	case len(to) == 1:
		rest = to
	default:
		bad = max(bad, 0)
		rest = append(append(rest, to[:bad]...), to[bad+1:]...)
	}
	return rest, failure.Block.Stamp + 1, nil
}

// awaitRestart waits until a datanode accepts connections.
func awaitRestart(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, restartTimeout)
	defer cancel()
	for {
		conn, err := Dial(ctx, addr)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// A trigger calls f once when left bytes have been read.
type trigger struct {
	r    io.Reader
	left int64
	f    func()
}

func (t *trigger) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if t.left -= int64(n); t.left <= 0 && t.f != nil {
		t.f()
		t.f = nil
	}
	return n, err
}

// wait waits for the block that is being closed.
func (p *putter) wait() error {
	if p.closing == nil {
		return nil
	}
	err := <-p.closing
	p.closing = nil
	p.count(p.last)
	if err != nil {
		return p.failed(p.last, err)
	}
	length := p.last.w.Acked()
	sum, err := p.last.summer.Sum(length)
	if err != nil {
		return p.failed(p.last, err)
	}
	block := Block{ID: p.last.block.ID, Stamp: p.last.w.Block().Stamp, Length: length}
	if p.cfg.Chunks.Kind != crc.None {
		block.CRC = fmt.Sprintf("%08x", sum.CRC)
	}
	p.sums = append(p.sums, sum)
	p.file.Blocks = append(p.file.Blocks, block)
	p.file.Length += length
	return nil
}

// count adds a block's statistics.
func (p *putter) count(b *putBlock) {
	s := b.w.Stats()
	p.stats.Packets += s.Packets
	p.stats.Wire += s.Wire
	p.stats.Writes += s.Writes
	p.stats.Recoveries += s.Recoveries
}

func (p *putter) failed(b *putBlock, err error) error {
	e := &PutError{Name: p.file.Name, Offset: b.offset, Block: b.block, Err: err}
	if b.w != nil {
		e.Acked = b.w.Acked()
	}
	return e
}

// finish gives the file its checksums.
func (p *putter) finish() {
	if p.cfg.Chunks.Kind == crc.None {
		return
	}
	sum := crc.NewFileSum(p.cfg.Chunks, p.sums)
	p.file.MD5 = fmt.Sprintf("%s:%x", sum.MD5Name(), sum.MD5)
	p.file.Composite = fmt.Sprintf("%s:0x%08x", sum.CompositeName(), sum.CRC)
}

// A meter passes bytes on, as fast as the rate allows, and counts them.
type meter struct {
	r        io.Reader
	w        io.Writer
	ctx      context.Context
	limiter  *rate.Limiter // nil: no limit
	progress func(int64)
	hash     hash.Hash // nil: none
}

// meterStep bounds what passes a limiter at once, so that a low rate is an even
// one.
const meterStep = 64 << 10

func newMeter(ctx context.Context, bytesPerSecond int64, progress func(int64)) *meter {
	m := &meter{ctx: ctx, progress: progress}
	if bytesPerSecond > 0 {
		m.limiter = rate.NewLimiter(rate.Limit(bytesPerSecond), meterStep)
	}
	return m
}

// Read reads from r.
func (m *meter) Read(p []byte) (int, error) {
	if m.limiter != nil {
		p = p[:min(len(p), meterStep)]
	}
	n, err := m.r.Read(p)
	if waitErr := m.passed(p[:n]); waitErr != nil {
		return n, waitErr
	}
	return n, err
}

// Write writes to w.
func (m *meter) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		step := p
		if m.limiter != nil {
			step = p[:min(len(p), meterStep)]
		}
		var k int
		if k, err = m.w.Write(step); err == nil {
			err = m.passed(step)
		}
		n, p = n+k, p[len(step):]
	}
	return n, err
}

func (m *meter) passed(p []byte) error {
	if m.hash != nil {
		m.hash.Write(p)
	}
	if m.progress != nil {
		m.progress(int64(len(p)))
	}
	if m.limiter == nil || len(p) == 0 {
		return nil
	}
	return m.limiter.WaitN(m.ctx, len(p))
}
