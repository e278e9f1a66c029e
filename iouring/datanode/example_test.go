//go:build linux || darwin

package datanode_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"strings"

	"github.com/blockpath/blockpath/crc/packet/client"
	"github.com/blockpath/blockpath/iouring/datanode"
)

// A datanode and a client of it in one process.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()

	// the datanode
	store, err := datanode.OpenStore(datanode.StoreConfig{Dirs: []string{dir}})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := datanode.NewServer(store, datanode.ServerConfig{})
	go server.Serve(listener)
	defer server.Shutdown(ctx)

	// the client
	nodes := []string{listener.Addr().String()}
	cfg := client.PutConfig{Pool: client.RandomPool(), BlockSize: 1 << 20}
	manifest := client.NewManifest(cfg.Pool, cfg.Chunks)
	file, _, err := client.Put(ctx, strings.NewReader("every byte verified"), "greeting", nodes, cfg)
	if err != nil {
		log.Fatal(err)
	}
	manifest.Files = append(manifest.Files, file)

	var back bytes.Buffer
	if _, err := client.Get(ctx, &back, manifest, &file, nodes, client.GetConfig{Offset: 6}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(back.String(), file.Composite)

	// the scrubber
	report, err := datanode.Verify(ctx, []string{dir}, datanode.VerifyConfig{})
	fmt.Println(report.Chunks, "chunk,", len(report.Bad), "bad,", err)
	// Output:
	// byte verified COMPOSITE-CRC32C:0x4e3be84a
	// 1 chunk, 0 bad, <nil>
}
