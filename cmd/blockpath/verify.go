package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/blockpath/blockpath/iouring/datanode"
)

func newVerify() *cobra.Command {
	var rate size
	var state string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify PATH...",
		Short: "Check every chunk of block files against its stored checksum",
		Long: `Check every chunk of the blocks below each PATH, a data directory of ours or of a
Hadoop datanode, or a block file. Nothing is written there.

With --state the run can be stopped at any time, even killed: the same command
goes on where it was, and in the end reports what all its runs have found.`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			report, err := verify(cmd, args, int64(rate), state)
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
	cmd.Flags().StringVar(&state, "state", "", "keep in this `file` how far the run is, and go on from there")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// saveInterval is how often a verification notes how far it is.
const saveInterval = time.Second

func verify(cmd *cobra.Command, paths []string, rate int64, stateFile string) (*datanode.Report, error) {
	state := verifyState{Paths: paths}
	if stateFile != "" {
		if err := state.load(stateFile); err != nil {
			return nil, err
		}
	}
	advance, done := newProgress(cmd.ErrOrStderr(), "verify", -1)
	var seen int64
	var saved time.Time
	var saveErr error
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	report, err := datanode.Verify(ctx, paths, datanode.VerifyConfig{
		Rate: rate, After: state.After, Report: state.Report,
		Progress: func(path string, r *datanode.Report) {
			advance(r.Bytes - seen)
			seen = r.Bytes
			state.After, state.Report = path, r
			if stateFile != "" && time.Since(saved) >= saveInterval {
				saved = time.Now()
				if saveErr = state.save(stateFile); saveErr != nil {
					cancel()
				}
			}
		},
	})
	done()
	switch {
	case saveErr != nil:
		return report, saveErr
	case stateFile == "":
		return report, err
	case err == nil:
		if err := os.Remove(stateFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return report, err
		}
		return report, nil
	}
	if state.After != "" {
		state.Report = report
		err = errors.Join(err, state.save(stateFile))
	}
	return report, err
}

// A verifyState is how far a verification has come.
type verifyState struct {
	Paths  []string         `json:"paths"`
	After  string           `json:"after"`
	Report *datanode.Report `json:"report"`
}

// load goes on from the state in a file, if there is one.
func (s *verifyState) load(name string) error {
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var old verifyState
	if err := json.Unmarshal(b, &old); err != nil || old.After == "" || old.Report == nil {
		return fmt.Errorf("%s is not the state of a verification", name)
	}
	if !slices.Equal(old.Paths, s.Paths) {
		return fmt.Errorf("%s is the state of verifying %q: remove it to begin another run", name, old.Paths)
	}
	*s = old
	return nil
}

// save replaces the state in a file.
func (s *verifyState) save(name string) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.WriteFile(name+".new", b, 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
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
