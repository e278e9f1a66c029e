package sidebyside

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/blockpath/blockpath/bench/internal/peer"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet"
	"github.com/blockpath/blockpath/crc/packet/client"
)

// Our client is a peer.Child with a variable that says so. It gets commands, a line
// of JSON each, and answers each with such a line.
const envClient = "BLOCKPATH_BENCH_CLIENT"

// IsClient reports whether this process is the client.
func IsClient() bool { return os.Getenv(envClient) != "" }

// A command is what the client is to do.
type command struct {
	Op   string
	Addr string // put and get: the datanode

	Length     int64 // put: of the file; block: of the block
	PacketSize int   // put and open
	FirstID    int64 // put: of the blocks

	Request packet.WriteBlock // block
	Offset  int64             // block: in the file

	Manifest client.Manifest // get: of one file
}

// The operations of a command. A file whose blocks a name node hands out is put
// with open, a block at a time, and done.
const (
	opPut   = "put"
	opGet   = "get"
	opOpen  = "open"
	opBlock = "block"
	opDone  = "done"

	opBarePut = "bare put"
	opBareGet = "bare get"
)

// An answer is what came of it.
type answer struct {
	Err   string
	File  client.File  // put
	Block client.Block // block
	Bytes int64        // get
}

// Serve is the client's life.
func Serve(ctx context.Context) error {
	out := peer.Answers()
	in := json.NewDecoder(os.Stdin)
	var stream *packet.Stream
	buf := make([]byte, barePiece)
	for {
		var c command
		if err := in.Decode(&c); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		var a answer
		var err error
		switch c.Op {
		case opPut:
			a.File, _, err = client.Put(ctx, &peer.Source{Left: c.Length}, "file", []string{c.Addr}, client.PutConfig{
				Pool: peer.Pool, FirstID: c.FirstID, PacketSize: c.PacketSize, Size: c.Length,
			})
		case opOpen:
			stream, err = packet.NewStream(ctx, packet.StreamConfig{PacketSize: c.PacketSize})
		case opBlock:
			a.Block, err = putBlock(ctx, stream, &c)
		case opDone:
			stream.Close()
		case opGet:
			var s client.Stats
			s, err = client.Get(ctx, discard{}, &c.Manifest, &c.Manifest.Files[0], []string{c.Addr}, client.GetConfig{})
			a.Bytes = s.Bytes
		case opBarePut:
			err = bareMove(ctx, c.Addr, barePut, c.Length, buf)
		case opBareGet:
			err = bareMove(ctx, c.Addr, bareGet, c.Length, buf)
		default:
			err = fmt.Errorf("no such operation: %q", c.Op)
		}
		if err != nil {
			a.Err = err.Error()
		}
		if err := out.Encode(&a); err != nil {
			return err
		}
	}
}

// putBlock puts one block as client.Put does it.
func putBlock(ctx context.Context, stream *packet.Stream, c *command) (client.Block, error) {
	conn, err := client.Dial(ctx, c.Addr)
	if err != nil {
		return client.Block{}, err
	}
	summer := crc.NewBlockSummer(crc.Chunks{})
	w, err := packet.NewWriter(ctx, conn, c.Request, packet.WriterConfig{Stream: stream, Nodes: []string{c.Addr}, Sums: summer.Add})
	if err != nil {
		return client.Block{}, err
	}
	if _, err := w.ReadFrom(&peer.Source{At: c.Offset, Left: c.Length}); err != nil && !errors.Is(err, packet.ErrBlockFull) {
		w.Abort()
		return client.Block{}, err
	}
	if err := w.Close(); err != nil {
		return client.Block{}, err
	}
	b := w.Block()
	sum, err := summer.Sum(b.NumBytes)
	return client.Block{ID: b.ID, Stamp: b.Stamp, Length: b.NumBytes, CRC: fmt.Sprintf("%08x", sum.CRC)}, err
}

// discard takes bytes by Write alone, as a program would that uses them.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// A goClient is the client, seen from here.
type goClient struct{ *peer.Child }

func (c goClient) do(cmd *command) (a answer, err error) {
	if err := json.NewEncoder(c.In).Encode(cmd); err != nil {
		return a, err
	}
	if err := c.Out.Decode(&a); err != nil {
		return a, fmt.Errorf("our client ended: %w", err)
	}
	if a.Err != "" {
		return a, errors.New(a.Err)
	}
	return a, nil
}

// nodeInfo is a datanode at an address.
func nodeInfo(addr string) (packet.DatanodeInfo, error) {
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return packet.DatanodeInfo{}, err
	}
	return packet.DatanodeInfo{IPAddr: a.IP.String(), HostName: "localhost", UUID: "ours", XferPort: uint32(a.Port)}, nil
}
