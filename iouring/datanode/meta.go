//go:build linux || darwin

package datanode

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"github.com/blockpath/blockpath/crc"
)

// MetaVersion is the version that a .meta file begins with. Readers of HDFS
// warn about another version and go on; so does this package.
const MetaVersion = 1

// MetaHeaderLen is the length in bytes of an encoded [MetaHeader].
const MetaHeaderLen = 2 + crc.HeaderLen

// A MetaHeader is the head of a .meta file. The checksums of the block follow
// it, one per chunk.
//
//	offset  size  field
//	0       2     version, big-endian int16, 1
//	2       1     checksum type: 0 none, 1 CRC32, 2 CRC32C
//	3       4     bytes per checksum, big-endian int32
//	7       4·n   checksums, big-endian uint32 each (none for type 0)
type MetaHeader struct {
	Version int16
	Chunks  crc.Chunks
}

// Append appends the header, [MetaHeaderLen] bytes, to dst.
func (h MetaHeader) Append(dst []byte) []byte {
	return h.Chunks.AppendHeader(binary.BigEndian.AppendUint16(dst, uint16(h.Version)))
}

// ParseMetaHeader decodes the head of a .meta file from the first
// [MetaHeaderLen] bytes of b. Fewer bytes, an unknown checksum type and a
// chunk size outside 1..crc.MaxChunkSize give a *[MetaError] without a file
// name.
func ParseMetaHeader(b []byte) (MetaHeader, error) {
	if len(b) < MetaHeaderLen {
		return MetaHeader{}, &MetaError{Reason: "the header is cut short", Expected: MetaHeaderLen, Got: int64(len(b))}
	}
	chunks, err := crc.ParseHeader(b[2:])
	if err != nil {
		return MetaHeader{}, &MetaError{Reason: "the checksum header is invalid", Err: err}
	}
	return MetaHeader{Version: int16(binary.BigEndian.Uint16(b)), Chunks: chunks}, nil
}

// readMetaHeader reads the head of an open .meta file.
func readMetaHeader(f *os.File) (MetaHeader, error) {
	var b [MetaHeaderLen]byte
	n, err := f.ReadAt(b[:], 0)
	if err != nil && err != io.EOF {
		return MetaHeader{}, err
	}
	h, err := ParseMetaHeader(b[:n])
	if err != nil {
		err.(*MetaError).File = f.Name()
		return MetaHeader{}, err
	}
	return h, nil
}

// metaLen returns the length of the .meta file of n bytes of data.
func metaLen(c crc.Chunks, n int64) int64 {
	return MetaHeaderLen + c.Count(n)*int64(c.Kind.Size())
}

// sumOffset returns where the checksum of the chunk that starts at block
// offset off, a multiple of the chunk size, stands in the .meta file.
func sumOffset(c crc.Chunks, off int64) int64 {
	return MetaHeaderLen + off/int64(c.BytesPerChunk())*int64(c.Kind.Size())
}

// A MetaError reports a .meta file that cannot be used. Unwrap gives the
// *crc.HeaderError of an invalid checksum header.
type MetaError struct {
	File     string
	Reason   string
	Expected int64 // bytes, when the file is too short; else 0
	Got      int64
	Err      error
}

func (e *MetaError) Error() string {
	s := "datanode: "
	if e.File != "" {
		s += e.File + ": "
	}
	s += e.Reason
	if e.Err != nil {
		return s + ": " + e.Err.Error()
	}
	return s + fmt.Sprintf(": expected %d bytes, got %d", e.Expected, e.Got)
}

func (e *MetaError) Unwrap() error { return e.Err }
