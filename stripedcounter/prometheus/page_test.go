package prometheus

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	prom "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/blockpath/blockpath/stripedcounter"
)

func TestSnakeCase(t *testing.T) {
	for name, want := range map[string]string{
		"bytesRead":                       "bytes_read",
		"BytesRead":                       "bytes_read",
		"bytes read":                      "bytes_read",
		"bytes_read":                      "bytes_read",
		" --bytes..read-- ":               "bytes_read",
		"bytesReadDistanceOfFiveOrLarger": "bytes_read_distance_of_five_or_larger",
		"CRCErrors":                       "crc_errors",
		"fooCRC":                          "foo_crc",
		"crc32cSums":                      "crc32c_sums",
		"A":                               "a",
		"---":                             "",
		"sqe":                             "sqe",
	} {
		if got := snakeCase(name); got != want {
			t.Errorf("snakeCase(%q) = %q, want %q", name, got, want)
		}
	}
}

// testPage returns a page with one of everything.
func testPage(t *testing.T) (*Page, *stripedcounter.Set, stripedcounter.Statistics, func(time.Duration)) {
	t.Helper()
	p := NewPage("blockpath")
	set := stripedcounter.NewSet("packets", "checksum_errors", "open connections")
	stats := stripedcounter.NewStatistics()
	observe, err := p.AddLatency("hsync_duration_seconds", "Time from an hsync to its acknowledgement.")
	for _, err := range []error{
		err,
		p.AddSet("datanode", set, map[string]Metric{
			"packets":          {Help: "Packets received."},
			"open connections": {Gauge: true},
		}),
		p.AddSet("filesystem", stats.Set, nil),
		p.AddGauge("arena_bytes", "Bytes of the arena in use.", func() float64 { return 4096 }),
		p.AddInfo("kernel_info", "Checksum kernels in use.", map[string]string{"polynomial": "crc32c", "operation": "verify", "kernel": "sse42"}),
		p.AddInfo("kernel_info", "Checksum kernels in use.", map[string]string{"polynomial": "crc32", "operation": "verify", "kernel": "generic"}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return p, set, stats, observe
}

func get(t *testing.T, url string) (body []byte, contentType string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v\n%s", url, resp.Status, err, body)
	}
	return body, resp.Header.Get("Content-Type")
}

func parse(t *testing.T, page []byte) map[string]*dto.MetricFamily {
	t.Helper()
	var parser expfmt.TextParser
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		t.Fatalf("the client library cannot parse the page: %v\n%s", err, page)
	}
	return families
}

func TestPrometheusPage(t *testing.T) {
	p, set, stats, observe := testPage(t)
	server := httptest.NewServer(p)
	defer server.Close()
	set.Add2(0, 7, 2, 5)
	set.Add(2, -2)
	stats.AddRead(1<<52, 3)
	l := stats.Local()
	l.Add(stripedcounter.WriteOps, 11)
	observe(15 * time.Microsecond)
	observe(3 * time.Second)
	observe(time.Hour)

	page, contentType := get(t, server.URL+"/metrics")
	if !strings.HasPrefix(contentType, "text/plain") {
		t.Errorf("content type %q", contentType)
	}
	problems, err := promlint.New(bytes.NewReader(page)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("promlint: %s: %s", problem.Metric, problem.Text)
	}
	families := parse(t, page)
	for name, want := range map[string]float64{
		"blockpath_datanode_packets_total":                                7,
		"blockpath_datanode_checksum_errors_total":                        0,
		"blockpath_datanode_open_connections":                             3,
		"blockpath_filesystem_bytes_read_total":                           1 << 52,
		"blockpath_filesystem_bytes_read_distance_of_three_or_four_total": 1 << 52,
		"blockpath_filesystem_write_ops_total":                            11,
		"blockpath_filesystem_bytes_read_local_host_total":                0,
		"blockpath_arena_bytes":                                           4096,
		"blockpath_kernel_info":                                           1,
	} {
		f := families[name]
		if f == nil {
			t.Errorf("%s is not on the page", name)
			continue
		}
		got := f.Metric[0].GetCounter().GetValue()
		if f.GetType() == dto.MetricType_GAUGE {
			got = f.Metric[0].GetGauge().GetValue()
		}
		if isCounter := strings.HasSuffix(name, "_total"); isCounter != (f.GetType() == dto.MetricType_COUNTER) || got != want {
			t.Errorf("%s is %v %v, want %v", name, f.GetType(), got, want)
		}
	}
	if help := families["blockpath_datanode_packets_total"].GetHelp(); help != "Packets received." {
		t.Errorf("help is %q", help)
	}
	if help := families["blockpath_datanode_checksum_errors_total"].GetHelp(); help != "datanode checksum errors" {
		t.Errorf("default help is %q", help)
	}
	if n := len(families["blockpath_kernel_info"].Metric); n != 2 {
		t.Errorf("%d kernels, want 2", n)
	}
	h := families["blockpath_hsync_duration_seconds"].Metric[0].GetHistogram()
	if h.GetSampleCount() != 3 || math.Abs(h.GetSampleSum()-3603.000015) > 1e-6 {
		t.Errorf("latencies: %d, %v seconds", h.GetSampleCount(), h.GetSampleSum())
	}
	for _, b := range h.Bucket {
		want := uint64(0)
		for _, seconds := range []float64{15e-6, 3, 3600} {
			if seconds <= b.GetUpperBound() {
				want++
			}
		}
		if b.GetCumulativeCount() != want {
			t.Errorf("%d latencies up to %v s, want %d", b.GetCumulativeCount(), b.GetUpperBound(), want)
		}
	}
	if families["go_goroutines"] == nil {
		t.Error("the runtime's metrics are missing")
	}
}

func TestExpvarPage(t *testing.T) {
	p, set, stats, _ := testPage(t)
	server := httptest.NewServer(p)
	defer server.Close()
	set.Add2(0, 7, 2, 5)
	stats.AddRead(1<<60+1, 0) // more than a float64 holds
	body, contentType := get(t, server.URL+"/debug/vars")
	if !strings.HasPrefix(contentType, "application/json") {
		t.Errorf("content type %q", contentType)
	}
	var vars struct {
		Datanode   map[string]int64 `json:"datanode"`
		Filesystem map[string]int64 `json:"filesystem"`
		Arena      float64          `json:"arena_bytes"`
		Memstats   map[string]any   `json:"memstats"`
	}
	if err := json.Unmarshal(body, &vars); err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	if vars.Datanode["packets"] != 7 || vars.Datanode["open connections"] != 5 || len(vars.Datanode) != 3 {
		t.Errorf("datanode: %v", vars.Datanode)
	}
	if vars.Filesystem["bytesRead"] != 1<<60+1 || vars.Filesystem["bytesReadLocalHost"] != 1<<60+1 {
		t.Errorf("filesystem: %v", vars.Filesystem)
	}
	if vars.Arena != 4096 || len(vars.Memstats) == 0 {
		t.Errorf("arena %v, %d of memstats", vars.Arena, len(vars.Memstats))
	}
}

func TestPageRefuses(t *testing.T) {
	p, set, _, _ := testPage(t)
	if p.AddSet("datanode", set, nil) == nil {
		t.Error("the same subsystem twice")
	}
	if p.AddSet("two", stripedcounter.NewSet("bytesRead", "bytes_read"), nil) == nil {
		t.Error("two counters with one metric name")
	}
	if p.AddGauge("arena_bytes", "Again.", func() float64 { return 0 }) == nil {
		t.Error("the same gauge twice")
	}
	if _, err := p.AddLatency("hsync_duration_seconds", "Again."); err == nil {
		t.Error("the same latency twice")
	}
	server := httptest.NewServer(p)
	defer server.Close()
	for _, path := range []string{"/", "/nothing"} {
		resp, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s: %s", path, resp.Status)
		}
	}
	resp, err := http.Post(server.URL+"/metrics", "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST /metrics: %s", resp.Status)
	}
}

// TestScrapesBesideAdds reads the page while counters run: counters never go
// down from page to page, and the last page has all.
func TestScrapesBesideAdds(t *testing.T) {
	p, set, _, observe := testPage(t)
	const writers, adds = 4, 5000
	var done sync.WaitGroup
	for range writers {
		done.Add(1)
		go func() {
			defer done.Done()
			l := set.Local()
			defer l.Close()
			for i := range adds {
				set.Add(0, 1)
				l.Add(1, 1)
				if i%100 == 0 {
					observe(time.Millisecond)
				}
			}
		}()
	}
	scrape := func() (v [2]float64) {
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		families := parse(t, w.Body.Bytes())
		for i, name := range []string{"blockpath_datanode_packets_total", "blockpath_datanode_checksum_errors_total"} {
			v[i] = families[name].Metric[0].GetCounter().GetValue()
		}
		return v
	}
	var last [2]float64
	for range 10 {
		v := scrape()
		if v[0] < last[0] || v[1] < last[1] {
			t.Errorf("counters went from %v to %v", last, v)
		}
		last = v
	}
	done.Wait()
	if v := scrape(); v != [2]float64{writers * adds, writers * adds} {
		t.Errorf("the last page has %v", v)
	}
}

// TestCollectorAlone registers a Collector with somebody else's registry.
func TestCollectorAlone(t *testing.T) {
	reg := prom.NewRegistry()
	c, err := NewCollector("", "", stripedcounter.NewSet("a", "bC"), nil)
	if err != nil {
		t.Fatal(err)
	}
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	if !slices.Equal(names, []string{"a_total", "b_c_total"}) {
		t.Errorf("metrics %q", names)
	}
}
