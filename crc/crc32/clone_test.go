//go:build go1.25

package crc32_test

import (
	"hash"
	stdcrc32 "hash/crc32"
	"testing"

	"github.com/blockpath/blockpath/crc/crc32"
)

func TestClone(t *testing.T) {
	data := random(300)
	for _, tt := range tables() {
		a := crc32.New(tt.tab)
		a.Write(data[:100])
		c, err := a.(hash.Cloner).Clone()
		if err != nil {
			t.Fatal(err)
		}
		b := c.(hash.Hash32)
		b.Write(data[100:200])
		a.Write(data[200:])
		if want := stdcrc32.Checksum(data[:200], tt.tab); b.Sum32() != want {
			t.Errorf("%s: the clone has %#x, want %#x", tt.name, b.Sum32(), want)
		}
		want := stdcrc32.Update(stdcrc32.Checksum(data[:100], tt.tab), tt.tab, data[200:])
		if a.Sum32() != want {
			t.Errorf("%s: the original has %#x, want %#x", tt.name, a.Sum32(), want)
		}
	}
}
