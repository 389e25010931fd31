package manager

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// listAudit reads the audit log page by page, newest first.
func (w *world) listAudit(req *dxpuv1.ListAuditRequest) (all []*dxpuv1.AuditEntry) {
	w.t.Helper()
	for {
		res, err := w.api().ListAudit(context.Background(), connect.NewRequest(req))
		if err != nil {
			w.t.Fatalf("list audit: %v", err)
		}
		all = append(all, res.Msg.Entries...)
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			return all
		}
	}
}

// The log keeps the newest entries up to its limit, and another manager reads the
// same ones.
func TestAuditLogIsBounded(t *testing.T) {
	w := newWorld(t, Config{})
	const more = 123
	err := w.m.update(t.Context(), func(tx *tx) error {
		for i := range keepAudit + more {
			c := &call{procedure: "/test", target: fmt.Sprint(i), peer: "192.0.2.7:1"}
			c.caller.Actor = fmt.Sprint("t-", i%10)
			tx.auditEntry(c, nil)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	all := w.listAudit(&dxpuv1.ListAuditRequest{PageSize: 999})
	if len(all) != keepAudit {
		t.Fatalf("the log keeps %d entries", len(all))
	}
	for i, e := range all {
		if want := fmt.Sprint(keepAudit + more - 1 - i); e.Target != want {
			t.Fatalf("entry %d is about %s, want %s", i, e.Target, want)
		}
	}
	if some := w.listAudit(&dxpuv1.ListAuditRequest{Actor: "t-3"}); len(some) != keepAudit/10 {
		t.Errorf("one of ten actors has %d entries", len(some))
	}
	if one := w.listAudit(&dxpuv1.ListAuditRequest{Target: "5000"}); len(one) != 1 || one[0].Actor != "t-0" {
		t.Errorf("a target has %v", one)
	}
	next, err := New(t.Context(), Config{JoinToken: "token-for-tests", Store: w.m.store})
	if err != nil {
		t.Fatal(err)
	}
	w.m = next
	if again := w.listAudit(&dxpuv1.ListAuditRequest{PageSize: 1000}); len(again) != keepAudit || again[0].Target != all[0].Target {
		t.Errorf("another manager finds %d entries", len(again))
	}
}

// A flood of refused calls does not push out the entries of calls that changed
// something.
func TestAuditOfAFlood(t *testing.T) {
	w := newAccessWorld(t)
	call := func(caller, procedure, body string) answer {
		return callJSON(w.handler, "/dxpu.v1.PoolService/"+procedure, w.secrets[caller], "192.0.2.7:1", []byte(body))
	}
	if got := call("operator", "Cordon", `{"target":{"boxId":"b2"},"reason":"fan"}`); got.code != "ok" {
		t.Fatal(got)
	}
	for range 1000 {
		call("tenant", "Cordon", `{"target":{"boxId":"b2"}}`)
	}
	all := w.listAudit(&dxpuv1.ListAuditRequest{})
	refused := 0
	for _, e := range all {
		if e.Code == "permission_denied" {
			refused++
		}
	}
	if refused == 0 || refused > auditRefusalsBurst {
		t.Errorf("%d refusals are noted", refused)
	}
	done := slices.IndexFunc(all, func(e *dxpuv1.AuditEntry) bool { return e.Code == "ok" })
	if done < 0 || all[done].Target != "b2" || all[done].Role != dxpuv1.Role_ROLE_OPERATOR || !strings.Contains(all[done].Request, "fan") {
		t.Fatalf("the log lacks the call that changed something: %v", all)
	}
	w.clock.t = w.clock.t.Add(1e9)
	call("tenant", "Cordon", `{"target":{"boxId":"b2"}}`)
	last := w.listAudit(&dxpuv1.ListAuditRequest{PageSize: 1})[0]
	if !strings.Contains(last.Message, fmt.Sprintf("(%d earlier entries were left out)", 1000-refused)) {
		t.Errorf("the next one says %q", last.Message)
	}
}

// The log stays readable if a path or a request has characters of several bytes: half a
// character could not be encoded.
func TestAuditLogStaysReadable(t *testing.T) {
	w := newAccessWorld(t)
	callJSON(w.handler, "/dxpu.v1.PoolService/%ff", "no token", "192.0.2.7:1", []byte(`{}`))
	for _, shift := range []string{"", "x"} { // with one of them the cut is inside a character
		labels := ""
		for i := range maxAuditRequest / maxText * 2 {
			labels += fmt.Sprintf(`%q:"%s",`, fmt.Sprint(shift, i), strings.Repeat("é", maxText/2))
		}
		if got := callJSON(w.handler, "/dxpu.v1.PoolService/CreateLease", w.secrets["admin"], "192.0.2.7:1",
			[]byte(`{"spec":{"count":1,"wait":true,"labels":{`+strings.TrimSuffix(labels, ",")+`}}}`)); got.code != "ok" {
			t.Fatal(got)
		}
	}
	for _, call := range []string{"ListAudit", "ListBoxes", "ListEvents"} {
		if got := callJSON(w.handler, "/dxpu.v1.PoolService/"+call, w.secrets["admin"], "192.0.2.7:1", []byte(`{}`)); got.code != "ok" {
			t.Errorf("%s: %+v", call, got)
		}
	}
}

// The log has no field of the API whose name suggests a secret, except the fields that
// are known to be harmless.
func TestSecretFieldsAreKnown(t *testing.T) {
	harmless := map[protoreflect.FullName]bool{
		"dxpu.v1.CreateTokenResponse.token": true, // without its secret
		"dxpu.v1.SignInResponse.token":      true, // likewise
		"dxpu.v1.ListTokensResponse.tokens": true,
		"dxpu.v1.Taint.key":                 true, "dxpu.v1.Toleration.key": true, // names of taints
	}
	found := map[protoreflect.FullName]bool{}
	for _, f := range []protoreflect.FileDescriptor{dxpuv1.File_dxpu_v1_dxpu_proto, dxpuv1.File_dxpu_v1_node_proto, dxpuv1.File_dxpu_v1_types_proto} {
		for i := range f.Messages().Len() {
			fields := f.Messages().Get(i).Fields()
			for j := range fields.Len() {
				name, full := string(fields.Get(j).Name()), fields.Get(j).FullName()
				if secretFields[full] {
					found[full] = true
					continue
				}
				sounds := slices.ContainsFunc([]string{"secret", "credential", "password", "token", "private", "key"}, func(s string) bool { return strings.Contains(name, s) })
				public := strings.HasSuffix(name, "page_token") || strings.HasSuffix(name, "token_id") || harmless[full]
				if sounds && !public {
					t.Errorf("%s sounds like a secret: add it to secretFields, or to the harmless ones here", full)
				}
			}
		}
	}
	if len(found) != len(secretFields) {
		t.Errorf("secretFields has fields that do not exist: %v of %v", found, secretFields)
	}
	got := redacted(&dxpuv1.EnrollRequest{JoinToken: "one", PreviousCredential: "two", Name: "h1"})
	if strings.Contains(got, "one") || strings.Contains(got, "two") || !strings.Contains(got, "h1") {
		t.Errorf("redacted: %s", got)
	}
}

// A program copies the log from a revision on, and is told when entries are gone.
func TestAuditFromARevision(t *testing.T) {
	w := newWorld(t, Config{})
	record := func(n int) {
		for range n {
			_ = w.m.update(t.Context(), func(t *tx) error {
				t.auditEntry(&call{procedure: "/x"}, nil)
				return nil
			})
		}
	}
	list := func(r *dxpuv1.ListAuditRequest) (*dxpuv1.ListAuditResponse, error) {
		res, err := w.api().ListAudit(t.Context(), connect.NewRequest(r))
		if err != nil {
			return nil, err
		}
		return res.Msg, nil
	}
	record(5)
	first, err := list(&dxpuv1.ListAuditRequest{})
	if err != nil || len(first.Entries) != 5 || first.Revision != first.Entries[0].Revision {
		t.Fatalf("%v, %v", first, err)
	}
	record(7)
	at, seen := first.Revision, 0
	for token := ""; ; {
		page, err := list(&dxpuv1.ListAuditRequest{AfterRevision: at, PageSize: 3, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Entries {
			if e.Revision <= at || seen > 0 && e.Revision != first.Revision+uint64(seen)+1 {
				t.Errorf("entry %d has revision %d", seen, e.Revision)
			}
			seen++
		}
		if token = page.NextPageToken; token == "" {
			break
		}
	}
	if seen != 7 {
		t.Errorf("%d entries after revision %d, want 7", seen, at)
	}
	if _, err := list(&dxpuv1.ListAuditRequest{AfterRevision: 1 << 40}); connect.CodeOf(err) != connect.CodeOutOfRange {
		t.Errorf("a revision of another pool: %v", err)
	}
	w.m.state.meta.Audits = keepAudit + 1 // the ring has lost those of the first revisions
	for key, e := range w.m.state.audits.rows {
		if e.Revision <= 3 {
			delete(w.m.state.audits.rows, key)
		}
	}
	if _, err := list(&dxpuv1.ListAuditRequest{AfterRevision: 1}); connect.CodeOf(err) != connect.CodeOutOfRange {
		t.Errorf("entries that are gone: %v", err)
	}
	if rest, err := list(&dxpuv1.ListAuditRequest{AfterRevision: first.Revision}); err != nil || len(rest.Entries) != 7 {
		t.Errorf("entries that are there: %v, %v", rest, err)
	}
}
