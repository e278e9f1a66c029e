//go:build linux || darwin

package datanode

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring"
	"github.com/blockpath/blockpath/stripedcounter"
)

// The memory of a store that is not given an arena. A packet of the greatest
// length and checksums computed for it fit into the largest buffer.
const (
	defaultArenaBytes  = 64 << 20
	defaultArenaBuffer = 32 << 20
)

// A StoreConfig configures [OpenStore].
type StoreConfig struct {
	// Dirs are the store's directories, ideally one per disk. They are created
	// as needed. At least one is required.
	Dirs []string

	// Backend does the file I/O. If it is nil the store opens the best one there
	// is, with the arena registered if Direct is set, and closes it in the end.
	Backend iouring.Backend

	// Arena holds packets and what is read. If it is nil the store makes one of
	// 64 MiB. Its bound is the bound of the memory that all the streams of the
	// store use for block data together.
	Arena *iouring.Arena

	// MaxWriters bounds how many blocks are being written at a time, and with
	// them the files that are open: up to three for each. 0 means an eighth of what
	// the process may have open (RLIMIT_NOFILE), so that writers and their
	// connections leave the other half to readers.
	MaxWriters int

	// OpenFiles bounds how many files are kept open for readers when nobody uses
	// them; a block has two. 0 means a quarter of what the process may have open,
	// and less than 0 none.
	OpenFiles int

	// SyncOnClose makes a block durable when it is finalized
	// (dfs.datanode.synconclose). Otherwise only blocks whose client asks for it
	// are.
	SyncOnClose bool

	// Direct writes new blocks past the page cache where the file system has that
	// (O_DIRECT), which is for data that is not read soon. A request that asks for
	// drop-behind has the same effect.
	Direct bool

	// SyncBehind starts writing to the disk as data comes, every 8 MiB
	// (dfs.datanode.sync.behind.writes), and DropBehind drops from the page cache
	// what lies 8 MiB behind (dfs.datanode.drop.cache.behind.writes).
	SyncBehind, DropBehind bool

	// Flushed and Synced, if set, are told how long it took to bring packets into
	// the files, and to make a block durable. They must not block.
	Flushed, Synced func(time.Duration)

	// Logger is told of what nobody is waiting to hear: what recovery did, and
	// files that are left alone. If it is nil nothing is logged.
	Logger *slog.Logger
}

// A Store is a set of directories with the blocks in them. It is safe for
// concurrent use.
type Store struct {
	cfg     StoreConfig
	backend iouring.Backend
	arena   *iouring.Arena
	log     *slog.Logger
	stats   *stripedcounter.Set
	files   *iouring.FileCache
	owns    struct{ backend, arena bool }

	mu      sync.RWMutex // the fields below
	blocks  map[blockKey]*replica
	copies  map[blockKey]*replica // that other datanodes are sending
	volumes []*volume
	next    int // volume to try first for the next block

	writers    atomic.Int64
	closed     atomic.Bool
	background sync.WaitGroup
	stop       chan struct{} // closed to end the background work
}

// The counters of Store.Stats.
const (
	statBlocksCreated = iota
	statBlocksFinalized
	statBlocksAborted
	statBytesWritten
	statPacketsWritten
	statFlushes
	statSyncs
	statBytesRead
	statReads
	statChecksumErrors
	statBlocksRecovered
	statBytesDropped
	statFilesOpened
	statFilesEvicted
)

var storeStats = []string{
	"blocks_created", "blocks_finalized", "blocks_aborted",
	"bytes_written", "packets_written", "flushes", "syncs",
	"bytes_read", "reads", "checksum_errors",
	"blocks_recovered", "bytes_dropped",
	"files_opened", "files_evicted",
}

type replicaState uint8

const (
	finalized replicaState = iota
	writing                // rbw, with a writer
	waiting                // rbw, without one: aborted, or found at open
	copying                // tmp, with a writer
)

func (s replicaState) String() string {
	return [...]string{"finalized", "being written", "unfinished", "being copied"}[s]
}

// A replica is a block that the store has.
type replica struct {
	key blockKey
	vol *volume
	dir string // if the files are not where the state and the id say; else ""

	metaAt string // if a move that failed has left the .meta file elsewhere; else ""

	mu     sync.Mutex
	state  replicaState
	stamp  int64
	length int64 // visible: data and checksums are written
	writer *BlockWriter
	kept   [2]keptFile // the block file and the .meta file, once they have been opened for reading
	marks  []mark      // of a writer that relays
	gone   bool        // no longer the store's
	failed error       // a sync has: what is in the page cache may never get to the disk

	// What the .meta file says, once known. While length is not a multiple of
	// the chunk size, lastSum is the checksum of the partial chunk of this
	// length: the one on disk may already be that of more.
	known   bool
	chunks  crc.Chunks
	lastSum uint32
}

func (r *replica) block() packet.Block {
	return packet.Block{Pool: r.key.pool, ID: r.key.id, Stamp: r.stamp, NumBytes: r.length}
}

// directory returns where the files are. The caller holds r.mu.
func (r *replica) directory() string {
	switch {
	case r.dir != "":
		return r.dir
	case r.state == finalized:
		return finalizedPath(r.vol.root, r.key.pool, r.key.id)
	case r.state == copying:
		return tmpPath(r.vol.root, r.key.pool)
	}
	return rbwPath(r.vol.root, r.key.pool)
}

func (r *replica) blockPath() string { return filepath.Join(r.directory(), BlockName(r.key.id)) }

func (r *replica) metaPath() string {
	if r.metaAt != "" {
		return r.metaAt
	}
	return filepath.Join(r.directory(), MetaName(r.key.id, r.stamp))
}

// finalize moves the files to where finalized blocks are, under a new stamp or
// the same. The caller holds r.mu.
func (r *replica) finalize(newStamp int64, durable bool) error {
	from, to := r.directory(), finalizedPath(r.vol.root, r.key.pool, r.key.id)
	if err := r.vol.mkdir(to, durable); err != nil {
		return err
	}
	if err := r.move(to, newStamp); err != nil {
		return err
	}
	r.state = finalized
	r.vol.dirty.Store(true)
	if !durable {
		return nil
	}
	return errors.Join(syncDir(to), syncDir(from))
}

// move renames the .meta file, then the block file: a block file in finalized
// never lacks its checksums. If the second fails it takes back the first. Nothing
// is overwritten. The caller holds r.mu.
func (r *replica) move(to string, newStamp int64) error {
	r.forget()
	from := r.directory()
	oldMeta, newMeta := r.metaPath(), filepath.Join(to, MetaName(r.key.id, newStamp))
	oldBlock, newBlock := r.blockPath(), filepath.Join(to, BlockName(r.key.id))
	if oldMeta != newMeta {
		if err := renameNew(oldMeta, newMeta); err != nil {
			return err
		}
	}
	if oldBlock != newBlock {
		if err := renameNew(oldBlock, newBlock); err != nil {
			back := os.Rename(newMeta, oldMeta)
			if back != nil {
				r.metaAt = newMeta
			}
			return errors.Join(err, back)
		}
	}
	r.stamp, r.metaAt = newStamp, ""
	if from != to {
		r.dir = ""
	}
	return nil
}

// renameNew renames a file unless there is one of the new name.
func renameNew(from, to string) error {
	switch _, err := os.Lstat(to); {
	case err == nil:
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: fs.ErrExist}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return os.Rename(from, to)
}

// OpenStore opens the directories, creates what is missing of their layout, and
// recovers what a crash has left. A directory that is in use gives a *LockError.
//
// Files that are not a pair of block and .meta file are left alone and logged.
func OpenStore(cfg StoreConfig) (*Store, error) {
	if len(cfg.Dirs) == 0 {
		return nil, errors.New("datanode: a store needs a directory")
	}
	s := &Store{
		cfg: cfg, backend: cfg.Backend, arena: cfg.Arena, log: cfg.Logger,
		stats:  stripedcounter.NewSet(storeStats...),
		blocks: map[blockKey]*replica{},
		copies: map[blockKey]*replica{},
		stop:   make(chan struct{}),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.cfg.MaxWriters <= 0 {
		all, err := maxFiles()
		if err != nil {
			return nil, err
		}
		s.cfg.MaxWriters = max(all/8, 1)
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.release())
	}
	return s, nil
}

func (s *Store) open() (err error) {
	if s.files, err = s.keptFiles(); err != nil {
		return err
	}
	for _, dir := range s.cfg.Dirs {
		v, err := openVolume(dir)
		if err != nil {
			return err
		}
		v.files = s.files
		s.volumes = append(s.volumes, v)
	}
	if s.arena == nil {
		s.arena, err = iouring.NewArena(iouring.ArenaConfig{Bytes: defaultArenaBytes, MaxBuffer: defaultArenaBuffer})
		if err != nil {
			return err
		}
		s.owns.arena = true
	}
	if s.backend == nil {
		var cfg iouring.Config
		if s.cfg.Direct {
			// Direct writes of registered memory take a third less CPU time.
			cfg.Register = []*iouring.Arena{s.arena}
		}
		if s.backend, err = iouring.Open(cfg); err != nil {
			return err
		}
		s.owns.backend = true
	}
	for _, v := range s.volumes {
		if err := s.scan(v); err != nil {
			return err
		}
		// A full disk is no reason not to serve.
		if err := v.mark(false); err != nil {
			s.log.Error("cannot write the lock file", "directory", v.root, "error", err)
		}
	}
	s.background.Add(1)
	go s.checkpoints()
	return nil
}

// checkpoints makes durable, now and then, what has been finalized, so that an
// opening after a crash has little to check.
func (s *Store) checkpoints() {
	defer s.background.Done()
	tick := time.NewTicker(checkpointEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		for _, v := range s.volumes {
			if !v.dirty.Load() {
				continue
			}
			if err := v.checkpoint(); err != nil {
				s.log.Error("cannot make a volume durable", "directory", v.root, "error", err)
			}
		}
	}
}

// reserve chooses a volume for n bytes, in turn among those that have room, and
// reserves them.
func (s *Store) reserve(n int64) (*volume, error) {
	s.mu.Lock()
	first := s.next
	s.next = (first + 1) % len(s.volumes)
	s.mu.Unlock()
	var errs []error
	for i := range s.volumes {
		v := s.volumes[(first+i)%len(s.volumes)]
		err := v.reserve(n)
		if err == nil {
			return v, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// Stats returns the store's counters.
func (s *Store) Stats() *stripedcounter.Set { return s.stats }

// Backend returns what does the file I/O.
func (s *Store) Backend() iouring.Backend { return s.backend }

// Arena returns the memory of the store's streams.
func (s *Store) Arena() *iouring.Arena { return s.arena }

// Dirs returns the store's directories, absolute.
func (s *Store) Dirs() []string {
	dirs := make([]string, len(s.volumes))
	for i, v := range s.volumes {
		dirs[i] = v.root
	}
	return dirs
}

// Blocks returns the blocks of the store with their visible lengths, in no
// particular order.
func (s *Store) Blocks() []packet.Block {
	s.mu.RLock()
	defer s.mu.RUnlock()
	blocks := make([]packet.Block, 0, len(s.blocks))
	for _, r := range s.blocks {
		r.mu.Lock()
		blocks = append(blocks, r.block())
		r.mu.Unlock()
	}
	return blocks
}

// ErrStoreClosed is the error of operations on a store that has been closed.
var ErrStoreClosed = errors.New("datanode: the store is closed")

// Close aborts the writers that are left and unlocks the directories. Readers
// that are open stay usable, unless the store made its own backend and arena.
// Closing twice is fine.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.mu.Lock()
	var writers []*BlockWriter
	for _, replicas := range []map[blockKey]*replica{s.blocks, s.copies} {
		for _, r := range replicas {
			r.mu.Lock()
			if r.writer != nil {
				writers = append(writers, r.writer)
			}
			r.mu.Unlock()
		}
	}
	s.mu.Unlock()
	for _, w := range writers {
		w.stop(ErrStoreClosed)
	}
	close(s.stop)
	s.background.Wait()
	for _, v := range s.volumes {
		if err := v.mark(!v.unread); err != nil {
			s.log.Error("cannot write the lock file", "directory", v.root, "error", err)
		}
	}
	return s.release()
}

func (s *Store) release() error {
	var errs []error
	for _, v := range s.volumes {
		errs = append(errs, v.lock.Close())
	}
	if s.files != nil {
		errs = append(errs, s.files.Close())
	}
	if s.owns.backend {
		errs = append(errs, s.backend.Close())
	}
	if s.owns.arena {
		errs = append(errs, s.arena.Close())
	}
	return errors.Join(errs...)
}

// find returns the replica of a block, or nil.
func (s *Store) find(b packet.Block) *replica {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.blocks[keyOf(b)]
}

// refuse describes an operation that is not carried out.
func (s *Store) refuse(op string, b packet.Block, status packet.Status, reason string, err error) *BlockError {
	return &BlockError{Op: op, Block: b, Status: status, Reason: reason, Err: err}
}

// admit counts a writer that is about to begin, or refuses it. A writer that ends
// is taken off by its finish.
func (s *Store) admit(op string, b packet.Block) *BlockError {
	if n := s.writers.Add(1); n > int64(s.cfg.MaxWriters) {
		s.writers.Add(-1)
		return s.refuse(op, b, packet.Error, fmt.Sprintf("%d blocks are being written already", n-1), unix.EMFILE)
	}
	return nil
}

// checkNew refuses what no replica can be made of.
func (s *Store) checkNew(op string, b packet.Block, c crc.Chunks) error {
	switch {
	case !ValidPool(b.Pool):
		return s.refuse(op, b, packet.ErrorInvalid, "invalid block pool id", nil)
	case b.Stamp < 0:
		return s.refuse(op, b, packet.ErrorInvalid, "negative generation stamp", nil)
	case b.NumBytes < 0:
		return s.refuse(op, b, packet.ErrorInvalid, "negative length", nil)
	case c.Kind > crc.None || c.Size < 0 || c.Size > crc.MaxChunkSize:
		return s.refuse(op, b, packet.ErrorUnsupported, fmt.Sprintf("checksum %v over %d bytes", c.Kind, c.Size), nil)
	}
	return nil
}

// Create begins a new block. b.NumBytes, the size that the block is going to
// have at most, is reserved, but not a limit; 0 reserves nothing. Checksums are
// stored as c says, and packets have to bring such ones.
//
// The error is a *[BlockError] with the status ErrorExists if the store has the
// block, in whatever state; with ErrorInvalid or ErrorUnsupported if b or c is
// not valid; and with Error if no volume has room (a *[SpaceError]), too many
// blocks are being written (EMFILE) or a file cannot be made.
func (s *Store) Create(ctx context.Context, b packet.Block, c crc.Chunks) (*BlockWriter, error) {
	const op = "create"
	if err := s.checkNew(op, b, c); err != nil {
		return nil, err
	}
	if r := s.find(b); r != nil {
		return nil, s.exists(op, b, r)
	}
	return s.begin(ctx, op, b, c, writing)
}

// begin makes the writer of a new replica, in the given state.
func (s *Store) begin(ctx context.Context, op string, b packet.Block, c crc.Chunks, state replicaState) (*BlockWriter, error) {
	c.Size = c.BytesPerChunk()
	if refused := s.admit(op, b); refused != nil {
		return nil, refused
	}
	begun := false
	defer func() {
		if !begun {
			s.writers.Add(-1)
		}
	}()
	vol, err := s.reserve(b.NumBytes)
	if err != nil {
		return nil, s.refuse(op, b, packet.Error, "no room", err)
	}
	r := &replica{key: keyOf(b), vol: vol, state: state, stamp: b.Stamp, known: true, chunks: c}
	w := newWriter(s, r, c, b.NumBytes)
	// Whoever finds the replica in the store and stops its writer waits until there
	// are files.
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := s.add(op, b, r); err != nil {
		w.unreserve(w.reserved)
		return nil, err
	}
	if err := w.create(ctx); err != nil {
		s.mu.Lock()
		delete(s.replicas(state), r.key)
		s.mu.Unlock()
		r.mu.Lock()
		r.writer, r.gone = nil, true
		r.mu.Unlock()
		w.ended = true
		w.unreserve(w.reserved)
		return nil, s.refuse(op, b, packet.Error, "cannot create the files", err)
	}
	begun = true
	s.stats.Add(statBlocksCreated, 1)
	w.dropBehind = s.cfg.DropBehind
	if s.cfg.Direct {
		if err := w.goDirect(); err != nil {
			s.log.Warn("no direct writes", "file", w.blk.Name(), "error", err)
		}
	}
	return w, nil
}

// add enters a new replica.
func (s *Store) add(op string, b packet.Block, r *replica) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return s.refuse(op, b, packet.Error, "shutting down", ErrStoreClosed)
	}
	replicas := s.replicas(r.state)
	if old := replicas[r.key]; old != nil {
		return s.exists(op, b, old)
	}
	replicas[r.key] = r
	return nil
}

// replicas returns those of a state. The caller holds s.mu.
func (s *Store) replicas(state replicaState) map[blockKey]*replica {
	if state == copying {
		return s.copies
	}
	return s.blocks
}

func (s *Store) exists(op string, b packet.Block, r *replica) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return s.refuse(op, b, packet.ErrorExists, fmt.Sprintf("the block exists, %s, with stamp %d", r.state, r.stamp), nil)
}
