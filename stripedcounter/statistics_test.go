package stripedcounter

import (
	"math"
	"testing"
)

func TestStatisticsDistances(t *testing.T) {
	s := NewStatistics()
	want := make([]int64, s.Len())
	for distance, counter := range map[int]int{
		math.MinInt: BytesReadDistanceOfFiveOrLarger,
		-1:          BytesReadDistanceOfFiveOrLarger,
		0:           BytesReadLocalHost,
		1:           BytesReadDistanceOfOneOrTwo,
		2:           BytesReadDistanceOfOneOrTwo,
		3:           BytesReadDistanceOfThreeOrFour,
		4:           BytesReadDistanceOfThreeOrFour,
		5:           BytesReadDistanceOfFiveOrLarger,
		math.MaxInt: BytesReadDistanceOfFiveOrLarger,
	} {
		n := int64(1) << (distance & 31)
		s.AddRead(n, distance)
		want[BytesRead] += n
		want[counter] += n
	}
	for i, name := range s.Names() {
		if got := s.Load(i); got != want[i] {
			t.Errorf("%s = %d, want %d", name, got, want[i])
		}
	}
}

func TestStatisticsSummary(t *testing.T) {
	s := NewStatistics()
	for i := range s.Len() {
		s.Add(i, int64(i+1)<<40)
	}
	const want = "1099511627776 bytes read, 2199023255552 bytes written, 3298534883328 read ops, 4398046511104 large read ops, 5497558138880 write ops"
	if got := s.Summary(); got != want {
		t.Errorf("Summary() = %q, want %q", got, want)
	}
}
