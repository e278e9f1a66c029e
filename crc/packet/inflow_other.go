//go:build !linux

package packet

import "io"

// A socket is one that can be told when to wake its reader; there are none.
type socket struct{}

func socketOf(io.Reader) *socket { return nil }

func (*socket) read([]byte, int64) (int, error) { return 0, nil }

func (*socket) reset() {}
