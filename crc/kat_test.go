package crc

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/blockpath/blockpath/crc/asm"
)

// ramp is the data of the vectors: byte i is 7i + i/256, plus shift.
func ramp(n, shift int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(7*i + i>>8 + shift)
	}
	return b
}

// The vectors are RFC 3720's and zlib's, and Hadoop's of HDFS block files.
func TestKnownAnswers(t *testing.T) {
	down := ramp(32, 0)
	for i := range down {
		down[i] = byte(31 - i)
	}
	up := bytes.Clone(down)
	for i := range up {
		up[i] = byte(i)
	}
	for _, v := range []struct {
		name        string
		data        []byte
		ieee, casta uint32
	}{
		{"empty", nil, 0, 0},
		{"a", []byte("a"), 0xe8b7be43, 0xc1d04330},
		{"digits", []byte("123456789"), 0xcbf43926, 0xe3069283},
		{"1 zero", make([]byte, 1), 0xd202ef8d, 0x527d5351},
		{"32 zeros", make([]byte, 32), 0x190a55ad, 0x8a9136aa},
		{"32 ff", bytes.Repeat([]byte{0xff}, 32), 0xff6cab0b, 0x62a8ab43},
		{"0 to 31", up, 0x91267e8a, 0x46dd794e},
		{"31 to 0", down, 0x9ab0ef72, 0x113fdb5c},
		{"511 zeros", make([]byte, 511), 0x1814209f, 0x49196873},
		{"512 zeros", make([]byte, 512), 0xb2aa7578, 0x30fcedc0},
		{"513 zeros", make([]byte, 513), 0x8c6ebcf6, 0x91c08978},
		{"512 ff", bytes.Repeat([]byte{0xff}, 512), 0xbd7bc39f, 0x5bd99297},
		{"ramp 512", ramp(512, 0), 0xd14b6d1b, 0x0be03192},
		{"ramp 1023", ramp(1023, 0), 0x5d5ae075, 0x22d9619a},
		{"ramp 4096", ramp(4096, 0), 0x462c1e21, 0x162fe1b7},
		{"64 KiB of zeros", make([]byte, 65536), 0xd7978eeb, 0x72c0c4a4},
	} {
		if got := Checksum(CRC32, v.data); got != v.ieee {
			t.Errorf("%s: CRC32 %08x, want %08x", v.name, got, v.ieee)
		}
		if got := Checksum(CRC32C, v.data); got != v.casta {
			t.Errorf("%s: CRC32C %08x, want %08x", v.name, got, v.casta)
		}
	}
}

// Monomials of Hadoop's CrcUtil.getMonomial.
func TestMonomials(t *testing.T) {
	for _, v := range []struct {
		n           uint64
		ieee, casta uint32
	}{
		{0, 0x80000000, 0x80000000}, {1, 0x00800000, 0x00800000}, {2, 0x00008000, 0x00008000},
		{3, 0x00000080, 0x00000080}, {4, 0xedb88320, 0x82f63b78}, {5, 0x3b83984b, 0xfbc3faf9},
		{100, 0x6f8346e1, 0xe0b99ccb}, {511, 0xc04e899d, 0x49690445}, {512, 0x8e7ea170, 0x74c360a4},
		{513, 0x508b0f9d, 0x65a5e1d9}, {1024, 0x6427800e, 0xe4172b16}, {4096, 0x09fe548f, 0x35d73a62},
		{65536, 0x31fec169, 0xfe7740e6}, {1 << 20, 0x5fde7a4e, 0x59726915}, {1 << 27, 0xc40ba6d0, 0xa51e1f42},
		{1 << 31, 0x08000000, 0x00800000}, {1 << 40, 0xec447f11, 0x74c360a4},
	} {
		if got := asm.Monomial(asm.IEEE, v.n); got != v.ieee {
			t.Errorf("CRC32: x^(8·%d) is %08x, want %08x", v.n, got, v.ieee)
		}
		if got := asm.Monomial(asm.Castagnoli, v.n); got != v.casta {
			t.Errorf("CRC32C: x^(8·%d) is %08x, want %08x", v.n, got, v.casta)
		}
	}
}

// Chunk checksums as they stand in .meta files of 512-byte chunks.
func TestKnownSums(t *testing.T) {
	for _, v := range []struct {
		n           int
		ieee, casta string
	}{
		{0, "0100000200", "0200000200"},
		{1, "0100000200d202ef8d", "0200000200527d5351"},
		{511, "0100000200ff609a78", "020000020097dba722"},
		{512, "0100000200d14b6d1b", "02000002000be03192"},
		{513, "0100000200d14b6d1b3c0c8ea1", "02000002000be03192b34623a6"},
		{1023, "0100000200d14b6d1bcd1c0425", "02000002000be03192d9a3af45"},
		{1024, "0100000200d14b6d1b2dc099f9", "02000002000be03192980359fb"},
		{1025, "0100000200d14b6d1b2dc099f9d56f2b94", "02000002000be03192980359fb95e7c44e"},
	} {
		for kind, want := range map[Kind]string{CRC32: v.ieee, CRC32C: v.casta} {
			c := Chunks{Kind: kind}
			if got := hex.EncodeToString(c.Append(c.AppendHeader(nil), ramp(v.n, 0))); got != want {
				t.Errorf("%s, %d bytes: %s, want %s", kind, v.n, got, want)
			}
		}
	}
}

// File checksums; block i of a file is the ramp, each byte greater by i.
func TestKnownFileChecksums(t *testing.T) {
	for _, v := range []struct {
		blocks            []int
		ieeeMD5, castaMD5 string
		ieee, casta       uint32
	}{
		{nil, "70bc8f4b72a86921468bf8e8441dce51", "70bc8f4b72a86921468bf8e8441dce51", 0, 0},
		{[]int{1}, "ebf452eefb70eba37cea3f58278210aa", "dc236201841049096ad31b6213203a90", 0xd202ef8d, 0x527d5351},
		{[]int{512}, "146bccda53bf99ef8fb72c23c1af4061", "05c4217314a80699552244edafc8c346", 0xd14b6d1b, 0x0be03192},
		{[]int{1000}, "1bcfc0ff48c6043f7243bb73f246faa8", "9c5ab90daf65570f5fae8f4ad98d86a3", 0x668f073d, 0x22c9a2b3},
		{[]int{1024, 1024}, "1e56aba96a7bdbcb94df022f2af8592b", "21607f46875e896c6c7067d000a35f87", 0xfb203081, 0xb70ead0a},
		{[]int{1024, 1024, 1}, "25de1cbf1cfc7f0d65d9c89955822752", "4131374a91355fc59859706272185c55", 0xa6481d27, 0xd8130533},
		{[]int{1024, 1024, 1024, 1024}, "61d68dcb0ede620e0d60c6d984118159", "2a0f3e79ac532e530d6fb0a38c22f30f", 0x4ced88e2, 0x9dcffa07},
		{[]int{1024, 1024, 1024, 1024, 77}, "b41df2530fc546b5cc697efb881187f3", "37bfadc61b22bd16460ecd7a2856ffbb", 0xea6f5b93, 0x21fd6546},
		{[]int{1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 513}, "dc12457e897363cc548198aeac922017", "dadea20fd1f050644d1e7ce2f63d8464", 0x503bfdf9, 0x5bf625a0},
	} {
		for _, kind := range []Kind{CRC32, CRC32C} {
			c := Chunks{Kind: kind}
			wantMD5, want := v.ieeeMD5, v.ieee
			if kind == CRC32C {
				wantMD5, want = v.castaMD5, v.casta
			}
			for step := 1; step <= 3; step++ { // checksums added at a time
				var blocks []BlockSum
				for i, n := range v.blocks {
					b := NewBlockSummer(c)
					sums := c.Append(nil, ramp(n, i))
					for added := sums; len(added) > 0; {
						k := min(4*step, len(added))
						b.Add(added[:k])
						added = added[k:]
					}
					block, err := b.Sum(int64(n))
					if err != nil {
						t.Fatal(err)
					}
					if composed, err := c.Compose(sums, int64(n)); err != nil || composed != block.CRC {
						t.Errorf("block of %d bytes: CRC %08x, composed %08x, %v", n, block.CRC, composed, err)
					}
					blocks = append(blocks, block)
				}
				f := NewFileSum(c, blocks)
				if f.CRC != want {
					t.Errorf("%v: composite %s is %08x, want %08x", v.blocks, kind, f.CRC, want)
				}
				if hex.EncodeToString(f.MD5[:]) != wantMD5 {
					t.Errorf("%v: MD5 of %s is %x, want %s", v.blocks, kind, f.MD5, wantMD5)
				}
			}
		}
	}
}
