package crc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/blockpath/blockpath/crc/asm"
)

var kinds = []Kind{CRC32C, CRC32}

func stdTable(k Kind) *crc32.Table {
	if k == CRC32 {
		return crc32.IEEETable
	}
	return crc32.MakeTable(crc32.Castagnoli)
}

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(uint64(n), 3))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// A message has one CRC, however it is cut.
func TestSplitWrites(t *testing.T) {
	data := random(1025)
	for _, k := range kinds {
		want := crc32.Checksum(data, stdTable(k))
		for size := 1; size <= len(data); size++ {
			d := New(k)
			for rest := data; len(rest) > 0; {
				n := min(size, len(rest))
				if m, err := d.Write(rest[:n]); m != n || err != nil {
					t.Fatalf("Write: %d, %v", m, err)
				}
				rest = rest[n:]
			}
			if got := d.Sum32(); got != want {
				t.Fatalf("%s in writes of %d: %08x, want %08x", k, size, got, want)
			}
		}
	}
}

func TestDigest(t *testing.T) {
	data := random(300)
	for _, k := range kinds {
		d := New(k)
		if d.Size() != 4 || d.BlockSize() != 1 || d.Kind() != k {
			t.Errorf("%s: size %d, block size %d, kind %s", k, d.Size(), d.BlockSize(), d.Kind())
		}
		d.Write(data[:100])
		state, err := d.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := d.AppendBinary([]byte("x")); string(again) != "x"+string(state) {
			t.Errorf("%s: AppendBinary and MarshalBinary differ", k)
		}
		d.Write(data[100:])
		e := New(k)
		if err := e.UnmarshalBinary(state); err != nil {
			t.Fatal(err)
		}
		e.Write(data[100:])
		want := binary.BigEndian.AppendUint32([]byte("sum"), Checksum(k, data))
		if got := e.Sum([]byte("sum")); string(got) != string(want) || d.Sum32() != e.Sum32() {
			t.Errorf("%s: restored digest gives %x, want %x", k, got, want)
		}

		other := New(CRC32C + CRC32 - k)
		other.Write(data)
		before := other.Sum32()
		for _, bad := range [][]byte{nil, state, state[:len(state)-1], append(bytes.Clone(state), 0), bytes.Repeat([]byte{0}, len(state))} {
			var e *StateError
			if err := other.UnmarshalBinary(bad); !errors.As(err, &e) || e.Error() == "" {
				t.Errorf("%s: state %x: error %v", k, bad, err)
			}
		}
		if other.Sum32() != before {
			t.Errorf("%s: a refused state changed the digest", k)
		}
		d.Reset()
		if d.Sum32() != 0 {
			t.Errorf("%s: %08x after Reset", k, d.Sum32())
		}
	}
}

func TestCombine(t *testing.T) {
	data := random(5000)
	for _, k := range kinds {
		want := Checksum(k, data)
		for _, n := range []int{0, 1, 7, 8, 511, 512, 513, 4096, 4999, 5000} {
			a, b := data[:len(data)-n], data[len(data)-n:]
			if got := Combine(k, Checksum(k, a), Checksum(k, b), int64(n)); got != want {
				t.Errorf("%s, last %d bytes: %08x, want %08x", k, n, got, want)
			}
		}
		// zeros in front of a message of zeros, far apart
		const far = 1 << 40
		x := Combine(k, 1, 0, far)
		if y := Combine(k, Combine(k, 1, 0, far/2), 0, far/2); x != y {
			t.Errorf("%s: 2^40 in one step %08x, in two %08x", k, x, y)
		}
		if got := Combine(k, 0xCAFEBEEF, 0, 0); got != 0xCAFEBEEF {
			t.Errorf("%s: combining with nothing gives %08x", k, got)
		}
	}
	mustPanic(t, "Combine of a negative length", func() { Combine(CRC32, 1, 2, -1) })
}

func TestCompose(t *testing.T) {
	data := random(70000)
	for _, k := range kinds {
		for _, size := range []int{1, 5, 512, 4096, 69999, 70000, 70001} {
			c := Chunks{Kind: k, Size: size}
			for _, n := range []int{0, 1, size - 1, size, size + 1, 10 * size, 70000} {
				if n > len(data) {
					continue
				}
				sums := c.Append(nil, data[:n])
				got, err := c.Compose(sums, int64(n))
				if want := Checksum(k, data[:n]); err != nil || got != want {
					t.Errorf("%s, chunk %d, %d bytes: %08x, %v, want %08x", k, size, n, got, err, want)
				}
				var e *LengthError
				if _, err := c.Compose(append(sums, 0), int64(n)); !errors.As(err, &e) || e.Got != len(sums)+1 {
					t.Errorf("%s: one byte of sums too many gives %v", k, err)
				}
			}
		}
	}
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s does not panic", what)
		}
	}()
	f()
}

func TestChunks(t *testing.T) {
	data := random(10000)
	for _, k := range kinds {
		for _, c := range []Chunks{{Kind: k}, {Kind: k, Size: 1}, {Kind: k, Size: 100}, {Kind: k, Size: 4096}, {Kind: k, Size: math.MaxInt}} {
			for _, n := range []int{0, 1, 99, 100, 511, 512, 513, 9000, 10000} {
				d := data[:n]
				sums := c.Append([]byte("ab"), d)[2:]
				if len(sums) != c.SumsLen(n) {
					t.Fatalf("%+v, %d bytes: %d bytes of sums", c, n, len(sums))
				}
				for i := 0; i < len(sums); i += 4 {
					at := i / 4 * c.BytesPerChunk()
					want := crc32.Checksum(d[at:at+min(len(d)-at, c.BytesPerChunk())], stdTable(k))
					if got := binary.BigEndian.Uint32(sums[i:]); got != want {
						t.Fatalf("%+v, %d bytes: sum %d is %08x, want %08x", c, n, i/4, got, want)
					}
				}
				if err := c.Verify(d, sums, 0); err != nil {
					t.Errorf("%+v, %d bytes: %v", c, n, err)
				}
				dst, again := bytes.Repeat([]byte{7}, n+3), make([]byte, len(sums))
				if m := c.CopyPut(dst, again, d); m != len(sums) || string(again) != string(sums) || string(dst) != string(d)+"\a\a\a" {
					t.Errorf("%+v, %d bytes: CopyPut is wrong", c, n)
				}
				dst = bytes.Repeat([]byte{7}, n+3)
				if m, err := c.CopyVerify(dst, d, sums, 0); m != n || err != nil || string(dst) != string(d)+"\a\a\a" {
					t.Errorf("%+v, %d bytes: CopyVerify: %d, %v", c, n, m, err)
				}
			}
		}
	}
}

func TestMismatch(t *testing.T) {
	const size, offset = 100, 1 << 40
	data := random(95 * size)
	data = data[:len(data)-3]
	for _, k := range kinds {
		c := Chunks{Kind: k, Size: size}
		sums := c.Append(nil, data)
		bad := bytes.Clone(data)
		var want []MismatchError
		for _, i := range []int{3, 64, 65, 94} {
			bad[i*size+i] ^= 1
			chunk := bad[i*size : min(len(bad), i*size+size)]
			want = append(want, MismatchError{k, offset + int64(i*size), len(chunk), binary.BigEndian.Uint32(sums[4*i:]), Checksum(k, chunk)})
		}
		var e *MismatchError
		if err := c.Verify(bad, sums, offset); !errors.As(err, &e) || *e != want[0] {
			t.Errorf("Verify: %v", err)
		}
		dst := bytes.Repeat([]byte{7}, len(bad))
		n, err := c.CopyVerify(dst, bad, sums, offset)
		if n != 3*size || !errors.As(err, &e) || *e != want[0] {
			t.Errorf("CopyVerify: %d, %v", n, err)
		}
		if string(dst) != string(bad[:n])+string(make([]byte, len(bad)-n)) {
			t.Errorf("CopyVerify left unverified bytes behind")
		}
		got, err := c.AppendMismatches(nil, bad, sums, offset)
		if err != nil || len(got) != len(want) {
			t.Fatalf("AppendMismatches: %v, %v", got, err)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("AppendMismatches: %v, want %v", &got[i], &want[i])
			}
		}
		if got, err := c.AppendMismatches(nil, data, sums, 0); len(got) != 0 || err != nil {
			t.Errorf("AppendMismatches of good data: %v, %v", got, err)
		}
		if n, err := c.CopyVerify(bad, bad, sums, offset); n != 3*size || err == nil || !bytes.Equal(bad[n:], make([]byte, len(bad)-n)) {
			t.Errorf("CopyVerify in place: %d, %v", n, err)
		}
	}
}

func TestLengths(t *testing.T) {
	data, sums := make([]byte, 1000), make([]byte, 100)
	dst := bytes.Repeat([]byte{7}, 1000)
	for _, c := range []Chunks{{}, {Kind: CRC32, Size: 100}, {Kind: None}} {
		for n := range len(sums) {
			if n == c.SumsLen(len(data)) {
				continue
			}
			check := func(err error) {
				var e *LengthError
				if !errors.As(err, &e) || e.Offset != 5 || e.Data != 1000 || e.Expected != c.SumsLen(1000) || e.Got != n {
					t.Errorf("%+v, %d bytes of sums: %v", c, n, err)
				}
			}
			check(c.Verify(data, sums[:n], 5))
			m, err := c.CopyVerify(dst, data, sums[:n], 5)
			check(err)
			if m != 0 || dst[0] != 7 {
				t.Errorf("CopyVerify copied in spite of the wrong length")
			}
			_, err = c.AppendMismatches(nil, data, sums[:n], 5)
			check(err)
		}
		if n := c.SumsLen(1000); n > 0 {
			mustPanic(t, "Put with too short sums", func() { c.Put(sums[:n-1], data) })
			mustPanic(t, "CopyPut with too short sums", func() { c.CopyPut(dst, sums[:n-1], data) })
		}
		mustPanic(t, "CopyPut with a too short destination", func() { c.CopyPut(dst[:999], sums, data) })
		mustPanic(t, "CopyVerify with a too short destination", func() { c.CopyVerify(dst[:999], data, sums[:c.SumsLen(1000)], 0) })
	}
	mustPanic(t, "a negative chunk size", func() { Chunks{Size: -1}.SumsLen(1) })
	mustPanic(t, "a negative length", func() { Chunks{}.Count(-1) })
}

func TestNone(t *testing.T) {
	c, data, dst := Chunks{Kind: None}, random(1000), make([]byte, 1000)
	if n := c.Put(nil, data); n != 0 {
		t.Errorf("Put: %d", n)
	}
	if err := c.Verify(data, nil, 0); err != nil {
		t.Errorf("Verify: %v", err)
	}
	if n := c.CopyPut(dst, nil, data); n != 0 || !bytes.Equal(dst, data) {
		t.Errorf("CopyPut: %d", n)
	}
	clear(dst)
	if n, err := c.CopyVerify(dst, data, nil, 0); n != 1000 || err != nil || !bytes.Equal(dst, data) {
		t.Errorf("CopyVerify: %d, %v", n, err)
	}
	for _, f := range []func(){func() { New(None) }, func() { Checksum(None, nil) }, func() { Combine(None, 0, 0, 1) }} {
		mustPanic(t, "an operation without a polynomial", f)
	}
}

func TestHeader(t *testing.T) {
	for _, c := range []Chunks{{Size: 512}, {Kind: CRC32, Size: 1}, {Kind: None, Size: 4096}, {Size: MaxChunkSize}} {
		b := c.AppendHeader([]byte{9})
		if got, err := ParseHeader(b[1:]); err != nil || got != c || len(b) != 1+HeaderLen {
			t.Errorf("%+v: %+v, %v", c, got, err)
		}
	}
	for _, b := range [][]byte{
		nil, {2, 0, 0, 2}, {3, 0, 0, 2, 0}, {4, 0, 0, 2, 0}, {255, 0, 0, 2, 0},
		{2, 0, 0, 0, 0}, {2, 0x80, 0, 0, 0}, {1, 0xFF, 0xFF, 0xFF, 0xFF}, {1, 1, 0, 0, 1},
	} {
		var e *HeaderError
		if _, err := ParseHeader(b); !errors.As(err, &e) || e.Error() == "" {
			t.Errorf("%x: %v", b, err)
		}
	}
	for k := CRC32C; k <= None; k++ {
		if got, err := KindFromWire(k.Wire()); err != nil || got != k {
			t.Errorf("%s: %s, %v", k, got, err)
		}
		if got, err := ParseKind(k.String()); err != nil || got != k {
			t.Errorf("%s: %s, %v", k, got, err)
		}
	}
	if _, err := ParseKind("md5"); err == nil {
		t.Error("md5 is a kind")
	}
	mustPanic(t, "the wire id of an unknown kind", func() { Kind(3).Wire() })
}

func TestNoAllocation(t *testing.T) {
	data, dst, sums := random(66000), make([]byte, 66000), make([]byte, 600)
	for _, k := range kinds {
		c := Chunks{Kind: k}
		d := New(k)
		n := c.SumsLen(len(data))
		var bad [4]MismatchError
		if n := testing.AllocsPerRun(10, func() {
			var local [800]byte
			Update(k, 1, local[:])
			d.Write(data)
			c.Put(sums, data)
			c.Append(sums[:0], data)
			if c.Verify(data, sums[:n], 0) != nil {
				t.Error("Verify")
			}
			c.CopyPut(dst, sums, data)
			if _, err := c.CopyVerify(dst, data, sums[:n], 0); err != nil {
				t.Error(err)
			}
			if _, err := c.Compose(sums[:n], int64(len(data))); err != nil {
				t.Error(err)
			}
			Combine(k, 1, 2, 1<<40)
			sums[0]++
			if b, _ := c.AppendMismatches(bad[:0], data, sums[:n], 0); len(b) != 1 {
				t.Error("AppendMismatches")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", k, n)
		}
	}
}

// Every rule is of use to some machine, and without features all is generic.
func TestChoose(t *testing.T) {
	if choose(rules[:], func(asm.Kernel) bool { return false }) != (table{}) {
		t.Error("a kernel was chosen that is not available")
	}
	for i, r := range rules {
		if !r.kernel.Supports(r.poly) || len(r.ops) == 0 {
			t.Errorf("rule %d: %+v", i, r)
		}
		for _, n := range []int{r.chunk, r.length} {
			if n&(n-1) != 0 {
				t.Errorf("rule %d: %d is not a power of two", i, n)
			}
		}
	}
	for _, c := range Kernels() {
		t.Logf("%s %s from chunk %d, length %d: %s", c.Kind, c.Operation, c.Chunk, c.Length, c.Kernel)
	}
	t.Log(Features())
}
