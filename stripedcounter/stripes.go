package stripedcounter

import "math/bits"

// maxCPURows bounds the rows, and with them the cost of a Load. More CPUs than
// rows share rows, which costs time and never a count.
const maxCPURows = 64

// stripes returns the number of rows of a set on this machine: the power of two
// that gives each CPU its own row. Where rows are chosen by goroutine there are
// four times as many, so that two goroutines that run at once seldom share one.
func stripes() int {
	return rowCount(cpus(), goroutineRows())
}

// rowCount returns the number of rows for CPU numbers below cpus.
func rowCount(cpus int, byGoroutine bool) int {
	rows := min(1<<bits.Len(uint(cpus-1)), maxCPURows)
	if byGoroutine {
		rows *= 4
	}
	return rows
}
