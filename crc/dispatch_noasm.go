//go:build purego || !(amd64 || arm64)

package crc

var rules [0]rule
