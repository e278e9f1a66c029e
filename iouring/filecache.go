//go:build linux || darwin

package iouring

import (
	"container/list"
	"errors"
	"os"
	"sync"
)

// A FileCache keeps files open between uses: opening and closing costs several
// times what a cached read does. It is safe for concurrent use.
type FileCache struct {
	max  int
	open func(name string) (*File, error)

	mu     sync.Mutex
	byName map[string]*CachedFile
	idle   list.List // of *CachedFile, least recently used first
	n      int       // files open
	closed bool
}

// A CachedFile is a [File] of a [FileCache]. Release it when done; do not Close
// it.
type CachedFile struct {
	*File

	cache   *FileCache
	name    string
	ready   chan struct{} // closed when open has returned
	err     error
	refs    int
	dropped bool // no longer in byName
	at      *list.Element
}

// NewFileCache makes a cache that keeps at most max files open when not all of
// them are in use; what is in use beyond that is closed on release. open opens a
// file by name, os.O_RDONLY if it is nil.
func NewFileCache(max int, open func(name string) (*File, error)) *FileCache {
	if open == nil {
		open = func(name string) (*File, error) { return OpenFile(name, os.O_RDONLY, 0) }
	}
	return &FileCache{max: max, open: open, byName: make(map[string]*CachedFile)}
}

// Get returns the file of that name, opening it if need be; callers that ask at
// the same time share it. The error is that of open, or os.ErrClosed; a failed
// open is not remembered.
func (c *FileCache) Get(name string) (*CachedFile, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, os.ErrClosed
	}
	f := c.byName[name]
	if f != nil {
		f.refs++
		if f.at != nil {
			c.idle.Remove(f.at)
			f.at = nil
		}
		c.mu.Unlock()
		<-f.ready
		if f.err != nil {
			return nil, f.err
		}
		return f, nil
	}
	f = &CachedFile{cache: c, name: name, ready: make(chan struct{}), refs: 1}
	c.byName[name] = f
	c.n++
	evicted := c.evict()
	c.mu.Unlock()

	// Closing what nobody uses has no error that matters to this caller: all
	// writers have synced.
	_ = closeAll(evicted)
	f.File, f.err = c.open(name)
	if f.err != nil {
		c.mu.Lock()
		c.drop(f)
		c.n--
		c.mu.Unlock()
	}
	close(f.ready)
	if f.err != nil {
		return nil, f.err
	}
	return f, nil
}

// Release ends a use of the file. The error is that of closing it, if this was
// the last use of a file that is not kept.
func (f *CachedFile) Release() error {
	c := f.cache
	c.mu.Lock()
	if f.refs == 0 {
		c.mu.Unlock()
		panic("iouring: release of a cached file that is not in use")
	}
	f.refs--
	var out []*CachedFile
	if f.refs == 0 {
		if f.dropped {
			c.n--
			out = append(out, f)
		} else {
			f.at = c.idle.PushBack(f)
			out = c.evict()
		}
	}
	c.mu.Unlock()
	return closeAll(out)
}

// Forget makes the next Get of the name open the file anew: after it was
// renamed, replaced or removed. Those that use it keep what they have.
func (c *FileCache) Forget(name string) error {
	c.mu.Lock()
	var out []*CachedFile
	if f := c.byName[name]; f != nil {
		c.drop(f)
		if f.at != nil {
			c.take(f)
			out = append(out, f)
		}
	}
	c.mu.Unlock()
	return closeAll(out)
}

// Evict closes up to n files that are not in use, least recently used first, and
// returns how many it closed: for when the process has run out of descriptors.
func (c *FileCache) Evict(n int) int {
	c.mu.Lock()
	var out []*CachedFile
	for len(out) < n && c.idle.Len() > 0 {
		out = append(out, c.oldest())
	}
	c.mu.Unlock()
	_ = closeAll(out) // as in Get
	return len(out)
}

// Len returns how many files are open.
func (c *FileCache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// Close closes the files that are not in use, and the others when they are
// released. Later calls of Get fail with os.ErrClosed.
func (c *FileCache) Close() error {
	c.mu.Lock()
	c.closed = true
	var out []*CachedFile
	for _, f := range c.byName {
		c.drop(f)
		if f.at != nil {
			c.take(f)
			out = append(out, f)
		}
	}
	c.mu.Unlock()
	return closeAll(out)
}

// drop takes f out of the names.
func (c *FileCache) drop(f *CachedFile) {
	if !f.dropped {
		f.dropped = true
		delete(c.byName, f.name)
	}
}

// take takes an idle f out of the count.
func (c *FileCache) take(f *CachedFile) {
	c.idle.Remove(f.at)
	f.at = nil
	c.n--
}

// evict takes out idle files beyond the bound.
func (c *FileCache) evict() (out []*CachedFile) {
	for c.n > c.max && c.idle.Len() > 0 {
		out = append(out, c.oldest())
	}
	return out
}

// oldest takes out the idle file that was used the longest ago.
func (c *FileCache) oldest() *CachedFile {
	f := c.idle.Front().Value.(*CachedFile)
	c.drop(f)
	c.take(f)
	return f
}

func closeAll(files []*CachedFile) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.File.Close())
	}
	return errors.Join(errs...)
}
