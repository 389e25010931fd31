package manager

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// poolClient calls a manager with a token.
func poolClient(t *testing.T, h http.Handler, secret string) dxpuv1connect.PoolServiceClient {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if secret != "" {
			r.Header.Set("Authorization", "Bearer "+secret)
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return dxpuv1connect.NewPoolServiceClient(srv.Client(), srv.URL)
}

// firstAdmin creates the first token of a pool.
func (w *world) firstAdmin() (text string) {
	w.t.Helper()
	err := w.m.FirstAdminToken(context.Background(), func(s string) error {
		text = s
		return nil
	})
	if err != nil {
		w.t.Fatalf("first admin token: %v", err)
	}
	return text
}

func TestFirstAdminToken(t *testing.T) {
	w := newWorld(t, Config{})
	disk := errors.New("the disk is full")
	if err := w.m.FirstAdminToken(t.Context(), func(string) error { return disk }); !errors.Is(err, disk) {
		t.Fatalf("a token that could not be handed over: %v", err)
	}
	text := w.firstAdmin()
	if text == "" {
		t.Fatal("no token was made after the disk had room again")
	}
	if again := w.firstAdmin(); again != "" {
		t.Error("a second first token was made")
	}
	raw, err := w.m.store.Load(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for key, r := range raw {
		if strings.Contains(string(r), text) || strings.Contains(string(r), text[len(text)-20:]) {
			t.Errorf("the record %s has the token in the clear", key)
		}
	}
	// Another manager with the same state knows the token.
	next, err := New(t.Context(), Config{JoinToken: "token-for-tests", Store: w.m.store})
	if err != nil {
		t.Fatal(err)
	}
	res, err := poolClient(t, next.Handler(), text).WhoAmI(t.Context(), connect.NewRequest(&dxpuv1.WhoAmIRequest{}))
	if err != nil || res.Msg.Role != dxpuv1.Role_ROLE_ADMIN {
		t.Errorf("after a restart: %v, %v", res, err)
	}
}

// Everything that makes a token bad gives the same answer.
func TestBadTokens(t *testing.T) {
	mint := func(w *world, r *dxpuv1.CreateTokenRequest) (id, secret string) {
		res, err := w.api().CreateToken(t.Context(), connect.NewRequest(r))
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg.Token.Id, res.Msg.Secret
	}
	whoIs := func(w *world, secret string) answer {
		return callJSON(w.m.Handler(), "/dxpu.v1.PoolService/WhoAmI", secret, "192.0.2.7:1", []byte("{}"))
	}
	operator := &dxpuv1.CreateTokenRequest{Role: dxpuv1.Role_ROLE_OPERATOR, ExpiresAfter: durationpb.New(time.Hour)}
	ofTenant := &dxpuv1.CreateTokenRequest{Role: dxpuv1.Role_ROLE_TENANT, Tenant: "a"}
	tests := []struct {
		name string
		do   func(w *world) (secret string)
		good bool
	}{
		{"fresh", func(w *world) string { _, s := mint(w, operator); return s }, true},
		{"in its last second", func(w *world) string {
			_, s := mint(w, operator)
			w.pass(time.Hour - time.Second)
			return s
		}, true},
		{"expired", func(w *world) string {
			_, s := mint(w, operator)
			w.pass(time.Hour)
			return s
		}, false},
		{"deleted", func(w *world) string {
			id, s := mint(w, operator)
			if _, err := w.api().DeleteToken(t.Context(), connect.NewRequest(&dxpuv1.DeleteTokenRequest{TokenId: id})); err != nil {
				t.Fatal(err)
			}
			return s
		}, false},
		{"deleted after it was used", func(w *world) string {
			id, s := mint(w, operator)
			whoIs(w, s)
			if _, err := w.api().DeleteToken(t.Context(), connect.NewRequest(&dxpuv1.DeleteTokenRequest{TokenId: id})); err != nil {
				t.Fatal(err)
			}
			return s
		}, false},
		{"another's secret", func(w *world) string {
			_, a := mint(w, operator)
			_, b := mint(w, operator)
			return a[:len(auth.TokenPrefix)+11] + b[len(auth.TokenPrefix)+11:]
		}, false},
		{"one letter off", func(w *world) string {
			_, s := mint(w, operator)
			last := "a"
			if strings.HasSuffix(s, "a") {
				last = "b"
			}
			return s[:len(s)-1] + last
		}, false},
		{"never made", func(*world) string { _, s, _ := auth.NewToken(); return s }, false},
		{"its tenant was deleted", func(w *world) string {
			_, s := mint(w, ofTenant)
			whoIs(w, s)
			w.deleteTenant("a")
			return s
		}, false},
		{"its tenant was deleted and made again", func(w *world) string {
			_, s := mint(w, ofTenant)
			w.deleteTenant("a")
			w.pass(time.Second)
			w.putTenant("a", nil)
			return s
		}, false},
		{"its tenant was made again while the clock was behind", func(w *world) string {
			id, s := mint(w, ofTenant)
			kept := w.m.state.tokens.get(id)
			w.deleteTenant("a")
			w.clock.pass(-time.Hour)
			w.putTenant("a", nil)
			// A version that did not delete the tokens of a tenant may have left it.
			if err := w.m.update(t.Context(), func(t *tx) error {
				t.tokens.put(id, kept)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			return s
		}, false},
		{"expired before the clock was set back", func(w *world) string {
			_, s := mint(w, operator)
			w.pass(time.Hour)
			w.pass(-30 * time.Minute)
			return s
		}, false},
	}
	var bad answer
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Config{})
			w.firstAdmin()
			w.putTenant("a", nil)
			secret := tt.do(w)
			got := whoIs(w, secret)
			if (got.code == "ok") != tt.good {
				t.Errorf("got %v", got)
			}
			if tt.good {
				return
			}
			if bad == (answer{}) {
				bad = got
			}
			if got.code != "unauthenticated" || got != bad {
				t.Errorf("the answer differs from the others: %v, %v", got, bad)
			}
		})
	}
}

// The tokens of a tenant end with it.
func TestTokensEndWithTheirTenant(t *testing.T) {
	w := newWorld(t, Config{})
	w.putTenant("a", nil)
	w.putTenant("b", nil)
	for _, tenant := range []string{"a", "b", "a"} {
		if _, err := w.api().CreateToken(t.Context(), connect.NewRequest(&dxpuv1.CreateTokenRequest{Role: dxpuv1.Role_ROLE_TENANT, Tenant: tenant})); err != nil {
			t.Fatal(err)
		}
	}
	w.deleteTenant("a")
	res, err := w.api().ListTokens(t.Context(), connect.NewRequest(&dxpuv1.ListTokensRequest{}))
	if err != nil || len(res.Msg.Tokens) != 1 || res.Msg.Tokens[0].Tenant != "b" {
		t.Errorf("tokens after the end of tenant a: %v, %v", res, err)
	}
}

func (w *world) deleteTenant(id string) {
	w.t.Helper()
	if _, err := w.api().DeleteTenant(context.Background(), connect.NewRequest(&dxpuv1.DeleteTenantRequest{TenantId: id})); err != nil {
		w.t.Fatalf("delete tenant: %v", err)
	}
}

// The last admin is not locked out by mistake.
func TestLastAdminToken(t *testing.T) {
	w := newWorld(t, Config{})
	first, _ := auth.ParseToken(w.firstAdmin())
	remove := func(id string) error {
		_, err := w.api().DeleteToken(t.Context(), connect.NewRequest(&dxpuv1.DeleteTokenRequest{TokenId: id}))
		return err
	}
	if err := remove(first); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("the last one: %v", err)
	}
	if _, err := w.api().CreateToken(t.Context(), connect.NewRequest(&dxpuv1.CreateTokenRequest{Role: dxpuv1.Role_ROLE_ADMIN})); err != nil {
		t.Fatal(err)
	}
	if err := remove(first); err != nil {
		t.Errorf("one of two: %v", err)
	}
}

// A tenant's watch shows the events of its own leases and ends with its token.
func TestWatchOfATenant(t *testing.T) {
	w := newAccessWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := poolClient(t, w.handler, w.secrets["tenant"]).WatchEvents(ctx, connect.NewRequest(&dxpuv1.WatchEventsRequest{FromStart: true}))
	if err != nil {
		t.Fatal(err)
	}
	w.delete(w.foreign["LEASE"], false)
	w.settle()
	w.delete(w.own["LEASE"], false)
	w.settle()
	for stream.Receive() {
		e := stream.Msg().Event
		if e == nil {
			continue
		}
		if e.LeaseId != w.own["LEASE"] || e.Tenant != "team-a" || strings.Contains(e.Message, "team-b") {
			t.Errorf("it sees %v", e)
		}
		if e.Type == dxpuv1.EventType_EVENT_TYPE_LEASE_RELEASED {
			break
		}
	}
	if stream.Err() != nil {
		t.Fatal(stream.Err())
	}
	if _, err := w.api().DeleteToken(ctx, connect.NewRequest(&dxpuv1.DeleteTokenRequest{TokenId: w.own["TOKEN"]})); err != nil {
		t.Fatal(err)
	}
	w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "team-a", HostId: "h1"})
	for stream.Receive() {
		if stream.Msg().Event != nil {
			t.Fatalf("after its token was deleted it sees %v", stream.Msg().Event)
		}
	}
	if connect.CodeOf(stream.Err()) != connect.CodeUnauthenticated {
		t.Errorf("the stream ended with %v", stream.Err())
	}
}

// Request IDs belong to a tenant: another tenant with the same ID neither gets nor
// changes the lease.
func TestRequestIDsAreNotShared(t *testing.T) {
	w := newAccessWorld(t)
	create := func(caller string) answer {
		return callJSON(w.handler, "/dxpu.v1.PoolService/CreateLease", w.secrets[caller], "192.0.2.7:1",
			[]byte(`{"requestId":"r1","spec":{"count":1,"wait":true}}`))
	}
	bodies := []string{create("tenant").body, create("host").body, create("operator").body}
	for i, b := range bodies {
		if !strings.Contains(b, `"id":"l-`) || slices.Index(bodies, b) != i {
			t.Errorf("request %d: %s", i, b)
		}
	}
	if again := create("tenant"); !strings.Contains(bodies[0], leaseIDIn(again.body)) {
		t.Errorf("the tenant's own is not found again: %s", again.body)
	}
}

func leaseIDIn(body string) string {
	_, rest, _ := strings.Cut(body, `"id":"`)
	id, _, _ := strings.Cut(rest, `"`)
	return id
}
