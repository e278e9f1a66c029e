//go:build linux || darwin

package datanode_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring/datanode"
)

// A goldenReplica is a block that real Hadoop made; see
// testdata/hadoop/README.md.
type goldenReplica struct {
	Kind         string
	Size, Length int
	ID, Stamp    int64
	Block, Meta  string // paths
}

func goldenReplicas(t *testing.T, name string) (all []goldenReplica) {
	t.Helper()
	b, err := os.ReadFile("testdata/hadoop/" + name)
	if err != nil {
		t.Fatal(err)
	}
	for dec := json.NewDecoder(bytes.NewReader(b)); ; {
		var g goldenReplica
		if err := dec.Decode(&g); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		g.Block, g.Meta = filepath.Join("testdata/hadoop", g.Block), filepath.Join("testdata/hadoop", g.Meta)
		all = append(all, g)
	}
}

func (g goldenReplica) chunks(t *testing.T) crc.Chunks {
	t.Helper()
	k, err := crc.ParseKind(g.Kind)
	if err != nil {
		t.Fatal(err)
	}
	return crc.Chunks{Kind: k, Size: g.Size}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestHadoopGoldenReplicas writes blocks that a real datanode wrote: the files
// must be the same, and stand in the same places.
func TestHadoopGoldenReplicas(t *testing.T) {
	const pool = "BP-1-127.0.0.1-1"
	ctx := context.Background()
	all := goldenReplicas(t, "replicas.jsonl")
	dir := t.TempDir()
	store, err := datanode.OpenStore(datanode.StoreConfig{Dirs: []string{dir}})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for _, g := range all {
		c, data := g.chunks(t), readFile(t, g.Block)
		w, err := store.Create(ctx, packet.Block{Pool: pool, ID: g.ID, Stamp: g.Stamp, NumBytes: int64(len(data))}, c)
		if err != nil {
			t.Fatal(err)
		}
		h := packet.Header{DataLen: len(data)}
		sumsLen := c.SumsLen(len(data))
		buf, err := store.Arena().Get(ctx, w.BufferLen(h, sumsLen))
		if err != nil {
			t.Fatal(err)
		}
		c.Put(buf.Bytes(), data)
		copy(buf.Bytes()[sumsLen:], data)
		if err := w.WritePacket(ctx, h, sumsLen, buf); err != nil {
			t.Fatal(err)
		}
		if err := w.Finalize(ctx, false); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{g.Block, g.Meta} {
			below, err := filepath.Rel("testdata/hadoop/replicas", path)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := readFile(t, filepath.Join(dir, below)), readFile(t, path); !bytes.Equal(got, want) {
				t.Errorf("%+v: %s: %x, want %x", g, below, got, want)
			}
		}
	}

	report, err := datanode.Verify(ctx, []string{"testdata/hadoop/replicas"}, datanode.VerifyConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if !report.OK() || report.Files != int64(len(all)) || len(report.Misplaced)+len(report.LongMeta) > 0 {
		t.Errorf("the datanode's %d replicas: %+v", len(all), report)
	}
}

// TestHadoopGoldenComputed accepts the .meta files of "hdfs debug computeMeta",
// which have a stale word at the end if the block has whole chunks only, and
// nothing else behind the last checksum.
func TestHadoopGoldenComputed(t *testing.T) {
	all := goldenReplicas(t, "computed.jsonl")
	var long []string
	for _, g := range all {
		data, meta := readFile(t, g.Block), readFile(t, g.Meta)
		want := g.chunks(t).Append(datanode.MetaHeader{Version: datanode.MetaVersion, Chunks: g.chunks(t)}.Append(nil), data)
		if g.Length%g.Size == 0 {
			long = append(long, g.Meta)
			meta = meta[:len(meta)-4]
		}
		if !bytes.Equal(meta, want) {
			t.Errorf("%+v: .meta file %x, want %x", g, meta, want)
		}
	}
	verify := func(path string) *datanode.Report {
		report, err := datanode.Verify(context.Background(), []string{path}, datanode.VerifyConfig{})
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	report := verify("testdata/hadoop/computed")
	slices.Sort(long)
	slices.Sort(report.LongMeta)
	if !report.OK() || report.Files != int64(len(all)) || !slices.Equal(report.LongMeta, long) {
		t.Errorf("%d replicas, those with a stale word %v: %+v", len(all), long, report)
	}

	// one more word than that is no habit of Hadoop's
	g := all[slices.IndexFunc(all, func(g goldenReplica) bool { return g.Length == 513 })]
	dir := t.TempDir()
	for path, b := range map[string][]byte{g.Block: readFile(t, g.Block), g.Meta: append(readFile(t, g.Meta), 1, 2, 3, 4)} {
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if report := verify(dir); report.OK() {
		t.Errorf("a .meta file that is too long is accepted: %+v", report)
	}
}
