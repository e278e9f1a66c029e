package stripedcounter

import (
	"math/bits"
	"runtime"

	"golang.org/x/sys/unix"
)

// cpus returns one more than the highest number of a CPU that this process may
// run on now. CPU numbers may have holes, and runtime.NumCPU counts without
// them.
func cpus() int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return runtime.NumCPU()
	}
	return max(1, end(&set))
}

func end(set *unix.CPUSet) int {
	for i := len(set) - 1; i >= 0; i-- {
		if set[i] != 0 {
			return i*bits.UintSize + bits.Len(uint(set[i]))
		}
	}
	return 0
}
