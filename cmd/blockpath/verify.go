package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/blockpath/blockpath/iouring/datanode"
)

func newVerify() *cobra.Command {
	var rate size
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify PATH...",
		Short: "Check every chunk of block files against its stored checksum",
		Long: `Check every chunk of the blocks below each PATH, a data directory of ours or of a
Hadoop datanode, or a block file. Nothing is written.`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			advance, done := newProgress(cmd.ErrOrStderr(), "verify", -1)
			var seen int64
			report, err := datanode.Verify(cmd.Context(), args, datanode.VerifyConfig{
				Rate: int64(rate),
				Progress: func(_ string, r *datanode.Report) {
					advance(r.Bytes - seen)
					seen = r.Bytes
				},
			})
			done()
			if report != nil {
				print := printReport
				if asJSON {
					print = func(w io.Writer, r *datanode.Report) error { return writeJSON(w, r) }
				}
				if err := print(cmd.OutOrStdout(), report); err != nil {
					return err
				}
			}
			if err == nil && !report.OK() {
				err = errors.New("verify: not everything verified")
			}
			return err
		},
	}
	cmd.Flags().Var(&rate, "rate", "read at most this many bytes per second")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// printReport lists what is wrong, a line each, and then the totals.
func printReport(w io.Writer, r *datanode.Report) error {
	for _, b := range r.Bad {
		fmt.Fprintf(w, "%s: offset %d: checksum mismatch: expected %08x, computed %08x", b.File, b.Offset, b.Expected, b.Computed)
		if b.Bit >= 0 {
			fmt.Fprintf(w, "; bit %d of the chunk is flipped", b.Bit)
		}
		fmt.Fprintln(w)
	}
	for _, e := range r.Errors {
		fmt.Fprintf(w, "%s: offset %d: %s\n", e.File, e.Offset, e.Reason)
	}
	for _, list := range []struct {
		paths []string
		what  string
	}{
		{r.LongMeta, "checksums for data that is not there"},
		{r.Orphans, "the other file of the pair is missing"},
		{r.Misplaced, "not in the directory that its id asks for"},
		{r.Irregular, "not a regular file"},
	} {
		for _, p := range list.paths {
			fmt.Fprintf(w, "%s: %s\n", p, list.what)
		}
	}
	_, err := fmt.Fprintf(w, "%d files, %d chunks, %s verified; %d bad chunks\n",
		r.Files, r.Chunks, humanize.IBytes(uint64(r.Bytes)), len(r.Bad))
	return err
}
