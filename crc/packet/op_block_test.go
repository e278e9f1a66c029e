package packet

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/blockpath/blockpath/crc"
)

const (
	exampleHeader = "0a200a1042502d312d3132372e302e302e312d3110818080800418e907208080804012080a0012001a002200"
	exampleClient = "121a444653436c69656e745f4e4f4e4d41505245445543455f315f31"
)

// The bytes are those of Hadoop's Sender.
func TestBlockRequestKnownAnswers(t *testing.T) {
	empty := Token{Identifier: []byte{}, Password: []byte{}}
	client := "DFSClient_NONMAPREDUCE_1_1"
	for wire, want := range map[string]interface{ Append([]byte) []byte }{
		"001c5534 0a2c" + exampleHeader + "120408011000":     &BlockChecksum{Block: exampleBlock(), Token: empty, Type: MD5CRC},
		"001c5536 0a2c" + exampleHeader + "1206080210808004": &BlockChecksum{Block: exampleBlock(), Token: empty, Type: CompositeCRC, StripeLength: 65536},
		"001c564c 0a4a 0a2c" + exampleHeader + exampleClient: &TransferBlock{Block: exampleBlock(), Token: empty, ClientName: client},
		"001c5654 0a4a 0a2c" + exampleHeader + exampleClient + "1802 220444532d32": &TransferBlock{
			Block: exampleBlock(), Token: empty, ClientName: client, TargetStorageTypes: []StorageType{SSD}, TargetStorageIDs: []string{"DS-2"},
		},
	} {
		b := unhex(t, wire)
		if got := want.Append(nil); !bytes.Equal(got, b) {
			t.Errorf("%x\nwant %x", got, b)
		}
		if got, err := ReadRequest(buffered(b), 0); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v\nwant %+v", got, err, want)
		}
		for n := 1; n < len(b); n++ {
			var e *FormatError
			if _, err := ReadRequest(buffered(b[:n]), 0); !errors.As(err, &e) {
				t.Errorf("cut after %d bytes: %v", n, err)
			}
		}
	}

	// With a target, which Hadoop sends with statistics.
	wire := unhex(t, "001c56a401 0a4a 0a2c"+exampleHeader+exampleClient+
		"124e0a1f0a093132372e302e302e32120268321a027532208a4d28884d308b4d38894d100018002000280030003800420d2f64656661756c742d7261636b4800500058006000680078008001008801001802220444532d32")
	want := &TransferBlock{
		Block: exampleBlock(), Token: empty, ClientName: client,
		Targets:            []DatanodeInfo{{IPAddr: "127.0.0.2", HostName: "h2", UUID: "u2", XferPort: 9866, InfoPort: 9864, InfoSecurePort: 9865, IPCPort: 9867}},
		TargetStorageTypes: []StorageType{SSD}, TargetStorageIDs: []string{"DS-2"},
	}
	if got, err := ReadRequest(buffered(wire), 0); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
	if got, err := ReadRequest(buffered(want.Append(nil)), 0); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("our own: %+v, %v\nwant %+v", got, err, want)
	}
}

func TestBlockRequestDefaults(t *testing.T) {
	head := "0a2c" + exampleHeader
	want := &BlockChecksum{Block: exampleBlock(), Token: Token{Identifier: []byte{}, Password: []byte{}}, Type: MD5CRC}
	for _, wire := range []string{"001c552e" + head, "001c5530" + head + "1200", "001c5532" + head + "12021000", "001c5534" + head + "12020800 1200"} {
		if got, err := ReadRequest(buffered(unhex(t, wire)), 0); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", wire, got, err)
		}
	}
	if got := (&BlockChecksum{Block: exampleBlock(), Token: Token{}}).Append(nil); !bytes.Equal(got, want.Append(nil)) {
		t.Errorf("the zero type: %x", got)
	}
	extreme := &BlockChecksum{
		Block: Block{Pool: "BP-x", ID: math.MinInt64, Stamp: -1, NumBytes: math.MaxInt64}, Token: Token{Identifier: []byte{1}, Password: []byte{}},
		TraceInfo: []byte{8, 1}, Type: math.MaxUint32, StripeLength: -1,
	}
	if got, err := ReadRequest(buffered(extreme.Append(nil)), 0); err != nil || !reflect.DeepEqual(got, extreme) {
		t.Errorf("%+v, %v\nwant %+v", got, err, extreme)
	}
	for name, wire := range map[string]string{
		"no header":          "001c55 06 120408011000",
		"no header, 86":      "001c56 02 1802",
		"no block":           "001c55 02 0a00",
		"options cut":        "001c5531" + head + "12ff08",
		"target without id":  "001c564e 0a4a 0a2c" + exampleHeader + exampleClient + "1200",
		"header of a client": "001c564c 0a4c 0a2c" + exampleHeader + exampleClient,
	} {
		var e *FormatError
		if _, err := ReadRequest(buffered(append(unhex(t, wire), make([]byte, 100)...)), 0); !errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBlockChecksumResponse(t *testing.T) {
	md5 := []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	want := BlockOpResponse{BlockChecksum: &BlockChecksumInfo{Chunks: crc.Chunks{Size: 512}, ChunksPerBlock: 262144, Checksum: md5, Type: MD5CRC}}
	wire := unhex(t, "2508001a21088004108080101a10000102030405060708090a0b0c0d0e0f20022a0408011000")
	if got := want.Append(nil); !bytes.Equal(got, wire) {
		t.Errorf("%x, want %x", got, wire)
	}
	if got, err := ReadBlockOpResponse(buffered(wire)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got.BlockChecksum, err)
	}
	// An old datanode names neither the type nor the options.
	old := unhex(t, "1d08001a19088004108080101a10000102030405060708090a0b0c0d0e0f")
	want.BlockChecksum.Chunks.Kind = crc.CRC32
	if got, err := ReadBlockOpResponse(buffered(old)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got.BlockChecksum, err)
	}
	var header *crc.HeaderError
	var format *FormatError
	if _, err := ReadBlockOpResponse(buffered(unhex(t, "0c08001a08 088004 1001 1a00 2003")[:13])); !errors.As(err, &format) {
		t.Errorf("cut: %v", err)
	}
	if _, err := ReadBlockOpResponse(buffered(unhex(t, "0d08001a09 088004 1001 1a00 2003"))); !errors.As(err, &header) {
		t.Errorf("MIXED: %v", err)
	}
	if _, err := ReadBlockOpResponse(buffered(unhex(t, "0708001a03 088004"))); !errors.As(err, &format) {
		t.Errorf("without a checksum: %v", err)
	}
	for kind, name := range map[ChecksumType]string{MD5CRC: "MD5CRC", CompositeCRC: "COMPOSITE_CRC", 9: "ChecksumType(9)"} {
		if kind.String() != name {
			t.Errorf("%v, want %s", kind, name)
		}
	}
}
