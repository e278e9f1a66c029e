package put

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/blockpath/blockpath/bench/internal/lab"
	"github.com/blockpath/blockpath/bench/internal/peer"
	"github.com/blockpath/blockpath/crc/packet/client"
)

const (
	roundTrip = 80 * time.Millisecond
	farBlock  = 32 << 20
	farWindow = 8 << 20
)

// far puts a file in many blocks over a path with a long round trip and a fixed
// window of bytes in flight: no more than a window per round trip can arrive,
// and every pause between blocks costs.
func far(ctx context.Context, sz size, r *lab.Report) (err error) {
	const name, limit = "rtt80ms/throughput/vs=window-over-rtt", ">=0.9"
	dir, err := peer.TempDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	node, err := peer.StartDatanode(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	path, err := peer.StartPath(node.Addr, roundTrip/2)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, path.Close()) }()

	ceiling := float64(farWindow) / roundTrip.Seconds()
	start := time.Now()
	_, _, err = client.Put(ctx, &peer.Source{Left: sz.distance}, "far", []string{path.Addr}, client.PutConfig{
		BlockSize: farBlock, Size: sz.distance, InFlight: farWindow,
	})
	if err != nil {
		return err
	}
	speed := float64(sz.distance) / time.Since(start).Seconds()
	r.Printf("%d MiB in blocks of %d MiB over a round trip of %v, %d MiB in flight: %.1f MB/s of %.1f\n",
		sz.distance>>20, farBlock>>20, roundTrip, farWindow>>20, speed/1e6, ceiling/1e6)
	r.Metric("rtt80ms/mb-per-s", speed/1e6)
	r.Ratio(name, speed/ceiling)
	r.Target(name, limit, speed/ceiling)
	r.Printf("\n")
	return nil
}
