//go:build linux || darwin

package datanode

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/iouring"
)

// evictFiles is how many files that are kept open are closed at a time when
// descriptors have run out.
const evictFiles = 16

// maxFiles returns how many files the process may have open.
func maxFiles() (int, error) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 0, os.NewSyscallError("getrlimit", err)
	}
	return int(min(files.Cur, 1<<20)), nil
}

// withFiles calls open. As long as it fails for want of file descriptors, and
// there are files that are only kept open, it closes some of them and calls it
// again.
func (s *Store) withFiles(open func() error) error {
	for {
		err := open()
		if err == nil || !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) || s.files.Evict(evictFiles) == 0 {
			return err
		}
		s.stats.Add(statFilesEvicted, evictFiles)
	}
}

// openFile is iouring.OpenFile by withFiles.
func (s *Store) openFile(name string, flag int, perm os.FileMode) (f *iouring.File, err error) {
	err = s.withFiles(func() error {
		f, err = iouring.OpenFile(name, flag, perm)
		return err
	})
	return f, err
}

// keptFiles makes the cache of open files. A file is known by its name, which
// says block and stamp, and by its inode. Whoever renames or removes one has it
// forgotten, see [replica.forget]; what others do to it is noticed, see
// [replica.current].
func (s *Store) keptFiles() (*iouring.FileCache, error) {
	n := s.cfg.OpenFiles
	if n == 0 {
		all, err := maxFiles()
		if err != nil {
			return nil, err
		}
		// With as many connections, and writers, there is room left.
		n = max(all/4, 1)
	}
	return iouring.NewFileCache(max(n, 0), func(name string) (*iouring.File, error) {
		s.stats.Add(statFilesOpened, 1)
		return s.openFile(name, os.O_RDONLY, 0)
	}), nil
}

// A replicaFiles is the files of a replica, open for reading.
type replicaFiles struct {
	blk, meta *iouring.CachedFile
}

// acquire opens the files of a replica, or takes those that are open. The caller
// holds r.mu.
func (r *replica) acquire() (f replicaFiles, reason string, err error) {
	if r.names == [2]string{} {
		r.names = [2]string{r.blockPath(), r.metaPath()}
	}
	if f.blk, err = r.get(0); err != nil {
		return replicaFiles{}, "cannot open the block file", err
	}
	if f.meta, err = r.get(1); err != nil {
		return replicaFiles{}, "cannot open the .meta file", errors.Join(err, f.blk.Release())
	}
	return f, "", nil
}

// get opens one of the files.
func (r *replica) get(i int) (*iouring.CachedFile, error) {
	for {
		f, err := r.vol.files.Get(r.names[i])
		if err != nil {
			return nil, err
		}
		current, err := r.current(i, f)
		if current {
			return f, nil
		}
		_ = r.vol.files.Forget(r.names[i])
		if err := errors.Join(err, f.Release()); err != nil {
			return nil, err
		}
	}
}

// An inode tells whether a file is still the same, and what happened to it: a
// file that is replaced, renamed or removed gets another change time or number of
// links, and one that is written to as well.
type inode struct {
	dev, number uint64
	links       uint64
	changed     unix.Timespec
}

func inodeOf(s *unix.Stat_t) inode {
	return inode{uint64(s.Dev), uint64(s.Ino), uint64(s.Nlink), s.Ctim}
}

// current reports whether an open file is the one that its name stands for:
// somebody else may have put another one in its place, which then counts, or
// removed it.
func (r *replica) current(i int, f *iouring.CachedFile) (bool, error) {
	var open, named unix.Stat_t
	if err := unix.Fstat(int(f.OS().Fd()), &open); err != nil {
		return false, &os.PathError{Op: "fstat", Path: r.names[i], Err: err}
	}
	now, before := inodeOf(&open), r.inodes[i]
	if now == before {
		return true, nil
	}
	if err := unix.Stat(r.names[i], &named); err != nil {
		return false, &os.PathError{Op: "stat", Path: r.names[i], Err: err}
	}
	if open.Dev != named.Dev || open.Ino != named.Ino {
		return false, nil
	}
	if i == 1 && before != (inode{}) && r.state == finalized {
		r.known = false // what it says is to be learned anew
	}
	r.inodes[i] = now
	return true, nil
}

func (f replicaFiles) release() error {
	return errors.Join(f.blk.Release(), f.meta.Release())
}

// forget makes the next reader open the files anew: they have been moved or
// removed, or are about to be. The caller holds r.mu.
func (r *replica) forget() {
	if r.names == [2]string{} {
		return
	}
	for _, name := range r.names {
		_ = r.vol.files.Forget(name) // closing what is only read loses nothing
	}
	r.names, r.inodes = [2]string{}, [2]inode{}
}
