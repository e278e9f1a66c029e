//go:build go1.25

package crc32

import "hash"

// Clone returns a hash with the same state. It never fails.
func (d *digest) Clone() (hash.Cloner, error) {
	c := *d
	return &c, nil
}
