package main

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
	"github.com/blockpath/blockpath/crc"
)

var sumChecks = []check{
	{"sums/header: both ways", checksumHeaders},
	{"sums/chunks: made", chunkSums},
	{"sums/chunks: verified", chunkSumsVerified},
	{"sums/combine", combinedSums},
}

func (t *trial) kind() crc.Kind { return crc.Kind(t.rng.IntN(2)) }

// chunks generates a checksum type and a chunk size, and data for it.
func (t *trial) chunks() (crc.Chunks, []byte) {
	sizes := []int{1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 255, 256, 511, 512, 513, 1000, 1024, 4096, 65536}
	c := crc.Chunks{Kind: t.kind(), Size: sizes[t.rng.IntN(len(sizes))]}
	n := t.rng.IntN(1 << (1 + t.rng.IntN(16)))
	if c.Size < 8 {
		n = min(n, 4096)
	}
	return c, t.bytes(n)
}

func checksumHeaders(t *trial) error {
	for range t.times(someValues) {
		c := crc.Chunks{Kind: crc.Kind(t.rng.IntN(3)), Size: 1 + t.rng.IntN(1<<(1+t.rng.IntN(24)))}
		b := c.AppendHeader(nil)
		answer, _ := t.ask("checksum.header", hadoopKind(c.Kind), c.Size)
		t.same(hadoop.Hex(b), answer[0], "header of %+v", c)
		answer, _ = t.ask("checksum.parse", b)
		t.same(fmt.Sprint(hadoopKind(c.Kind), c.Size), fmt.Sprint(answer[0], answer[1]), "header %x", b)
	}
	for range t.times(someValues) { // any five bytes
		b := binary.BigEndian.AppendUint32([]byte{byte(t.rng.IntN(7))}, uint32(t.int64()))
		ours, err := crc.ParseHeader(b)
		answer, refused := t.ask("checksum.parse", b)
		size := int32(binary.BigEndian.Uint32(b[1:]))
		switch {
		case err != nil && refused != nil:
			t.agreed++
		case err != nil && size > crc.MaxChunkSize:
			t.strict(fmt.Sprintf("chunk size above %d", crc.MaxChunkSize))
		case err != nil || refused != nil:
			t.disagree("header %x: ours %v, Hadoop's %v", b, err, refused)
		default:
			t.same(fmt.Sprint(hadoopKind(ours.Kind), ours.Size), fmt.Sprint(answer[0], answer[1]), "header %x", b)
		}
	}
	return nil
}

func chunkSums(t *trial) error {
	for range t.times(manyValues) {
		c, data := t.chunks()
		answer, refused := t.ask("sums.make", hadoopKind(c.Kind), c.Size, data)
		if refused != nil {
			t.disagree("%+v, %d bytes: %v", c, len(data), refused)
			continue
		}
		t.same(hadoop.Hex(c.Append(nil, data)), answer[0], "%+v, %d bytes", c, len(data))
	}
	return nil
}

func chunkSumsVerified(t *trial) error {
	for range t.times(manyValues) {
		c, data := t.chunks()
		sums := c.Append(nil, data)
		base := t.rng.Int64N(1 << 40)
		if len(data) > 0 && t.rng.IntN(4) > 0 {
			for range 1 + t.rng.IntN(2) {
				if t.rng.IntN(2) == 0 {
					data[t.rng.IntN(len(data))] ^= byte(1 << t.rng.IntN(8))
				} else {
					sums[t.rng.IntN(len(sums))] ^= byte(1 << t.rng.IntN(8))
				}
			}
		}
		answer, refused := t.ask("sums.verify", hadoopKind(c.Kind), c.Size, data, sums, base)
		if refused != nil {
			t.disagree("%+v, %d bytes: %v", c, len(data), refused)
			continue
		}
		ours := []string{"good"}
		var bad *crc.MismatchError
		if err := c.Verify(data, sums, base); errors.As(err, &bad) {
			ours = []string{"bad", fmt.Sprint(bad.Offset)}
		} else if err != nil {
			t.disagree("%+v, %d bytes: %v", c, len(data), err)
			continue
		}
		t.same(ours, answer, "%+v, %d bytes", c, len(data))
	}
	return nil
}

func combinedSums(t *trial) error {
	for range t.times(manyValues) {
		k := t.kind()
		a, b := t.rng.Uint32(), t.rng.Uint32()
		n := t.int64() & (1<<63 - 1)
		answer, refused := t.ask("crc.compose", hadoopKind(k), fmt.Sprintf("%x", a), fmt.Sprintf("%x", b), n)
		if refused != nil {
			t.disagree("%v: combine with length %d: %v", k, n, refused)
			continue
		}
		t.same(fmt.Sprintf("%x", crc.Combine(k, a, b, n)), answer[0], "%v: combine %x, %x, %d", k, a, b, n)
		// combining 1 (bit 31 is x^0) with nothing shifts it: the monomial itself
		answer, _ = t.ask("crc.monomial", hadoopKind(k), n)
		t.same(fmt.Sprintf("%x", crc.Combine(k, 1<<31, 0, n)), answer[0], "%v: x^(8*%d)", k, n)
	}
	return nil
}
