//go:build linux || darwin

package datanode

import (
	"fmt"

	"github.com/blockpath/blockpath/crc/packet"
)

// A BlockError reports that an operation on a block was refused, or has failed.
// Unwrap gives the cause, if there is one.
type BlockError struct {
	Op     string // such as "create", "append", "read"
	Block  packet.Block
	Reason string
	Status packet.Status // how a datanode answers it
	Err    error
}

func (e *BlockError) Error() string {
	s := fmt.Sprintf("datanode: %s %s: %s", e.Op, e.Block, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *BlockError) Unwrap() error { return e.Err }

// A PacketError reports a packet that does not fit the block it was sent for.
type PacketError struct {
	Block    packet.Block
	Seqno    int64
	Offset   int64 // the packet's offset in the block
	Reason   string
	Expected int64
	Got      int64
}

func (e *PacketError) Error() string {
	return fmt.Sprintf("datanode: packet %d at offset %d of %s: %s: expected %d, got %d",
		e.Seqno, e.Offset, e.Block, e.Reason, e.Expected, e.Got)
}

// A SpaceError reports that a volume has no room for a block.
type SpaceError struct {
	Dir  string
	Need int64 // bytes
	Free int64 // bytes, those promised to other writers deducted
}

func (e *SpaceError) Error() string {
	return fmt.Sprintf("datanode: no space: need %d bytes, %d are free in %s", e.Need, e.Free, e.Dir)
}

// A LockError reports a directory that another process, or another store of
// this one, has open.
type LockError struct {
	Dir    string
	Holder string // what the holder wrote about itself, such as "1234@host"; may be empty
}

func (e *LockError) Error() string {
	if e.Holder == "" {
		return fmt.Sprintf("datanode: %s is in use", e.Dir)
	}
	return fmt.Sprintf("datanode: %s is in use by process %s", e.Dir, e.Holder)
}
