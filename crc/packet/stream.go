package packet

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/stripedcounter"
)

// Defaults of a [StreamConfig]. On a short path 1 MiB in flight is enough, and
// few enough bytes to be in a cache when they are sent, received and written: on
// loopback, to a datanode, 4 MiB took half as much CPU time again.
const (
	DefaultInFlight    = 1 << 20
	DefaultMaxInFlight = 64 << 20
)

// The adaptive packet size.
const (
	minAdaptive = 64 << 10 // bounds, as sizes of the whole buffer
	maxAdaptive = 1 << 20
	growAfter   = 4 // full packets in a row, and as many are to be in flight
)

// A StreamConfig configures a [Stream]. Its zero value is HDFS's default:
// CRC32C over 512 bytes.
type StreamConfig struct {
	Name   string     // of the stream in errors of the pool
	Chunks crc.Chunks // how the data is checksummed
	Pool   *Pool      // nil: a pool of its own, of MaxInFlight and two packets

	// PacketSize fixes the length of a packet buffer in bytes, such as
	// DefaultPacketSize. 0 means adaptive: the size begins at the power of two
	// that BufferHint (0: none) does not exceed, doubles while whole packets
	// follow each other and earlier ones are under way, up to a quarter of what
	// may be in flight, and halves when flushes leave packets less than half
	// full, always in 64 KiB..1 MiB.
	PacketSize int
	BufferHint int

	MaxPacketLen int // the receivers' bound of PLEN + HLEN; 0 means MaxPacketLen

	// InFlight bounds the bytes that have been queued and not acked. 0 means
	// that it begins at DefaultInFlight and grows to twice the path's
	// bandwidth-delay product, up to MaxInFlight (0: DefaultMaxInFlight). Four
	// packets are always allowed.
	InFlight    int64
	MaxInFlight int64

	Statistics *stripedcounter.Set // of NewStatistics, shared by any streams; nil: none
}

// A Stream is what the Writers of one file share, block after block: the
// reserved packet buffer, the packet size and the bytes in flight. It may be
// used by one Writer that accepts data and any number of full ones that are
// being closed.
type Stream struct {
	statistics  *stripedcounter.Set
	chunks      crc.Chunks
	reservation *Reservation
	ownPool     *Pool // closed with the stream

	limit    int // most chunks of a packet
	full     int // chunks of a full packet now
	adaptive int // the size in bytes for which full is adapted; 0 if it is fixed
	row      int // full packets since the last flush or change of size

	window    atomic.Int64
	maxWindow int64
	minRTT    atomic.Int64 // nanoseconds
}

// NewStream reserves the stream's first packet buffer and waits for it until
// ctx ends. Close must be called.
func NewStream(ctx context.Context, cfg StreamConfig) (*Stream, error) {
	if cfg.Chunks.Size < 0 || cfg.Chunks.Size > crc.MaxChunkSize {
		return nil, &crc.HeaderError{Field: "bytes per checksum", Got: int64(cfg.Chunks.Size), Want: "1..16777216"}
	}
	if cfg.MaxPacketLen <= 0 || cfg.MaxPacketLen > MaxPacketLen {
		cfg.MaxPacketLen = MaxPacketLen
	}
	if cfg.MaxInFlight <= 0 {
		cfg.MaxInFlight = DefaultMaxInFlight
	}
	s := &Stream{chunks: cfg.Chunks, maxWindow: cfg.MaxInFlight, statistics: cfg.Statistics}
	// PLEN + HLEN: the header without its own two bytes of length.
	chunk := s.chunks.BytesPerChunk() + s.chunks.Kind.Size()
	s.limit = (cfg.MaxPacketLen - (MaxHeaderLen - 2)) / chunk
	if s.limit < 1 {
		return nil, fmt.Errorf("packet: a chunk of %d bytes does not fit into a packet of %d bytes", chunk, cfg.MaxPacketLen)
	}
	size := cfg.PacketSize
	if size <= 0 {
		size = minAdaptive
		for size < maxAdaptive && size < cfg.BufferHint {
			size *= 2
		}
		s.adaptive = size
	}
	s.full = min(PacketChunks(size, s.chunks), s.limit)
	s.window.Store(min(DefaultInFlight, s.maxWindow))
	if cfg.InFlight > 0 {
		s.maxWindow = cfg.InFlight
		s.window.Store(cfg.InFlight)
	}
	pool := cfg.Pool
	if pool == nil {
		largest := s.full
		if s.adaptive > 0 {
			largest = min(PacketChunks(maxAdaptive, s.chunks), s.limit)
		}
		pool = NewPool(PoolConfig{Bytes: max(s.maxWindow, 4*int64(s.bufferLen(largest))) + 2*int64(s.bufferLen(largest))})
		s.ownPool = pool
	}
	var err error
	if s.reservation, err = pool.Reserve(ctx, cfg.Name, s.bufferLen(s.full)); err != nil {
		return nil, err
	}
	return s, nil
}

// Close gives the reserved buffer back. The stream's Writers must be closed.
func (s *Stream) Close() {
	s.reservation.Close()
	if s.ownPool != nil {
		s.ownPool.Close()
	}
}

// cacheLine is where the data of a packet begins in its buffer: a kernel that
// stores whole vectors across cache lines is three times as slow.
const cacheLine = 64

// dataAt returns where the data begins in a packet buffer for so many chunks,
// behind the room for the header and the checksums.
func (s *Stream) dataAt(chunks int) int {
	return (MaxHeaderLen + chunks*s.chunks.Kind.Size() + cacheLine - 1) &^ (cacheLine - 1)
}

// bufferLen returns the length of a packet buffer for so many chunks.
func (s *Stream) bufferLen(chunks int) int {
	return s.dataAt(chunks) + chunks*s.chunks.BytesPerChunk()
}

// next returns how many chunks the next packet may have if so many bytes of
// the block remain, and the buffer for it. A last packet of less than an
// eighth is avoided: the one before it takes its data, too.
func (s *Stream) next(remaining int64) (chunks, bufferLen int) {
	rest := s.chunks.Count(remaining)
	chunks = s.full
	if over := rest - int64(chunks); over > 0 && over < int64(s.full/8) && rest <= int64(s.limit) {
		chunks = int(rest)
	}
	return int(min(int64(chunks), rest)), s.bufferLen(chunks)
}

// queued adapts the packet size to a packet that is on its way: whether it was
// full, whether a flush ended it when it was less than half full, and whether
// others before it are still under way.
func (s *Stream) queued(full, underHalf, busy bool) {
	if s.adaptive == 0 {
		return
	}
	switch {
	case !full:
		s.row = 0
		if underHalf {
			s.resize(s.adaptive / 2)
		}
	case busy:
		if s.row++; s.row >= growAfter && s.window.Load() >= growAfter*2*int64(s.adaptive) {
			s.row = 0
			s.resize(s.adaptive * 2)
		}
	}
}

func (s *Stream) resize(size int) {
	s.adaptive = min(max(size, minAdaptive), maxAdaptive)
	s.full = min(PacketChunks(s.adaptive, s.chunks), s.limit)
}

// room reports whether another packet of the given size may be started when so
// many bytes are in flight.
func (s *Stream) room(inFlight int64, size int) bool {
	return inFlight+int64(size) <= max(s.window.Load(), 4*int64(size))
}

// acked adapts the bytes in flight to an ack that came rtt after its packet,
// when so many bytes had been acked since the last ack before the packet was
// sent, in the interval from that on. So acks that come together, late, do not
// look like a fast path. The window is twice the bandwidth-delay product, because
// a window that is too small caps the rate at window/rtt: then it doubles with
// every round trip, until the path is full and its round trips grow longer than
// the shortest one seen.
func (s *Stream) acked(delivered int64, interval, rtt time.Duration) {
	if s.window.Load() >= s.maxWindow {
		return
	}
	nanos := max(int64(rtt), 1)
	shortest := s.minRTT.Load()
	for shortest == 0 || nanos < shortest {
		if s.minRTT.CompareAndSwap(shortest, nanos) {
			shortest = nanos
			break
		}
		shortest = s.minRTT.Load()
	}
	want := min(int64(2*float64(delivered)*float64(shortest)/float64(max(int64(interval), nanos))), s.maxWindow)
	for {
		now := s.window.Load()
		if want <= now || s.window.CompareAndSwap(now, want) {
			return
		}
	}
}
