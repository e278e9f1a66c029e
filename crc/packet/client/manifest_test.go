package client

import (
	"errors"
	"strings"
	"testing"
)

func TestManifest(t *testing.T) {
	good := `{"version":1,"pool":"BP-1","checksum":"crc32c","bytes_per_checksum":512,"files":[
		{"name":"a/b","length":5,"blocks":[{"id":1,"stamp":1001,"length":5,"crc":"01234567"}]}]}`
	if _, err := ReadManifest(strings.NewReader(good)); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		`"version":1`:              `"version":2`,
		`BP-1`:                     ``,
		`crc32c`:                   `sha1`,
		`:512`:                     `:0`,
		`a/b`:                      `../b`,
		`"length":5,"blocks"`:      `"length":6,"blocks"`,
		`"length":5,"crc"`:         `"length":0,"crc"`,
		`01234567`:                 `0123`,
		`"files"`:                  `"extra":1,"files"`,
		`"crc":"01234567"}]}]}`:    `"crc":"01234567"}]}]}x`,
		`"version":1,"pool":"BP-1`: `"version":1,"pool":1,"x":"`,
	} {
		bad := strings.Replace(good, from, to, 1)
		var want *ManifestError
		if _, err := ReadManifest(strings.NewReader(bad)); err == nil || !errors.As(err, &want) {
			t.Errorf("%s -> %s: %v, want a *ManifestError", from, to, err)
		}
	}
}
