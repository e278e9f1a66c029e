package checksums

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

func TestRivalsAgree(t *testing.T) {
	data := make([]byte, 10000)
	rand.NewChaCha8([32]byte{}).Read(data)
	for _, r := range rivals[1:] {
		if r.absent != "" {
			t.Logf("%s NOT TESTED: %s", r.name, r.absent)
			continue
		}
		for _, k := range r.kinds {
			for _, n := range []int{1, 7, 8, 63, 64, 511, 512, 1537, 4096, 10000} {
				for _, chunk := range []int{1, 8, 100, 512, 1000, 4096, 20000} {
					want, got := make([]byte, 4*((n+chunk-1)/chunk)), make([]byte, 4*((n+chunk-1)/chunk))
					rivals[0].put(k, want, data[:n], chunk)
					r.put(k, got, data[:n], chunk)
					if !bytes.Equal(got, want) {
						t.Fatalf("%s, %v of %d bytes in chunks of %d: %x, want %x", r.name, k, n, chunk, got, want)
					}
				}
				if got, want := r.checksum(k, data[:n]), rivals[0].checksum(k, data[:n]); got != want {
					t.Fatalf("%s, %v of %d bytes: %#x, want %#x", r.name, k, n, got, want)
				}
			}
		}
	}
}

func TestReadAll(t *testing.T) {
	for n := range 300 {
		readAll(make([]byte, n)) // it has no result; it must end
	}
}
