package fuzz

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"reflect"
	"runtime/metrics"
	"testing"
	"testing/iotest"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// wireError fails the test if err is not one of those that bytes off the wire
// may give.
func wireError(t *testing.T, err error) {
	t.Helper()
	var (
		format  *packet.FormatError
		version *packet.VersionError
		opcode  *packet.OpcodeError
		header  *crc.HeaderError
	)
	if err != io.EOF && !errors.As(err, &format) && !errors.As(err, &version) && !errors.As(err, &opcode) && !errors.As(err, &header) {
		t.Errorf("%T: %v", err, err)
	}
}

// bounded fails the test if f allocates more than limit bytes.
func bounded(t *testing.T, limit int, f func()) {
	t.Helper()
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	before := s[0].Value.Uint64()
	f()
	metrics.Read(s)
	if got := s[0].Value.Uint64() - before; got > uint64(limit) {
		t.Errorf("%d bytes were allocated, at most %d are allowed", got, limit)
	}
}

// slack is what may be allocated beside the message: the receiver's own buffers,
// errors, what is made of n bytes that have come, and most of all what the
// fuzzer itself does meanwhile. What bytes may claim is far more.
func slack(n int) int { return 4<<20 + 64*n }

// FuzzPacketHeader parses a packet's header. What is accepted survives being
// encoded and parsed again.
func FuzzPacketHeader(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := packet.ParseHeader(b)
		if err != nil {
			wireError(t, err)
			return
		}
		if h.Offset < 0 || h.DataLen < 0 {
			t.Errorf("accepted %+v", h)
		}
		wire := h.Append(nil, 0)
		if len(wire) > packet.MaxHeaderLen {
			t.Errorf("%d bytes of header", len(wire))
		}
		if again, err := packet.ParseHeader(wire[6:]); err != nil || again != h {
			t.Errorf("%+v became %+v, %v", h, again, err)
		}
	})
}

// FuzzReceiver reads packets off arbitrary bytes, whole and byte by byte, which
// must not make a difference, and never wants more memory than its limit.
func FuzzReceiver(f *testing.F) {
	const limit = 1 << 16
	f.Fuzz(func(t *testing.T, b []byte) {
		whole := packet.NewReceiver(bytes.NewReader(b), limit)
		small := packet.NewReceiver(iotest.OneByteReader(bytes.NewReader(b)), limit)
		ended := false
		for {
			var h packet.Header
			var sumsLen int
			var err error
			bounded(t, limit+slack(0), func() { h, sumsLen, err = whole.Next() })
			h2, sumsLen2, err2 := small.Next()
			if h != h2 || sumsLen != sumsLen2 || !sameError(err, err2) {
				t.Fatalf("%+v, %d, %v; byte by byte %+v, %d, %v", h, sumsLen, err, h2, sumsLen2, err2)
			}
			if err != nil {
				wireError(t, err)
				return
			}
			if ended {
				t.Fatal("a packet after the last one")
			}
			ended = h.Last
			need := sumsLen + h.DataLen
			if need+4 > limit || sumsLen < 0 || h.DataLen < 0 {
				t.Fatalf("a packet of %d bytes was accepted", need)
			}
			sums, data, err := whole.Body(make([]byte, need+packet.MaxHeaderLen))
			sums2, data2, err2 := small.Body(make([]byte, need))
			if !sameError(err, err2) || !bytes.Equal(sums, sums2) || !bytes.Equal(data, data2) {
				t.Fatalf("body: %v; byte by byte %v", err, err2)
			}
			if err != nil {
				wireError(t, err)
				return
			}
			if len(sums) != sumsLen || len(data) != h.DataLen {
				t.Fatalf("%d and %d bytes of %d and %d", len(sums), len(data), sumsLen, h.DataLen)
			}
		}
	})
}

func sameError(a, b error) bool {
	return (a == nil) == (b == nil) && (a == nil || a.Error() == b.Error())
}

// FuzzAcks reads acks off arbitrary bytes. What is accepted survives being
// encoded and read again.
func FuzzAcks(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReader(bytes.NewReader(b))
		for {
			var a packet.Ack
			var err error
			bounded(t, 4096+slack(len(b)), func() { a, err = packet.ReadAck(r) })
			if err != nil {
				wireError(t, err)
				return
			}
			if a.Nodes() == 0 {
				t.Fatal("an ack of nobody")
			}
			for i := range a.Nodes() {
				_ = a.Status(i).String()
			}
			wire := a.Append(nil)
			again, err := packet.ReadAck(bufio.NewReader(bytes.NewReader(wire)))
			if len(wire) <= 4096 && (err != nil || !bytes.Equal(again.Append(nil), wire)) {
				t.Fatalf("%+v became %+v, %v", a, again, err)
			}
		}
	})
}

// FuzzRequests reads requests off arbitrary bytes. What is accepted survives
// being encoded and read again.
func FuzzRequests(f *testing.F) {
	const limit = 4096
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReader(bytes.NewReader(b))
		for {
			var req any
			var err error
			bounded(t, limit+slack(len(b)), func() { req, err = packet.ReadRequest(r, limit) })
			if err != nil {
				wireError(t, err)
				return
			}
			wire := req.(interface{ Append([]byte) []byte }).Append(nil)
			again, err := packet.ReadRequest(bufio.NewReader(bytes.NewReader(wire)), 1<<20)
			if err != nil {
				t.Fatalf("%+v: %v", req, err)
			}
			wire2 := again.(interface{ Append([]byte) []byte }).Append(nil)
			if reflect.TypeOf(again) != reflect.TypeOf(req) || !bytes.Equal(wire, wire2) {
				t.Fatalf("%+v became %+v", req, again)
			}
		}
	})
}

// A deadConn answers a client with the bytes it was given.
type deadConn struct{ io.Reader }

func (deadConn) Write(p []byte) (int, error) { return len(p), nil }
func (deadConn) Close() error                { return nil }

// FuzzReader reads a range of a block from a datanode that answers with
// arbitrary bytes. However it is read, the same comes out: verified bytes of the
// range, or fewer and an error.
func FuzzReader(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte, offset, length uint16, open bool) {
		request := packet.ReadBlock{
			Block: packet.Block{Pool: "BP-1", ID: 1, Stamp: 1}, Offset: int64(offset), Length: int64(length), SendChecksums: true,
		}
		if open {
			request.Length = -1
		}
		const limit = 1 << 16
		cfg := packet.ReaderConfig{MaxPacketLen: limit, AllowNone: true}
		var outs [3][]byte
		var errs [3]error
		read := func(way int) {
			r, err := packet.NewReader(context.Background(), deadConn{bytes.NewReader(b)}, request, cfg)
			if err == nil {
				switch way {
				case 0:
					var out bytes.Buffer
					_, err = r.WriteTo(&out)
					outs[way] = out.Bytes()
				case 1:
					outs[way], err = io.ReadAll(iotest.OneByteReader(r))
				case 2:
					outs[way], err = io.ReadAll(r)
				}
				if r.Close() && err != nil {
					t.Error("reusable after an error")
				}
			}
			errs[way] = err
		}
		for way := range outs {
			bounded(t, limit+slack(len(b)), func() { read(way) })
		}
		if !bytes.Equal(outs[0], outs[1]) || !bytes.Equal(outs[0], outs[2]) || !sameError(errs[0], errs[1]) || !sameError(errs[0], errs[2]) {
			t.Errorf("%d, %d, %d bytes, %v, %v, %v", len(outs[0]), len(outs[1]), len(outs[2]), errs[0], errs[1], errs[2])
		}
		if errs[0] == nil && !open && len(outs[0]) != int(length) {
			t.Errorf("%d bytes of %d", len(outs[0]), length)
		}
	})
}
