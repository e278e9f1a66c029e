package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/blockpath/blockpath/iouring"
)

func newServe() *cobra.Command {
	var dirs []string
	var addr, backend, metrics string
	cmd := &cobra.Command{
		Use:   "serve --dir DIR --listen ADDR",
		Short: "Serve a block store until SIGTERM or SIGINT",
		Long: `Serve the blocks below each DIR by HDFS's data transfer protocol. Prints
"listening ADDR" when ready. SIGTERM and SIGINT let requests finish; then the exit
code is 0.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(dirs) == 0 || addr == "" {
				return &usageError{errors.New("serve needs --dir and --listen")}
			}
			choice, err := backendChoice(backend)
			if err != nil {
				return err
			}
			n, err := startNode(nodeConfig{
				dirs: dirs, listen: addr, backend: choice, metrics: metrics,
				log: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)),
			})
			if err != nil {
				return err
			}
			caps := n.backend.Capabilities()
			fmt.Fprintf(cmd.OutOrStdout(), "backend %s: %s\n", caps.Backend, caps.Reason)
			if n.metrics != nil {
				fmt.Fprintf(cmd.OutOrStdout(), "metrics %s\n", addressOf(n.metrics.listener))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "listening %s\n", addressOf(n.listener))
			select {
			case <-cmd.Context().Done():
				return n.stop()
			case err := <-n.served:
				return errors.Join(err, n.stop())
			}
		},
	}
	cmd.Flags().StringArrayVar(&dirs, "dir", nil, "data directory; may be repeated")
	cmd.Flags().StringVar(&addr, "listen", "", "HOST:PORT or unix:PATH")
	cmd.Flags().StringVar(&metrics, "metrics", "", "serve Prometheus text at /metrics and expvar at /debug/vars on this address")
	addBackendFlag(cmd, &backend)
	return cmd
}

func addBackendFlag(cmd *cobra.Command, backend *string) {
	cmd.Flags().StringVar(backend, "backend", string(iouring.AutoBackend), "file I/O: auto, ring or syscall")
}

func backendChoice(name string) (iouring.Choice, error) {
	switch c := iouring.Choice(name); c {
	case iouring.AutoBackend, iouring.RingBackend, iouring.SyscallBackend:
		return c, nil
	}
	return "", &usageError{fmt.Errorf("--backend is %q, expected auto, ring or syscall", name)}
}
