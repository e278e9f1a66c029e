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
	command, err := buildCommand(filepath.Join(t.dir, "bin"))
	if err != nil {
		return err
	}
	var files []fileShape
	for i := range t.times(12) {
		c := crc.Chunks{Kind: diskKinds[i/6%2], Size: []int{512, 4096, 7}[i/12%3]}
		files = append(files, fileShape{c, c.Size << 12, 20001 + i})
	}
	if err := t.put(fileShape{crc.Chunks{Kind: crc.CRC32C, Size: 512}, 1 << 20, 100001}); err != nil { // it stays as it is
		return err
	}
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
	t.same(report.Files > int64(len(files)), true, "blocks in the data directories: %d", report.Files)

	var wantPaths, hidden, wantChunks []string
	var scanned []any
	for i, f := range files {
		chunk, short, err := t.flipReplica(f, blocks[i], i)
		if err != nil {
			return err
		}
		wantChunks = append(wantChunks, fmt.Sprint(blocks[i].block, " ", chunk))
		path := string(f.path())
		if short {
			hidden = append(hidden, path)
		} else {
			wantPaths = append(wantPaths, path)
		}
		scanned = append(scanned, f.path())
	}
	if report, out, err = runVerify(command, dirs); err != nil {
		return err
	}
	var bad []string
	for _, b := range report.Bad {
		bad = append(bad, fmt.Sprint(b.File, " ", b.Offset))
	}
	slices.Sort(bad)
	slices.Sort(wantChunks)
	t.same(bad, wantChunks, "what blockpath verify finds: %s", out)

	answer, refused := t.ask("cluster.scan", append([]any{patience.Milliseconds(), len(wantPaths)}, scanned...)...)
	if refused != nil {
		return refused
	}
	var corrupt []string
	for _, a := range answer {
		corrupt = append(corrupt, string(hadoop.Bytes(a)))
	}
	// A datanode keeps the checksum of a short last chunk in memory, and its scanner
	// verifies with that, not with what is on the disk.
	for _, path := range hidden {
		if i := slices.Index(corrupt, path); i >= 0 {
			corrupt = slices.Delete(corrupt, i, i+1)
			t.agreed++
		} else {
			t.strict("the last checksum of a .meta file, if its chunk is short")
		}
	}
	slices.Sort(corrupt)
	slices.Sort(wantPaths)
	t.same(corrupt, wantPaths, "what Hadoop's scanner finds")
	return nil
}

// flipReplica flips a bit of a replica: in the first, the last or any byte of its
// data or its checksums. It returns the block offset of the chunk that is damaged,
// and whether it was the checksum of a short one.
func (t *trial) flipReplica(f fileShape, r replica, i int) (chunk int, short bool, err error) {
	file, first, length, per := r.block, 0, f.length, f.Size // bytes of a chunk in the file
	if i%6 >= 3 {
		file, first, length, per = r.meta, datanode.MetaHeaderLen, f.SumsLen(f.length), 4
	}
	at := [...]int{0, length - 1, t.rng.IntN(length)}[i%3]
	chunk = at / per * f.Size
	return chunk, file == r.meta && chunk+f.Size > f.length, flipByte(file, int64(first+at))
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
