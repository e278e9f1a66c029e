package uring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/bench/internal/lab"
	"github.com/blockpath/blockpath/iouring"
)

// Experiment is "uring".
var Experiment = lab.Experiment{
	Name:    "uring",
	Summary: "the ring against plain system calls: no-ops, reads, writes, syncs",
	Run:     run,
}

// bench is what the parts share.
type bench struct {
	ctx    context.Context
	quick  bool
	r      *lab.Report
	dir    string
	arena  *iouring.Arena
	ring   iouring.Backend // as Open chooses it
	plain  iouring.Backend
	size   int64 // of the big file
	rounds int
}

const (
	kib     = 1 << 10
	mib     = 1 << 20
	readers = 256
	syncs   = 16
)

func run(ctx context.Context, quick bool, r *lab.Report) (err error) {
	b := &bench{ctx: ctx, quick: quick, r: r, size: 1024 * mib, rounds: 15}
	if quick {
		b.size, b.rounds = 128*mib, 5
	}
	if b.dir, err = os.MkdirTemp("", "blockpath-uring-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	if b.arena, err = iouring.NewArena(iouring.ArenaConfig{Bytes: 128 * mib}); err != nil {
		return err
	}
	defer b.arena.Close()
	if b.ring, err = iouring.Open(iouring.Config{Backend: iouring.RingBackend}); err != nil {
		return err
	}
	defer b.ring.Close()
	if b.plain, err = iouring.Open(iouring.Config{Backend: iouring.SyscallBackend}); err != nil {
		return err
	}
	defer b.plain.Close()
	warm()
	for _, part := range []func() error{b.threads, b.nop, b.directReads, b.directWrites, b.hsync, b.policy, b.overhead, b.through, b.fio} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// warm touches memory, which a virtual machine may have to fetch from its host.
func warm() {
	m, err := unix.Mmap(-1, 0, 512*mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return // then the first rounds, which are not recorded, do it
	}
	for i := 0; i < len(m); i += 4 * kib {
		m[i] = 1
	}
	unix.Munmap(m)
}

// get returns a buffer that is given back when the part is over.
func (b *bench) get(n int) iouring.Buffer {
	buf, err := b.arena.Get(b.ctx, n)
	if err != nil {
		panic(err) // the arena is large enough for every part
	}
	return buf
}

func (b *bench) gets(count, n int) (bufs []iouring.Buffer, release func()) {
	for range count {
		bufs = append(bufs, b.get(n))
	}
	return bufs, func() {
		for _, buf := range bufs {
			buf.Release()
		}
	}
}

// file returns a file of n bytes that are on the disk.
func (b *bench) file(name string, n int64) (*iouring.File, error) {
	f, err := iouring.OpenFile(filepath.Join(b.dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	buf := b.get(mib)
	defer buf.Release()
	rng := rand.NewChaCha8([32]byte{})
	rng.Read(buf.Bytes())
	for off := int64(0); off < n; off += mib {
		if err := b.plain.WriteAt(b.ctx, f, []iouring.Buffer{buf}, off); err != nil {
			return nil, err
		}
	}
	return f, b.plain.Datasync(b.ctx, f)
}

// parallel runs n goroutines and joins their errors.
func parallel(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[i] = f(i)
		}()
	}
	wg.Wait()
	return errors.Join(errs...)
}

// show prints rows relative to the first.
func (b *bench) show(title, unit string, scale float64, noise lab.Noise, rows []*lab.Row) {
	b.r.Printf("%s (%s)\n", title, noise)
	for _, row := range rows {
		b.r.Printf("  %-30s %10.2f %s  wall %5.2fx  cpu %8.2f %s %5.2fx\n", row.Name,
			lab.Median(row.Wall)*scale, unit, lab.Quotient(row.Wall, rows[0].Wall),
			lab.Median(row.CPU)*scale, unit, lab.Quotient(row.CPU, rows[0].CPU))
	}
	b.r.Printf("\n")
}

// threads counts the threads that the ring needs for many readers. It runs
// first: threads stay.
func (b *bench) threads() error {
	f, err := b.file("big", b.size)
	if err != nil {
		return err
	}
	defer f.Close()
	d := f.OpenDirect()
	if !d.Direct() {
		return errors.New("no O_DIRECT in " + b.dir)
	}
	deep, err := b.deep()
	if err != nil {
		return err
	}
	defer deep.Close()
	for _, be := range []iouring.Backend{deep, b.ring} {
		if err := b.randomReads(be, d, 8)(); err != nil {
			return err
		}
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	b.r.Metric("read/direct/4k/256readers/threads", float64(len(tasks)))
	b.r.Target("read/direct/4k/256readers/threads", "<=16", float64(len(tasks)))
	b.r.Printf("%d threads after %d readers on a dedicated and on a shared ring\n\n", len(tasks), readers)
	return nil
}

// deep returns the backend for queues that are always deep.
func (b *bench) deep() (iouring.Backend, error) {
	return iouring.Open(iouring.Config{Backend: iouring.RingBackend, Dedicated: true})
}

// randomReads returns a function in which all readers read each blocks of 4 KiB
// at random.
func (b *bench) randomReads(be iouring.Backend, f *iouring.File, each int) func() error {
	return func() error {
		bufs, release := b.gets(readers, 4*kib)
		defer release()
		return parallel(readers, func(i int) error {
			for range each {
				off := rand.Int64N(b.size/(4*kib)) * 4 * kib
				if _, err := be.ReadAt(b.ctx, f, bufs[i], off); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func (b *bench) nop() error {
	ring, err := iouring.NewRing(iouring.RingConfig{})
	if err != nil {
		return err
	}
	defer ring.Close()
	shared, err := iouring.NewEngine(iouring.EngineConfig{})
	if err != nil {
		return err
	}
	defer shared.Close()
	dedicated, err := iouring.NewEngine(iouring.EngineConfig{Dedicated: true})
	if err != nil {
		return err
	}
	defer dedicated.Close()

	const n = 16_384
	do := func(ctx context.Context, e *iouring.Engine, depth int) func() error {
		ops := make([]iouring.Op, depth)
		return func() error {
			return parallel(depth, func(i int) error {
				for range n / depth {
					if _, err := e.Do(ctx, &ops[i]); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	var s iouring.SQE
	bare := &lab.Row{Name: "bare enter", Work: n, Do: func() error {
		for range n {
			if _, err := ring.Push(&s); err != nil {
				return err
			}
			if _, err := ring.SubmitAndWait(1); err != nil {
				return err
			}
			if _, ok := ring.PeekCQE(); !ok {
				return errors.New("no completion")
			}
		}
		return nil
	}}
	// A context that can end makes every wait a select, on a channel that all
	// share.
	forever := context.Background()
	one := &lab.Row{Name: "engine, depth 1", Work: n, Do: do(forever, shared, 1)}
	many := &lab.Row{Name: "engine, depth 64", Work: n, Do: do(forever, shared, 64)}
	ending := &lab.Row{Name: "engine, depth 64, one context", Work: n, Do: do(b.ctx, shared, 64)}
	deep := &lab.Row{Name: "dedicated, depth 64", Work: n, Do: do(forever, dedicated, 64)}
	rows := []*lab.Row{bare, one, many, ending, deep}
	noise, err := lab.Alternate(b.ctx, 2, 3*b.rounds, rows...)
	if err != nil {
		return err
	}
	b.show("no-op", "ns", 1e9, noise, rows)
	b.r.Metric("nop/bare-enter/ns", lab.Median(bare.Wall)*1e9)
	b.r.Metric("nop/depth=1/ns", lab.Median(one.Wall)*1e9)
	b.r.Metric("nop/depth=64/ns", lab.Median(many.Wall)*1e9)
	b.r.Ratio("nop/depth=64/one-context/vs=bare-enter", lab.Quotient(ending.Wall, bare.Wall))
	b.r.Ratio("nop/depth=64/dedicated/vs=bare-enter", lab.Quotient(deep.Wall, bare.Wall))
	b.r.Target("nop/depth=1/vs=bare-enter", "<=1.5", lab.Quotient(one.Wall, bare.Wall))
	b.r.Target("nop/depth=64/vs=bare-enter", "<=1.0", lab.Quotient(many.Wall, bare.Wall))
	var op iouring.Op
	b.r.Target("nop/allocs/op", "<=0", testing.AllocsPerRun(1000, func() { shared.Do(b.ctx, &op) }))
	return nil
}

func (b *bench) directReads() error {
	f, err := iouring.OpenFile(filepath.Join(b.dir, "big"), os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	d := f.OpenDirect()
	dedicated, err := b.deep()
	if err != nil {
		return err
	}
	defer dedicated.Close()
	each := 16
	const total = readers * 16
	pread := &lab.Row{Name: "goroutines, pread", Work: total, Do: func() error {
		bufs, release := b.gets(readers, 4*kib)
		defer release()
		fd := int(d.OS().Fd())
		return parallel(readers, func(i int) error {
			mem := bufs[i].Bytes()
			for range each {
				if _, err := unix.Pread(fd, mem, rand.Int64N(b.size/(4*kib))*4*kib); err != nil {
					return err
				}
			}
			return nil
		})
	}}
	ring := &lab.Row{Name: "ring", Work: total, Do: b.randomReads(b.ring, d, each)}
	deep := &lab.Row{Name: "dedicated ring", Work: total, Do: b.randomReads(dedicated, d, each)}
	rows := []*lab.Row{pread, ring, deep}
	noise, err := lab.Alternate(b.ctx, 1, b.rounds, rows...)
	if err != nil {
		return err
	}
	b.show("random O_DIRECT reads of 4 KiB, 256 readers", "us", 1e6, noise, rows)
	// A queue that is always this deep is what the dedicated mode is for.
	b.r.Target("read/direct/4k/256readers/ops/vs=goroutine-pread", ">=2.0", lab.Quotient(pread.Wall, deep.Wall))
	b.r.Target("read/direct/4k/256readers/cpu/vs=goroutine-pread", "<=0.35", lab.Quotient(deep.CPU, pread.CPU))
	b.r.Metric("read/direct/4k/256readers/ops/s", 1/lab.Median(deep.Wall))
	b.r.Ratio("read/direct/4k/256readers/shared/ops/vs=goroutine-pread", lab.Quotient(pread.Wall, ring.Wall))
	b.r.Ratio("read/direct/4k/256readers/shared/cpu/vs=goroutine-pread", lab.Quotient(ring.CPU, pread.CPU))
	return nil
}

// directWrites writes a file whose blocks are allocated but not yet written, and
// once more over what it wrote.
func (b *bench) directWrites() error {
	size := int64(256 * mib)
	if b.quick {
		size = 64 * mib
	}
	f, err := iouring.OpenFile(filepath.Join(b.dir, "prealloc"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	d := f.OpenDirect()
	prealloc := func() error {
		if err := f.OS().Truncate(0); err != nil {
			return err
		}
		return unix.Fallocate(int(f.OS().Fd()), 0, 0, size)
	}
	bufs, release := b.gets(32, mib)
	defer release()

	sequential := func(n int) func() error {
		return func() error {
			fd, mem := int(d.OS().Fd()), bufs[0].Bytes()[:n]
			for off := int64(0); off < size; off += int64(n) {
				if _, err := unix.Pwrite(fd, mem, off); err != nil {
					return err
				}
			}
			return unix.Fdatasync(fd)
		}
	}
	ring := func(be iouring.Backend, n, depth int) func() error {
		return func() error {
			var next atomic.Int64
			err := parallel(depth, func(i int) error {
				for {
					off := next.Add(int64(n)) - int64(n)
					if off >= size {
						return nil
					}
					if err := be.WriteAt(b.ctx, d, []iouring.Buffer{bufs[i].Slice(0, n)}, off); err != nil {
						return err
					}
				}
			})
			if err != nil {
				return err
			}
			return be.Datasync(b.ctx, d)
		}
	}
	for _, over := range []bool{false, true} {
		work := float64(size) / mib
		rows := []*lab.Row{
			{Name: "pwrite 64 KiB", Do: sequential(64 * kib)},
			{Name: "pwrite 1 MiB", Do: sequential(mib)},
			{Name: "ring 64 KiB, depth 32", Do: ring(b.ring, 64*kib, 32)},
			{Name: "ring 1 MiB, depth 4", Do: ring(b.ring, mib, 4)},
			{Name: "ring 1 MiB, depth 8", Do: ring(b.ring, mib, 8)},
		}
		for _, row := range rows {
			row.Work = work
			if !over {
				row.Prepare = prealloc
			}
		}
		noise, err := lab.Alternate(b.ctx, 1, b.rounds, rows...)
		if err != nil {
			return err
		}
		small, large, many, four, eight := rows[0], rows[1], rows[2], rows[3], rows[4]
		if over {
			b.show("O_DIRECT write over written blocks, fdatasync", "us/MiB", 1e6, noise, rows)
			b.r.Ratio("write/direct/over/wall/vs=pwrite64k", lab.Quotient(four.Wall, small.Wall))
			b.r.Ratio("write/direct/over/cpu/vs=pwrite64k", lab.Quotient(four.CPU, small.CPU))
			b.r.Ratio("write/direct/over/wall/vs=pwrite1m", lab.Quotient(four.Wall, large.Wall))
			continue
		}
		b.show("O_DIRECT write of a preallocated file, fdatasync", "us/MiB", 1e6, noise, rows)
		b.r.Target("write/direct/prealloc/wall/vs=pwrite64k", "<=0.33", lab.Quotient(four.Wall, small.Wall))
		b.r.Target("write/direct/prealloc/cpu/vs=pwrite64k", "<=0.25", lab.Quotient(four.CPU, small.CPU))
		b.r.Target("write/direct/prealloc/wall/vs=pwrite1m", "<=1.05", lab.Quotient(four.Wall, large.Wall))
		b.r.Ratio("write/direct/prealloc/64k-depth32/wall/vs=pwrite64k", lab.Quotient(many.Wall, small.Wall))
		b.r.Ratio("write/direct/prealloc/1m-depth8/wall/vs=pwrite1m", lab.Quotient(eight.Wall, large.Wall))
	}
	return nil
}

// hsync makes 16 files durable that have 64 KiB of new data each.
func (b *bench) hsync() error {
	var files []*iouring.File
	for i := range syncs {
		f, err := iouring.OpenFile(filepath.Join(b.dir, fmt.Sprint("sync", i)), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		files = append(files, f)
	}
	buf := b.get(64 * kib)
	defer buf.Release()
	var off int64
	write := func() error {
		for _, f := range files {
			if err := b.plain.WriteAt(b.ctx, f, []iouring.Buffer{buf}, off); err != nil {
				return err
			}
		}
		off += 64 * kib
		return nil
	}
	fds := make([]int, syncs)
	for i, f := range files {
		fds[i] = int(f.OS().Fd())
	}
	one := &lab.Row{Name: "one by one", Work: 1, Prepare: write, Do: func() error {
		for _, fd := range fds {
			if err := unix.Fdatasync(fd); err != nil {
				return err
			}
		}
		return nil
	}}
	routines := &lab.Row{Name: "goroutines", Work: 1, Prepare: write, Do: func() error {
		return parallel(syncs, func(i int) error { return unix.Fdatasync(fds[i]) })
	}}
	ring := &lab.Row{Name: "ring", Work: 1, Prepare: write, Do: func() error { return b.ring.Datasync(b.ctx, files...) }}
	rows := []*lab.Row{one, routines, ring}
	noise, err := lab.Alternate(b.ctx, 2, 4*b.rounds, rows...)
	if err != nil {
		return err
	}
	b.show("fdatasync of 16 files", "us", 1e6, noise, rows)
	b.r.Target("hsync/16files/wall/vs=one-by-one", "<=0.45", lab.Quotient(ring.Wall, one.Wall))
	b.r.Target("hsync/16files/wall/vs=goroutines", "<=0.85", lab.Quotient(ring.Wall, routines.Wall))
	b.r.Ratio("hsync/16files/cpu/vs=goroutines", lab.Quotient(ring.CPU, routines.CPU))
	return nil
}

// policy runs what a block store does on the backend that Open chooses and on
// the one of plain system calls.
func (b *bench) policy() error {
	const cached = 16 * mib
	small, err := b.file("cached", cached)
	if err != nil {
		return err
	}
	defer small.Close()
	big, err := iouring.OpenFile(filepath.Join(b.dir, "big"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer big.Close()
	direct := big.OpenDirect()
	bufs, release := b.gets(64, mib)
	defer release()

	reads := func(f *iouring.File, size int64, n, depth, each int) func(iouring.Backend) error {
		return func(be iouring.Backend) error {
			return parallel(depth, func(i int) error {
				for range each {
					if _, err := be.ReadAt(b.ctx, f, bufs[i].Slice(0, n), rand.Int64N(size/int64(n))*int64(n)); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	writes := func(f *iouring.File, size int64, parts, n, depth, each int, sync bool) func(iouring.Backend) error {
		return func(be iouring.Backend) error {
			err := parallel(depth, func(i int) error {
				vec := make([]iouring.Buffer, parts)
				for p := range vec {
					vec[p] = bufs[i].Slice(p*n, p*n+n)
				}
				total := int64(parts * n)
				for range each {
					if err := be.WriteAt(b.ctx, f, vec, rand.Int64N(size/total)*total); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil || !sync {
				return err
			}
			return be.Datasync(b.ctx, f)
		}
	}
	cases := []struct {
		name string
		do   func(iouring.Backend) error
	}{
		{"read/cached/4k/depth=1", reads(small, cached, 4*kib, 1, 4000)},
		{"read/cached/4k/depth=16", reads(small, cached, 4*kib, 16, 250)},
		{"read/cached/64k/depth=1", reads(small, cached, 64*kib, 1, 500)},
		{"read/cached/64k/depth=16", reads(small, cached, 64*kib, 16, 30)},
		{"read/direct/4k/depth=1", reads(direct, b.size, 4*kib, 1, 100)},
		{"read/direct/4k/depth=16", reads(direct, b.size, 4*kib, 16, 20)},
		{"read/direct/64k/depth=1", reads(direct, b.size, 64*kib, 1, 60)},
		{"read/direct/64k/depth=16", reads(direct, b.size, 64*kib, 16, 8)},
		{"write/buffered/64k/depth=1", writes(small, cached, 1, 64*kib, 1, 300, false)},
		{"write/buffered/16x64k/depth=1", writes(small, cached, 16, 64*kib, 1, 20, false)},
		{"write/buffered/64k/depth=16", writes(small, cached, 1, 64*kib, 16, 20, false)},
		{"write/direct/1m/depth=1", writes(direct, b.size, 1, mib, 1, 8, true)},
		{"write/direct/1m/depth=4", writes(direct, b.size, 1, mib, 4, 4, true)},
		{"write/direct/64k/depth=16", writes(direct, b.size, 1, 64*kib, 16, 8, true)},
		{"write/buffered/64k/datasync", writes(small, cached, 1, 64*kib, 1, 1, true)},
	}
	worst, where := 0.0, ""
	b.r.Printf("the backend that Open chooses against plain system calls\n")
	for _, c := range cases {
		sys := &lab.Row{Name: "syscall", Work: 1, Do: func() error { return c.do(b.plain) }}
		own := &lab.Row{Name: "ring", Work: 1, Do: func() error { return c.do(b.ring) }}
		if _, err := lab.Alternate(b.ctx, 2, 4*b.rounds, sys, own); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		wall, cpu := lab.Quotient(own.Wall, sys.Wall), lab.Quotient(own.CPU, sys.CPU)
		p := lab.Differ(own.Wall, sys.Wall)
		b.r.Printf("  %-32s wall %5.2fx  cpu %5.2fx  (p %.2g)\n", c.name, wall, cpu, p)
		b.r.Ratio("policy/"+c.name+"/wall", wall)
		b.r.Ratio("policy/"+c.name+"/cpu", cpu)
		if p >= 0.05 {
			wall = min(wall, 1) // no difference that can be told from chance
		}
		if wall > worst {
			worst, where = wall, c.name
		}
	}
	b.r.Printf("  worst: %s\n\n", where)
	b.r.Target("policy/worst-row/vs=syscall-backend", "<=1.05", worst)
	return nil
}

// overhead compares the backend of plain system calls with the calls themselves.
func (b *bench) overhead() error {
	const cached = 16 * mib
	f, err := iouring.OpenFile(filepath.Join(b.dir, "cached"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fd := int(f.OS().Fd())
	bufs, release := b.gets(16, 64*kib)
	defer release()
	worst := 0.0
	compare := func(name string, n int, own, hand func(off int64) error) error {
		loop := func(do func(off int64) error) func() error {
			return func() error {
				for k := range int64(n) {
					if err := do(k * 64 * kib % cached); err != nil {
						return err
					}
				}
				return nil
			}
		}
		rows := []*lab.Row{
			{Name: name + ", by hand", Work: float64(n), Parallel: 1, Do: loop(hand)},
			{Name: name + ", backend", Work: float64(n), Parallel: 1, Do: loop(own)},
		}
		noise, err := lab.Alternate(b.ctx, 2, 6*b.rounds, rows...)
		if err != nil {
			return err
		}
		b.show("the syscall backend", "ns", 1e9, noise, rows)
		q := lab.Quotient(rows[1].Wall, rows[0].Wall)
		b.r.Ratio("syscall-backend/"+name+"/vs=handwritten", q)
		worst = max(worst, q)
		return nil
	}
	for _, n := range []int{4 * kib, 64 * kib} {
		buf := bufs[0].Slice(0, n)
		mem := buf.Bytes()
		one := []iouring.Buffer{buf}
		err := errors.Join(
			compare(fmt.Sprintf("read/%dk", n/kib), 2000,
				func(off int64) error { _, err := b.plain.ReadAt(b.ctx, f, buf, off); return err },
				func(off int64) error { _, err := unix.Pread(fd, mem, off); return err }),
			compare(fmt.Sprintf("write/%dk", n/kib), 1000,
				func(off int64) error { return b.plain.WriteAt(b.ctx, f, one, off) },
				func(off int64) error { _, err := unix.Pwrite(fd, mem, off); return err }))
		if err != nil {
			return err
		}
	}
	vec := make([][]byte, len(bufs))
	for i := range bufs {
		vec[i] = bufs[i].Bytes()
	}
	err = compare("write/16x64k", 100,
		func(off int64) error { return b.plain.WriteAt(b.ctx, f, bufs, 0) },
		func(off int64) error { _, err := unix.Pwritev(fd, vec, 0); return err })
	if err != nil {
		return err
	}
	b.r.Target("syscall-backend/vs=handwritten", "<=1.03", worst)
	return nil
}

// through sends everything through the ring, to show where that does not help.
func (b *bench) through() error {
	const cached = 16 * mib
	f, err := iouring.OpenFile(filepath.Join(b.dir, "cached"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	d := f.OpenDirect()
	e, err := iouring.NewEngine(iouring.EngineConfig{})
	if err != nil {
		return err
	}
	defer e.Close()
	bufs, release := b.gets(32, 64*kib)
	defer release()
	const n = 256
	plain := func(f *iouring.File, size int, write bool) *lab.Row {
		fd, mem := int(f.OS().Fd()), bufs[0].Bytes()[:size]
		return &lab.Row{Name: "system calls", Work: n, Do: func() (err error) {
			for k := range int64(n) {
				off := k * 37 * 64 * kib % cached
				if write {
					_, err = unix.Pwrite(fd, mem, off)
				} else {
					_, err = unix.Pread(fd, mem, off)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}}
	}
	batch := func(f *iouring.File, size int, write bool, depth int) *lab.Row {
		fd := int(f.OS().Fd())
		ops := make([]iouring.Op, depth)
		list := make([]*iouring.Op, depth)
		for i := range ops {
			list[i] = &ops[i]
		}
		return &lab.Row{Name: fmt.Sprintf("ring, %d at once", depth), Work: n, Do: func() error {
			for k := 0; k < n; k += depth {
				for i := range ops {
					off := int64(k+i) * 37 * 64 * kib % cached
					if write {
						ops[i].PrepWrite(fd, bufs[i].Slice(0, size), off)
					} else {
						ops[i].PrepRead(fd, bufs[i].Slice(0, size), off)
					}
				}
				if err := e.Submit(list...); err != nil {
					return err
				}
				for i := range ops {
					if _, err := e.Wait(b.ctx, &ops[i]); err != nil {
						return err
					}
				}
			}
			return nil
		}}
	}
	for _, c := range []struct {
		name  string
		file  *iouring.File
		size  int
		write bool
	}{
		{"read/cached/4k", f, 4 * kib, false},
		{"read/cached/64k", f, 64 * kib, false},
		{"write/buffered/64k", f, 64 * kib, true},
		{"read/direct/4k", d, 4 * kib, false},
		{"read/direct/64k", d, 64 * kib, false},
		{"write/direct/64k", d, 64 * kib, true},
	} {
		rows := []*lab.Row{plain(c.file, c.size, c.write)}
		for _, depth := range []int{1, 8, 32} {
			rows = append(rows, batch(c.file, c.size, c.write, depth))
		}
		noise, err := lab.Alternate(b.ctx, 1, b.rounds, rows...)
		if err != nil {
			return err
		}
		b.show("one goroutine: "+c.name, "us", 1e6, noise, rows)
		for i, depth := range []int{1, 8, 32} {
			b.r.Ratio(fmt.Sprintf("through/%s/batch=%d/wall", c.name, depth), lab.Quotient(rows[i+1].Wall, rows[0].Wall))
			b.r.Ratio(fmt.Sprintf("through/%s/batch=%d/cpu", c.name, depth), lab.Quotient(rows[i+1].CPU, rows[0].CPU))
		}
	}
	return nil
}

// fio runs fio, if it is installed, with the settings of the read rows.
func (b *bench) fio() error {
	path, err := exec.LookPath("fio")
	if err != nil {
		b.r.Printf("SKIPPED, NO FIO: %v\n\n", err)
		return nil
	}
	seconds := 3
	if b.quick {
		seconds = 1
	}
	f, err := iouring.OpenFile(filepath.Join(b.dir, "big"), os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	d := f.OpenDirect()
	e, err := iouring.NewEngine(iouring.EngineConfig{})
	if err != nil {
		return err
	}
	defer e.Close()
	bufs, release := b.gets(32, 4*kib)
	defer release()
	for _, depth := range []int{1, 32} {
		cmd := exec.CommandContext(b.ctx, path, "--name=read", "--filename="+f.Name(), "--readonly", "--rw=randread", "--bs=4k", "--direct=1",
			"--ioengine=io_uring", "--iodepth="+strconv.Itoa(depth), "--runtime="+strconv.Itoa(seconds), "--time_based", "--output-format=json")
		out, err := cmd.Output()
		if err != nil {
			b.r.Printf("SKIPPED, FIO FAILED: %v\n\n", err)
			return nil
		}
		var result struct {
			Jobs []struct {
				Read struct{ IOPS float64 }
			}
		}
		if err := json.Unmarshal(out[slices.Index(out, '{'):], &result); err != nil || len(result.Jobs) != 1 {
			return fmt.Errorf("output of fio: %w", err)
		}
		theirs := result.Jobs[0].Read.IOPS

		var done atomic.Int64
		end := time.Now().Add(time.Duration(seconds) * time.Second)
		fd := int(d.OS().Fd())
		err = parallel(depth, func(i int) error {
			var op iouring.Op
			for time.Now().Before(end) {
				op.PrepRead(fd, bufs[i], rand.Int64N(b.size/(4*kib))*4*kib)
				if _, err := e.Do(b.ctx, &op); err != nil {
					return err
				}
				done.Add(1)
			}
			return nil
		})
		if err != nil {
			return err
		}
		ours := float64(done.Load()) / float64(seconds)
		b.r.Printf("random O_DIRECT reads of 4 KiB, depth %d: fio %.0f/s, engine %.0f/s\n", depth, theirs, ours)
		b.r.Ratio(fmt.Sprintf("read/direct/4k/depth=%d/ops/vs=fio", depth), ours/theirs)
	}
	return nil
}
