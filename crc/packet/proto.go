package packet

import (
	"bufio"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
)

// fields walks over the fields of a protobuf message.
type fields struct {
	rest []byte // not yet walked over

	num   protowire.Number
	typ   protowire.Type
	value uint64 // of a varint or fixed-size field
	bytes []byte // of a length-delimited field

	seen uint64 // bit n: is reported field n, with its type
	err  error
}

// next decodes the next field. It returns false at the end of the message and
// at the first error, which finish reports.
func (f *fields) next() bool {
	if len(f.rest) == 0 || f.err != nil {
		return false
	}
	num, typ, n := protowire.ConsumeTag(f.rest)
	if n < 0 {
		f.err = protowire.ParseError(n)
		return false
	}
	f.num, f.typ, f.value, f.bytes = num, typ, 0, nil
	b := f.rest[n:]
	switch typ {
	case protowire.VarintType:
		f.value, n = protowire.ConsumeVarint(b)
	case protowire.Fixed32Type:
		var v uint32
		v, n = protowire.ConsumeFixed32(b)
		f.value = uint64(v)
	case protowire.Fixed64Type:
		f.value, n = protowire.ConsumeFixed64(b)
	case protowire.BytesType:
		f.bytes, n = protowire.ConsumeBytes(b)
	default:
		n = protowire.ConsumeFieldValue(num, typ, b)
	}
	if n < 0 {
		f.err = protowire.ParseError(n)
		return false
	}
	f.rest = b[n:]
	return true
}

// is reports whether the current field is the given one. A known field of
// another type is an unknown field to protobuf.
func (f *fields) is(num protowire.Number, typ protowire.Type) bool {
	if f.num != num || f.typ != typ {
		return false
	}
	f.seen |= 1 << num
	return true
}

// repeated reports whether the current field is the given repeated scalar,
// which may come packed or not, and calls add for its values.
func (f *fields) repeated(num protowire.Number, add func(uint64)) bool {
	if f.is(num, protowire.VarintType) {
		add(f.value)
		return true
	}
	if !f.is(num, protowire.BytesType) {
		return false
	}
	for b := f.bytes; len(b) > 0; {
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			f.err = protowire.ParseError(n)
			return true
		}
		add(v)
		b = b[n:]
	}
	return true
}

// fail records a nested message's error.
func (f *fields) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

// finish returns a *FormatError if the message did not parse or lacks one of
// the required fields.
func (f *fields) finish(what string, required ...protowire.Number) error {
	if f.err != nil {
		if e, ok := f.err.(*FormatError); ok {
			e.What = what + ": " + e.What
			return e
		}
		return malformed(what, 0, "a protobuf message", f.err.Error())
	}
	for _, num := range required {
		if f.seen&(1<<num) == 0 {
			return malformed(what, 0, fmt.Sprintf("field %d", num), "none")
		}
	}
	return nil
}

func appendUint(dst []byte, num protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(dst, num, protowire.VarintType), v)
}

func appendBool(dst []byte, num protowire.Number, v bool) []byte {
	return appendUint(dst, num, uint64(bit(v)))
}

func appendString(dst []byte, num protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(dst, num, protowire.BytesType), s)
}

func appendBytes(dst []byte, num protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(dst, num, protowire.BytesType), b)
}

// readDelimited reads a length and that many bytes, into buf if they fit. It
// returns io.EOF if the stream ends before the first byte, and a *FormatError
// if it ends later, if the length is not a varint32 or if it exceeds limit,
// before allocating for it.
func readDelimited(r *bufio.Reader, buf []byte, limit int, what string) ([]byte, error) {
	var length uint64
	for i := 0; ; i++ {
		b, err := r.ReadByte()
		if err != nil {
			if i == 0 {
				return nil, err
			}
			return nil, truncated(err, what+": length", 0, i+1, i)
		}
		length |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			break
		}
		if i == 4 {
			return nil, malformed(what+": length", 0, "a varint of at most 5 bytes", "more")
		}
	}
	if length > uint64(limit) {
		return nil, malformed(what+": length", 0, fmt.Sprintf("at most %d", limit), fmt.Sprint(length))
	}
	for buf = buf[:0]; len(buf) < int(length); {
		have := len(buf)
		end := min(max(2*have, firstPiece), int(length))
		if cap(buf) < end {
			buf = append(make([]byte, 0, end), buf...)
		}
		buf = buf[:end]
		if n, err := io.ReadFull(r, buf[have:]); err != nil {
			return nil, truncated(err, what, 0, int(length), have+n)
		}
	}
	return buf, nil
}

// firstPiece is how much memory a message gets before any of it has come; then
// it gets twice as much as has come.
const firstPiece = 4 << 10

// appendDelimited appends the length that the message appended by f has, and
// the message. The length takes one byte if it is below 128, so the message is
// moved only when it is longer.
func appendDelimited(dst []byte, f func([]byte) []byte) []byte {
	at := len(dst)
	dst = f(append(dst, 0))
	length := len(dst) - at - 1
	if extra := protowire.SizeVarint(uint64(length)) - 1; extra > 0 {
		dst = append(dst, make([]byte, extra)...)
		copy(dst[at+1+extra:], dst[at+1:at+1+length])
	}
	protowire.AppendVarint(dst[:at], uint64(length))
	return dst
}

// appendMessage appends a nested message.
func appendMessage(dst []byte, num protowire.Number, f func([]byte) []byte) []byte {
	return appendDelimited(protowire.AppendTag(dst, num, protowire.BytesType), f)
}
