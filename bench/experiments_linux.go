package main

import (
	"github.com/blockpath/blockpath/bench/put"
	"github.com/blockpath/blockpath/bench/read"
	"github.com/blockpath/blockpath/bench/scrub"
	"github.com/blockpath/blockpath/bench/sidebyside"
	"github.com/blockpath/blockpath/bench/uring"
	"github.com/blockpath/blockpath/bench/wal"
	"github.com/blockpath/blockpath/bench/write"
)

// The data path is measured on Linux only.
func init() {
	experiments = append(experiments,
		uring.Experiment,
		wal.Experiment,
		put.Experiment,
		write.Experiment,
		scrub.Experiment,
		read.Experiment,
		sidebyside.Experiment,
	)
}
