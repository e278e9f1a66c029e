package packet

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"reflect"
	"testing"

	"github.com/blockpath/blockpath/crc"
)

// golden calls f for every line of a file that real Hadoop made; see
// testdata/hadoop/README.md.
func golden[T any](t *testing.T, name string, f func(T)) {
	t.Helper()
	b, err := os.ReadFile("testdata/hadoop/" + name)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for dec := json.NewDecoder(bytes.NewReader(b)); ; n++ {
		var v T
		if err := dec.Decode(&v); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		f(v)
	}
	if n == 0 {
		t.Fatalf("%s is empty", name)
	}
}

// sameJSON compares with nil and empty slices alike.
func sameJSON(t *testing.T, got, want any) {
	t.Helper()
	g, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	w, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(g, w) {
		t.Errorf("read %s, want %s", g, w)
	}
}

func sameBytes(t *testing.T, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("wrote %x, want %x", got, want)
	}
}

func TestHadoopGoldenMessages(t *testing.T) {
	kinds := map[string]int{}
	golden(t, "wire.jsonl", func(m struct {
		Header   *Header
		Ack      *Ack
		Write    *WriteBlock
		Read     *ReadBlock
		Response *BlockOpResponse
		Bytes    []byte
	}) {
		r := bufio.NewReader(bytes.NewReader(m.Bytes))
		switch {
		case m.Header != nil:
			kinds["header"]++
			h, err := ParseHeader(m.Bytes[6:])
			if err != nil {
				t.Fatalf("%x: %v", m.Bytes, err)
			}
			sameJSON(t, h, m.Header)
			sumsLen := int(binary.BigEndian.Uint32(m.Bytes)) - 4 - h.DataLen
			sameBytes(t, h.Append(nil, sumsLen), m.Bytes)
		case m.Ack != nil:
			kinds["ack"]++
			a, err := ReadAck(r)
			if err != nil {
				t.Fatalf("%x: %v", m.Bytes, err)
			}
			sameJSON(t, a, m.Ack)
			sameBytes(t, a.Append(nil), m.Bytes)
		case m.Write != nil:
			kinds["write"]++
			w, err := ReadRequest(r, 0)
			if err != nil {
				t.Fatalf("%x: %v", m.Bytes, err)
			}
			sameJSON(t, w, m.Write)
			if len(m.Write.Targets) == 0 && m.Write.Source == nil { // else Hadoop adds the nodes' statistics
				sameBytes(t, m.Write.Append(nil), m.Bytes)
			}
		case m.Read != nil:
			kinds["read"]++
			rd, err := ReadRequest(r, 0)
			if err != nil {
				t.Fatalf("%x: %v", m.Bytes, err)
			}
			sameJSON(t, rd, m.Read)
			sameBytes(t, m.Read.Append(nil), m.Bytes)
		case m.Response != nil:
			kinds["response"]++
			res, err := ReadBlockOpResponse(r)
			if err != nil {
				t.Fatalf("%x: %v", m.Bytes, err)
			}
			sameJSON(t, res, m.Response)
			sameBytes(t, res.Append(nil), m.Bytes)
		}
		if r.Buffered() > 0 {
			t.Errorf("%x: %d bytes left over", m.Bytes, r.Buffered())
		}
	})
	if len(kinds) != 5 {
		t.Errorf("only these kinds of messages: %v", kinds)
	}
}

func TestHadoopGoldenStreams(t *testing.T) {
	golden(t, "streams.jsonl", func(s struct {
		Kind    string
		Size    int
		Packets []struct {
			Header Header
			Data   []byte
		}
		Bytes []byte
	}) {
		kind, err := crc.ParseKind(s.Kind)
		if err != nil {
			t.Fatal(err)
		}
		chunks := crc.Chunks{Kind: kind, Size: s.Size}
		r := NewReceiver(bytes.NewReader(s.Bytes), 0)
		var again []byte
		for _, p := range s.Packets {
			h, sumsLen, err := r.Next()
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(h, p.Header) {
				t.Errorf("packet %+v, want %+v", h, p.Header)
			}
			sums, data, err := r.Body(make([]byte, sumsLen+h.DataLen+MaxHeaderLen))
			if err != nil {
				t.Fatal(err)
			}
			sameBytes(t, data, p.Data)
			if err := chunks.Verify(data, sums, h.Offset); err != nil {
				t.Error(err)
			}
			again = p.Header.Append(again, chunks.SumsLen(len(p.Data)))
			again = append(chunks.Append(again, p.Data), p.Data...)
		}
		if _, _, err := r.Next(); err != io.EOF {
			t.Errorf("after the last packet: %v, want io.EOF", err)
		}
		sameBytes(t, again, s.Bytes)
	})
}
