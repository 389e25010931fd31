package manager

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// accessCall is a call of the table's test. $X in the request stands for the ID of an
// object of the caller, of another caller, or of one that does not exist.
type accessCall struct {
	request string
	code    string // the answer to an admin; empty: ok
}

// accessCalls has every call of the API. The test fails for a new call until its target
// is named here.
var accessCalls = map[string]accessCall{
	"PoolService/GetPool":         {request: `{}`},
	"PoolService/GetPoolHistory":  {request: `{}`},
	"PoolService/ListHosts":       {request: `{}`},
	"PoolService/GetHost":         {request: `{"hostId":"$HOST"}`},
	"PoolService/ListBoxes":       {request: `{}`},
	"PoolService/GetBox":          {request: `{"boxId":"b1"}`},
	"PoolService/ListGPUs":        {request: `{}`},
	"PoolService/GetGPU":          {request: `{"gpuId":"$GPU"}`},
	"PoolService/ListLeases":      {request: `{"includeEnded":true}`},
	"PoolService/GetLease":        {request: `{"leaseId":"$LEASE"}`},
	"PoolService/CreateLease":     {request: `{"spec":{"count":1,"hostId":"$HOST","tenant":"$TENANT","wait":true}}`},
	"PoolService/DeleteLease":     {request: `{"leaseId":"$LEASE"}`},
	"PoolService/ResizeLease":     {request: `{"leaseId":"$LEASE","count":2}`},
	"PoolService/RenewLease":      {request: `{"leaseId":"$LEASE"}`, code: "failed_precondition"}, // it has no time to live
	"PoolService/ExplainLease":    {request: `{"leaseId":"$LEASE"}`},
	"PoolService/Preview":         {request: `{"changes":[{"resizeLease":{"leaseId":"$LEASE","count":2}}]}`},
	"PoolService/MigrateLease":    {request: `{"leaseId":"$LEASE","resourceVersion":"1"}`, code: "aborted"}, // it has changed since
	"PoolService/CancelMigration": {request: `{"leaseId":"$LEASE"}`, code: "failed_precondition"},           // none is under way
	"PoolService/ReplaceGPU":      {request: `{"gpuId":"$GPU"}`},
	"PoolService/ReplugGPU":       {request: `{"gpuId":"$GPU"}`, code: "failed_precondition"}, // its guest has it
	"PoolService/Cordon":          {request: `{"target":{"hostId":"$HOST"}}`},
	"PoolService/Uncordon":        {request: `{"target":{"hostId":"$HOST"}}`},
	"PoolService/Drain":           {request: `{"target":{"hostId":"$HOST"}}`},
	"PoolService/SetTaints":       {request: `{"target":{"hostId":"$HOST"},"set":[{"key":"team","effect":"TAINT_EFFECT_NO_SCHEDULE"}]}`},
	"PoolService/PlanMaintenance": {request: `{"maintenance":{"hostId":"$HOST","endTime":"2030-01-01T00:00:00Z"}}`, code: "invalid_argument"}, // too far ahead
	"PoolService/ListMaintenance": {request: `{}`},
	"PoolService/EndMaintenance":  {request: `{"maintenanceId":"m-1"}`, code: "not_found"},
	"PoolService/ClearGPUErrors":  {request: `{"gpuId":"$GPU"}`},
	"PoolService/DeleteNode":      {request: `{"nodeId":"$HOST","force":true}`},
	"PoolService/ListTenants":     {request: `{}`},
	"PoolService/GetTenant":       {request: `{"tenantId":"$TENANT"}`},
	"PoolService/PutTenant":       {request: `{"tenant":{"id":"$TENANT","description":"d"}}`},
	"PoolService/DeleteTenant":    {request: `{"tenantId":"$TENANT"}`, code: "failed_precondition"}, // it has leases
	"PoolService/CreateToken":     {request: `{"role":"ROLE_ADMIN"}`},
	"PoolService/ListTokens":      {request: `{}`},
	"PoolService/DeleteToken":     {request: `{"tokenId":"$TOKEN"}`},
	"PoolService/GetAuthority":    {request: `{}`},
	"PoolService/RotateAuthority": {request: `{"step":"AUTHORITY_STEP_BEGIN"}`},
	"PoolService/WhoAmI":          {request: `{}`},
	"PoolService/GetSignIn":       {request: `{}`},
	"PoolService/SignIn":          {request: `{"idToken":"a.b.c"}`, code: "failed_precondition"}, // no single sign-on
	"PoolService/ListAudit":       {request: `{}`},
	"PoolService/Backup":          {request: `{}`},
	"PoolService/ReplaceMember":   {request: `{"name":"m1"}`, code: "failed_precondition"}, // the only manager
	"PoolService/ListEvents":      {request: `{}`},
	"PoolService/WatchEvents":     {request: `{"fromStart":true}`},
	"PoolService/WatchLeases":     {request: `{}`},
	"NodeService/Enroll":          {request: `{"joinToken":"token-for-tests","name":"new","kind":"NODE_KIND_HOST"}`},
	"NodeService/WatchDesired":    {request: `{"nodeId":"$NODE"}`},
	"NodeService/Report":          {request: `{"state":{"nodeId":"$NODE","instanceId":"1","sequence":"1000000"}}`},
	"NodeService/Renew":           {request: `{"nodeId":"$NODE","csrPem":"$CSR"}`},
}

// accessWorld is a pool of two tenants, each with a lease on a host.
type accessWorld struct {
	*world
	handler http.Handler
	secrets map[string]string // by caller
	own     map[string]string // the placeholders' values for tenant a and host h1
	foreign map[string]string
	absent  map[string]string
}

// accessCallers are the columns of the table.
var accessCallers = []string{"admin", "operator", "tenant", "host", "box", "nobody"}

func newAccessWorld(t *testing.T) *accessWorld {
	t.Helper()
	w := &accessWorld{
		world:   newWorld(t, Config{}, hostNode("h1", 4), hostNode("h2", 4), boxNode("b1", 8), boxNode("b2", 1)),
		secrets: map[string]string{"nobody": ""},
	}
	w.putTenant("team-a", nil)
	w.putTenant("team-b", nil)
	leaseA := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "team-a", HostId: "h1"})
	leaseB := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "team-b", HostId: "h2"})
	w.rounds(4) // enough for both to become active: there are hundreds of these worlds
	gpuA := w.wantLease(leaseA, leaseActive).Bindings[0].GpuId
	gpuB := w.wantLease(leaseB, leaseActive).Bindings[0].GpuId
	token := func(role dxpuv1.Role, tenant string) (id, text string) {
		if err := w.m.update(context.Background(), func(t *tx) error {
			k, secret, err := t.createToken(&dxpuv1.CreateTokenRequest{Role: role, Tenant: tenant}, "test")
			id, text = k.GetId(), secret
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return id, text
	}
	_, w.secrets["admin"] = token(dxpuv1.Role_ROLE_ADMIN, "")
	_, w.secrets["operator"] = token(dxpuv1.Role_ROLE_OPERATOR, "")
	ownToken, secret := token(dxpuv1.Role_ROLE_TENANT, "team-a")
	w.secrets["tenant"] = secret
	otherToken, _ := token(dxpuv1.Role_ROLE_TENANT, "team-b")
	for caller, node := range map[string]string{"host": "h1", "box": "b1"} {
		w.secrets[caller] = "credential of " + node
		if err := w.m.update(context.Background(), func(t *tx) error {
			n := t.nodes.edit(node)
			n.CredentialHash, n.ResourceVersion = auth.Hash(w.secrets[caller]), t.revision()
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	csr, _, err := auth.NewRequest("n")
	if err != nil {
		t.Fatal(err)
	}
	csr = strings.ReplaceAll(csr, "\n", `\n`)
	w.own = map[string]string{"LEASE": leaseA, "GPU": gpuA, "HOST": "h1", "TENANT": "team-a", "TOKEN": ownToken, "CSR": csr}
	w.foreign = map[string]string{"LEASE": leaseB, "GPU": gpuB, "HOST": "h2", "TENANT": "team-b", "TOKEN": otherToken, "CSR": csr, "NODE": "h2"}
	w.absent = map[string]string{"LEASE": "l-999999", "GPU": "b1/99", "HOST": "h99", "TENANT": "team-z", "TOKEN": "t-none", "CSR": csr, "NODE": "h99"}
	w.handler = w.m.Handler()
	return w
}

// fill writes the caller's view of a target into a request.
func (w *accessWorld) fill(request, caller string, target map[string]string) string {
	for key, id := range target {
		request = strings.ReplaceAll(request, "$"+key, id)
	}
	// A host requests GPUs without a tenant.
	if caller == "host" && target["TENANT"] == "team-a" {
		request = strings.ReplaceAll(request, `,"tenant":"team-a"`, "")
	}
	return strings.ReplaceAll(request, "$NODE", map[string]string{"box": "b1"}[caller]+map[string]string{"host": "h1"}[caller])
}

// answer is the answer to a call of the API.
type answer struct {
	code, message string
	body          string
	retryAfter    string
}

// firstAnswer records an answer and ends a stream after its first message.
type firstAnswer struct {
	*httptest.ResponseRecorder
	enough context.CancelFunc
}

func (r *firstAnswer) Write(b []byte) (int, error) {
	n, err := r.ResponseRecorder.Write(b)
	if r.Body.Len() > 5 {
		r.enough()
	}
	return n, err
}

// callJSON makes a call with plain HTTP and JSON.
func callJSON(h http.Handler, procedure, secret, peer string, body []byte) answer {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, procedure, nil)
	r.Header.Set("Content-Type", "application/json")
	r.RemoteAddr = peer
	if secret != "" {
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	stream := isStream(procedure)
	if stream {
		r.Header.Set("Content-Type", "application/connect+json")
		body = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	}
	r.Body, r.ContentLength = http.NoBody, int64(len(body))
	if len(body) > 0 {
		r.Body = readCloser{bytes.NewReader(body)}
	}
	res := &firstAnswer{httptest.NewRecorder(), cancel}
	if !stream {
		res.enough = func() {}
	}
	h.ServeHTTP(res, r)
	return readAnswer(res.ResponseRecorder, stream)
}

type readCloser struct{ *bytes.Reader }

func (readCloser) Close() error { return nil }

func isStream(procedure string) bool {
	for _, s := range []string{"WatchEvents", "WatchLeases", "WatchDesired", "Backup"} {
		if strings.HasSuffix(procedure, "/"+s) {
			return true
		}
	}
	return false
}

// readAnswer parses an answer, or the first message or final error of a stream.
func readAnswer(res *httptest.ResponseRecorder, stream bool) answer {
	raw := res.Body.Bytes()
	a := answer{code: "ok", body: string(raw), retryAfter: res.Header().Get("Retry-After")}
	var status struct {
		Code, Message string
		Error         struct{ Code, Message string }
	}
	switch {
	case res.Code != http.StatusOK:
		a.code = fmt.Sprint(res.Code)
		if json.Unmarshal(raw, &status) == nil && status.Code != "" {
			a.code, a.message = status.Code, status.Message
		}
	case stream && len(raw) >= 5 && raw[0]&2 != 0:
		if json.Unmarshal(raw[5:], &status) == nil && status.Error.Code != "" {
			a.code, a.message = status.Error.Code, status.Error.Message
		}
	}
	return a
}

// accessTable reads the table in docs/security.md: by call, by column.
func accessTable(t *testing.T) map[string]map[string]string {
	t.Helper()
	raw, err := os.ReadFile("../../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]map[string]string{}
	for line := range strings.Lines(string(raw)) {
		cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "|"), "|"), "|")
		if len(cells) != 8 || !strings.Contains(cells[0], "Service/") {
			continue
		}
		row := map[string]string{}
		for i, column := range append(slices.Clone(accessCallers), "noted") {
			row[column] = strings.TrimSpace(cells[i+1])
		}
		table[strings.TrimSpace(cells[0])] = row
	}
	return table
}

// The table of docs/security.md agrees with the code.
func TestAccessTableIsDocumented(t *testing.T) {
	table := accessTable(t)
	for _, p := range auth.Procedures() {
		name := strings.TrimPrefix(p, "/dxpu.v1.")
		row, ok := table[name]
		if !ok {
			t.Errorf("%s is not in the table of docs/security.md", name)
			continue
		}
		rule, _ := auth.Lookup(p)
		want := []string{
			rule.Admin.String(), rule.Operator.String(), rule.Tenant.String(), rule.Host.String(), rule.Box.String(), rule.Anonymous.String(),
		}
		for i, c := range accessCallers {
			if row[c] != want[i] {
				t.Errorf("%s: docs/security.md says %q for %s, the code %q", name, row[c], c, want[i])
			}
		}
		if (row["noted"] == "yes") != rule.Changes {
			t.Errorf("%s: docs/security.md says %q for the audit log", name, row["noted"])
		}
		if _, ok := accessCalls[name]; !ok {
			t.Errorf("%s is not called by this test: say in accessCalls what its target is", name)
		}
	}
	if len(table) != len(auth.Procedures()) {
		t.Errorf("the table of docs/security.md has %d calls, the API has %d", len(table), len(auth.Procedures()))
	}
}

// The handlers answer every call of every role as the table of docs/security.md says:
// for an object of the caller, of another caller, and for one that does not exist.
func TestEveryCallByEveryRole(t *testing.T) {
	table := accessTable(t)
	worlds := &accessWorlds{t: t}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		row := table[name]
		t.Run(strings.ReplaceAll(name, "/", "."), func(t *testing.T) {
			for _, caller := range accessCallers {
				checkAccess(t, worlds, name, caller, row[caller], row["noted"] == "yes")
			}
		})
	}
}

// accessWorlds makes the worlds of calls. A new one takes as long as a hundred calls, so one
// serves several calls until one of them may have changed it.
type accessWorlds struct {
	t         *testing.T
	unchanged *accessWorld
	calls     int // in unchanged
}

// mostCalls is less than what a manager takes at once from one address without a credential.
const mostCalls = 40

// ask makes a call in a world that no call has changed. changes: the call changes something,
// unless it is refused.
func (p *accessWorlds) ask(name, caller string, pick func(*accessWorld) map[string]string, changes bool) (w *accessWorld, got answer, request string) {
	if p.unchanged == nil || p.calls == mostCalls {
		p.unchanged, p.calls = newAccessWorld(p.t), 0
	}
	w = p.unchanged
	p.calls++
	request = w.fill(accessCalls[name].request, caller, pick(w))
	got = callJSON(w.handler, "/dxpu.v1."+name, w.secrets[caller], "192.0.2.7:1000", []byte(request))
	if got.code == "ok" && changes {
		p.unchanged = nil
	}
	return w, got, request
}

func checkAccess(t *testing.T, worlds *accessWorlds, name, caller, access string, noted bool) {
	t.Helper()
	call := accessCalls[name]
	ask := func(pick func(*accessWorld) map[string]string) (*accessWorld, answer, string) {
		return worlds.ask(name, caller, pick, noted || strings.HasPrefix(name, "NodeService/"))
	}
	own := func(w *accessWorld) map[string]string { return w.own }
	foreign := func(w *accessWorld) map[string]string { return w.foreign }
	absent := func(w *accessWorld) map[string]string { return w.absent }

	w, got, _ := ask(own)
	want := call.code
	if want == "" {
		want = "ok"
	}
	if access == auth.Deny.String() {
		want = "permission_denied"
		if caller == "nobody" || strings.HasPrefix(name, "NodeService/") {
			want = "unauthenticated"
		}
	}
	if got.code != want {
		t.Errorf("%s as %s on its own: %s (%s), want %s", name, caller, got.code, got.message, want)
	}
	if noted {
		w.checkNoted(t, name, caller, got)
	}
	switch access {
	case auth.Deny.String():
		_, there, _ := ask(foreign)
		_, not, _ := ask(absent)
		if there != not {
			t.Errorf("%s as %s shows what exists: %v and %v", name, caller, there, not)
		}
	case auth.Own.String():
		w, there, request := ask(foreign)
		wn, not, _ := ask(absent)
		if strings.Contains(call.request, "$") && there.code == "ok" {
			t.Errorf("%s as %s: the call changes an object of another caller", name, caller)
		}
		if a, b := neutral(there, w.foreign), neutral(not, wn.absent); a != b {
			t.Errorf("%s as %s: the answers for an object of another caller and for a missing one differ:\n%v\n%v", name, caller, a, b)
		}
		for _, id := range []string{w.foreign["LEASE"], w.foreign["GPU"], w.foreign["TENANT"], `"h2"`} {
			if caller != "box" && // a box serves both tenants
				!strings.Contains(request, id) && (strings.Contains(there.body, id) || strings.Contains(got.body, id)) {
				t.Errorf("%s as %s shows %s: %s", name, caller, id, there.body)
			}
		}
	}
}

// neutral returns an answer without the requested ID.
func neutral(a answer, ids map[string]string) answer {
	for _, id := range ids {
		a.message = strings.ReplaceAll(a.message, id, "ID")
	}
	return answer{code: a.code, message: a.message}
}

// checkNoted looks for the call in the audit log.
func (w *accessWorld) checkNoted(t *testing.T, name, caller string, got answer) {
	t.Helper()
	var last *auditRecord
	_ = w.m.view(func(tx *tx) error {
		for _, id := range tx.audits.ids() {
			last = tx.audits.get(id)
		}
		return nil
	})
	actor := map[string]string{"host": "h1", "box": "b1", "nobody": auth.Anonymous}[caller]
	switch {
	case last == nil || last.Procedure != "/dxpu.v1."+name || last.Code != got.code && !isStream(name):
		t.Errorf("%s as %s: the audit log has %+v", name, caller, last)
	case actor != "" && last.Actor != actor || actor == "" && !strings.HasPrefix(last.Actor, "t-"):
		t.Errorf("%s as %s: the audit log says that it was %s", name, caller, last.Actor)
	case strings.Contains(last.Request, "token-for-tests"):
		t.Errorf("%s: the audit log has the join token", name)
	}
}
