package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/blockpath/blockpath/bench/internal/hadoop"
	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/iouring/datanode"
)

// scanChecks come before those that make a datanode store what it should not
// (a packet across a chunk boundary costs it a checksum, and we find that), and
// after the others: they leave damaged blocks behind.
var scanChecks = []check{
	{"scan/a datanode's data directories", dataDirectories},
}

// dataDirectories runs "blockpath verify" over everything that the cluster's
// datanodes have stored so far. Then bytes are flipped; the command and
// Hadoop's own scanner must find the same blocks.
func dataDirectories(t *trial) error {
	if err := t.startCluster(); err != nil {
		return err
	}
	command, err := buildCommand(filepath.Join(t.dir, "bin"))
	if err != nil {
		return err
	}
	c := crc.Chunks{Kind: crc.CRC32C, Size: 512}
	files := []fileShape{{c, 1 << 20, 100001}, {c, 1 << 20, 100002}, {c, 1 << 20, 100003}, {c, 1 << 20, 100004}}
	var blocks []replica
	for _, f := range files {
		if err := t.put(f); err != nil {
			return err
		}
		all, err := t.replicas(hadoop.Text(string(f.path())))
		if err != nil {
			return err
		}
		blocks = append(blocks, all[0][0])
	}
	dirs, err := filepath.Glob(filepath.Join(t.judge.clusterDir, "data", "data*"))
	if err != nil {
		return err
	}
	report, out, err := runVerify(command, dirs)
	if err != nil {
		return err
	}
	t.same(report.OK() && len(report.Misplaced) == 0, true, "the data directories: %s", out)
	t.same(report.Files >= int64(len(files)), true, "blocks in the data directories: %d", report.Files)

	// the first and a middle byte of a block, a checksum; the last file stays as it is
	damaged := []struct {
		file   string
		offset int64
	}{
		{blocks[0].block, 0},
		{blocks[1].block, 70001},
		{blocks[2].meta, datanode.MetaHeaderLen + 4*11},
	}
	var wantPaths, wantBlocks []string
	for i, d := range damaged {
		if err := flipByte(d.file, d.offset); err != nil {
			return err
		}
		wantPaths = append(wantPaths, string(files[i].path()))
		wantBlocks = append(wantBlocks, blocks[i].block)
	}
	if report, out, err = runVerify(command, dirs); err != nil {
		return err
	}
	var bad []string
	for _, b := range report.Bad {
		bad = append(bad, b.File)
	}
	slices.Sort(bad)
	slices.Sort(wantBlocks)
	t.same(bad, wantBlocks, "what blockpath verify finds: %s", out)

	args := []any{20000}
	for i := range damaged {
		args = append(args, files[i].path())
	}
	answer, refused := t.ask("cluster.scan", args...)
	if refused != nil {
		return refused
	}
	var corrupt []string
	for _, a := range answer {
		corrupt = append(corrupt, string(hadoop.Bytes(a)))
	}
	slices.Sort(corrupt)
	t.same(corrupt, wantPaths, "what Hadoop's scanner finds")
	return nil
}

// runVerify runs the command. It returns its report and what it printed.
func runVerify(command string, dirs []string) (*datanode.Report, string, error) {
	out, err := exec.Command(command, append([]string{"verify", "--json"}, dirs...)...).Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, "", err
	}
	report := new(datanode.Report)
	if jsonErr := json.Unmarshal(out, report); jsonErr != nil {
		return nil, "", fmt.Errorf("blockpath verify: %w: %s", jsonErr, out)
	}
	if (err == nil) != report.OK() {
		return nil, "", fmt.Errorf("blockpath verify: %v, but its report says %t", err, report.OK())
	}
	return report, string(out), nil
}

func flipByte(path string, at int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		return errors.Join(err, f.Close())
	}
	b[0] ^= 16
	_, err = f.WriteAt(b, at)
	return errors.Join(err, f.Close())
}
