//go:build linux || darwin

package datanode

import (
	"errors"
	"os"
	"time"

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
	if r.kept[0].name == "" {
		r.kept = [2]keptFile{{name: r.blockPath()}, {name: r.metaPath()}}
	}
	now := time.Now()
	if f.blk, err = r.get(0, now); err != nil {
		return replicaFiles{}, "cannot open the block file", err
	}
	if f.meta, err = r.get(1, now); err != nil {
		return replicaFiles{}, "cannot open the .meta file", errors.Join(err, f.blk.Release())
	}
	return f, "", nil
}

// checkEvery is how long what others have done to a file may go unnoticed. To look
// at every read would take longer than all the rest of opening a block.
const checkEvery = 10 * time.Millisecond

// A keptFile is what is known of an open file of a replica.
type keptFile struct {
	name    string
	file    *iouring.CachedFile // which may be closed again; to tell it from another
	inode   inode
	checked time.Time
}

// get opens one of the files.
func (r *replica) get(i int, now time.Time) (*iouring.CachedFile, error) {
	for kept := &r.kept[i]; ; {
		f, err := r.vol.files.Get(kept.name)
		if err != nil {
			return nil, err
		}
		if f == kept.file && now.Sub(kept.checked) < checkEvery {
			return f, nil
		}
		current, err := r.current(i, f)
		if current {
			kept.file, kept.checked = f, now
			return f, nil
		}
		_ = r.vol.files.Forget(kept.name)
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
	kept := &r.kept[i]
	var open, named unix.Stat_t
	if err := unix.Fstat(int(f.OS().Fd()), &open); err != nil {
		return false, &os.PathError{Op: "fstat", Path: kept.name, Err: err}
	}
	now, before := inodeOf(&open), kept.inode
	if now == before {
		return true, nil
	}
	if err := unix.Stat(kept.name, &named); err != nil {
		return false, &os.PathError{Op: "stat", Path: kept.name, Err: err}
	}
	if open.Dev != named.Dev || open.Ino != named.Ino {
		return false, nil
	}
	if i == 1 && before != (inode{}) && r.state == finalized {
		r.known = false // what it says is to be learned anew
	}
	kept.inode = now
	return true, nil
}

func (f replicaFiles) release() error {
	return errors.Join(f.blk.Release(), f.meta.Release())
}

// forget makes the next reader open the files anew: they have been moved or
// removed, or are about to be. The caller holds r.mu.
func (r *replica) forget() {
	if r.kept[0].name == "" {
		return
	}
	for _, kept := range r.kept {
		_ = r.vol.files.Forget(kept.name) // closing what is only read loses nothing
	}
	r.kept = [2]keptFile{}
}
