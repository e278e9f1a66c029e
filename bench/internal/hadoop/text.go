package hadoop

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/blockpath/blockpath/crc/packet"
)

// ClientName is the client in whose name Cluster.java makes files.
const ClientName = "blockpath-interop"

// StorageTypes are the names of storage types by their number on the wire.
var StorageTypes = [...]string{"", "DISK", "SSD", "ARCHIVE", "RAM_DISK", "PROVIDED", "NVDIMM"}

// Join makes a list as a JVM reads it.
func Join[E any](values []E, text func(E) string) string {
	if len(values) == 0 {
		return "."
	}
	var s []string
	for _, v := range values {
		s = append(s, text(v))
	}
	return strings.Join(s, ",")
}

// NodeText is a node as a JVM reads it.
func NodeText(d packet.DatanodeInfo) string {
	return fmt.Sprintf("%s:%s:%s:%d:%d:%d:%d", Text(d.IPAddr), Text(d.HostName), Text(d.UUID),
		d.XferPort, d.InfoPort, d.InfoSecurePort, d.IPCPort)
}

// ParseNode reads a node as a JVM writes it.
func ParseNode(text string) packet.DatanodeInfo {
	f := strings.Split(text, ":")
	return packet.DatanodeInfo{
		IPAddr: string(Bytes(f[0])), HostName: string(Bytes(f[1])), UUID: string(Bytes(f[2])),
		XferPort: uint32(Int(f[3])), InfoPort: uint32(Int(f[4])), InfoSecurePort: uint32(Int(f[5])), IPCPort: uint32(Int(f[6])),
	}
}

// Addr is where a node takes data.
func Addr(d packet.DatanodeInfo) string {
	return net.JoinHostPort(d.IPAddr, strconv.Itoa(int(d.XferPort)))
}

// BlockText is a block as a JVM reads it.
func BlockText(b packet.Block) string {
	return fmt.Sprintf("%s %d %d %d", Text(b.Pool), b.ID, b.Stamp, b.NumBytes)
}

// A Located is a block and where it goes.
type Located struct {
	Block packet.Block
	Token packet.Token
	Nodes []packet.DatanodeInfo
	Types []packet.StorageType
	IDs   []string // of the nodes' storages
}

// ParseLocated reads what Cluster.java says of a block.
func ParseLocated(a []string) Located {
	l := Located{
		Block: packet.Block{Pool: string(Bytes(a[0])), ID: Int(a[1]), Stamp: Int(a[2]), NumBytes: Int(a[3])},
		Token: packet.Token{
			Identifier: Bytes(a[4]), Password: Bytes(a[5]),
			Kind: string(Bytes(a[6])), Service: string(Bytes(a[7])),
		},
	}
	for _, n := range strings.Split(a[8], ",") {
		l.Nodes = append(l.Nodes, ParseNode(n))
	}
	for _, s := range strings.Split(a[9], ",") {
		l.Types = append(l.Types, packet.StorageType(max(slices.Index(StorageTypes[:], s), 0)))
	}
	for _, s := range strings.Split(a[10], ",") {
		l.IDs = append(l.IDs, string(Bytes(s)))
	}
	return l
}

// Addrs returns where the nodes take data.
func (l Located) Addrs() (all []string) {
	for _, n := range l.Nodes {
		all = append(all, Addr(n))
	}
	return all
}

// Request asks for a pipeline through the block's nodes.
func (l Located) Request(stage packet.Stage, blockSize int64) packet.WriteBlock {
	b := l.Block
	b.NumBytes = blockSize
	return packet.WriteBlock{
		Block: b, Token: l.Token, ClientName: ClientName, Stage: stage,
		Targets: l.Nodes[1:], PipelineSize: uint32(len(l.Nodes)),
		StorageType: l.Types[0], StorageID: l.IDs[0], TargetStorageTypes: l.Types[1:], TargetStorageIDs: l.IDs[1:],
	}
}

// Without returns the block's location without one node.
func (l Located) Without(i int) Located {
	l.Nodes = slices.Delete(slices.Clone(l.Nodes), i, i+1)
	l.Types = slices.Delete(slices.Clone(l.Types), i, i+1)
	l.IDs = slices.Delete(slices.Clone(l.IDs), i, i+1)
	return l
}

// At is the block on one node.
func (l Located) At(node packet.DatanodeInfo) Located {
	l.Nodes, l.Types, l.IDs = []packet.DatanodeInfo{node}, []packet.StorageType{packet.Disk}, []string{"DS-" + node.UUID}
	return l
}
