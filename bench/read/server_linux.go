package read

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/blockpath/blockpath/bench/internal/lab"
	"github.com/blockpath/blockpath/bench/internal/peer"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring/datanode"
)

// The servers. All have a goroutine for every connection that is busy.
const (
	open        = "open-per-request" // both files are opened and memory is allocated for every request
	pooled      = "pooled-fds"       // the same with files that stay open
	multiplexed = "multiplexed"      // our datanode
)

var ways = []string{open, pooled, multiplexed}

// Servers are a peer.Child each, with variables that say so. A server answers with a
// line of JSON each: its address first, and then its usage, for every line it gets.
const (
	envWay = "BLOCKPATH_BENCH_READ_WAY"
	envDir = "BLOCKPATH_BENCH_READ_DIR"
)

// IsServer reports whether this process is a server.
func IsServer() bool { return os.Getenv(envWay) != "" }

// A usage is what a server has used so far, or uses now.
type usage struct {
	CPU     time.Duration
	Threads int
	RSS     int64 // bytes
}

// Serve is a server's life.
func Serve() error {
	l, err := peer.Listen()
	if err != nil {
		return err
	}
	dir := os.Getenv(envDir)
	var end func() error
	if way := os.Getenv(envWay); way == multiplexed {
		store, err := datanode.OpenStore(datanode.StoreConfig{Dirs: []string{dir}})
		if err != nil {
			return err
		}
		s := datanode.NewServer(store, datanode.ServerConfig{KeepAlive: time.Minute})
		go s.Serve(l)
		also, err := net.Listen("unix", socketPath(dir))
		if err != nil {
			return err
		}
		go s.Serve(also)
		end = func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			err := s.Shutdown(ctx)
			return errors.Join(err, store.Close())
		}
	} else {
		s := &reference{dir: dir, files: map[int64]*blockFiles{}, pool: way == pooled}
		go s.serve(l)
		end = l.Close
	}
	out := peer.Answers()
	if err := out.Encode(l.Addr().String()); err != nil {
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if in.Text() == collect {
			runtime.GC()
			debug.FreeOSMemory()
		}
		u, err := thisUsage()
		if err != nil {
			return err
		}
		if err := out.Encode(u); err != nil {
			return err
		}
	}
	return end()
}

// collect is the line that makes a server give back memory before it reports.
const collect = "collect"

func thisUsage() (usage, error) {
	u := usage{CPU: lab.CPUTime()}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return u, err
	}
	for _, line := range strings.Split(string(status), "\n") {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(f[1], 10, 64) // not all are numbers
		switch f[0] {
		case "Threads:":
			u.Threads = int(n)
		case "VmRSS:":
			u.RSS = n << 10
		}
	}
	return u, nil
}

// A server is the process, seen from here.
type server struct {
	*peer.Child
	addr string
}

func startServer(ctx context.Context, way, dir string) (*server, error) {
	child, err := peer.StartChild(ctx, "read", envWay+"="+way, envDir+"="+dir)
	if err != nil {
		return nil, err
	}
	s := &server{Child: child}
	if err := s.Out.Decode(&s.addr); err != nil {
		return nil, errors.Join(fmt.Errorf("server %s: %w", way, err), s.Close())
	}
	return s, nil
}

func (s *server) usage(line string) (u usage, err error) {
	if _, err := fmt.Fprintln(s.In, line); err != nil {
		return u, err
	}
	return u, s.Out.Decode(&u)
}

// A reference is a datanode that does nothing but READ_BLOCK, as plainly as it
// can be done: a goroutine for each connection, pread, one write per packet.
type reference struct {
	dir  string
	pool bool

	mu    sync.Mutex
	files map[int64]*blockFiles // by block id, if they are pooled
}

type blockFiles struct {
	blk, meta *os.File
	length    int64
}

func (s *reference) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			if err := s.conn(c); err != nil && err != io.EOF && !errors.Is(err, net.ErrClosed) {
				var op *net.OpError // the client has gone
				if !errors.As(err, &op) {
					fmt.Fprintln(os.Stderr, "reference server:", err)
				}
			}
		}()
	}
}

func (s *reference) conn(c net.Conn) error {
	in := bufio.NewReaderSize(c, 512)
	for {
		req, err := packet.ReadRequest(in, 0)
		if err != nil {
			return err
		}
		read, ok := req.(*packet.ReadBlock)
		if !ok {
			return fmt.Errorf("a %T", req)
		}
		if err := s.read(c, read); err != nil {
			return err
		}
		if _, err := packet.ReadReadStatus(in); err != nil {
			return err
		}
	}
}

func (s *reference) open(b packet.Block) (*blockFiles, error) {
	blk, err := os.Open(blockPath(s.dir, b.ID))
	if err != nil {
		return nil, err
	}
	meta, err := os.Open(metaPath(s.dir, b.ID, b.Stamp))
	if err != nil {
		return nil, errors.Join(err, blk.Close())
	}
	f := &blockFiles{blk: blk, meta: meta}
	var header [datanode.MetaHeaderLen]byte
	info, err := blk.Stat()
	if err == nil {
		_, err = meta.ReadAt(header[:], 0)
	}
	if err == nil {
		_, err = datanode.ParseMetaHeader(header[:])
	}
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	f.length = info.Size()
	return f, nil
}

func (f *blockFiles) close() error { return errors.Join(f.blk.Close(), f.meta.Close()) }

// take returns a block's files and what to do with them in the end.
func (s *reference) take(b packet.Block) (*blockFiles, func() error, error) {
	if !s.pool {
		f, err := s.open(b)
		if err != nil {
			return nil, nil, err
		}
		return f, f.close, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[b.ID]
	if f == nil {
		var err error
		if f, err = s.open(b); err != nil {
			return nil, nil, err
		}
		s.files[b.ID] = f
	}
	return f, func() error { return nil }, nil
}

// perPacket is how much data a packet has, as in HDFS.
const perPacket = 64 << 10

func (s *reference) read(c net.Conn, req *packet.ReadBlock) (err error) {
	f, done, err := s.take(req.Block)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	from := req.Offset - req.Offset%peer.Chunk
	to := min((req.Offset+req.Length+peer.Chunk-1)/peer.Chunk*peer.Chunk, f.length)
	if from < 0 || from > to {
		return fmt.Errorf("a request for %d bytes at %d of %d", req.Length, req.Offset, f.length)
	}
	info := &packet.ReadChecksumInfo{ChunkOffset: from}
	longest := int(min(perPacket, to-from))
	buf := make([]byte, 0, 256+longest+crc.Chunks{}.SumsLen(longest))
	buf = (&packet.BlockOpResponse{ReadChecksum: info}).Append(buf)
	for seqno := int64(0); ; seqno++ {
		n := int(min(perPacket, to-from))
		sumsLen := crc.Chunks{}.SumsLen(n)
		buf = packet.Header{Offset: from, Seqno: seqno, DataLen: n}.Append(buf, sumsLen)
		sums := buf[len(buf) : len(buf)+sumsLen]
		data := buf[len(buf)+sumsLen : len(buf)+sumsLen+n]
		buf = buf[:len(buf)+sumsLen+n]
		if _, err := f.blk.ReadAt(data, from); err != nil {
			return err
		}
		if _, err := f.meta.ReadAt(sums, datanode.MetaHeaderLen+from/peer.Chunk*4); err != nil {
			return err
		}
		if from += int64(n); from == to {
			buf = packet.Header{Offset: from, Seqno: seqno + 1, Last: true}.Append(buf, 0)
		}
		if _, err := c.Write(buf); err != nil || from == to {
			return err
		}
		buf = buf[:0]
	}
}
