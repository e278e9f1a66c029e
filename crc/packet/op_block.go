package packet

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/blockpath/blockpath/crc"
)

// A ChecksumType says what a BLOCK_CHECKSUM makes of the checksums of a block's
// chunks (BlockChecksumTypeProto).
type ChecksumType uint32

// The checksum types; 0 in a request means the protocol's default, MD5CRC.
const (
	MD5CRC       ChecksumType = 1 // the MD5 of the checksums as they are stored
	CompositeCRC ChecksumType = 2 // the CRC of the block's data
)

// String returns the protocol's name, such as "COMPOSITE_CRC".
func (t ChecksumType) String() string {
	switch t {
	case MD5CRC:
		return "MD5CRC"
	case CompositeCRC:
		return "COMPOSITE_CRC"
	}
	return fmt.Sprintf("ChecksumType(%d)", uint32(t))
}

// A BlockChecksum is a request for the checksum of a block
// (OpBlockChecksumProto). If Block.NumBytes is less than the block has, the
// checksum is that of so many bytes.
type BlockChecksum struct {
	Block     Block
	Token     Token
	TraceInfo []byte // DataTransferTraceInfoProto, passed on as it is

	Type         ChecksumType
	StripeLength int64 // bytes; a COMPOSITE_CRC is made for each, 0 means the whole block
}

// Append appends the request: version, opcode, length and message.
func (r *BlockChecksum) Append(dst []byte) []byte {
	return appendRequest(dst, OpBlockChecksum, func(dst []byte) []byte {
		dst = appendMessage(dst, 1, func(dst []byte) []byte {
			return appendBaseHeader(dst, r.Block, r.Token, r.TraceInfo)
		})
		return appendMessage(dst, 2, checksumOptions{r.Type, r.StripeLength}.append)
	})
}

func (r *BlockChecksum) parse(b []byte) error {
	var options checksumOptions
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(1, protowire.BytesType):
			f.fail(parseBaseHeader(f.bytes, &r.Block, &r.Token, &r.TraceInfo))
		case f.is(2, protowire.BytesType):
			f.fail(options.parse(f.bytes))
		}
	}
	r.Type, r.StripeLength = max(options.kind, MD5CRC), options.stripeLength
	return f.finish("BLOCK_CHECKSUM", 1)
}

// BlockChecksumOptionsProto.
type checksumOptions struct {
	kind         ChecksumType
	stripeLength int64
}

func (o checksumOptions) append(dst []byte) []byte {
	dst = appendUint(dst, 1, uint64(max(o.kind, MD5CRC)))
	return appendUint(dst, 2, uint64(o.stripeLength))
}

func (o *checksumOptions) parse(b []byte) error {
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(1, protowire.VarintType):
			o.kind = ChecksumType(min(f.value, 1<<32-1))
		case f.is(2, protowire.VarintType):
			o.stripeLength = int64(f.value)
		}
	}
	return f.finish("checksum options")
}

// A BlockChecksumInfo is the checksum of a block, in the response to a
// BLOCK_CHECKSUM (OpBlockChecksumResponseProto).
type BlockChecksumInfo struct {
	Chunks         crc.Chunks
	ChunksPerBlock int64  // how many checksums the block has stored, 0 if it has none
	Checksum       []byte // 16 bytes of MD5, or 4 for every stripe of a COMPOSITE_CRC
	Type           ChecksumType
	StripeLength   int64 // as in the request
}

func (i *BlockChecksumInfo) append(dst []byte) []byte {
	c := ChecksumOf(i.Chunks)
	dst = appendUint(dst, 1, uint64(c.BytesPerChunk))
	dst = appendUint(dst, 2, uint64(i.ChunksPerBlock))
	dst = appendBytes(dst, 3, i.Checksum)
	dst = appendUint(dst, 4, uint64(c.Type))
	return appendMessage(dst, 5, checksumOptions{i.Type, i.StripeLength}.append)
}

func (i *BlockChecksumInfo) parse(b []byte) error {
	// A datanode that does not name the type has CRC32: it is older than others.
	c := Checksum{Type: uint32(crc.CRC32.Wire())}
	var options checksumOptions
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(1, protowire.VarintType):
			c.BytesPerChunk = uint32(min(f.value, 1<<32-1))
		case f.is(2, protowire.VarintType):
			i.ChunksPerBlock = int64(f.value)
		case f.is(3, protowire.BytesType):
			i.Checksum = f.bytes
		case f.is(4, protowire.VarintType):
			c.Type = uint32(min(f.value, 1<<32-1))
		case f.is(5, protowire.BytesType):
			f.fail(options.parse(f.bytes))
		}
	}
	i.Type, i.StripeLength = max(options.kind, MD5CRC), options.stripeLength
	if err := f.finish("checksum response", 1, 2, 3); err != nil {
		return err
	}
	var err error
	i.Chunks, err = c.Chunks()
	return err
}

// A TransferBlock is a request to a datanode to copy a replica to others
// (OpTransferBlockProto): a client that has lost nodes of a pipeline makes it
// longer again in this way. A finalized replica becomes a finalized one, one that
// is being written an unfinished one.
type TransferBlock struct {
	Block      Block // Stamp is the least that the replica has to have
	Token      Token
	TraceInfo  []byte // DataTransferTraceInfoProto, passed on as it is
	ClientName string

	Targets            []DatanodeInfo // a pipeline
	TargetStorageTypes []StorageType
	TargetStorageIDs   []string
}

// Append appends the request: version, opcode, length and message.
func (r *TransferBlock) Append(dst []byte) []byte {
	return appendRequest(dst, OpTransferBlock, func(dst []byte) []byte {
		dst = appendClientHeader(dst, r.Block, r.Token, r.TraceInfo, r.ClientName)
		for i := range r.Targets {
			dst = appendMessage(dst, 2, r.Targets[i].append)
		}
		for _, t := range r.TargetStorageTypes {
			dst = appendUint(dst, 3, uint64(t))
		}
		for _, id := range r.TargetStorageIDs {
			dst = appendString(dst, 4, id)
		}
		return dst
	})
}

func (r *TransferBlock) parse(b []byte) error {
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(1, protowire.BytesType):
			f.fail(parseClientHeader(f.bytes, &r.Block, &r.Token, &r.TraceInfo, &r.ClientName))
		case f.is(2, protowire.BytesType):
			var d DatanodeInfo
			f.fail(d.parse(f.bytes))
			r.Targets = append(r.Targets, d)
		case f.repeated(3, func(v uint64) { r.TargetStorageTypes = append(r.TargetStorageTypes, StorageType(v)) }):
		case f.is(4, protowire.BytesType):
			r.TargetStorageIDs = append(r.TargetStorageIDs, string(f.bytes))
		}
	}
	return f.finish("TRANSFER_BLOCK", 1)
}
