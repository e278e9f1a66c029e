package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet/client"
)

// putFlags are the flags of put and roundtrip.
type putFlags struct {
	blockSize, packetSize, bufferHint, bytesPerChecksum, rate size
	checksum                                                  kind
	sync, sha256, json                                        bool
}

func (f *putFlags) add(cmd *cobra.Command) {
	f.blockSize, f.bytesPerChecksum = client.DefaultBlockSize, crc.DefaultChunkSize
	flags := cmd.Flags()
	flags.Var(&f.blockSize, "block-size", "block size, a multiple of --bytes-per-checksum")
	flags.Var(&f.packetSize, "packet-size", "fixed packet size, such as 64KiB; 0 adapts it to the stream")
	flags.Var(&f.bufferHint, "buffer-hint", "size of the application's buffer, for adaptive packets to begin with")
	flags.Var(&f.bytesPerChecksum, "bytes-per-checksum", "chunk size")
	flags.Var(&f.checksum, "checksum", "crc32c, crc32 or none")
	flags.Var(&f.rate, "rate", "send at most this many bytes per second")
	flags.BoolVar(&f.sync, "sync", false, "make every block durable before it is complete")
	flags.BoolVar(&f.sha256, "sha256", false, "compute an SHA-256 of each file")
	flags.BoolVar(&f.json, "json", false, "print JSON")
	cmd.MarkFlagsMutuallyExclusive("packet-size", "buffer-hint")
}

// config returns what the flags ask for, or a usageError.
func (f *putFlags) config() (client.PutConfig, error) {
	bad := func(format string, args ...any) (client.PutConfig, error) {
		return client.PutConfig{}, &usageError{fmt.Errorf(format, args...)}
	}
	switch {
	case f.bytesPerChecksum < 1 || f.bytesPerChecksum > crc.MaxChunkSize:
		return bad("--bytes-per-checksum is %d, expected 1..%d", f.bytesPerChecksum, crc.MaxChunkSize)
	case f.blockSize < 1 || f.blockSize%f.bytesPerChecksum != 0:
		return bad("--block-size is %d, expected a multiple of --bytes-per-checksum, %d", f.blockSize, f.bytesPerChecksum)
	}
	return client.PutConfig{
		Chunks:     crc.Chunks{Kind: crc.Kind(f.checksum), Size: int(f.bytesPerChecksum)},
		BlockSize:  int64(f.blockSize),
		PacketSize: int(f.packetSize),
		BufferHint: int(f.bufferHint),
		Sync:       f.sync,
		SHA256:     f.sha256,
		Rate:       int64(f.rate),
	}, nil
}

// A transfer says what moving files one way took.
type transfer struct {
	Files            int     `json:"files"`
	Bytes            int64   `json:"bytes"`
	Blocks           int     `json:"blocks"`
	Packets          int64   `json:"packets,omitempty"`
	SocketWrites     int64   `json:"socket_writes,omitempty"` // system calls that sent the packets
	Kernel           string  `json:"kernel"`
	Seconds          float64 `json:"seconds"`
	GBps             float64 `json:"gb_per_s"`
	CPUSecondsPerGiB float64 `json:"cpu_seconds_per_gib"` // of this process
}

// A stopwatch measures a transfer.
type stopwatch struct {
	start time.Time
	cpu   time.Duration
}

func startWatch() stopwatch { return stopwatch{time.Now(), cpuTime()} }

// stop enters the time that has passed.
func (s stopwatch) stop(t *transfer) {
	t.Seconds = time.Since(s.start).Seconds()
	if t.Bytes > 0 {
		t.GBps = float64(t.Bytes) / 1e9 / t.Seconds
		t.CPUSecondsPerGiB = (cpuTime() - s.cpu).Seconds() / (float64(t.Bytes) / (1 << 30))
	}
}

// print adds the transfer to a table.
func (t *transfer) print(out table, what string) {
	out.row(what, "%s in %d blocks, %.3f s, %.2f GB/s, %.3f CPU seconds per GiB",
		humanize.IBytes(uint64(t.Bytes)), t.Blocks, t.Seconds, t.GBps, t.CPUSecondsPerGiB)
	if t.Packets > 0 {
		out.row("", "%d packets, %d socket writes", t.Packets, t.SocketWrites)
	}
	out.row("", "kernel %s", t.Kernel)
}

// kernelFor names the kernel that an operation on whole packets uses.
func kernelFor(c crc.Chunks, operation string) string {
	name := "none"
	for _, choice := range crc.Kernels() {
		if choice.Kind == c.Kind && choice.Operation == operation &&
			choice.Chunk <= c.BytesPerChunk() && choice.Length <= cpuBuffer {
			name = choice.Kernel
		}
	}
	return fmt.Sprintf("%s (%s %s)", name, c.Kind, operation)
}

// putResult is what put prints.
type putResult struct {
	transfer
	Manifest string        `json:"manifest"`
	Stored   []client.File `json:"stored"`
}

func newPut() *cobra.Command {
	var flags putFlags
	var to []string
	var manifest string
	cmd := &cobra.Command{
		Use:   "put FILE... --to ADDR --manifest FILE",
		Short: "Store files as blocks on datanodes",
		Long: `Store files as blocks on the datanode at ADDR, HOST:PORT or unix:PATH, and write a
manifest that says what they consist of. --to given several times is one pipeline.`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(to) == 0 || manifest == "" {
				return &usageError{errors.New("put needs --to and --manifest")}
			}
			cfg, err := flags.config()
			if err != nil {
				return err
			}
			names, err := storedNames(args)
			if err != nil {
				return err
			}
			cfg.Pool, cfg.Recover = client.RandomPool(), client.WithoutBadNode
			m := client.NewManifest(cfg.Pool, cfg.Chunks)
			result := putResult{transfer: transfer{Kernel: kernelFor(cfg.Chunks, "put")}, Manifest: manifest}
			watch := startWatch()
			for i, path := range args {
				f, err := putFile(cmd.Context(), path, names[i], to, cfg, &result.transfer, cmd.ErrOrStderr())
				if err != nil {
					return err
				}
				m.Files = append(m.Files, f)
			}
			watch.stop(&result.transfer)
			if err := writeManifest(manifest, m); err != nil {
				return err
			}
			result.Stored = m.Files
			if flags.json {
				return writeJSON(cmd.OutOrStdout(), result)
			}
			out := newTable(cmd.OutOrStdout())
			result.print(out, "put")
			for _, f := range m.Files {
				out.row("file", "%s, %d bytes", f.Name, f.Length)
				printChecksums(out, &f)
			}
			out.row("manifest", "%s", manifest)
			return out.flush()
		},
	}
	flags.add(cmd)
	cmd.Flags().StringArrayVar(&to, "to", nil, "datanode; several are one pipeline")
	cmd.Flags().StringVar(&manifest, "manifest", "", "where to write the manifest")
	return cmd
}

func printChecksums(out table, f *client.File) {
	for _, sum := range []struct{ label, value string }{
		{"composite", f.Composite}, {"md5", f.MD5}, {"sha256", f.SHA256},
	} {
		if sum.value != "" {
			out.row(sum.label, "%s", sum.value)
		}
	}
}

// storedNames returns the names under which a manifest keeps files: their
// paths if those are relative and stay below the directory, else the last
// element.
func storedNames(paths []string) ([]string, error) {
	names, seen := make([]string, len(paths)), map[string]string{}
	for i, p := range paths {
		name := filepath.Clean(p)
		if !filepath.IsLocal(name) {
			name = filepath.Base(name)
		}
		name = filepath.ToSlash(name)
		if other, ok := seen[name]; ok {
			return nil, &usageError{fmt.Errorf("%s and %s would both be stored as %s", other, p, name)}
		}
		names[i], seen[name] = name, p
	}
	return names, nil
}

// putFile puts one file and adds what it took to t.
func putFile(ctx context.Context, path, name string, to []string, cfg client.PutConfig, t *transfer, stderr io.Writer) (client.File, error) {
	in, err := os.Open(path)
	if err != nil {
		return client.File{}, err
	}
	defer in.Close()
	total := int64(-1) // unknown
	if info, err := in.Stat(); err != nil {
		return client.File{}, err
	} else if info.Mode().IsRegular() {
		total, cfg.Size = info.Size(), info.Size()
	}
	progress, done := newProgress(stderr, "put "+name, total)
	cfg.Progress = progress
	f, stats, err := client.Put(ctx, in, name, to, cfg)
	done()
	t.Files++
	t.Bytes += stats.Bytes
	t.Blocks += stats.Blocks
	t.Packets += stats.Packets
	t.SocketWrites += stats.Writes
	return f, err
}

// writeManifest writes m beside path and renames it, so that a manifest is
// whole or not there.
func writeManifest(path string, m *client.Manifest) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if err := errors.Join(m.Write(f), f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
