// Package peer is what the experiments on the data path measure with and
// against: our datanode on a loopback port, reference implementations of both
// ends of a write that do what the tickets describe, and a path with a long
// round trip.
package peer

import (
	"net"
	"os"
)

// Pool is the block pool of the experiments.
const Pool = "BP-1-127.0.0.1-1"

// TempDir makes a directory for an experiment's files. The caller removes it.
func TempDir() (string, error) { return os.MkdirTemp("", "blockpath-bench-") }

// Listen listens on a loopback port.
func Listen() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }
