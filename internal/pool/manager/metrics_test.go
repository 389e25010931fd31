package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// scrape returns the metrics of a manager as lines.
func scrape(t *testing.T, m *Manager) []string {
	t.Helper()
	w := httptest.NewRecorder()
	m.MetricsHandler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("/metrics: %d %s", w.Code, w.Body)
	}
	return strings.Split(w.Body.String(), "\n")
}

// wantMetrics checks that the metrics have lines.
func wantMetrics(t *testing.T, m *Manager, want ...string) {
	t.Helper()
	have := map[string]bool{}
	names := map[string][]string{}
	for _, line := range scrape(t, m) {
		have[line] = true
		name, _, _ := strings.Cut(line, "{")
		names[name] = append(names[name], line)
	}
	for _, line := range want {
		if name, _, _ := strings.Cut(line, "{"); !have[line] {
			t.Errorf("no line %q; there are %q", line, names[name])
		}
	}
}

// The metrics show leases that lack a GPU, GPUs that are ill, and the use of tenants.
func TestMetricsShowFailures(t *testing.T) {
	w := newWorld(t, Config{Version: "v1.2.3"}, hostNode("h1", 4), boxNode("b1", 2), boxNode("b2", 1))
	api := w.api()
	if _, err := api.PutTenant(t.Context(), connect.NewRequest(&dxpuv1.PutTenantRequest{Tenant: &dxpuv1.Tenant{Id: "research", Quota: &dxpuv1.Quota{MaxGpus: 8}}})); err != nil {
		t.Fatal(err)
	}
	w.create(&dxpuv1.LeaseSpec{Count: 3, Tenant: "research"})
	w.settle()
	wantMetrics(t, w.m, `dxpu_pool_leases{state="degraded"} 0`, `dxpu_pool_gpu_health{health="ok"} 3`, `dxpu_pool_gpu_use{use="busy"} 3`, `dxpu_gpu_errors_total{action="replace",xid="79"} 0`)

	w.nodes["b1"].addError(0, 79)
	w.nodes["b1"].addError(1, 4_000_000_000)
	w.nodes["b1"].dead[1] = true
	w.settle()
	wantMetrics(t, w.m,
		`dxpu_manager_leader 1`,
		`dxpu_pool_leases{state="active"} 1`, `dxpu_pool_leases{state="degraded"} 1`,
		`dxpu_pool_gpu_health{health="ok"} 1`, `dxpu_pool_gpu_health{health="failed"} 1`, `dxpu_pool_gpu_health{health="out_of_service"} 1`,
		`dxpu_gpu_problem{gpu="b1/0",health="out_of_service"} 1`, `dxpu_gpu_problem{gpu="b1/1",health="failed"} 1`,
		`dxpu_gpu_errors_total{action="replace",xid="79"} 1`, `dxpu_gpu_errors_total{action="ignore",xid="other"} 1`,
		`dxpu_tenant_gpus{tenant="research"} 3`, `dxpu_tenant_leases{state="degraded",tenant="research"} 1`, `dxpu_tenant_gpus_limit{tenant="research"} 8`,
	)

	w.nodes["b1"].down = true
	for range 3 {
		w.pass(time.Second)
		w.rounds(2)
	}
	wantMetrics(t, w.m, `dxpu_pool_gpu_health{health="unreachable"} 2`, `dxpu_pool_boxes{state="lost"} 1`)
	for _, line := range scrape(t, w.m) {
		if strings.HasPrefix(line, "dxpu_gpu_problem{") {
			t.Errorf("the GPUs of a lost box have %s", line)
		}
		if strings.HasPrefix(line, "dxpu_build_info{") && !strings.Contains(line, `version="v1.2.3"`) {
			t.Errorf("version: %s", line)
		}
	}
}

// A box may report any number as its GPUs' health. It makes no new values of labels.
func TestMetricsOfAnUnknownHealth(t *testing.T) {
	s := slotRecord{Health: 77}
	if how := s.sickness(); how != "degraded" {
		t.Errorf("health 77 is %q", how)
	}
}

// If more GPUs are broken than have a metric each, the same ones have it in each scrape.
func TestMetricsOfManyBrokenGPUs(t *testing.T) {
	w := newWorld(t, Config{})
	_ = w.m.update(t.Context(), func(t *tx) error {
		for i := range 2 * maxSickMetrics {
			id := fmt.Sprintf("b%04d", i)
			t.indexedNodes[id] = nodeEntry{box: true, gpus: 1, sick: []sickGPU{{0, "failed"}}}
			t.live[id] = &liveNode{last: t.now, silentSince: t.now, timeout: time.Hour}
		}
		n := &poolNumbers{Pool: &dxpuv1.Pool{}, health: map[string]uint32{}}
		n.addHealth(t)
		if last := n.sick[len(n.sick)-1]; len(n.sick) != maxSickMetrics || last.gpu != "b0499/0" || n.health["failed"] != 2*maxSickMetrics {
			w.t.Fatalf("%d metrics, the last for %s; %d GPUs have failed", len(n.sick), last.gpu, n.health["failed"])
		}
		return errors.New("nothing of this stays")
	})
}

// Calls are counted by their code; a path that is no call makes no new label.
func TestMetricsOfCalls(t *testing.T) {
	w := newWorld(t, Config{Open: OpenLoopback})
	srv := httptest.NewServer(w.m.Handler())
	defer srv.Close()
	api := dxpuv1connect.NewPoolServiceClient(srv.Client(), srv.URL)
	if _, err := api.GetPool(t.Context(), connect.NewRequest(&dxpuv1.GetPoolRequest{})); err != nil {
		t.Fatal(err)
	}
	_, err := api.GetLease(t.Context(), connect.NewRequest(&dxpuv1.GetLeaseRequest{LeaseId: "l-9"}))
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Fatal(err)
	}
	watch, err := api.WatchEvents(t.Context(), connect.NewRequest(&dxpuv1.WatchEventsRequest{AfterRevision: 1 << 62}))
	if err == nil {
		watch.Receive()
		err = watch.Err()
		_ = watch.Close()
	}
	if connect.CodeOf(err) != connect.CodeOutOfRange {
		t.Fatal(err)
	}
	for _, path := range []string{"/dxpu.v1.PoolService/GetPool", "/dxpu.v1.PoolService/" + strings.Repeat("x", 40)} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer wrong")
		res, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	wantMetrics(t, w.m,
		`dxpu_manager_calls_total{call="PoolService/GetPool",code="ok"} 1`, `dxpu_manager_calls_total{call="PoolService/GetLease",code="not_found"} 1`,
		`dxpu_manager_calls_total{call="PoolService/WatchEvents",code="out_of_range"} 1`,
		`dxpu_manager_calls_total{call="PoolService/GetPool",code="unauthenticated"} 1`, `dxpu_manager_calls_total{call="unknown",code="unauthenticated"} 1`,
		`dxpu_manager_call_seconds_count{call="PoolService/GetPool"} 1`,
	)
}

// A manager that does not lead shows no pool: the zeros of three managers would add up.
func TestMetricsOfAFollower(t *testing.T) {
	m, err := New(t.Context(), Config{JoinToken: "token-for-tests", Store: &neverLeader{}})
	if err != nil {
		t.Fatal(err)
	}
	wantMetrics(t, m, "dxpu_manager_leader 0")
	for _, line := range scrape(t, m) {
		if strings.HasPrefix(line, "dxpu_pool_") || strings.HasPrefix(line, "dxpu_tenant_") {
			t.Errorf("a follower shows %s", line)
		}
	}
}

// secret creates a token.
func (w *world) secret(role dxpuv1.Role, tenant string) string {
	w.t.Helper()
	res, err := w.api().CreateToken(context.Background(), connect.NewRequest(&dxpuv1.CreateTokenRequest{Role: role, Tenant: tenant}))
	if err != nil {
		w.t.Fatalf("CreateToken: %v", err)
	}
	return res.Msg.Secret
}

// At the address of the API a tenant does not learn of other tenants from the metrics.
func TestMetricsHideTenants(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 2))
	w.putTenant("research", nil)
	w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "research"})
	w.nodes["b1"].dead[1] = true
	w.settle()
	for _, tc := range []struct {
		name, credential string
		code             int
		tenants          bool
	}{
		{"an admin", w.secret(dxpuv1.Role_ROLE_ADMIN, ""), http.StatusOK, true},
		{"an operator", w.secret(dxpuv1.Role_ROLE_OPERATOR, ""), http.StatusOK, true},
		{"a tenant", w.secret(dxpuv1.Role_ROLE_TENANT, "research"), http.StatusOK, false},
		{"nobody", "", http.StatusOK, false},
		{"a wrong token", "dxpu_x_y", http.StatusUnauthorized, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1/metrics", nil)
			if tc.credential != "" {
				r.Header.Set("Authorization", "Bearer "+tc.credential)
			}
			res := httptest.NewRecorder()
			w.m.Handler().ServeHTTP(res, r)
			if res.Code != tc.code {
				t.Errorf("status %d, want %d", res.Code, tc.code)
			}
			body := res.Body.String()
			if got := strings.Contains(body, "research") || strings.Contains(body, "dxpu_gpu_problem"); got != tc.tenants {
				t.Errorf("it shows single tenants or GPUs: %v, want %v", got, tc.tenants)
			}
			if res.Code == http.StatusOK && !strings.Contains(body, `dxpu_pool_gpus{state="bound"} 1`) {
				t.Error("it does not show the pool")
			}
		})
	}
}
