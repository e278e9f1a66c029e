//go:build linux || darwin

package datanode

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// The model's other half: every packet on every block of up to 17 bytes that was
// closed and is appended to.
func TestMergeExhaustiveAppend(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, fastDir(t))
	c := crc.Chunks{Kind: crc.CRC32, Size: 4}
	oracle := randomBytes(1, 64)
	for D := range 18 {
		b := testBlock(int64(D))
		writeBlock(t, s, b, c, oracle[:D])
		for F := 0; F <= D; F++ {
			for L := 1; L < 20; L++ {
				w, err := s.Append(bg, b, b.Stamp+1, int64(D), c)
				if err != nil {
					t.Fatal(err)
				}
				b.Stamp++
				err = send(t, w, packet.Header{Offset: int64(F)}, oracle[F:F+L])
				legal := F%4 == 0 || F+L <= (F/4+1)*4
				if legal != (err == nil) {
					t.Fatalf("D=%d F=%d L=%d: %v", D, F, L, err)
				}
				end := D
				if legal {
					end = max(D, F+L)
				}
				if err := w.Finalize(bg, false); err != nil {
					t.Fatal(err)
				}
				checkFiles(t, s, b, c, oracle[:end])
				if end == D {
					continue
				}
				// Back to D bytes, which is quicker than a new block.
				r := s.find(b)
				r.mu.Lock()
				r.length = int64(D)
				if D%4 != 0 {
					r.lastSum = crc.Checksum(c.Kind, oracle[D-D%4:D])
				}
				if err := r.trim(); err != nil {
					t.Fatal(err)
				}
				r.mu.Unlock()
			}
		}
	}
}

// Histories of one block through everything that can happen to it: packets,
// flushes, syncs, closes, appends, failed pipelines, reopened stores.
func TestRandomLives(t *testing.T) {
	checkLeaks(t)
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	for round := range rounds {
		rnd := rand.New(rand.NewPCG(11, uint64(round)))
		root := fastDir(t)
		kind := crc.Kind(rnd.IntN(3))
		wire := crc.Chunks{Kind: kind, Size: 1 + rnd.IntN(20)}
		disk := wire
		oracle := randomBytes(uint64(round), 1000)
		b := testBlock(5)
		s := openStore(t, root)
		w, err := s.Create(bg, b, wire)
		if err != nil {
			t.Fatal(err)
		}
		D, acked, seqno := 0, 0, int64(0)
		for D < len(oracle) {
			if w == nil { // reopen it, possibly with other checksums on the wire
				wire.Kind = crc.Kind(rnd.IntN(3))
				r := s.find(b)
				length := r.length
				if length < int64(acked) || length > int64(D) {
					t.Fatalf("round %d: %d bytes, %d were acknowledged and %d sent", round, length, acked, D)
				}
				next := b.Stamp + 1 + rnd.Int64N(2)
				switch {
				case r.writer != nil:
					w, err = s.Recover(bg, b, next, int64(acked), int64(D), wire)
				case r.state == finalized && rnd.IntN(2) == 0:
					w, err = s.Append(bg, b, next, length, wire)
				case r.state == finalized || rnd.IntN(2) == 0:
					w, err = s.RecoverAppend(bg, b, next, length, wire)
				default:
					w, err = s.Recover(bg, b, next, int64(acked), int64(D), wire)
				}
				if err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				b.Stamp, D, acked, seqno = next, int(w.Visible()), int(w.Visible()), 0
			}
			bpc := wire.Size
			var F, E int
			switch rnd.IntN(3) {
			case 0:
				F = D - D%bpc
				E = D + 1 + rnd.IntN(3*bpc)
			case 1:
				F = D
				E = D + 1 + rnd.IntN(3*bpc)
				if D%bpc != 0 {
					E = D + 1 + rnd.IntN(bpc-D%bpc)
				}
			case 2:
				F = max(0, D-D%bpc-bpc*rnd.IntN(3))
				E = F + 1 + rnd.IntN(4*bpc)
			}
			E = min(E, len(oracle))
			sums := oracleSums(wire, oracle[F:E])
			if rnd.IntN(4) == 0 {
				sums = nil
			}
			if E > F {
				if err := sendSums(t, w, packet.Header{Offset: int64(F), Seqno: seqno}, sums, oracle[F:E]); err != nil {
					t.Fatalf("round %d D=%d F=%d E=%d: %v", round, D, F, E, err)
				}
			}
			seqno++
			D = max(D, E)
			switch rnd.IntN(14) {
			case 0, 1, 2:
				err = w.Flush(bg)
				acked = D
			case 3:
				err = w.Sync(bg)
				acked = D
			case 4:
				err, w = w.Finalize(bg, rnd.IntN(2) == 0), nil
				acked = D
			case 5:
				err, w = w.Abort(bg), nil
			case 6: // another client takes over; or the writer's own one after a failure
				w = nil
			case 7:
				w = nil
				err = s.RecoverClose(bg, b, b.Stamp+1, int64(D))
				b.Stamp++
				acked = D
			case 8:
				err, w = s.Close(), nil
				if err == nil {
					s = openStore(t, root)
				}
			}
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			if got, err := readAll(s, b); err != nil || len(got) < acked || !bytes.Equal(got, oracle[:len(got)]) {
				t.Fatalf("round %d: a reader sees %d bytes of %d, %v", round, len(got), acked, err)
			}
		}
		if w != nil {
			if err := w.Finalize(bg, false); err != nil {
				t.Fatal(err)
			}
		} else if err := s.RecoverClose(bg, b, b.Stamp, int64(len(oracle))); err != nil {
			t.Fatal(err)
		}
		checkFiles(t, s, b, disk, oracle)
		if r := verify(t, VerifyConfig{}, root); !r.OK() || r.Files != 1 || len(r.Misplaced) > 0 {
			t.Fatalf("%+v", r)
		}
		s.Close()
	}
}

// The files of an append have exactly the bytes that Hadoop's would have: no
// checksum too many and none missing (HDFS-9220 and its like).
func TestAppendVectors(t *testing.T) {
	s := openStore(t, t.TempDir())
	oracle := randomBytes(41, 3000)
	for id, v := range []struct{ length, first, then int }{
		{200, 300, 0}, {200, 312, 700}, {512, 600, 0}, {511, 1, 512}, {0, 700, 0}, {1024, 1, 511}, {100, 1, 0},
	} {
		b := testBlock(int64(id))
		writeBlock(t, s, b, crc.Chunks{}, oracle[:v.length])
		w, err := s.Append(bg, b, 1002, int64(v.length), crc.Chunks{})
		if err != nil {
			t.Fatal(err)
		}
		b.Stamp = 1002
		at := v.length + v.first
		if err := send(t, w, packet.Header{Offset: int64(v.length)}, oracle[v.length:at]); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(bg); err != nil {
			t.Fatal(err)
		}
		checkFiles(t, s, b, crc.Chunks{}, oracle[:at])
		if v.then > 0 {
			if err := send(t, w, packet.Header{Offset: int64(at), Seqno: 1}, oracle[at:at+v.then]); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Finalize(bg, true); err != nil {
			t.Fatal(err)
		}
		checkFiles(t, s, b, crc.Chunks{}, oracle[:at+v.then])
	}
}

func TestReopenRefusals(t *testing.T) {
	s := openStore(t, t.TempDir())
	data := randomBytes(42, 700)
	closed, open := testBlock(1), testBlock(2)
	writeBlock(t, s, closed, crc.Chunks{}, data)
	w, err := s.Create(bg, open, crc.Chunks{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(send(t, w, packet.Header{}, data), w.Abort(bg)); err != nil {
		t.Fatal(err)
	}
	c := crc.Chunks{}
	for name, test := range map[string]struct {
		call func() (*BlockWriter, error)
		want packet.Status
	}{
		"append: unknown":        {func() (*BlockWriter, error) { return s.Append(bg, testBlock(9), 1002, 700, c) }, packet.Error},
		"append: not finalized":  {func() (*BlockWriter, error) { return s.Append(bg, open, 1002, 700, c) }, packet.ErrorInvalid},
		"append: same stamp":     {func() (*BlockWriter, error) { return s.Append(bg, closed, 1001, 700, c) }, packet.ErrorInvalid},
		"append: smaller stamp":  {func() (*BlockWriter, error) { return s.Append(bg, closed, 1000, 700, c) }, packet.ErrorInvalid},
		"append: another stamp":  {func() (*BlockWriter, error) { b := closed; b.Stamp = 1000; return s.Append(bg, b, 1002, 700, c) }, packet.ErrorInvalid},
		"append: shorter":        {func() (*BlockWriter, error) { return s.Append(bg, closed, 1002, 699, c) }, packet.ErrorInvalid},
		"append: longer":         {func() (*BlockWriter, error) { return s.Append(bg, closed, 1002, 701, c) }, packet.ErrorInvalid},
		"append: chunk size":     {func() (*BlockWriter, error) { return s.Append(bg, closed, 1002, 700, crc.Chunks{Size: 256}) }, packet.ErrorUnsupported},
		"append: space":          {func() (*BlockWriter, error) { b := closed; b.NumBytes = 1 << 60; return s.Append(bg, b, 1002, 700, c) }, packet.Error},
		"recover: finalized":     {func() (*BlockWriter, error) { return s.Recover(bg, closed, 1002, 700, 700, c) }, packet.ErrorInvalid},
		"recover: older stamp":   {func() (*BlockWriter, error) { return s.Recover(bg, open, 1000, 700, 700, c) }, packet.ErrorInvalid},
		"recover: newer stamp":   {func() (*BlockWriter, error) { b := open; b.Stamp = 1002; return s.Recover(bg, b, 1003, 700, 700, c) }, packet.ErrorInvalid},
		"recover: too short":     {func() (*BlockWriter, error) { return s.Recover(bg, open, 1002, 701, 800, c) }, packet.ErrorInvalid},
		"recover: too long":      {func() (*BlockWriter, error) { return s.Recover(bg, open, 1002, 0, 699, c) }, packet.ErrorInvalid},
		"close recovery: length": {func() (*BlockWriter, error) { return nil, s.RecoverClose(bg, open, 1002, 699) }, packet.ErrorInvalid},
		"close recovery: stamp":  {func() (*BlockWriter, error) { return nil, s.RecoverClose(bg, closed, 1000, 700) }, packet.ErrorInvalid},
	} {
		_, err := test.call()
		var refused *BlockError
		if !errors.As(err, &refused) || refused.Status != test.want {
			t.Errorf("%s: %v, expected %v", name, err, test.want)
		}
	}
	checkFiles(t, s, closed, c, data)
	checkFiles(t, s, open, c, data)
	// A retried recovery, and a close recovery of what is closed.
	for range 2 {
		w, err := s.Recover(bg, open, 1002, 600, 800, c)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Abort(bg); err != nil {
			t.Fatal(err)
		}
		if err := s.RecoverClose(bg, closed, 1002, 700); err != nil {
			t.Error(err)
		}
	}
	open.Stamp, closed.Stamp = 1002, 1002
	checkFiles(t, s, closed, c, data)
	checkFiles(t, s, open, c, data)
}

// An append does not go on from a last chunk that is damaged, or not there.
func TestAppendDamaged(t *testing.T) {
	s := openStore(t, t.TempDir())
	data := randomBytes(43, 700)
	for id, test := range []struct {
		damage func(block, meta string) error
		want   packet.Status
	}{
		{func(block, _ string) error {
			return os.WriteFile(block, append(bytes.Clone(data[:699]), data[699]^1), 0o644)
		}, packet.ErrorChecksum},
		{func(block, _ string) error { return os.Truncate(block, 699) }, packet.Error},
		{func(_, meta string) error { return os.Truncate(meta, 14) }, packet.Error},
		{func(_, meta string) error { return os.Truncate(meta, 6) }, packet.Error},
		{func(block, _ string) error { return os.Remove(block) }, packet.Error},
	} {
		b := testBlock(int64(id))
		writeBlock(t, s, b, crc.Chunks{}, data)
		r := s.find(b)
		r.known = false
		if err := test.damage(r.blockPath(), r.metaPath()); err != nil {
			t.Fatal(err)
		}
		_, err := s.Append(bg, b, 1002, 700, crc.Chunks{})
		var refused *BlockError
		if !errors.As(err, &refused) || refused.Status != test.want {
			t.Errorf("%d: %v, expected %v", id, err, test.want)
		}
	}
	// A stale word behind the checksums, as Hadoop's computeMeta leaves it, goes.
	b := testBlock(100)
	writeBlock(t, s, b, crc.Chunks{}, data[:512])
	meta := s.find(b).metaPath()
	if err := os.WriteFile(meta, append(oracleMeta(crc.Chunks{}, data[:512]), 1, 2, 3, 4), 0o644); err != nil {
		t.Fatal(err)
	}
	w, err := s.Append(bg, b, 1002, 512, crc.Chunks{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(send(t, w, packet.Header{Offset: 512}, data[512:]), w.Finalize(bg, false)); err != nil {
		t.Fatal(err)
	}
	checkFiles(t, s, b, crc.Chunks{}, data)
}

// A reader that has opened a block keeps seeing what it opened, while an append
// rewrites the last checksum and moves the files (HDFS-11056, 11160).
func TestReaderDuringAppend(t *testing.T) {
	s := openStore(t, t.TempDir())
	data := randomBytes(44, 2000)
	b := testBlock(1)
	writeBlock(t, s, b, crc.Chunks{}, data[:700])
	s.Close()
	s = openStore(t, s.volumes[0].root)
	var readers []*BlockReader
	for end := 700; end < 1500; end += 100 {
		r, err := s.Open(b)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		readers = append(readers, r)
		w, err := s.Append(bg, b, b.Stamp+1, int64(end), crc.Chunks{})
		if err != nil {
			t.Fatal(err)
		}
		b.Stamp++
		start := end - end%512
		if err := errors.Join(send(t, w, packet.Header{Offset: int64(start)}, data[start:end+100]), w.Finalize(bg, false)); err != nil {
			t.Fatal(err)
		}
		for i, r := range readers {
			n := 700 + 100*i
			got := make([]byte, n)
			if _, err := r.ReadAt(got, 0); err != nil || r.Len() != int64(n) || !bytes.Equal(got, data[:n]) {
				t.Fatalf("reader %d of %d bytes, after %d: %v", i, n, end+100, err)
			}
		}
	}
}

// The stages of WRITE_BLOCK over the wire, each after its failure.
func TestServerStages(t *testing.T) {
	checkLeaks(t)
	s := openStore(t, t.TempDir())
	_, addr := startServer(t, s, ServerConfig{})
	c, data, b := crc.Chunks{}, randomBytes(45, 3000), testBlock(1)
	ask := func(stage packet.Stage, newStamp, minLen, maxLen int64) *peer {
		t.Helper()
		req := writeRequest(b, c)
		req.Stage, req.LatestStamp, req.MinBytesRcvd, req.MaxBytesRcvd = stage, newStamp, minLen, maxLen
		p := dial(t, addr)
		p.write(req.Append(nil))
		if r := p.response(); r.Status != packet.Success {
			t.Fatalf("%v: %+v", stage, r)
		}
		b.Stamp = newStamp
		return p
	}
	p := dial(t, addr)
	p.open(b, c)
	p.packet(packet.Header{Seqno: 0}, c, data[:700])
	p.ack(0, packet.Success)
	// The client takes its pipeline up again while the old connection lives.
	q := ask(packet.SetupStreamingRecovery, 1002, 700, 1000)
	p.eof()
	q.packet(packet.Header{Offset: 0, Seqno: 1}, c, data[:1000])
	q.ack(1, packet.Success)
	q.Close()
	ask(packet.PipelineCloseRecovery, 1003, 1000, 1000).eof()
	ask(packet.PipelineCloseRecovery, 1004, 1000, 1000).eof()
	p = ask(packet.SetupAppend, 1005, 1000, 1000)
	q = ask(packet.SetupAppendRecovery, 1006, 1000, 1000)
	p.eof()
	q.packet(packet.Header{Offset: 1000, Seqno: 0}, c, data[1000:1024])
	q.ack(0, packet.Success)
	q.packet(packet.Header{Offset: 1024, Seqno: 1}, c, data[1024:])
	q.ack(1, packet.Success)
	q.packet(packet.Header{Offset: 3000, Seqno: 2, Last: true, Sync: true}, c, nil)
	q.ack(2, packet.Success)
	q.eof()
	checkFiles(t, s, b, c, data)
	if r := verify(t, VerifyConfig{}, s.volumes[0].root); !r.OK() || r.Files != 1 {
		t.Errorf("%+v", r)
	}
}
