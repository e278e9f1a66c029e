//go:build !purego

package crc

import (
	"slices"

	"github.com/blockpath/blockpath/crc/asm"
)

var allOps = slices.Concat(long, bulk, copying)

// Nothing here is measured: no such CPU was at hand. What the kernels' loops
// should reach is modelled (bench/results/modelled), and which core gets which
// kernel stands in package asm. A kernel uses the CRC instructions alone where
// data is too short for more.
var rules = [...]rule{
	{asm.CRC32, asm.Castagnoli, allOps, 0, 0},
	{asm.CRC32, asm.IEEE, allOps, 0, 0},
	{asm.PMULL, asm.Castagnoli, allOps, 0, 0},
	{asm.PMULL, asm.IEEE, allOps, 0, 0},
	{asm.PMULLV6S4, asm.Castagnoli, allOps, 0, 0},
	{asm.PMULLV6S4, asm.IEEE, allOps, 0, 0},
	{asm.PMULLV9S3, asm.Castagnoli, allOps, 0, 0},
	{asm.PMULLV9S3, asm.IEEE, allOps, 0, 0},
	{asm.PMULLEOR3, asm.Castagnoli, allOps, 0, 0},
	{asm.PMULLEOR3, asm.IEEE, allOps, 0, 0},
}
