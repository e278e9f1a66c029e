package disk

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// An Op is an operation of the file system, as a plan sees it.
type Op struct {
	Kind   string // "lookup", "open", "create", "read", "write", "fsync", "truncate", "fallocate", "mkdir", "rename", "unlink", "opendir", "fsyncdir", "statfs"
	Path   string // below the root; of a rename, the old one
	Offset int64  // of a read or a write
	Length int    // of a read or a write, in bytes
}

// A Fault is what becomes of an operation. The zero Fault is nothing: it goes
// through.
type Fault struct {
	Errno syscall.Errno // it fails, and nothing is done
	Short int           // a write ends after so many bytes, if it has more
}

// A Plan says what becomes of an operation. It may be called by several
// goroutines at once.
type Plan func(Op) Fault

// An FS is a mounted file system that shows a directory.
type FS struct {
	// Dir is where it is mounted, Backing the directory that it shows. What is done
	// there directly does not fail.
	Dir, Backing string

	server *fuse.Server

	mu   sync.RWMutex
	plan Plan // nil if nothing fails
}

// MountFS shows the directory backing at dir. Nothing fails until a plan is set.
func MountFS(dir, backing string) (*FS, error) {
	f := &FS{Dir: dir, Backing: backing}
	var st syscall.Stat_t
	if err := syscall.Stat(backing, &st); err != nil {
		return nil, err
	}
	root := &fs.LoopbackRoot{Path: backing, Dev: uint64(st.Dev)}
	top := &node{LoopbackNode: &fs.LoopbackNode{RootData: root}, fs: f}
	root.RootNode = top
	server, err := mount(dir, top)
	if err != nil {
		return nil, err
	}
	f.server = server
	return f, nil
}

// mount mounts a file system that the kernel remembers nothing of: every
// operation comes here.
func mount(dir string, root fs.InodeEmbedder) (*fuse.Server, error) {
	return fs.Mount(dir, root, &fs.Options{MountOptions: fuse.MountOptions{
		DirectMount: true, DirectMountStrict: true, FsName: "blockpath", Name: "blockpath",
		DisableXAttrs: true, MaxWrite: 1 << 20, SyncRead: true,
	}})
}

// SetPlan sets what becomes of the operations from now on. With nil they go
// through. No operation asks the plan before when it returns.
func (f *FS) SetPlan(p Plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = p
}

func (f *FS) fault(op Op) Fault {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.plan == nil {
		return Fault{}
	}
	return f.plan(op)
}

// Close unmounts the file system. It fails if a file is open: such files then
// fail too, rather than hang when this process ends.
func (f *FS) Close() error {
	err := f.server.Unmount()
	if err != nil {
		err = errors.Join(err, syscall.Unmount(f.Dir, syscall.MNT_FORCE), syscall.Unmount(f.Dir, syscall.MNT_DETACH))
	}
	return err
}

type node struct {
	*fs.LoopbackNode
	fs *FS
}

// WrapChild makes a node of what the directory behind has.
func (n *node) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	return &node{LoopbackNode: ops.(*fs.LoopbackNode), fs: n.fs}
}

func (n *node) op(kind, name string) Op {
	return Op{Kind: kind, Path: filepath.Join(n.Path(n.Root()), name)}
}

func (n *node) fault(kind, name string) syscall.Errno {
	return n.fs.fault(n.op(kind, name)).Errno
}

func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if !strings.HasPrefix(name, "blk_") { // the way there is no step of its own
		out.SetEntryTimeout(time.Minute)
		return n.LoopbackNode.Lookup(ctx, name, out)
	}
	if errno := n.fault("lookup", name); errno != 0 {
		return nil, errno
	}
	return n.LoopbackNode.Lookup(ctx, name, out)
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.fault("create", name); errno != 0 {
		return nil, nil, 0, errno
	}
	child, h, _, errno := n.LoopbackNode.Create(ctx, name, flags&^syscall.O_DIRECT, mode, out)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	return child, &file{LoopbackFile: h.(*fs.LoopbackFile), node: child.Operations().(*node)}, fuse.FOPEN_DIRECT_IO, 0
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.fault("open", ""); errno != 0 {
		return nil, 0, errno
	}
	h, _, errno := n.LoopbackNode.Open(ctx, flags&^syscall.O_DIRECT)
	if errno != 0 {
		return nil, 0, errno
	}
	return &file{LoopbackFile: h.(*fs.LoopbackFile), node: n}, fuse.FOPEN_DIRECT_IO, 0
}

func (n *node) Setattr(ctx context.Context, h fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if _, ok := in.GetSize(); ok {
		if errno := n.fault("truncate", ""); errno != 0 {
			return errno
		}
	}
	return n.LoopbackNode.Setattr(ctx, h, in, out)
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if errno := n.fault("mkdir", name); errno != 0 {
		return nil, errno
	}
	return n.LoopbackNode.Mkdir(ctx, name, mode, out)
}

func (n *node) Rename(ctx context.Context, name string, parent fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	if errno := n.fault("rename", name); errno != 0 {
		return errno
	}
	return n.LoopbackNode.Rename(ctx, name, parent, newName, flags)
}

func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	if errno := n.fault("unlink", name); errno != 0 {
		return errno
	}
	return n.LoopbackNode.Unlink(ctx, name)
}

func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.fault("opendir", ""); errno != 0 {
		return nil, 0, errno
	}
	h, _, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	return &directory{dirStream: h.(dirStream), node: n}, 0, 0
}

func (n *node) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	if errno := n.fault("statfs", ""); errno != 0 {
		return errno
	}
	return n.LoopbackNode.Statfs(ctx, out)
}

type dirStream interface {
	fs.FileReaddirenter
	fs.FileSeekdirer
	fs.FileReleasedirer
}

// A directory is an open directory.
type directory struct {
	dirStream
	node *node
}

func (d *directory) Fsyncdir(ctx context.Context, flags uint32) syscall.Errno {
	return d.node.fault("fsyncdir", "") // what is behind is not expected to last
}

// A file is an open file.
type file struct {
	*fs.LoopbackFile
	node *node
}

// PassthroughFd says no: what the kernel did by itself would not come here.
func (f *file) PassthroughFd() (int, bool) { return 0, false }

func (f *file) fault(kind string, off int64, n int) Fault {
	op := f.node.op(kind, "")
	op.Offset, op.Length = off, n
	return f.node.fs.fault(op)
}

func (f *file) Read(ctx context.Context, p []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if fault := f.fault("read", off, len(p)); fault.Errno != 0 {
		return nil, fault.Errno
	}
	return f.LoopbackFile.Read(ctx, p, off)
}

func (f *file) Write(ctx context.Context, p []byte, off int64) (uint32, syscall.Errno) {
	fault := f.fault("write", off, len(p))
	if fault.Errno != 0 {
		return 0, fault.Errno
	}
	if fault.Short > 0 {
		p = p[:min(fault.Short, len(p))]
	}
	return f.LoopbackFile.Write(ctx, p, off)
}

// Writev is what may be called instead of Write.
func (f *file) Writev(ctx context.Context, ps [][]byte, off int64) (uint32, syscall.Errno) {
	return f.Write(ctx, bytes.Join(ps, nil), off)
}

func (f *file) Fsync(ctx context.Context, flags uint32) syscall.Errno {
	return f.fault("fsync", 0, 0).Errno
}

func (f *file) Allocate(ctx context.Context, off, size uint64, mode uint32) syscall.Errno {
	if fault := f.fault("fallocate", int64(off), int(size)); fault.Errno != 0 {
		return fault.Errno
	}
	return f.LoopbackFile.Allocate(ctx, off, size, mode)
}
