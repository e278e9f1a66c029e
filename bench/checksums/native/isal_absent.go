//go:build !isal || !cgo

package native

var isal = Rival{Name: "isal", Absent: "not built in: needs libisal-dev, cgo and -tags isal"}
