//go:build linux || darwin

package datanode

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// concurrentTime is how long a block is appended to and read at the same time.
var concurrentTime = flag.Duration("concurrent", 500*time.Millisecond, "how long to append to a block and read it at the same time")

// appendAndRead appends to a block for the given time, or until it is full: in small packets, with
// flushes in mid-chunk that are sent again, syncs, finalizations, appends and
// recoveries. Meanwhile others read it, through the store and over the server's
// connections. Nobody sees anything but a prefix of what is written, at least as
// long as what was acknowledged before, and everything verifies.
func appendAndRead(t *testing.T, s *Store, addr net.Addr, b packet.Block, d time.Duration) {
	c := crc.Chunks{}
	data := randomBytes(71, 4<<20)
	w, err := s.Create(bg, b, c)
	if err != nil {
		t.Fatal(err)
	}
	var (
		acked atomic.Int64
		stop  = make(chan struct{})
		wg    sync.WaitGroup
	)
	check := func(got []byte, at int, least int64) {
		if !bytes.Equal(got, data[at:at+len(got)]) {
			t.Errorf("%d bytes at %d are not what was written", len(got), at)
		}
		if int64(at+len(got)) < least {
			t.Errorf("%d bytes are visible of %d that are acknowledged", at+len(got), least)
		}
	}
	for i := range 2 {
		wg.Add(2)
		go func() { // through the store
			defer wg.Done()
			rng := rand.New(rand.NewPCG(uint64(b.ID), uint64(i)))
			for !closed(stop) {
				least := acked.Load()
				r, err := s.Open(packet.Block{Pool: b.Pool, ID: b.ID})
				if err != nil {
					t.Errorf("open: %v", err)
					return
				}
				at := 0
				if r.Len() > 0 {
					at = rng.IntN(int(r.Len()))
				}
				got := make([]byte, r.Len()-int64(at))
				if _, err := r.ReadAt(got, int64(at)); err != nil {
					t.Errorf("%d bytes at %d of %d: %v", len(got), at, r.Len(), err)
					return
				}
				check(got, at, least)
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}
		}()
		go func() { // over a connection
			defer wg.Done()
			p := dial(t, addr)
			if err := p.SetDeadline(time.Now().Add(d + time.Minute)); err != nil {
				t.Error(err)
			}
			for !closed(stop) {
				least := acked.Load()
				got, at := p.get(readRequest(packet.Block{Pool: b.Pool, ID: b.ID}, 0, -1))
				check(got, int(at), least)
			}
			p.Close()
		}()
	}

	rng := rand.New(rand.NewPCG(uint64(b.ID), 4))
	seqno := int64(0)
	flushed := 0 // the block's length at the last flush; what follows begins at its chunk
	appending := false
	for end := time.Now().Add(d); time.Now().Before(end) && flushed < len(data); {
		for range 1 + rng.IntN(20) {
			start := flushed - flushed%512
			if appending { // the client has not seen the chunk
				start = flushed
			}
			n := min(1+rng.IntN(3000), len(data)-start)
			if appending && start%512 != 0 {
				n = min(n, 512-start%512)
			}
			n = max(n, min(flushed-start, len(data)-start))
			if err := send(t, w, packet.Header{Offset: int64(start), Seqno: seqno}, data[start:start+n]); err != nil {
				t.Fatal(err)
			}
			seqno++
			flush := w.Flush
			if rng.IntN(20) == 0 {
				flush = w.Sync
			}
			if err := flush(bg); err != nil {
				t.Fatal(err)
			}
			flushed = max(flushed, start+n)
			appending = appending && flushed%512 != 0
			acked.Store(int64(flushed))
		}
		switch old := b; rng.IntN(3) {
		case 0: // close and append
			if err := w.Finalize(bg, false); err != nil {
				t.Fatal(err)
			}
			b.Stamp++
			w, err = s.Append(bg, old, b.Stamp, int64(flushed), c)
			appending = flushed%512 != 0
		case 1: // recover, with the writer or without
			if rng.IntN(2) == 0 {
				if err := w.Abort(bg); err != nil {
					t.Fatal(err)
				}
			}
			b.Stamp++
			w, err = s.Recover(bg, old, b.Stamp, int64(flushed), int64(flushed), c)
		case 2: // close, recover the end, and append
			b.Stamp++
			if err := s.RecoverClose(bg, old, b.Stamp, int64(flushed)); err != nil {
				t.Fatal(err)
			}
			old = b
			b.Stamp++
			w, err = s.RecoverAppend(bg, old, b.Stamp, int64(flushed), c)
			appending = flushed%512 != 0
		}
		if err != nil {
			t.Fatal(err)
		}
		seqno = 0
	}
	close(stop)
	wg.Wait()
	if err := w.Finalize(bg, false); err != nil {
		t.Fatal(err)
	}
	checkFiles(t, s, b, c, data[:flushed])
	t.Logf("%d bytes, stamp %d", flushed, b.Stamp)
	if n := s.stats.Load(statChecksumErrors); n != 0 {
		t.Errorf("%d checksum errors", n)
	}
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
