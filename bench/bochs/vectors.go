//go:build linux && amd64

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"syscall"

	"github.com/blockpath/blockpath/crc/asm"
)

type operation int

const (
	update operation = iota
	put
	verify
	copyPut
	copyPutNonTemporal
	copyVerify
	operations
)

func (o operation) String() string {
	return [...]string{"update", "put", "verify", "copyput", "copyput non-temporal", "copyverify"}[o]
}

// A vector is one call of a kernel's method and what has to come of it. It is
// complete before the snapshot: running it needs nothing of Go's runtime.
type vector struct {
	kernel  asm.Kernel
	poly    asm.Poly
	op      operation
	chunk   int
	n       int
	atStart bool   // whether the buffers begin or end at a page that faults
	bad     int    // the chunk whose checksum is wrong, -1 for none
	sum     uint32 // what Update continues
	want    []byte // the checksums, big-endian
}

func (v *vector) String() string {
	return fmt.Sprintf("%s, %s of %d bytes of %s, chunk size %d, at the start of a page %v, bad chunk %d",
		v.kernel.Name(), v.op, v.n, [...]string{"CRC-32C", "CRC-32"}[v.poly], v.chunk, v.atStart, v.bad)
}

// maxData is a little more than what one call of an assembly function does.
const maxData = 96 << 10

// The vectors' buffers, each between two pages that cannot be touched.
var source, destination, sums []byte

func guarded(n int) ([]byte, error) {
	all, err := syscall.Mmap(-1, 0, n+2*page, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	return all[page : page+n : page+n], syscall.Mprotect(all[page:page+n], syscall.PROT_READ|syscall.PROT_WRITE)
}

// slack is how much beside a buffer must stay as it was.
const slack = 128

const untouched = 0xa5

// place returns n bytes at the start or the end of b and the slack beside them,
// filled.
func (v *vector) place(b []byte, n int) (buf, beside []byte) {
	if v.atStart {
		buf, beside = b[:n:n], b[n:min(n+slack, len(b))]
	} else {
		buf, beside = b[len(b)-n:], b[max(0, len(b)-n-slack):len(b)-n]
	}
	for i := range beside {
		beside[i] = untouched
	}
	return buf, beside
}

func intact(beside []byte) bool {
	for _, b := range beside {
		if b != untouched {
			return false
		}
	}
	return true
}

// run reports whether the kernel does what the vector wants.
func (v *vector) run() bool {
	src := source[:v.n:v.n]
	if !v.atStart {
		src = source[len(source)-v.n:]
	}
	if v.op == update {
		return v.kernel.Update(v.poly, v.sum, src) == binary.BigEndian.Uint32(v.want)
	}
	s, besideSums := v.place(sums, len(v.want))
	d, besideDst := v.place(destination, v.n)
	clear(d)
	if v.op == verify || v.op == copyVerify {
		copy(s, v.want)
		if v.bad >= 0 {
			s[4*v.bad+v.bad%4] ^= 1 << (v.bad % 8)
		}
	} else {
		clear(s)
	}
	ok := true
	switch v.op {
	case put:
		v.kernel.Put(v.poly, s, src, v.chunk)
	case copyPut, copyPutNonTemporal:
		v.kernel.CopyPut(v.poly, d, s, src, v.chunk, v.op == copyPutNonTemporal)
		ok = bytes.Equal(d, src)
	case verify:
		ok = v.kernel.Verify(v.poly, src, s, v.chunk) == v.bad
	case copyVerify:
		ok = v.kernel.CopyVerify(v.poly, d, src, s, v.chunk, v.n%2 == 0) == v.bad
		if v.bad < 0 {
			ok = ok && bytes.Equal(d, src)
		}
	}
	if v.op != verify && v.op != copyVerify {
		ok = ok && bytes.Equal(s, v.want)
	}
	return ok && intact(besideSums) && intact(besideDst)
}

// makeVectors fills the buffers and returns vectors for every kernel of this
// build but the portable one. What they want comes from hash/crc32.
func makeVectors() ([]vector, error) {
	for _, b := range []struct {
		buf *[]byte
		n   int
	}{{&source, maxData}, {&destination, maxData}, {&sums, 4 * maxData}} {
		buf, err := guarded(b.n)
		if err != nil {
			return nil, err
		}
		*b.buf = buf
	}
	random := rand.NewChaCha8([32]byte{4})
	random.Read(source)

	// Sizes of data around every step of a kernel, then of chunks with and
	// without ragged tails.
	var lengths []int
	for n := range 320 {
		lengths = append(lengths, n)
	}
	for _, n := range []int{512, 768, 1024, 2048, 3072, 4096, 6144, 8192, 16384, 32768, 65536, 81920} {
		for _, d := range []int{-65, -33, -1, 0, 1, 31, 64, 250} {
			lengths = append(lengths, n+d)
		}
	}
	type shape struct{ chunk, n int }
	var shapes []shape
	for i, chunk := range []int{
		1, 3, 4, 8, 15, 16, 31, 32, 33, 60, 63, 64, 65, 96, 100, 127, 128, 160, 191, 192, 255, 256, 320, 384, 448,
		500, 511, 512, 513, 544, 576, 640, 768, 1000, 1023, 1024, 1025, 1500, 2048, 2080, 4096, 4128, 8192, 16384, 65536, 70000,
	} {
		for j, chunks := range []int{1, 2, 3, 5, 7, 8, 13, 16, 31, 64, 129} {
			tails := []int{0, 1, chunk / 3, chunk/2 + 1, chunk - 1}
			for _, tail := range []int{0, tails[1+(i+j)%4]} {
				if n := chunk*chunks + tail; n <= maxData && tail < chunk {
					shapes = append(shapes, shape{chunk, n})
				}
			}
		}
	}
	tables := [...]*crc32.Table{asm.Castagnoli: crc32.MakeTable(crc32.Castagnoli), asm.IEEE: crc32.IEEETable}
	var all []vector
	for _, k := range asm.Kernels()[1:] {
		for p, table := range tables {
			if !k.Supports(asm.Poly(p)) {
				continue
			}
			add := func(v vector) {
				v.kernel, v.poly, v.atStart = k, asm.Poly(p), len(all)%2 == 0
				src := source[:v.n]
				if !v.atStart {
					src = source[len(source)-v.n:]
				}
				if v.op == update {
					v.sum = uint32(random.Uint64())
					v.want = binary.BigEndian.AppendUint32(nil, crc32.Update(v.sum, table, src))
				}
				for v.op != update && len(src) > 0 {
					n := min(v.chunk, len(src))
					v.want = binary.BigEndian.AppendUint32(v.want, crc32.Checksum(src[:n], table))
					src = src[n:]
				}
				all = append(all, v)
			}
			for _, n := range lengths {
				add(vector{op: update, n: n, bad: -1})
			}
			for i, s := range shapes {
				add(vector{op: put, chunk: s.chunk, n: s.n, bad: -1})
				op := copyPut + operation(i)%(operations-copyPut)
				bad := -1
				if op == copyVerify {
					op = verify + operation(i/3)%2*(copyVerify-verify)
					if count := (s.n + s.chunk - 1) / s.chunk; i%2 == 0 {
						bad = i / 2 % count
					}
				}
				add(vector{op: op, chunk: s.chunk, n: s.n, bad: bad})
			}
		}
	}
	return all, nil
}
