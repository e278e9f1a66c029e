//go:build !hadoop || !cgo || !amd64

package native

var hadoop = Rival{Name: "hadoop", Absent: "not built in: needs amd64, cgo and -tags hadoop"}
