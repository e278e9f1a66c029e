package peer

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/blockpath/blockpath/iouring/datanode"
)

// A Datanode is a store and a server of it on a loopback port.
type Datanode struct {
	Addr   string
	Store  *datanode.Store
	Server *datanode.Server

	dir    string
	served chan error
}

// StartDatanode starts a datanode in a new directory below dir. Close must be
// called.
func StartDatanode(dir string) (*Datanode, error) {
	d := &Datanode{served: make(chan error, 1)}
	var err error
	if d.dir, err = os.MkdirTemp(dir, "datanode-"); err != nil {
		return nil, err
	}
	if d.Store, err = datanode.OpenStore(datanode.StoreConfig{Dirs: []string{d.dir}}); err != nil {
		return nil, err
	}
	l, err := Listen()
	if err != nil {
		return nil, errors.Join(err, d.Store.Close())
	}
	d.Addr = l.Addr().String()
	d.Server = datanode.NewServer(d.Store, datanode.ServerConfig{})
	go func() { d.served <- d.Server.Serve(l) }()
	return d, nil
}

// Forget removes the files of all blocks, which must be finalized. Their ids
// cannot be used again.
func (d *Datanode) Forget() error {
	files, err := filepath.Glob(filepath.Join(d.dir, "current", Pool, "current", "finalized", "*", "*", "blk_*"))
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}

// Close stops the datanode and removes its directory.
func (d *Datanode) Close() error {
	err := d.Server.Shutdown(context.Background())
	return errors.Join(err, <-d.served, d.Store.Close(), os.RemoveAll(d.dir))
}
