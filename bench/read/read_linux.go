// Package read repeats HDFS-918: many clients read small ranges of blocks that
// are in the page cache, from servers that differ in what a request costs them.
package read

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/blockpath/blockpath/bench/internal/lab"
	"github.com/blockpath/blockpath/bench/internal/peer"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/iouring/datanode"
)

// Experiment is the experiment.
var Experiment = lab.Experiment{
	Name:    "read",
	Summary: "small reads by 1 to 256 clients: files opened per request, pooled, multiplexed (HDFS-918)",
	Run:     run,
}

// size is how long the experiment runs.
type size struct {
	rounds           int
	sample           time.Duration
	blocks, blockLen int
	loads            []load
	idle             int // connections
	others           int // puts and gets beside hostile peers
}

func run(ctx context.Context, quick bool, r *lab.Report) error {
	if IsServer() {
		return Serve()
	}
	sz := size{rounds: 3, sample: time.Second, blocks: 16, blockLen: 64 << 20, idle: 2000, others: 300}
	for _, length := range []int{4 << 10, 64 << 10} {
		for _, order := range []string{random, sequential, scan} {
			for _, clients := range []int{1, 16, 64, 256} {
				sz.loads = append(sz.loads, load{order, length, clients})
			}
		}
	}
	if quick {
		sz.rounds, sz.sample, sz.blockLen, sz.others = 4, 500*time.Millisecond, 16<<20, 150
		sz.loads = []load{{random, 4 << 10, 64}, {scan, 64 << 10, 64}, {random, 4 << 10, 256}}
	}
	return measure(ctx, sz, r)
}

// The orders in which a client reads.
const (
	random     = "random"     // anywhere
	sequential = "sequential" // 64 requests in a row, then elsewhere
	scan       = "scan"       // all of a block and then of the next
)

// A load is what the clients do.
type load struct {
	order   string
	length  int // bytes per request
	clients int
}

func (l load) String() string {
	return fmt.Sprintf("%s/%dk/%dclients", l.order, l.length>>10, l.clients)
}

// ticket is the mean of all batches in HDFS-918, in total milliseconds of its
// clients, for unchanged code, pooled channels and the multiplexer.
const ticket = `ticket (total ms of an HBase benchmark: clean, pooled channels, multiplexed):
random 21159050, 19448217, 16806247; sequential 19298240, 17871048, 14987028; scan 436107, 442453, 443263
`

// A row is one server under one load. Per round there is one value.
type row struct {
	op, cpu  []float64 // seconds per request, seconds of the server's CPU time per request
	p50, p99 []float64 // seconds
	threads  int
	rss      int64
}

func measure(ctx context.Context, sz size, r *lab.Report) (err error) {
	dir, err := peer.TempDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := makeBlocks(dir, sz); err != nil {
		return err
	}
	servers := map[string]*server{}
	defer func() {
		for _, s := range servers {
			err = errors.Join(err, s.Close())
		}
	}()
	for _, way := range ways {
		if servers[way], err = startServer(ctx, way, dir); err != nil {
			return err
		}
	}

	idle, err := idleMemory(servers[multiplexed], sz)
	if err != nil {
		return err
	}
	r.Printf("an idle connection: %.0f bytes of the server's resident memory\n\n", idle)
	rows := map[string]*row{}
	name := func(l load, way string) string { return l.String() + "/" + way }
	for round := range sz.rounds + 1 {
		for _, l := range sz.loads {
			for i := range ways {
				way := ways[(round+i)%len(ways)]
				o, err := observe(ctx, servers[way], l, sz)
				if err != nil {
					return fmt.Errorf("%s: %w", name(l, way), err)
				}
				if round == 0 {
					rows[name(l, way)] = new(row) // to warm up
					continue
				}
				rows[name(l, way)].add(o)
			}
		}
	}

	r.Printf("%d MiB in the page cache, over loopback TCP, %d rounds of %v\n%-38s %9s %12s %9s %9s %8s %8s %7s %7s\n",
		sz.blocks*sz.blockLen>>20, sz.rounds, sz.sample, "", "ops/s", "CPU us/op", "p50 us", "p99 us", "threads", "RSS MiB", "ops x", "CPU x")
	for _, l := range sz.loads {
		base := rows[name(l, open)]
		for _, way := range ways {
			row, n := rows[name(l, way)], name(l, way)
			ops, cpu := 1/lab.Median(row.op), lab.Median(row.cpu)*1e6
			more, less := lab.Quotient(base.op, row.op), lab.Quotient(row.cpu, base.cpu)
			r.Metric(n+"/ops-per-s", ops)
			r.Metric(n+"/cpu-us-per-op", cpu)
			r.Metric(n+"/p50-us", lab.Median(row.p50)*1e6)
			r.Metric(n+"/p99-us", lab.Median(row.p99)*1e6)
			r.Metric(n+"/os-threads", float64(row.threads))
			r.Metric(n+"/rss-bytes", float64(row.rss))
			if way != open {
				r.Ratio(n+"/ops/vs=open", more)
				r.Ratio(n+"/cpu/vs=open", less)
			}
			r.Printf("%-38s %9.0f %12.2f %9.0f %9.0f %8d %8d %7.2f %7.2f\n", n, ops, cpu,
				lab.Median(row.p50)*1e6, lab.Median(row.p99)*1e6, row.threads, row.rss>>20, more, less)
		}
	}
	r.Printf("%s", ticket)
	for _, t := range []struct{ load, what, limit string }{
		{"random/4k/64clients", "ops", ">=1.8"}, {"random/4k/64clients", "cpu", "<=0.5"},
		{"scan/64k/64clients", "ops", ">=2.0"}, {"scan/64k/64clients", "cpu", "<=0.5"},
	} {
		r.Target(t.load+"/"+t.what+"/vs=open", t.limit, r.Ratios[t.load+"/"+multiplexed+"/"+t.what+"/vs=open"])
	}
	r.Metric("idle/bytes-per-connection", idle)
	r.Target("idle/bytes-per-connection", "<=16384", idle)
	threads := float64(rows[name(load{random, 4 << 10, 256}, multiplexed)].threads)
	r.Metric("256clients/os-threads", threads)
	r.Target("256clients/os-threads", "<=16", threads)
	return measureHostile(ctx, servers[multiplexed], dir, sz, r)
}

func (row *row) add(o observation) {
	n := float64(len(o.latencies))
	row.op = append(row.op, o.elapsed.Seconds()/n)
	row.cpu = append(row.cpu, o.cpu.Seconds()/n)
	slices.Sort(o.latencies)
	row.p50 = append(row.p50, o.latencies[len(o.latencies)/2].Seconds())
	row.p99 = append(row.p99, o.latencies[len(o.latencies)*99/100].Seconds())
	row.threads = max(row.threads, o.usage.Threads)
	row.rss = max(row.rss, o.usage.RSS)
}

// firstID is the id of the first block.
const firstID = 1

// finalized is where the blocks are.
func finalized(dir string) string {
	return filepath.Join(dir, "current", peer.Pool, "current", "finalized", "subdir0", "subdir0")
}

func blockPath(dir string, id int64) string {
	return filepath.Join(finalized(dir), datanode.BlockName(id))
}

func metaPath(dir string, id, stamp int64) string {
	return filepath.Join(finalized(dir), datanode.MetaName(id, stamp))
}

const stamp = 1001

// makeBlocks writes blocks where a datanode has them.
func makeBlocks(dir string, sz size) error {
	if err := os.MkdirAll(finalized(dir), 0o755); err != nil {
		return err
	}
	if err := lab.WarmMemory(sz.blocks * (sz.blockLen + sz.blockLen/64)); err != nil {
		return err
	}
	data := make([]byte, sz.blockLen)
	x := uint32(2463534242)
	for id := int64(firstID); id < firstID+int64(sz.blocks); id++ {
		for i := range data {
			x ^= x << 13
			x ^= x >> 17
			x ^= x << 5
			data[i] = byte(x)
		}
		meta := crc.Chunks{}.Append(datanode.MetaHeader{Version: datanode.MetaVersion}.Append(nil), data)
		if err := os.WriteFile(metaPath(dir, id, stamp), meta, 0o644); err != nil {
			return err
		}
		if err := os.WriteFile(blockPath(dir, id), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
