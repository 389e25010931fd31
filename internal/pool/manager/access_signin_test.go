package manager

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/oidc"
	"github.com/dxpu-project/dxpu/internal/pool/oidc/oidctest"
)

// TestSignIn exchanges ID tokens of a provider for tokens of the pool.
func TestSignIn(t *testing.T) {
	from := &oidctest.Provider{ClientID: "dxpu", Claims: map[string]any{"groups": "ml", "email": "ada@example.org", "email_verified": true}}
	server := httptest.NewServer(from)
	defer server.Close()
	from.Issuer = server.URL
	if err := from.Rotate(); err != nil {
		t.Fatal(err)
	}
	var w *world
	now := func() time.Time { return w.clock.now() }
	from.Now = now
	provider := oidc.New(oidc.Config{Issuer: server.URL, ClientID: "dxpu", Now: now, Grants: []oidc.Grant{
		{Claim: "groups", Value: "ml", Role: dxpuv1.Role_ROLE_TENANT, Tenant: "team-a"},
		{Claim: "groups", Value: "ops", Role: dxpuv1.Role_ROLE_OPERATOR},
	}})
	w = newWorld(t, Config{SignIn: provider, SignInLife: time.Hour, Open: OpenNever})
	signIn := func(claims map[string]any) (raw string, res *dxpuv1.SignInResponse, err error) {
		raw, err = from.Token(claims)
		if err != nil {
			t.Fatal(err)
		}
		got, err := poolClient(t, w.m.Handler(), "").SignIn(context.Background(), connect.NewRequest(&dxpuv1.SignInRequest{IdToken: raw}))
		if err != nil {
			return raw, nil, err
		}
		return raw, got.Msg, nil
	}
	if _, _, err := signIn(nil); connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(err.Error(), "tenant team-a, which the pool does not have") {
		t.Errorf("a tenant that does not exist: %v", err)
	}
	w.putTenant("team-a", nil)
	raw, res, err := signIn(map[string]any{"jti": "1"})
	if err != nil || res.Token.Tenant != "team-a" || res.Token.Description != "signed in as ada@example.org" {
		t.Fatalf("%v, %v", res, err)
	}
	who, err := poolClient(t, w.m.Handler(), res.Secret).WhoAmI(t.Context(), connect.NewRequest(&dxpuv1.WhoAmIRequest{}))
	if err != nil || who.Msg.Role != dxpuv1.Role_ROLE_TENANT || who.Msg.Tenant != "team-a" {
		t.Errorf("%v, %v", who, err)
	}
	if _, err := poolClient(t, w.m.Handler(), res.Secret).ListBoxes(t.Context(), connect.NewRequest(&dxpuv1.ListBoxesRequest{})); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("a person of a tenant lists boxes: %v", err)
	}
	// The same ID token again, also in another text.
	for _, again := range []string{raw, raw + "\n"} {
		_, err := poolClient(t, w.m.Handler(), "").SignIn(t.Context(), connect.NewRequest(&dxpuv1.SignInRequest{IdToken: again}))
		if connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), "used before") {
			t.Errorf("replayed: %v", err)
		}
	}
	if _, _, err := signIn(map[string]any{"groups": "guests"}); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("without a role: %v", err)
	}
	if _, _, err := signIn(map[string]any{"aud": "another"}); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("for another client: %v", err)
	}
	for i := range maxSignedIn - 1 { // one is signed in
		w.pass(10 * time.Second) // calls without a credential are bounded
		if _, _, err := signIn(map[string]any{"jti": fmt.Sprint("more", i)}); err != nil {
			t.Fatal(err)
		}
	}
	w.pass(time.Minute)
	if _, _, err := signIn(map[string]any{"jti": "last"}); connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "is signed in 64 times") {
		t.Errorf("one token too many: %v", err)
	}
	if _, _, err := signIn(map[string]any{"jti": "other", "email": "grace@example.org"}); err != nil {
		t.Errorf("another person: %v", err)
	}
	w.pass(time.Hour)
	if _, err := poolClient(t, w.m.Handler(), res.Secret).WhoAmI(t.Context(), connect.NewRequest(&dxpuv1.WhoAmIRequest{})); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("after the session: %v", err)
	}
	server.Close()
	if err := from.Rotate(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := signIn(nil); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("with a key that cannot be read: %v", err)
	}
}
