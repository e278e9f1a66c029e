package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/iouring"
	"github.com/blockpath/blockpath/iouring/datanode"
	"github.com/blockpath/blockpath/stripedcounter/prometheus"
)

// metricsTimeout bounds the reading of a request for metrics, so that idle
// connections do not pile up.
const metricsTimeout = 10 * time.Second

// A metricsServer serves a node's counters over HTTP, at /metrics for Prometheus
// and at /debug/vars as expvar does.
type metricsServer struct {
	page            *prometheus.Page
	flushed, synced func(time.Duration) // for the store
	server          *http.Server
	listener        net.Listener
}

func newMetrics() (*metricsServer, error) {
	m := &metricsServer{page: prometheus.NewPage("blockpath")}
	var errs [2]error
	m.flushed, errs[0] = m.page.AddLatency("store_flush_seconds", "time to bring packets into the files; acks of hflush wait for it")
	m.synced, errs[1] = m.page.AddLatency("store_sync_seconds", "time to make a block durable (hsync)")
	return m, errors.Join(errs[:]...)
}

// serve puts the counters of a datanode on the page and listens on addr.
func (m *metricsServer) serve(addr string, backend iouring.Backend, store *datanode.Store, server *datanode.Server) error {
	caps := backend.Capabilities()
	arena := store.Arena()
	errs := []error{
		m.page.AddSet("store", store.Stats(), map[string]prometheus.Metric{
			"checksum_errors": {Help: "chunks that did not verify"},
			"flushes":         {Help: "times that gathered packets were written"},
			"syncs":           {Help: "times that a block was made durable (hsync)"},
		}),
		m.page.AddSet("server", server.Stats(), nil),
		m.page.AddSet("backend", backend.Stats(), nil),
		m.page.AddGauge("arena_bytes", "size of the memory for block data", func() float64 { return float64(arena.Bytes()) }),
		m.page.AddGauge("arena_in_use_bytes", "memory for block data that is in use", func() float64 { return float64(arena.InUse()) }),
		m.page.AddGauge("arena_waits", "times that a stream had to wait for memory, so far", func() float64 { return float64(arena.Waits()) }),
		m.page.AddInfo("backend_info", "how files are read and written, and why", map[string]string{
			"backend": caps.Backend, "reason": caps.Reason, "kernel": caps.Kernel,
		}),
	}
	for _, c := range crc.Kernels() {
		errs = append(errs, m.page.AddInfo("checksum_kernel_info", "kernel for an operation on data of at least the given lengths", map[string]string{
			"checksum": c.Kind.String(), "operation": c.Operation, "kernel": c.Kernel,
			"chunk": fmt.Sprint(c.Chunk), "length": fmt.Sprint(c.Length),
		}))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var err error
	if m.listener, err = listen(addr); err != nil {
		return err
	}
	m.server = &http.Server{Handler: m.page, ReadTimeout: metricsTimeout}
	go m.server.Serve(m.listener)
	return nil
}
