package packet

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/blockpath/blockpath/crc"
)

// Faults that HDFS and its clients have had; each is named by its report.

// HDFS-4070: packets were of 64 KiB whatever the caller's buffer size. HDFS-7308:
// they were a little longer than they were to be, so that the buffer doubled.
func TestPacketSizesOnTheWire(t *testing.T) {
	for _, v := range []struct {
		cfg  StreamConfig
		data int // bytes in a full packet
	}{
		{StreamConfig{PacketSize: 65536}, 64512}, {StreamConfig{PacketSize: 1056252}, 1047552},
		{StreamConfig{BufferHint: 4096}, 64512}, {StreamConfig{BufferHint: 300000}, 519680}, {StreamConfig{BufferHint: 1 << 20}, 1040384},
	} {
		checkLeaks(t, nil)
		n := &node{}
		conn, served := dial(t, "tcp", n.serve)
		counting := &countingConn{Conn: conn}
		w, err := NewWriter(deadline(t), counting, createRequest(8<<20), WriterConfig{StreamConfig: v.cfg})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, v.data+1)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-served; err != nil {
			t.Fatal(err)
		}
		// The request, two packets with data, the last one.
		wire := 31 + v.data/512*516
		if len(counting.writes) != 4 || n.headers[0].DataLen != v.data || counting.writes[1] != [2]int{wire, 1} {
			t.Errorf("%+v: %v, want a packet of %d bytes first", v.cfg, counting.writes, wire)
		}
		size := v.cfg.PacketSize
		if size == 0 {
			for size = 65536; size < v.cfg.BufferHint; size *= 2 {
			}
		}
		if buf := wire + MaxHeaderLen - 31; buf > size || buf+516 <= size {
			t.Errorf("%+v: a buffer of %d bytes", v.cfg, buf)
		}
	}
}

// HADOOP-9114: hflush in mid-chunk failed when there were no checksums.
func TestFlushWithoutChecksums(t *testing.T) {
	checkLeaks(t, nil)
	n := &node{chunks: crc.Chunks{Kind: crc.None}}
	conn, served := dial(t, "tcp", n.serve)
	w, err := NewWriter(deadline(t), conn, createRequest(1<<20), WriterConfig{StreamConfig: StreamConfig{Chunks: n.chunks}})
	if err != nil {
		t.Fatal(err)
	}
	data := pattern(3000, 1)
	for i := 0; i < len(data); i += 100 {
		if _, err := w.Write(data[i : i+100]); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(deadline(t)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Sync(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil || !bytes.Equal(n.block, data) || n.synced != len(data) {
		t.Errorf("%d bytes, %d synced, %v", len(n.block), n.synced, err)
	}
}

// colinmarc/hdfs#74, #315, #313: the checksum type was taken from a proto's
// default, and files with CRC32 compare unequal and are not readable by all.
// hdfs-native#323: it was not zlib's CRC.
func TestDefaultChecksum(t *testing.T) {
	checkLeaks(t, nil)
	n := &node{}
	conn, served := dial(t, "tcp", n.serve)
	w, err := NewWriter(deadline(t), conn, createRequest(1<<20), WriterConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	<-served
	if c, err := n.request.Checksum.Chunks(); err != nil || c.Kind != crc.CRC32C || c.BytesPerChunk() != 512 {
		t.Errorf("%+v, %v", c, err)
	}
	// What a datanode of Hadoop 1 was sent (HDFS-4070): zeros.
	zeros := make([]byte, 1024)
	wire := packetBytes(Header{}, crc.Chunks{Kind: crc.CRC32}.Append(nil, zeros), zeros)
	if got := hex.EncodeToString(wire[31:39]); got != "b2aa7578b2aa7578" {
		t.Error(got)
	}
}

// A pipeline of two nodes, the second of which finds every packet damaged. It
// acks every packet with both nodes' statuses.
func damagedAtSecond(c io.ReadWriteCloser) error {
	defer c.Close()
	in := bufio.NewReader(c)
	if _, err := ReadRequest(in, 0); err != nil {
		return err
	}
	ok := BlockOpResponse{HasFirstBadLink: true}
	c.Write(ok.Append(nil))
	rec := NewReceiver(in, 0)
	h, sumsLen, err := rec.Next()
	if err != nil {
		return err
	}
	rec.Body(make([]byte, sumsLen+h.DataLen))
	a := Ack{Seqno: h.Seqno, Replies: []Status{Success, ErrorChecksum}, Flags: []uint32{0, 2}}
	_, err = c.Write(a.Append(nil))
	return err
}

// HDFS-3875: a packet that is damaged again and again behind the first node led
// to an endless recovery, and to the wrong node.
func TestDamageBehindTheFirstNode(t *testing.T) {
	checkLeaks(t, nil)
	request := createRequest(1 << 20)
	request.PipelineSize = 2
	request.Targets = []DatanodeInfo{{IPAddr: "10.0.0.2", XferPort: 9866}}
	conn, _ := dial(t, "tcp", damagedAtSecond)
	recoveries := 0
	w, err := NewWriter(deadline(t), conn, request, WriterConfig{
		Nodes: []string{"10.0.0.1:9866", "10.0.0.2:9866"},
		Recover: func(_ context.Context, f *WriteError) (io.ReadWriteCloser, WriteBlock, error) {
			var ack *AckError
			if !errors.As(f, &ack) || ack.Status != ErrorChecksum || f.Node != 1 || ack.Err != nil {
				t.Errorf("%+v", f)
			}
			recoveries++
			next := request
			next.LatestStamp = f.Block.Stamp + 1
			conn, _ := dial(t, "tcp", damagedAtSecond)
			return conn, next, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	w.Write(pattern(1000, 1))
	err = w.Close()
	for _, part := range []string{"gave up after 5 recoveries", "node 1 (10.0.0.2:9866)", "ERROR_CHECKSUM", "damaged on the way"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %v", part, err)
		}
	}
	if recoveries != 5 || w.Acked() != 0 {
		t.Errorf("%d recoveries, %d bytes acked", recoveries, w.Acked())
	}
}

// A datanode that had stored the packet of an hsync, but did not ack it, took
// the one that was sent again for a duplicate and did not sync. The flag is
// still there when the packet comes again.
func TestSyncIsRepeated(t *testing.T) {
	for _, fresh := range []bool{true, false} {
		checkLeaks(t, nil)
		lost := false
		n := &node{behave: func(_ int, h Header) action {
			drop := h.Sync && !lost
			lost = lost || drop
			return action{drop: drop}
		}}
		conn, served := dial(t, "tcp", n.serve)
		w, err := NewWriter(deadline(t), conn, createRequest(1<<20), WriterConfig{
			Recover: func(_ context.Context, f *WriteError) (io.ReadWriteCloser, WriteBlock, error) {
				<-served
				n.synced = 0
				req := createRequest(1 << 20)
				req.Stage, req.LatestStamp = SetupStreamingRecovery, f.Block.Stamp+1
				req.MinBytesRcvd, req.MaxBytesRcvd = f.Acked, f.Sent
				var conn net.Conn
				conn, served = dial(t, "tcp", n.serve)
				return conn, req, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		w.Write(pattern(700, 1))
		if !fresh {
			if err := w.Flush(deadline(t)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Sync(deadline(t)); err != nil {
			t.Fatal(err)
		}
		if !lost || n.synced != 700 {
			t.Errorf("%d bytes synced", n.synced)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// Every packet that a datanode has to refuse, so that its replica is not
// corrupt later, is one that the model node refuses, too: data in the last
// packet, and an unaligned packet that crosses a chunk. Packets of writers of
// all kinds go through it in the other tests.
func TestNodeRefuses(t *testing.T) {
	data := pattern(600, 1)
	whole := func(h Header, d []byte) []byte {
		h.DataLen = len(d)
		return packetBytes(h, crc.Chunks{}.Append(nil, d), d)
	}
	for name, packets := range map[string][][]byte{
		"last packet with data":              {whole(Header{Last: true}, data[:100])},
		"unaligned packet crosses a chunk":   {whole(Header{Offset: 500, Seqno: 0}, data[:100])},
		"unaligned packet longer than chunk": {whole(Header{Offset: 500, Seqno: 0}, data)},
		"gap":                                {whole(Header{Offset: 1000, Seqno: 0}, data[:100])},
		"nothing new":                        {whole(Header{}, data[:512]), whole(Header{Seqno: 1}, data[:512])},
		"seqno twice":                        {whole(Header{}, data[:512]), whole(Header{Offset: 512}, data[:512])},
		"sums missing":                       {packetBytes(Header{DataLen: 10}, nil, data[:10])},
		"empty packet":                       {whole(Header{Offset: 500}, nil)},
	} {
		n := &node{}
		conn, served := dial(t, "tcp", n.serve)
		req := createRequest(1 << 20)
		req.Stage, req.MinBytesRcvd, req.MaxBytesRcvd, req.LatestStamp = SetupAppend, 500, 500, 1002
		if strings.Contains(name, "new") || strings.Contains(name, "twice") {
			req.MinBytesRcvd, req.MaxBytesRcvd = 0, 0
		}
		req.Checksum = ChecksumOf(crc.Chunks{})
		out := req.Append(nil)
		for _, p := range packets {
			out = append(out, p...)
		}
		go io.Copy(io.Discard, conn)
		if _, err := conn.Write(out); err != nil {
			t.Fatal(err)
		}
		var format *FormatError
		if err := <-served; !errors.Is(err, errRule) && !errors.As(err, &format) {
			t.Errorf("%s: %v", name, err)
		}
		conn.Close()
	}
}

// A name node hears only of a pipeline that stands, and before packets go to it.
func TestRecovered(t *testing.T) {
	refuse := func(c io.ReadWriteCloser) error {
		defer c.Close()
		if _, err := ReadRequest(bufio.NewReader(c), 0); err != nil {
			return err
		}
		no := BlockOpResponse{Status: Error, HasFirstBadLink: true}
		_, err := c.Write(no.Append(nil))
		return err
	}
	failed := errors.New("the name node is away")
	for _, answer := range []error{nil, failed} {
		checkLeaks(t, nil)
		lost := false
		n := &node{behave: func(_ int, h Header) action {
			drop := h.Seqno == 1 && !lost
			lost = lost || drop
			return action{drop: drop, before: true}
		}}
		conn, served := dial(t, "tcp", n.serve)
		var events []string
		w, err := NewWriter(deadline(t), conn, createRequest(1<<20), WriterConfig{
			Recover: func(_ context.Context, f *WriteError) (io.ReadWriteCloser, WriteBlock, error) {
				req := createRequest(1 << 20)
				req.Stage, req.LatestStamp = SetupStreamingRecovery, 1001+int64(len(events))+1
				req.MinBytesRcvd, req.MaxBytesRcvd = f.Acked, f.Sent
				events = append(events, fmt.Sprintf("recover %d", req.LatestStamp))
				if len(events) == 1 {
					<-served
					conn, _ := dial(t, "tcp", refuse)
					return conn, req, nil
				}
				var conn net.Conn
				conn, served = dial(t, "tcp", n.serve)
				return conn, req, nil
			},
			Recovered: func(_ context.Context, b Block) error {
				events = append(events, fmt.Sprintf("recovered %d, %d bytes", b.Stamp, b.NumBytes))
				if !bytes.Equal(n.block[:b.NumBytes], pattern(700, 1)[:b.NumBytes]) || len(n.block) > 700 {
					t.Errorf("%d bytes have arrived already", len(n.block))
				}
				return answer
			}})
		if err != nil {
			t.Fatal(err)
		}
		w.Write(pattern(1500, 1)[:700])
		if err := w.Flush(deadline(t)); err != nil {
			t.Fatal(err)
		}
		w.Write(pattern(1500, 1)[700:])
		err = w.Close()
		if !errors.Is(err, answer) {
			t.Errorf("closed with %v, want %v", err, answer)
		}
		if want := []string{"recover 1002", "recover 1003", "recovered 1003, 700 bytes"}; !slices.Equal(events, want) {
			t.Errorf("%q, want %q", events, want)
		}
		if err := <-served; answer == nil && (err != nil || !bytes.Equal(n.block, pattern(1500, 1)) || w.Block().Stamp != 1003) {
			t.Errorf("%d bytes, stamp %d, %v", len(n.block), w.Block().Stamp, err)
		}
	}
}
