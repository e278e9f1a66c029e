package crc

import "testing"

func ramp(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(7*i + i>>8)
	}
	return b
}

// The vectors are RFC 3720's and zlib's, and Hadoop's of HDFS block files.
func TestKnownAnswers(t *testing.T) {
	for _, v := range []struct {
		name        string
		data        []byte
		ieee, casta uint32
	}{
		{"empty", nil, 0, 0},
		{"a", []byte("a"), 0xe8b7be43, 0xc1d04330},
		{"digits", []byte("123456789"), 0xcbf43926, 0xe3069283},
		{"512 zeros", make([]byte, 512), 0xb2aa7578, 0x30fcedc0},
		{"64 KiB of zeros", make([]byte, 65536), 0xd7978eeb, 0x72c0c4a4},
		{"ramp 512", ramp(512), 0xd14b6d1b, 0x0be03192},
		{"ramp 1023", ramp(1023), 0x5d5ae075, 0x22d9619a},
		{"ramp 4096", ramp(4096), 0x462c1e21, 0x162fe1b7},
	} {
		if got := Checksum(CRC32, v.data); got != v.ieee {
			t.Errorf("%s: CRC32 %08x, want %08x", v.name, got, v.ieee)
		}
		if got := Checksum(CRC32C, v.data); got != v.casta {
			t.Errorf("%s: CRC32C %08x, want %08x", v.name, got, v.casta)
		}
	}
}
