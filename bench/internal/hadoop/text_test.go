package hadoop

import (
	"reflect"
	"strings"
	"testing"

	"github.com/blockpath/blockpath/crc/packet"
)

func TestText(t *testing.T) {
	node := packet.DatanodeInfo{IPAddr: "127.0.0.1", HostName: "localhost", UUID: "a-b", XferPort: 9866, InfoPort: 9864, IPCPort: 9867}
	if got := ParseNode(NodeText(node)); !reflect.DeepEqual(got, node) {
		t.Errorf("%+v became %+v", node, got)
	}
	other := node
	other.XferPort = 1234
	want := Located{
		Block: packet.Block{Pool: "BP-1", ID: -3, Stamp: 1001, NumBytes: 77},
		Token: packet.Token{Identifier: []byte{1}, Kind: "k"},
		Nodes: []packet.DatanodeInfo{node, other}, Types: []packet.StorageType{packet.Disk, 2}, IDs: []string{"DS-1", "DS-2"},
	}
	got := ParseLocated(strings.Split(BlockText(want.Block)+" 01 - "+Text("k")+" - "+Join(want.Nodes, NodeText)+
		" DISK,SSD "+Join(want.IDs, Text), " "))
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v became %+v", want, got)
	}
	if got := want.Addrs(); !reflect.DeepEqual(got, []string{"127.0.0.1:9866", "127.0.0.1:1234"}) {
		t.Errorf("addresses %q", got)
	}
	rest := want.Without(0)
	if len(rest.Nodes) != 1 || rest.Nodes[0].XferPort != 1234 || rest.Types[0] != 2 || rest.IDs[0] != "DS-2" || len(want.Nodes) != 2 {
		t.Errorf("without the first: %+v of %+v", rest, want)
	}
	request := want.Request(packet.SetupCreate, 1<<20)
	if request.Block.NumBytes != 1<<20 || request.PipelineSize != 2 || len(request.Targets) != 1 || request.StorageID != "DS-1" {
		t.Errorf("request %+v", request)
	}
}
