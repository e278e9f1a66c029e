package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/crc/packet/client"
)

func newChecksum() *cobra.Command {
	blockSize, bytesPerChecksum := size(client.DefaultBlockSize), size(crc.DefaultChunkSize)
	var checksum kind
	var mode string
	cmd := &cobra.Command{
		Use:   "checksum FILE...",
		Short: "Print the checksums that HDFS would give local files",
		Long: `Print what "hdfs dfs -checksum" prints for a file with the same content, block size,
chunk size and checksum type: the path, the algorithm and the checksum in hex,
separated by tabs.`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if mode != "md5" && mode != "composite" {
				return &usageError{fmt.Errorf("--mode is %q, expected md5 or composite", mode)}
			}
			if crc.Kind(checksum) == crc.None {
				return &usageError{errors.New("--checksum none: there is no checksum to print")}
			}
			f := putFlags{blockSize: blockSize, bytesPerChecksum: bytesPerChecksum, checksum: checksum}
			cfg, err := f.config()
			if err != nil {
				return err
			}
			for _, path := range args {
				sum, err := fileSum(cmd.Context(), path, cfg.Chunks, cfg.BlockSize, cmd.ErrOrStderr())
				if err != nil {
					return err
				}
				name, value := sum.MD5Name(), sum.AppendMD5(nil)
				if mode == "composite" && !sum.Empty() { // HDFS has no composite checksum of nothing
					name, value = sum.CompositeName(), sum.AppendComposite(nil)
				}
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\t%s\t%x\n", path, name, value); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().Var(&blockSize, "block-size", "block size, a multiple of --bytes-per-checksum")
	cmd.Flags().Var(&bytesPerChecksum, "bytes-per-checksum", "chunk size")
	cmd.Flags().Var(&checksum, "checksum", "crc32c or crc32")
	cmd.Flags().StringVar(&mode, "mode", "md5", "md5 or composite")
	return cmd
}

// fileSum reads a file and returns its checksums.
func fileSum(ctx context.Context, path string, c crc.Chunks, blockSize int64, stderr io.Writer) (crc.FileSum, error) {
	f, err := os.Open(path)
	if err != nil {
		return crc.FileSum{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return crc.FileSum{}, err
	}
	progress, done := newProgress(stderr, "checksum "+path, info.Size())
	defer done()

	bpc := c.BytesPerChunk()
	buf := make([]byte, max(readSize/bpc, 1)*bpc)
	var sums []byte
	var blocks []crc.BlockSum
	for {
		block, summer := io.LimitReader(f, blockSize), crc.NewBlockSummer(c)
		length := int64(0)
		for {
			n, err := io.ReadFull(block, buf)
			sums = c.Append(sums[:0], buf[:n])
			summer.Add(sums)
			length += int64(n)
			progress(int64(n))
			if err == io.EOF || err == io.ErrUnexpectedEOF {
				break
			}
			if err != nil {
				return crc.FileSum{}, err
			}
			if ctx.Err() != nil {
				return crc.FileSum{}, ctx.Err()
			}
		}
		if length == 0 {
			return crc.NewFileSum(c, blocks), nil
		}
		sum, err := summer.Sum(length)
		if err != nil {
			return crc.FileSum{}, err
		}
		blocks = append(blocks, sum)
	}
}

// readSize is how much is read from a file at once.
const readSize = 1 << 20
