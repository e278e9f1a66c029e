//go:build linux || darwin

package datanode

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/blockpath/blockpath/crc/packet"
)

// Directory names of HDFS.
const (
	currentDir   = "current"
	rbwDir       = "rbw"
	finalizedDir = "finalized"
	tmpDir       = "tmp"
	lockFile     = "in_use.lock"
)

// poolID is what a block pool id has to look like: it becomes a directory name.
var poolID = regexp.MustCompile(`^BP-[A-Za-z0-9._-]{1,240}$`)

// ValidPool reports whether id is a block pool id that a store accepts: "BP-"
// and 1 to 240 letters, digits, '.', '_' and '-', without "..".
func ValidPool(id string) bool {
	return poolID.MatchString(id) && !strings.Contains(id, "..")
}

// BlockName returns the name of a block's data file, blk_ID.
func BlockName(id int64) string { return "blk_" + strconv.FormatInt(id, 10) }

// MetaName returns the name of a block's checksum file, blk_ID_STAMP.meta.
func MetaName(id, stamp int64) string { return fmt.Sprintf("blk_%d_%d.meta", id, stamp) }

// ParseBlockName is the inverse of [BlockName].
func ParseBlockName(name string) (id int64, ok bool) {
	digits, ok := strings.CutPrefix(name, "blk_")
	if !ok {
		return 0, false
	}
	return parseID(digits)
}

// ParseMetaName is the inverse of [MetaName].
func ParseMetaName(name string) (id, stamp int64, ok bool) {
	name, ok = strings.CutSuffix(name, ".meta")
	if !ok {
		return 0, 0, false
	}
	digits, ok := strings.CutPrefix(name, "blk_")
	if !ok {
		return 0, 0, false
	}
	first, second, ok := strings.Cut(digits, "_")
	if !ok {
		return 0, 0, false
	}
	id, ok = parseID(first)
	if !ok {
		return 0, 0, false
	}
	stamp, ok = parseID(second)
	return id, stamp, ok && stamp >= 0
}

// parseID parses a decimal that is written as FormatInt writes it, so that
// every number has one name only.
func parseID(s string) (int64, bool) {
	v, err := strconv.ParseInt(s, 10, 64)
	return v, err == nil && strconv.FormatInt(v, 10) == s
}

// subdirs returns the directory below finalized that a block belongs to. The
// shift is arithmetic, ids may be negative (layout version -57, HDFS-8791).
func subdirs(id int64) string {
	return fmt.Sprintf("subdir%d/subdir%d", id>>16&0x1f, id>>8&0x1f)
}

// poolDir returns the directory of a pool's rbw and finalized below root.
func poolDir(root, pool string) string {
	return filepath.Join(root, currentDir, pool, currentDir)
}

func rbwPath(root, pool string) string { return filepath.Join(poolDir(root, pool), rbwDir) }

func finalizedPath(root, pool string, id int64) string {
	return filepath.Join(poolDir(root, pool), finalizedDir, subdirs(id))
}

func tmpPath(root, pool string) string {
	return filepath.Join(root, currentDir, pool, tmpDir)
}

// blockKey identifies a block in a store: the generation stamp is a property of
// the one replica that may exist.
type blockKey struct {
	pool string
	id   int64
}

func keyOf(b packet.Block) blockKey { return blockKey{b.Pool, b.ID} }
