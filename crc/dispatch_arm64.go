//go:build !purego

package crc

import "github.com/blockpath/blockpath/crc/asm"

var rules = [...]rule{
	{asm.CRC32, asm.Castagnoli, long, 0, 0},
	{asm.CRC32, asm.Castagnoli, bulk, 0, 0},
	{asm.CRC32, asm.Castagnoli, copying, 0, 0},
	{asm.CRC32, asm.IEEE, long, 0, 0},
	{asm.CRC32, asm.IEEE, bulk, 0, 0},
	{asm.CRC32, asm.IEEE, copying, 0, 0},
}
