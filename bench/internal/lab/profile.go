package lab

import (
	"bytes"
	"fmt"
	"runtime/pprof"

	"github.com/google/pprof/profile"
)

// ShareOfCPU profiles run and returns which share of the CPU time of this
// process, the kernel's included, was spent in functions and what they call, and
// the number of samples, of which there is one every 10 ms of CPU time. A
// function is named as in a profile, such as "runtime.mallocgc".
func ShareOfCPU(run func() error, functions ...string) (share float64, samples int, err error) {
	var b bytes.Buffer
	if err := pprof.StartCPUProfile(&b); err != nil {
		return 0, 0, err
	}
	err = run()
	pprof.StopCPUProfile()
	if err != nil {
		return 0, 0, err
	}
	p, err := profile.Parse(&b)
	if err != nil {
		return 0, 0, err
	}
	wanted := map[string]bool{}
	for _, f := range functions {
		wanted[f] = true
	}
	var in, all int64
	for _, s := range p.Sample {
		all += s.Value[0]
		if within(s, wanted) {
			in += s.Value[0]
		}
	}
	if all == 0 {
		return 0, 0, fmt.Errorf("the CPU profile has no samples")
	}
	return float64(in) / float64(all), int(all), nil
}

func within(s *profile.Sample, functions map[string]bool) bool {
	for _, l := range s.Location {
		for _, line := range l.Line {
			if functions[line.Function.Name] {
				return true
			}
		}
	}
	return false
}
