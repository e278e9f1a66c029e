package read

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blockpath/blockpath/bench/internal/lab"
	"github.com/blockpath/blockpath/bench/internal/peer"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/crc/packet/client"
)

// hostiles are what peers do that mean no good, or are broken, on a connection
// of their own, with the id of a block that nobody else has. They then wait for
// the server to close it.
var hostiles = []struct {
	name string
	act  func(c net.Conn, id int64) error
}{
	{"stalls before a request", func(net.Conn, int64) error { return nil }},
	{"stalls in a request", func(c net.Conn, id int64) error { return send(c, writeBlock(id)[:20]) }},
	{"announces a long request", func(c net.Conn, id int64) error { return send(c, []byte{0, 28, 80, 0xff, 0xff, 0x3f}) }},
	{"sends garbage", func(c net.Conn, id int64) error { return send(c, bytes.Repeat([]byte{0x5a}, 5000)) }},
	{"resets", func(c net.Conn, id int64) error {
		if tcp, ok := c.(*net.TCPConn); ok {
			if err := tcp.SetLinger(0); err != nil {
				return err
			}
		}
		return errors.Join(send(c, writeBlock(id)), c.Close())
	}},
	{"announces 16 MiB", func(c net.Conn, id int64) error {
		return send(c, writeBlock(id), packetOf(16 << 20 / 516 * 512)[:31])
	}},
	{"sends 512 bytes of 16 MiB", func(c net.Conn, id int64) error {
		return send(c, writeBlock(id), packetOf(16 << 20 / 516 * 512)[:31+512])
	}},
	{"sends 512 bytes of 64 KiB", func(c net.Conn, id int64) error { return send(c, writeBlock(id), packetOf(64512)[:31+512]) }},
	{"sends half a packet", func(c net.Conn, id int64) error { return send(c, writeBlock(id), packetOf(64512)[:30000]) }},
	{"sends a damaged packet", func(c net.Conn, id int64) error {
		b := packetOf(512)
		b[len(b)-1]++
		return send(c, writeBlock(id), b)
	}},
	{"never reads", func(c net.Conn, id int64) error {
		req := packet.ReadBlock{Block: packet.Block{Pool: peer.Pool, ID: firstID, Stamp: stamp}, ClientName: "bench", Length: -1, SendChecksums: true}
		return errors.Join(send(c, req.Append(nil)), errNeverReads)
	}},
}

// errNeverReads says that a hostile peer waits without reading.
var errNeverReads = errors.New("never reads")

// perHostile is how many peers there are of each kind.
const perHostile = 25

func writeBlock(id int64) []byte {
	return (&packet.WriteBlock{
		Block: packet.Block{Pool: peer.Pool, ID: id, Stamp: stamp}, ClientName: "bench", Stage: packet.SetupCreate, PipelineSize: 1,
		Checksum: packet.ChecksumOf(crc.Chunks{}),
	}).Append(nil)
}

// packetOf returns the first packet of a block, with n bytes of data.
func packetOf(n int) []byte {
	data := make([]byte, n)
	b := packet.Header{DataLen: n}.Append(nil, crc.Chunks{}.SumsLen(n))
	return append(crc.Chunks{}.Append(b, data), data...)
}

func send(c net.Conn, parts ...[]byte) error {
	for _, b := range parts {
		if _, err := c.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// A siege is hostile peers at work.
type siege struct {
	addr  string
	stop  context.CancelFunc
	ctx   context.Context
	wg    sync.WaitGroup
	id    atomic.Int64
	conns atomic.Int64 // opened
}

// retry is how long a hostile peer waits before it comes again, on average.
const retry = 100 * time.Millisecond

// startSiege has hostile peers of every kind connect again and again.
func startSiege(ctx context.Context, addr string, n int) *siege {
	s := &siege{addr: addr}
	s.id.Store(time.Now().UnixNano() &^ (1<<62 - 1<<61))
	s.ctx, s.stop = context.WithCancel(ctx)
	for _, h := range hostiles {
		for range n {
			s.wg.Add(1)
			go func() {
				defer s.wg.Done()
				for s.ctx.Err() == nil {
					s.attack(h.act)
					select {
					case <-s.ctx.Done():
					case <-time.After(retry/2 + rand.N(retry)):
					}
				}
			}()
		}
	}
	return s
}

func (s *siege) attack(act func(net.Conn, int64) error) {
	c, err := client.Dial(s.ctx, s.addr)
	if err != nil {
		return
	}
	defer c.Close()
	defer context.AfterFunc(s.ctx, func() { c.Close() })()
	s.conns.Add(1)
	switch err := act(c, s.id.Add(1)); {
	case err == nil:
		_, _ = io.Copy(io.Discard, c) // until the server has enough
	case errors.Is(err, errNeverReads):
		<-s.ctx.Done()
	}
}

func (s *siege) end() {
	s.stop()
	s.wg.Wait()
}

// A besieged is what measureHostile measures over one network.
type besieged struct {
	usual, hostile [2][]float64 // p50 and p99 in seconds, a value per round
	conns          int64        // of hostile peers, opened while the others were served
	rss            int64        // of the server beside them, in bytes, at most
}

// measureHostile measures how long others wait for a put and a get while hostile
// peers do what they can, compared with what they usually wait.
func measureHostile(ctx context.Context, s *server, dir string, sz size, r *lab.Report) error {
	r.Printf("\na put of %d KiB and a get of %d KiB, %d in a row, alone and beside %d hostile peers\n%-8s %10s %10s %10s %10s %8s %8s %8s %8s\n",
		othersLen>>10, othersLen>>10, sz.others, perHostile*len(hostiles), "", "p50 us", "hostile", "p99 us", "hostile", "p50 x", "p99 x", "attacks", "RSS MiB")
	for _, network := range []string{"tcp", "unix"} {
		addr := s.addr
		if network == "unix" {
			addr = "unix:" + socketPath(dir)
		}
		var b besieged
		for round := range sz.rounds + 1 {
			before, err := serveOthers(ctx, addr, dir, sz.others)
			if err != nil {
				return err
			}
			siege := startSiege(ctx, addr, perHostile)
			time.Sleep(sz.sample) // until all have come
			opened := siege.conns.Load()
			during, err := serveOthers(ctx, addr, dir, sz.others)
			b.conns += siege.conns.Load() - opened
			used, usageErr := s.usage("")
			b.rss = max(b.rss, used.RSS)
			siege.end()
			if err = errors.Join(err, usageErr); err != nil {
				return fmt.Errorf("beside hostile peers, over %s: %w", network, err)
			}
			if round == 0 {
				continue // to warm up
			}
			for i := range 2 {
				b.usual[i] = append(b.usual[i], before[i])
				b.hostile[i] = append(b.hostile[i], during[i])
			}
		}
		name := "others/" + network
		r.Metric(name+"/hostile/rss-bytes", float64(b.rss))
		for i, p := range []string{"p50", "p99"} {
			r.Metric(name+"/usual/"+p+"-us", lab.Median(b.usual[i])*1e6)
			r.Metric(name+"/hostile/"+p+"-us", lab.Median(b.hostile[i])*1e6)
			r.Ratio(name+"/"+p+"/hostile/vs=usual", lab.Quotient(b.hostile[i], b.usual[i]))
		}
		r.Printf("%-8s %10.0f %10.0f %10.0f %10.0f %8.2f %8.2f %8d %8d\n", network,
			lab.Median(b.usual[0])*1e6, lab.Median(b.hostile[0])*1e6, lab.Median(b.usual[1])*1e6, lab.Median(b.hostile[1])*1e6,
			r.Ratios[name+"/p50/hostile/vs=usual"], r.Ratios[name+"/p99/hostile/vs=usual"], b.conns, b.rss>>20)
		r.Target(name+"/p50/hostile/vs=usual", "<=2", r.Ratios[name+"/p50/hostile/vs=usual"])
	}
	return nil
}

// othersLen is how much the others put and get at a time.
const othersLen = 256 << 10

// serveOthers has a client put and get n times, and returns the median of how
// long that took and its 99th percentile, in seconds.
func serveOthers(ctx context.Context, addr, dir string, n int) (p [2]float64, err error) {
	data := bytes.Repeat([]byte("blockpath"), othersLen/9+1)[:othersLen]
	var times []time.Duration
	var got bytes.Buffer
	for range n {
		start := time.Now()
		f, _, err := client.Put(ctx, bytes.NewReader(data), "other", []string{addr}, client.PutConfig{Pool: othersPool})
		if err != nil {
			return p, err
		}
		got.Reset()
		m := client.NewManifest(othersPool, crc.Chunks{})
		if _, err := client.Get(ctx, &got, m, &f, []string{addr}, client.GetConfig{}); err != nil {
			return p, err
		}
		times = append(times, time.Since(start))
		if !bytes.Equal(got.Bytes(), data) {
			return p, errors.New("a client has got something else than it has put")
		}
	}
	slices.Sort(times)
	files, err := filepath.Glob(filepath.Join(dir, "current", othersPool, "current", "finalized", "*", "*", "blk_*"))
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	return [2]float64{times[n/2].Seconds(), times[n*99/100].Seconds()}, err
}

// othersPool is the block pool of those whom hostile peers disturb.
const othersPool = "BP-2-127.0.0.1-1"

func socketPath(dir string) string { return filepath.Join(dir, "socket") }
