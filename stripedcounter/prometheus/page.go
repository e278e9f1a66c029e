package prometheus

import (
	"expvar"
	"fmt"
	"io"
	"net/http"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/blockpath/blockpath/stripedcounter"
)

// A Page serves metrics over HTTP: at /metrics for Prometheus, and at
// /debug/vars as package expvar does. It begins with the metrics of the Go
// runtime and of the process, and has its own registry, so that a program may
// have several pages.
//
// What is added may be added while the page is served.
type Page struct {
	namespace string
	registry  *prom.Registry
	vars      expvar.Map
	mux       http.ServeMux
}

// NewPage returns a page whose metrics have names that begin with namespace.
func NewPage(namespace string) *Page {
	p := &Page{namespace: namespace, registry: prom.NewRegistry()}
	p.registry.MustRegister( // cannot fail: the registry is empty
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	p.mux.Handle("GET /metrics", promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{}))
	p.mux.HandleFunc("GET /debug/vars", p.serveVars)
	return p
}

// ServeHTTP implements [http.Handler].
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.mux.ServeHTTP(w, r) }

// AddSet puts the counters of a set on the page, under the names that
// [NewCollector] gives them, and as one expvar object called subsystem. The
// error, here and below, is that of a name that the page has already or that is
// no metric name.
func (p *Page) AddSet(subsystem string, set *stripedcounter.Set, metrics map[string]Metric) error {
	c, err := NewCollector(p.namespace, subsystem, set, metrics)
	if err != nil {
		return err
	}
	if err := p.registry.Register(c); err != nil {
		return err
	}
	p.vars.Set(subsystem, set)
	return nil
}

// AddGauge puts a number on the page that is asked for when the page is read, by
// several goroutines at once.
func (p *Page) AddGauge(name, help string, value func() float64) error {
	err := p.registry.Register(prom.NewGaugeFunc(prom.GaugeOpts{Namespace: p.namespace, Name: name, Help: help}, value))
	if err != nil {
		return err
	}
	p.vars.Set(name, expvar.Func(func() any { return value() }))
	return nil
}

// AddInfo puts facts on the page that do not change while the program runs,
// such as the checksum kernels in use: a metric with the labels, whose value is
// 1. Several calls with the same name, help and label names and different
// values make several series.
func (p *Page) AddInfo(name, help string, labels map[string]string) error {
	g := prom.NewGauge(prom.GaugeOpts{Namespace: p.namespace, Name: name, Help: help, ConstLabels: labels})
	g.Set(1)
	return p.registry.Register(g)
}

// AddLatency puts a histogram of durations on the page, in seconds; name ends
// with _seconds. It returns the function to call with each duration, which any
// number of goroutines may do. The buckets double from 10 microseconds to 10
// seconds; Prometheus servers that ask for native histograms get those, at 10 %
// resolution.
func (p *Page) AddLatency(name, help string) (observe func(time.Duration), err error) {
	h := prom.NewHistogram(prom.HistogramOpts{
		Namespace:                      p.namespace,
		Name:                           name,
		Help:                           help,
		Buckets:                        prom.ExponentialBuckets(10e-6, 2, 21),
		NativeHistogramBucketFactor:    1.1,
		NativeHistogramMaxBucketNumber: 100,
	})
	if err := p.registry.Register(h); err != nil {
		return nil, err
	}
	return func(d time.Duration) { h.Observe(d.Seconds()) }, nil
}

// serveVars writes the variables of the process, which are those of package
// expvar, and those of the page, as one JSON object.
func (p *Page) serveVars(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	separator := "{\n"
	write := func(kv expvar.KeyValue) {
		fmt.Fprintf(w, "%s%q: %s", separator, kv.Key, kv.Value)
		separator = ",\n"
	}
	expvar.Do(write)
	p.vars.Do(write)
	io.WriteString(w, "\n}\n")
}
