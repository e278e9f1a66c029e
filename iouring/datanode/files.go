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
// says block and stamp: whoever renames or removes one has it forgotten, see
// [replica.forget], so a name never stands for another inode.
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
	if f.blk, err = r.vol.files.Get(r.names[0]); err != nil {
		return replicaFiles{}, "cannot open the block file", err
	}
	if f.meta, err = r.vol.files.Get(r.names[1]); err != nil {
		return replicaFiles{}, "cannot open the .meta file", errors.Join(err, f.blk.Release())
	}
	return f, "", nil
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
	r.names = [2]string{}
}
