// Command blockpath moves, serves and scrubs blocks.
//
//	blockpath roundtrip FILE         put FILE into an embedded datanode, get it back, compare
//	blockpath put FILE... --to ADDR --manifest FILE
//	blockpath get MANIFEST --from ADDR -o PATH
//	blockpath serve --dir DIR --listen ADDR
//	blockpath verify PATH...         check every chunk of block files
//	blockpath checksum FILE...       HDFS file checksums of local files
//	blockpath cpu                    features, kernels and their speed
//
// ADDR is HOST:PORT or unix:PATH. The exit code is 0 if everything verified, 1
// for a failure and 2 for wrong usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// A usageError is a wrong command line: exit code 2.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "blockpath: %v\n", err)
	var usage *usageError
	if errors.As(err, &usage) {
		fmt.Fprintln(stderr, "blockpath: try 'blockpath help'")
		return 2
	}
	return 1
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "blockpath",
		Short:         "Move, serve and scrub blocks in HDFS's formats",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return &usageError{errors.New("a command is missing")}
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newRoundtrip(), newPut(), newGet(), newServe(), newVerify(), newChecksum(), newCPU())
	return root
}

// usageArgs makes an argument check's error a usageError.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &usageError{err}
		}
		return nil
	}
}
