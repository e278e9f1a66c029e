package crc32_test

import (
	"bytes"
	"encoding"
	"fmt"
	"hash"
	stdcrc32 "hash/crc32"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"

	"github.com/blockpath/blockpath/crc/crc32"
)

// table gives a table under a name.
type table struct {
	name string
	tab  *crc32.Table
}

// newTable builds a table without any package's help.
func newTable(poly uint32) *crc32.Table {
	t := new(crc32.Table)
	for b := range t {
		r := uint32(b)
		for range 8 {
			r = r>>1 ^ poly&-(r&1)
		}
		t[b] = r
	}
	return t
}

// altered is a table that says IEEE or Castagnoli at index 128 but is not it.
func altered(poly uint32) *crc32.Table {
	t := newTable(poly)
	t[200] ^= 1 << 7
	return t
}

func tables() []table {
	return []table{
		{"IEEETable", crc32.IEEETable},
		{"MakeTable(IEEE)", crc32.MakeTable(crc32.IEEE)},
		{"MakeTable(Castagnoli)", crc32.MakeTable(crc32.Castagnoli)},
		{"MakeTable(Koopman)", crc32.MakeTable(crc32.Koopman)},
		{"std MakeTable(IEEE)", stdcrc32.MakeTable(stdcrc32.IEEE)},
		{"std MakeTable(Castagnoli)", stdcrc32.MakeTable(stdcrc32.Castagnoli)},
		{"own IEEE", newTable(crc32.IEEE)},
		{"own Castagnoli", newTable(crc32.Castagnoli)},
		{"altered IEEE", altered(crc32.IEEE)},
		{"altered Castagnoli", altered(crc32.Castagnoli)},
		{"zero", new(crc32.Table)},
	}
}

// lengths surround every cut-off of either package.
func lengths() []int {
	var ns []int
	for n := range 300 {
		ns = append(ns, n)
	}
	for _, n := range []int{504, 512, 1000, 1024, 2048, 3 * 1344, 4096, 8192, 10000, 65536, 200000} {
		ns = append(ns, n-1, n, n+1)
	}
	return ns
}

func random(n int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	b := make([]byte, n)
	r.Read(b)
	return b
}

func TestUpdateEqualsStandardLibrary(t *testing.T) {
	data := random(200100)
	for _, tt := range tables() {
		for i, n := range lengths() {
			p := data[i%64:][:n]
			sum := uint32(i) * 0x9E3779B9
			if got, want := crc32.Update(sum, tt.tab, p), stdcrc32.Update(sum, tt.tab, p); got != want {
				t.Fatalf("Update(%#x, %s, %d bytes) = %#08x, want %#08x", sum, tt.name, n, got, want)
			}
			if got, want := crc32.Checksum(p, tt.tab), stdcrc32.Checksum(p, tt.tab); got != want {
				t.Fatalf("Checksum(%d bytes, %s) = %#08x, want %#08x", n, tt.name, got, want)
			}
			if got, want := crc32.ChecksumIEEE(p), stdcrc32.ChecksumIEEE(p); got != want {
				t.Fatalf("ChecksumIEEE(%d bytes) = %#08x, want %#08x", n, got, want)
			}
		}
	}
}

func TestCheckValues(t *testing.T) {
	check := []byte("123456789")
	for poly, want := range map[uint32]uint32{
		crc32.IEEE:       0xCBF43926,
		crc32.Castagnoli: 0xE3069283,
		crc32.Koopman:    0x2D3DD0AE,
	} {
		if got := crc32.Checksum(check, crc32.MakeTable(poly)); got != want {
			t.Errorf("polynomial %#08x: %#08x, want %#08x", poly, got, want)
		}
	}
}

// A table made by one package is the other's.
func TestTablesAreShared(t *testing.T) {
	if crc32.IEEETable != stdcrc32.IEEETable {
		t.Error("IEEETable is not hash/crc32's")
	}
	for _, poly := range []uint32{crc32.IEEE, crc32.Castagnoli} {
		if crc32.MakeTable(poly) != stdcrc32.MakeTable(poly) {
			t.Errorf("MakeTable(%#08x) is not hash/crc32's", poly)
		}
	}
}

// A table changed between two writes counts as it is now, as in hash/crc32.
func TestTableChangesBetweenWrites(t *testing.T) {
	tab := newTable(crc32.IEEE)
	got, want := crc32.New(tab), stdcrc32.New(tab)
	data := random(700)
	for _, poly := range []uint32{crc32.IEEE, crc32.Koopman, crc32.Castagnoli} {
		*tab = *newTable(poly)
		got.Write(data)
		want.Write(data)
		if got.Sum32() != want.Sum32() {
			t.Fatalf("after the table became %#08x: %#08x, want %#08x", poly, got.Sum32(), want.Sum32())
		}
	}
}

func TestNilTable(t *testing.T) {
	state, err := crc32.New(nil).(encoding.BinaryMarshaler).MarshalBinary()
	want, _ := stdcrc32.New(nil).(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil || !bytes.Equal(state, want) {
		t.Errorf("state of a hash without a table: %x, %v, want %x", state, err, want)
	}
	if got := crc32.Update(7, nil, nil); got != 7 {
		t.Errorf("Update of nothing without a table = %d, want 7", got)
	}
	for _, n := range []int{1, 64} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Update of %d bytes without a table did not panic", n)
				}
			}()
			crc32.Update(0, nil, make([]byte, n))
		}()
	}
}

func TestHashInterface(t *testing.T) {
	data := random(5000)
	for _, tt := range tables() {
		got, want := crc32.New(tt.tab), stdcrc32.New(tt.tab)
		if got.Size() != want.Size() || got.BlockSize() != want.BlockSize() {
			t.Fatalf("%s: size %d, block size %d", tt.name, got.Size(), got.BlockSize())
		}
		for rest, n := data, 0; len(rest) > 0; n = n*3/2 + 1 {
			n := min(n, len(rest))
			if m, err := got.Write(rest[:n]); m != n || err != nil {
				t.Fatalf("%s: Write = %d, %v", tt.name, m, err)
			}
			want.Write(rest[:n])
			rest = rest[n:]
			if got.Sum32() != want.Sum32() || !bytes.Equal(got.Sum([]byte("x")), want.Sum([]byte("x"))) {
				t.Fatalf("%s: %x after %d bytes, want %x", tt.name, got.Sum(nil), len(data)-len(rest), want.Sum(nil))
			}
		}
		got.Reset()
		if got.Sum32() != 0 {
			t.Fatalf("%s: %#x after Reset", tt.name, got.Sum32())
		}
	}
	if got := crc32.NewIEEE(); !func() bool { got.Write(data); return got.Sum32() == stdcrc32.ChecksumIEEE(data) }() {
		t.Error("NewIEEE does not compute IEEE")
	}
}

// The state made by either package is restored by the other, and by the same.
func TestStateIsInterchangeable(t *testing.T) {
	data := random(1000)
	makers := map[string]func(*crc32.Table) hash.Hash32{"blockpath": crc32.New, "std": stdcrc32.New}
	for _, tt := range tables() {
		for fromName, from := range makers {
			for toName, to := range makers {
				a := from(tt.tab)
				a.Write(data[:333])
				state, err := a.(encoding.BinaryMarshaler).MarshalBinary()
				if err != nil {
					t.Fatal(err)
				}
				appended, err := a.(encoding.BinaryAppender).AppendBinary([]byte("prefix"))
				if err != nil || string(appended) != "prefix"+string(state) {
					t.Fatalf("%s: AppendBinary = %q, %v", fromName, appended, err)
				}
				b := to(tt.tab)
				if err := b.(encoding.BinaryUnmarshaler).UnmarshalBinary(state); err != nil {
					t.Fatalf("%s, %s to %s: %v", tt.name, fromName, toName, err)
				}
				a.Write(data[333:])
				b.Write(data[333:])
				if a.Sum32() != b.Sum32() {
					t.Fatalf("%s, %s to %s: %#x, want %#x", tt.name, fromName, toName, b.Sum32(), a.Sum32())
				}
			}
		}
	}
}

func TestStateRejected(t *testing.T) {
	h := crc32.NewIEEE()
	h.Write([]byte("kept"))
	sum := h.Sum32()
	good, _ := h.(encoding.BinaryMarshaler).MarshalBinary()
	other, _ := crc32.New(crc32.MakeTable(crc32.Castagnoli)).(encoding.BinaryMarshaler).MarshalBinary()
	for _, bad := range [][]byte{nil, good[:3], good[:11], append(good[:12:12], 0), append([]byte("crc\x02"), good[4:]...), other} {
		if err := h.(encoding.BinaryUnmarshaler).UnmarshalBinary(bad); err == nil {
			t.Errorf("state %x accepted", bad)
		}
		if h.Sum32() != sum {
			t.Fatalf("state %x rejected but taken", bad)
		}
	}
}

// Every method of hash/crc32's hash is here, with the same signature: also one
// that a later Go adds.
func TestMethods(t *testing.T) {
	want := reflect.TypeOf(stdcrc32.NewIEEE())
	got := reflect.TypeOf(crc32.NewIEEE())
	for i := range want.NumMethod() {
		name := want.Method(i).Name
		if _, ok := got.MethodByName(name); !ok {
			t.Errorf("no method %s", name)
			continue
		}
		g := reflect.ValueOf(crc32.NewIEEE()).MethodByName(name).Type()
		w := reflect.ValueOf(stdcrc32.NewIEEE()).MethodByName(name).Type()
		if g != w {
			t.Errorf("method %s is %v, want %v", name, g, w)
		}
	}
}

// Many goroutines meet a Castagnoli table before anybody asked for it.
func TestConcurrentUse(t *testing.T) {
	data := random(1024)
	tabs := tables()
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := range 200 {
				tt := tabs[(i+j)%len(tabs)]
				if got, want := crc32.Checksum(data, tt.tab), stdcrc32.Checksum(data, tt.tab); got != want {
					t.Errorf("%s: %#x, want %#x", tt.name, got, want)
					return
				}
				crc32.MakeTable(crc32.Castagnoli)
			}
		}()
	}
	wg.Wait()
}

func TestNoAllocation(t *testing.T) {
	var sums [16]byte
	for _, tt := range tables() {
		h := crc32.New(tt.tab)
		state, _ := h.(encoding.BinaryMarshaler).MarshalBinary()
		for _, n := range []int{1, 31, 32, 512, 4096, 70000} {
			data := random(n)
			if allocs := testing.AllocsPerRun(10, func() {
				crc32.Update(1, tt.tab, data)
				crc32.Checksum(data, tt.tab)
				crc32.ChecksumIEEE(data)
				h.Write(data)
				h.Sum(sums[:0])
				h.(encoding.BinaryAppender).AppendBinary(sums[:0])
				h.(encoding.BinaryUnmarshaler).UnmarshalBinary(state)
			}); allocs != 0 {
				t.Errorf("%s, %d bytes: %v allocations", tt.name, n, allocs)
			}
		}
	}
	koopman := crc32.MakeTable(crc32.Koopman)
	local := func() uint32 {
		var onStack [100]byte
		return crc32.Update(0, koopman, onStack[:]) ^ crc32.ChecksumIEEE(onStack[:])
	}
	if allocs := testing.AllocsPerRun(10, func() { local() }); allocs != 0 {
		t.Errorf("an array on the stack escapes: %v allocations", allocs)
	}
}

// castagnoli is what a program keeps in a variable.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func BenchmarkUpdate(b *testing.B) {
	packages := []struct {
		name   string
		update func(uint32, *crc32.Table, []byte) uint32
	}{{"blockpath", crc32.Update}, {"std", stdcrc32.Update}}
	polys := []table{
		{"IEEE", crc32.IEEETable}, {"Castagnoli", castagnoli},
		{"ownIEEE", newTable(crc32.IEEE)}, {"Koopman", crc32.MakeTable(crc32.Koopman)},
	}
	for _, poly := range polys {
		for _, n := range []int{1, 8, 15, 32, 64, 512, 4096, 65536} {
			data := random(n)
			for _, p := range packages {
				b.Run(fmt.Sprintf("poly=%s/size=%d/package=%s", poly.name, n, p.name), func(b *testing.B) {
					b.SetBytes(int64(n))
					for b.Loop() {
						p.update(0, poly.tab, data)
					}
				})
			}
		}
	}
}
