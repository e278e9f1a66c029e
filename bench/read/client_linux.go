package read

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/blockpath/blockpath/bench/internal/peer"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
)

// An observation is one sample.
type observation struct {
	elapsed   time.Duration
	cpu       time.Duration // of the server
	latencies []time.Duration
	usage     usage // of the server, while the clients were connected
}

// observe lets clients read for the time of a sample.
func observe(ctx context.Context, s *server, l load, sz size) (o observation, err error) {
	clients, err := connect(s.addr, l.clients, l, sz)
	defer func() { err = errors.Join(err, disconnect(clients)) }()
	if err != nil {
		return o, err
	}
	// One request each brings the server to where it is in the long run.
	for _, c := range clients {
		if err := c.read(); err != nil {
			return o, err
		}
	}
	before, err := s.usage("")
	if err != nil {
		return o, err
	}
	start := time.Now()
	end := start.Add(sz.sample)
	drivers := min(runtime.GOMAXPROCS(0), len(clients))
	errs := make([]error, drivers)
	var wg sync.WaitGroup
	for i := range drivers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[i] = drive(ctx, clients[i*len(clients)/drivers:(i+1)*len(clients)/drivers], end)
		}()
	}
	wg.Wait()
	o.elapsed = time.Since(start)
	if o.usage, err = s.usage(""); err != nil {
		return o, err
	}
	o.cpu = o.usage.CPU - before.CPU
	for _, c := range clients {
		o.latencies = append(o.latencies, c.latencies...)
	}
	return o, errors.Join(errs...)
}

// idleMemory returns how many bytes of resident memory a connection costs the
// server that has carried a request and waits for the next.
func idleMemory(s *server, sz size) (perConn float64, err error) {
	l := load{random, 4 << 10, sz.idle}
	measure := func(n int) (u usage, err error) {
		clients, err := connect(s.addr, n, l, sz)
		defer func() { err = errors.Join(err, disconnect(clients)) }()
		for _, c := range clients {
			if err == nil {
				err = c.read()
			}
			if err == nil {
				err = c.send() // the status
			}
		}
		if err != nil {
			return usage{}, err
		}
		return s.usage(collect)
	}
	if _, err := measure(16); err != nil { // what is there only once
		return 0, err
	}
	time.Sleep(100 * time.Millisecond) // the server notices that they have gone
	few, err := measure(16)
	if err != nil {
		return 0, err
	}
	many, err := measure(16 + sz.idle)
	return float64(many.RSS-few.RSS) / float64(sz.idle), err
}

// A reader is a client that reads over one connection. Many of them share a
// thread that waits for all their connections, which leaves as much of the CPUs
// to the server as can be.
type reader struct {
	fd   int
	in   []byte // of the answer, as far as it has come
	room []byte // for all of it
	rng  *rand.Rand
	load load
	sz   size

	out    []byte // to be sent: the status of the last request
	began  time.Time
	block  int64
	offset int64
	inRow  int // requests since the last jump
	count  int

	latencies []time.Duration
}

func connect(addr string, n int, l load, sz size) (clients []*reader, err error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	for i := range n {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return clients, err
		}
		c := &reader{fd: fd, room: make([]byte, l.length+l.length/64+1024), rng: rand.New(rand.NewPCG(1, uint64(i))), load: l, sz: sz}
		clients = append(clients, c)
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		}
		if err == nil {
			err = unix.SetNonblock(fd, true)
		}
		if err != nil {
			return clients, err
		}
		c.jump()
	}
	return clients, nil
}

func disconnect(clients []*reader) error {
	var errs []error
	for _, c := range clients {
		errs = append(errs, unix.Close(c.fd))
	}
	return errors.Join(errs...)
}

// drive has clients read until the end, on this goroutine.
func drive(ctx context.Context, clients []*reader, end time.Time) error {
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(poll)
	now := time.Now()
	for i, c := range clients {
		if err := unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, c.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}); err != nil {
			return err
		}
		if err := c.request(now); err != nil {
			return err
		}
	}
	ready := make([]unix.EpollEvent, len(clients))
	for reading := len(clients); reading > 0; {
		n, err := unix.EpollWait(poll, ready, 1000)
		if err != nil && err != unix.EINTR {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, e := range ready[:max(n, 0)] {
			c := clients[e.Fd]
			whole, err := c.receive()
			if err != nil {
				return err
			}
			if !whole {
				continue
			}
			now = time.Now()
			c.latencies = append(c.latencies, now.Sub(c.began))
			if now.After(end) {
				reading--
				continue
			}
			if err := c.request(now); err != nil {
				return err
			}
		}
	}
	return nil
}

// jump goes to a random place that is a multiple of the request's length.
func (c *reader) jump() {
	c.block = firstID + c.rng.Int64N(int64(c.sz.blocks))
	c.offset = c.rng.Int64N(int64(c.sz.blockLen/c.load.length)) * int64(c.load.length)
	c.inRow = 0
}

// advance goes to where the next request reads.
func (c *reader) advance() {
	c.inRow++
	if c.load.order == random || c.load.order == sequential && c.inRow == 64 {
		c.jump()
		return
	}
	c.offset += int64(c.load.length)
	if c.offset+int64(c.load.length) > int64(c.sz.blockLen) {
		c.offset = 0
		c.block++
		if c.block == firstID+int64(c.sz.blocks) {
			c.block = firstID
		}
	}
}

// read does one request, and waits for the answer.
func (c *reader) read() error {
	if err := c.request(time.Now()); err != nil {
		return err
	}
	for {
		p := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); err != nil && err != unix.EINTR {
			return err
		}
		if whole, err := c.receive(); whole || err != nil {
			return err
		}
	}
}

// request sends a request, together with the status of the one before.
func (c *reader) request(now time.Time) error {
	req := packet.ReadBlock{
		Block: packet.Block{Pool: peer.Pool, ID: c.block, Stamp: stamp}, ClientName: "bench",
		Offset: c.offset, Length: int64(c.load.length), SendChecksums: true,
	}
	c.out = req.Append(c.out)
	c.began = now
	return c.send()
}

// send sends what is to be sent. It is short, and the socket has taken everything
// before.
func (c *reader) send() error {
	n, err := unix.Write(c.fd, c.out)
	if err == nil && n < len(c.out) {
		err = io.ErrShortWrite
	}
	c.out = c.out[:0]
	return err
}

// receive takes what has come of an answer, and reports whether that is all of
// it.
func (c *reader) receive() (whole bool, err error) {
	n, err := unix.Read(c.fd, c.room[len(c.in):])
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return false, nil
	case err != nil:
		return false, err
	case n == 0:
		return false, io.ErrUnexpectedEOF
	}
	c.in = c.room[:len(c.in)+n]
	whole, err = c.check()
	if whole {
		c.out = packet.AppendReadStatus(c.out, packet.ChecksumOK)
		c.advance()
		c.in = nil
	}
	return whole, err
}

// check reports whether the answer is complete. Of 64 packets one is verified.
func (c *reader) check() (whole bool, err error) {
	length, n := binary.Uvarint(c.in)
	if n <= 0 || len(c.in) < n+max(int(length), 2) {
		return false, nil
	}
	if c.in[n] != 8 || c.in[n+1] != byte(packet.Success) {
		return false, fmt.Errorf("the response is %x", c.in[n:n+int(length)])
	}
	got := 0
	for b := c.in[n+int(length):]; len(b) >= 6; {
		plen, hlen := int(binary.BigEndian.Uint32(b)), int(binary.BigEndian.Uint16(b[4:]))
		if len(b) < 2+hlen+plen {
			return false, nil
		}
		h, err := packet.ParseHeader(b[6 : 6+hlen])
		if err != nil {
			return false, err
		}
		body := b[6+hlen : 2+hlen+plen]
		b = b[2+hlen+plen:]
		if h.Offset != c.offset+int64(got) {
			return false, fmt.Errorf("a packet at %d, want %d", h.Offset, c.offset+int64(got))
		}
		got += h.DataLen
		if h.Last {
			if got != c.load.length || len(b) > 0 {
				return false, fmt.Errorf("%d bytes came and %d more, want %d", got, len(b), c.load.length)
			}
			return true, nil
		}
		if c.count++; c.count%64 == 0 {
			sums := len(body) - h.DataLen
			if err := (crc.Chunks{}).Verify(body[sums:], body[:sums], h.Offset); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}
