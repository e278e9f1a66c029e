package main

import (
	"fmt"
	"math"
	"strconv"

	"github.com/dustin/go-humanize"

	"github.com/blockpath/blockpath/crc"
)

// A size is a flag in bytes: a number with an optional unit, such as 65536,
// 64KiB or 10MB.
type size int64

func (s *size) String() string { return strconv.FormatInt(int64(*s), 10) }
func (s *size) Type() string   { return "bytes" }
func (s *size) Set(text string) error {
	n, err := humanize.ParseBytes(text)
	if err != nil {
		return fmt.Errorf("%q is not a number of bytes such as 65536, 64KiB or 10MB", text)
	}
	if n > math.MaxInt64 {
		return fmt.Errorf("%s is out of range", text)
	}
	*s = size(n)
	return nil
}

// A kind is a checksum type as a flag.
type kind crc.Kind

func (k *kind) String() string { return crc.Kind(*k).String() }
func (k *kind) Type() string   { return "type" }
func (k *kind) Set(text string) error {
	v, err := crc.ParseKind(text)
	*k = kind(v)
	return err
}
