package packet

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/blockpath/blockpath/crc"
)

// Opcodes of the operations that are known here.
const (
	OpWriteBlock    = 80
	OpReadBlock     = 81
	OpBlockChecksum = 85
	OpTransferBlock = 86
)

// DefaultMaxRequestLen bounds a request's message in bytes.
const DefaultMaxRequestLen = 1 << 20

// A Stage says what a WRITE_BLOCK is for (OpWriteBlockProto.BlockConstructionStage).
type Stage uint32

// The stages. DataStreaming and PipelineClose are states of a client and never
// sent.
const (
	SetupAppend            Stage = 0
	SetupAppendRecovery    Stage = 1
	DataStreaming          Stage = 2
	SetupStreamingRecovery Stage = 3
	PipelineClose          Stage = 4
	PipelineCloseRecovery  Stage = 5
	SetupCreate            Stage = 6
	TransferRBW            Stage = 7
	TransferFinalized      Stage = 8
)

var stageNames = [...]string{
	"PIPELINE_SETUP_APPEND", "PIPELINE_SETUP_APPEND_RECOVERY", "DATA_STREAMING", "PIPELINE_SETUP_STREAMING_RECOVERY",
	"PIPELINE_CLOSE", "PIPELINE_CLOSE_RECOVERY", "PIPELINE_SETUP_CREATE", "TRANSFER_RBW", "TRANSFER_FINALIZED",
}

// String returns the protocol's name, such as "PIPELINE_SETUP_CREATE".
func (s Stage) String() string {
	if int64(s) < int64(len(stageNames)) {
		return stageNames[s]
	}
	return fmt.Sprintf("Stage(%d)", uint32(s))
}

// A StorageType is a kind of medium (StorageTypeProto).
type StorageType uint32

// The storage types; 0 in a request means the protocol's default, Disk.
const (
	Disk     StorageType = 1
	SSD      StorageType = 2
	Archive  StorageType = 3
	RAMDisk  StorageType = 4
	Provided StorageType = 5
)

// A Token is a block token (TokenProto), all empty where tokens are off.
type Token struct {
	Identifier, Password []byte
	Kind, Service        string
}

// A DatanodeInfo is a node of a pipeline (DatanodeIDProto in a
// DatanodeInfoProto without statistics).
type DatanodeInfo struct {
	IPAddr, HostName, UUID                      string
	XferPort, InfoPort, IPCPort, InfoSecurePort uint32
}

// A Caching strategy is a hint for the datanode's page cache
// (CachingStrategyProto); nil means the datanode's default.
type Caching struct {
	DropBehind *bool
	Readahead  *int64 // bytes
}

// A Checksum is a requested checksum as it is on the wire (ChecksumProto), so
// that a request for one that does not exist can be answered.
type Checksum struct {
	Type          uint32 // 0 NULL, 1 CRC32, 2 CRC32C
	BytesPerChunk uint32
}

// ChecksumOf returns c as it is on the wire.
func ChecksumOf(c crc.Chunks) Checksum {
	return Checksum{Type: uint32(c.Kind.Wire()), BytesPerChunk: uint32(c.BytesPerChunk())}
}

// Chunks returns what c means, or a *[crc.HeaderError] for an unknown type or
// a chunk size that is not in 1..crc.MaxChunkSize.
func (c Checksum) Chunks() (crc.Chunks, error) {
	if c.Type > 255 {
		return crc.Chunks{}, &crc.HeaderError{Field: "checksum type", Got: int64(c.Type), Want: "0, 1 or 2"}
	}
	header := binary.BigEndian.AppendUint32([]byte{byte(c.Type)}, c.BytesPerChunk)
	return crc.ParseHeader(header)
}

// A WriteBlock is a request to open a pipeline (OpWriteBlockProto).
type WriteBlock struct {
	Block      Block // Stamp is the current one, NumBytes the size to reserve
	Token      Token
	TraceInfo  []byte // DataTransferTraceInfoProto, passed on as it is
	ClientName string // empty if the peer is a datanode

	Targets      []DatanodeInfo // the pipeline behind the receiver
	Source       *DatanodeInfo
	Stage        Stage
	PipelineSize uint32
	MinBytesRcvd int64 // acked so far
	MaxBytesRcvd int64 // sent so far
	LatestStamp  int64 // the new generation stamp, 0 on create
	Checksum     Checksum
	Caching      Caching

	StorageType        StorageType
	StorageID          string
	TargetStorageTypes []StorageType
	TargetStorageIDs   []string
	AllowLazyPersist   bool
	Pinning            bool
	TargetPinnings     []bool
}

// Append appends the request: version, opcode, length and message.
func (w *WriteBlock) Append(dst []byte) []byte {
	return appendRequest(dst, OpWriteBlock, func(dst []byte) []byte {
		dst = appendClientHeader(dst, w.Block, w.Token, w.TraceInfo, w.ClientName)
		for i := range w.Targets {
			dst = appendMessage(dst, 2, w.Targets[i].append)
		}
		if w.Source != nil {
			dst = appendMessage(dst, 3, w.Source.append)
		}
		dst = appendUint(dst, 4, uint64(w.Stage))
		dst = appendUint(dst, 5, uint64(w.PipelineSize))
		dst = appendUint(dst, 6, uint64(w.MinBytesRcvd))
		dst = appendUint(dst, 7, uint64(w.MaxBytesRcvd))
		dst = appendUint(dst, 8, uint64(w.LatestStamp))
		dst = appendMessage(dst, 9, w.Checksum.append)
		dst = appendMessage(dst, 10, w.Caching.append)
		dst = appendUint(dst, 11, uint64(max(w.StorageType, Disk)))
		for _, t := range w.TargetStorageTypes {
			dst = appendUint(dst, 12, uint64(t))
		}
		dst = appendBool(dst, 13, w.AllowLazyPersist)
		dst = appendBool(dst, 14, w.Pinning)
		for _, p := range w.TargetPinnings {
			dst = appendBool(dst, 15, p)
		}
		if w.StorageID != "" {
			dst = appendString(dst, 16, w.StorageID)
		}
		for _, id := range w.TargetStorageIDs {
			dst = appendString(dst, 17, id)
		}
		return dst
	})
}

func (w *WriteBlock) parse(b []byte) error {
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(1, protowire.BytesType):
			f.fail(parseClientHeader(f.bytes, &w.Block, &w.Token, &w.TraceInfo, &w.ClientName))
		case f.is(2, protowire.BytesType):
			var d DatanodeInfo
			f.fail(d.parse(f.bytes))
			w.Targets = append(w.Targets, d)
		case f.is(3, protowire.BytesType):
			w.Source = new(DatanodeInfo)
			f.fail(w.Source.parse(f.bytes))
		case f.is(4, protowire.VarintType):
			w.Stage = Stage(f.value)
		case f.is(5, protowire.VarintType):
			w.PipelineSize = uint32(f.value)
		case f.is(6, protowire.VarintType):
			w.MinBytesRcvd = int64(f.value)
		case f.is(7, protowire.VarintType):
			w.MaxBytesRcvd = int64(f.value)
		case f.is(8, protowire.VarintType):
			w.LatestStamp = int64(f.value)
		case f.is(9, protowire.BytesType):
			f.fail(w.Checksum.parse(f.bytes))
		case f.is(10, protowire.BytesType):
			f.fail(w.Caching.parse(f.bytes))
		case f.is(11, protowire.VarintType):
			w.StorageType = StorageType(f.value)
		case f.repeated(12, func(v uint64) { w.TargetStorageTypes = append(w.TargetStorageTypes, StorageType(v)) }):
		case f.is(13, protowire.VarintType):
			w.AllowLazyPersist = f.value != 0
		case f.is(14, protowire.VarintType):
			w.Pinning = f.value != 0
		case f.repeated(15, func(v uint64) { w.TargetPinnings = append(w.TargetPinnings, v != 0) }):
		case f.is(16, protowire.BytesType):
			w.StorageID = string(f.bytes)
		case f.is(17, protowire.BytesType):
			w.TargetStorageIDs = append(w.TargetStorageIDs, string(f.bytes))
		}
	}
	w.StorageType = max(w.StorageType, Disk)
	return f.finish("WRITE_BLOCK", 1, 4, 5, 6, 7, 8, 9)
}

// A ReadBlock is a request for a range of a block (OpReadBlockProto).
type ReadBlock struct {
	Block      Block
	Token      Token
	TraceInfo  []byte // DataTransferTraceInfoProto, passed on as it is
	ClientName string

	Offset        int64
	Length        int64 // below 0: up to the visible length
	SendChecksums bool
	Caching       Caching
}

// Append appends the request: version, opcode, length and message.
func (r *ReadBlock) Append(dst []byte) []byte {
	return appendRequest(dst, OpReadBlock, func(dst []byte) []byte {
		dst = appendClientHeader(dst, r.Block, r.Token, r.TraceInfo, r.ClientName)
		dst = appendUint(dst, 2, uint64(r.Offset))
		dst = appendUint(dst, 3, uint64(r.Length))
		dst = appendBool(dst, 4, r.SendChecksums)
		return appendMessage(dst, 5, r.Caching.append)
	})
}

func (r *ReadBlock) parse(b []byte) error {
	r.SendChecksums = true
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(1, protowire.BytesType):
			f.fail(parseClientHeader(f.bytes, &r.Block, &r.Token, &r.TraceInfo, &r.ClientName))
		case f.is(2, protowire.VarintType):
			r.Offset = int64(f.value)
		case f.is(3, protowire.VarintType):
			r.Length = int64(f.value)
		case f.is(4, protowire.VarintType):
			r.SendChecksums = f.value != 0
		case f.is(5, protowire.BytesType):
			f.fail(r.Caching.parse(f.bytes))
		}
	}
	return f.finish("READ_BLOCK", 1, 2, 3)
}

// ReadRequest reads a request: a *[WriteBlock], *[ReadBlock], *[BlockChecksum] or
// *[TransferBlock]. What follows it is read from the same reader; a [Receiver]
// takes it.
//
// It returns io.EOF if the stream ends before the request, a *[VersionError],
// an *[OpcodeError], or a *[FormatError] if it ends inside or the message does
// not parse, lacks a required field or is longer than maxLen bytes (0 means
// DefaultMaxRequestLen), which is checked before memory is allocated for it.
func ReadRequest(r *bufio.Reader, maxLen int) (any, error) {
	if maxLen <= 0 {
		maxLen = DefaultMaxRequestLen
	}
	var start [3]byte
	if n, err := io.ReadFull(r, start[:2]); err != nil {
		if n == 0 {
			return nil, err
		}
		return nil, truncated(err, "request: version", 0, 2, n)
	}
	if v := int16(binary.BigEndian.Uint16(start[:])); v != Version {
		return nil, &VersionError{Got: v}
	}
	if _, err := io.ReadFull(r, start[2:]); err != nil {
		return nil, truncated(err, "request: opcode", 0, 3, 2)
	}
	var request interface{ parse([]byte) error }
	switch start[2] {
	case OpWriteBlock:
		request = new(WriteBlock)
	case OpReadBlock:
		request = new(ReadBlock)
	case OpBlockChecksum:
		request = new(BlockChecksum)
	case OpTransferBlock:
		request = new(TransferBlock)
	default:
		return nil, &OpcodeError{Opcode: start[2]}
	}
	b, err := readDelimited(r, nil, maxLen, "request")
	if err != nil {
		return nil, truncated(err, "request", 0, 1, 0)
	}
	if err := request.parse(b); err != nil {
		return nil, err
	}
	return request, nil
}

func appendRequest(dst []byte, opcode byte, message func([]byte) []byte) []byte {
	dst = binary.BigEndian.AppendUint16(dst, Version)
	return appendDelimited(append(dst, opcode), message)
}

// ClientOperationHeaderProto in field 1.
func appendClientHeader(dst []byte, b Block, t Token, trace []byte, clientName string) []byte {
	return appendMessage(dst, 1, func(dst []byte) []byte {
		dst = appendMessage(dst, 1, func(dst []byte) []byte { return appendBaseHeader(dst, b, t, trace) })
		return appendString(dst, 2, clientName)
	})
}

// BaseHeaderProto.
func appendBaseHeader(dst []byte, b Block, t Token, trace []byte) []byte {
	dst = appendMessage(dst, 1, b.append)
	dst = appendMessage(dst, 2, t.append)
	if trace != nil {
		dst = appendBytes(dst, 3, trace)
	}
	return dst
}

func parseClientHeader(b []byte, block *Block, token *Token, trace *[]byte, clientName *string) error {
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(1, protowire.BytesType):
			f.fail(parseBaseHeader(f.bytes, block, token, trace))
		case f.is(2, protowire.BytesType):
			*clientName = string(f.bytes)
		}
	}
	return f.finish("client header", 1, 2)
}

func parseBaseHeader(b []byte, block *Block, token *Token, trace *[]byte) error {
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(1, protowire.BytesType):
			f.fail(block.parse(f.bytes))
		case f.is(2, protowire.BytesType):
			f.fail(token.parse(f.bytes))
		case f.is(3, protowire.BytesType):
			*trace = f.bytes
		}
	}
	return f.finish("base header", 1)
}

func (b Block) append(dst []byte) []byte {
	dst = appendString(dst, 1, b.Pool)
	dst = appendUint(dst, 2, uint64(b.ID))
	dst = appendUint(dst, 3, uint64(b.Stamp))
	return appendUint(dst, 4, uint64(b.NumBytes))
}

func (b *Block) parse(p []byte) error {
	f := fields{rest: p}
	for f.next() {
		switch {
		case f.is(1, protowire.BytesType):
			b.Pool = string(f.bytes)
		case f.is(2, protowire.VarintType):
			b.ID = int64(f.value)
		case f.is(3, protowire.VarintType):
			b.Stamp = int64(f.value)
		case f.is(4, protowire.VarintType):
			b.NumBytes = int64(f.value)
		}
	}
	return f.finish("block", 1, 2, 3)
}

func (t Token) append(dst []byte) []byte {
	dst = appendBytes(dst, 1, t.Identifier)
	dst = appendBytes(dst, 2, t.Password)
	dst = appendString(dst, 3, t.Kind)
	return appendString(dst, 4, t.Service)
}

func (t *Token) parse(b []byte) error {
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(1, protowire.BytesType):
			t.Identifier = f.bytes
		case f.is(2, protowire.BytesType):
			t.Password = f.bytes
		case f.is(3, protowire.BytesType):
			t.Kind = string(f.bytes)
		case f.is(4, protowire.BytesType):
			t.Service = string(f.bytes)
		}
	}
	return f.finish("token", 1, 2, 3, 4)
}

func (d *DatanodeInfo) append(dst []byte) []byte {
	return appendMessage(dst, 1, func(dst []byte) []byte {
		dst = appendString(dst, 1, d.IPAddr)
		dst = appendString(dst, 2, d.HostName)
		dst = appendString(dst, 3, d.UUID)
		dst = appendUint(dst, 4, uint64(d.XferPort))
		dst = appendUint(dst, 5, uint64(d.InfoPort))
		dst = appendUint(dst, 6, uint64(d.IPCPort))
		return appendUint(dst, 7, uint64(d.InfoSecurePort))
	})
}

func (d *DatanodeInfo) parse(b []byte) error {
	f := fields{rest: b}
	for f.next() {
		if f.is(1, protowire.BytesType) {
			f.fail(d.parseID(f.bytes))
		}
	}
	return f.finish("datanode", 1)
}

func (d *DatanodeInfo) parseID(b []byte) error {
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(1, protowire.BytesType):
			d.IPAddr = string(f.bytes)
		case f.is(2, protowire.BytesType):
			d.HostName = string(f.bytes)
		case f.is(3, protowire.BytesType):
			d.UUID = string(f.bytes)
		case f.is(4, protowire.VarintType):
			d.XferPort = uint32(f.value)
		case f.is(5, protowire.VarintType):
			d.InfoPort = uint32(f.value)
		case f.is(6, protowire.VarintType):
			d.IPCPort = uint32(f.value)
		case f.is(7, protowire.VarintType):
			d.InfoSecurePort = uint32(f.value)
		}
	}
	return f.finish("datanode id", 1, 2, 3, 4, 5, 6)
}

func (c Checksum) append(dst []byte) []byte {
	dst = appendUint(dst, 1, uint64(c.Type))
	return appendUint(dst, 2, uint64(c.BytesPerChunk))
}

func (c *Checksum) parse(b []byte) error {
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(1, protowire.VarintType):
			c.Type = uint32(min(f.value, 1<<32-1))
		case f.is(2, protowire.VarintType):
			c.BytesPerChunk = uint32(f.value)
		}
	}
	return f.finish("checksum", 1, 2)
}

func (c Caching) append(dst []byte) []byte {
	if c.DropBehind != nil {
		dst = appendBool(dst, 1, *c.DropBehind)
	}
	if c.Readahead != nil {
		dst = appendUint(dst, 2, uint64(*c.Readahead))
	}
	return dst
}

func (c *Caching) parse(b []byte) error {
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(1, protowire.VarintType):
			v := f.value != 0
			c.DropBehind = &v
		case f.is(2, protowire.VarintType):
			v := int64(f.value)
			c.Readahead = &v
		}
	}
	return f.finish("caching strategy")
}
