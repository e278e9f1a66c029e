package peer

import "io"

// Pattern is what a file consists of, over and over: a prime number of pieces of
// 64 KiB, so that blocks differ, and too many to stay in the second-level cache.
// Hadoop's client writes the same, see Client.java.
var Pattern = func() []byte {
	b := make([]byte, 61<<16)
	x := uint64(88172645463325252)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}()

// A Source yields Left bytes of a file, from the offset At on.
type Source struct{ At, Left int64 }

// Read copies bytes of the file.
func (s *Source) Read(p []byte) (int, error) {
	if s.Left == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(int64(len(p)), s.Left)], Pattern[s.At%int64(len(Pattern)):])
	s.At += int64(n)
	s.Left -= int64(n)
	return n, nil
}
