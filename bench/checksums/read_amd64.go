package checksums

// readAll reads b, but for its last 127 bytes, as fast as one core can: loads of
// 32 bytes (AVX2) and nothing that waits for them.
//
//go:noescape
func readAll(b []byte)
