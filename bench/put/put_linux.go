// Package put repeats HDFS-4070 and HDFS-6561: what moving files to a datanode
// costs, by the size of the packets and by the way of computing checksums.
package put

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/blockpath/blockpath/bench/internal/lab"
	"github.com/blockpath/blockpath/bench/internal/peer"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/crc/packet/client"
)

// Experiment is the experiment.
var Experiment = lab.Experiment{
	Name:    "put",
	Summary: "files to a datanode: packet sizes, checksums, long round trips (HDFS-4070, HDFS-6561)",
	Run:     run,
}

// size is how long the experiment runs.
type size struct {
	rounds   int
	budget   time.Duration // for the files
	fileLen  int64         // bytes of each of the ticket's ten files
	profiled int           // times that the files are put under the profiler

	calibrated time.Duration // for filling packets
	adds       int           // writes of 1 MiB per sample of a Writer
	distance   int64         // bytes over the long path
}

func run(ctx context.Context, quick bool, r *lab.Report) error {
	sz := size{rounds: 11, budget: 5 * time.Minute, fileLen: 64 << 20, profiled: 5, calibrated: 10 * time.Second, adds: 256, distance: 1 << 30}
	if quick {
		sz = size{rounds: 7, budget: 10 * time.Second, fileLen: 16 << 20, profiled: 5, calibrated: 2 * time.Second, adds: 64, distance: 320 << 20}
	}
	return measure(ctx, sz, r)
}

func measure(ctx context.Context, sz size, r *lab.Report) error {
	for _, part := range []func(context.Context, size, *lab.Report) error{files, pack, far} {
		if err := part(ctx, sz, r); err != nil {
			return err
		}
	}
	return nil
}

const (
	fileCount = 10
	gib       = 1 << 30

	packet64k = packet.DefaultPacketSize
	packet1m  = 1056252 // the ticket's

	// What HDFS has in flight with packets of its default size: 80 of them.
	ticketFlight = 80 * (packet64k + 21)
)

// A destination takes files over loopback TCP.
type destination struct {
	addr   string
	forget func() error // removes what has been put
}

// A way puts a file to a destination.
type way struct {
	name string
	to   *destination
	file func(ctx context.Context, addr string, id, n int64) error
}

// ours puts a file as one block.
func ours(cfg client.PutConfig) func(context.Context, string, int64, int64) error {
	return func(ctx context.Context, addr string, id, n int64) error {
		cfg.Pool, cfg.FirstID, cfg.Size = peer.Pool, id, n
		f, _, err := client.Put(ctx, &peer.Source{Left: n}, "file", []string{addr}, cfg)
		if err == nil && f.Length != n {
			err = fmt.Errorf("%d bytes put of %d", f.Length, n)
		}
		return err
	}
}

// reference puts a file as one block.
func reference(packetSize int, sum peer.Checksum) func(context.Context, string, int64, int64) error {
	return func(ctx context.Context, addr string, id, n int64) error {
		w, err := peer.Dial(ctx, addr, packet.Block{Pool: peer.Pool, ID: id, Stamp: 1001, NumBytes: n}, packetSize, sum)
		if err != nil {
			return err
		}
		_, err = w.ReadFrom(&peer.Source{Left: n})
		_, closeErr := w.Close()
		return errors.Join(err, closeErr)
	}
}

// files puts ten files, one after another, to several datanodes in several ways.
func files(ctx context.Context, sz size, r *lab.Report) (err error) {
	dir, err := peer.TempDir()
	if err != nil {
		return err
	}
	var stops []func() error
	defer func() {
		for _, stop := range stops {
			err = errors.Join(err, stop())
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	receiver := func(sum peer.Checksum, gather int) (*destination, error) {
		sub := filepath.Join(dir, fmt.Sprintf("%s-%d", sum.Name, gather))
		if err := os.Mkdir(sub, 0o755); err != nil {
			return nil, err
		}
		rc, err := peer.StartReceiver(peer.ReceiverConfig{Dir: sub, Checksum: sum, Gather: gather})
		if err != nil {
			return nil, err
		}
		stops = append(stops, rc.Close)
		return &destination{addr: rc.Addr, forget: rc.Forget}, nil
	}
	const gather = 1 << 20
	twoPwrites, err := receiver(peer.Kernels, 0)
	if err != nil {
		return err
	}
	gathering, err := receiver(peer.Kernels, gather)
	if err != nil {
		return err
	}
	hashing, err := receiver(peer.HashCRC32, gather)
	if err != nil {
		return err
	}
	node, err := peer.StartDatanode(dir)
	if err != nil {
		return err
	}
	stops = append(stops, node.Close)
	datanode := &destination{addr: node.Addr, forget: node.Forget}

	ways := []way{
		{"packets=64k/two-pwrites-receiver", twoPwrites, ours(client.PutConfig{PacketSize: packet64k, InFlight: ticketFlight})},
		{"packets=1m/two-pwrites-receiver", twoPwrites, ours(client.PutConfig{PacketSize: packet1m, InFlight: ticketFlight})},
		{"packets=64k/datanode", datanode, ours(client.PutConfig{PacketSize: packet64k})},
		{"packets=1m/datanode", datanode, ours(client.PutConfig{PacketSize: packet1m})},
		{"path", datanode, ours(client.PutConfig{})},
		{"path/checksum=none", datanode, ours(client.PutConfig{Chunks: crc.Chunks{Kind: crc.None}})},
		{"crc-reference-path", gathering, reference(packet1m, peer.Kernels)},
		{"hash-crc32-path", hashing, reference(packet1m, peer.HashCRC32)},
	}
	total := fileCount * sz.fileLen
	id := int64(0)
	put := func(w way) error {
		for range fileCount {
			id++
			if err := w.file(ctx, w.to.addr, id, sz.fileLen); err != nil {
				return err
			}
		}
		return nil
	}
	rows := map[string]*lab.Row{}
	var order []*lab.Row
	for _, w := range ways {
		row := &lab.Row{
			Name: w.name, Work: float64(total) / gib,
			Prepare: func() error { return lab.WarmMemory(int(total + total/8)) },
			Do:      func() error { return put(w) },
			Check:   w.to.forget,
		}
		rows[w.name] = row
		order = append(order, row)
	}
	if _, err := lab.AlternateWithin(ctx, sz.budget, sz.rounds, order...); err != nil {
		return err
	}

	r.Printf("%d files of %d MiB to a loopback datanode, %d rounds\n%-34s %14s %14s %8s\n",
		fileCount, sz.fileLen>>20, len(order[0].Wall), "", "CPU s/GiB", "wall s/GiB", "CPU x")
	for _, row := range order {
		cpu, wall := lab.Summarize(row.CPU), lab.Summarize(row.Wall)
		r.Metric(row.Name+"/cpu-s-per-gib", cpu.Median)
		r.Metric(row.Name+"/wall-s-per-gib", wall.Median)
		r.Printf("%-34s %14s %14s %8.2f\n", row.Name, cpu, wall, lab.Quotient(row.CPU, order[0].CPU))
	}
	r.Printf("ticket HDFS-4070: 90.5 s -> 79.4 s per 10 GB (0.88) with 1 MiB packets; HDFS-6561: 14849 -> 13703 ms CPU (0.92)\n\n")

	ratio := func(name, limit string, v float64) {
		r.Ratio(name, v)
		if limit != "" {
			r.Target(name, limit, v)
		}
	}
	small, large := rows["packets=64k/two-pwrites-receiver"], rows["packets=1m/two-pwrites-receiver"]
	ratio("packets=1m/cpu/vs=64k/two-pwrites-receiver", "<=0.6", lab.Quotient(large.CPU, small.CPU))
	ratio("packets=1m/wall/vs=64k/two-pwrites-receiver", "<=0.8", lab.Quotient(large.Wall, small.Wall))
	ratio("packets=1m/cpu/vs=64k/datanode", "", lab.Quotient(rows["packets=1m/datanode"].CPU, rows["packets=64k/datanode"].CPU))
	ratio("packets=64k/datanode/cpu/vs=two-pwrites-receiver", "", lab.Quotient(rows["packets=64k/datanode"].CPU, small.CPU))
	path := rows["path"]
	ratio("path/cpu/vs=hash-crc32-path", "<=0.9", lab.Quotient(path.CPU, rows["hash-crc32-path"].CPU))
	ratio("path/cpu/vs=crc-reference-path", "", lab.Quotient(path.CPU, rows["crc-reference-path"].CPU))
	ratio("path/cpu/vs=checksum=none", "", lab.Quotient(path.CPU, rows["path/checksum=none"].CPU))

	share, samples, err := lab.ShareOfCPU(func() error {
		for range sz.profiled {
			if err := put(ways[4]); err != nil {
				return err
			}
			if err := node.Forget(); err != nil {
				return err
			}
		}
		return nil
	}, "github.com/blockpath/blockpath/crc.Chunks.Put", "github.com/blockpath/blockpath/crc.Chunks.CopyPut",
		"github.com/blockpath/blockpath/crc.Chunks.Verify", "github.com/blockpath/blockpath/crc.(*BlockSummer).Add")
	if err != nil {
		return err
	}
	r.Printf("checksums: %.1f %% of the path's CPU time, of %d samples\n\n", 100*share, samples)
	ratio("checksum-share-of-cpu", "<=0.15", share)
	return nil
}
