package client

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/minio/sha256-simd"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// A GetConfig configures [Get]. Its zero value gets the whole file.
type GetConfig struct {
	Offset int64 // in the file, of the first byte
	Length int64 // bytes at most; 0 means up to the end

	SHA256     bool   // check the SHA-256 of the manifest, if it has one and the whole file is read
	Rate       int64  // bytes per second at most; 0 means no limit
	ClientName string // in requests; "" means "blockpath"

	Timeout time.Duration // of the sockets; 0 means packet.DefaultTimeout

	// Progress, if set, is told of every piece of the file that has been written.
	Progress func(bytes int64)
}

// A GetError reports a block that no datanode could deliver. Everything before
// Offset has been written, verified.
type GetError struct {
	Name   string
	Offset int64 // in the file, of the first byte that is missing
	Block  packet.Block
	Errs   []error // one for each datanode: *packet.ReadError, *packet.OpError, or of the connection
}

func (e *GetError) Error() string {
	return fmt.Sprintf("client: getting %s: at offset %d, in block %v: %v", e.Name, e.Offset, e.Block, errors.Join(e.Errs...))
}

// Unwrap returns Errs.
func (e *GetError) Unwrap() []error { return e.Errs }

// A ContentError reports a file all of whose chunks verified, but which is not
// the one of the manifest.
type ContentError struct {
	Name     string
	Offset   int64  // where the block starts in the file that is not the manifest's; 0 for an SHA-256
	What     string // "CRC of the block" or "SHA-256"
	Expected string // hex
	Computed string
}

func (e *ContentError) Error() string {
	return fmt.Sprintf("client: getting %s: %s at offset %d: expected %s, computed %s", e.Name, e.What, e.Offset, e.Expected, e.Computed)
}

// Get writes a file, or a range of it, to w. It reads the blocks one after
// another from the datanodes at the addresses in from: from the first as long as
// it delivers, and from the next one where it fails, in mid-block too. Every byte
// is verified before it is written, and of every whole block also that it is the
// manifest's.
//
// When a block cannot be had from any datanode, the error is a *[GetError]; a
// block or file that is not the manifest's gives a *[ContentError], an offset
// beyond the file a *[ConfigError]. An error of w is returned as it is.
func Get(ctx context.Context, w io.Writer, m *Manifest, f *File, from []string, cfg GetConfig) (Stats, error) {
	if len(from) == 0 {
		return Stats{}, &ConfigError{"number of datanodes", "at least 1", 0}
	}
	if cfg.Offset < 0 || cfg.Offset > f.Length {
		return Stats{}, &ConfigError{"offset", fmt.Sprintf("0..%d, the length of the file", f.Length), cfg.Offset}
	}
	if cfg.Length < 0 {
		return Stats{}, &ConfigError{"length", "at least 0", cfg.Length}
	}
	if cfg.ClientName == "" {
		cfg.ClientName = "blockpath"
	}
	end := f.Length
	if cfg.Length > 0 && cfg.Length < end-cfg.Offset {
		end = cfg.Offset + cfg.Length
	}
	out := newMeter(ctx, cfg.Rate, cfg.Progress)
	out.w = w
	if cfg.SHA256 && f.SHA256 != "" && cfg.Offset == 0 && end == f.Length {
		out.hash = sha256.New()
	}
	g := &getter{ctx: ctx, cfg: cfg, m: m, f: f, from: from, out: out, conns: make([]net.Conn, len(from))}
	defer g.close()

	at := int64(0) // where the block starts in the file
	for i := range f.Blocks {
		b := &f.Blocks[i]
		lo, hi := max(cfg.Offset-at, 0), min(end-at, b.Length)
		if lo < hi {
			if err := g.block(b, at, lo, hi); err != nil {
				return g.stats, err
			}
			g.stats.Blocks++
		}
		at += b.Length
	}
	if out.hash != nil {
		if got := hex.EncodeToString(out.hash.Sum(nil)); got != f.SHA256 {
			return g.stats, &ContentError{Name: f.Name, What: "SHA-256", Expected: f.SHA256, Computed: got}
		}
	}
	return g.stats, nil
}

// A getter is a Get under way.
type getter struct {
	ctx     context.Context
	cfg     GetConfig
	m       *Manifest
	f       *File
	from    []string
	out     *meter
	conns   []net.Conn // that can carry another request
	current int        // index of the datanode that delivers
	stats   Stats
}

func (g *getter) close() {
	for _, c := range g.conns {
		if c != nil {
			c.Close()
		}
	}
}

// block writes the bytes lo to hi of a block that starts at the offset at.
func (g *getter) block(b *Block, at, lo, hi int64) error {
	block := packet.Block{Pool: g.m.Pool, ID: b.ID, Stamp: b.Stamp, NumBytes: b.Length}
	w := &blockWriter{w: g.out, chunks: g.m.Chunks()}
	pos := lo
	var errs []error
	for len(errs) < len(g.from) {
		n, err := g.read(w, block, pos, hi)
		pos += n
		g.stats.Bytes += n
		switch {
		case err == nil:
			if whole := lo == 0 && hi == b.Length; whole && w.chunks.Kind != crc.None {
				if want, _ := b.sum(); want != w.crc() {
					return &ContentError{Name: g.f.Name, Offset: at, What: "CRC of the block",
						Expected: fmt.Sprintf("%08x", want), Computed: fmt.Sprintf("%08x", w.crc())}
				}
			}
			return nil
		case w.err != nil:
			return w.err
		case g.ctx.Err() != nil:
			return context.Cause(g.ctx)
		}
		errs = append(errs, fmt.Errorf("%s: %w", g.from[g.current], err))
		g.current = (g.current + 1) % len(g.from)
	}
	return &GetError{Name: g.f.Name, Offset: at + pos, Block: block, Errs: errs}
}

// read writes the bytes lo to hi of a block from the current datanode, and
// returns how many were written.
func (g *getter) read(w *blockWriter, block packet.Block, lo, hi int64) (int64, error) {
	request := packet.ReadBlock{
		Block: block, ClientName: g.cfg.ClientName, Offset: lo, Length: hi - lo, SendChecksums: true,
	}
	cfg := packet.ReaderConfig{Timeout: g.cfg.Timeout, AllowNone: w.chunks.Kind == crc.None, Sums: w.verified}
	kept := g.conns[g.current]
	g.conns[g.current] = nil
	if kept != nil {
		r, err := packet.NewReader(g.ctx, kept, request, cfg)
		if err == nil {
			return g.drain(r, kept, w)
		}
		kept.Close()
		var refused *packet.OpError
		if errors.As(err, &refused) {
			return 0, err
		}
		// The datanode may have closed a connection that was idle for too long.
	}
	conn, err := Dial(g.ctx, g.from[g.current])
	if err != nil {
		return 0, err
	}
	r, err := packet.NewReader(g.ctx, conn, request, cfg)
	if err != nil {
		conn.Close()
		return 0, err
	}
	return g.drain(r, conn, w)
}

// drain writes what r reads, and keeps conn if it can carry another request.
func (g *getter) drain(r *packet.Reader, conn net.Conn, w *blockWriter) (int64, error) {
	w.begin(r.Chunks())
	n, err := r.WriteTo(w)
	if r.Close() && err == nil {
		g.conns[g.current] = conn
	} else {
		conn.Close()
	}
	return n, err
}

// A blockWriter writes the bytes of a block and remembers an error of the
// destination, which is nobody's fault at the other end. It knows the block's
// CRC, which it composes of the checksums of the chunks that have been verified
// instead of passing over the data once more.
type blockWriter struct {
	w      io.Writer
	chunks crc.Chunks // of the manifest
	err    error

	compose bool   // the datanode's chunks are the manifest's
	sums    []byte // of chunks whose CRC is not in sum yet
	length  int64  // bytes that they cover
	covered int    // bytes that come next and are among them
	sum     uint32
}

// maxSums bounds what is composed at once, in bytes.
const maxSums = 32 << 10

// begin is called when another datanode goes on with the block.
func (b *blockWriter) begin(c crc.Chunks) {
	b.fold()
	b.covered = 0
	b.compose = c.Kind == b.chunks.Kind && c.BytesPerChunk() == b.chunks.BytesPerChunk()
}

// verified takes the checksums of the next n bytes.
func (b *blockWriter) verified(sums []byte, n int) {
	if !b.compose {
		return
	}
	b.sums = append(b.sums, sums...)
	b.length += int64(n)
	b.covered += n
	if len(b.sums) >= maxSums || n%b.chunks.BytesPerChunk() != 0 {
		b.fold()
	}
}

// fold composes the CRC of what it has the checksums of.
func (b *blockWriter) fold() {
	if b.length == 0 || b.chunks.Kind == crc.None {
		return
	}
	part, err := b.chunks.Compose(b.sums, b.length)
	if err != nil {
		panic(err) // only what was added last can end with a short chunk
	}
	b.sum = crc.Combine(b.chunks.Kind, b.sum, part, b.length)
	b.sums, b.length = b.sums[:0], 0
}

// crc returns the CRC of what has been written.
func (b *blockWriter) crc() uint32 {
	b.fold()
	return b.sum
}

func (b *blockWriter) Write(p []byte) (int, error) {
	n, err := b.w.Write(p)
	rest := p[min(b.covered, n):n]
	b.covered -= n - len(rest)
	if len(rest) > 0 && b.chunks.Kind != crc.None {
		b.fold()
		b.sum = crc.Update(b.chunks.Kind, b.sum, rest)
	}
	if err != nil {
		b.err = err
	}
	return n, err
}
