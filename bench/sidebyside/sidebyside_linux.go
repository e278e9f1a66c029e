// Package sidebyside measures what moving a file costs when the client or the
// datanode or both are real Hadoop's and when they are ours. Every part is a
// process of its own, so that what it costs can be told from the others' cost.
package sidebyside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
	"github.com/blockpath/blockpath/bench/internal/lab"
	"github.com/blockpath/blockpath/bench/internal/peer"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/crc/packet/client"
)

// Experiment is the experiment.
var Experiment = lab.Experiment{
	Name:    experiment,
	Summary: "put and get, Hadoop's and our client to Hadoop's and our datanode (HDFS-6561)",
	Run:     run,
}

const experiment = "interop-bench"

// size is how long the experiment runs.
type size struct {
	warm, rounds int
	length       int64 // bytes of the file
	extras       bool  // packets of other sizes too
}

const gib = 1 << 30

// cache is where Hadoop's jars are kept; the working directory is bench.
var cache = filepath.Join("..", ".cache", "hadoop")

func run(ctx context.Context, quick bool, r *lab.Report) error {
	switch {
	case IsClient():
		return Serve(ctx)
	case IsNode():
		return ServeBare()
	}
	sz := size{warm: 4, rounds: 9, length: gib, extras: true}
	if quick {
		sz = size{warm: 2, rounds: 2, length: gib / 4}
	}
	dir, err := filepath.Abs(cache)
	if err != nil {
		return err
	}
	classPath, err := hadoop.ClassPath(dir)
	var missing *hadoop.MissingToolError
	if errors.As(err, &missing) {
		return measure(ctx, sz, "", missing.Error(), r)
	}
	if err != nil {
		return err
	}
	return measure(ctx, sz, classPath, "", r)
}

// A row is a client before a datanode. Per round there is one value for each
// operation.
type row struct {
	name       string
	client     string // java, ours or bare
	node       string
	packetSize int // 0: the client's default
	get        bool

	ops map[string]*samples // by operation: put, get
}

const (
	java = "java"
	ours = "go"
	bare = "bare"
)

// samples are those of one operation of a row.
type samples struct {
	wall, clientCPU, nodeCPU, cpu []float64 // seconds per GiB
	clientPeak, nodePeak          []float64 // resident bytes
}

// rowsOf returns the rows in the order of the table.
func rowsOf(sz size, haveJava bool) []*row {
	var rows []*row
	add := func(client, node, suffix string, packetSize int, get bool) {
		if haveJava || client != java && node != java {
			rows = append(rows, &row{
				name: client + "-to-" + node + suffix, client: client, node: node, packetSize: packetSize, get: get,
				ops: map[string]*samples{"put": {}, "get": {}},
			})
		}
	}
	add(java, java, "", 0, true)
	add(ours, java, "", 0, true)
	add(java, ours, "", 0, true)
	add(ours, ours, "", 0, true)
	add(bare, bare, "", 0, true)
	if sz.extras {
		add(java, java, "/packets=1m", 1<<20, false)
		add(ours, java, "/packets=64k", packet.DefaultPacketSize, false)
		add(ours, ours, "/packets=64k", packet.DefaultPacketSize, false)
	}
	return rows
}

// measure runs the rows; without a class path, for the given reason, only those
// that need no Java.
func measure(ctx context.Context, sz size, classPath, noJava string, r *lab.Report) (err error) {
	dir, err := peer.TempDir()
	if err != nil {
		return err
	}
	b := &bench{sz: sz}
	defer func() { err = errors.Join(err, b.close(), os.RemoveAll(dir)) }()
	if err := b.start(ctx, dir, classPath); err != nil {
		return err
	}
	rows := rowsOf(sz, classPath != "")
	for round := range sz.warm + sz.rounds {
		for i := range rows {
			row := rows[(round+i)%len(rows)]
			if err := b.sample(ctx, row, round == 0, round >= sz.warm); err != nil {
				return fmt.Errorf("%s: %w", row.name, err)
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	b.print(rows, dir, r)
	judge(rows, noJava, r)
	return nil
}

// The targets.
const (
	putCPU    = "go-to-go/put/cpu/vs=java-to-java"
	getCPU    = "go-to-go/get/cpu/vs=java-to-java"
	mixedWall = "mixed/worst/wall/vs=java-to-java"
)

// judge enters metrics, ratios and targets.
func judge(rows []*row, noJava string, r *lab.Report) {
	var base, least *row
	worst := 0.0
	for _, row := range rows {
		switch row.name {
		case "java-to-java":
			base = row
		case "bare-to-bare":
			least = row
		}
	}
	for _, row := range rows {
		for op, s := range row.ops {
			if len(s.wall) == 0 {
				continue
			}
			name := row.name + "/" + op
			r.Metric(name+"/wall-s-per-gib", lab.Median(s.wall))
			r.Metric(name+"/cpu-s-per-gib", lab.Median(s.cpu))
			r.Metric(name+"/client-cpu-s-per-gib", lab.Median(s.clientCPU))
			r.Metric(name+"/datanode-cpu-s-per-gib", lab.Median(s.nodeCPU))
			r.Metric(name+"/client-peak-rss-bytes", lab.Median(s.clientPeak))
			r.Metric(name+"/datanode-peak-rss-bytes", lab.Median(s.nodePeak))
			if row != least {
				r.Ratio(name+"/cpu/vs=bare-to-bare", lab.Quotient(s.cpu, least.ops[op].cpu))
			}
			if base == nil || row == base {
				continue
			}
			cpu, wall := lab.Quotient(s.cpu, base.ops[op].cpu), lab.Quotient(s.wall, base.ops[op].wall)
			r.Ratio(name+"/cpu/vs=java-to-java", cpu)
			r.Ratio(name+"/wall/vs=java-to-java", wall)
			if row.client != row.node && row.packetSize == 0 {
				worst = max(worst, wall)
			}
		}
	}
	for _, t := range []struct {
		name, limit string
		value       float64
	}{{putCPU, "<=0.2", r.Ratios[putCPU]}, {getCPU, "<=0.25", r.Ratios[getCPU]}, {mixedWall, "<=1.0", worst}} {
		if base == nil {
			r.Skip(t.name, t.limit, noJava)
		} else {
			r.Target(t.name, t.limit, t.value)
		}
	}
	if base != nil {
		r.Ratio(mixedWall, worst)
	}
}

func (b *bench) print(rows []*row, dir string, r *lab.Report) {
	if b.cluster != nil {
		r.Printf("Hadoop %s on Java %s without its native library, which is not in the jars: CRCs by the JVM's intrinsics\n", b.version[0], b.version[1])
		r.Printf("JVMs: %v; their log is off\n", jvmOptions)
	}
	r.Printf("%d MiB in blocks of %d MiB to one datanode below %s (%s), page cache and loopback TCP; %d rounds after %d\n",
		b.sz.length>>20, client.DefaultBlockSize>>20, dir, fileSystem(dir), b.sz.rounds, b.sz.warm)
	r.Printf("bare-to-bare moves the bytes with large reads and writes and does nothing else\n")
	r.Printf("packets without a size in the name: Java's of 64 KiB, ours adapt from 64 KiB up to 1 MiB\n\n")
	r.Printf("%-27s %12s %12s %9s %9s %7s %7s %9s %9s\n", "", "wall s/GiB", "CPU s/GiB", "client", "datanode", "wall x", "CPU x", "client", "datanode")
	r.Printf("%-27s %12s %12s %9s %9s %7s %7s %9s %9s\n", "", "", "", "CPU", "CPU", "", "", "MiB", "MiB")
	for _, op := range []string{"put", "get"} {
		base := rows[0].ops[op] // java-to-java, if that is there
		for _, row := range rows {
			s := row.ops[op]
			if len(s.wall) == 0 {
				continue
			}
			r.Printf("%-27s %12s %12s %9.3f %9.3f %7.2f %7.2f %9.0f %9.0f\n", row.name+"/"+op,
				lab.Summarize(s.wall), lab.Summarize(s.cpu), lab.Median(s.clientCPU), lab.Median(s.nodeCPU),
				lab.Quotient(s.wall, base.wall), lab.Quotient(s.cpu, base.cpu),
				lab.Median(s.clientPeak)/(1<<20), lab.Median(s.nodePeak)/(1<<20))
		}
	}
	r.Printf("ticket HDFS-6561: 14.85 -> 13.70 CPU seconds for a put of 1 GB, both sides, with native checksums\n")
}
