package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// writeJSON prints v, indented.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

const progressInterval = 100 * time.Millisecond

// A table prints labels and values in two columns.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer) table { return table{tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)} }

func (t table) row(label, format string, args ...any) {
	fmt.Fprintf(t.w, "%s\t%s\n", label, fmt.Sprintf(format, args...))
}

func (t table) flush() error { return t.w.Flush() }

// newProgress returns a function that advances a progress bar over total
// bytes, -1 if unknown, and one that removes the bar. There is a bar only when
// w is a terminal.
func newProgress(w io.Writer, what string, total int64) (add func(n int64), done func()) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return func(int64) {}, func() {}
	}
	bar := progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(true),
		progressbar.OptionUseIECUnits(true),
		progressbar.OptionThrottle(progressInterval),
		progressbar.OptionClearOnFinish(),
	)
	return func(n int64) { bar.Add64(n) }, func() { bar.Finish() }
}
