// Package peer is what the experiments on the data path measure with and
// against: our datanode on a loopback port, reference implementations of both
// ends of a write that do what the tickets describe, and a path with a long
// round trip.
package peer
