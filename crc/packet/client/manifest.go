package client

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/blockpath/blockpath/crc"
)

// ManifestVersion is the version of the manifests that this package writes, and
// the only one that it reads.
const ManifestVersion = 1

// A Manifest says what files consist of. It is kept as JSON.
type Manifest struct {
	Version          int    `json:"version"`
	Pool             string `json:"pool"`               // block pool of all blocks
	Checksum         string `json:"checksum"`           // "crc32c", "crc32" or "none"
	BytesPerChecksum int    `json:"bytes_per_checksum"` // chunk size
	Files            []File `json:"files"`
}

// A File is a file as blocks.
type File struct {
	Name   string  `json:"name"`   // a relative path with slashes
	Length int64   `json:"length"` // bytes
	Blocks []Block `json:"blocks"`

	// Composite and MD5 are HDFS's file checksums as "NAME:HEX", Composite's HEX
	// after 0x. Files without checksums have neither.
	Composite string `json:"composite,omitempty"`
	MD5       string `json:"md5,omitempty"`
	SHA256    string `json:"sha256,omitempty"` // hex, if it was asked for
}

// A Block is a block of a file.
type Block struct {
	ID     int64 `json:"id"`
	Stamp  int64 `json:"stamp"`  // generation stamp
	Length int64 `json:"length"` // bytes

	// CRC is the CRC of the block's data, in hex, of the manifest's checksum type.
	CRC string `json:"crc,omitempty"`
}

// A ManifestError reports what is wrong with a manifest.
type ManifestError struct {
	What string // the field, such as "files[2].length"
	Want string
	Got  string
	Err  error // of the JSON, if that is what is wrong
}

func (e *ManifestError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("client: the manifest is not JSON of the right shape: %v", e.Err)
	}
	return fmt.Sprintf("client: manifest: %s is %s, want %s", e.What, e.Got, e.Want)
}

// Unwrap returns Err.
func (e *ManifestError) Unwrap() error { return e.Err }

// NewManifest returns a manifest without files.
func NewManifest(pool string, c crc.Chunks) *Manifest {
	return &Manifest{Version: ManifestVersion, Pool: pool, Checksum: c.Kind.String(), BytesPerChecksum: c.BytesPerChunk(), Files: []File{}}
}

// ReadManifest reads and checks a manifest. What is wrong with it is a
// *[ManifestError]; names of files are relative paths that do not leave the
// directory they are taken in.
func ReadManifest(r io.Reader) (*Manifest, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	m := new(Manifest)
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(m); err != nil {
		return nil, &ManifestError{Err: err}
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, &ManifestError{Err: errors.New("something follows the object")}
	}
	return m, m.check()
}

// Write writes the manifest as indented JSON.
func (m *Manifest) Write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(m)
}

// Chunks returns how the files are checksummed.
func (m *Manifest) Chunks() crc.Chunks {
	kind, err := crc.ParseKind(m.Checksum)
	if err != nil {
		panic(err) // not a manifest of ReadManifest or NewManifest
	}
	return crc.Chunks{Kind: kind, Size: m.BytesPerChecksum}
}

func (m *Manifest) check() error {
	bad := func(what, want string, got any) error {
		return &ManifestError{What: what, Want: want, Got: fmt.Sprintf("%v", got)}
	}
	if m.Version != ManifestVersion {
		return bad("version", fmt.Sprint(ManifestVersion), m.Version)
	}
	if m.Pool == "" {
		return bad("pool", "a block pool id", `""`)
	}
	kind, err := crc.ParseKind(m.Checksum)
	if err != nil {
		return bad("checksum", "crc32c, crc32 or none", fmt.Sprintf("%q", m.Checksum))
	}
	if m.BytesPerChecksum < 1 || m.BytesPerChecksum > crc.MaxChunkSize {
		return bad("bytes_per_checksum", fmt.Sprintf("1..%d", crc.MaxChunkSize), m.BytesPerChecksum)
	}
	names := map[string]bool{}
	for i, f := range m.Files {
		at := fmt.Sprintf("files[%d]", i)
		if !filepath.IsLocal(filepath.FromSlash(f.Name)) {
			return bad(at+".name", "a relative path below the directory", fmt.Sprintf("%q", f.Name))
		}
		if names[f.Name] {
			return bad(at+".name", "a name of its own", fmt.Sprintf("%q", f.Name))
		}
		names[f.Name] = true
		left := f.Length
		for j, b := range f.Blocks {
			if b.Length < 1 || b.Length > left {
				return bad(fmt.Sprintf("%s.blocks[%d].length", at, j), fmt.Sprintf("1..%d", left), b.Length)
			}
			left -= b.Length
			if _, ok := b.sum(); !ok || (b.CRC == "") != (kind == crc.None) {
				return bad(fmt.Sprintf("%s.blocks[%d].crc", at, j), "8 hex digits", fmt.Sprintf("%q", b.CRC))
			}
		}
		if left != 0 {
			return bad(at+".length", "the sum of the blocks' lengths", f.Length)
		}
		if b, err := hex.DecodeString(f.SHA256); err != nil || len(b) != 0 && len(b) != 32 {
			return bad(at+".sha256", "64 hex digits", fmt.Sprintf("%q", f.SHA256))
		}
	}
	return nil
}

// sum decodes CRC.
func (b *Block) sum() (uint32, bool) {
	if b.CRC == "" {
		return 0, true
	}
	raw, err := hex.DecodeString(b.CRC)
	if err != nil || len(raw) != 4 {
		return 0, false
	}
	return uint32(raw[0])<<24 | uint32(raw[1])<<16 | uint32(raw[2])<<8 | uint32(raw[3]), true
}
