package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/blockpath/blockpath/crc/packet/client"
	"github.com/blockpath/blockpath/stripedcounter"
)

// roundtripResult is what roundtrip prints.
type roundtripResult struct {
	File    string           `json:"file"`
	Backend string           `json:"backend"`
	Reason  string           `json:"backend_reason"`
	Stored  client.File      `json:"stored"`
	Put     transfer         `json:"put"`
	Get     transfer         `json:"get"`
	Store   map[string]int64 `json:"store"`   // counters of the datanode's store
	IO      map[string]int64 `json:"io"`      // counters of the backend, system calls among them
	MaxRSS  int64            `json:"max_rss"` // peak resident memory of the process in bytes
	Equal   bool             `json:"equal"`
}

func newRoundtrip() *cobra.Command {
	var flags putFlags
	var backend string
	cmd := &cobra.Command{
		Use:   "roundtrip FILE",
		Short: "Put a file into an embedded datanode, get it back, compare every byte",
		Args:  usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := flags.config()
			if err != nil {
				return err
			}
			choice, err := backendChoice(backend)
			if err != nil {
				return err
			}
			dir, err := os.MkdirTemp("", "blockpath-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			n, err := startNode(nodeConfig{
				dirs: []string{filepath.Join(dir, "data")}, listen: "127.0.0.1:0", backend: choice, log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				return err
			}
			result, err := roundtrip(cmd.Context(), args[0], n, cfg, cmd.ErrOrStderr())
			if err = errors.Join(err, n.stop()); err != nil {
				return err
			}
			if flags.json {
				err = writeJSON(cmd.OutOrStdout(), result)
			} else {
				err = result.print(cmd.OutOrStdout())
			}
			if err == nil && !result.Equal {
				err = fmt.Errorf("roundtrip: %s did not come back as it was", args[0])
			}
			return err
		},
	}
	flags.add(cmd)
	addBackendFlag(cmd, &backend)
	return cmd
}

// roundtrip puts a file into n, gets it back and compares.
func roundtrip(ctx context.Context, path string, n *node, cfg client.PutConfig, stderr io.Writer) (*roundtripResult, error) {
	caps := n.backend.Capabilities()
	r := &roundtripResult{File: path, Backend: caps.Backend, Reason: caps.Reason}
	r.Put.Kernel, r.Get.Kernel = kernelFor(cfg.Chunks, "put"), kernelFor(cfg.Chunks, "copyverify")
	cfg.Pool = client.RandomPool()
	m := client.NewManifest(cfg.Pool, cfg.Chunks)
	to := []string{addressOf(n.listener)}

	watch := startWatch()
	f, err := putFile(ctx, path, filepath.Base(path), to, cfg, &r.Put, stderr)
	if err != nil {
		return nil, err
	}
	watch.stop(&r.Put)
	r.Stored = f
	m.Files = append(m.Files, f)

	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	compare := &comparer{r: in}
	progress, done := newProgress(stderr, "get "+f.Name, f.Length)
	watch = startWatch()
	stats, err := client.Get(ctx, compare, m, &f, to, client.GetConfig{SHA256: cfg.SHA256, Progress: progress})
	done()
	if err != nil {
		return nil, err
	}
	r.Get.Files, r.Get.Bytes, r.Get.Blocks = 1, stats.Bytes, stats.Blocks
	watch.stop(&r.Get)
	if r.Equal, err = compare.equal(); err != nil {
		return nil, err
	}
	r.Store, r.IO = counters(n.store.Stats()), counters(n.backend.Stats())
	r.MaxRSS = maxRSS()
	return r, nil
}

func counters(s *stripedcounter.Set) map[string]int64 {
	m := map[string]int64{}
	for name, value := range s.All() {
		m[name] = value
	}
	return m
}

func (r *roundtripResult) print(w io.Writer) error {
	out := newTable(w)
	out.row("file", "%s, %d bytes", r.File, r.Stored.Length)
	out.row("backend", "%s: %s", r.Backend, r.Reason)
	r.Put.print(out, "put")
	r.Get.print(out, "get")
	printChecksums(out, &r.Stored)
	out.row("files", "%d writes, %d reads, %d syncs by the datanode", r.IO["writes"], r.IO["reads"], r.IO["datasyncs"])
	out.row("memory", "%s resident at the peak", humanize.IBytes(uint64(r.MaxRSS)))
	out.row("equal", "%t", r.Equal)
	return out.flush()
}

// A comparer compares what is written to it with what r yields.
type comparer struct {
	r      io.Reader
	buf    []byte
	differ bool
}

func (c *comparer) Write(p []byte) (int, error) {
	if len(c.buf) < len(p) {
		c.buf = make([]byte, len(p))
	}
	want := c.buf[:len(p)]
	if _, err := io.ReadFull(c.r, want); err == io.EOF || err == io.ErrUnexpectedEOF {
		c.differ = true
	} else if err != nil {
		return 0, err
	}
	if !bytes.Equal(p, want) {
		c.differ = true
	}
	return len(p), nil
}

// equal reports whether all was equal and r has ended.
func (c *comparer) equal() (bool, error) {
	var more [1]byte
	_, err := io.ReadFull(c.r, more[:])
	if err != nil && err != io.EOF {
		return false, err
	}
	return !c.differ && err == io.EOF, nil
}
