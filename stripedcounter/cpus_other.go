//go:build !linux

package stripedcounter

import "runtime"

// cpus returns the number of CPUs.
func cpus() int { return runtime.NumCPU() }
