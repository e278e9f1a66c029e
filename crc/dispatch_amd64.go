//go:build !purego

package crc

import "github.com/blockpath/blockpath/crc/asm"

var rules = [...]rule{
	{asm.SSE42, asm.Castagnoli, long, 0, 0},
	{asm.SSE42, asm.Castagnoli, bulk, 0, 0},
	{asm.SSE42, asm.Castagnoli, copying, 0, 0},
}
