package crc

import (
	"encoding/binary"
	"fmt"
)

// DefaultChunkSize is the chunk size of a zero [Chunks], HDFS's
// dfs.bytes-per-checksum.
const DefaultChunkSize = 512

// MaxChunkSize is the largest chunk size that [ParseHeader] accepts: a chunk
// travels in one packet, and no packet is longer than 16 MiB.
const MaxChunkSize = 16 << 20

// HeaderLen is the length in bytes of an encoded checksum header.
const HeaderLen = 5

// Chunks describes how data is checksummed: a CRC of the given kind over every
// Size bytes, counted from the start of the buffer, the last chunk possibly
// shorter. The zero value is CRC32C over 512 bytes. Sums are big-endian, one
// after another, [Kind.Size] bytes each.
//
// Source, destination and sums of one call must not overlap, except that
// CopyPut and CopyVerify allow the destination to be exactly the source.
type Chunks struct {
	Kind Kind
	Size int // bytes per chunk; 0 means DefaultChunkSize

	// NonTemporal lets CopyPut and CopyVerify write around the cache. It pays
	// when the destination is larger than the last-level cache and is not read
	// soon; a packet about to be sent must stay in cache.
	NonTemporal bool
}

// BytesPerChunk returns the chunk size with the default applied. It panics if
// Size is negative.
func (c Chunks) BytesPerChunk() int {
	if c.Size == 0 {
		return DefaultChunkSize
	}
	if c.Size < 0 {
		panic(fmt.Sprintf("crc: negative chunk size %d", c.Size))
	}
	return c.Size
}

// Count returns how many chunks n bytes of data have, the last one possibly
// short. It panics if n is negative.
func (c Chunks) Count(n int64) int64 {
	if n < 0 {
		panic(fmt.Sprintf("crc: negative data length %d", n))
	}
	size := int64(c.BytesPerChunk())
	count := n / size
	if n%size != 0 {
		count++
	}
	return count
}

// SumsLen returns the length in bytes of the checksums of n bytes of data.
func (c Chunks) SumsLen(n int) int {
	return int(c.Count(int64(n))) * c.Kind.Size()
}

// Put writes the checksums of data to sums and returns their length in bytes,
// SumsLen(len(data)). It panics if sums is shorter.
func (c Chunks) Put(sums, data []byte) int {
	n := c.SumsLen(len(data))
	if len(sums) < n {
		panic(fmt.Sprintf("crc: Put: %d bytes for sums, need %d for %d bytes of data", len(sums), n, len(data)))
	}
	if n > 0 {
		put(c.Kind.poly(), sums[:n], data, c.BytesPerChunk())
	}
	return n
}

// Append appends the checksums of data to dst and returns the extended slice.
// It allocates if dst has no room.
func (c Chunks) Append(dst, data []byte) []byte {
	at, n := len(dst), c.SumsLen(len(data))
	if cap(dst)-at < n {
		dst = append(dst, make([]byte, n)...)
	} else {
		dst = dst[:at+n]
	}
	c.Put(dst[at:], data)
	return dst
}

// Verify checks data against sums. It returns nil if every chunk's checksum
// agrees, a *[MismatchError] for the first one that does not, or a
// *[LengthError] if len(sums) is not SumsLen(len(data)). offset is data's
// position in its block or file; the error's offsets are relative to that
// block or file.
func (c Chunks) Verify(data, sums []byte, offset int64) error {
	if err := c.checkLen(data, sums, offset); err != nil || len(sums) == 0 {
		return err
	}
	if i := verify(c.Kind.poly(), data, sums, c.BytesPerChunk()); i >= 0 {
		return c.mismatch(data, sums, offset, i)
	}
	return nil
}

// CopyPut copies src to dst and writes the checksums of src to sums in the
// same pass. It returns the length of the checksums in bytes. It panics if dst
// is shorter than src or sums shorter than SumsLen(len(src)).
func (c Chunks) CopyPut(dst, sums, src []byte) int {
	n := c.SumsLen(len(src))
	if len(dst) < len(src) || len(sums) < n {
		panic(fmt.Sprintf("crc: CopyPut: destination %d and sums %d bytes, need %d and %d", len(dst), len(sums), len(src), n))
	}
	if n > 0 {
		copyPut(c.Kind.poly(), dst[:len(src)], sums[:n], src, c.BytesPerChunk(), c.NonTemporal)
	} else {
		copy(dst, src)
	}
	return n
}

// CopyVerify copies src to dst and checks it against sums in the same pass. It
// returns the length of the verified prefix, which is len(src) or, with a
// *[MismatchError], the start of the first bad chunk; what was copied beyond
// it is cleared, so unverified bytes never reach the caller. If sums and src
// do not fit each other it copies nothing and returns 0 and a *[LengthError].
// It panics if dst is shorter than src. offset is as in [Chunks.Verify].
//
// If dst is src and a chunk is bad, src is cleared from that chunk on.
func (c Chunks) CopyVerify(dst, src, sums []byte, offset int64) (int, error) {
	if len(dst) < len(src) {
		panic(fmt.Sprintf("crc: CopyVerify: destination %d bytes, need %d", len(dst), len(src)))
	}
	dst = dst[:len(src)]
	if err := c.checkLen(src, sums, offset); err != nil {
		return 0, err
	}
	if len(sums) == 0 {
		return copy(dst, src), nil
	}
	i := copyVerify(c.Kind.poly(), dst, src, sums, c.BytesPerChunk(), c.NonTemporal)
	if i < 0 {
		return len(src), nil
	}
	err := c.mismatch(src, sums, offset, i)
	good := i * c.BytesPerChunk()
	clear(dst[good:])
	return good, err
}

// AppendMismatches checks all of data against sums in one pass and appends a
// [MismatchError] to dst for every chunk that does not verify, in order. It
// allocates only to extend dst. The error is a *[LengthError], as for
// [Chunks.Verify]. offset is as in [Chunks.Verify].
func (c Chunks) AppendMismatches(dst []MismatchError, data, sums []byte, offset int64) ([]MismatchError, error) {
	if err := c.checkLen(data, sums, offset); err != nil || len(sums) == 0 {
		return dst, err
	}
	p, size := c.Kind.poly(), min(c.BytesPerChunk(), len(data))
	const window = 64
	var computed [4 * window]byte
	for at := 0; at < len(sums); at += len(computed) {
		expected := sums[at:min(at+len(computed), len(sums))]
		from := at / 4 * size
		to := len(data)
		if len(data)-from > window*size {
			to = from + window*size
		}
		got := computed[:len(expected)]
		put(p, got, data[from:to], size)
		if string(got) == string(expected) {
			continue
		}
		for i := 0; i < len(got); i += 4 {
			want, have := binary.BigEndian.Uint32(expected[i:]), binary.BigEndian.Uint32(got[i:])
			if want != have {
				start := from + i/4*size
				dst = append(dst, MismatchError{c.Kind, offset + int64(start), min(size, len(data)-start), want, have})
			}
		}
	}
	return dst, nil
}

func (c Chunks) checkLen(data, sums []byte, offset int64) error {
	if want := c.SumsLen(len(data)); len(sums) != want {
		return &LengthError{Offset: offset, Data: len(data), Expected: want, Got: len(sums)}
	}
	return nil
}

// mismatch describes chunk i of data, which failed to verify.
func (c Chunks) mismatch(data, sums []byte, offset int64, i int) *MismatchError {
	at := i * c.BytesPerChunk()
	chunk := data[at:min(at+c.BytesPerChunk(), len(data))]
	return &MismatchError{
		Kind:     c.Kind,
		Offset:   offset + int64(at),
		Length:   len(chunk),
		Expected: binary.BigEndian.Uint32(sums[4*i:]),
		Computed: Checksum(c.Kind, chunk),
	}
}

// AppendHeader appends the checksum header, HeaderLen bytes: the type's wire
// id, then the chunk size as a big-endian int32 (DataChecksum.writeHeader).
func (c Chunks) AppendHeader(dst []byte) []byte {
	return binary.BigEndian.AppendUint32(append(dst, c.Kind.Wire()), uint32(c.BytesPerChunk()))
}

// ParseHeader decodes a checksum header from the first HeaderLen bytes of b.
// An unknown type, or a chunk size that is not in 1..MaxChunkSize, gives a
// *[HeaderError], and so does a shorter b.
func ParseHeader(b []byte) (Chunks, error) {
	if len(b) < HeaderLen {
		return Chunks{}, &HeaderError{Field: "length", Got: int64(len(b)), Want: "5 bytes"}
	}
	kind, err := KindFromWire(b[0])
	if err != nil {
		return Chunks{}, err
	}
	size := int32(binary.BigEndian.Uint32(b[1:]))
	if size <= 0 || size > MaxChunkSize {
		return Chunks{}, &HeaderError{Field: "bytes per checksum", Got: int64(size), Want: "1..16777216"}
	}
	return Chunks{Kind: kind, Size: int(size)}, nil
}
