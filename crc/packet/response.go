package packet

import (
	"bufio"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/blockpath/blockpath/crc"
)

// maxResponseLen bounds a response in bytes.
const maxResponseLen = 64 << 10

// A BlockOpResponse answers a request (BlockOpResponseProto).
type BlockOpResponse struct {
	Status          Status
	FirstBadLink    string // transfer address of the node that failed
	HasFirstBadLink bool   // a success of WRITE_BLOCK has it, and empty
	BlockChecksum   *BlockChecksumInfo
	ReadChecksum    *ReadChecksumInfo
	Message         string
}

// A ReadChecksumInfo tells the reader of a block how to verify
// (ReadOpChecksumInfoProto).
type ReadChecksumInfo struct {
	Chunks      crc.Chunks
	ChunkOffset int64 // block offset of the first byte that will be sent
}

// Append appends the response and before it its length.
func (r *BlockOpResponse) Append(dst []byte) []byte {
	return appendDelimited(dst, func(dst []byte) []byte {
		dst = appendUint(dst, 1, uint64(r.Status))
		if r.HasFirstBadLink {
			dst = appendString(dst, 2, r.FirstBadLink)
		}
		if r.BlockChecksum != nil {
			dst = appendMessage(dst, 3, r.BlockChecksum.append)
		}
		if info := r.ReadChecksum; info != nil {
			dst = appendMessage(dst, 4, func(dst []byte) []byte {
				dst = appendMessage(dst, 1, ChecksumOf(info.Chunks).append)
				return appendUint(dst, 2, uint64(info.ChunkOffset))
			})
		}
		if r.Message != "" {
			dst = appendString(dst, 5, r.Message)
		}
		return dst
	})
}

// ReadBlockOpResponse reads a response. It returns io.EOF if the stream ends
// before it, a *[FormatError] if it ends inside or the response is malformed
// or longer than 64 KiB, and a *[crc.HeaderError] for an unknown checksum.
func ReadBlockOpResponse(r *bufio.Reader) (BlockOpResponse, error) {
	b, err := readDelimited(r, nil, maxResponseLen, "response")
	if err != nil {
		return BlockOpResponse{}, err
	}
	var res BlockOpResponse
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(1, protowire.VarintType):
			res.Status = clampStatus(f.value)
		case f.is(2, protowire.BytesType):
			res.FirstBadLink, res.HasFirstBadLink = string(f.bytes), true
		case f.is(3, protowire.BytesType):
			res.BlockChecksum = new(BlockChecksumInfo)
			f.fail(res.BlockChecksum.parse(f.bytes))
		case f.is(4, protowire.BytesType):
			res.ReadChecksum = new(ReadChecksumInfo)
			f.fail(res.ReadChecksum.parse(f.bytes))
		case f.is(5, protowire.BytesType):
			res.Message = string(f.bytes)
		}
	}
	if _, ok := f.err.(*crc.HeaderError); ok {
		return BlockOpResponse{}, f.err
	}
	if err := f.finish("response", 1); err != nil {
		return BlockOpResponse{}, err
	}
	return res, nil
}

func (i *ReadChecksumInfo) parse(b []byte) error {
	var c Checksum
	f := fields{rest: b}
	for f.next() {
		switch {
		case f.is(1, protowire.BytesType):
			f.fail(c.parse(f.bytes))
		case f.is(2, protowire.VarintType):
			i.ChunkOffset = int64(f.value)
		}
	}
	if err := f.finish("checksum info", 1, 2); err != nil {
		return err
	}
	if i.ChunkOffset < 0 {
		return malformed("checksum info: chunkOffset", 0, "at least 0", fmt.Sprint(i.ChunkOffset))
	}
	var err error
	i.Chunks, err = c.Chunks()
	return err
}

// AppendReadStatus appends what a client says after a read
// (ClientReadStatusProto): ChecksumOK if it verified everything, Success if it
// did not verify, ErrorChecksum if a chunk was bad.
func AppendReadStatus(dst []byte, s Status) []byte {
	return appendDelimited(dst, func(dst []byte) []byte { return appendUint(dst, 1, uint64(s)) })
}

// ReadReadStatus reads what AppendReadStatus makes. It returns io.EOF if the
// stream ends before it and a *[FormatError] if it is malformed.
func ReadReadStatus(r *bufio.Reader) (Status, error) {
	b, err := readDelimited(r, nil, maxAckLen, "read status")
	if err != nil {
		return 0, err
	}
	var s Status
	f := fields{rest: b}
	for f.next() {
		if f.is(1, protowire.VarintType) {
			s = clampStatus(f.value)
		}
	}
	return s, f.finish("read status", 1)
}
