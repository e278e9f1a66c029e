package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"

	"github.com/blockpath/blockpath/crc"
	"github.com/blockpath/blockpath/iouring/datanode"
)

// TestMain makes the test binary the command itself when a test asks for it,
// so that signals and exit codes are real.
func TestMain(m *testing.M) {
	if os.Getenv("BLOCKPATH_TEST_COMMAND") != "" {
		main()
	}
	os.Exit(m.Run())
}

// blockpath runs a command line in this process.
func blockpath(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// must runs a command line that has to succeed and returns its output.
func must(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := blockpath(t, args...)
	if code != 0 {
		t.Fatalf("blockpath %s: exit code %d\n%s", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

// fails runs a command line that has to exit with code, saying each of says on
// one line of standard error or on standard output.
func fails(t *testing.T, code int, says []string, args ...string) {
	t.Helper()
	got, stdout, stderr := blockpath(t, args...)
	if got != code {
		t.Errorf("blockpath %s: exit code %d, want %d\n%s", strings.Join(args, " "), got, code, stderr)
	}
	for _, s := range says {
		if !strings.Contains(stdout+stderr, s) {
			t.Errorf("blockpath %s: %q is missing in\n%s%s", strings.Join(args, " "), s, stdout, stderr)
		}
	}
}

// randomFile makes a file of n bytes.
func randomFile(t *testing.T, dir, name string, n int) string {
	t.Helper()
	rng := rand.NewChaCha8([32]byte{byte(n)})
	data := make([]byte, n)
	rng.Read(data)
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// A served is a datanode in a process of its own.
type served struct {
	cmd  *exec.Cmd
	dir  string
	addr string
	out  string // what it printed before the address
	log  *bytes.Buffer
}

// serve starts a datanode in a new directory.
func serve(t *testing.T, listen string, flags ...string) *served {
	t.Helper()
	return serveDir(t, t.TempDir(), listen, flags...)
}

func serveDir(t *testing.T, dir, listen string, flags ...string) *served {
	t.Helper()
	s := &served{dir: dir, log: new(bytes.Buffer)}
	s.cmd = exec.Command(os.Args[0], append([]string{"serve", "--dir", dir, "--listen", listen}, flags...)...)
	s.cmd.Env = append(os.Environ(), "BLOCKPATH_TEST_COMMAND=1")
	s.cmd.Stderr = s.log
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			s.cmd.Process.Kill()
			s.cmd.Wait()
		}
	})
	var printed []byte
	for buf := make([]byte, 256); ; {
		n, err := stdout.Read(buf)
		printed = append(printed, buf[:n]...)
		if before, rest, ok := strings.Cut(string(printed), "listening "); ok && strings.HasSuffix(rest, "\n") {
			s.out, s.addr = before, strings.TrimSpace(rest)
			return s
		}
		if err != nil {
			t.Fatalf("serve printed %q and ended: %v\n%s", printed, err, s.log)
		}
	}
}

// stop sends a signal and returns the exit code.
func (s *served) stop(t *testing.T, sig os.Signal) int {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	s.cmd.Wait()
	return s.cmd.ProcessState.ExitCode()
}

// blockFiles returns the block and the .meta files below a data directory.
func blockFiles(t *testing.T, dir string) (blocks, metas []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if _, ok := datanode.ParseBlockName(e.Name()); ok {
			blocks = append(blocks, path)
		}
		if _, _, ok := datanode.ParseMetaName(e.Name()); ok {
			metas = append(metas, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return blocks, metas
}

func TestRoundtrip(t *testing.T) {
	dir := t.TempDir()
	flagSets := [][]string{
		{},
		{"--checksum", "crc32", "--block-size", "64KiB", "--packet-size", "64KiB"},
		{"--checksum", "none", "--backend", "syscall"},
		{"--bytes-per-checksum", "7", "--block-size", "7000", "--sha256", "--sync"},
		{"--bytes-per-checksum", "4096", "--block-size", "1MiB", "--buffer-hint", "1MiB"},
	}
	for _, n := range []int{0, 1, 511, 512, 513, 7000, 65536, 3<<20 + 77} {
		path := randomFile(t, dir, fmt.Sprint(n), n)
		for _, flags := range flagSets {
			if n > 1<<20 && flags != nil && len(flags) > 0 && flags[1] == "7" {
				continue // 450 blocks with an fsync each
			}
			out := must(t, append([]string{"roundtrip", "--json", path}, flags...)...)
			var r roundtripResult
			if err := json.Unmarshal([]byte(out), &r); err != nil {
				t.Fatal(err)
			}
			if !r.Equal || r.Put.Bytes != int64(n) || r.Get.Bytes != int64(n) || r.Stored.Length != int64(n) {
				t.Errorf("%d bytes, %v: %s", n, flags, out)
			}
			if r.Store["bytes_written"] != int64(n) || r.Store["checksum_errors"] != 0 {
				t.Errorf("%d bytes, %v: counters %v", n, flags, r.Store)
			}
		}
	}
}

func TestRoundtripPrints(t *testing.T) {
	path := randomFile(t, t.TempDir(), "file", 10000)
	out := must(t, "roundtrip", path)
	for _, s := range []string{"10000 bytes", "backend", "packets", "kernel", "CPU seconds per GiB", "COMPOSITE-CRC32C:0x", "MD5-of-0MD5-of-512CRC32C:", "equal       true"} {
		if !strings.Contains(out, s) {
			t.Errorf("%q is missing in\n%s", s, out)
		}
	}
}

// Two processes, TCP and a unix socket, several files, ranges.
func TestPutGet(t *testing.T) {
	for _, listen := range []string{"127.0.0.1:0", "unix:" + filepath.Join(t.TempDir(), "socket")} {
		node := serve(t, listen)
		dir := t.TempDir()
		small, large := randomFile(t, dir, "small", 513), randomFile(t, dir, "large", 1<<20+77)
		manifest := filepath.Join(dir, "manifest.json")
		out := must(t, "put", small, large, "--to", node.addr, "--manifest", manifest, "--block-size", "256KiB", "--sha256")
		if !strings.Contains(out, "6 blocks") {
			t.Errorf("put printed\n%s", out)
		}
		back := filepath.Join(dir, "back")
		must(t, "get", manifest, "--from", node.addr, "-o", back)
		for _, path := range []string{small, large} {
			want, _ := os.ReadFile(path)
			got, err := os.ReadFile(filepath.Join(back, filepath.Base(path)))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s did not come back as it was: %v", path, err)
			}
		}

		one := filepath.Join(dir, "one.json")
		must(t, "put", large, "--to", node.addr, "--manifest", one, "--block-size", "256KiB")
		want, _ := os.ReadFile(large)
		for _, r := range [][2]int{{0, 1}, {511, 2}, {256<<10 - 1, 2}, {100, 700000}, {1<<20 + 76, 1}} {
			out := must(t, "get", one, "--from", node.addr, "-o", "-", "--offset", fmt.Sprint(r[0]), "--length", fmt.Sprint(r[1]))
			if out != string(want[r[0]:r[0]+r[1]]) {
				t.Errorf("offset %d, length %d: wrong bytes", r[0], r[1])
			}
		}
		fails(t, 1, []string{"offset is 1048654"}, "get", one, "--from", node.addr, "-o", "-", "--offset", "1048654")
		fails(t, 2, []string{"a manifest of one file"}, "get", manifest, "--from", node.addr, "-o", "-", "--offset", "1")

		// a dead replica first
		must(t, "get", one, "--from", "127.0.0.1:1", "--from", node.addr, "-o", filepath.Join(dir, "again"))

		report := must(t, "verify", node.dir, "--json")
		var r datanode.Report
		if err := json.Unmarshal([]byte(report), &r); err != nil || r.Files != 11 || r.Bytes != 513+2*(1<<20+77) {
			t.Errorf("verify: %v\n%s", err, report)
		}
		for _, sig := range []os.Signal{syscall.SIGTERM} {
			if code := node.stop(t, sig); code != 0 {
				t.Errorf("after %v: exit code %d\n%s", sig, code, node.log)
			}
		}
	}
}

// put to three datanodes is one pipeline, which goes on when one of them dies.
func TestPutPipeline(t *testing.T) {
	nodes := make([]*served, 3)
	put := []string{"put"}
	for i := range nodes {
		nodes[i] = serve(t, "127.0.0.1:0")
		put = append(put, "--to", nodes[i].addr)
	}
	dir := t.TempDir()
	file := randomFile(t, dir, "file", 3<<20+77)
	want, _ := os.ReadFile(file)
	manifest := filepath.Join(dir, "manifest.json")
	check := func(from ...*served) {
		t.Helper()
		for _, n := range from {
			out := filepath.Join(dir, "back")
			must(t, "get", manifest, "--from", n.addr, "-o", out)
			if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes came back, %v", n.addr, len(got), err)
			}
			must(t, "verify", n.dir)
		}
	}
	must(t, append(put, file, "--manifest", manifest, "--block-size", "1MiB")...)
	check(nodes...)
	blocks, _ := blockFiles(t, nodes[0].dir)
	if len(blocks) != 4 {
		t.Errorf("%d blocks", len(blocks))
	}
	for _, block := range blocks {
		first, _ := os.ReadFile(block)
		for _, n := range nodes[1:] {
			other, err := os.ReadFile(filepath.Join(n.dir, strings.TrimPrefix(block, nodes[0].dir)))
			if err != nil || !bytes.Equal(other, first) {
				t.Errorf("%s is not the same on %s: %v", block, n.addr, err)
			}
		}
	}

	killed := make(chan struct{})
	go func() {
		defer close(killed)
		for { // until it has something of the block
			blocks, _ := blockFiles(t, nodes[1].dir)
			for _, b := range blocks {
				if info, err := os.Stat(b); err == nil && strings.Contains(b, "/rbw/") && info.Size() > 0 {
					nodes[1].cmd.Process.Kill()
					return
				}
			}
			time.Sleep(time.Millisecond)
		}
	}()
	must(t, append(put, file, "--manifest", manifest, "--rate", "6MiB")...)
	<-killed
	check(nodes[0], nodes[2])
	nodes[1].cmd.Wait()
	again := serveDir(t, nodes[1].dir, "127.0.0.1:0")
	must(t, "verify", again.dir)
}

func TestServeSignals(t *testing.T) {
	node := serve(t, "127.0.0.1:0", "--backend", "syscall")
	fails(t, 1, []string{node.dir}, "serve", "--dir", node.dir, "--listen", "127.0.0.1:0")
	if code := node.stop(t, os.Interrupt); code != 0 {
		t.Errorf("after an interrupt: exit code %d\n%s", code, node.log)
	}
}

// The page of metrics parses, passes the linter and counts.
func TestMetrics(t *testing.T) {
	node := serve(t, "127.0.0.1:0", "--metrics", "127.0.0.1:0")
	dir := t.TempDir()
	path, manifest := randomFile(t, dir, "file", 100000), filepath.Join(dir, "manifest")
	must(t, "put", path, "--to", node.addr, "--manifest", manifest, "--sync", "--packet-size", "64KiB")
	must(t, "get", manifest, "--from", node.addr, "-o", filepath.Join(dir, "back"))

	_, at, ok := strings.Cut(node.out, "metrics ")
	if !ok {
		t.Fatalf("serve printed %q", node.out)
	}
	fetch := func(path string) []byte {
		res, err := http.Get("http://" + strings.TrimSpace(at) + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", path, res.Status, err)
		}
		return b
	}
	page := fetch("/metrics")
	if problems, err := promlint.New(bytes.NewReader(page)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	families, err := new(expfmt.TextParser).TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	value := func(name string) float64 {
		f := families[name]
		if f == nil {
			t.Errorf("%s is missing", name)
			return 0
		}
		switch m := f.Metric[0]; {
		case m.Counter != nil:
			return m.Counter.GetValue()
		case m.Gauge != nil:
			return m.Gauge.GetValue()
		case m.Histogram != nil:
			return float64(m.Histogram.GetSampleCount())
		}
		return -1
	}
	for name, want := range map[string]float64{
		"blockpath_store_bytes_written_total":   100000,
		"blockpath_store_bytes_read_total":      100000,
		"blockpath_store_packets_written_total": 3, // two with data, the last one
		"blockpath_store_checksum_errors_total": 0,
		"blockpath_store_syncs_total":           1,
		"blockpath_store_sync_seconds":          1,
		"blockpath_server_acks_total":           3,
		"blockpath_server_write_requests_total": 1,
		"blockpath_server_read_requests_total":  1,
		"blockpath_arena_bytes":                 64 << 20,
		"blockpath_backend_info":                1,
		"blockpath_checksum_kernel_info":        1,
	} {
		if got := value(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if got := value("blockpath_store_flush_seconds"); got < 1 || got > 2 {
		t.Errorf("%v flushes", got)
	}
	if got := value("blockpath_backend_writes_total"); got < 2 {
		t.Errorf("%v writes of the backend", got)
	}
	var vars struct {
		Store struct {
			Written int64 `json:"bytes_written"`
		} `json:"store"`
	}
	if err := json.Unmarshal(fetch("/debug/vars"), &vars); err != nil || vars.Store.Written != 100000 {
		t.Errorf("expvar: %v, %v", vars, err)
	}
	if code := node.stop(t, syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d\n%s", code, node.log)
	}
}

// What SIGKILL leaves is served again.
func TestServeAgain(t *testing.T) {
	socket := "unix:" + filepath.Join(t.TempDir(), "socket")
	node := serve(t, socket)
	dir := t.TempDir()
	path, manifest := randomFile(t, dir, "file", 100000), filepath.Join(dir, "manifest")
	must(t, "put", path, "--to", node.addr, "--manifest", manifest)
	node.stop(t, syscall.SIGKILL)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int)
	var out, errs bytes.Buffer
	go func() { done <- run(ctx, []string{"serve", "--dir", node.dir, "--listen", socket}, &out, &errs) }()
	for i := 0; ; i++ {
		if code, _, stderr := blockpath(t, "get", manifest, "--from", socket, "-o", filepath.Join(dir, "back")); code == 0 {
			break
		} else if i == 100 {
			t.Fatal(stderr)
		}
		time.Sleep(50 * time.Millisecond)
	}
	cancel()
	if code := <-done; code != 0 {
		t.Errorf("exit code %d\n%s", code, errs.String())
	}
}

// Damage on disk is found by verify and by get, with file and offset.
func TestDamage(t *testing.T) {
	for _, v := range []struct {
		name        string
		do          func(t *testing.T, block, meta string)
		verify, get []string
	}{
		{"a flipped bit of data", func(t *testing.T, block, _ string) { flip(t, block, 1300) },
			[]string{"offset 1024", "checksum mismatch", "bit 2208"}, []string{"offset 1024", "mismatch"}},
		{"a flipped bit of a checksum", func(t *testing.T, _, meta string) { flip(t, meta, 7+4*3) },
			[]string{"offset 1536", "checksum mismatch"}, []string{"offset 1536", "mismatch"}},
		{"a truncated block", func(t *testing.T, block, _ string) { truncate(t, block, 2000) },
			[]string{"offset 2000"}, []string{"2000"}},
		{"a truncated meta file", func(t *testing.T, _, meta string) { truncate(t, meta, 7+4*5+2) },
			[]string{".meta: offset 29: expected 47 bytes"}, []string{"offset 2560"}},
		{"a meta file without a header", func(t *testing.T, _, meta string) { truncate(t, meta, 3) },
			[]string{".meta: offset 3: the header is cut short"}, []string{"offset 0"}},
		{"an empty block", func(t *testing.T, block, _ string) { truncate(t, block, 0) },
			[]string{"offset 0"}, []string{"offset 0"}},
	} {
		t.Run(v.name, func(t *testing.T) {
			node := serve(t, "127.0.0.1:0")
			dir := t.TempDir()
			path, manifest := randomFile(t, dir, "file", 5000), filepath.Join(dir, "manifest")
			must(t, "put", path, "--to", node.addr, "--manifest", manifest)
			blocks, metas := blockFiles(t, node.dir)
			if len(blocks) != 1 || len(metas) != 1 {
				t.Fatalf("block files %v, meta files %v", blocks, metas)
			}
			v.do(t, blocks[0], metas[0])
			fails(t, 1, append(v.verify, filepath.Base(blocks[0])), "verify", node.dir)
			fails(t, 1, append(v.get, "file", filepath.Base(blocks[0])), "get", manifest, "--from", node.addr, "-o", filepath.Join(dir, "back"))
			// what was written of it is right
			want, _ := os.ReadFile(path)
			got, _ := os.ReadFile(filepath.Join(dir, "back"))
			if !bytes.HasPrefix(want, got) {
				t.Errorf("get wrote %d bytes that are not the file's beginning", len(got))
			}
		})
	}
}

// Where one replica is damaged in mid-block, another goes on.
func TestFailover(t *testing.T) {
	first := serve(t, "127.0.0.1:0")
	dir := t.TempDir()
	path, manifest := randomFile(t, dir, "file", 3<<20+77), filepath.Join(dir, "manifest")
	must(t, "put", path, "--to", first.addr, "--manifest", manifest, "--block-size", "2MiB", "--sha256")
	first.stop(t, syscall.SIGTERM)
	copied := filepath.Join(dir, "copy")
	if err := os.CopyFS(copied, os.DirFS(first.dir)); err != nil {
		t.Fatal(err)
	}
	blocks, _ := blockFiles(t, first.dir)
	for _, b := range blocks {
		flip(t, b, 900000)
	}
	damaged, whole := serveDir(t, first.dir, "127.0.0.1:0"), serveDir(t, copied, "127.0.0.1:0")
	back := filepath.Join(dir, "back")
	fails(t, 1, []string{"offset 899584"}, "get", manifest, "--from", damaged.addr, "-o", back)
	must(t, "get", manifest, "--from", damaged.addr, "--from", whole.addr, "-o", back)
	want, _ := os.ReadFile(path)
	if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file did not come back as it was: %v", err)
	}
}

func flip(t *testing.T, path string, offset int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[offset] ^= 1
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, path string, n int64) {
	t.Helper()
	if err := os.Truncate(path, n); err != nil {
		t.Fatal(err)
	}
}

func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	path := randomFile(t, dir, "file", 100)
	manifest := filepath.Join(dir, "manifest")
	for _, args := range [][]string{
		{},
		{"move"},
		{"roundtrip"},
		{"roundtrip", path, "--no-such-flag"},
		{"roundtrip", path, "--block-size", "1000"},
		{"roundtrip", path, "--block-size", "many"},
		{"roundtrip", path, "--checksum", "md5"},
		{"roundtrip", path, "--backend", "tape"},
		{"put", path},
		{"put", path, path, "--to", "127.0.0.1:1", "--manifest", manifest},
		{"get", manifest},
		{"serve"},
		{"serve", "--dir", dir, "--listen", "nowhere"},
		{"verify"},
		{"checksum"},
		{"checksum", path, "--mode", "sha1"},
		{"checksum", path, "--checksum", "none"},
		{"cpu", "now"},
	} {
		fails(t, 2, []string{"blockpath: "}, args...)
	}
	missing := filepath.Join(dir, "missing")
	if err := os.WriteFile(manifest, []byte(`{"version": 1}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"roundtrip", missing},
		{"roundtrip", dir},
		{"put", path, "--to", "127.0.0.1:1", "--manifest", filepath.Join(dir, "m")},
		{"get", missing, "--from", "127.0.0.1:1", "-o", "-"},
		{"get", manifest, "--from", "127.0.0.1:1", "-o", "-"},
		{"verify", missing},
		{"checksum", missing},
	} {
		code, _, stderr := blockpath(t, args...)
		if code != 1 || strings.Count(stderr, "\n") != 1 {
			t.Errorf("blockpath %s: exit code %d, want 1, and one line:\n%s", strings.Join(args, " "), code, stderr)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "m")); err == nil {
		t.Error("a failed put left a manifest")
	}
}

func TestChecksum(t *testing.T) {
	dir := t.TempDir()
	path := randomFile(t, dir, "file", 5000)
	data, _ := os.ReadFile(path)
	for _, kind := range []crc.Kind{crc.CRC32C, crc.CRC32} {
		c := crc.Chunks{Kind: kind}
		var blocks []crc.BlockSum
		for at := 0; at < len(data); at += 2048 {
			block := data[at:min(at+2048, len(data))]
			s := crc.NewBlockSummer(c)
			s.Add(c.Append(nil, block))
			sum, err := s.Sum(int64(len(block)))
			if err != nil {
				t.Fatal(err)
			}
			blocks = append(blocks, sum)
		}
		f := crc.NewFileSum(c, blocks)
		args := []string{"checksum", path, "--block-size", "2048", "--checksum", kind.String()}
		if got, want := must(t, args...), fmt.Sprintf("%s\t%s\t%x\n", path, f.MD5Name(), f.AppendMD5(nil)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		want := fmt.Sprintf("%s\t%s\t%08x\n", path, f.CompositeName(), crc.Checksum(kind, data))
		if got := must(t, append(args, "--mode", "composite")...); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	empty := randomFile(t, dir, "empty", 0)
	for _, mode := range []string{"md5", "composite"} {
		want := empty + "\tMD5-of-0MD5-of-0CRC32\t00000000000000000000000070bc8f4b72a86921468bf8e8441dce51\n"
		if got := must(t, "checksum", empty, "--mode", mode); got != want {
			t.Errorf("mode %s: got %q, want %q", mode, got, want)
		}
	}
}

func TestCPU(t *testing.T) {
	var r cpuReport
	if err := json.Unmarshal([]byte(must(t, "cpu", "--json")), &r); err != nil {
		t.Fatal(err)
	}
	operations := map[string]bool{}
	for _, k := range r.Kernels {
		operations[k.Checksum+" "+k.Operation] = true
		if k.Kernel == "" || k.GBps <= 0 {
			t.Errorf("%+v", k)
		}
	}
	for _, kind := range []string{"crc32c", "crc32"} {
		for _, op := range []string{"update", "put", "verify", "copyput", "copyverify"} {
			if !operations[kind+" "+op] {
				t.Errorf("no kernel for %s %s", kind, op)
			}
		}
	}
}
