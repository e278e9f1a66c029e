//go:build (amd64 || arm64) && !purego

package crc

// The operations that rules are for.
var (
	bulk    = []operation{opPut, opVerify}
	copying = []operation{opCopyPut, opCopyVerify}
	long    = []operation{opUpdate}
)
