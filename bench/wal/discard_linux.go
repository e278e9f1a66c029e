package wal

import (
	"bufio"
	"errors"
	"io"
	"net"

	"github.com/blockpath/blockpath/crc/packet"
)

// discard accepts one block and acks its packets without looking at their data
// and without allocating.
func discard(l net.Listener) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	r := bufio.NewReaderSize(c, 512)
	if _, err := packet.ReadRequest(r, 0); err != nil {
		return err
	}
	if _, err := c.Write((&packet.BlockOpResponse{HasFirstBadLink: true}).Append(nil)); err != nil {
		return err
	}
	in := packet.NewReceiver(r, 0)
	buf := make([]byte, 1<<20)
	ack := &packet.Ack{Replies: []packet.Status{packet.Success}, Flags: []uint32{0}}
	var out []byte
	for {
		h, _, err := in.Next()
		if err == nil {
			_, _, err = in.Body(buf)
		}
		if err != nil {
			var cut *net.OpError // the writer aborts
			if err == io.EOF || errors.As(err, &cut) || errors.Is(err, io.ErrUnexpectedEOF) {
				return nil
			}
			return err
		}
		ack.Seqno = h.Seqno
		out = ack.Append(out[:0])
		if _, err := c.Write(out); err != nil {
			return nil
		}
	}
}
