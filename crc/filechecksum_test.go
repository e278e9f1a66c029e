package crc

import (
	"encoding/hex"
	"errors"
	"testing"
)

func TestFileSumNames(t *testing.T) {
	c := Chunks{Kind: CRC32C}
	sum := func(n int) BlockSum {
		b := NewBlockSummer(c)
		b.Add(c.Append(nil, ramp(n, 0)))
		s, err := b.Sum(int64(n))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, v := range []struct {
		blocks []BlockSum
		name   string
		prefix string // of the serialised form
	}{
		{nil, "MD5-of-0MD5-of-0CRC32", "000000000000000000000000"},
		{[]BlockSum{sum(1000)}, "MD5-of-0MD5-of-512CRC32C", "000002000000000000000000"},
		{[]BlockSum{sum(1024), sum(1)}, "MD5-of-2MD5-of-512CRC32C", "000002000000000000000002"},
	} {
		f := NewFileSum(c, v.blocks)
		if got := f.MD5Name(); got != v.name {
			t.Errorf("name %s, want %s", got, v.name)
		}
		if got, want := hex.EncodeToString(f.AppendMD5(nil)), v.prefix+hex.EncodeToString(f.MD5[:]); got != want {
			t.Errorf("%s: serialised %s, want %s", v.name, got, want)
		}
	}
	f := NewFileSum(c, []BlockSum{sum(512)})
	if f.CompositeName() != "COMPOSITE-CRC32C" || hex.EncodeToString(f.AppendComposite(nil)) != "0be03192" {
		t.Errorf("composite %s %x", f.CompositeName(), f.AppendComposite(nil))
	}
}

func TestBlockSumLength(t *testing.T) {
	c := Chunks{}
	b := NewBlockSummer(c)
	b.Add(c.Append(nil, ramp(1024, 0)))
	for _, n := range []int64{0, 512, 1025} {
		var bad *LengthError
		if _, err := b.Sum(n); !errors.As(err, &bad) || bad.Got != 8 {
			t.Errorf("length %d: %v, want a *LengthError with 8 bytes of checksums", n, err)
		}
	}
	if _, err := b.Sum(1000); err != nil {
		t.Errorf("length 1000: %v", err)
	}
}
