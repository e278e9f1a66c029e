package packet

import (
	"fmt"
	"io"
)

// A FormatError reports bytes of the peer that do not follow the protocol. The
// connection is of no further use.
type FormatError struct {
	What     string // the message and the field, such as "packet header: dataLen"
	Offset   int64  // where: bytes since the receiver began to read; for offsets in a block, that offset
	Expected string
	Got      string
	Err      error // io.ErrUnexpectedEOF if the stream ended inside a message, or nil
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("packet: %s at offset %d: expected %s, got %s", e.What, e.Offset, e.Expected, e.Got)
}

// Unwrap returns Err.
func (e *FormatError) Unwrap() error { return e.Err }

// A VersionError reports a request of another protocol version.
type VersionError struct {
	Got int16
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("packet: data transfer version %d, expected %d", e.Got, Version)
}

// An OpcodeError reports a request for an operation that is not known here.
type OpcodeError struct {
	Opcode byte
}

func (e *OpcodeError) Error() string {
	return fmt.Sprintf("packet: unknown operation %d, expected %d, %d, %d or %d",
		e.Opcode, OpWriteBlock, OpReadBlock, OpBlockChecksum, OpTransferBlock)
}

func malformed(what string, offset int64, expected, got string) *FormatError {
	return &FormatError{What: what, Offset: offset, Expected: expected, Got: got}
}

// truncated turns the end of the stream inside a message into a *FormatError;
// other errors of the stream stay as they are.
func truncated(err error, what string, offset int64, need, got int) error {
	if err != io.EOF && err != io.ErrUnexpectedEOF {
		return err
	}
	return &FormatError{
		What: what, Offset: offset,
		Expected: fmt.Sprintf("%d bytes", need), Got: fmt.Sprintf("%d and the end of the stream", got),
		Err: io.ErrUnexpectedEOF,
	}
}
