//go:build linux || darwin

package datanode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/iouring"
)

// A volume is one directory of a store.
type volume struct {
	root  string
	lock  *os.File
	files *iouring.FileCache // of the store

	durable time.Time   // everything that was in the volume then is on stable storage
	intact  bool        // the store was closed, and the page cache is the same since
	unread  bool        // something could not be read: another opening has to check it
	dirty   atomic.Bool // blocks have been finalized since

	reserved atomic.Int64 // bytes promised to writers and not yet written

	mu      sync.Mutex
	pools   map[string]bool // whose directories exist
	durably map[string]bool // directories that are on stable storage, with those above them
}

// The lock file has the holder in its first line, then the time before which
// everything in the volume is durable, and after a Close what names the page cache.
//
//	1234@host
//	durable 2026-11-30T18:00:00.123456789Z
//	closed 7b0f2b4e-6f6c-4c0c-9d2a-3f1f0f3f7f11-2147483684
const (
	durableLine = "durable "
	closedLine  = "closed "
)

func openVolume(dir string) (*volume, error) {
	root, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := mkdirAll(root); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(root, lockFile), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	v := &volume{root: root, lock: f, pools: map[string]bool{}, durably: map[string]bool{root: true}}
	lockErr := tryLock(f)
	content := make([]byte, 512)
	n, err := readFull(f, content, 0)
	lines := strings.Split(string(content[:n]), "\n")
	switch {
	case lockErr != nil && lockHeld(lockErr):
		err = &LockError{Dir: root, Holder: lines[0]}
	case lockErr != nil:
		err = fmt.Errorf("datanode: cannot lock %s: %w", root, lockErr)
	}
	if err == nil {
		err = os.MkdirAll(filepath.Join(root, currentDir), 0o755)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	v.durable, v.intact = time.Now(), true // what a directory has that is new to us is taken as it is
	for _, line := range lines[1:] {
		if stamp, ok := strings.CutPrefix(line, durableLine); ok {
			// If it does not parse, which means that it was torn, or has not come yet,
			// nothing is known to be durable.
			v.durable, _ = time.Parse(time.RFC3339Nano, stamp)
			v.intact = false
			if v.durable.After(time.Now()) {
				v.durable = time.Time{}
			}
		}
		if cache, ok := strings.CutPrefix(line, closedLine); ok {
			v.intact = cache != "" && cache == cacheID(f)
		}
	}
	return v, nil
}

// mark writes the lock file.
func (v *volume) mark(closed bool) error {
	host, _ := os.Hostname()
	content := fmt.Sprintf("%d@%s\n%s%s\n", os.Getpid(), host, durableLine, v.durable.UTC().Format(time.RFC3339Nano))
	if closed {
		content += closedLine + cacheID(v.lock) + "\n"
	}
	// Shorter than a sector: after a power cut it is the old content or the new.
	if _, err := v.lock.WriteAt([]byte(content), 0); err != nil {
		return err
	}
	if err := v.lock.Truncate(int64(len(content))); err != nil || closed {
		return err
	}
	return v.lock.Sync()
}

// checkpointEvery is how often what has been finalized is made durable.
const checkpointEvery = time.Minute

// checkpoint makes everything durable that is in the volume, and notes that,
// unless there is something of which it is not known.
func (v *volume) checkpoint() error {
	if v.unread {
		return nil
	}
	now := time.Now()
	v.dirty.Store(false)
	err := syncFS(v.lock)
	if err == nil {
		v.durable = now
		err = v.mark(false)
	}
	if err != nil {
		v.dirty.Store(true)
	}
	return err
}

// mkdir creates a directory of the volume and those above it. With durable set
// all of them are on stable storage when it returns, also those that were there
// before: whoever made them may not have waited for that.
func (v *volume) mkdir(dir string, durable bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mkdirLocked(dir, durable)
}

func (v *volume) mkdirLocked(dir string, durable bool) error {
	if err := os.MkdirAll(dir, 0o755); err != nil || !durable || v.durably[dir] {
		return err
	}
	parent := filepath.Dir(dir)
	if err := v.mkdirLocked(parent, true); err != nil {
		return err
	}
	if err := syncDir(parent); err != nil {
		return err
	}
	v.durably[dir] = true
	return nil
}

// mkdirAll is os.MkdirAll, and makes the new entries durable.
func mkdirAll(dir string) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := mkdirAll(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(parent)
}

// syncDir makes the entries of a directory durable. It takes an fsync: an
// fdatasync may leave out a directory whose size has not changed.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// addPool creates the directories of a pool. They are made durable when something
// in them is.
func (v *volume) addPool(pool string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.pools[pool] {
		return nil
	}
	for _, dir := range []string{
		rbwPath(v.root, pool),
		filepath.Join(poolDir(v.root, pool), finalizedDir),
		tmpPath(v.root, pool),
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	v.pools[pool] = true
	return nil
}

// free returns how many bytes may be promised to further writers.
func (v *volume) free() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(v.root, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: v.root, Err: err}
	}
	return int64(st.Bavail)*int64(st.Bsize) - v.reserved.Load(), nil
}

// reserve promises n bytes to a writer. A *[SpaceError] says that they are not
// there.
func (v *volume) reserve(n int64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	free, err := v.free()
	if err != nil {
		return err
	}
	if free < n || free <= 0 {
		return &SpaceError{Dir: v.root, Need: n, Free: max(free, 0)}
	}
	v.reserved.Add(n)
	return nil
}
