package main

import (
	"regexp"
	"strings"
)

const (
	v8   width = iota // Armv8 with CRC32 and PMULL
	sha3              // with SHA-3's EOR3
)

// The models of Cortex-A72 and A76 are copies of Cortex-A57's, and those of
// Apple's cores of a much older one's, so they say nothing.
var arm64 = architecture{
	name:    "arm64",
	triple:  "aarch64-linux-gnu",
	extra:   "+crc,+aes,+sha3",
	program: ".",
	comment: regexp.MustCompile(`\s*(//.*|<[^>]*>.*)$`),
	jumps: func(operation string) bool {
		return operation == "b" || strings.HasPrefix(operation, "b.") ||
			strings.HasPrefix(operation, "cb") || strings.HasPrefix(operation, "tb")
	},
	cpus: []cpu{
		{"neoverse-n1", "Neoverse N1", "ARM", v8, "pmullV4S4", 8.0},
		{"neoverse-v1", "Neoverse V1", "ARM", sha3, "eor3V8S4", 23.9},
		{"neoverse-n2", "Neoverse N2", "ARM", sha3, "pmullV6S4", 9.6},
		{"neoverse-v2", "Neoverse V2", "ARM", sha3, "eor3V8S4", 19.9},
	},
	loops: []loop{
		{v8, "hash/crc32.castagnoliUpdate", 1, 16},
		{v8, "castagnoliUpdate", 1, 16},
		{v8, "castagnoliChunks", 1, 6 * 16},
		{v8, "castagnoliSplit", 2, 6 * 16},
		{v8, "castagnoliChunksCopy", 1, 6 * 16},
		{v8, "hash/crc32.ieeeUpdate", 1, 16},
		{v8, "ieeeUpdate", 1, 16},
		{v8, "ieeeChunks", 1, 6 * 16},
		{v8, "ieeeSplit", 2, 6 * 16},
		{v8, "ieeeChunksCopy", 1, 6 * 16},
		{v8, "pmullDot", 2, 4 * 64},
		{v8, "pmullDotCopy", 2, 4 * 64},
		{v8, "pmullV4S4UpdateCastagnoli", 2, 8 * 16},
		{v8, "pmullV4S4Castagnoli", 2, 8 * 64},
		{v8, "pmullV4S4CastagnoliCopy", 2, 8 * 64},
		{v8, "pmullV4S4UpdateIEEE", 2, 8 * 16},
		{v8, "pmullV4S4IEEE", 2, 8 * 64},
		{v8, "pmullV4S4IEEECopy", 2, 8 * 64},
		{v8, "pmullV6S4UpdateCastagnoli", 2, 10 * 16},
		{v8, "pmullV6S4Castagnoli", 2, 10 * 64},
		{v8, "pmullV6S4CastagnoliCopy", 2, 10 * 64},
		{v8, "pmullV6S4UpdateIEEE", 2, 10 * 16},
		{v8, "pmullV6S4IEEE", 2, 10 * 64},
		{v8, "pmullV6S4IEEECopy", 2, 10 * 64},
		{v8, "pmullV9S3UpdateCastagnoli", 2, 12 * 16},
		{v8, "pmullV9S3Castagnoli", 2, 12 * 64},
		{v8, "pmullV9S3CastagnoliCopy", 2, 12 * 64},
		{v8, "pmullV9S3UpdateIEEE", 2, 12 * 16},
		{v8, "pmullV9S3IEEE", 2, 12 * 64},
		{v8, "pmullV9S3IEEECopy", 2, 12 * 64},
		{sha3, "eor3V8S4UpdateCastagnoli", 2, 12 * 16},
		{sha3, "eor3V8S4Castagnoli", 2, 12 * 64},
		{sha3, "eor3V8S4CastagnoliCopy", 2, 12 * 64},
		{sha3, "eor3V8S4UpdateIEEE", 2, 12 * 16},
		{sha3, "eor3V8S4IEEE", 2, 12 * 64},
		{sha3, "eor3V8S4IEEECopy", 2, 12 * 64},
	},
}
