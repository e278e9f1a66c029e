// Package wal repeats HDFS-7358: many threads append to a write-ahead log and
// wait until their record is flushed, as HBase's HLogPerformanceEvaluation does,
// with packet buffers from a pool and without.
package wal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/blockpath/blockpath/bench/internal/lab"
	"github.com/blockpath/blockpath/bench/internal/peer"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/crc/packet/client"
)

// Experiment is the experiment.
var Experiment = lab.Experiment{
	Name:    "wal",
	Summary: "group flushes of a write-ahead log, packet buffers pooled or not (HDFS-7358)",
	Run:     run,
}

// size is how long the experiment runs.
type size struct {
	rounds  int
	budget  time.Duration
	appends int // per sample, by all writers together
	steady  int // packets of the count of allocations
}

func run(ctx context.Context, quick bool, r *lab.Report) error {
	sz := size{rounds: 11, budget: 4 * time.Minute, appends: 100000, steady: 20000}
	if quick {
		sz = size{rounds: 7, budget: 20 * time.Second, appends: 30000, steady: 5000}
	}
	return measure(ctx, sz, r)
}

// The ticket's numbers.
const (
	recordLen = 50 + 100 // key and value
	syncers   = 5
)

var ticket = []struct {
	writers int
	ops     float64 // per second, without and with the change
	changed float64
}{{10, 7476, 7804}, {20, 14160, 14633}, {100, 65135, 66489}}

// A stream is what a log is written to.
type stream interface {
	Write([]byte) (int, error)
	Flush() error
}

// ours makes Flush a method without a context.
type ours struct{ *packet.Writer }

func (w ours) Flush() error { return w.Writer.Flush(context.Background()) }

// The ways that packet buffers come about.
const (
	off     = "off"     // each is allocated
	on      = "on"      // from a pool that is never exhausted
	bounded = "bounded" // from a pool of four
)

var ways = []string{off, on, bounded}

func measure(ctx context.Context, sz size, r *lab.Report) (err error) {
	dir, err := peer.TempDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	node, err := peer.StartDatanode(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close()) }()

	id := int64(0)
	block := func() packet.Block {
		id++
		return packet.Block{Pool: peer.Pool, ID: id, Stamp: 1001, NumBytes: 128 << 20}
	}
	pools := map[string]*packet.Pool{
		off:     packet.NewPool(packet.PoolConfig{Unpooled: true}),
		on:      packet.NewPool(packet.PoolConfig{}),
		bounded: packet.NewPool(packet.PoolConfig{Bytes: 4 * packet.DefaultPacketSize}),
	}
	open := func(way string) (*packet.Writer, error) {
		return dial(ctx, node.Addr, block(), packet.StreamConfig{Pool: pools[way], PacketSize: packet.DefaultPacketSize})
	}

	rows := map[string]*lab.Row{}
	allocs := map[string][]float64{}
	var order []*lab.Row
	for _, t := range ticket {
		for _, way := range ways {
			name := fmt.Sprintf("%dwriters/pool=%s", t.writers, way)
			n := sz.appends / t.writers
			var w *packet.Writer
			var before uint64
			row := &lab.Row{
				Name: name, Work: float64(n * t.writers),
				Prepare: func() (err error) {
					w, err = open(way)
					before = mallocs()
					return err
				},
				Do: func() error { return newLog(ours{w}).run(t.writers, n) },
				Check: func() error {
					allocs[name] = append(allocs[name], float64(mallocs()-before)/float64(n*t.writers))
					return errors.Join(w.Close(), node.Forget())
				},
			}
			rows[name] = row
			order = append(order, row)
		}
	}
	if _, err := lab.AlternateWithin(ctx, sz.budget, sz.rounds, order...); err != nil {
		return err
	}
	r.Printf("%d appends of %d bytes in all, one appender, %d syncers, a loopback datanode; %d rounds\n%-26s %12s %12s %10s %10s %14s\n",
		sz.appends, recordLen, syncers, len(order[0].Wall), "", "ops/s", "CPU us/op", "allocs/op", "ops x off", "ticket's ops/s")
	for _, t := range ticket {
		for _, way := range ways {
			name := fmt.Sprintf("%dwriters/pool=%s", t.writers, way)
			row, base := rows[name], rows[fmt.Sprintf("%dwriters/pool=%s", t.writers, off)]
			ops, cpu := 1/lab.Median(row.Wall), lab.Median(row.CPU)*1e6
			r.Metric(name+"/ops-per-s", ops)
			r.Metric(name+"/cpu-us-per-op", cpu)
			r.Metric(name+"/allocs-per-op", lab.Median(allocs[name]))
			theirs := ""
			if way == off {
				theirs = fmt.Sprintf("%.0f", t.ops)
			} else {
				v := lab.Quotient(base.Wall, row.Wall)
				r.Ratio(name+"/ops/vs=off", v)
				r.Ratio(name+"/cpu/vs=off", lab.Quotient(row.CPU, base.CPU))
				if way == on {
					theirs = fmt.Sprintf("%.0f", t.changed)
				}
			}
			r.Printf("%-26s %12.0f %12.2f %10.3f %10.2f %14s\n", name, ops, cpu, lab.Median(allocs[name]), lab.Quotient(base.Wall, row.Wall), theirs)
		}
	}
	const name = "100writers/pool=on/ops/vs=off"
	r.Target(name, ">=1.0", r.Ratios[name])

	perPacket, err := steady(ctx, sz)
	if err != nil {
		return err
	}
	r.Printf("\nsteady state: %.4f allocations per packet\n", perPacket)
	r.Metric("steady/allocs-per-packet", perPacket)
	r.Target("steady/allocs-per-packet", "<=0.01", perPacket)
	return nil
}

func dial(ctx context.Context, addr string, block packet.Block, cfg packet.StreamConfig) (*packet.Writer, error) {
	conn, err := client.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	request := packet.WriteBlock{Block: block, ClientName: "wal", Stage: packet.SetupCreate, PipelineSize: 1}
	return packet.NewWriter(ctx, conn, request, packet.WriterConfig{StreamConfig: cfg})
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// A log is HBase's: whoever has a record queues it and waits, one goroutine
// appends what is queued to the stream, and several flush it.
type log struct {
	s stream

	mu     sync.Mutex
	queued []*record
	some   chan struct{} // capacity 1: there is something in queued, or it is closed

	batches chan []*record
	empty   chan []*record // batches to be used again

	errMu sync.Mutex
	err   error
}

// A record waits to be flushed.
type record struct {
	data [recordLen]byte
	done chan struct{} // capacity 1
}

func newLog(s stream) *log {
	return &log{s: s, some: make(chan struct{}, 1), batches: make(chan []*record, syncers), empty: make(chan []*record, 4*syncers)}
}

// run has so many writers append n records each.
func (l *log) run(writers, n int) error {
	var writing, syncing sync.WaitGroup
	for range writers {
		writing.Add(1)
		go func() {
			defer writing.Done()
			r := &record{done: make(chan struct{}, 1)}
			for i := range n {
				r.data[i%recordLen]++
				l.append(r)
				<-r.done
			}
		}()
	}
	for range syncers {
		syncing.Add(1)
		go func() {
			defer syncing.Done()
			l.sync()
		}()
	}
	syncing.Add(1)
	go func() {
		defer syncing.Done()
		l.write()
	}()
	writing.Wait()
	close(l.some)
	syncing.Wait()
	return l.err
}

func (l *log) append(r *record) {
	l.mu.Lock()
	l.queued = append(l.queued, r)
	l.mu.Unlock()
	select {
	case l.some <- struct{}{}:
	default:
	}
}

// write appends records to the stream.
func (l *log) write() {
	defer close(l.batches)
	for range l.some {
		var next []*record
		select {
		case next = <-l.empty:
		default:
		}
		l.mu.Lock()
		batch := l.queued
		l.queued = next
		l.mu.Unlock()
		for _, r := range batch {
			if _, err := l.s.Write(r.data[:]); err != nil {
				l.fail(err)
			}
		}
		if len(batch) > 0 {
			l.batches <- batch
		}
	}
}

// sync flushes batches.
func (l *log) sync() {
	for batch := range l.batches {
		if err := l.s.Flush(); err != nil {
			l.fail(err)
		}
		for _, r := range batch {
			r.done <- struct{}{}
		}
		select {
		case l.empty <- batch[:0]:
		default:
		}
	}
}

func (l *log) fail(err error) {
	l.errMu.Lock()
	defer l.errMu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

// steady returns how many allocations a Writer makes per packet, for flushes of
// single records and for full packets, after it has begun. The datanode makes
// none.
func steady(ctx context.Context, sz size) (float64, error) {
	l, err := peer.Listen()
	if err != nil {
		return 0, err
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() { served <- discard(l) }()
	w, err := dial(ctx, l.Addr().String(), packet.Block{Pool: peer.Pool, ID: 1, NumBytes: 1 << 40},
		packet.StreamConfig{PacketSize: packet.DefaultPacketSize})
	if err != nil {
		return 0, err
	}
	data := make([]byte, 1<<20)
	work := func(packets int) error {
		for range packets {
			if _, err := w.Write(data[:recordLen]); err != nil {
				return err
			}
			if err := w.Flush(ctx); err != nil {
				return err
			}
		}
		for range packets / 16 {
			if _, err := w.Write(data); err != nil {
				return err
			}
		}
		return w.Flush(ctx)
	}
	err = work(1000)
	before, sent := mallocs(), w.Stats().Packets
	if err == nil {
		err = work(sz.steady)
	}
	made, packets := mallocs()-before, w.Stats().Packets-sent
	w.Abort()
	return float64(made) / float64(packets), errors.Join(err, <-served)
}
