// Package scrub measures how fast stored blocks are verified, with their files in
// the page cache and not, beside reading them and nothing else.
package scrub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/bench/internal/lab"
	"github.com/blockpath/blockpath/bench/internal/peer"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/iouring/datanode"
)

// Experiment is the experiment.
var Experiment = lab.Experiment{
	Name:    "scrub",
	Summary: "verifying stored blocks, cached and not, beside reading them",
	Run:     run,
}

// size is how long the experiment runs.
type size struct {
	rounds   int
	budget   time.Duration // for each of the two parts
	blocks   int
	blockLen int
}

func run(ctx context.Context, quick bool, r *lab.Report) error {
	sz := size{rounds: 15, budget: 2 * time.Minute, blocks: 16, blockLen: 64 << 20}
	if quick {
		sz = size{rounds: 9, budget: 10 * time.Second, blocks: 8, blockLen: 32 << 20}
	}
	return measure(ctx, sz, r)
}

func measure(ctx context.Context, sz size, r *lab.Report) (err error) {
	dir, err := peer.TempDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := lab.WarmMemory(sz.blocks * (sz.blockLen + sz.blockLen/64)); err != nil {
		return err
	}
	t, err := makeTree(dir, sz)
	if err != nil {
		return err
	}
	rows := func(prepare func() error) []*lab.Row {
		row := func(name string, do func() error) *lab.Row {
			return &lab.Row{Name: name, Work: float64(t.bytes), Prepare: prepare, Do: do}
		}
		return []*lab.Row{
			row("verify", func() error { return t.verify(ctx) }),
			row("sequential-read", func() error { return t.read(nil) }),
			row("hash-crc32-loop", func() error { return t.read(peer.HashCRC32.Verify) }),
			row("cat", t.cat),
		}
	}
	for _, part := range []struct {
		name    string
		prepare func() error
		targets [][3]string // name, limit, row
	}{
		{"cached", nil, [][3]string{{"vs=cat", ">=0.8", "cat"}, {"vs=hash-crc32-loop", ">=1.25", "hash-crc32-loop"}}},
		{"uncached", t.evict, [][3]string{{"vs=sequential-read", ">=0.9", "sequential-read"}}},
	} {
		all := rows(part.prepare)
		if _, err := lab.AlternateWithin(ctx, sz.budget, sz.rounds, all...); err != nil {
			return err
		}
		r.Printf("%s, %d blocks of %d MiB, %d rounds\n%-20s %14s %14s %10s\n", part.name, sz.blocks, sz.blockLen>>20, len(all[0].Wall),
			"", "wall s/GiB", "CPU s/GiB", "GB/s")
		for _, row := range all {
			wall, cpu := lab.Summarize(lab.Times(row.Wall, 1<<30)), lab.Summarize(lab.Times(row.CPU, 1<<30))
			speed := 1e-9 / lab.Median(row.Wall)
			r.Metric(part.name+"/"+row.Name+"/gb-per-s", speed)
			if row.Name == "cat" {
				r.Printf("%-20s %14s %14s %10.2f\n", row.Name, wall, "-", speed)
				continue
			}
			r.Metric(part.name+"/"+row.Name+"/cpu-s-per-gib", cpu.Median)
			r.Printf("%-20s %14s %14s %10.2f\n", row.Name, wall, cpu, speed)
		}
		r.Printf("\n")
		for _, rival := range all[1:] {
			r.Ratio(part.name+"/vs="+rival.Name, lab.Quotient(rival.Wall, all[0].Wall))
		}
		for _, target := range part.targets {
			name := part.name + "/" + target[0]
			r.Target(name, target[1], r.Ratios[name])
		}
	}
	return nil
}

// A tree is a directory with blocks and their .meta files.
type tree struct {
	dir    string
	blocks []string
	metas  []string
	bytes  int64 // of blocks
}

func makeTree(dir string, sz size) (*tree, error) {
	t := &tree{dir: dir}
	data := make([]byte, sz.blockLen)
	x := uint32(2463534242)
	for i := range data {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		data[i] = byte(x)
	}
	meta := crc.Chunks{}.Append(datanode.MetaHeader{Version: datanode.MetaVersion}.Append(nil), data)
	for id := range int64(sz.blocks) {
		block, m := filepath.Join(dir, datanode.BlockName(id)), filepath.Join(dir, datanode.MetaName(id, 1001))
		for name, b := range map[string][]byte{block: data, m: meta} {
			f, err := os.Create(name)
			if err != nil {
				return nil, err
			}
			_, err = f.Write(b)
			// What is not on the disk cannot be dropped from the page cache.
			if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
				return nil, err
			}
		}
		t.blocks, t.metas = append(t.blocks, block), append(t.metas, m)
		t.bytes += int64(len(data))
	}
	return t, nil
}

// evict drops the files from the page cache.
func (t *tree) evict() error {
	for _, names := range [][]string{t.blocks, t.metas} {
		for _, name := range names {
			f, err := os.Open(name)
			if err != nil {
				return err
			}
			if err := errors.Join(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close()); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

func (t *tree) verify(ctx context.Context) error {
	report, err := datanode.Verify(ctx, []string{t.dir}, datanode.VerifyConfig{})
	if err == nil && (!report.OK() || report.Bytes != t.bytes) {
		err = fmt.Errorf("%d bytes verified of %d, %d bad chunks", report.Bytes, t.bytes, len(report.Bad))
	}
	return err
}

// batch is how much is read at once, as much as datanode.Verify does.
const batch = 256 << 10

// read reads every block and its .meta file from start to end and calls verify, if
// it is not nil, with what has been read.
func (t *tree) read(verify func(data, sums []byte) bool) error {
	data, sums := make([]byte, batch), make([]byte, batch/peer.Chunk*4)
	one := func(block, meta string) error {
		f, err := os.Open(block)
		if err != nil {
			return err
		}
		defer f.Close()
		m, err := os.Open(meta)
		if err != nil {
			return err
		}
		defer m.Close()
		for off := int64(0); ; off += batch {
			n, err := f.ReadAt(data, off)
			if n == 0 && err == io.EOF {
				return nil
			}
			if err != nil && err != io.EOF {
				return err
			}
			s := sums[:(n+peer.Chunk-1)/peer.Chunk*4]
			if _, err := m.ReadAt(s, datanode.MetaHeaderLen+off/peer.Chunk*4); err != nil && err != io.EOF {
				return err
			}
			if verify != nil && !verify(data[:n], s) {
				return fmt.Errorf("%s at %d does not verify", block, off)
			}
		}
	}
	for i := range t.blocks {
		if err := one(t.blocks[i], t.metas[i]); err != nil {
			return err
		}
	}
	return nil
}

// cat has cat read the same files. Its output is the null device.
func (t *tree) cat() error {
	return exec.Command("cat", append(append([]string{}, t.blocks...), t.metas...)...).Run()
}
