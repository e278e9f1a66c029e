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
	"net"
	"slices"
	"strconv"
	"sync"
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
	Pool string // block pool id; "" means a random one

	// FirstID is the id of the first block, which the others follow; 0 means a
	// random one. A block whose pipeline could not be opened gets a further one.
	FirstID int64

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
	// fails, or cannot be opened: the datanodes to go on with, and a generation
	// stamp above failure.Block's. What is not acknowledged is sent again, and the
	// blocks that follow do without the datanodes that were left out.
	// [WithoutBadNode] is such a function. nil means that every failure is final.
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

	Lost []LostNode // the datanodes that a Put went on without
}

// A LostNode is a datanode that was left out of the pipelines from a block on.
type LostNode struct {
	Address string
	Block   packet.Block
	Err     error // *packet.WriteError, the failure it was to blame for
}

// A PutError reports a file that could not be put. The blocks before Block are
// complete, and Acked bytes of it are on the datanodes.
type PutError struct {
	Name   string
	Offset int64 // in the file, of the block
	Block  packet.Block
	Acked  int64
	Lost   []LostNode // before that
	Err    error      // *packet.WriteError, *packet.OpError, or of the connection or context
}

func (e *PutError) Error() string {
	s := fmt.Sprintf("client: putting %s: block %v at offset %d, %d bytes acknowledged", e.Name, e.Block, e.Offset, e.Acked)
	for _, lost := range e.Lost {
		s += fmt.Sprintf(", %s lost in block %d", lost.Address, lost.Block.ID)
	}
	return fmt.Sprintf("%s: %v", s, e.Err)
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
	if _, err := targets(ctx, to[1:]); err != nil {
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
	p := &putter{cfg: cfg, ctx: ctx, blocks: map[*putBlock]bool{}, to: to, nextID: cfg.FirstID, stream: stream, in: in, file: File{Name: name, Blocks: []Block{}}}
	err = p.run()
	if waitErr := p.wait(); err == nil {
		err = waitErr
	}
	cancel()
	p.dropAhead()
	p.mu.Lock()
	p.stats.Lost = p.lost
	p.mu.Unlock()
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
	stream *packet.Stream
	in     *meter

	file  File
	sums  []crc.BlockSum
	stats Stats

	closing chan error // the block before the current one, while its last acks are under way
	last    *putBlock  // that block
	ahead   *putBlock  // the next one, while its pipeline is being opened

	mu     sync.Mutex // what follows
	blocks map[*putBlock]bool
	to     []string // the datanodes of further pipelines
	lost   []LostNode
	nextID int64
}

// A putBlock is a block that is being put.
type putBlock struct {
	w      *packet.Writer
	block  packet.Block
	summer *crc.BlockSummer
	offset int64      // in the file
	to     []string   // the datanodes of its first pipeline
	opened chan error // what came of opening that

	conn  net.Conn // what follows by the putter's mutex: the pipeline, and its datanodes
	nodes []string
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
		block:  packet.Block{Pool: p.cfg.Pool, Stamp: firstStamp, NumBytes: p.cfg.BlockSize},
		opened: make(chan error, 1),
	}
	p.mu.Lock()
	p.blocks[b] = true
	p.mu.Unlock()
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

// maxOpens is how often a pipeline is opened at most, as Hadoop's clients do it
// (dfs.client.block.write.retries and the first time).
const maxOpens = 4

// open opens a block's pipeline. If that is the fault of a datanode it goes on
// without, with another block: the datanodes may have the one that failed.
func (p *putter) open(b *putBlock) error {
	var id int64
	p.mu.Lock()
	b.to = p.to
	p.mu.Unlock()
	for opens := 1; ; opens++ {
		p.mu.Lock()
		id, p.nextID = p.nextID, p.nextID+1
		p.mu.Unlock()
		b.block.ID = id
		err := p.create(b)
		if err == nil || p.cfg.Recover == nil || p.ctx.Err() != nil || opens == maxOpens {
			return err
		}
		bad := 0
		var refused *packet.OpError
		if errors.As(err, &refused) {
			if refused.Status != packet.Error {
				return err // what was asked for is to blame
			}
			bad = p.index(b.to, refused.FirstBadLink)
		}
		failure := p.blame(b.to, &packet.WriteError{Block: b.block, Node: bad, Err: err})
		rest, _, recoverErr := p.cfg.Recover(p.ctx, b.to, failure)
		if recoverErr != nil {
			return recoverErr
		}
		p.drop(b.to, rest, failure)
		b.to = rest
	}
}

// index returns which of the datanodes has a transfer address; the first, if none
// has.
func (p *putter) index(to []string, address string) int {
	behind, _ := targets(p.ctx, to[1:]) // which has not failed before
	for i, d := range behind {
		if address == net.JoinHostPort(d.IPAddr, strconv.FormatUint(uint64(d.XferPort), 10)) {
			return i + 1
		}
	}
	return 0
}

// indexOfLost returns which of the datanodes has been lost, or -1. The caller
// holds p.mu.
func (p *putter) indexOfLost(to []string) int {
	return slices.IndexFunc(to, func(addr string) bool { return !slices.Contains(p.to, addr) })
}

// blame returns a failure as that of a datanode that was lost in another block,
// if there is one in the pipeline.
func (p *putter) blame(to []string, failure *packet.WriteError) *packet.WriteError {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.indexOfLost(to)
	if i < 0 {
		return failure
	}
	blamed := *failure
	blamed.Node = i
	return &blamed
}

// drop notes which datanodes are left out of a pipeline because of a failure, and
// breaks the pipelines of other blocks that have them, which would wait for them.
func (p *putter) drop(to, rest []string, failure *packet.WriteError) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, addr := range to {
		if slices.Contains(rest, addr) || !slices.Contains(p.to, addr) {
			continue
		}
		p.lost = append(p.lost, LostNode{addr, failure.Block, failure})
		p.to = slices.DeleteFunc(slices.Clone(p.to), func(a string) bool { return a == addr })
	}
	for b := range p.blocks {
		if p.indexOfLost(b.nodes) >= 0 {
			b.conn.Close()
		}
	}
}

// create asks for a new block.
func (p *putter) create(b *putBlock) error {
	if len(b.to) == 0 {
		return &ConfigError{"number of datanodes", "at least 1", 0}
	}
	behind, err := targets(p.ctx, b.to[1:])
	if err != nil {
		return err
	}
	conn, err := p.connect(p.ctx, b, b.to)
	if err != nil {
		return err
	}
	b.w, err = packet.NewWriter(p.ctx, conn, packet.WriteBlock{
		Block: b.block, ClientName: p.cfg.ClientName, Stage: packet.SetupCreate,
		PipelineSize: uint32(len(b.to)), Targets: behind,
	}, p.writerConfig(b))
	return err
}

// connect connects to the first of a block's datanodes.
func (p *putter) connect(ctx context.Context, b *putBlock, to []string) (net.Conn, error) {
	conn, err := p.dial(ctx, to[0])
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b.conn, b.nodes = conn, to
	if p.indexOfLost(to) >= 0 {
		conn.Close() // as if it had been there before
	}
	return conn, nil
}

func (p *putter) dial(ctx context.Context, addr string) (net.Conn, error) {
	timeout := p.cfg.Timeout
	if timeout <= 0 {
		timeout = packet.DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return Dial(ctx, addr)
}

func (p *putter) writerConfig(b *putBlock) packet.WriterConfig {
	cfg := packet.WriterConfig{Stream: p.stream, Nodes: b.to, SyncOnClose: p.cfg.Sync, Timeout: p.cfg.Timeout}
	if p.cfg.Chunks.Kind != crc.None {
		cfg.Sums = b.summer.Add
	}
	if p.cfg.Recover == nil {
		return cfg
	}
	to := b.to
	cfg.Recover = func(ctx context.Context, failure *packet.WriteError) (io.ReadWriteCloser, packet.WriteBlock, error) {
		for {
			blamed := p.blame(to, failure)
			rest, stamp, err := p.cfg.Recover(ctx, to, blamed)
			if err != nil {
				return nil, packet.WriteBlock{}, err
			}
			p.drop(to, rest, blamed)
			to = rest
			conn, request, err := p.reopen(ctx, b, to, stamp, failure)
			if err == nil || ctx.Err() != nil {
				return conn, request, err
			}
			next := *failure
			next.Node, next.Err = 0, err
			failure = &next
		}
	}
	return cfg
}

// reopen connects to a pipeline that goes on with a block.
func (p *putter) reopen(ctx context.Context, b *putBlock, to []string, stamp int64, failure *packet.WriteError) (io.ReadWriteCloser, packet.WriteBlock, error) {
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
	conn, err := p.connect(ctx, b, to)
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
	p.mu.Lock()
	delete(p.blocks, p.last)
	p.mu.Unlock()
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
	p.mu.Lock()
	e := &PutError{Name: p.file.Name, Offset: b.offset, Block: b.block, Lost: p.lost, Err: err}
	p.mu.Unlock()
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
