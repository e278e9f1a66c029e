package fuzz

import (
	"bytes"
	"encoding"
	stdcrc32 "hash/crc32"
	"testing"

	"github.com/blockpath/blockpath/crc/crc32"
)

// FuzzCRC32DropIn drives a hash of crc/crc32 and one of hash/crc32 with the
// same program: each byte of ops writes that many bytes of data, and a zero
// byte carries both states over to the other package's kind of hash. shape says
// whose table it is.
func FuzzCRC32DropIn(f *testing.F) {
	f.Fuzz(func(t *testing.T, poly uint32, shape uint8, data, ops []byte) {
		if len(data) > 1<<16 || len(ops) > 1<<10 {
			return
		}
		tab := stdcrc32.MakeTable(poly)
		if shape&1 != 0 {
			foreign := *tab
			tab = &foreign
			if shape&2 != 0 {
				tab[shape] ^= uint32(shape)
			}
		}
		got, want := crc32.New(tab), stdcrc32.New(tab)
		rest := data
		for _, op := range ops {
			if op == 0 {
				state, err := got.(encoding.BinaryMarshaler).MarshalBinary()
				if err != nil {
					t.Fatal(err)
				}
				wantState, err := want.(encoding.BinaryMarshaler).MarshalBinary()
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(state, wantState) {
					t.Fatalf("state %x, want %x", state, wantState)
				}
				got, want = crc32.New(tab), stdcrc32.New(tab)
				if err := got.(encoding.BinaryUnmarshaler).UnmarshalBinary(wantState); err != nil {
					t.Fatal(err)
				}
				if err := want.(encoding.BinaryUnmarshaler).UnmarshalBinary(state); err != nil {
					t.Fatal(err)
				}
				continue
			}
			n := min(int(op), len(rest))
			got.Write(rest[:n])
			want.Write(rest[:n])
			rest = rest[n:]
			if got.Sum32() != want.Sum32() {
				t.Fatalf("%#08x after %d bytes, want %#08x", got.Sum32(), len(data)-len(rest), want.Sum32())
			}
		}
		if got, want := crc32.Update(poly, tab, data), stdcrc32.Update(poly, tab, data); got != want {
			t.Fatalf("Update of %d bytes = %#08x, want %#08x", len(data), got, want)
		}
	})
}
