package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/dxpu-project/dxpu/internal/pool/manager"
)

const (
	rulesFile     = "../../deploy/prometheus/dxpu.rules.yml"
	rulesTest     = "../../deploy/prometheus/dxpu.rules_test.yml"
	scrapeFile    = "../../deploy/prometheus/prometheus.yml"
	dashboardFile = "../../deploy/grafana/dxpu.json"
	// kubernetesFile has metrics of a program of another module, whose tests check their names.
	kubernetesFile = "../../deploy/grafana/dxpu-kubernetes.json"
)

// metricURLs serves the metrics of a manager, a host and a box with a binding, and of a sharing agent, by job.
func metricURLs(t *testing.T) map[string]string {
	t.Helper()
	s := newProxyPair(t)
	copyBothWays(t, s.open(t), 64<<10)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(testTimeout); !strings.Contains(metricsOf(t, s.host.url), "dxpu_link_tlps_total"); <-tick.C {
		select {
		case <-limit:
			t.Fatal("the host has no metrics of its link")
		default:
		}
	}
	m, err := manager.New(t.Context(), manager.Config{JoinToken: "token-for-tests", Open: manager.OpenLoopback, Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(m.Handler())
	t.Cleanup(srv.Close)
	call := func(path, credential, body string) (answer struct{ Credential string }) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/dxpu.v1."+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if credential != "" {
			req.Header.Set("Authorization", "Bearer "+credential)
		}
		res, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", path, res.Status, err)
		}
		return answer
	}
	call("PoolService/PutTenant", "", `{"tenant":{"id":"research","quota":{"maxGpus":8}}}`)
	call("PoolService/CreateLease", "", `{"spec":{"count":1,"wait":true,"tenant":"research"}}`)
	box := call("NodeService/Enroll", "", `{"joinToken":"token-for-tests","kind":"NODE_KIND_BOX","name":"b1"}`)
	call("NodeService/Report", box.Credential, `{"state":{"nodeId":"b1","instanceId":"1","sequence":1,"slots":[{"device":{"model":"A"},"health":"HEALTH_FAILED"}]}}`)
	return map[string]string{"dxpu-manager": srv.URL, "dxpu-host": s.host.url, "dxpu-box": s.box.url, "dxpu-share": shareMetricsURL(t)}
}

// expressions returns the PromQL of the rules and of the dashboard, by name.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	raw, err := os.ReadFile(rulesFile)
	if err == nil {
		err = yaml.Unmarshal(raw, &rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			out["alert "+r.Alert] = r.Expr
		}
	}
	maps.Copy(out, panels(t, dashboardFile))
	return out
}

// panels returns the PromQL of a dashboard, by name.
func panels(t *testing.T, file string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, p := range dashboard(t, file).Panels {
		for _, q := range p.Targets {
			out["panel "+p.Title+" "+q.RefID] = strings.ReplaceAll(q.Expr, "$__rate_interval", "1m")
		}
	}
	return out
}

// grafana is the part of a dashboard that the tests read.
type grafana struct {
	UID, Title    string
	SchemaVersion int
	Templating    struct {
		List []struct{ Name, Type, Query string }
	}
	Panels []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct {
			RefID, Expr string
			Datasource  struct{ Type, UID string }
		}
	}
}

func dashboard(t *testing.T, file string) *grafana {
	t.Helper()
	d := &grafana{}
	raw, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(raw, d)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A panel has a place of its own, a title, and queries of the data source that the
// viewer selects.
func TestDashboardIsComplete(t *testing.T) {
	d := dashboard(t, dashboardFile)
	if d.UID == "" || d.SchemaVersion < 36 || len(d.Templating.List) != 1 || d.Templating.List[0].Name != "datasource" {
		t.Errorf("frame of the dashboard: %+v", d)
	}
	taken, ids := map[[2]int]string{}, map[int]bool{}
	for _, p := range d.Panels {
		if p.Title == "" || ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %+v", p)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := taken[at]; other != "" {
					t.Fatalf("%q lies over %q", p.Title, other)
				}
				taken[at] = p.Title
			}
		}
		for _, q := range p.Targets {
			if q.Datasource.Type != "prometheus" || q.Datasource.UID != "${datasource}" || q.Expr == "" {
				t.Errorf("%s: query %+v", p.Title, q)
			}
		}
	}
}

var (
	metricName = regexp.MustCompile(`\b(?:dxpu|process|go)_[a-z0-9_]+`)
	seriesName = regexp.MustCompile(`(?m)^([a-z_0-9]+)`)
)

// Every metric in the rules and in the dashboard is one that a daemon has.
func TestMonitoredMetricsExist(t *testing.T) {
	have := map[string]bool{}
	for job, base := range metricURLs(t) {
		text := metricsOf(t, base)
		for _, name := range seriesName.FindAllString(text, -1) {
			have[name] = true
		}
		if !strings.Contains(text, `dxpu_build_info{goversion="go`) {
			t.Errorf("%s has no dxpu_build_info", job)
		}
	}
	names := 0
	for what, expr := range expressions(t) {
		for _, name := range metricName.FindAllString(expr, -1) {
			names++
			if !have[name] {
				t.Errorf("%s: no daemon has the metric %s", what, name)
			}
		}
	}
	if names < 40 {
		t.Errorf("only %d names of metrics found", names)
	}
}

// metricsOf returns the metrics of a daemon.
func metricsOf(t *testing.T, base string) string {
	t.Helper()
	res, err := http.Get(base + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// promtool finds no error in the rules and the scrape configuration, and each alert
// fires when it should.
func TestAlertRules(t *testing.T) {
	tool := monitoringTool(t, "promtool")
	for _, args := range [][]string{{"check", "config", scrapeFile}, {"check", "rules", rulesFile}, {"test", "rules", rulesTest}} {
		if out, err := exec.CommandContext(t.Context(), tool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	tests, err := os.ReadFile(rulesTest)
	if err != nil {
		t.Fatal(err)
	}
	for what := range expressions(t) {
		if alert, ok := strings.CutPrefix(what, "alert "); ok && !strings.Contains(string(tests), "alertname: "+alert+"\n") {
			t.Errorf("no test lets the alert %s fire", alert)
		}
	}
}

// monitoringTool returns the path of a program of Prometheus, or skips the test.
func monitoringTool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrNotFound) {
		t.Skipf("%s is not installed (Debian: apt install prometheus)", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A real Prometheus scrapes the daemons, loads the rules, and understands every
// expression of the dashboards.
func TestPrometheusLoadsRulesAndDashboard(t *testing.T) {
	bin := monitoringTool(t, "prometheus")
	api := startPrometheus(t, bin, metricURLs(t))
	var groups struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	queryPrometheus(t, api, "rules", nil, &groups)
	rules := 0
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			rules++
			if r.Health == "err" {
				t.Errorf("rule %s: %s", r.Name, r.LastError)
			}
		}
	}
	exprs := expressions(t)
	alerts := 0
	for what, expr := range exprs {
		var result struct{ Result []json.RawMessage }
		queryPrometheus(t, api, "query", url.Values{"query": {expr}}, &result)
		if strings.HasPrefix(what, "alert ") {
			alerts++
		}
		if slices.Contains([]string{"panel Leader A", "panel Occupancy A", "panel Health A", "panel GPUs by tenant A", "panel Versions A", "panel Memory A"}, what) && len(result.Result) == 0 {
			t.Errorf("%s: no data", what)
		}
	}
	for _, expr := range panels(t, kubernetesFile) {
		queryPrometheus(t, api, "query", url.Values{"query": {expr}}, new(json.RawMessage))
	}
	if rules != alerts || alerts == 0 {
		t.Errorf("Prometheus has %d rules, the file %d", rules, alerts)
	}
}

// startPrometheus runs a Prometheus until the test ends and returns the URL of its API,
// once it has scraped every target.
func startPrometheus(t *testing.T, bin string, jobs map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	raw, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	config := "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [dxpu.rules.yml]\nscrape_configs:\n"
	for job, base := range jobs {
		config += fmt.Sprintf("  - {job_name: %s, static_configs: [{targets: [%q]}]}\n", job, strings.TrimPrefix(base, "http://"))
	}
	for name, text := range map[string]string{"dxpu.rules.yml": string(raw), "prometheus.yml": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, bin, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address=127.0.0.1:0", "--log.level=info")
	logs, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 256)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(logs); s.Scan(); {
			select {
			case lines <- s.Text():
			default: // only the first ones matter
			}
		}
	}()
	t.Cleanup(func() {
		stop()
		for range lines {
		}
		_ = cmd.Wait() // it was killed
	})
	for line := range lines {
		if strings.Contains(line, "Server is ready") {
			break
		}
		if strings.Contains(line, "level=error") {
			t.Fatal(line)
		}
	}
	api := "http://" + listenerOf(t, cmd.Process.Pid) + "/api/v1/"
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(testTimeout); ; <-tick.C {
		var up struct{ Result []json.RawMessage }
		queryPrometheus(t, api, "query", url.Values{"query": {"up == 1"}}, &up)
		if len(up.Result) == len(jobs) {
			return api
		}
		select {
		case <-limit:
			t.Fatalf("Prometheus has scraped %d of %d targets: %s", len(up.Result), len(jobs), up.Result)
		default:
		}
	}
}

// listenerOf returns the address on which a process listens: Prometheus does not say
// which port it got.
func listenerOf(t *testing.T, pid int) string {
	t.Helper()
	inodes := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
			inodes[strings.Trim(to, "socket:[]")] = true
		}
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != "0A" || !inodes[f[9]] { // 0A: LISTEN
			continue
		}
		_, port, _ := strings.Cut(f[1], ":")
		n, err := strconv.ParseUint(port, 16, 16)
		if err != nil {
			t.Fatal(err)
		}
		return net.JoinHostPort("127.0.0.1", strconv.FormatUint(n, 10))
	}
	t.Fatalf("process %d does not listen", pid)
	return ""
}

// queryPrometheus calls the API of a Prometheus.
func queryPrometheus(t *testing.T, api, path string, q url.Values, into any) {
	t.Helper()
	res, err := http.Get(api + path + "?" + q.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	if answer.Status != "success" {
		t.Fatalf("Prometheus: %s %s: %s", path, q, answer.Error)
	}
	if err := json.Unmarshal(answer.Data, into); err != nil {
		t.Fatal(err)
	}
}
