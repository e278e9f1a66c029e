package fuzz

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/asm"
)

var crcTables = map[crc.Kind]*crc32.Table{
	crc.CRC32C: crc32.MakeTable(crc32.Castagnoli),
	crc.CRC32:  crc32.IEEETable,
}

// stretch repeats seed to n bytes, each repetition different.
func stretch(seed []byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		if len(seed) > 0 {
			b[i] = seed[i%len(seed)] ^ byte(i/len(seed)*31)
		}
	}
	return b
}

// FuzzKernels runs every operation of every kernel that the machine has on n
// bytes at an odd address, in chunks, against hash/crc32.
func FuzzKernels(f *testing.F) {
	for _, n := range []uint32{0, 1, 15, 16, 17, 63, 64, 65, 511, 512, 513, 7680, 7681, 65536, 66000} {
		for _, chunk := range []uint16{1, 16, 100, 512, 1000, 1024, 4096, 5000} {
			f.Add([]byte("seed"), n, chunk, uint8(n), uint32(n/3), uint32(12345))
		}
	}
	f.Fuzz(func(t *testing.T, seed []byte, n uint32, chunk16 uint16, off uint8, flip, first uint32) {
		n %= 70000
		chunk := max(1, int(chunk16))
		if chunk < 16 {
			n %= 3000
		}
		data := stretch(seed, int(n)+int(off))[off:]
		dst := make([]byte, n)
		for kind, table := range crcTables {
			p := asm.Poly(kind)
			var want []byte
			for at := 0; at < len(data); at += chunk {
				want = binary.BigEndian.AppendUint32(want, crc32.Checksum(data[at:min(at+chunk, len(data))], table))
			}
			sums := make([]byte, len(want))
			for _, k := range asm.Kernels() {
				if !k.Available() {
					continue
				}
				if got, want := k.Update(p, first, data), crc32.Update(first, table, data); got != want {
					t.Errorf("%s %s: Update of %d bytes at %d: %08x, want %08x", k.Name(), kind, n, off, got, want)
				}
				clear(sums)
				k.Put(p, sums, data, chunk)
				if !bytes.Equal(sums, want) {
					t.Errorf("%s %s: Put of %d bytes in chunks of %d is wrong", k.Name(), kind, n, chunk)
				}
				clear(sums)
				clear(dst)
				k.CopyPut(p, dst, sums, data, chunk, flip&1 != 0)
				if !bytes.Equal(sums, want) || !bytes.Equal(dst, data) {
					t.Errorf("%s %s: CopyPut of %d bytes in chunks of %d is wrong", k.Name(), kind, n, chunk)
				}
				clear(dst)
				if k.Verify(p, data, want, chunk) != -1 || k.CopyVerify(p, dst, data, want, chunk, flip&2 != 0) != -1 || !bytes.Equal(dst, data) {
					t.Errorf("%s %s: %d good bytes in chunks of %d do not verify", k.Name(), kind, n, chunk)
				}
				if n == 0 {
					continue
				}
				at := int(flip % n)
				data[at] ^= 1 << (flip % 7)
				if got := k.Verify(p, data, want, chunk); got != at/chunk {
					t.Errorf("%s %s: bad byte %d of %d in chunks of %d: Verify found chunk %d", k.Name(), kind, at, n, chunk, got)
				}
				if got := k.CopyVerify(p, dst, data, want, chunk, flip&2 != 0); got != at/chunk {
					t.Errorf("%s %s: bad byte %d of %d in chunks of %d: CopyVerify found chunk %d", k.Name(), kind, at, n, chunk, got)
				}
				data[at] ^= 1 << (flip % 7)
			}
		}
	})
}

// FuzzDigest writes data in pieces as the byte program says, stores and
// restores the state between them, and composes the CRC from the pieces' own.
func FuzzDigest(f *testing.F) {
	f.Add([]byte("123456789"), []byte{3, 0, 200, 1}, uint16(9))
	f.Add([]byte{}, []byte{}, uint16(0))
	f.Add([]byte("block"), []byte{255, 255, 255, 255, 64, 63, 65}, uint16(5000))
	f.Fuzz(func(t *testing.T, seed, program []byte, n uint16) {
		data := stretch(seed, int(n))
		for kind, table := range crcTables {
			d, combined := crc.New(kind), uint32(0)
			rest := data
			write := func(p []byte) {
				d.Write(p)
				combined = crc.Combine(kind, combined, crc.Checksum(kind, p), int64(len(p)))
			}
			for _, b := range program {
				piece := rest[:min(int(b), len(rest))]
				write(piece)
				rest = rest[len(piece):]
				state, _ := d.MarshalBinary()
				d = crc.New(kind)
				if err := d.UnmarshalBinary(state); err != nil {
					t.Fatal(err)
				}
			}
			write(rest)
			if want := crc32.Checksum(data, table); d.Sum32() != want || combined != want {
				t.Errorf("%s of %d bytes: digest %08x, combined %08x, want %08x", kind, n, d.Sum32(), combined, want)
			}
		}
	})
}

// FuzzDigestState gives arbitrary bytes to UnmarshalBinary.
func FuzzDigestState(f *testing.F) {
	for kind := range crcTables {
		state, _ := crc.New(kind).MarshalBinary()
		f.Add(state)
		f.Add(state[1:])
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		for kind := range crcTables {
			d := crc.New(kind)
			if err := d.UnmarshalBinary(b); err != nil {
				var e *crc.StateError
				if !errors.As(err, &e) || d.Sum32() != 0 {
					t.Errorf("%x: %v, sum %08x", b, err, d.Sum32())
				}
			} else if again, _ := d.MarshalBinary(); !bytes.Equal(again, b) {
				t.Errorf("%x became %x", b, again)
			}
		}
	})
}

// FuzzChecksumHeader parses arbitrary bytes as a checksum header.
func FuzzChecksumHeader(f *testing.F) {
	f.Add([]byte{2, 0, 0, 2, 0})
	f.Add([]byte{1, 0, 0, 16, 0, 1, 2})
	f.Add([]byte{0, 1, 0, 0, 0})
	f.Add([]byte{4, 0, 0, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := crc.ParseHeader(b)
		if err != nil {
			var e *crc.HeaderError
			if !errors.As(err, &e) {
				t.Errorf("%x: %T", b, err)
			}
			return
		}
		if c.Size < 1 || c.Size > crc.MaxChunkSize || !bytes.Equal(c.AppendHeader(nil), b[:crc.HeaderLen]) {
			t.Errorf("%x: %+v", b, c)
		}
	})
}

// FuzzChunks corrupts one byte of sums or data and looks for it with every
// method of Chunks.
func FuzzChunks(f *testing.F) {
	for _, n := range []uint16{1, 511, 512, 513, 9000, 65535} {
		f.Add([]byte("x"), n, uint16(512), uint32(n/2), uint8(1), int64(1<<40))
		f.Add([]byte("y"), n, uint16(100), uint32(n)*7, uint8(128), int64(0))
	}
	f.Fuzz(func(t *testing.T, seed []byte, n, size uint16, where uint32, bits uint8, offset int64) {
		if n == 0 || bits == 0 {
			return
		}
		data := stretch(seed, int(n))
		dst := make([]byte, len(data))
		for kind := range crcTables {
			c := crc.Chunks{Kind: kind, Size: int(size)}
			sums := c.Append(nil, data)
			whole, err := c.Compose(sums, int64(n))
			if err != nil || whole != crc.Checksum(kind, data) {
				t.Errorf("%+v: %d bytes compose to %08x, %v", c, n, whole, err)
			}
			var bad int
			if at := int(where) % (len(data) + len(sums)); at < len(data) {
				data[at] ^= bits
				bad = at / c.BytesPerChunk()
			} else {
				sums[at-len(data)] ^= bits
				bad = (at - len(data)) / 4
			}
			start := bad * c.BytesPerChunk()
			var e *crc.MismatchError
			if err := c.Verify(data, sums, offset); !errors.As(err, &e) || e.Offset != offset+int64(start) {
				t.Errorf("%+v: Verify: %v", c, err)
			}
			if m, err := c.CopyVerify(dst, data, sums, offset); m != start || !errors.As(err, &e) || !bytes.Equal(dst[:m], data[:m]) {
				t.Errorf("%+v: CopyVerify: %d, %v", c, m, err)
			} else if len(bytes.Trim(dst[m:], "\x00")) != 0 {
				t.Errorf("%+v: CopyVerify left unverified bytes behind", c)
			}
			if all, err := c.AppendMismatches(nil, data, sums, offset); err != nil || len(all) != 1 || all[0] != *e {
				t.Errorf("%+v: AppendMismatches: %v, %v", c, all, err)
			}
		}
	})
}
