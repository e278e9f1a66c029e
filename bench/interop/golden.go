package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/iouring/datanode"
)

// writeGolden writes the golden files anew, below the repository's root: bytes
// that Hadoop made and what stands in them, for tests that run without Java.
func writeGolden(t *trial, root string) error {
	for _, write := range []func(*trial, string) error{goldenWire, goldenStreams, goldenSums, goldenFiles, goldenReplicas, goldenComputed} {
		if err := write(t, root); err != nil {
			return err
		}
	}
	version, refused := t.ask("version")
	if refused != nil {
		return refused
	}
	for _, dir := range []string{"crc", "crc/packet", "iouring/datanode"} {
		path := filepath.Join(root, dir, "testdata/hadoop/README.md")
		text := fmt.Sprintf("Made by Hadoop %s on Java %s with\n\n    go -C bench run ./interop -golden\n\nbench/interop/golden.go says what each file is.\n", version[0], version[1])
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// A goldenMessage is a line of wire.jsonl: one message and the bytes in which
// Hadoop wrote it.
type goldenMessage struct {
	Header   *packet.Header          `json:",omitempty"` // with PLEN and HLEN
	Ack      *packet.Ack             `json:",omitempty"`
	Write    *packet.WriteBlock      `json:",omitempty"`
	Read     *packet.ReadBlock       `json:",omitempty"`
	Response *packet.BlockOpResponse `json:",omitempty"`
	Bytes    []byte
}

func goldenWire(t *trial, root string) error {
	var lines []any
	made := func(m goldenMessage, question string, args ...any) goldenMessage {
		answer, refused := t.ask(question, args...)
		if refused != nil {
			panic(broken{fmt.Errorf("golden %s %v: %w", question, args, refused)})
		}
		m.Bytes = hadoop.Bytes(answer[0])
		return m
	}
	reader := func(m goldenMessage) *bufio.Reader { return bufio.NewReader(bytes.NewReader(m.Bytes)) }
	for range 40 {
		h := t.header()
		lines = append(lines, made(goldenMessage{Header: &h}, "header.make", 4+t.rng.IntN(1<<16)+h.DataLen, h.Offset, h.Seqno, h.Last, h.DataLen, h.Sync))
	}
	for i := range 40 {
		a := t.ack()
		m := made(goldenMessage{}, "ack.make", a.Seqno, int64(a.DownstreamNanos), list(a.Flags))
		if i%4 == 0 { // without flags
			m = made(goldenMessage{}, "ack.raw", a.Seqno, int64(a.DownstreamNanos), list(numbers(a.Replies)), "-")
			a.Flags = nil
		}
		got, err := packet.ReadAck(reader(m))
		if err != nil || ackFields(got) != ackFields(a) {
			return fmt.Errorf("golden ack %x: read as %+v (%w), not %+v", m.Bytes, got, err, a)
		}
		m.Ack = &got
		lines = append(lines, m)
	}
	for range 30 {
		w := t.writeBlock()
		w.StorageID = "DS-" + w.StorageID
		m := made(goldenMessage{}, "op.write", writeText(w))
		got, err := packet.ReadRequest(reader(m), 0)
		if err != nil {
			return err
		}
		m.Write = got.(*packet.WriteBlock)
		if writeText(m.Write) != writeText(w) {
			return fmt.Errorf("golden request %x: read as %s, not %s", m.Bytes, writeText(m.Write), writeText(w))
		}
		lines = append(lines, m)
	}
	for range 20 {
		r := t.readBlock()
		m := made(goldenMessage{}, "op.read", readText(r))
		got, err := packet.ReadRequest(reader(m), 0)
		if err != nil {
			return err
		}
		m.Read = got.(*packet.ReadBlock)
		if readText(m.Read) != readText(r) {
			return fmt.Errorf("golden request %x: read as %s, not %s", m.Bytes, readText(m.Read), readText(r))
		}
		lines = append(lines, m)
	}
	for range 20 {
		r := t.response()
		m := made(goldenMessage{}, "response.make", responseText(r))
		got, err := packet.ReadBlockOpResponse(reader(m))
		if err != nil || responseText(got) != responseText(r) {
			return fmt.Errorf("golden response %x: read as %+v (%w), not %+v", m.Bytes, got, err, r)
		}
		m.Response = &got
		lines = append(lines, m)
	}
	return writeLines(filepath.Join(root, "crc/packet/testdata/hadoop/wire.jsonl"), lines)
}

// A goldenStream is a line of streams.jsonl: the packets of a block and the
// bytes in which Hadoop's client sends them.
type goldenStream struct {
	Kind    string
	Size    int // bytes per chunk
	Packets []goldenPacket
	Bytes   []byte
}

type goldenPacket struct {
	Header packet.Header
	Data   []byte
}

func goldenStreams(t *trial, root string) error {
	var lines []any
	for _, k := range []crc.Kind{crc.CRC32C, crc.CRC32, crc.None} {
		for _, size := range []int{512, 7} {
			// short packets of the kinds that a client sends, a flush in mid-chunk among them
			s := stream{chunks: crc.Chunks{Kind: k, Size: size}, maxChunks: 3}
			g := goldenStream{Kind: k.String(), Size: size}
			tail := size/2 + 1
			for i, p := range []struct {
				off, n     int
				sync, last bool
			}{
				{0, 3 * size, false, false}, {3 * size, tail, false, false}, {3 * size, size + tail, true, false},
				{4*size + tail, 0, true, false}, {4*size + tail, 0, false, true},
			} {
				h := packet.Header{Offset: int64(p.off), Seqno: int64(i), DataLen: p.n, Sync: p.sync, Last: p.last}
				data := t.bytes(p.n)
				s.packets = append(s.packets, wirePacket{Header: h, data: data})
				g.Packets = append(g.Packets, goldenPacket{h, data})
			}
			b, refused := t.packetsByHadoop(s)
			if refused != nil {
				return refused
			}
			g.Bytes = b
			lines = append(lines, g)
		}
	}
	return writeLines(filepath.Join(root, "crc/packet/testdata/hadoop/streams.jsonl"), lines)
}

// A goldenSum is a line of sums.jsonl: either the chunk checksums of the first
// Length bytes of the ramp, or two combined checksums.
type goldenSum struct {
	Kind   string
	Size   int    `json:",omitempty"`
	Length int    `json:",omitempty"`
	Sums   []byte `json:",omitempty"`

	A, B, Combined uint32 `json:",omitempty"`
	LenB           int64  `json:",omitempty"`
}

// ramp returns n bytes that tests can make again.
func ramp(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func goldenSums(t *trial, root string) error {
	var lines []any
	for _, k := range diskKinds {
		for _, size := range []int{1, 7, 512, 4096} {
			for _, n := range []int{1, 511, 512, 513, 4096, 65536 + 77} {
				if n/size > 8192 {
					continue
				}
				answer, refused := t.ask("sums.make", hadoopKind(k), size, ramp(n))
				if refused != nil {
					return refused
				}
				sums := hadoop.Bytes(answer[0])
				if len(sums) > 4096 { // a checksum of the checksums
					answer, refused = t.ask("sums.make", hadoopKind(k), len(sums), sums)
					if refused != nil {
						return refused
					}
					sums = hadoop.Bytes(answer[0])
				}
				lines = append(lines, goldenSum{Kind: k.String(), Size: size, Length: n, Sums: sums})
			}
		}
		for range 30 {
			g := goldenSum{Kind: k.String(), A: t.rng.Uint32(), B: t.rng.Uint32(), LenB: t.int64() & (1<<63 - 1)}
			answer, refused := t.ask("crc.compose", hadoopKind(k), fmt.Sprintf("%x", g.A), fmt.Sprintf("%x", g.B), g.LenB)
			if refused != nil {
				return refused
			}
			if _, err := fmt.Sscanf(answer[0], "%x", &g.Combined); err != nil {
				return err
			}
			lines = append(lines, g)
		}
	}
	return writeLines(filepath.Join(root, "crc/testdata/hadoop/sums.jsonl"), lines)
}

// A goldenFile is a line of files.jsonl: how Hadoop's client stored a file and
// the checksums that it then prints. Content is ramp, each block raised by its
// number.
type goldenFile struct {
	Kind                    string
	Size, BlockSize, Length int
	MD5, Composite          string
}

func goldenFiles(t *trial, root string) error {
	var lines []any
	for _, s := range fileShapes() {
		if s.length > 1<<16 {
			continue
		}
		if err := t.put(s); err != nil {
			return err
		}
		g := goldenFile{Kind: s.Kind.String(), Size: s.Size, BlockSize: s.blockSize, Length: s.length}
		for mode, text := range map[string]*string{"MD5MD5CRC": &g.MD5, "COMPOSITE_CRC": &g.Composite} {
			answer, refused := t.ask("cluster.checksum", s.path(), mode, "-")
			if refused != nil {
				return refused
			}
			*text = answer[2]
		}
		lines = append(lines, g)
	}
	return writeLines(filepath.Join(root, "crc/testdata/hadoop/files.jsonl"), lines)
}

// A goldenReplica is a line of replicas.jsonl or computed.jsonl: a block of
// ramp and its files, relative to that file's directory.
type goldenReplica struct {
	Kind         string
	Size, Length int
	ID, Stamp    int64
	Block, Meta  string
}

// goldenReplicas keeps what a real datanode stored, in its directories; only
// the name of the block pool, which has the time in it, is made a fixed one.
func goldenReplicas(t *trial, root string) error {
	dir := filepath.Join(root, "iouring/datanode/testdata/hadoop")
	if err := os.RemoveAll(filepath.Join(dir, "replicas")); err != nil {
		return err
	}
	var lines []any
	for _, k := range diskKinds {
		for _, c := range []struct{ size, length int }{
			{512, 1}, {512, 511}, {512, 512}, {512, 513}, {512, 3*512 + 100}, {4096, 4097}, {7, 100}, {1, 33},
		} {
			s := fileShape{crc.Chunks{Kind: k, Size: c.size}, 7 * 8192, c.length}
			if c.size == 4096 || c.size == 512 {
				s.blockSize = 8192
			}
			if err := t.put(s); err != nil {
				return err
			}
			replicas, err := t.replicas(hadoop.Text(string(s.path())))
			if err != nil {
				return err
			}
			r := replicas[0][0]
			g := goldenReplica{Kind: k.String(), Size: c.size, Length: c.length}
			for from, to := range map[string]*string{r.block: &g.Block, r.meta: &g.Meta} {
				_, below, _ := strings.Cut(from, "/current/BP-")
				_, below, _ = strings.Cut(below, "/")
				*to = filepath.Join("replicas/current", pool, below)
				if err := copyFile(filepath.Join(dir, *to), from); err != nil {
					return err
				}
			}
			g.ID, _ = datanode.ParseBlockName(filepath.Base(g.Block))
			_, g.Stamp, _ = datanode.ParseMetaName(filepath.Base(g.Meta))
			lines = append(lines, g)
		}
	}
	return writeLines(filepath.Join(dir, "replicas.jsonl"), lines)
}

// goldenComputed keeps what computeMeta wrote.
func goldenComputed(t *trial, root string) error {
	dir := filepath.Join(root, "iouring/datanode/testdata/hadoop")
	if err := os.RemoveAll(filepath.Join(dir, "computed")); err != nil {
		return err
	}
	if err := t.mkdir(); err != nil {
		return err
	}
	var lines []any
	id := int64(0)
	for _, k := range diskKinds {
		for _, c := range []struct{ size, length int }{
			{512, 0}, {512, 1}, {512, 511}, {512, 512}, {512, 513}, {512, 4 * 512}, {4096, 4096}, {4096, 4097}, {7, 98}, {7, 100}, {1, 33},
		} {
			g := goldenReplica{
				Kind: k.String(), Size: c.size, Length: c.length, ID: id, Stamp: 1001,
				Block: filepath.Join("computed", datanode.BlockName(id)), Meta: filepath.Join("computed", datanode.MetaName(id, 1001)),
			}
			id++
			block, meta := filepath.Join(t.dir, filepath.Base(g.Block)), filepath.Join(t.dir, filepath.Base(g.Meta))
			if err := os.WriteFile(block, ramp(c.length), 0o644); err != nil {
				return err
			}
			answer, refused := t.ask("debug.compute", hadoopKind(k), c.size, hadoop.Text(block), hadoop.Text(meta))
			if refused != nil {
				return refused
			}
			if answer[0] != "0" {
				return fmt.Errorf("computeMeta: %s", hadoop.Bytes(answer[1]))
			}
			if err := errors.Join(copyFile(filepath.Join(dir, g.Block), block), copyFile(filepath.Join(dir, g.Meta), meta)); err != nil {
				return err
			}
			lines = append(lines, g)
		}
	}
	return writeLines(filepath.Join(dir, "computed.jsonl"), lines)
}

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

// writeLines writes one JSON value per line.
func writeLines(path string, lines []any) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for _, l := range lines {
		if err := enc.Encode(l); err != nil {
			return err
		}
	}
	fmt.Printf("%s: %d lines, %d bytes\n", path, len(lines), b.Len())
	return os.WriteFile(path, b.Bytes(), 0o644)
}
