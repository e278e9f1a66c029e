// Package write measures the block store's writer: what it costs to bring the
// packets of one or many blocks to the disk, by the size of the packets and the
// way of writing.
package write

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/bench/internal/lab"
	"github.com/blockpath/blockpath/bench/internal/peer"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring"
	"github.com/blockpath/blockpath/iouring/datanode"
	"github.com/blockpath/blockpath/stripedcounter"
)

// Experiment is the experiment.
var Experiment = lab.Experiment{
	Name:    "write",
	Summary: "packets to the disk: two pwrites per packet, coalesced, O_DIRECT by the ring (HDFS-4070, HDFS-6561)",
	Run:     run,
}

// size is how long the experiment runs.
type size struct {
	rounds   int
	budget   time.Duration
	total    int // bytes per sample, of all blocks together
	profiled int // samples under the profiler
}

func run(ctx context.Context, quick bool, r *lab.Report) error {
	sz := size{rounds: 11, budget: 6 * time.Minute, total: 512 << 20, profiled: 8}
	if quick {
		sz = size{rounds: 5, budget: 20 * time.Second, total: 128 << 20, profiled: 8}
	}
	return measure(ctx, sz, r)
}

const gib = 1 << 30

// A way writes a block of n packets like p and makes it durable.
type way struct {
	name  string
	block func(ctx context.Context, id int64, p *model, n int) (end func() error, err error)
	calls func() int64 // system calls on files so far
}

// A model is the packet that all the packets of a sample are like.
type model struct {
	sums, data []byte
}

func newModel(packetSize int) *model {
	n := packet.PacketChunks(packetSize, crc.Chunks{})
	m := &model{data: make([]byte, n*peer.Chunk)}
	x := uint32(2463534242)
	for i := range m.data {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		m.data[i] = byte(x)
	}
	m.sums = crc.Chunks{}.Append(nil, m.data)
	return m
}

// receive stands for the system call that reads a packet from a socket.
func (m *model) receive(sums, data []byte) {
	copy(sums, m.sums)
	copy(data, m.data)
}

func measure(ctx context.Context, sz size, r *lab.Report) (err error) {
	dir, err := peer.TempDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	plain := &twoPwrites{dir: filepath.Join(dir, "plain")}
	if err := os.Mkdir(plain.dir, 0o755); err != nil {
		return err
	}
	buffered, err := openStore(filepath.Join(dir, "buffered"), false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, buffered.close()) }()
	direct, err := openStore(filepath.Join(dir, "direct"), true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, direct.close()) }()

	ways := []way{
		{"two-pwrites", plain.write, plain.calls.Load},
		{"coalesced", buffered.write, buffered.calls},
		{"direct", direct.write, direct.calls},
	}
	rows := map[string]*lab.Row{}
	calls := map[string]float64{} // per GiB
	var order []*lab.Row
	id := int64(0)
	sample := func(w way, blocks int, m *model) (ends []func() error, err error) {
		n := sz.total / blocks / len(m.data)
		errs := make([]error, blocks)
		ends = make([]func() error, blocks)
		var wg sync.WaitGroup
		for i := range blocks {
			id++
			wg.Add(1)
			go func(id int64) {
				defer wg.Done()
				ends[i], errs[i] = w.block(ctx, id, m, n)
			}(id)
		}
		wg.Wait()
		return ends, errors.Join(errs...)
	}
	end := func(ends []func() error) error {
		var errs []error
		for _, f := range ends {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	packets := []struct {
		name  string
		model *model
	}{{"64k", newModel(packet.DefaultPacketSize)}, {"1m", newModel(1 << 20)}}
	for _, blocks := range []int{1, 16} {
		for _, p := range packets {
			for _, w := range ways {
				name := fmt.Sprintf("%dblocks/%s/%s", blocks, p.name, w.name)
				written := float64(sz.total/blocks/len(p.model.data)*blocks*len(p.model.data)) / gib
				var ends []func() error
				row := &lab.Row{
					Name: name, Work: written,
					Prepare: func() error { return lab.WarmMemory(sz.total + sz.total/8) },
					Do: func() (err error) {
						before := w.calls()
						ends, err = sample(w, blocks, p.model)
						calls[name] = float64(w.calls()-before) / written
						return err
					},
					Check: func() error { return end(ends) },
				}
				rows[name] = row
				order = append(order, row)
			}
		}
	}
	if _, err := lab.AlternateWithin(ctx, sz.budget, sz.rounds, order...); err != nil {
		return err
	}

	r.Printf("%d MiB in all, durable at the end; O_DIRECT by the %s backend; %d rounds\n%-28s %14s %14s %12s %7s %7s\n",
		sz.total>>20, direct.backend.Name(), len(order[0].Wall), "", "CPU s/GiB", "wall s/GiB", "calls/GiB", "CPU x", "wall x")
	for i, row := range order {
		base := order[i-i%len(ways)]
		cpu, wall := lab.Summarize(row.CPU), lab.Summarize(row.Wall)
		r.Metric(row.Name+"/cpu-s-per-gib", cpu.Median)
		r.Metric(row.Name+"/wall-s-per-gib", wall.Median)
		r.Metric(row.Name+"/syscalls-per-gib", calls[row.Name])
		if row != base {
			r.Ratio(row.Name+"/cpu/vs=two-pwrites", lab.Quotient(row.CPU, base.CPU))
			r.Ratio(row.Name+"/wall/vs=two-pwrites", lab.Quotient(row.Wall, base.Wall))
			r.Ratio(row.Name+"/syscalls/vs=two-pwrites", calls[row.Name]/calls[base.Name])
		}
		r.Printf("%-28s %14s %14s %12.0f %7.2f %7.2f\n", row.Name, cpu, wall, calls[row.Name],
			lab.Quotient(row.CPU, base.CPU), lab.Quotient(row.Wall, base.Wall))
	}
	const coalesced = "16blocks/64k/coalesced/"
	for _, t := range []struct{ what, limit string }{{"cpu", "<=0.65"}, {"wall", "<=0.8"}, {"syscalls", "<=0.067"}} {
		r.Target("16blocks/64k/"+t.what+"/vs=two-pwrites", t.limit, r.Ratios[coalesced+t.what+"/vs=two-pwrites"])
	}

	share, samples, err := lab.ShareOfCPU(func() error {
		for range sz.profiled {
			ends, err := sample(ways[1], 16, packets[0].model)
			if err := errors.Join(err, end(ends)); err != nil {
				return err
			}
		}
		return nil
	}, "github.com/blockpath/blockpath/crc.Chunks.Verify")
	if err != nil {
		return err
	}
	r.Printf("\nverifying: %.1f %% of the CPU time of 16blocks/64k/coalesced, of %d samples\n", 100*share, samples)
	r.Ratio("verify-share-of-cpu", share)
	r.Target("verify-share-of-cpu", "<=0.10", share)
	return nil
}

// twoPwrites verifies each packet and writes its data and its checksums with one
// pwrite each.
type twoPwrites struct {
	dir   string
	calls stripedcounter.Counter
}

func (t *twoPwrites) write(_ context.Context, id int64, m *model, n int) (end func() error, err error) {
	const flags = os.O_RDWR | os.O_CREATE | os.O_EXCL
	name := filepath.Join(t.dir, datanode.BlockName(id))
	blk, err := os.OpenFile(name, flags, 0o644)
	if err != nil {
		return nil, err
	}
	meta, err := os.OpenFile(name+".meta", flags, 0o644)
	if err != nil {
		return nil, errors.Join(err, blk.Close())
	}
	end = func() error {
		return errors.Join(blk.Close(), meta.Close(), os.Remove(name), os.Remove(name+".meta"))
	}
	header := datanode.MetaHeader{Version: datanode.MetaVersion}.Append(nil)
	if _, err := meta.WriteAt(header, 0); err != nil {
		return end, err
	}
	buf := make([]byte, len(m.sums)+len(m.data))
	sums, data := buf[:len(m.sums)], buf[len(m.sums):]
	for i := range n {
		m.receive(sums, data)
		at := int64(i * len(data))
		if err := (crc.Chunks{}).Verify(data, sums, at); err != nil {
			return end, err
		}
		if _, err := blk.WriteAt(data, at); err != nil {
			return end, err
		}
		if _, err := meta.WriteAt(sums, int64(len(header)+i*len(sums))); err != nil {
			return end, err
		}
	}
	d, err := os.Open(t.dir)
	if err != nil {
		return end, err
	}
	t.calls.Add(int64(2*n + 3))
	return end, errors.Join(unix.Fdatasync(int(meta.Fd())), unix.Fdatasync(int(blk.Fd())), d.Sync(), d.Close())
}

// A store is ours.
type store struct {
	*datanode.Store
	backend iouring.Backend
	dir     string
	synced  stripedcounter.Counter
}

func openStore(dir string, direct bool) (*store, error) {
	be, err := iouring.Open(iouring.Config{})
	if err != nil {
		return nil, err
	}
	s, err := datanode.OpenStore(datanode.StoreConfig{Dirs: []string{dir}, Backend: be, Direct: direct})
	if err != nil {
		return nil, errors.Join(err, be.Close())
	}
	return &store{Store: s, backend: be, dir: dir}, nil
}

func (s *store) close() error { return errors.Join(s.Store.Close(), s.backend.Close()) }

func (s *store) write(ctx context.Context, id int64, m *model, n int) (end func() error, err error) {
	block := packet.Block{Pool: peer.Pool, ID: id, Stamp: 1001, NumBytes: int64(n * len(m.data))}
	w, err := s.Create(ctx, block, crc.Chunks{})
	if err != nil {
		return nil, err
	}
	end = func() error {
		if err := w.Finalize(ctx, false); err != nil {
			return err
		}
		finalized := filepath.Join(s.dir, "current", peer.Pool, "current", "finalized", "*", "*")
		for _, name := range []string{datanode.BlockName(id), datanode.MetaName(id, block.Stamp)} {
			files, err := filepath.Glob(filepath.Join(finalized, name))
			if err != nil || len(files) != 1 {
				return fmt.Errorf("%d files %s, error %v", len(files), name, err)
			}
			if err := os.Remove(files[0]); err != nil {
				return err
			}
		}
		return nil
	}
	h := packet.Header{DataLen: len(m.data)}
	for range n {
		buf, err := s.Arena().Get(ctx, w.BufferLen(h, len(m.sums)))
		if err != nil {
			return end, err
		}
		m.receive(buf.Bytes(), buf.Bytes()[len(m.sums):])
		if err := w.WritePacket(ctx, h, len(m.sums), buf); err != nil {
			return end, err
		}
		h.Seqno++
		h.Offset += int64(len(m.data))
	}
	s.synced.Add(1)
	return end, w.Sync(ctx)
}

// calls returns the system calls of the backend, and one for every directory that
// was synced.
func (s *store) calls() int64 {
	v := map[string]int64{}
	for name, n := range s.backend.Stats().All() {
		v[name] = n
	}
	return v["writes"] - v["ring_writes"] + v["datasyncs"] - v["ring_datasyncs"] + v["short"] + v["retries"] + v["enter"] + s.synced.Load()
}
