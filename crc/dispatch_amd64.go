//go:build !purego

package crc

import "github.com/blockpath/blockpath/crc/asm"

var every = []operation{opUpdate, opPut, opVerify, opCopyPut, opCopyVerify}

var rules = []rule{
	{asm.SSE42, asm.Castagnoli, every},
}
