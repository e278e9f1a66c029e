package sidebyside

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"github.com/blockpath/blockpath/bench/internal/peer"
	"github.com/blockpath/blockpath/crc/packet/client"
)

// The bare client and node show what the kernel takes for moving a file: they
// pass its bytes between memory, a TCP connection and block files, in large
// pieces, and do nothing else. The node is a peer.Child with a variable that says
// where its files are; it answers with its address.
const envNode = "BLOCKPATH_BENCH_NODE"

const barePiece = 256 << 10

// What a connection begins with: a direction and the length.
const (
	barePut = 'p'
	bareGet = 'g'
)

// IsNode reports whether this process is the bare node.
func IsNode() bool { return os.Getenv(envNode) != "" }

// ServeBare is the bare node's life: a connection after the other.
func ServeBare() error {
	l, err := peer.Listen()
	if err != nil {
		return err
	}
	dir := os.Getenv(envNode)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := peer.Answers().Encode(l.Addr().String()); err != nil {
		return err
	}
	go func() {
		io.Copy(io.Discard, os.Stdin) // until it is closed
		l.Close()
	}()
	buf := make([]byte, barePiece)
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err == nil {
			err = errors.Join(bareServe(c, dir, buf), c.Close())
		}
		if err != nil {
			return err
		}
	}
}

func bareServe(c net.Conn, dir string, buf []byte) error {
	var head [9]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	left := int64(binary.BigEndian.Uint64(head[1:]))
	for id := 1; left > 0; id++ {
		n := min(left, client.DefaultBlockSize)
		path := filepath.Join(dir, fmt.Sprintf("blk_%d", id))
		move := bareSend
		if head[0] == barePut {
			move = bareReceive
		}
		if err := move(c, path, n, buf); err != nil {
			return err
		}
		left -= n
	}
	_, err := c.Write(head[:1])
	return err
}

func bareReceive(c net.Conn, path string, left int64, buf []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for left > 0 && err == nil {
		b := buf[:min(left, int64(len(buf)))]
		if _, err = io.ReadFull(c, b); err == nil {
			_, err = f.Write(b)
		}
		left -= int64(len(b))
	}
	return errors.Join(err, f.Close())
}

func bareSend(c net.Conn, path string, left int64, buf []byte) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	for left > 0 && err == nil {
		b := buf[:min(left, int64(len(buf)))]
		if _, err = io.ReadFull(f, b); err == nil {
			_, err = c.Write(b)
		}
		left -= int64(len(b))
	}
	return errors.Join(err, f.Close())
}

// bareMove is what the client does.
func bareMove(ctx context.Context, addr string, direction byte, length int64, buf []byte) error {
	conn, err := client.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(binary.BigEndian.AppendUint64([]byte{direction}, uint64(length))); err != nil {
		return err
	}
	for at := int64(0); at < length; {
		n := min(length-at, int64(len(buf)))
		if direction == barePut {
			from := at % int64(len(peer.Pattern))
			n = min(n, int64(len(peer.Pattern))-from)
			_, err = conn.Write(peer.Pattern[from : from+n])
		} else {
			_, err = io.ReadFull(conn, buf[:n])
		}
		if err != nil {
			return err
		}
		at += n
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

func (b *bench) startBare(ctx context.Context, dir string) (err error) {
	if b.bare, err = peer.StartChild(ctx, experiment, envNode+"="+dir); err != nil {
		return err
	}
	b.stops = append(b.stops, b.bare.Close)
	return b.bare.Out.Decode(&b.bareAddr)
}

func (b *bench) bareTransfer() transfer {
	do := func(op string) func() error {
		return func() error {
			_, err := b.goClient.do(&command{Op: op, Addr: b.bareAddr, Length: b.sz.length})
			return err
		}
	}
	none := func() error { return nil }
	return transfer{put: do(opBarePut), get: do(opBareGet), compare: none, end: none}
}
