package counters

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v4"

	"github.com/blockpath/blockpath/bench/internal/lab"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/stripedcounter"
)

// The counters of the workload's sets.
const (
	bytesWritten = iota
	writeOps
)

func newSet() *stripedcounter.Set { return stripedcounter.NewSet("bytesWritten", "writeOps") }

// packetData is the data of a default packet: 126 chunks.
const packetData = 126 * chunk

const chunk = 512

// A packetWriter collects what a file writer writes into packets of whole
// chunks, as DFSOutputStream does, and drops them when they are full.
type packetWriter struct {
	buf  []byte
	sums []byte
	crc  func(sums, data []byte) // nil: no checksums
	full func()                  // called for every packet; nil: nobody cares
}

func newPacketWriter(crc func(sums, data []byte)) packetWriter {
	return packetWriter{
		buf:  make([]byte, 0, packetData),
		sums: make([]byte, packetData/chunk*4),
		crc:  crc,
	}
}

//go:noinline
func (w *packetWriter) write(p []byte) (int, error) {
	if len(p) > cap(w.buf)-len(w.buf) {
		w.send()
	}
	w.buf = append(w.buf, p...)
	return len(p), nil
}

func (w *packetWriter) send() {
	if w.crc != nil {
		w.crc(w.sums, w.buf)
	}
	if w.full != nil {
		w.full()
	}
	w.buf = w.buf[:0]
}

// The writers that count every Write, however small, which is what the ticket
// is about, and the same writer with that commented out.

type silentWriter struct{ packetWriter }

func (w *silentWriter) Write(p []byte) (int, error) { return w.write(p) }

type atomicWriter struct {
	packetWriter
	bytes, ops *padded
}

func (w *atomicWriter) Write(p []byte) (int, error) {
	w.bytes.Add(int64(len(p)))
	w.ops.Add(1)
	return w.write(p)
}

type xsyncWriter struct {
	packetWriter
	bytes, ops *xsync.Counter
}

func (w *xsyncWriter) Write(p []byte) (int, error) {
	w.bytes.Add(int64(len(p)))
	w.ops.Inc()
	return w.write(p)
}

type setWriter struct {
	packetWriter
	set *stripedcounter.Set
}

func (w *setWriter) Write(p []byte) (int, error) {
	w.set.Add2(bytesWritten, int64(len(p)), writeOps, 1)
	return w.write(p)
}

type localWriter struct {
	packetWriter
	local *stripedcounter.Local
}

func (w *localWriter) Write(p []byte) (int, error) {
	w.local.Add2(bytesWritten, int64(len(p)), writeOps, 1)
	return w.write(p)
}

// plainWriter counts for itself; its full empties the counts into a Set.
type plainWriter struct {
	packetWriter
	bytes, ops int64
}

func (w *plainWriter) Write(p []byte) (int, error) {
	w.bytes += int64(len(p))
	w.ops++
	return w.write(p)
}

// A recordWriter writes records as an uncompressed SequenceFile does: record
// length, key length, key, value.
type recordWriter struct {
	out    io.Writer
	length [4]byte
}

const (
	recordBytes = 4 + 4 + 1 + 1
	recordOps   = 4
)

func (w *recordWriter) append(key, value []byte) {
	binary.BigEndian.PutUint32(w.length[:], uint32(len(key)+len(value)))
	w.out.Write(w.length[:])
	binary.BigEndian.PutUint32(w.length[:], uint32(len(key)))
	w.out.Write(w.length[:])
	w.out.Write(key)
	w.out.Write(value)
}

// appendAll appends n pairs of one-byte keys and values.
func appendAll(out io.Writer, n int) {
	w, key, value := recordWriter{out: out}, []byte{1}, []byte{2}
	for range n {
		w.append(key, value)
	}
}

// A design is a way to count. open returns the work of one goroutine, and read
// what was counted since the experiment began.
type design struct {
	name string
	open loop
	read func() (bytes, ops int64)
}

// designs returns the ways to count, with packets that are checksummed by crc.
func designs(crc func(sums, data []byte)) []design {
	shared := new(struct{ bytes, ops padded })
	rivalBytes, rivalOps := xsync.NewCounter(), xsync.NewCounter()
	readSet := func(s *stripedcounter.Set) func() (int64, int64) {
		return func() (int64, int64) { return s.Load(bytesWritten), s.Load(writeOps) }
	}
	striped, owned, flushed := newSet(), newSet(), newSet()
	return []design{
		{"none", func(_, n int) {
			appendAll(&silentWriter{newPacketWriter(crc)}, n)
		}, nil},
		{"atomic", func(_, n int) {
			appendAll(&atomicWriter{newPacketWriter(crc), &shared.bytes, &shared.ops}, n)
		}, func() (int64, int64) { return shared.bytes.Load(), shared.ops.Load() }},
		{"xsync", func(_, n int) {
			appendAll(&xsyncWriter{newPacketWriter(crc), rivalBytes, rivalOps}, n)
		}, func() (int64, int64) { return rivalBytes.Value(), rivalOps.Value() }},
		{"add2", func(_, n int) {
			appendAll(&setWriter{newPacketWriter(crc), striped}, n)
		}, readSet(striped)},
		{"local", func(_, n int) {
			l := owned.Local()
			defer l.Close()
			appendAll(&localWriter{newPacketWriter(crc), l}, n)
		}, readSet(owned)},
		{"flush", func(_, n int) {
			w := &plainWriter{packetWriter: newPacketWriter(crc)}
			w.full = func() {
				flushed.Add2(bytesWritten, w.bytes, writeOps, w.ops)
				w.bytes, w.ops = 0, 0
			}
			appendAll(w, n)
			w.full()
		}, readSet(flushed)},
	}
}

// appendRows returns a row per number of goroutines and design. Every sample
// checks that exactly what was written has been counted.
func appendRows(prefix string, gs []int, n int, ds []design) (rows []*lab.Row) {
	for _, g := range gs {
		for _, d := range ds {
			row := &lab.Row{
				Name:     fmt.Sprintf("%s/%dg/%s", prefix, g, d.name),
				Work:     float64(g * n),
				Parallel: min(g, runtime.GOMAXPROCS(0)),
				Do:       func() error { together(g, n, d.open); return nil },
			}
			if d.read != nil {
				var bytes, ops int64
				row.Prepare = func() error { bytes, ops = d.read(); return nil }
				row.Check = func() error {
					b, o := d.read()
					if b, o = b-bytes, o-ops; b != int64(g*n*recordBytes) || o != int64(g*n*recordOps) {
						return fmt.Errorf("counted %d bytes and %d operations, want %d and %d", b, o, g*n*recordBytes, g*n*recordOps)
					}
					return nil
				}
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// ticket has the operations per second and thread that HADOOP-5318 reports, by
// the number of threads, on two quad-core Xeons with Java 6.
var ticket = map[int]struct{ counted, uncounted float64 }{
	1: {698812, 837521},
	2: {333222, 697837},
	4: {136166, 526593},
	6: {53582, 464468},
	8: {33225, 370233},
}

func appends(ctx context.Context, sz size, r *lab.Report) error {
	gs := goroutines()
	rows := appendRows("append", gs, sz.appends, designs(nil))
	noise, err := lab.Alternate(ctx, sz.warm, sz.rounds, rows...)
	if err != nil {
		return err
	}
	r.Printf("append of a pair of one-byte records, four counted writes each; %v\n", noise)
	r.Printf("%-22s %14s %14s %8s %14s %14s\n", "", "CPU ns/append", "wall ns/append", "x none", "ops/s each", "ops/s sum")
	per := len(rows) / len(gs)
	for i, row := range rows {
		none := rows[i/per*per]
		cpu, wall := lab.Summarize(lab.Times(row.CPU, 1e9)), lab.Summarize(lab.Times(row.Wall, 1e9))
		g := gs[i/per]
		r.Metric(row.Name+"/cpu-ns", cpu.Median)
		r.Metric(row.Name+"/ops/s", 1e9/wall.Median)
		r.Metric(row.Name+"/goroutine-ops/s", 1e9/wall.Median/float64(g))
		r.Ratio(row.Name+"/vs=none", lab.Quotient(row.CPU, none.CPU))
		r.Printf("%-22s %14s %14s %8.2f %14.0f %14.0f\n", row.Name, cpu, wall, r.Ratios[row.Name+"/vs=none"], 1e9/wall.Median/float64(g), 1e9/wall.Median)
		if t, ok := ticket[g]; ok && row == none {
			r.Printf("%-22s %14s %14s %8.2f %14.0f %14.0f\n", "  the ticket, none", "", "", 1.0, t.uncounted, t.uncounted*float64(g))
			r.Printf("%-22s %14s %14s %8.2f %14.0f %14.0f\n", "  the ticket, shared", "", "", t.uncounted/t.counted, t.counted, t.counted*float64(g))
		}
	}
	r.Printf("\n")
	return nil
}

// castagnoliTable is Sarwate's table, one byte per step: the checksum that the
// ticket's Java had.
var castagnoliTable = func() (t [256]uint32) {
	for i := range t {
		c := uint32(i)
		for range 8 {
			c = c>>1 ^ 0x82F63B78&-(c&1)
		}
		t[i] = c
	}
	return t
}()

func tableCRC(sums, data []byte) {
	for ; len(data) > 0; sums = sums[4:] {
		c := ^uint32(0)
		n := min(chunk, len(data))
		for _, b := range data[:n] {
			c = c>>8 ^ castagnoliTable[byte(c)^b]
		}
		binary.BigEndian.PutUint32(sums, ^c)
		data = data[n:]
	}
}

var chunks crc.Chunks // CRC32C, 512 bytes

func kernelCRC(sums, data []byte) { chunks.Put(sums[:chunks.SumsLen(len(data))], data) }

// checksums runs the ticket's two by two: both causes, alone and together.
func checksums(ctx context.Context, sz size, r *lab.Report) error {
	gs := goroutines()
	pick := func(ds []design) []design { return []design{ds[1], ds[3], ds[5]} } // shared, striped, flushed
	rows := appendRows("append-crc=table", gs, sz.appends, pick(designs(tableCRC)))
	half := len(rows)
	rows = append(rows, appendRows("append-crc=kernel", gs, sz.appends, pick(designs(kernelCRC)))...)
	noise, err := lab.Alternate(ctx, sz.warm, sz.rounds, rows...)
	if err != nil {
		return err
	}
	r.Printf("the same with checksums; %v\n", noise)
	r.Printf("%-28s %14s %14s %14s %14s\n", "", "CPU ns/append", "ops/s each", "ops/s sum", "x table,atomic")
	per := half / len(gs)
	for i, row := range rows {
		base, g := rows[i%half/per*per], gs[i%half/per]
		cpu, rate := lab.Summarize(lab.Times(row.CPU, 1e9)), 1/lab.Median(row.Wall)
		r.Metric(row.Name+"/cpu-ns", cpu.Median)
		r.Metric(row.Name+"/ops/s", rate)
		r.Metric(row.Name+"/goroutine-ops/s", rate/float64(g))
		r.Ratio(row.Name+"/speedup", lab.Quotient(base.Wall, row.Wall))
		r.Printf("%-28s %14s %14.0f %14.0f %14.2f\n", row.Name, cpu, rate/float64(g), rate, r.Ratios[row.Name+"/speedup"])
	}
	r.Printf("\n")
	return nil
}

// padded keeps an atomic away from other memory.
type padded struct {
	_ [128]byte
	atomic.Int64
	_ [128]byte
}
