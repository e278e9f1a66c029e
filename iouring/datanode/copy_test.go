//go:build linux || darwin

package datanode

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

func copyRequest(b packet.Block, c crc.Chunks, n int) *packet.WriteBlock {
	b.NumBytes = int64(n)
	return &packet.WriteBlock{Block: b, Stage: packet.SetupCreate, Checksum: packet.ChecksumOf(c)}
}

func transferRequest(b packet.Block, c crc.Chunks, n int, stage packet.Stage) *packet.WriteBlock {
	req := copyRequest(b, c, n)
	req.ClientName, req.Stage = "client", stage
	return req
}

// stream sends a whole block as a datanode does.
func (p *peer) stream(c crc.Chunks, data []byte) {
	seqno, n := int64(0), 126*c.BytesPerChunk()
	for off := 0; off < len(data); off += n {
		p.packet(packet.Header{Offset: int64(off), Seqno: seqno}, c, data[off:min(off+n, len(data))])
		seqno++
	}
	p.packet(packet.Header{Offset: int64(len(data)), Seqno: seqno, Last: true}, c, nil)
}

// noFiles waits until nothing is left of copies.
func noFiles(t testing.TB, s *Store, b packet.Block) {
	t.Helper()
	waitFor(t, func() bool {
		s.mu.RLock()
		n := len(s.copies)
		s.mu.RUnlock()
		for _, v := range s.volumes {
			entries, err := os.ReadDir(tmpPath(v.root, b.Pool))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
			n += len(entries)
		}
		return n == 0
	})
}

func stateOf(s *Store, b packet.Block) replicaState {
	r := s.find(b)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// A datanode sends a copy: it hears nothing, and nothing is readable before all
// of it is there.
func TestCopy(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	_, addr := startServer(t, s, ServerConfig{})
	for id, c := range []crc.Chunks{{}, {Kind: crc.CRC32, Size: 100}, {Kind: crc.None}} {
		for i, n := range []int{0, 1, 64512, 200077} {
			b, data := testBlock(int64(10*id+i)), randomBytes(uint64(n), n)
			p := dial(t, addr)
			p.write(copyRequest(b, c, n).Append(nil))
			if n > 0 {
				p.packet(packet.Header{}, c, data[:min(n, 500)])
				waitFor(t, func() bool { s.mu.RLock(); defer s.mu.RUnlock(); return s.copies[keyOf(b)] != nil })
				if _, err := s.Open(b); err == nil {
					t.Error("a part of a copy is readable")
				}
				p.Close()
				noFiles(t, s, b)
				if s.find(b) != nil {
					t.Error("an incomplete copy is kept")
				}
				p = dial(t, addr)
				p.write(copyRequest(b, c, n).Append(nil))
			}
			p.stream(c, data)
			p.eof()
			checkFiles(t, s, b, c, data)
			if state := stateOf(s, b); state != finalized {
				t.Errorf("the copy is %s", state)
			}
			noFiles(t, s, b)
		}
	}
	if n := s.writers.Load(); n != 0 {
		t.Errorf("%d writers are counted", n)
	}
}

// What a copy has to be to count, and what comes of others.
func TestCopyRefused(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	server, addr := startServer(t, s, ServerConfig{})
	c, data := crc.Chunks{}, randomBytes(81, 1000)
	for name, test := range map[string]struct {
		send func(*peer)
		want packet.Status // as a transfer hears
	}{
		"damaged":    {func(p *peer) { p.write(wirePacket(packet.Header{}, []byte{1, 2, 3, 4, 5, 6, 7, 8}, data)) }, packet.ErrorChecksum},
		"too short":  {func(p *peer) { p.stream(c, data[:999]) }, packet.Error},
		"too long":   {func(p *peer) { p.stream(c, append(bytes.Clone(data), 1)) }, packet.Error},
		"gap":        {func(p *peer) { p.packet(packet.Header{Offset: 1}, c, data[:1]) }, packet.Error},
		"no last":    {func(p *peer) { p.packet(packet.Header{}, c, data); p.CloseWrite() }, 255},
		"half of it": {func(p *peer) { p.write(wirePacket(packet.Header{}, oracleSums(c, data), data)[:500]); p.CloseWrite() }, 255},
		"garbage":    {func(p *peer) { p.write(bytes.Repeat([]byte{0xff}, 100)) }, 255},
	} {
		for _, transfer := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%t", name, transfer), func(t *testing.T) {
				b := testBlock(1)
				p := dial(t, addr)
				req := copyRequest(b, c, 1000)
				if transfer {
					req = transferRequest(b, c, 1000, packet.TransferRBW)
				}
				p.write(req.Append(nil))
				test.send(p)
				if transfer && test.want != 255 {
					if r := p.response(); r.Status != test.want || r.Message == "" {
						t.Errorf("%+v, expected %v", r, test.want)
					}
				}
				p.eof()
				p.Close()
				noFiles(t, s, b)
				if s.find(b) != nil {
					t.Error("it is there")
				}
			})
		}
	}
	if n := server.Stats().Load(statAcks); n != 0 {
		t.Errorf("%d acks", n)
	}
	t.Run("several targets", func(t *testing.T) {
		req := transferRequest(testBlock(1), c, 1000, packet.TransferFinalized)
		req.Targets = []packet.DatanodeInfo{{IPAddr: "127.0.0.1", XferPort: 1}}
		p := dial(t, addr)
		p.write(req.Append(nil))
		if r := p.response(); r.Status != packet.ErrorUnsupported {
			t.Errorf("%+v", r)
		}
		p.Close()
	})
}

// Which replica stays when there are two.
func TestCopyReplaces(t *testing.T) {
	c, old, data := crc.Chunks{}, randomBytes(82, 700), randomBytes(83, 1500)
	for _, test := range []struct {
		name     string
		state    replicaState // of the old replica
		stamp    int64        // of the copy; the old one has 1001
		transfer bool
		replaced bool
	}{
		{"finalized, newer", finalized, 1002, false, false},
		{"finalized, newer transfer", finalized, 1002, true, true},
		{"finalized, same transfer", finalized, 1001, true, false},
		{"finalized, older transfer", finalized, 1000, true, false},
		{"unfinished, newer", waiting, 1002, false, true},
		{"unfinished, same", waiting, 1001, true, false},
		{"unfinished, newer transfer", waiting, 1002, true, true},
		{"being written, newer", writing, 1002, false, true},
		{"being written, same", writing, 1001, false, false},
		{"finalized, longer", finalized, 1003, true, false},
		{"unfinished, longer", waiting, 1003, false, false},
	} {
		for _, unfinished := range []bool{false, true} { // what the copy becomes
			t.Run(fmt.Sprintf("%s/%t", test.name, unfinished), func(t *testing.T) {
				dirs := []string{t.TempDir(), t.TempDir()}
				s := openStore(t, dirs...)
				b := testBlock(1)
				var w *BlockWriter
				if test.state == finalized {
					writeBlock(t, s, b, c, old)
				} else {
					var err error
					if w, err = s.Create(bg, b, c); err != nil {
						t.Fatal(err)
					}
					if err := send(t, w, packet.Header{}, old); err != nil {
						t.Fatal(err)
					}
					if err := w.Flush(bg); err != nil {
						t.Fatal(err)
					}
					if test.state == waiting {
						if err := w.Abort(bg); err != nil {
							t.Fatal(err)
						}
					}
				}
				reader, err := s.Open(b)
				if err != nil {
					t.Fatal(err)
				}
				defer reader.Close()
				newer := b
				newer.Stamp, newer.NumBytes = test.stamp, int64(len(data))
				if test.stamp == 1003 {
					newer.NumBytes = int64(len(old)) - 1
				}
				copying, err := s.Copy(bg, newer, c, test.transfer)
				var refused *BlockError
				if !test.replaced {
					if !errors.As(err, &refused) || refused.Status != packet.ErrorExists {
						t.Fatalf("%v", err)
					}
					if got, err := readAll(s, b); err != nil || !bytes.Equal(got, old) {
						t.Errorf("the old one has %d bytes, %v", len(got), err)
					}
					noFiles(t, s, b)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.Copy(bg, newer, c, test.transfer); !errors.As(err, &refused) || refused.Status != packet.ErrorExists {
					t.Errorf("two copies at once: %v", err)
				}
				if err := send(t, copying, packet.Header{}, data); err != nil {
					t.Fatal(err)
				}
				if err := copying.Flush(bg); err != nil {
					t.Fatal(err)
				}
				if got, err := readAll(s, b); err != nil || !bytes.Equal(got, old) {
					t.Errorf("before the copy is complete there are %d bytes, %v", len(got), err)
				}
				want := finalized
				if unfinished {
					want, err = waiting, copying.convert(bg)
				} else {
					err = copying.Finalize(bg, true)
				}
				if err != nil {
					t.Fatal(err)
				}
				if w != nil {
					if err := send(t, w, packet.Header{Offset: 512, Seqno: 1}, old[512:]); err == nil {
						t.Error("the writer of the old one goes on")
					}
				}
				if state := stateOf(s, newer); state != want {
					t.Errorf("it is %s, expected %s", state, want)
				}
				checkFiles(t, s, newer, c, data)
				noFiles(t, s, b)
				p := make([]byte, len(old))
				if _, err := reader.ReadAt(p, 0); err != nil || !bytes.Equal(p, old) {
					t.Errorf("whoever reads the old one: %v", err)
				}
				// Nothing is left of the old one, and an opening finds the new one.
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				files := 0
				for _, dir := range dirs {
					files += len(filesBelow(t, filepath.Join(dir, currentDir)))
				}
				if files != 2 {
					t.Errorf("%d files", files)
				}
				again := openStore(t, dirs...)
				if got, err := readAll(again, newer); err != nil || !bytes.Equal(got, data) {
					t.Errorf("after opening again there are %d bytes, %v", len(got), err)
				}
			})
		}
	}
}

func filesBelow(t testing.TB, dir string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// A newer copy takes the place of an older one that is under way.
func TestCopyOfCopy(t *testing.T) {
	s := openStore(t, t.TempDir())
	c, data, b := crc.Chunks{}, randomBytes(84, 100), testBlock(1)
	first, err := s.Copy(bg, b, c, false)
	if err != nil {
		t.Fatal(err)
	}
	newer := b
	newer.Stamp++
	second, err := s.Copy(bg, newer, c, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := send(t, first, packet.Header{}, data); err == nil {
		t.Error("the older copy goes on")
	}
	if err := send(t, second, packet.Header{}, data); err != nil {
		t.Fatal(err)
	}
	// A client was faster.
	writeBlock(t, s, testBlock(1), c, data[:50])
	var refused *BlockError
	if err := second.Finalize(bg, false); !errors.As(err, &refused) || refused.Status != packet.ErrorExists {
		t.Errorf("%v", err)
	}
	noFiles(t, s, b)
	checkFiles(t, s, b, c, data[:50])
}

// An opening removes what a crash has left of copies.
func TestCopyAfterCrash(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, root)
	writeBlock(t, s, testBlock(1), crc.Chunks{}, []byte("finalized"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	tmp := tmpPath(root, testPool)
	for _, name := range []string{BlockName(1), MetaName(1, 1002), BlockName(-5), "other"} {
		if err := os.WriteFile(filepath.Join(tmp, name), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s = openStore(t, root)
	if entries, err := os.ReadDir(tmp); err != nil || len(entries) != 1 || entries[0].Name() != "other" {
		t.Errorf("%v, %v", entries, err)
	}
	if got, err := readAll(s, testBlock(1)); err != nil || string(got) != "finalized" {
		t.Errorf("%q, %v", got, err)
	}
}

// Closing the store ends copies.
func TestCopyStoreClosed(t *testing.T) {
	root := t.TempDir()
	s := openStore(t, root)
	w, err := s.Copy(bg, testBlock(1), crc.Chunks{}, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := send(t, w, packet.Header{}, []byte("x")); err == nil {
		t.Error("the copy goes on")
	}
	if files := filesBelow(t, filepath.Join(root, currentDir)); len(files) != 0 {
		t.Errorf("%v", files)
	}
}

// Copies go through pipelines, too: without acks, every node verifies, and a node
// that is lost does not keep the others from it.
func TestCopyPipeline(t *testing.T) {
	checkLeaks(t)
	c, data := crc.Chunks{}, randomBytes(85, 300000)
	p := newPipeline(t, 3, ServerConfig{})
	send := func(id int64, damage func([]byte)) packet.Block {
		b := testBlock(id)
		req := copyRequest(b, c, len(data))
		for _, k := range p.links[1:] {
			req.Targets = append(req.Targets, *datanodeAt(k.Addr()))
		}
		sender := dial(t, p.links[0].Addr())
		sender.write(req.Append(nil))
		if damage != nil {
			wire := wirePacket(packet.Header{}, oracleSums(c, data[:64512]), data[:64512])
			damage(wire)
			sender.write(wire)
			sender.CloseWrite()
		} else {
			sender.stream(c, data)
		}
		sender.eof()
		return b
	}
	b := send(1, nil)
	for i, s := range p.stores {
		waitFor(t, func() bool { return s.find(b) != nil })
		waitFor(t, func() bool { return stateOf(s, b) == finalized })
		checkFiles(t, s, b, c, data)
		noFiles(t, p.stores[i], b)
	}
	p.links[2].breakAt(reset, 100000)
	b = send(2, nil)
	for _, s := range p.stores[:2] {
		waitFor(t, func() bool { return s.find(b) != nil })
		checkFiles(t, s, b, c, data)
	}
	noFiles(t, p.stores[2], b)
	b = send(3, func(wire []byte) { wire[len(wire)-1] ^= 1 })
	for _, s := range p.stores {
		noFiles(t, s, b)
		if s.find(b) != nil {
			t.Error("damaged data was kept")
		}
	}
}

func (p *peer) CloseWrite() { _ = p.Conn.(interface{ CloseWrite() error }).CloseWrite() }

// A client has replicas sent from one node to others.
func TestTransfer(t *testing.T) {
	checkLeaks(t)
	c, data := crc.Chunks{Kind: crc.CRC32}, randomBytes(86, 200077)
	p := newPipeline(t, 3, ServerConfig{})
	from, to := p.stores[0], p.stores[1]
	transfer := func(b packet.Block, targets ...net.Addr) packet.BlockOpResponse {
		t.Helper()
		req := packet.TransferBlock{Block: b, ClientName: "client"}
		for _, a := range targets {
			req.Targets = append(req.Targets, *datanodeAt(a))
		}
		q := dial(t, p.links[0].Addr())
		q.write(req.Append(nil))
		r := q.response()
		if r.Status == packet.Success { // and the connection stays
			q.get(readRequest(b, 0, -1))
			q.Close()
		} else {
			q.eof()
		}
		return r
	}
	for i, n := range []int{0, 1, 200077} {
		b := testBlock(int64(i))
		writeBlock(t, from, b, c, data[:n])
		older := b
		older.Stamp = 7
		if r := transfer(older, p.links[1].Addr()); r.Status != packet.Success {
			t.Fatalf("%+v", r)
		}
		checkFiles(t, to, b, c, data[:n])
		if state := stateOf(to, b); state != finalized {
			t.Errorf("it is %s", state)
		}
		if r := transfer(b, p.links[1].Addr()); r.Status != packet.ErrorExists {
			t.Errorf("again: %+v", r)
		}
	}

	// A block that is being written, of which a part is not visible, and then its
	// recovery in a pipeline of both.
	b := testBlock(5)
	w, err := from.Create(bg, b, crc.Chunks{})
	if err != nil {
		t.Fatal(err)
	}
	if err := send(t, w, packet.Header{}, data[:1000]); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(bg); err != nil {
		t.Fatal(err)
	}
	if err := send(t, w, packet.Header{Offset: 512, Seqno: 1}, data[512:1500]); err != nil {
		t.Fatal(err)
	}
	if r := transfer(b, p.links[1].Addr()); r.Status != packet.Success {
		t.Fatalf("%+v", r)
	}
	checkFiles(t, to, b, crc.Chunks{}, data[:1000])
	if state := stateOf(to, b); state != waiting {
		t.Errorf("it is %s", state)
	}
	req := writeRequest(b, crc.Chunks{})
	req.Stage, req.LatestStamp, req.MinBytesRcvd, req.MaxBytesRcvd = packet.SetupStreamingRecovery, 1002, 1000, 1500
	req.Targets = []packet.DatanodeInfo{*datanodeAt(p.links[1].Addr())}
	q := dial(t, p.links[0].Addr())
	q.write(req.Append(nil))
	if r := q.response(); r.Status != packet.Success {
		t.Fatalf("%+v", r)
	}
	q.packet(packet.Header{Offset: 512, Seqno: 2}, crc.Chunks{}, data[512:2000])
	q.packet(packet.Header{Offset: 2000, Seqno: 3, Last: true}, crc.Chunks{}, nil)
	for seqno := range int64(2) {
		if a, err := packet.ReadAck(q.in); err != nil || a.Seqno != seqno+2 || a.Nodes() != 2 || a.Status(0) != packet.Success || a.Status(1) != packet.Success {
			t.Fatalf("%+v, %v", a, err)
		}
	}
	b.Stamp = 1002
	for _, s := range p.stores[:2] {
		checkFiles(t, s, b, crc.Chunks{}, data[:2000])
	}

	// What does not work.
	damaged := testBlock(6)
	writeBlock(t, from, damaged, crc.Chunks{}, data)
	r := from.find(damaged)
	if err := os.WriteFile(r.blockPath(), append(bytes.Clone(data[:200000]), make([]byte, 77)...), 0o644); err != nil {
		t.Fatal(err)
	}
	writeBlock(t, from, testBlock(8), crc.Chunks{}, data)
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead.Close()
	for name, test := range map[string]struct {
		b       packet.Block
		targets []net.Addr
		want    packet.Status
	}{
		"damaged":      {damaged, []net.Addr{p.links[2].Addr()}, packet.ErrorChecksum},
		"unknown":      {testBlock(9), []net.Addr{p.links[2].Addr()}, packet.Error},
		"newer stamp":  {packet.Block{Pool: testPool, ID: 1, Stamp: 1002}, []net.Addr{p.links[2].Addr()}, packet.Error},
		"no target":    {testBlock(1), nil, packet.ErrorInvalid},
		"dead target":  {testBlock(1), []net.Addr{dead.Addr()}, packet.Error},
		"two targets":  {testBlock(1), []net.Addr{p.links[2].Addr(), p.links[1].Addr()}, packet.ErrorUnsupported},
		"target fails": {testBlock(8), []net.Addr{p.links[2].Addr()}, packet.Error},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "target fails" {
				p.links[2].breakAt(reset, 100000)
			}
			if r := transfer(test.b, test.targets...); r.Status != test.want || r.Message == "" {
				t.Errorf("%+v, expected %v", r, test.want)
			}
			if p.stores[2].find(test.b) != nil {
				t.Error("the target has it")
			}
		})
	}
}
