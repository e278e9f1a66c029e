//go:build !crcfast || !cgo

package native

var crcFast = Rival{Name: "crcfast", Absent: "not built in: needs cargo build --release in bench/checksums/native/crcfast, cgo and -tags crcfast"}
