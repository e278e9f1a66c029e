package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/blockpath/blockpath/crc/packet/client"
)

// getResult is what get prints.
type getResult struct {
	transfer
	Output string `json:"output"`
}

func newGet() *cobra.Command {
	var from []string
	var output string
	var offset, length, rate size
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "get MANIFEST --from ADDR -o PATH",
		Short: "Get the files of a manifest back",
		Long: `Get the files of a manifest from datanodes, verified. --from given several times
names replicas: when one fails, the next goes on. PATH is a file, or a directory when
the manifest has several files; - is standard output.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(from) == 0 || output == "" {
				return &usageError{errors.New("get needs --from and -o")}
			}
			m, err := loadManifest(args[0])
			if err != nil {
				return err
			}
			ranged := cmd.Flags().Changed("offset") || cmd.Flags().Changed("length")
			if ranged && len(m.Files) != 1 {
				return &usageError{fmt.Errorf("--offset and --length need a manifest of one file, this one has %d", len(m.Files))}
			}
			cfg := client.GetConfig{Offset: int64(offset), Length: int64(length), SHA256: true, Rate: int64(rate)}
			result := getResult{transfer: transfer{Kernel: kernelFor(m.Chunks(), "copyverify")}, Output: output}
			watch := startWatch()
			for i := range m.Files {
				if err := getFile(cmd.Context(), m, &m.Files[i], from, cfg, output, &result.transfer, cmd); err != nil {
					return err
				}
			}
			watch.stop(&result.transfer)
			report := cmd.OutOrStdout()
			if output == "-" {
				report = cmd.ErrOrStderr()
			}
			if asJSON {
				return writeJSON(report, result)
			}
			out := newTable(report)
			result.print(out, "get")
			out.row("output", "%s", output)
			return out.flush()
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&from, "from", nil, "datanode; several are replicas")
	flags.StringVarP(&output, "output", "o", "", "where to write")
	flags.Var(&offset, "offset", "first byte to get")
	flags.Var(&length, "length", "how many bytes to get; 0 means up to the end")
	flags.Var(&rate, "rate", "receive at most this many bytes per second")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func loadManifest(path string) (*client.Manifest, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := client.ReadManifest(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// getFile gets one file of a manifest and adds what it took to t. What has been
// written when an error comes stays, all of it verified.
func getFile(ctx context.Context, m *client.Manifest, f *client.File, from []string, cfg client.GetConfig, output string, t *transfer, cmd *cobra.Command) (err error) {
	w, closeOutput, err := openOutput(output, f.Name, len(m.Files) > 1, cmd.OutOrStdout())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeOutput()) }()
	progress, done := newProgress(cmd.ErrOrStderr(), "get "+f.Name, f.Length)
	cfg.Progress = progress
	stats, err := client.Get(ctx, w, m, f, from, cfg)
	done()
	t.Files++
	t.Bytes += stats.Bytes
	t.Blocks += stats.Blocks
	return err
}

// openOutput opens what a file is written to.
func openOutput(output, name string, several bool, stdout io.Writer) (io.Writer, func() error, error) {
	if output == "-" {
		return stdout, func() error { return nil }, nil
	}
	path := output
	if info, err := os.Stat(output); several || err == nil && info.IsDir() {
		path = filepath.Join(output, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, nil, err
		}
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, nil, err
	}
	return f, f.Close, nil
}
