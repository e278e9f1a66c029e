// Package checksums repeats HADOOP-7443 and HADOOP-7444: how fast chunked CRCs
// are computed and verified, against every implementation at hand.
//
// Names are <poly>/<op>/chunk=<n|long>/<l2|dram>[/nontemporal]/<row>, in GB/s.
// l2 is one buffer of 64 KiB over and over; dram is consecutive windows of
// 1 MiB of a buffer several times as large as the last-level cache. The row
// "blockpath" is the public API with the kernel that it chose; the others are
// its kernels by name, the rivals, and the limits "read" and "copy".
package checksums

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/blockpath/blockpath/bench/internal/lab"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/asm"
	"github.com/klauspost/cpuid/v2"
)

// Experiment is the experiment.
var Experiment = lab.Experiment{
	Name:    "crc",
	Summary: "chunked and long CRCs against hash/crc32, ISA-L and others (HADOOP-7443, HADOOP-7444)",
	Run:     run,
}

// targets are for machines with AVX2 and VPCLMULQDQ.
var targets = []struct{ name, limit string }{
	{"crc32c/put/chunk=512/l2/vs=std", ">=2.9"},
	{"crc32c/put/chunk=512/l2/vs=isal", ">=2.2"},
	{"crc32c/verify/chunk=512/l2/vs=std", ">=2.8"},
	{"crc32/put/chunk=512/l2/vs=std", ">=3.3"},
	{"crc32/put/chunk=512/l2/vs=isal", ">=2.6"},
	{"crc32/verify/chunk=512/l2/vs=std", ">=3.2"},
	{"crc32c/put/chunk=4096/l2/vs=std", ">=2.0"},
	{"crc32/put/chunk=4096/l2/vs=std", ">=3.3"},
	{"crc32c/update/chunk=long/l2/vs=std", ">=1.9"},
	{"crc32/update/chunk=long/l2/vs=std", ">=3.1"},
	{"crc32c/put/chunk=512/dram/vs=read", ">=0.85"},
	{"crc32/put/chunk=512/dram/vs=read", ">=0.85"},
	{"crc32c/copyput/chunk=512/l2/vs=copy-then-std", ">=2.0"},
	{"crc32c/copyput/chunk=512/dram/nontemporal/vs=copy", ">=1.4"},
	{"crc32/copyput/chunk=512/dram/nontemporal/vs=copy", ">=1.4"},
	{"crc32c/update/chunk=long/len=1..64/vs=std", ">=0.95"},
	{"crc32/update/chunk=long/len=1..64/vs=std", ">=0.95"},
}

const (
	l2Bytes   = 64 << 10
	l2Repeats = 32 // per sample
	window    = 1 << 20
)

// bench is the state of one run.
type bench struct {
	ctx    context.Context
	report *lab.Report
	budget time.Duration // for the samples of one table
	want   int           // accepted samples per row
	noise  lab.Noise

	src, dst []byte // large
	cursor   int    // the next window, so that no two samples read the same soon
}

func run(ctx context.Context, quick bool, r *lab.Report) error {
	restore, err := pin()
	if err != nil {
		return err
	}
	defer restore()
	large := max(96<<20, 4*int(r.Machine.LastLevelCache())) / window * window
	b := &bench{ctx: ctx, report: r, budget: 2 * time.Second, want: 101}
	if quick {
		b.budget, b.want = 400*time.Millisecond, 15
	}
	for _, buf := range []*[]byte{&b.src, &b.dst} {
		m, unmap, err := hugePages(large)
		if err != nil {
			return err
		}
		defer unmap()
		*buf = m
	}
	x := uint64(1)
	for i := range b.src {
		x = x*6364136223846793005 + 1442695040888963407
		b.src[i] = byte(x >> 56)
	}
	copy(b.dst, b.src)
	for _, rival := range rivals {
		if rival.absent != "" {
			r.Printf("%s: absent, %s\n", rival.name, rival.absent)
		}
	}

	chunks := []int{512, 1000, 1024, 2048, 4096, 65536}
	if quick {
		chunks = []int{512, 4096}
	}
	for _, kind := range []crc.Kind{crc.CRC32C, crc.CRC32} {
		for _, chunk := range chunks {
			for _, op := range []string{"put", "verify", "copyput", "copyverify"} {
				if quick && chunk != 512 && op != "put" {
					continue
				}
				if err := b.table(shape{kind, op, chunk, false, false}); err != nil {
					return err
				}
			}
		}
		for _, s := range []shape{
			{kind, "update", 0, false, false},
			{kind, "update", 0, true, false},
			{kind, "put", 512, true, false},
			{kind, "put", 4096, true, false},
			{kind, "verify", 512, true, false},
			{kind, "copyput", 512, true, false},
			{kind, "copyput", 512, true, true},
			{kind, "copyverify", 512, true, true},
		} {
			if quick && s.dram && (s.op == "verify" || s.op == "copyverify" || s.chunk == 4096) {
				continue
			}
			if err := b.table(s); err != nil {
				return err
			}
		}
		if err := b.short(kind, quick); err != nil {
			return err
		}
	}
	r.Printf("\n%d of %d samples accepted\n", b.noise.Accepted, b.noise.Taken)
	b.judge()
	return nil
}

// judge compares the ratios with the targets.
func (b *bench) judge() {
	reason := ""
	if !cpuid.CPU.Supports(cpuid.AVX2, cpuid.VPCLMULQDQ) {
		reason = "the targets are for AVX2 with VPCLMULQDQ, which this CPU has not"
	}
	for _, t := range targets {
		v, measured := b.report.Ratios[t.name]
		switch {
		case reason != "":
			b.report.Skip(t.name, t.limit, reason)
		case !measured:
			absent := "not measured"
			for _, r := range rivals {
				if strings.HasSuffix(t.name, "vs="+r.name) && r.absent != "" {
					absent = r.absent
				}
			}
			b.report.Skip(t.name, t.limit, absent)
		default:
			b.report.Target(t.name, t.limit, v)
		}
	}
}

// A shape is what the rows of one table have in common.
type shape struct {
	kind        crc.Kind
	op          string
	chunk       int // 0 for a long buffer
	dram        bool
	nonTemporal bool
}

func (s shape) String() string {
	where, chunk := "l2", "long"
	if s.dram {
		where = "dram"
	}
	if s.chunk != 0 {
		chunk = fmt.Sprint(s.chunk)
	}
	name := fmt.Sprintf("%v/%s/chunk=%s/%s", s.kind, s.op, chunk, where)
	if s.nonTemporal {
		name += "/nontemporal"
	}
	return name
}

// operands are what one pass works on: data of the same length, the checksums
// that the data has, and room for as many.
type operands struct {
	dst, src, want, sums []byte
}

// pass is one way to work through operands.
type pass func(o operands)

// table measures one table and reports it.
func (b *bench) table(s shape) error {
	n, count := l2Bytes, 1
	if s.dram {
		n, count = window, len(b.src)/window
	}
	perPass := 0 // bytes of checksums
	if s.chunk != 0 {
		perPass = 4 * ((n + s.chunk - 1) / s.chunk)
	}
	want, sums := make([]byte, perPass*count), make([]byte, perPass)
	for i := 0; perPass > 0 && i < count; i++ {
		rivals[0].put(s.kind, want[i*perPass:][:perPass], b.src[i*n:][:n], s.chunk)
	}
	at := func(i int) operands {
		return operands{b.dst[i*n:][:n], b.src[i*n:][:n], want[i*perPass:][:perPass], sums}
	}
	var rows []*lab.Row
	add := func(name string, f pass) {
		if !s.dram {
			o := at(0)
			rows = append(rows, &lab.Row{Name: name, Work: float64(n * l2Repeats), Do: func() error {
				for range l2Repeats {
					f(o)
				}
				return nil
			}})
			return
		}
		var o operands
		rows = append(rows, &lab.Row{Name: name, Work: float64(n), Prepare: func() error {
			b.cursor = (b.cursor + 1) % count
			o = at(b.cursor)
			return nil
		}, Do: func() error {
			f(o)
			return nil
		}})
	}
	add("blockpath", blockpath(s))
	for _, k := range asm.Kernels() {
		if k.Available() && k.Supports(poly(s.kind)) {
			add(k.Name(), kernel(s, k))
		}
	}
	copies := strings.HasPrefix(s.op, "copy")
	for _, r := range rivals {
		if r.absent != "" || !slices.Contains(r.kinds, s.kind) {
			continue
		}
		name := r.name
		if copies {
			name = "copy-then-" + name
		}
		add(name, r.pass(s))
	}
	switch {
	case copies && s.dram:
		// Go's copy writes around the cache from 1 MiB on, which a caller who
		// copies packets does not see.
		add("copy", func(o operands) { copy(o.dst, o.src) })
		add("copy-64k", func(o operands) {
			for i := 0; i < window; i += 64 << 10 {
				copy(o.dst[i:][:64<<10], o.src[i:][:64<<10])
			}
		})
	case copies:
		add("copy", func(o operands) { copy(o.dst, o.src) })
	default:
		add("read", func(o operands) { readAll(o.src) })
	}
	return b.measure(s.String(), rows)
}

// measure samples the rows, and reports each and the ratio of the first to the
// others.
func (b *bench) measure(prefix string, rows []*lab.Row) error {
	noise, err := lab.Calibrated(b.ctx, b.budget, b.want, rows...)
	if err != nil {
		return err
	}
	b.noise.Taken += noise.Taken
	b.noise.Accepted += noise.Accepted
	b.report.Printf("\n%s\n", prefix)
	for _, row := range rows {
		speed := make([]float64, len(row.Wall))
		for i, w := range row.Wall {
			speed[i] = 1e-9 / w
		}
		gbs := lab.Summarize(speed)
		b.report.Metric(prefix+"/"+row.Name, gbs.Median)
		b.report.Printf("  %-22s %14s GB/s", row.Name, gbs)
		if row != rows[0] {
			ratio := lab.Median(row.Wall) / lab.Median(rows[0].Wall)
			b.report.Ratio(prefix+"/vs="+row.Name, ratio)
			b.report.Printf("  x%.2f", ratio)
		}
		b.report.Printf("\n")
	}
	return nil
}

// short compares updates by a few bytes: all lengths from 1 to 64 in one row
// each, in an order that the branch predictor does not know, then each length
// for itself.
func (b *bench) short(kind crc.Kind, quick bool) error {
	const calls = 4096
	var lengths [calls]uint8
	total := 0
	x := uint64(1)
	for i := range lengths {
		x = x*6364136223846793005 + 1442695040888963407
		lengths[i] = uint8(1 + x>>58)
		total += int(lengths[i])
	}
	rows := func(lengths []uint8, total int) []*lab.Row {
		var rows []*lab.Row
		for _, u := range updaters(kind) {
			rows = append(rows, &lab.Row{Name: u.name, Work: float64(total), Do: func() error {
				u.run(lengths, b.src[:l2Bytes])
				return nil
			}})
		}
		return rows
	}
	prefix := fmt.Sprintf("%v/update/chunk=long/", kind)
	if err := b.measure(prefix+"len=1..64", rows(lengths[:], total)); err != nil {
		return err
	}
	saved := b.report.Out
	defer func() { b.report.Out = saved }()
	worst, worstLen := math.Inf(1), 0
	for n := 1; n <= 64; n++ {
		if quick && n&(n-1) != 0 && (n+1)&n != 0 {
			continue
		}
		for i := range lengths {
			lengths[i] = uint8(n)
		}
		b.report.Out = discard{}
		name := fmt.Sprintf("%slen=%d", prefix, n)
		if err := b.measure(name, rows(lengths[:], n*calls)); err != nil {
			return err
		}
		if v := b.report.Ratios[name+"/vs=std"]; v < worst {
			worst, worstLen = v, n
		}
	}
	b.report.Out = saved
	b.report.Printf("  the length with the worst ratio to std is %d: x%.2f\n", worstLen, worst)
	return nil
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func poly(k crc.Kind) asm.Poly {
	if k == crc.CRC32 {
		return asm.IEEE
	}
	return asm.Castagnoli
}

// blockpath is the public API.
func blockpath(s shape) pass {
	c := crc.Chunks{Kind: s.kind, Size: s.chunk, NonTemporal: s.nonTemporal}
	switch s.op {
	case "put":
		return func(o operands) { c.Put(o.sums, o.src) }
	case "verify":
		return func(o operands) { expect(c.Verify(o.src, o.want, 0) == nil) }
	case "copyput":
		return func(o operands) { c.CopyPut(o.dst, o.sums, o.src) }
	case "copyverify":
		return func(o operands) { _, err := c.CopyVerify(o.dst, o.src, o.want, 0); expect(err == nil) }
	case "update":
		return func(o operands) { crc.Update(s.kind, 0, o.src) }
	}
	panic("checksums: no operation " + s.op)
}

// kernel is one kernel without the choice between them.
func kernel(s shape, k asm.Kernel) pass {
	p := poly(s.kind)
	switch s.op {
	case "put":
		return func(o operands) { k.Put(p, o.sums, o.src, s.chunk) }
	case "verify":
		return func(o operands) { expect(k.Verify(p, o.src, o.want, s.chunk) < 0) }
	case "copyput":
		return func(o operands) { k.CopyPut(p, o.dst, o.sums, o.src, s.chunk, s.nonTemporal) }
	case "copyverify":
		return func(o operands) { expect(k.CopyVerify(p, o.dst, o.src, o.want, s.chunk, s.nonTemporal) < 0) }
	case "update":
		return func(o operands) { k.Update(p, 0, o.src) }
	}
	panic("checksums: no operation " + s.op)
}

// expect panics if a verification of right checksums fails: whoever computes
// wrongly has no speed.
func expect(ok bool) {
	if !ok {
		panic("checksums: right data does not verify")
	}
}
