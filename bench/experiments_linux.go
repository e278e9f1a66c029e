package main

import (
	"github.com/blockpath/blockpath/bench/put"
	"github.com/blockpath/blockpath/bench/uring"
	"github.com/blockpath/blockpath/bench/wal"
)

// The data path is measured on Linux only.
func init() {
	experiments = append(experiments,
		uring.Experiment,
		wal.Experiment,
		put.Experiment,
	)
}
