package cohdi_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/agent/simulated"
	"github.com/dxpu-project/dxpu/internal/localpool"
	"github.com/dxpu-project/dxpu/internal/pool/cohdi"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
	"github.com/dxpu-project/dxpu/internal/pool/web"
)

// world is a pool with the interface, over HTTPS as the components require it.
type world struct {
	t      *testing.T
	http   *http.Client
	url    string
	pool   dxpuv1connect.PoolServiceClient
	access string // access token
	secret string // token of the pool
}

const (
	tenant  = "team-a"
	machine = "host-00000"
	joining = "token-for-tests"
)

func newWorld(t *testing.T) *world {
	t.Helper()
	m, err := manager.New(t.Context(), manager.Config{JoinToken: joining, Open: manager.OpenLoopback, Version: "v1", LostAfter: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	api := m.Handler()
	mux := http.NewServeMux()
	mux.Handle("/", api)
	fabric := cohdi.Handler(cohdi.Config{Client: web.LocalClient(api)})
	mux.Handle("/id_manager/", fabric)
	mux.Handle("/fabric_manager/", fabric)
	srv := httptest.NewUnstartedServer(mux)
	srv.Config.Protocols = &http.Protocols{}
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.StartTLS()
	plain := httptest.NewUnstartedServer(mux)
	plain.Config.Protocols = srv.Config.Protocols
	plain.Start()
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- m.Run(ctx) }()
	nodes := simulated.New(simulated.Spec{
		Manager: plain.URL, JoinToken: joining, Version: "v1", Hosts: 2, SlotsPerHost: 2, Boxes: 4, GPUsPerBox: 1,
		AtOnce: 4, NodesPerConnection: 4, Progress: func(string, ...any) {},
	})
	t.Cleanup(func() {
		nodes.Stop()
		cancel()
		if err := <-ran; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		for _, s := range []*httptest.Server{srv, plain} {
			s.CloseClientConnections()
			s.Close()
		}
	})
	if err := nodes.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, http: srv.Client(), url: srv.URL, pool: dxpuv1connect.NewPoolServiceClient(http.DefaultClient, plain.URL)}
	if err := localpool.Poll(t.Context(), func() (bool, error) {
		res, err := w.pool.GetPool(t.Context(), connect.NewRequest(&dxpuv1.GetPoolRequest{}))
		return err == nil && res.Msg.Pool.HostsConnected == 2 && res.Msg.Pool.BoxesConnected == 4, err
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.pool.PutTenant(t.Context(), connect.NewRequest(&dxpuv1.PutTenantRequest{
		Tenant: &dxpuv1.Tenant{Id: tenant, Quota: &dxpuv1.Quota{MaxGpus: 2}},
	})); err != nil {
		t.Fatal(err)
	}
	w.secret = w.newToken(dxpuv1.Role_ROLE_OPERATOR, "")
	w.access = w.logIn(w.secret)
	return w
}

// newToken returns a token of the pool.
func (w *world) newToken(role dxpuv1.Role, tenant string) string {
	w.t.Helper()
	res, err := w.pool.CreateToken(w.t.Context(), connect.NewRequest(&dxpuv1.CreateTokenRequest{Role: role, Tenant: tenant}))
	if err != nil {
		w.t.Fatal(err)
	}
	return res.Msg.Secret
}

// logIn asks for an access token as composable-resource-operator does.
func (w *world) logIn(password string) string {
	w.t.Helper()
	status, raw := w.postForm(url.Values{
		"client_id": {"c"}, "client_secret": {"s"}, "username": {"u"}, "password": {password},
		"scope": {"openid"}, "response_type": {"id_token token"}, "grant_type": {"password"},
	}.Encode())
	var token struct {
		AccessToken string `json:"access_token"`
		ExpiresIn   int64  `json:"expires_in"`
		TokenType   string `json:"token_type"`
	}
	if err := json.Unmarshal(raw, &token); err != nil || status != http.StatusOK || token.TokenType != "Bearer" {
		w.t.Fatalf("token: %d %s, %v", status, raw, err)
	}
	parts := strings.Split(token.AccessToken, ".")
	if len(parts) != 3 {
		w.t.Fatalf("the access token has %d parts; the operator wants three", len(parts))
	}
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	var expiry struct {
		Exp int64 `json:"exp"`
	}
	if err = errors.Join(err, json.Unmarshal(claims, &expiry)); err != nil || expiry.Exp <= time.Now().Unix()+30 {
		w.t.Fatalf("claims %s, %v; the operator wants an expiry beyond 30 s", claims, err)
	}
	return token.AccessToken
}

func (w *world) postForm(body string) (int, []byte) {
	w.t.Helper()
	res, err := w.http.Post(w.url+"/id_manager/realms/CDI/protocol/openid-connect/token", "application/x-www-form-urlencoded", strings.NewReader(body))
	return w.read(res, err)
}

func (w *world) read(res *http.Response, err error) (int, []byte) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return res.StatusCode, raw
}

// call calls the fabric manager. query is added to the tenant.
func (w *world) call(method, path, query, body string) (int, []byte) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+"/fabric_manager/api/v1/machines"+path+"?tenant_uuid="+tenant+query, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Authorization", "Bearer "+w.access)
	res, err := w.http.Do(req)
	return w.read(res, err)
}

// The answers, with the fields that the components read.
type (
	answer struct {
		Data struct {
			Machines []struct {
				FabricID  *int       `json:"fabric_id"`
				UUID      string     `json:"mach_uuid"`
				Resources []resource `json:"resources"`
			} `json:"machines"`
		} `json:"data"`
	}
	resource struct {
		UUID     string `json:"res_uuid"`
		Type     string `json:"res_type"`
		OpStatus string `json:"res_op_status"`
		Serial   string `json:"res_serial_num"`
		Spec     struct {
			Condition []struct{ Column, Operator, Value string } `json:"condition"`
		} `json:"res_spec"`
	}
	refusal struct {
		Status int `json:"status"`
		Detail struct {
			Code    string          `json:"code"`
			Message json.RawMessage `json:"message"`
		} `json:"detail"`
	}
)

func (w *world) machine() []resource {
	w.t.Helper()
	status, raw := w.call("GET", "/"+machine, "", "")
	var a answer
	if err := json.Unmarshal(raw, &a); err != nil || status != http.StatusOK || len(a.Data.Machines) != 1 || a.Data.Machines[0].UUID != machine {
		w.t.Fatalf("machine: %d %s, %v", status, raw, err)
	}
	return a.Data.Machines[0].Resources
}

// free asks as composable-dra-driver does.
func (w *world) free(model string) int {
	w.t.Helper()
	condition := url.QueryEscape(fmt.Sprintf(`{"column":"model","operator":"eq","value":%q}`, model))
	status, raw := w.call("GET", "/"+machine+"/available-reserved-resources", "&res_type=gpu&condition="+condition, "")
	var a struct {
		FabricID int `json:"fabric_id"`
		Number   int `json:"reserved_res_num_per_fabric"`
	}
	if err := json.Unmarshal(raw, &a); err != nil || status != http.StatusOK || a.FabricID != 1 {
		w.t.Fatalf("available: %d %s, %v", status, raw, err)
	}
	return a.Number
}

func update(spec string) string {
	return fmt.Sprintf(`{"tenants":{"tenant_uuid":%q,"machines":[{"mach_uuid":%q,"resources":[{"res_specs":[%s]}]}]}}`, tenant, machine, spec)
}

func adding(model string, n int) string {
	return update(fmt.Sprintf(`{"res_type":"gpu","res_spec":{"condition":[{"column":"model","operator":"eq","value":%q}]},"res_num":%d}`, model, n))
}

func removing(id string) string {
	return update(fmt.Sprintf(`{"res_type":"gpu","res_uuid":%q,"res_num":1}`, id))
}

// refused checks an answer that the operator can read.
func (w *world) refused(status int, raw []byte, want int, text string) {
	w.t.Helper()
	var r refusal
	if err := json.Unmarshal(raw, &r); err != nil || status != want || r.Status != want || !bytes.Contains(r.Detail.Message, []byte(text)) {
		w.t.Errorf("answer %d %s, %v; want %d with %q", status, raw, err, want, text)
	}
}

// TestOperator follows composable-resource-operator: a GPU is added, checked, and removed.
func TestOperator(t *testing.T) {
	w := newWorld(t)
	if n := w.free("H100"); n != 1 {
		t.Fatalf("%d free H100, want 1", n)
	}
	status, raw := w.call("PATCH", "/"+machine+"/update", "", adding("H100", 1))
	var a answer
	if err := json.Unmarshal(raw, &a); err != nil || status != http.StatusOK || len(a.Data.Machines) != 1 || len(a.Data.Machines[0].Resources) != 1 {
		t.Fatalf("add: %d %s, %v", status, raw, err)
	}
	r := a.Data.Machines[0].Resources[0]
	if c := r.Spec.Condition; r.Type != "gpu" || r.OpStatus != "0" || r.UUID == "" || len(c) != 1 || c[0].Column != "model" || c[0].Operator != "eq" || c[0].Value != "H100" {
		t.Errorf("resource %+v", r)
	}
	// The GPU is attached when the call returns.
	leases, err := w.pool.ListLeases(t.Context(), connect.NewRequest(&dxpuv1.ListLeasesRequest{State: dxpuv1.LeaseState_LEASE_STATE_ACTIVE}))
	if err != nil || len(leases.Msg.Leases) != 1 {
		t.Fatalf("leases %v, %v; want one that is active", leases, err)
	}
	if b := leases.Msg.Leases[0].Bindings[0]; b.GpuId != r.UUID || b.HostId != machine || b.State != dxpuv1.BindingState_BINDING_STATE_ATTACHED {
		t.Errorf("binding %v of resource %+v", b, r)
	}
	if n := w.free("H100"); n != 0 {
		t.Errorf("%d free H100 after it was added", n)
	}
	if got := w.machine(); len(got) != 1 || got[0].UUID != r.UUID || got[0].Serial != r.Serial {
		t.Errorf("machine has %+v", got)
	}
	status, raw = w.call("PATCH", "/"+machine+"/update", "", adding("H100", 1))
	w.refused(status, raw, http.StatusConflict, "H100")

	if status, raw := w.call("DELETE", "/"+machine+"/update", "", removing(r.UUID)); status != http.StatusNoContent {
		t.Fatalf("remove: %d %s", status, raw)
	}
	if got := w.machine(); len(got) != 0 {
		t.Errorf("machine has %+v after the removal", got)
	}
	if n := w.free("H100"); n != 1 {
		t.Errorf("%d free H100 after the removal", n)
	}
	status, raw = w.call("DELETE", "/"+machine+"/update", "", removing(r.UUID))
	w.refused(status, raw, http.StatusNotFound, "has no resource")
}

// TestAllOrNothing: a call that cannot add all resources adds none. The quota holds.
func TestAllOrNothing(t *testing.T) {
	w := newWorld(t)
	status, raw := w.call("PATCH", "/"+machine+"/update", "", adding("A100", 2))
	w.refused(status, raw, http.StatusConflict, "A100")
	for _, model := range []string{"A100", "T4"} {
		if status, raw := w.call("PATCH", "/"+machine+"/update", "", adding(model, 1)); status != http.StatusOK {
			t.Fatalf("add %s: %d %s", model, status, raw)
		}
	}
	status, raw = w.call("PATCH", "/host-00001/update", "", strings.ReplaceAll(adding("V100", 1), machine, "host-00001"))
	w.refused(status, raw, http.StatusConflict, "quota")
	if got := w.machine(); len(got) != 2 {
		t.Errorf("machine has %+v", got)
	}
}

// TestDriver follows composable-dra-driver: its form is not escaped, and it lists machines.
func TestDriver(t *testing.T) {
	w := newWorld(t)
	status, raw := w.postForm("client_id=c&client_secret=s&username=u&password=" + w.secret + "&scope=openid&response=id_token token&grant_type=password")
	if status != http.StatusOK {
		t.Fatalf("token: %d %s", status, raw)
	}
	status, raw = w.call("GET", "", "", "")
	var a answer
	if err := json.Unmarshal(raw, &a); err != nil || status != http.StatusOK || len(a.Data.Machines) != 2 {
		t.Fatalf("machines: %d %s, %v", status, raw, err)
	}
	for _, m := range a.Data.Machines {
		if m.FabricID == nil || *m.FabricID != 1 || m.UUID == "" {
			t.Errorf("machine %+v", m)
		}
	}
}

// TestForeignLeases: a GPU of a lease that was made otherwise is not the operator's to remove.
func TestForeignLeases(t *testing.T) {
	w := newWorld(t)
	res, err := w.pool.CreateLease(t.Context(), connect.NewRequest(&dxpuv1.CreateLeaseRequest{Spec: &dxpuv1.LeaseSpec{Count: 1, HostId: machine, Tenant: tenant, Model: "T4"}}))
	if err != nil {
		t.Fatal(err)
	}
	if got := w.machine(); len(got) != 0 {
		t.Errorf("machine has %+v", got)
	}
	status, raw := w.call("DELETE", "/"+machine+"/update", "", removing(res.Msg.Lease.Bindings[0].GpuId))
	w.refused(status, raw, http.StatusNotFound, "has no resource")
}

func TestRefusals(t *testing.T) {
	w := newWorld(t)
	long := update(`{"res_type":"` + strings.Repeat("x", 70_000) + `"}`)
	for name, tc := range map[string]struct {
		method, path, query, body string
		status                    int
		text                      string
	}{
		"unknown machine":  {"GET", "/nowhere", "", "", 404, "nowhere"},
		"type":             {"GET", "/" + machine + "/available-reserved-resources", "&res_type=cpu", "", 400, "res_type"},
		"condition":        {"GET", "/" + machine + "/available-reserved-resources", "&res_type=gpu&condition=%7B", "", 400, "condition"},
		"no condition":     {"GET", "/" + machine + "/available-reserved-resources", "&res_type=gpu", "", 400, "condition"},
		"no JSON":          {"PATCH", "/" + machine + "/update", "", "{", 400, "the body"},
		"too long":         {"PATCH", "/" + machine + "/update", "", long, 400, "too large"},
		"nothing":          {"PATCH", "/" + machine + "/update", "", update(""), 400, "0 resources"},
		"none":             {"PATCH", "/" + machine + "/update", "", adding("T4", 0), 400, "res_num"},
		"too many":         {"PATCH", "/" + machine + "/update", "", adding("T4", 33), 400, "res_num"},
		"other machine":    {"PATCH", "/host-00001/update", "", adding("T4", 1), 400, "mach_uuid"},
		"other tenant":     {"PATCH", "/" + machine + "/update", "", strings.Replace(adding("T4", 1), tenant, "team-b", 1), 400, "tenant_uuid"},
		"path":             {"GET", "/" + machine + "/other", "", "", 404, "no such call"},
		"disk to add":      {"PATCH", "/" + machine + "/update", "", update(`{"res_type":"ssd","res_num":1}`), 400, "res_type"},
		"no such resource": {"DELETE", "/" + machine + "/update", "", removing("box-00009/0"), 404, "has no resource"},
	} {
		t.Run(name, func(t *testing.T) {
			v := *w
			v.t = t
			status, raw := v.call(tc.method, tc.path, tc.query, tc.body)
			v.refused(status, raw, tc.status, tc.text)
		})
	}
}

// TestAccess: passwords and access tokens that are not of the pool, a token of a tenant,
// and one that is deleted.
func TestAccess(t *testing.T) {
	w := newWorld(t)
	for _, form := range []string{"grant_type=password&password=dxpu_wrong", "grant_type=password&password=a+b", "grant_type=client_credentials", "%zz"} {
		if status, raw := w.postForm(form); status != http.StatusUnauthorized && status != http.StatusBadRequest {
			t.Errorf("token with %q: %d %s", form, status, raw)
		}
	}
	good := w.access
	for _, access := range []string{"x", "a.b.%%", w.secret, good + "x", "a.b." + base64.RawURLEncoding.EncodeToString([]byte("dxpu_wrong"))} {
		w.access = access
		status, raw := w.call("GET", "", "", "")
		w.refused(status, raw, http.StatusUnauthorized, "")
	}
	w.access = w.logIn(w.newToken(dxpuv1.Role_ROLE_TENANT, tenant))
	status, raw := w.call("PATCH", "/"+machine+"/update", "", adding("T4", 1))
	w.refused(status, raw, http.StatusNotFound, machine) // tenants do not see hosts

	w.access = good
	list, err := w.pool.ListTokens(t.Context(), connect.NewRequest(&dxpuv1.ListTokensRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range list.Msg.Tokens {
		if _, err := w.pool.DeleteToken(t.Context(), connect.NewRequest(&dxpuv1.DeleteTokenRequest{TokenId: token.Id})); err != nil {
			t.Fatal(err)
		}
	}
	status, raw = w.call("GET", "", "", "")
	w.refused(status, raw, http.StatusUnauthorized, "")
}
