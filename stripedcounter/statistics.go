package stripedcounter

import "fmt"

// The counters of [Statistics], in Hadoop's order.
const (
	BytesRead = iota
	BytesWritten
	ReadOps
	LargeReadOps // listings of large directories and the like
	WriteOps
	BytesReadLocalHost
	BytesReadDistanceOfOneOrTwo
	BytesReadDistanceOfThreeOrFour
	BytesReadDistanceOfFiveOrLarger
	BytesReadErasureCoded
)

// Statistics has the counters of Hadoop's FileSystem.Statistics, under the same
// names. All are 64 bits wide; Hadoop's operation counts have 32 and wrap.
type Statistics struct {
	*Set
}

// NewStatistics returns statistics that are all zero.
func NewStatistics() Statistics {
	return Statistics{NewSet(
		"bytesRead",
		"bytesWritten",
		"readOps",
		"largeReadOps",
		"writeOps",
		"bytesReadLocalHost",
		"bytesReadDistanceOfOneOrTwo",
		"bytesReadDistanceOfThreeOrFour",
		"bytesReadDistanceOfFiveOrLarger",
		"bytesReadErasureCoded",
	)}
}

// AddRead counts n bytes read from a node at the given distance in the network
// topology: 0 is this host. It adds to BytesRead and to the distance's counter.
func (s Statistics) AddRead(n int64, distance int) {
	s.Add2(BytesRead, n, BytesReadAt(distance), n)
}

// BytesReadAt returns the counter of bytes read at the given distance. As in
// Hadoop, negative distances count with five or larger.
func BytesReadAt(distance int) int {
	switch distance {
	case 0:
		return BytesReadLocalHost
	case 1, 2:
		return BytesReadDistanceOfOneOrTwo
	case 3, 4:
		return BytesReadDistanceOfThreeOrFour
	}
	return BytesReadDistanceOfFiveOrLarger
}

// Summary returns the line that FileSystem.Statistics.toString gives.
func (s Statistics) Summary() string {
	var buf [BytesReadErasureCoded + 1]int64
	v := s.Snapshot(buf[:0])
	return fmt.Sprintf("%d bytes read, %d bytes written, %d read ops, %d large read ops, %d write ops",
		v[BytesRead], v[BytesWritten], v[ReadOps], v[LargeReadOps], v[WriteOps])
}
