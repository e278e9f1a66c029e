package main

import (
	"github.com/blockpath/blockpath/bench/put"
	"github.com/blockpath/blockpath/bench/uring"
)

// The data path is measured on Linux only.
func init() {
	experiments = append(experiments,
		wal.Experiment,
		put.Experiment,
		uring.Experiment,
	)
}
