//go:build !purego

package crc

import "github.com/blockpath/blockpath/crc/asm"

var every = []operation{opUpdate, opPut, opVerify, opCopyPut, opCopyVerify}

var rules = []rule{
	{asm.CRC32, asm.Castagnoli, every},
	{asm.CRC32, asm.IEEE, every},
}
