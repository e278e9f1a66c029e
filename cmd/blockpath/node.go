package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/blockpath/blockpath/iouring"
	"github.com/blockpath/blockpath/iouring/datanode"
)

// shutdownGrace is how long requests may go on after the signal to stop.
const shutdownGrace = 20 * time.Second

// A nodeConfig says what startNode starts.
type nodeConfig struct {
	dirs    []string
	listen  string // HOST:PORT or unix:PATH
	backend iouring.Choice
	metrics string // HOST:PORT or unix:PATH; "" serves none
	log     *slog.Logger
}

// A node is a datanode in this process.
type node struct {
	backend  iouring.Backend
	store    *datanode.Store
	server   *datanode.Server
	listener net.Listener
	served   chan error
	metrics  *metricsServer // nil: none
}

// startNode opens a store and serves it.
func startNode(cfg nodeConfig) (_ *node, err error) {
	n := &node{served: make(chan error, 1)}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	if n.backend, err = iouring.Open(iouring.Config{Backend: cfg.backend}); err != nil {
		return nil, err
	}
	m, err := newMetrics()
	if err != nil {
		return nil, err
	}
	n.store, err = datanode.OpenStore(datanode.StoreConfig{
		Dirs: cfg.dirs, Backend: n.backend, Logger: cfg.log, Flushed: m.flushed, Synced: m.synced,
	})
	if err != nil {
		return nil, err
	}
	if n.listener, err = listen(cfg.listen); err != nil {
		return nil, err
	}
	server := datanode.NewServer(n.store, datanode.ServerConfig{Logger: cfg.log})
	if cfg.metrics != "" {
		if err = m.serve(cfg.metrics, n.backend, n.store, server); err != nil {
			return nil, err
		}
		n.metrics = m
	}
	n.server = server
	go func() { n.served <- n.server.Serve(n.listener) }()
	return n, nil
}

// addressOf returns where l listens, as flags take it.
func addressOf(l net.Listener) string {
	a := l.Addr()
	if a.Network() == "unix" {
		return "unix:" + a.String()
	}
	return a.String()
}

// stop ends the server, lets requests finish, and closes the store.
func (n *node) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	err := n.server.Shutdown(ctx)
	if n.metrics != nil {
		err = errors.Join(err, n.metrics.server.Shutdown(ctx))
	}
	return errors.Join(err, n.close())
}

// close closes what is open but the server.
func (n *node) close() error {
	var errs []error
	if n.listener != nil && n.server == nil {
		errs = append(errs, n.listener.Close())
	}
	if n.store != nil {
		errs = append(errs, n.store.Close())
	}
	if n.backend != nil {
		errs = append(errs, n.backend.Close())
	}
	return errors.Join(errs...)
}

// listen listens on HOST:PORT or unix:PATH. A socket file that nobody listens
// on any more is replaced.
func listen(addr string) (net.Listener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	path, isUnix := strings.CutPrefix(addr, "unix:")
	if !isUnix {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return nil, &usageError{fmt.Errorf("listen address %q is neither HOST:PORT nor unix:PATH", addr)}
		}
		return lc.Listen(context.Background(), "tcp", addr)
	}
	l, err := lc.Listen(context.Background(), "unix", path)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	c, dialErr := net.Dial("unix", path)
	if dialErr == nil {
		c.Close()
		return nil, err
	}
	if !errors.Is(dialErr, syscall.ECONNREFUSED) {
		return nil, err
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	return lc.Listen(context.Background(), "unix", path)
}
