package packet

import (
	"fmt"

	"github.com/blockpath/blockpath/crc"
)

// Sizes in bytes, as HDFS has them.
const (
	MaxHeaderLen      = 33       // PLEN, HLEN and the longest header that Append makes
	MaxPacketLen      = 16 << 20 // default bound of PLEN + HLEN (dfs.data.transfer.max.packet.size)
	DefaultPacketSize = 65536    // dfs.client-write-packet-size

	lengthsLen   = 6  // PLEN and HLEN
	fixedLen     = 25 // header without syncBlock
	fixedSyncLen = 27 // header with syncBlock
)

// Sequence numbers that are not a packet's own.
const (
	HeartbeatSeqno = -1
	UnknownSeqno   = -2 // in acks that answer no packet in particular
)

// Version is the version of the data transfer protocol.
const Version = 28

// A Block names a block replica (ExtendedBlockProto).
type Block struct {
	Pool     string // block pool id, BP-...
	ID       int64
	Stamp    int64 // generation stamp
	NumBytes int64 // length, or in a request for a new block the size to reserve
}

// String returns pool:blk_ID_STAMP, as Hadoop prints it.
func (b Block) String() string { return fmt.Sprintf("%s:blk_%d_%d", b.Pool, b.ID, b.Stamp) }

// A Status is an operation's or a packet's outcome.
type Status uint8

// The statuses of the protocol (datatransfer.proto).
const (
	Success Status = iota
	Error
	ErrorChecksum
	ErrorInvalid
	ErrorExists
	ErrorAccessToken
	ChecksumOK
	ErrorUnsupported
	OOBRestart
	OOBReserved1
	OOBReserved2
	OOBReserved3
	InProgress
	ErrorBlockPinned
)

var statusNames = [...]string{
	"SUCCESS", "ERROR", "ERROR_CHECKSUM", "ERROR_INVALID", "ERROR_EXISTS", "ERROR_ACCESS_TOKEN", "CHECKSUM_OK",
	"ERROR_UNSUPPORTED", "OOB_RESTART", "OOB_RESERVED1", "OOB_RESERVED2", "OOB_RESERVED3", "IN_PROGRESS",
	"ERROR_BLOCK_PINNED",
}

// String returns the protocol's name, such as "ERROR_CHECKSUM".
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("Status(%d)", uint8(s))
}

// PacketChunks returns how many chunks a packet holds whose buffer, header
// room included, is to be at most size bytes: as many as fit, at least one
// (the rule since HDFS-7308). A size above MaxPacketLen counts as
// MaxPacketLen.
func PacketChunks(size int, c crc.Chunks) int {
	body := min(size, MaxPacketLen) - MaxHeaderLen
	return max(body/(c.BytesPerChunk()+c.Kind.Size()), 1)
}
