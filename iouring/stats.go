//go:build linux || darwin

package iouring

import "github.com/blockpath/blockpath/stripedcounter"

// Counters. An engine has the first group, a backend both.
const (
	statSQE = iota
	statEnter
	statCQE
	statInline
	statCancel
	statOverflow
	statStale
	statBusy
	engineStats
)

const (
	statReads = engineStats + iota
	statReadBytes
	statWrites
	statWriteBytes
	statSyncs
	statRingReads
	statRingWrites
	statRingSyncs
	statShort
	statRetries
	statErrors
	backendStats
)

var statNames = [backendStats]string{
	statSQE:      "sqe",         // operations submitted to the ring
	statEnter:    "enter",       // io_uring_enter calls
	statCQE:      "cqe",         // completions
	statInline:   "inline",      // completions that were there when the submit returned
	statCancel:   "cancel",      // cancellations asked for
	statOverflow: "cq_overflow", // times the completion queue had overflowed
	statStale:    "stale_cqe",   // completions that matched no operation
	statBusy:     "busy",        // submits that the kernel put off (EAGAIN, EBUSY)

	statReads:      "reads",          // ReadAt calls
	statReadBytes:  "read_bytes",     //
	statWrites:     "writes",         // WriteAt calls
	statWriteBytes: "write_bytes",    //
	statSyncs:      "datasyncs",      // files in Datasync calls
	statRingReads:  "ring_reads",     // of them what went through the ring
	statRingWrites: "ring_writes",    //
	statRingSyncs:  "ring_datasyncs", //
	statShort:      "short",          // results that left something to do
	statRetries:    "retries",        // EINTR and EAGAIN
	statErrors:     "errors",         // calls that failed, end of file excepted
}

func newBackendStats() *stripedcounter.Set { return stripedcounter.NewSet(statNames[:]...) }
