package packet

import "github.com/blockpath/blockpath/stripedcounter"

// statistics are the names of what NewStatistics counts, in pairs that change
// together.
var statistics = []string{
	"packets", "bytes", "wire_bytes", "writes", "acks", "flushes", "heartbeats", "recoveries", "backoffs",
}

// NewStatistics returns counters for the Writers of a program: the sums of their
// [WriterStats]. They count from a [StreamConfig] on that has them. A Writer
// counts in fields of its own and adds to the set once for each acked packet,
// and at its end.
func NewStatistics() *stripedcounter.Set { return stripedcounter.NewSet(statistics...) }

// publish adds to the stream's statistics what has been counted since it was
// called last; w.mu is held.
func (w *Writer) publish() {
	set := w.stream.statistics
	if set == nil {
		return
	}
	now, before := &w.stats, &w.published
	set.Add2(0, now.Packets-before.Packets, 1, now.Bytes-before.Bytes)
	set.Add2(2, now.Wire-before.Wire, 3, now.Writes-before.Writes)
	set.Add(4, now.Acks-before.Acks)
	for i, d := range []int64{
		now.Flushes - before.Flushes, now.Heartbeats - before.Heartbeats,
		now.Recoveries - before.Recoveries, now.Backoffs - before.Backoffs,
	} {
		if d != 0 {
			set.Add(5+i, d)
		}
	}
	w.published = w.stats
}
