//go:build linux || darwin

package fuzz

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring"
	"github.com/blockpath/blockpath/iouring/datanode"
)

const fuzzPool = "BP-1-127.0.0.1-1"

// memoryDir returns a directory in memory where there is one: a fuzz target
// makes thousands of files.
func memoryDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "fuzz")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func fuzzStore(t *testing.T, dir string) (*datanode.Store, *iouring.Arena) {
	t.Helper()
	backend, err := iouring.Open(iouring.Config{Backend: iouring.SyscallBackend})
	if err != nil {
		t.Fatal(err)
	}
	arena, err := iouring.NewArena(iouring.ArenaConfig{Bytes: 4 << 20, MaxBuffer: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s, err := datanode.OpenStore(datanode.StoreConfig{Dirs: []string{dir}, Backend: backend, Arena: arena})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), backend.Close(), arena.Close()); err != nil {
			t.Error(err)
		}
	})
	return s, arena
}

// FuzzMetaHeader parses a .meta file's head. What is accepted encodes to the same
// bytes again.
func FuzzMetaHeader(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := datanode.ParseMetaHeader(b)
		if err != nil {
			var bad *datanode.MetaError
			if !errors.As(err, &bad) {
				t.Errorf("%T: %v", err, err)
			}
			return
		}
		if got := h.Append(nil); !bytes.Equal(got, b[:datanode.MetaHeaderLen]) {
			t.Errorf("% x encodes as % x", b[:datanode.MetaHeaderLen], got)
		}
	})
}

// FuzzDatanodeSession sends bytes to a server, as one connection after another.
// Whatever they are, the store is sound afterwards: every checksum is right, a
// block that was there is as it was, no memory is held, and the store opens
// again with the same blocks.
func FuzzDatanodeSession(f *testing.F) {
	f.Fuzz(func(t *testing.T, first, second []byte) {
		dir := memoryDir(t)
		s, arena := fuzzStore(t, dir)
		old := packet.Block{Pool: fuzzPool, ID: 7, Stamp: 1001}
		content := stretch([]byte("content"), 1500)
		w, err := s.Create(context.Background(), old, crc.Chunks{})
		if err != nil {
			t.Fatal(err)
		}
		buf, err := arena.Get(context.Background(), 12+len(content))
		if err != nil {
			t.Fatal(err)
		}
		copy(buf.Bytes()[crc.Chunks{}.Put(buf.Bytes(), content):], content)
		err = w.WritePacket(context.Background(), packet.Header{DataLen: len(content)}, 12, buf)
		if err := errors.Join(err, w.Finalize(context.Background(), false)); err != nil {
			t.Fatal(err)
		}

		server := datanode.NewServer(s, datanode.ServerConfig{
			ReadTimeout: 100 * time.Millisecond, KeepAlive: 100 * time.Millisecond, WriteTimeout: time.Second,
			Dial: acceptAll,
		})
		l := newPipeListener()
		served := make(chan error, 1)
		go func() { served <- server.Serve(l) }()
		for _, input := range [][]byte{first, second} {
			c := l.dial()
			drained := make(chan struct{})
			go func() {
				defer close(drained)
				_, _ = io.Copy(io.Discard, c)
			}()
			_, _ = c.Write(input)
			c.Close()
			<-drained
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := errors.Join(server.Shutdown(ctx), <-served); err != nil {
			t.Fatal(err)
		}
		if n := arena.InUse(); n != 0 {
			t.Errorf("%d bytes of the arena are in use", n)
		}
		blocks := readBlocks(t, s)
		// An append may have extended the old block, and a transfer may have replaced
		// it by one that is not shorter, under another stamp.
		got := blocks[nameOf(old)]
		if newer := stampOf(s, old) > old.Stamp; len(got) < len(content) || !newer && !bytes.Equal(got, content) {
			t.Errorf("the block that was there has %d bytes, expected %d", len(got), len(content))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		report, err := datanode.Verify(context.Background(), []string{dir}, datanode.VerifyConfig{})
		if err != nil || !report.OK() || len(report.LongMeta)+len(report.Misplaced) > 0 {
			t.Errorf("%+v, %v", report, err)
		}
		again, _ := fuzzStore(t, dir)
		for b, data := range readBlocks(t, again) {
			if !bytes.Equal(data, blocks[b]) {
				t.Errorf("block %v has %d bytes after opening again, had %d", b, len(data), len(blocks[b]))
			}
			delete(blocks, b)
		}
		if len(blocks) > 0 {
			t.Errorf("%d blocks are gone", len(blocks))
		}
	})
}

func stampOf(s *datanode.Store, b packet.Block) int64 {
	for _, have := range s.Blocks() {
		if have.Pool == b.Pool && have.ID == b.ID {
			return have.Stamp
		}
	}
	return -1
}

// acceptAll connects to a datanode that opens every pipeline, answers every
// transfer and acknowledges nothing. Fuzzed requests must not reach the network.
func acceptAll(context.Context, string) (net.Conn, error) {
	near, far := net.Pipe()
	go func() {
		ok := packet.BlockOpResponse{HasFirstBadLink: true}
		go func() { _, _ = far.Write(ok.Append(nil)) }()
		_, _ = io.Copy(io.Discard, far)
	}()
	return near, nil
}

// nameOf is what a block is known by: the same id may be in several pools.
func nameOf(b packet.Block) packet.Block { return packet.Block{Pool: b.Pool, ID: b.ID} }

func readBlocks(t *testing.T, s *datanode.Store) map[packet.Block][]byte {
	t.Helper()
	blocks := map[packet.Block][]byte{}
	for _, b := range s.Blocks() {
		r, err := s.Open(b)
		if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, r.Len())
		if _, err := r.ReadAt(data, 0); err != nil {
			t.Error(err)
		}
		blocks[nameOf(b)] = data
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	return blocks
}

// A pipeListener accepts connections in memory.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) dial() net.Conn {
	client, server := net.Pipe()
	l.conns <- server
	return client
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// treeNames are the names that FuzzDatanodeTree gives to files, in the
// directories of a pool.
var treeNames = []string{
	"rbw/blk_1", "rbw/blk_1_5.meta", "rbw/blk_1_6.meta", "finalized/subdir0/subdir0/blk_1", "finalized/subdir0/subdir0/blk_1_5.meta",
	"finalized/subdir0/subdir0/blk_1_7.meta", "rbw/blk_-2", "rbw/blk_-2_0.meta", "finalized/blk_-2", "finalized/blk_-2_3.meta",
	"finalized/subdir9/blk_3", "finalized/subdir9/blk_3_1.meta", "rbw/blk_01", "rbw/blk_4_x.meta", "rbw/deep/blk_5", "rbw/deep/blk_5_1.meta",
}

// FuzzDatanodeTree makes a tree of a program and opens it as a store. A step of
// the program is a byte that chooses a name and what is to have it, the length of
// its content, and the content; lock is what the lock file says. No name and no
// content is a reason not to open; of an unfinished block only what verifies is
// left, nothing is lost, and Verify agrees.
func FuzzDatanodeTree(f *testing.F) {
	f.Fuzz(func(t *testing.T, program, lock []byte) {
		root := memoryDir(t)
		pool := filepath.Join(root, "current", fuzzPool, "current")
		if err := os.WriteFile(filepath.Join(root, "in_use.lock"), lock, 0o644); err != nil {
			t.Fatal(err)
		}
		// What is young is given a little time by Verify, so nothing is when it looks.
		old := time.Unix(1e9, 0)
		files, young := map[string]bool{}, []string{}
		for len(program) > 2 && len(files) < 12 {
			how := program[0]
			name := filepath.Join(pool, treeNames[how%16])
			n := min(int(program[1]), len(program)-2)
			content := program[2 : 2+n]
			program = program[2+n:]
			if how&0x80 != 0 { // any name
				any := strings.NewReplacer("/", "_", "\x00", "_").Replace(string(content[:min(n, 30)]))
				name = filepath.Join(filepath.Dir(name), "blk_"+any)
			}
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				continue // a file is where the directory should be
			}
			var err error
			switch {
			case how&0x40 != 0:
				err = os.Mkdir(name, 0o755)
			case how&0x20 != 0:
				err = os.Symlink("/etc/passwd", name)
			default:
				err = os.WriteFile(name, content, 0o644)
			}
			if err != nil {
				continue // it is taken
			}
			if how&0x40 == 0 {
				files[name] = true
			}
			if how&0x60 == 0 {
				if err := os.Chtimes(name, old, old); err != nil {
					t.Fatal(err)
				}
				if how&0x10 != 0 {
					young = append(young, name)
				}
			}
		}
		if len(files) == 0 {
			return
		}
		if _, err := datanode.Verify(context.Background(), []string{root}, datanode.VerifyConfig{}); err != nil {
			t.Fatal(err)
		}
		for _, name := range young {
			if now := time.Now(); os.Chtimes(name, now, now) != nil {
				t.Fatal(name)
			}
		}
		s, _ := fuzzStore(t, root)
		for _, b := range s.Blocks() {
			r, err := s.Open(b)
			if err != nil {
				var refused *datanode.BlockError
				if !errors.As(err, &refused) {
					t.Errorf("%T: %v", err, err)
				}
				continue
			}
			n, err := r.ReadAt(make([]byte, r.Len()), 0)
			var bad *crc.MismatchError
			if err != nil && !errors.As(err, &bad) || err == nil && int64(n) != r.Len() {
				t.Errorf("%v: read %d bytes, %v", b, n, err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		// Every file is still there, by its content if not by its name.
		left := 0
		err := filepath.WalkDir(pool, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				left++
			}
			if err == nil && d.Type().IsRegular() {
				err = os.Chtimes(path, old, old)
			}
			return err
		})
		if err != nil || left < len(files) {
			t.Errorf("%d files are left of %d, %v", left, len(files), err)
		}
		report, err := datanode.Verify(context.Background(), []string{filepath.Join(pool, "rbw")}, datanode.VerifyConfig{})
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, bad := range report.Bad {
			id, _ := datanode.ParseBlockName(filepath.Base(bad.File))
			elsewhere := filepath.Dir(bad.File) != filepath.Join(pool, "rbw") // is no replica
			for name := range files {
				other, ok := datanode.ParseBlockName(filepath.Base(name))
				if !ok {
					other, _, _ = datanode.ParseMetaName(filepath.Base(name))
				}
				elsewhere = elsewhere || other == id && strings.Contains(name, "finalized")
			}
			if !elsewhere {
				t.Errorf("a recovered block has a bad chunk: %+v", bad)
			}
		}
		again, _ := fuzzStore(t, root)
		for name, n := range again.Stats().All() {
			if name == "bytes_dropped" && n != 0 {
				t.Errorf("a second recovery drops %d bytes", n)
			}
		}
	})
}
