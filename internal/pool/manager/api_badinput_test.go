package manager

import (
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// The error of a bad request names the field and the allowed values.
func TestBadInput(t *testing.T) {
	long := strings.Repeat("x", 300)
	deep := strings.Repeat(`{"target":`, 200) + strings.Repeat("}", 200)
	tests := []struct {
		call, body, code string
		want             []string // in the message
	}{
		{"GetLease", `{"leaseId":`, "invalid_argument", []string{"unexpected EOF"}},
		{"GetLease", `leaseId=1`, "invalid_argument", []string{"line 1"}},
		{"GetLease", `[]`, "invalid_argument", []string{"line 1"}},
		{"GetLease", ``, "invalid_argument", []string{"send {}"}},
		{"GetLease", `{"lease":"l-1"}`, "invalid_argument", []string{`unknown field "lease"`, "GetLeaseRequest in api/dxpu/v1"}},
		{"CreateLease", `{"spec":{"count":1,"preemtible":true}}`, "invalid_argument", []string{`unknown field "preemtible"`}},
		{"GetLease", `{"leaseId":7}`, "invalid_argument", []string{"leaseId"}},
		{"GetLease", `{"leaseId":"a","leaseId":"b"}`, "invalid_argument", []string{"leaseId"}},
		{"GetLease", "{\"leaseId\":\"\xff\"}", "invalid_argument", []string{"UTF-8"}},
		{"GetLease", `{}`, "not_found", []string{"lease"}},
		{"GetLease", `{"leaseId":"` + long + `"}`, "invalid_argument", []string{"lease_id: 300 bytes, at most 256"}},
		{"ListGPUs", `{"pageSize":-1}`, "invalid_argument", []string{"page_size: -1 is negative"}},
		{"ListGPUs", `{"pageSize":9999999999}`, "invalid_argument", []string{"pageSize"}},
		{"ListGPUs", `{"pageToken":"%"}`, "invalid_argument", []string{"page_token: not issued by this manager"}},
		{"ListGPUs", `{"state":"SLEEPY"}`, "invalid_argument", []string{"state"}},
		{"CreateLease", `{}`, "invalid_argument", []string{"spec: must be set"}},
		{"CreateLease", `{"spec":{}}`, "invalid_argument", []string{"spec.count: 0 is not 1 to 64"}},
		{"CreateLease", `{"spec":{"count":-1}}`, "invalid_argument", []string{"count"}},
		{"CreateLease", `{"spec":{"count":65}}`, "invalid_argument", []string{"spec.count: 65 is not 1 to 64"}},
		{"CreateLease", `{"spec":{"count":1,"tenant":"A B"}}`, "invalid_argument", []string{`spec.tenant: "A B" is not 1 to 63 of`}},
		{"CreateLease", `{"spec":{"count":1,"priority":101}}`, "invalid_argument", []string{"spec.priority: 101 is not -100 to 100"}},
		{"CreateLease", `{"spec":{"count":1,"expiresAfter":"-1s"}}`, "invalid_argument", []string{"spec.expires_after: must be positive"}},
		{"CreateLease", `{"spec":{"count":1,"expiresAfter":"soon"}}`, "invalid_argument", []string{"soon", `write a duration like "90s"`}},
		{"CreateLease", `{"spec":{"count":1,"waitTimeout":"315576000000s"}}`, "invalid_argument", []string{"spec.wait_timeout"}},
		{"CreateLease", `{"spec":{"count":1,"nvlink":99}}`, "invalid_argument", []string{"spec.nvlink: 99 is unknown"}},
		{"CreateLease", `{"spec":{"count":1,"model":"` + long + `"}}`, "invalid_argument", []string{"spec.model: 300 bytes, at most 256"}},
		{"CreateLease", `{"requestId":"` + long + `","spec":{"count":1}}`, "invalid_argument", []string{"request_id: 300 bytes, at most 128"}},
		{"CreateLease", `{"spec":{"count":1,"hostId":"h9"}}`, "not_found", []string{"spec.host_id", "h9"}},
		{"ResizeLease", `{"leaseId":"$LEASE","count":0}`, "invalid_argument", []string{"count"}},
		{"ResizeLease", `{"leaseId":"$LEASE","count":3,"resourceVersion":"1"}`, "aborted", []string{"read it again"}},
		{"ExplainLease", `{}`, "invalid_argument", []string{"spec"}},
		{"MigrateLease", `{"leaseId":"l-9"}`, "not_found", []string{"lease", "l-9"}},
		{"CancelMigration", `{"leaseId":"l-9"}`, "not_found", []string{"lease", "l-9"}},
		{"CancelMigration", `{"leaseId":"$LEASE","gpuId":"b9/9"}`, "failed_precondition", []string{"no migration of b9/9 of lease"}},
		{"ReplaceGPU", `{"gpuId":"b1"}`, "not_found", []string{"gpu", "b1"}},
		{"ReplaceGPU", `{"gpuId":"b1/00"}`, "not_found", []string{"gpu"}},
		{"ReplaceGPU", `{"gpuId":"b1/-1"}`, "not_found", []string{"gpu"}},
		{"ListEvents", `{"afterRevision":"999999"}`, "out_of_range", []string{"after_revision: the pool is at revision", "not yet at 999999; was it restored"}},
		{"Cordon", `{}`, "invalid_argument", []string{"target: one of gpu_id, box_id and host_id must be set"}},
		{"Cordon", `{"target":{"boxId":"h1"}}`, "not_found", []string{"box", "h1"}},
		{"Cordon", deep, "invalid_argument", []string{"line 1"}},
		{"Drain", `{"target":{"boxId":"b1"},"deadline":"0s"}`, "invalid_argument", []string{"deadline: must be positive"}},
		{"PutTenant", `{}`, "invalid_argument", []string{"tenant"}},
		{"PutTenant", `{"tenant":{"id":"../x"}}`, "invalid_argument", []string{"tenant.id"}},
		{"DeleteTenant", `{"tenantId":"nobody"}`, "not_found", []string{"tenant", "nobody"}},
		{"CreateToken", `{}`, "invalid_argument", []string{"role: must be ROLE_ADMIN, ROLE_OPERATOR or ROLE_TENANT"}},
		{"CreateToken", `{"role":"ROLE_HOST"}`, "invalid_argument", []string{"nodes enrol with a join token"}},
		{"CreateToken", `{"role":"ROLE_ADMIN","tenant":"team-a"}`, "invalid_argument", []string{"tenant: only tokens of ROLE_TENANT have one"}},
		{"CreateToken", `{"role":"ROLE_TENANT"}`, "invalid_argument", []string{"tenant:"}},
		{"CreateToken", `{"role":"ROLE_TENANT","tenant":"nobody"}`, "not_found", []string{"tenant", "nobody"}},
		{"CreateToken", `{"role":"ROLE_ADMIN","expiresAfter":"-5s"}`, "invalid_argument", []string{"expires_after: must be positive"}},
		{"CreateToken", `{"role":"ROLE_ADMIN","description":"` + long + `"}`, "invalid_argument", []string{"description: 300 bytes, at most 256"}},
		{"DeleteToken", `{"tokenId":"t-none"}`, "not_found", []string{"token", "t-none"}},
		{"DeleteNode", `{"nodeId":"$HOST"}`, "failed_precondition", []string{"drain it first, or set force"}},
		{"DeleteNode", `{"nodeId":"$HOST","resourceVersion":"1"}`, "aborted", []string{"read it again"}},
	}
	w := newAccessWorld(t)
	for _, tt := range tests {
		w.clock.t = w.clock.t.Add(1e9) // keep the rate below the limit
		body := w.fill(tt.body, "admin", w.own)
		got := callJSON(w.handler, "/dxpu.v1.PoolService/"+tt.call, w.secrets["admin"], "192.0.2.7:1", []byte(body))
		if got.code != tt.code {
			t.Errorf("%s %.100s: %s (%s), want %s", tt.call, tt.body, got.code, got.message, tt.code)
			continue
		}
		for _, s := range tt.want {
			if !strings.Contains(got.message, s) {
				t.Errorf("%s %.100s: %q, want %q in it", tt.call, tt.body, got.message, s)
			}
		}
		if len(got.message) > 1000 {
			t.Errorf("%s %.100s: a message of %d bytes", tt.call, tt.body, len(got.message))
		}
	}
}

// Requests outside the API get an HTTP error.
func TestNotTheAPI(t *testing.T) {
	w := newAccessWorld(t)
	tests := []struct {
		method, path, contentType string
		status                    int
		text                      string
	}{
		{http.MethodGet, whoAmI, "", http.StatusUnsupportedMediaType, "?encoding=json&message={}"}, // a GET names its encoding in the query
		{http.MethodGet, "/dxpu.v1.PoolService/DeleteLease?encoding=json&message=%7B%7D", "", http.StatusMethodNotAllowed, "/DeleteLease is called with POST, not with GET"},
		{http.MethodDelete, whoAmI, "application/json", http.StatusMethodNotAllowed, "not with DELETE"},
		{http.MethodPost, whoAmI, "text/plain", http.StatusUnsupportedMediaType, `"text/plain" is none of this call: send JSON with application/json`},
		{http.MethodPost, "/dxpu.v1.PoolService/WatchEvents", "application/json", http.StatusUnsupportedMediaType, `"application/json" is none of this call: send JSON with application/connect+json, as a stream`},
		{http.MethodPost, "/dxpu.v1.PoolService/Frobnicate", "application/json", http.StatusNotFound, ""},
		{http.MethodPost, "/dxpu.v1.OtherService/WhoAmI", "application/json", http.StatusNotFound, ""},
		{http.MethodGet, "/../../etc/passwd", "", http.StatusTemporaryRedirect, ""}, // to the clean path
	}
	for _, tt := range tests {
		r := httptest.NewRequest(tt.method, "http://m"+tt.path, strings.NewReader("{}"))
		r.Header.Set("Content-Type", tt.contentType)
		r.Header.Set("Authorization", "Bearer "+w.secrets["admin"])
		res := httptest.NewRecorder()
		w.handler.ServeHTTP(res, r)
		if res.Code != tt.status {
			t.Errorf("%s %s: %d, want %d", tt.method, tt.path, res.Code, tt.status)
		}
		if !strings.Contains(res.Body.String(), tt.text) {
			t.Errorf("%s %s: %q, want %q in it", tt.method, tt.path, res.Body, tt.text)
		}
	}
}

// A request above the limit is refused as such, and not as one of too many.
func TestRequestIsTooLarge(t *testing.T) {
	w := newAccessWorld(t)
	body := `{"note":"` + strings.Repeat("x", maxRequest) + `"}`
	r := httptest.NewRequest(http.MethodPost, "http://m"+whoAmI, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+w.secrets["admin"])
	res := httptest.NewRecorder()
	w.handler.ServeHTTP(res, r)
	if res.Code != http.StatusRequestEntityTooLarge || !strings.Contains(res.Body.String(), "at most 4194304 (4 MiB): send several smaller ones") {
		t.Errorf("%d %s", res.Code, res.Body)
	}
	srv := httptest.NewServer(w.handler)
	defer srv.Close()
	c := dxpuv1connect.NewPoolServiceClient(srv.Client(), srv.URL)
	call := connect.NewRequest(&dxpuv1.CreateLeaseRequest{RequestId: body})
	call.Header().Set("Authorization", "Bearer "+w.secrets["admin"])
	if _, err := c.CreateLease(t.Context(), call); connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "send several smaller ones") {
		t.Errorf("by the client: %v", err)
	}
}

// apiRequests bounds what one input of FuzzAPI asks.
const apiRequests = 16

// No requests, one after the other, make the manager fail, now or later, or answer with an
// error without a text. Each line of an input is a request: a byte for the caller, one for
// the call, and its body. A manager costs far more than a request, so an input has several.
func FuzzAPI(f *testing.F) {
	procedures := auth.Procedures()
	line := func(who string, call, body string) string {
		i := slices.IndexFunc(procedures, func(p string) bool { return strings.HasSuffix(p, "/"+call) })
		return string([]byte{'0' + byte(slices.Index(accessCallers, who)), '0' + byte(i)}) + body + "\n"
	}
	for _, who := range accessCallers {
		for some := range slices.Chunk(procedures, apiRequests) {
			var input strings.Builder
			for _, p := range some {
				input.WriteString(line(who, path.Base(p), accessCalls[strings.TrimPrefix(p, "/dxpu.v1.")].request))
			}
			f.Add(input.String())
		}
	}
	f.Add(line("admin", "CreateLease", `{"spec":{"count":2,"nvlink":"PREFERENCE_REQUIRED","sameBox":"PREFERENCE_AVOID"}}`) +
		line("admin", "CreateLease", `{"spec":{"count":64,"wait":true,"hostLabels":{"":""},"labels":{"a":"b"},"memoryBytes":"18446744073709551615"}}`) +
		line("admin", "CreateLease", `{"spec":{"count":1,"wait":true,"preemptible":true,"priority":-100,"expiresAfter":"0.000000001s","waitTimeout":"1s"}}`))
	f.Add(line("box", "Report", `{"state":{"nodeId":"b1","instanceId":"2","sequence":"1","slots":[{"slot":4294967295,"device":{"memoryBytes":"18446744073709551615"},`+
		`"binding":{"bindingId":"b-1","epoch":"1","state":99,"steps":[{}],"paths":[null,{}]},"errors":[{"code":31,"count":"18446744073709551615"}]}],"addresses":[{}],"proxyGpus":4294967295}}`))
	f.Add(line("host", "Report", `{"state":{"nodeId":"h1","instanceId":"2","sequence":"18446744073709551615","appliedRevision":"18446744073709551615","slots":[{},{}]}}`))
	f.Fuzz(func(t *testing.T, requests string) {
		w := newAccessWorld(t)
		for i, r := range strings.Split(requests, "\n") {
			if i == apiRequests {
				break
			}
			if len(r) < 2 {
				continue
			}
			// '0' is the first of each, so that an input can be read.
			caller, p := accessCallers[int(r[0]-'0')%len(accessCallers)], procedures[int(r[1]-'0')%len(procedures)]
			w.wantExplained(t, caller, p, r[2:])
		}
		w.rounds(3)
	})
}

// wantExplained sends a request, which may be refused with a code that is not the
// manager's fault and a text.
func (w *accessWorld) wantExplained(t *testing.T, caller, procedure, body string) {
	t.Helper()
	got := callJSON(w.handler, procedure, w.secrets[caller], "192.0.2.7:1", []byte(w.fill(body, caller, w.own)))
	var code connect.Code
	switch {
	case got.code == "ok":
	case code.UnmarshalText([]byte(got.code)) != nil:
		t.Errorf("%s as %s: %q", procedure, caller, got.code)
	case code == connect.CodeUnknown || code == connect.CodeInternal || code == connect.CodeUnavailable:
		t.Errorf("%s as %s: %s: %s", procedure, caller, got.code, got.message)
	case got.message == "":
		t.Errorf("%s as %s: %s, and nothing else", procedure, caller, got.code)
	}
}
