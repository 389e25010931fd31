package web

import (
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/net/html"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/client"
)

// TestAssets checks that all templates are embedded and can be parsed, which the
// program does only for the first page.
func TestAssets(t *testing.T) {
	files, err := fs.Glob(assets, "assets/pages/*.html")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %d pages", err, len(files))
	}
	p := parsed()
	if p.frame.Lookup("frame") == nil || len(p.pages) != len(files) {
		t.Errorf("%d templates of %d pages", len(p.pages), len(files))
	}
	for name, page := range p.pages {
		if page.Lookup("main") == nil {
			t.Errorf("%s has no content", name)
		}
	}
	if assetVersion() == "" {
		t.Error("assetVersion is empty")
	}
}

// noFollow returns redirects instead of following them.
var noFollow = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// get fetches a page with headers.
func get(t *testing.T, url string, header ...string) (*http.Response, string) {
	t.Helper()
	return send(t, http.MethodGet, url, "", header...)
}

func send(t *testing.T, method, url, body string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := noFollow.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(raw)
}

const hostile = `"'><script>alert(1)</script><img src=x onerror=alert(2)>`

// paths is all pages, with all filters in use.
func paths(lease string) []string {
	return []string{
		"/", "/?rack=r2", "/?rack=nowhere", "/?show=bound&model=DX100", "/?show=nonsense&page=-7",
		"/ui/leases", "/ui/leases?tenant=speech&state=active&ended=yes", "/ui/leases?state=pending&host=h01", "/ui/leases/" + lease,
		"/ui/hosts", "/ui/hosts?show=lost", "/ui/hosts?show=free&rack=r1&name=h", "/ui/hosts/h03", "/ui/boxes/r2-nv", "/ui/boxes/r1-sw",
		"/ui/gpus", "/ui/gpus?state=free&health=ok&model=DX100&box=r4-sw", "/ui/gpus/r2-nv/5", "/ui/gpus/r2-nv/0", "/ui/tenants",
		"/ui/events", "/ui/events?type=lease&host=h03", "/ui/signin", "/ui/search", "/ui/search?q=r2", "/ui/search?q=nothing+at+all",
	}
}

// TestPagesAreWellFormed checks each page with checkPage, and its headers.
func TestPagesAreWellFormed(t *testing.T) {
	w, lease := busyWorld(t)
	for _, path := range paths(lease) {
		t.Run(path, func(t *testing.T) {
			res, body := get(t, w.url+path)
			if res.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s", res.Status, body)
			}
			if p := res.Header.Get("Content-Security-Policy"); !strings.Contains(p, "default-src 'none'") || strings.Contains(p, "unsafe") {
				t.Errorf("policy: %q", p)
			}
			checkPage(t, body)
			if strings.Contains(body, joinToken) {
				t.Error("the page contains a secret")
			}
		})
	}
}

// TestPagesEscape checks that text from nodes, tenants and operators is escaped.
func TestPagesEscape(t *testing.T) {
	evil := box("b1", hostile, hostile, nvlink, 2, 1)
	h := host("h1", hostile, 4)
	w := newWorld(t, 0, evil, h)
	w.fail("b1", 1, dxpuv1.Health_HEALTH_FAILED, hostile, &dxpuv1.DeviceError{Code: 1, Count: 1, Detail: hostile})
	w.cordon(&dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: "b1/1"}}, hostile)
	lease := w.lease(&dxpuv1.LeaseSpec{Count: 1, HostId: "h1"})
	w.lease(&dxpuv1.LeaseSpec{Count: 60, Model: hostile, HostId: "h1"})
	shows := 0
	for _, path := range append(paths(lease), "/ui/hosts/h1", "/ui/boxes/b1", "/ui/gpus/b1/0", "/ui/gpus/b1/1", "/ui/gpus?model="+escape(hostile), "/?rack="+escape(hostile), "/ui/hosts?name="+escape(hostile), "/ui/leases/"+escape(hostile), "/ui/signin?next="+escape(hostile), "/ui/search?q="+escape(hostile)) {
		_, body := get(t, w.url+path)
		doc := checkPage(t, body)
		if strings.Contains(text(doc), hostile) {
			shows++
		}
	}
	if shows < 6 {
		t.Errorf("the hostile text is on %d pages", shows)
	}
}

func escape(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}

// TestPoolPageCounts checks the page of a pool with every kind of slot.
func TestPoolPageCounts(t *testing.T) {
	w, _ := busyWorld(t)
	_, body := get(t, w.url+"/")
	doc := checkPage(t, body)
	got := map[string]int{}
	each(doc, func(n *html.Node) {
		if n.Data != "a" || !strings.HasPrefix(attr(n, "href"), "/ui/gpus/") {
			return
		}
		if class := strings.Fields(attr(n, "class")); len(class) == 2 && class[0] == "slot" {
			got[class[1]]++
		}
	})
	want := map[string]int{"free": 28, "bound": 23, "releasing": 2, "held": 1, "degraded": 1, "failed": 1, "unreachable": 8}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("slots: %v, want %v", got, want)
	}
	for _, sentence := range []string{
		"Box r1-sw has not reported for", "8 of 8 GPUs leased", "failed: fallen off the bus", "degraded: link at x8 of x16",
		"16 × DX200, NVLink required, on host h09", "2 boxes, 16 GPUs",
	} {
		if !strings.Contains(text(doc), sentence) {
			t.Errorf("the page does not contain %q", sentence)
		}
	}
}

// TestPagesOfATenant checks that a tenant sees its own objects only, and no buttons for
// operators.
func TestPagesOfATenant(t *testing.T) {
	w, lease := busyWorld(t)
	token := w.token(dxpuv1.Role_ROLE_TENANT, "research")
	mine := []string{"Authorization", "Bearer " + token}
	for _, tt := range []struct {
		path    string
		status  int
		has     string
		without string
	}{
		{"/", 200, "has no access to boxes", "r1-nv"},
		{"/ui/leases", 200, lease, "speech"},
		{"/ui/leases/" + lease, 200, "Delete lease", "Maintenance"},
		{"/ui/hosts/h03", 200, "h03", "Maintenance"},
		{"/ui/gpus", 200, "r3-nv/0", "r4-nv/0"},
		{"/ui/gpus/r3-nv/0", 200, "Round trip", "Maintenance"},
		{"/ui/gpus/r4-nv/0", 404, "r4-nv/0", "DX200"},
		{"/ui/boxes/r1-nv", 403, "tenant", "DX200"},
		{"/ui/tenants", 200, "research", "speech"},
		{"/ui/events", 200, lease, "speech"},
	} {
		res, body := get(t, w.url+tt.path, mine...)
		said := text(checkPage(t, body))
		if res.StatusCode != tt.status || !strings.Contains(said, tt.has) || strings.Contains(said, tt.without) {
			t.Errorf("%s: %s, want %d with %q and without %q:\n%s", tt.path, res.Status, tt.status, tt.has, tt.without, said)
		}
	}
}

// TestTenantIsNotRefused checks that the pages of a tenant's own objects make no call that
// the manager refuses and records.
func TestTenantIsNotRefused(t *testing.T) {
	w, lease := busyWorld(t)
	mine := []string{"Authorization", "Bearer " + w.token(dxpuv1.Role_ROLE_TENANT, "research")}
	for _, path := range []string{"/ui/leases", "/ui/leases/" + lease, "/ui/gpus/r3-nv/0", "/ui/tenants"} {
		if res, body := get(t, w.url+path, mine...); res.StatusCode != http.StatusOK {
			t.Errorf("%s: %s: %s", path, res.Status, body)
		}
	}
	res, err := w.pool.ListAudit(t.Context(), connect.NewRequest(&dxpuv1.ListAuditRequest{PageSize: 1000}))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range res.Msg.Entries {
		if e.Code != "ok" {
			t.Errorf("%s of %s %s: %s", e.Procedure, e.Actor, e.Target, e.Message)
		}
	}
}

// TestTenantsPriority checks that a tenant without a limit of its own shows the limit that
// it has, 0, and another one its own.
func TestTenantsPriority(t *testing.T) {
	w := newWorld(t, 0)
	limit := int32(7)
	for id, q := range map[string]*dxpuv1.Quota{"a": nil, "b": {MaxGpus: 1}, "c": {MaxPriority: &limit}} {
		if _, err := w.pool.PutTenant(t.Context(), connect.NewRequest(&dxpuv1.PutTenantRequest{Tenant: &dxpuv1.Tenant{Id: id, Quota: q}})); err != nil {
			t.Fatal(err)
		}
	}
	_, body := get(t, w.url+"/ui/tenants")
	// Below them is the default tenant.
	cells := regexp.MustCompile(`data-name="maximum priority">([^<]*)<`).FindAllStringSubmatch(string(body), -1)
	var shown []string
	for _, c := range cells {
		shown = append(shown, c[1])
	}
	if !slices.Equal(shown, []string{"0", "0", "7", "0"}) {
		t.Errorf("the page shows the maximum priorities %q", shown)
	}
}

// token creates a token, and its tenant if needed.
func (w *world) token(role dxpuv1.Role, tenant string) string {
	w.t.Helper()
	if tenant != "" {
		if _, err := w.pool.PutTenant(w.t.Context(), connect.NewRequest(&dxpuv1.PutTenantRequest{Tenant: &dxpuv1.Tenant{
			Id: tenant, Description: "tests", Quota: &dxpuv1.Quota{MaxGpus: 16, MaxGpusByModel: map[string]uint32{"DX200": 8}},
		}})); err != nil {
			w.t.Fatal(err)
		}
	}
	res, err := w.pool.CreateToken(w.t.Context(), connect.NewRequest(&dxpuv1.CreateTokenRequest{Role: role, Tenant: tenant}))
	if err != nil {
		w.t.Fatal(err)
	}
	return res.Msg.Secret
}

// TestPagesOfErrors checks the pages of objects that do not exist, and of a manager that does
// not answer.
func TestPagesOfErrors(t *testing.T) {
	w := newWorld(t, 0)
	for _, tt := range []struct {
		path   string
		status int
		says   string
	}{
		{"/ui/nothing", 404, "There is no such page."},
		{"/ui/leases/l-1", 404, `Lease "l-1" does not exist.`},
		{"/ui/hosts/h9", 404, `Host "h9" does not exist.`},
		{"/ui/boxes/b9", 404, `Box "b9" does not exist.`},
		{"/ui/gpus/b9/0", 404, `Gpu "b9/0" does not exist.`},
		{"/ui/hosts?after=%20", 400, "page_token"},
	} {
		res, body := get(t, w.url+tt.path)
		if said := text(checkPage(t, body)); res.StatusCode != tt.status || !strings.Contains(strings.ToLower(said), strings.ToLower(tt.says)) {
			t.Errorf("%s: %s: %s", tt.path, res.Status, said)
		}
	}
	for _, path := range []string{"/ui/static/nothing.js", "/ui/static/..%2fframe.html", "/ui/static/frame.html"} {
		if res, _ := get(t, w.url+path); res.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
	if res, body := get(t, w.url+"/ui/static/app.js"); res.StatusCode != 200 || !strings.Contains(res.Header.Get("Content-Type"), "javascript") || len(body) < 1000 {
		t.Errorf("the script: %s", res.Status)
	}
}

// TestPageOfAFollower checks the page of a manager that does not lead.
func TestPageOfAFollower(t *testing.T) {
	for _, leader := range []string{"https://m2.example:7470", client.NoLeader} {
		a := newFakeAPI()
		a.leader = leader
		w := fetch(t, serve(a), "operator", "/ui/leases", "")
		body := w.Body.String()
		if link := strings.Contains(body, `<a href="`+leader+`">`); w.Code != http.StatusServiceUnavailable || link != (leader != client.NoLeader) {
			t.Errorf("leader %s: %d, %s", leader, w.Code, body)
		}
	}
}

// TestAbsentManagerNeedsAttention checks that the first page names a manager that does not run.
func TestAbsentManagerNeedsAttention(t *testing.T) {
	a := newFakeAPI()
	a.absent = []string{"m3"}
	body := fetch(t, serve(a), "operator", "/", "").Body.String()
	if !strings.Contains(body, `<a href="/ui/events?type=leader">Manager m3</a>`) {
		t.Errorf("the page does not name the manager: %s", body)
	}
}

// TestMigrationIsNotAnAttach names the timeline of a GPU that a lease moved to.
func TestMigrationIsNotAnAttach(t *testing.T) {
	b := &dxpuv1.Binding{Timeline: []*dxpuv1.Step{{Name: "created"}, {Name: "ready"}, {Name: "attached"}}}
	if p := phases(b); len(p) != 1 || p[0].Name != "Attach" {
		t.Errorf("an attach: %+v", p)
	}
	b.Timeline = []*dxpuv1.Step{{Name: "created"}, {Name: "ready"}, {Name: "copying"}, {Name: "attached"}, {Name: "detaching"}}
	if p := phases(b); len(p) != 2 || p[0].Name != "Migration" || p[1].Name != "Detach" {
		t.Errorf("a migration: %+v", p)
	}
}
