package packet

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/blockpath/blockpath/crc"
)

// socketPair returns both ends of a TCP connection.
func socketPair(t *testing.T) (ours, peers *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); p.Close() })
	return c.(*net.TCPConn), p.(*net.TCPConn)
}

// wakesAt returns what the kernel has been told.
func wakesAt(t *testing.T, c *net.TCPConn) (low int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		low, err = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT)
	}); err != nil {
		t.Fatal(err)
	}
	return low
}

// TestInflowStream sends pieces of all sizes. The reader is told of everything
// that is sure to come, or of a part of it, and must never wait for more than
// there is: the peer waits for an answer after each piece.
func TestInflowStream(t *testing.T) {
	ours, peers := socketPair(t)
	rng := rand.New(rand.NewPCG(1, 2))
	var pieces [][]byte
	for i := range 60 {
		n := []int{1, wakeLeast - 1, wakeLeast, wakeLeast + 1, 3 * wakeLeast, wakeMost, 3*wakeMost + 7, 1 + rng.IntN(1<<20)}[i%8]
		b := make([]byte, n)
		for j := range b {
			b[j] = byte(rng.Uint32())
		}
		pieces = append(pieces, b)
	}
	failed := make(chan error, 1)
	go func() {
		var answer [1]byte
		for _, b := range pieces {
			for len(b) > 0 { // in segments
				n := min(len(b), 1+len(b)/5)
				if _, err := peers.Write(b[:n]); err != nil {
					failed <- err
					return
				}
				b = b[n:]
			}
			if _, err := io.ReadFull(peers, answer[:]); err != nil {
				failed <- err
				return
			}
		}
		failed <- peers.CloseWrite()
	}()
	s := newInflow(ours)
	buf := make([]byte, 4*wakeMost)
	most := 0
	for i, want := range pieces {
		if sure := int64(len(want)); i%3 != 2 {
			s.expect(sure)
		} else {
			s.expect(sure / 2)
		}
		if _, err := io.ReadFull(s, buf[:len(want)]); err != nil {
			t.Fatalf("piece %d: %v", i, err)
		}
		if !bytes.Equal(buf[:len(want)], want) {
			t.Fatalf("piece %d of %d bytes is another one", i, len(want))
		}
		most = max(most, wakesAt(t, ours))
		if _, err := ours.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	if most <= 1 || most > wakeMost {
		t.Errorf("the kernel was told to wait for %d bytes", most)
	}
	if n, err := s.Read(buf); n != 0 || err != io.EOF {
		t.Errorf("at the end: %d bytes, error %v", n, err)
	}
	if err := <-failed; err != nil {
		t.Error(err)
	}
}

// TestInflowFailures has peers that do not send what is sure to come.
func TestInflowFailures(t *testing.T) {
	t.Run("end", func(t *testing.T) {
		ours, peers := socketPair(t)
		s := newInflow(ours)
		s.expect(wakeMost)
		go func() {
			peers.Write(make([]byte, 100))
			peers.Close()
		}()
		got, err := io.ReadAll(s)
		if len(got) != 100 || err != nil {
			t.Errorf("%d bytes, error %v", len(got), err)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		ours, peers := socketPair(t)
		if _, err := peers.Write(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		s := newInflow(ours)
		buf := make([]byte, 2*wakeMost)
		ours.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		s.expect(wakeMost)
		if _, err := io.ReadFull(s, buf); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		} else if op := (*net.OpError)(nil); !errors.As(err, &op) || op.Op != "read" || !op.Timeout() {
			t.Errorf("got %#v", err)
		}
		// The connection is as it was for whoever comes next.
		s.reset()
		if low := wakesAt(t, ours); low != 1 {
			t.Errorf("the kernel waits for %d bytes", low)
		}
		ours.SetReadDeadline(time.Time{})
		if _, err := peers.Write([]byte{7}); err != nil {
			t.Fatal(err)
		}
		if n, err := ours.Read(buf); n != 1 || buf[0] != 7 || err != nil {
			t.Errorf("%d bytes, error %v", n, err)
		}
	})
	t.Run("closed", func(t *testing.T) {
		ours, _ := socketPair(t)
		s := newInflow(ours)
		s.expect(wakeMost)
		go ours.Close()
		if _, err := s.Read(make([]byte, 10)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v", err)
		}
		s.reset()
	})
	t.Run("reset", func(t *testing.T) {
		ours, peers := socketPair(t)
		s := newInflow(ours)
		s.expect(wakeMost)
		peers.SetLinger(0)
		go peers.Close()
		_, err := s.Read(make([]byte, 10))
		if op := (*net.OpError)(nil); !errors.Is(err, syscall.ECONNRESET) || !errors.As(err, &op) || op.Op != "read" {
			t.Errorf("got %#v", err)
		}
	})
}

// TestInflowHurries has a peer that stops after a byte of many. The reader gets it
// nevertheless, every time.
func TestInflowHurries(t *testing.T) {
	ours, peers := socketPair(t)
	s := newInflow(ours)
	buf := make([]byte, wakeMost)
	for i := range 4 {
		s.expect(wakeMost)
		go func() {
			time.Sleep(time.Duration(i) * time.Millisecond)
			peers.Write([]byte{byte(i)})
		}()
		if n, err := s.Read(buf); n != 1 || buf[0] != byte(i) || err != nil {
			t.Fatalf("%d bytes, error %v", n, err)
		}
	}
}

// TestInflowElsewhere reads from what is no TCP socket.
func TestInflowElsewhere(t *testing.T) {
	s := newInflow(bytes.NewReader([]byte("bytes")))
	s.expect(1 << 20)
	got, err := io.ReadAll(s)
	s.reset()
	if string(got) != "bytes" || err != nil {
		t.Errorf("%q, error %v", got, err)
	}
}

// TestReaderLongRanges reads ranges of which much is sure to come, with small
// packets, and short ones between them over the same connection. In the end the
// peer stops long before it should, and says so.
func TestReaderLongRanges(t *testing.T) {
	checkLeaks(t, nil)
	const length = 3*wakeMost + 777
	s := newSource(length, crc.Chunks{})
	conn, served := dial(t, "tcp", s.serve)
	for i, v := range [][2]int64{{0, length}, {length - 1, 1}, {700, length - 700}, {1, wakeLeast}, {5, 10}, {0, -1}, {512, wakeMost}} {
		r, err := NewReader(deadline(t), conn, readRequest(v[0], v[1]), ReaderConfig{})
		if err != nil {
			t.Fatalf("%v: %v", v, err)
		}
		end := v[0] + v[1]
		if v[1] < 0 {
			end = length
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, s.block[v[0]:end]) {
			t.Fatalf("%v: %d bytes, error %v", v, len(got), err)
		}
		if !r.Close() {
			t.Fatalf("%v: not reusable", v)
		}
		if low := wakesAt(t, conn.(*net.TCPConn)); low != 1 {
			t.Errorf("%v: the next one waits for %d bytes", v, low)
		}
		if status := <-s.status; status != ChecksumOK {
			t.Errorf("range %d: status %v", i, status)
		}
	}
	told := make(chan struct{})
	s.mangle = func(i int, h *Header, sums, data *[]byte) bool {
		if i == 3 {
			h.Last, h.DataLen, *sums, *data = true, 0, nil, nil
		}
		if i == 4 {
			<-told // and sends nothing meanwhile
		}
		return i == 4
	}
	r, err := NewReader(deadline(t), conn, readRequest(0, length), ReaderConfig{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	var format *FormatError
	if len(got) != 3*16*512 || !errors.As(err, &format) || !strings.Contains(err.Error(), "last packet") {
		t.Errorf("%d bytes, error %v", len(got), err)
	}
	if r.Close() {
		t.Error("reusable")
	}
	close(told)
	conn.Close()
	<-served
}
