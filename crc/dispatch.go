package crc

import "github.com/blockpath/blockpath/crc/asm"

func update(p asm.Poly, sum uint32, b []byte) uint32 { return asm.Update(p, sum, b) }

func put(p asm.Poly, sums, data []byte, chunk int) { asm.Put(p, sums, data, chunk) }

func verify(p asm.Poly, data, sums []byte, chunk int) int { return asm.Verify(p, data, sums, chunk) }

func copyPut(p asm.Poly, dst, sums, src []byte, chunk int, nonTemporal bool) {
	copy(dst, src)
	asm.Put(p, sums, dst, chunk)
}

func copyVerify(p asm.Poly, dst, src, sums []byte, chunk int, nonTemporal bool) int {
	copy(dst, src)
	return asm.Verify(p, dst, sums, chunk)
}
