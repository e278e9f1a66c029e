package read

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

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
	clients, err := connect(ctx, s.addr, l.clients, l, sz)
	defer func() {
		for _, c := range clients {
			err = errors.Join(err, c.conn.Close())
		}
	}()
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
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Add(1)
		go func() {
			defer wg.Done()
			c.readUntil(end)
		}()
	}
	wg.Wait()
	o.elapsed = time.Since(start)
	if o.usage, err = s.usage(""); err != nil {
		return o, err
	}
	o.cpu = o.usage.CPU - before.CPU
	for _, c := range clients {
		if c.err != nil {
			return o, c.err
		}
		o.latencies = append(o.latencies, c.latencies...)
	}
	return o, nil
}

// idleMemory returns how many bytes of resident memory a connection costs the
// server that has carried a request and waits for the next.
func idleMemory(s *server, sz size) (perConn float64, err error) {
	l := load{random, 4 << 10, sz.idle}
	measure := func(n int) (usage, error) {
		clients, err := connect(context.Background(), s.addr, n, l, sz)
		for _, c := range clients {
			if err == nil {
				err = c.read()
			}
			if err == nil {
				err = c.rest()
			}
			defer c.conn.Close()
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

// A client reads over one connection.
type client struct {
	conn net.Conn
	in   *bufio.Reader
	rng  *rand.Rand
	load load
	sz   size

	out    []byte // to be sent: the status of the last request
	block  int64
	offset int64
	inRow  int // requests since the last jump
	count  int

	latencies []time.Duration
	err       error
}

func connect(ctx context.Context, addr string, n int, l load, sz size) (clients []*client, err error) {
	for i := range n {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return clients, err
		}
		c := &client{
			conn: conn, in: bufio.NewReaderSize(conn, l.length+l.length/64+1024),
			rng: rand.New(rand.NewPCG(1, uint64(i))), load: l, sz: sz,
		}
		c.jump()
		clients = append(clients, c)
	}
	return clients, nil
}

// jump goes to a random place that is a multiple of the request's length.
func (c *client) jump() {
	c.block = firstID + c.rng.Int64N(int64(c.sz.blocks))
	c.offset = c.rng.Int64N(int64(c.sz.blockLen/c.load.length)) * int64(c.load.length)
	c.inRow = 0
}

// advance goes to where the next request reads.
func (c *client) advance() {
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

func (c *client) readUntil(end time.Time) {
	for now := time.Now(); now.Before(end) && c.err == nil; {
		c.err = c.read()
		done := time.Now()
		c.latencies = append(c.latencies, done.Sub(now))
		now = done
	}
}

// read does one request. The status of the one before goes along, which leaves
// the CPUs to the server, and so does verifying only one packet in 64.
func (c *client) read() error {
	req := packet.ReadBlock{
		Block: packet.Block{Pool: peer.Pool, ID: c.block, Stamp: stamp}, ClientName: "bench",
		Offset: c.offset, Length: int64(c.load.length), SendChecksums: true,
	}
	c.out = req.Append(c.out)
	if err := c.rest(); err != nil {
		return err
	}
	length, err := binary.ReadUvarint(c.in)
	if err != nil {
		return err
	}
	if b, err := c.in.Peek(2); err != nil || b[0] != 8 || b[1] != byte(packet.Success) {
		return fmt.Errorf("response begins with %x, error %v", b, err)
	}
	if _, err := c.in.Discard(int(length)); err != nil {
		return err
	}
	got := 0
	for {
		h, n, err := c.packet()
		if err != nil {
			return err
		}
		if h.Offset != c.offset+int64(got) {
			return fmt.Errorf("a packet at %d, want %d", h.Offset, c.offset+int64(got))
		}
		got += h.DataLen
		if _, err := c.in.Discard(n); err != nil {
			return err
		}
		if h.Last {
			break
		}
	}
	if got != c.load.length {
		return fmt.Errorf("%d bytes came, want %d", got, c.load.length)
	}
	c.out = packet.AppendReadStatus(c.out, packet.ChecksumOK)
	c.advance()
	return nil
}

// rest sends what is to be sent.
func (c *client) rest() error {
	_, err := c.conn.Write(c.out)
	c.out = c.out[:0]
	return err
}

// packet returns the header and the length of the next packet, which is left in
// the reader.
func (c *client) packet() (h packet.Header, length int, err error) {
	b, err := c.in.Peek(6)
	if err != nil {
		return h, 0, err
	}
	plen, hlen := int(binary.BigEndian.Uint32(b)), int(binary.BigEndian.Uint16(b[4:]))
	length = 2 + hlen + plen
	if b, err = c.in.Peek(6 + hlen); err != nil {
		return h, 0, err
	}
	if h, err = packet.ParseHeader(b[6:]); err != nil {
		return h, 0, err
	}
	if c.count++; c.count%64 == 0 && h.DataLen > 0 {
		if b, err = c.in.Peek(length); err != nil {
			return h, 0, err
		}
		sums, data := b[6+hlen:length-h.DataLen], b[length-h.DataLen:]
		err = crc.Chunks{}.Verify(data, sums, h.Offset)
	}
	return h, length, err
}
