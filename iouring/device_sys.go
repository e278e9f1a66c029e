//go:build linux || darwin

package iouring

import (
	"context"
	"sync"

	"golang.org/x/sys/unix"
)

// maxParallelSyncs bounds the threads that one Datasync uses, those of the
// kernel when it goes through the ring.
const maxParallelSyncs = 16

// sysDevice is plain system calls on the caller's goroutine.
type sysDevice struct{}

func (sysDevice) read(_ context.Context, f *File, mem []byte, off int64) (int, error) {
	return unix.Pread(f.fd, mem, off)
}

func (sysDevice) write(_ context.Context, f *File, bs []Buffer, skip int, off int64) (int, error) {
	if len(bs) == 1 {
		return unix.Pwrite(f.fd, bs[0].pinned()[skip:], off)
	}
	return pwritev(f.fd, bs, skip, off)
}

func (sysDevice) datasync(_ context.Context, files []*File, errs []error) {
	if len(files) == 1 {
		errs[0] = fdatasync(files[0])
		return
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxParallelSyncs)
	for i, f := range files {
		slots <- struct{}{}
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[i] = fdatasync(f)
			<-slots
		}()
	}
	wg.Wait()
}

func (sysDevice) close() error { return nil }
