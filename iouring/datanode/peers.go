//go:build linux || darwin

package datanode

import (
	"container/list"
	"context"
	"net"
	"sync"
)

// A remote is everybody at one IP address, or at the other ends of unix sockets.
type remote struct {
	name   string
	conns  int    // guarded by the server's mutex
	memory budget // for packets
	large  budget // of it for those that are long, as the server's
}

// remoteName is what the connections of a remote have in common.
func remoteName(a net.Addr) string {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.IP.String()
	}
	return a.Network()
}

// join counts a connection to its remote, unless that has too many; one that waits
// for a request then makes room, if there is one. The caller holds s.mu, and calls
// leave in the end.
func (s *Server) join(name string) *remote {
	r := s.remotes[name]
	if r == nil {
		r = &remote{name: name, memory: budget{limit: s.cfg.MaxPeerMemory}, large: budget{limit: s.cfg.MaxPeerMemory / 4}}
	}
	if r.conns >= s.cfg.MaxPeerConns && !s.closeIdle(r) {
		return nil
	}
	r.conns++
	s.remotes[name] = r
	return r
}

// leave takes a connection off its remote. The caller holds s.mu.
func (s *Server) leave(r *remote) {
	if r.conns--; r.conns == 0 {
		delete(s.remotes, r.name)
	}
}

// A budget is bytes of memory that may be taken and given back, first come first
// served. Whoever asks for more than all of it gets it when nobody else has any.
type budget struct {
	limit int64

	mu    sync.Mutex
	used  int64
	queue list.List // of *taker
}

type taker struct {
	n     int64
	ready chan struct{}
}

// fits reports whether n more bytes may be taken now.
func (b *budget) fits(n int64) bool { return b.used == 0 || b.used+n <= b.limit }

// tryTake takes n bytes if there are so many left and nobody waits for some.
func (b *budget) tryTake(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.queue.Len() > 0 || !b.fits(n) {
		return false
	}
	b.used += n
	return true
}

// take takes n bytes, as soon as there are so many left.
func (b *budget) take(ctx context.Context, n int64) error {
	if b.tryTake(n) {
		return nil
	}
	b.mu.Lock()
	t := &taker{n, make(chan struct{})}
	e := b.queue.PushBack(t)
	b.grant()
	b.mu.Unlock()
	select {
	case <-t.ready:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-t.ready: // it came at the same time
		b.used -= n
	default:
		b.queue.Remove(e)
	}
	b.grant()
	return ctx.Err()
}

// pressed reports whether half of it would be in use with n bytes more.
func (b *budget) pressed(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used > 0 && b.used+n > b.limit/2
}

// give gives n bytes back.
func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	b.grant()
}

// grant serves those who wait. The caller holds b.mu.
func (b *budget) grant() {
	for e := b.queue.Front(); e != nil; e = b.queue.Front() {
		t := e.Value.(*taker)
		if !b.fits(t.n) {
			return
		}
		b.queue.Remove(e)
		b.used += t.n
		close(t.ready)
	}
}
