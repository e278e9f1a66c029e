// Package prometheus exports striped counters to Prometheus, and serves a page
// of them.
//
// It is a package of its own so that programs that only count do not link the
// Prometheus client.
package prometheus

import (
	"fmt"
	"strings"

	prom "github.com/prometheus/client_golang/prometheus"

	"github.com/blockpath/blockpath/stripedcounter"
)

// A Metric says what the counters' names do not.
type Metric struct {
	Help string // empty: the words of the name
	// Gauge marks a counter that goes up and down.
	Gauge bool
}

// A Collector exports the counters of a Set: [prom.Collector]. A collection
// reads every counter once.
type Collector struct {
	set   *stripedcounter.Set
	descs []*prom.Desc
	types []prom.ValueType
}

// NewCollector returns a collector of the set. The names of its metrics are
// namespace_subsystem_counter_total, without the empty parts, and without total
// for gauges; the counter's part is its name in the set, in snake case
// (BytesRead and "bytes read" both become bytes_read). Metrics holds what is to
// be said about counters, by their names in the set, and may be nil.
//
// The error is that of two counters whose names become equal.
func NewCollector(namespace, subsystem string, set *stripedcounter.Set, metrics map[string]Metric) (*Collector, error) {
	c := &Collector{set: set}
	from := map[string]string{}
	for _, name := range set.Names() {
		m := metrics[name]
		snake := snakeCase(name)
		if m.Help == "" {
			m.Help = strings.TrimSpace(subsystem + " " + strings.ReplaceAll(snake, "_", " "))
		}
		kind := prom.GaugeValue
		if !m.Gauge {
			kind = prom.CounterValue
			snake += "_total"
		}
		if other, ok := from[snake]; ok {
			return nil, fmt.Errorf("stripedcounter/prometheus: counters %q and %q would both be %s", other, name, snake)
		}
		from[snake] = name
		c.descs = append(c.descs, prom.NewDesc(prom.BuildFQName(namespace, subsystem, snake), m.Help, nil, nil))
		c.types = append(c.types, kind)
	}
	return c, nil
}

// Describe implements [prom.Collector].
func (c *Collector) Describe(ch chan<- *prom.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements [prom.Collector].
func (c *Collector) Collect(ch chan<- prom.Metric) {
	for i, v := range c.set.Snapshot(nil) {
		ch <- prom.MustNewConstMetric(c.descs[i], c.types[i], float64(v))
	}
}

// snakeCase turns a name into lower-case words of letters and digits, separated
// by single underscores. A word begins after other characters, at an upper-case
// letter after one that is not, and at the last upper-case letter before a
// lower-case one (CRCErrors: crc_errors).
func snakeCase(name string) string {
	isUpper := func(i int) bool { return i < len(name) && 'A' <= name[i] && name[i] <= 'Z' }
	isLower := func(i int) bool { return i < len(name) && 'a' <= name[i] && name[i] <= 'z' }
	isDigit := func(i int) bool { return i < len(name) && '0' <= name[i] && name[i] <= '9' }
	var b strings.Builder
	gap := false
	for i := range len(name) {
		if !isUpper(i) && !isLower(i) && !isDigit(i) {
			gap = true
			continue
		}
		gap = gap || isUpper(i) && i > 0 && (!isUpper(i-1) || isLower(i+1))
		if gap && b.Len() > 0 {
			b.WriteByte('_')
		}
		gap = false
		c := name[i]
		if isUpper(i) {
			c += 'a' - 'A'
		}
		b.WriteByte(c)
	}
	return b.String()
}
