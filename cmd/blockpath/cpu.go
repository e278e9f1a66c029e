package main

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/klauspost/cpuid/v2"
	"github.com/spf13/cobra"

	"github.com/blockpath/blockpath/crc"
)

// What blockpath cpu measures: buffers that stay in the second-level cache,
// the fastest of a few short samples, which other processes disturb least.
const (
	cpuBuffer  = 64 << 10
	cpuSample  = 500 * time.Microsecond
	cpuSamples = 10
	cpuChunk   = 256 // for kernels of chunks below crc.DefaultChunkSize
)

type cpuReport struct {
	CPU      string      `json:"cpu"`
	Arch     string      `json:"arch"`
	Features []string    `json:"features"`
	Kernels  []cpuKernel `json:"kernels"`
}

type cpuKernel struct {
	Checksum  string  `json:"checksum"`
	Operation string  `json:"operation"`
	Chunk     int     `json:"chunk"`  // from this chunk size on; 0 for update
	Length    int     `json:"length"` // from this length of data on
	Kernel    string  `json:"kernel"`
	GBps      float64 `json:"gb_per_s"`

	// What was measured: the length of the data, and the chunk size.
	MeasuredLength int `json:"measured_length"`
	MeasuredChunk  int `json:"measured_chunk"`
}

func newCPU() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "cpu",
		Short: "Show the CPU's features, the checksum kernels chosen for it, and their speed",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := cpuReport{CPU: cpuid.CPU.BrandName, Arch: runtime.GOARCH, Features: crc.Features()}
			for _, c := range crc.Kernels() {
				k := cpuKernel{Checksum: c.Kind.String(), Operation: c.Operation, Chunk: c.Chunk, Length: c.Length, Kernel: c.Kernel}
				k.measure(c)
				r.Kernels = append(r.Kernels, k)
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), r)
			}
			head := newTable(cmd.OutOrStdout())
			head.row("cpu", "%s (%s)", r.CPU, r.Arch)
			head.row("features", "%s", strings.Join(r.Features, " "))
			if err := head.flush(); err != nil {
				return err
			}
			t := newTable(cmd.OutOrStdout())
			t.row("\nchecksum", "operation\tchunk >=\tlength >=\tkernel\tGB/s\tmeasured")
			for _, k := range r.Kernels {
				chunk, measured := "any", fmt.Sprintf("%d bytes", k.MeasuredLength)
				if k.Operation != "update" {
					chunk = fmt.Sprint(k.Chunk)
					measured += fmt.Sprintf(" in chunks of %d", k.MeasuredChunk)
				}
				t.row(k.Checksum, "%s\t%s\t%d\t%s\t%.1f\t%s", k.Operation, chunk, k.Length, k.Kernel, k.GBps, measured)
			}
			return t.flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// measure measures the kernel of c where c chooses it: 64 KiB in chunks of 512
// bytes, or the nearest to that.
func (k *cpuKernel) measure(c crc.Choice) {
	n, chunk := max(c.Length, 1), c.Chunk
	if covers(c, cpuBuffer, c.Chunk) {
		n = cpuBuffer
	}
	if covers(c, c.Length, crc.DefaultChunkSize) {
		chunk = crc.DefaultChunkSize
	}
	chunk = max(chunk, cpuChunk)
	chunks := crc.Chunks{Kind: c.Kind, Size: chunk}
	data, dst := make([]byte, n), make([]byte, n)
	for i := range data {
		data[i] = byte(i)
	}
	sums := chunks.Append(nil, data)
	var op func()
	switch c.Operation {
	case "update":
		op = func() { crc.Checksum(c.Kind, data) }
	case "put":
		op = func() { chunks.Put(sums, data) }
	case "verify":
		op = func() { chunks.Verify(data, sums, 0) }
	case "copyput":
		op = func() { chunks.CopyPut(dst, sums, data) }
	case "copyverify":
		op = func() { chunks.CopyVerify(dst, data, sums, 0) }
	}
	for range cpuSamples {
		rounds, start := 0, time.Now()
		for time.Since(start) < cpuSample {
			op()
			rounds++
		}
		k.GBps = max(k.GBps, float64(rounds)*float64(n)/float64(time.Since(start).Nanoseconds()))
	}
	k.MeasuredLength, k.MeasuredChunk = n, chunk
}

// covers reports whether c, and no later choice, is for data of the given length
// in chunks of the given size.
func covers(c crc.Choice, length, chunk int) bool {
	last := crc.Choice{}
	for _, o := range crc.Kernels() {
		if o.Kind == c.Kind && o.Operation == c.Operation && o.Length <= length && o.Chunk <= chunk {
			last = o
		}
	}
	return last == c
}
