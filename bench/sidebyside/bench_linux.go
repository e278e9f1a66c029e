package sidebyside

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
	"github.com/blockpath/blockpath/bench/internal/lab"
	"github.com/blockpath/blockpath/bench/internal/peer"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/crc/packet/client"
	"github.com/blockpath/blockpath/iouring/datanode"
)

// jvmOptions are those of both JVMs. Hadoop's start scripts set none of the heap
// but the bound that they are told; G1 and the tiered compiler are the JVM's
// defaults. Temporary files go where the bench has its own.
var jvmOptions = []string{"-Xmx1g", "-XX:+UseG1GC", "-Djudge.log=OFF"}

// clientSettings are what Hadoop's client is told: one replica. It asks the name
// node again soon whether a block is complete, and not after 400 ms.
var clientSettings = []any{"dfs.replication=1", "dfs.client.block.write.locateFollowingBlock.initial.delay.ms=5"}

// A bench is the processes.
type bench struct {
	sz      size
	version []string // of Hadoop and Java

	javaClient *hadoop.JVM
	cluster    *hadoop.JVM // a name node and a datanode
	uri        string      // of the name node
	goClient   goClient
	node       *exec.Cmd // our datanode, "blockpath serve"
	nodeAddr   string
	bare       *peer.Child // the bare node
	bareAddr   string

	dirs   map[string]string // of the datanodes' files
	nextID int64
	files  int
	stops  []func() error
}

func (b *bench) start(ctx context.Context, dir, classPath string) (err error) {
	b.dirs = map[string]string{java: filepath.Join(dir, "hadoop"), ours: filepath.Join(dir, "ours"), bare: filepath.Join(dir, "bare")}
	b.nextID = 1
	if b.goClient.Child, err = peer.StartChild(ctx, experiment, envClient+"=1"); err != nil {
		return err
	}
	b.stops = append(b.stops, b.goClient.Close)
	if err := b.startNode(dir); err != nil {
		return err
	}
	if err := b.startBare(ctx, b.dirs[bare]); err != nil {
		return err
	}
	if classPath == "" {
		return nil
	}
	options := append(slices.Clone(jvmOptions), "-Djava.io.tmpdir="+dir)
	if b.cluster, err = hadoop.Start(classPath, options...); err != nil {
		return err
	}
	b.stops = append(b.stops, b.cluster.Close)
	if b.javaClient, err = hadoop.Start(classPath, options...); err != nil {
		return err
	}
	b.stops = append(b.stops, b.javaClient.Close)
	if b.version, err = b.cluster.Ask("version"); err != nil {
		return err
	}
	// The scanner would find that files have been cut, see forget.
	if _, err := b.cluster.Ask("cluster.start", hadoop.Text(b.dirs[java]), 1, "dfs.block.scanner.volume.bytes.per.second=0"); err != nil {
		return err
	}
	uri, err := b.cluster.Ask("cluster.uri")
	if err != nil {
		return err
	}
	b.uri = uri[0]
	return nil
}

// startNode builds the command and starts a datanode with it.
func (b *bench) startNode(dir string) error {
	program := filepath.Join(dir, "blockpath")
	root, err := repository()
	if err != nil {
		return err
	}
	build := exec.Command("go", "build", "-C", root, "-o", program, "./cmd/blockpath")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("building the command: %w", err)
	}
	b.node = exec.Command(program, "serve", "--dir", b.dirs[ours], "--listen", "127.0.0.1:0")
	b.node.Stderr = os.Stderr
	out, err := b.node.StdoutPipe()
	if err != nil {
		return err
	}
	if err := b.node.Start(); err != nil {
		return err
	}
	b.stops = append(b.stops, func() error {
		return errors.Join(b.node.Process.Signal(syscall.SIGTERM), b.node.Wait())
	})
	for in := bufio.NewScanner(out); in.Scan(); {
		if addr, ok := strings.CutPrefix(in.Text(), "listening "); ok {
			b.nodeAddr = addr
			return nil
		}
	}
	return errors.New("our datanode does not listen")
}

// repository finds the directory of the module that has the command.
func repository() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/blockpath/blockpath").Output()
	return strings.TrimSpace(string(out)), err
}

func (b *bench) close() (err error) {
	for _, stop := range slices.Backward(b.stops) {
		err = errors.Join(err, stop())
	}
	return err
}

// sample puts a file as a row does it, looks at what is on the disk, gets the
// file, and removes it.
func (b *bench) sample(ctx context.Context, row *row, first, keep bool) error {
	clientPid, nodePid := b.goClient.Pid(), b.node.Process.Pid
	if row.client == java {
		clientPid = b.javaClient.Pid()
	}
	switch row.node {
	case java:
		nodePid = b.cluster.Pid()
	case bare:
		nodePid = b.bare.Pid()
	}
	b.files++
	t, err := b.transferOf(row, fmt.Sprintf("/file-%d", b.files))
	if err != nil {
		return err
	}
	timed := func(op string, do func() error) error {
		m := meter{client: clientPid, node: nodePid}
		if err := m.start(); err != nil {
			return err
		}
		if err := do(); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		return m.stop(row.ops[op], float64(b.sz.length)/gib, keep)
	}
	if err := lab.WarmMemory(int(b.sz.length + b.sz.length/8)); err != nil {
		return err
	}
	if err := timed("put", t.put); err != nil {
		return err
	}
	if err := b.check(ctx, b.dirs[row.node], row.node != bare); err != nil {
		return err
	}
	if row.get {
		if first {
			if err := t.compare(); err != nil {
				return fmt.Errorf("content: %w", err)
			}
		}
		if err := timed("get", t.get); err != nil {
			return err
		}
	}
	if err := forget(b.dirs[row.node]); err != nil {
		return err
	}
	return t.end()
}

// A meter reads what two processes use.
type meter struct {
	client, node       int // process ids
	clientCPU, nodeCPU time.Duration
	began              time.Time
}

func (m *meter) start() (err error) {
	if err := errors.Join(resetPeak(m.client), resetPeak(m.node)); err != nil {
		return err
	}
	if m.clientCPU, err = cpuTime(m.client); err != nil {
		return err
	}
	m.nodeCPU, err = cpuTime(m.node)
	m.began = time.Now()
	return err
}

func (m *meter) stop(s *samples, work float64, keep bool) error {
	wall := time.Since(m.began)
	clientCPU, err := cpuTime(m.client)
	if err != nil {
		return err
	}
	nodeCPU, err := cpuTime(m.node)
	if err != nil {
		return err
	}
	clientPeak, err := peak(m.client)
	if err != nil {
		return err
	}
	nodePeak, err := peak(m.node)
	if err != nil || !keep {
		return err
	}
	c, n := (clientCPU-m.clientCPU).Seconds()/work, (nodeCPU-m.nodeCPU).Seconds()/work
	s.wall = append(s.wall, wall.Seconds()/work)
	s.clientCPU, s.nodeCPU, s.cpu = append(s.clientCPU, c), append(s.nodeCPU, n), append(s.cpu, c+n)
	s.clientPeak, s.nodePeak = append(s.clientPeak, float64(clientPeak)), append(s.nodePeak, float64(nodePeak))
	return nil
}

// A transfer is how a row moves a file.
type transfer struct {
	put, get func() error
	compare  func() error // gets the file and compares its content
	end      func() error // forgets the file
}

func (b *bench) transferOf(row *row, path string) (transfer, error) {
	switch row.client {
	case java:
		return b.javaTransfer(row, path)
	case bare:
		return b.bareTransfer(), nil
	}
	return b.goTransfer(row, path), nil
}

func (b *bench) javaTransfer(row *row, path string) (t transfer, err error) {
	settings := slices.Clone(clientSettings)
	if row.packetSize != 0 {
		settings = append(settings, fmt.Sprintf("dfs.client-write-packet-size=%d", row.packetSize))
	}
	t.end = func() error { return nil }
	if row.node == java {
		_, err = b.javaClient.Ask("client.connect", append([]any{b.uri}, settings...)...)
		t.end = func() error { return b.delete(path) }
	} else {
		info, infoErr := nodeInfo(b.nodeAddr)
		if infoErr != nil {
			return t, infoErr
		}
		_, err = b.javaClient.Ask("client.start", append([]any{hadoop.NodeText(info)}, settings...)...)
	}
	t.put = func() error {
		_, err := b.javaClient.Ask("client.put", hadoop.Text(path), b.sz.length)
		return err
	}
	t.get = func() error {
		got, err := b.javaClient.Ask("client.get", hadoop.Text(path))
		if err == nil && got[0] != strconv.FormatInt(b.sz.length, 10) {
			err = fmt.Errorf("%s bytes came of %d", got[0], b.sz.length)
		}
		return err
	}
	t.compare = func() error {
		got, err := b.javaClient.Ask("client.read", hadoop.Text(path))
		if want := patternSum(b.sz.length); err == nil && got[1] != want {
			err = fmt.Errorf("SHA-256 %s, want %s", got[1], want)
		}
		return err
	}
	return t, err
}

func (b *bench) goTransfer(row *row, path string) (t transfer) {
	m := client.NewManifest(peer.Pool, crc.Chunks{})
	addr := b.nodeAddr
	t.end = func() error { return nil }
	t.put = func() error {
		a, err := b.goClient.do(&command{Op: opPut, Addr: addr, Length: b.sz.length, PacketSize: row.packetSize, FirstID: b.nextID})
		b.nextID += int64(len(a.File.Blocks))
		m.Files = []client.File{a.File}
		return err
	}
	if row.node == java {
		t.put = func() (err error) {
			addr, err = b.putToCluster(m, path, row.packetSize)
			return err
		}
		t.end = func() error { return b.delete(path) }
	}
	t.get = func() error {
		a, err := b.goClient.do(&command{Op: opGet, Addr: addr, Manifest: *m})
		if err == nil && a.Bytes != b.sz.length {
			err = fmt.Errorf("%d bytes came of %d", a.Bytes, b.sz.length)
		}
		return err
	}
	t.compare = func() error {
		f := m.Files[0]
		f.SHA256 = patternSum(b.sz.length)
		_, err := client.Get(context.Background(), io.Discard, m, &f, []string{addr}, client.GetConfig{SHA256: true})
		return err
	}
	return t
}

// putToCluster puts a file with our client into blocks that the name node hands
// out, fills the manifest and returns where the datanode is.
func (b *bench) putToCluster(m *client.Manifest, path string, packetSize int) (addr string, err error) {
	created, err := b.cluster.Ask("cluster.create", hadoop.Text(path), 1, client.DefaultBlockSize)
	if err != nil {
		return "", err
	}
	if _, err := b.goClient.do(&command{Op: opOpen, PacketSize: packetSize}); err != nil {
		return "", err
	}
	f := client.File{Name: "file", Length: b.sz.length}
	before := ""
	for at := int64(0); at < f.Length; at += client.DefaultBlockSize {
		located, err := b.cluster.Ask("cluster.addBlock", hadoop.Text(path), strings.TrimSpace(created[0]+" "+before))
		if err != nil {
			return "", err
		}
		l := hadoop.ParseLocated(located)
		addr = hadoop.Addr(l.Nodes[0])
		a, err := b.goClient.do(&command{
			Op: opBlock, Addr: addr, Request: l.Request(packet.SetupCreate, client.DefaultBlockSize),
			Offset: at, Length: min(f.Length-at, client.DefaultBlockSize),
		})
		if err != nil {
			return "", err
		}
		f.Blocks = append(f.Blocks, a.Block)
		m.Pool = l.Block.Pool
		before = hadoop.BlockText(packet.Block{Pool: m.Pool, ID: a.Block.ID, Stamp: a.Block.Stamp, NumBytes: a.Block.Length})
	}
	m.Files = []client.File{f}
	if _, err := b.cluster.Ask("cluster.complete", hadoop.Text(path), created[0], before); err != nil {
		return "", err
	}
	_, err = b.goClient.do(&command{Op: opDone})
	return addr, err
}

func (b *bench) delete(path string) error {
	_, err := b.cluster.Ask("cluster.delete", hadoop.Text(path))
	return err
}

// patternSum returns the SHA-256 of a file.
func patternSum(length int64) string {
	h := sha256.New()
	io.Copy(h, &peer.Source{Left: length}) // neither side can fail
	return fmt.Sprintf("%x", h.Sum(nil))
}

// A replica is a block file.
type replica struct {
	id   int64
	path string
}

// replicas returns the block files below dir that are not empty, in the order of
// their ids, which is that of the file.
func replicas(dir string) (all []replica, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed meanwhile
			}
			return err
		}
		number, ok := strings.CutPrefix(d.Name(), "blk_")
		id, err := strconv.ParseInt(number, 10, 64)
		if !ok || err != nil {
			return nil // not a block, or its .meta file
		}
		if info, err := d.Info(); err == nil && info.Size() > 0 {
			all = append(all, replica{id, path})
		}
		return nil
	})
	slices.SortFunc(all, func(a, b replica) int { return cmp.Compare(a.id, b.id) })
	return all, err
}

// check compares what a datanode has stored with the file, and if it has
// checksums it with those.
func (b *bench) check(ctx context.Context, dir string, sums bool) error {
	all, err := replicas(dir)
	if err != nil {
		return err
	}
	want := &peer.Source{Left: b.sz.length}
	buf, expected := make([]byte, 1<<20), make([]byte, 1<<20)
	var paths []string
	for _, r := range all {
		paths = append(paths, r.path)
		f, err := os.Open(r.path)
		if err != nil {
			return err
		}
		defer f.Close()
		for {
			n, err := f.Read(buf)
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
			if k, err := io.ReadFull(want, expected[:n]); err != nil || !bytes.Equal(buf[:n], expected[:k]) {
				return fmt.Errorf("%s is not what was put", r.path)
			}
		}
	}
	if want.Left != 0 {
		return fmt.Errorf("%d bytes are missing below %s", want.Left, dir)
	}
	if !sums {
		return nil
	}
	report, err := datanode.Verify(ctx, paths, datanode.VerifyConfig{})
	if err != nil {
		return err
	}
	if !report.OK() || report.Bytes != b.sz.length {
		return fmt.Errorf("checksums below %s: %+v", dir, report)
	}
	return nil
}

// forget takes the blocks from a datanode without its help, so that none of what
// it does later falls into another measurement. The files are cut, since a
// datanode may have them open. Hadoop's are left for the name node to delete.
func forget(dir string) error {
	all, err := replicas(dir)
	for _, r := range all {
		err = errors.Join(err, os.Truncate(r.path, 0))
	}
	return err
}
