package oidc

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/oidc/oidctest"
)

// start starts a provider and returns it with what verifies its tokens.
func start(t *testing.T, grants ...string) (*oidctest.Provider, *Provider) {
	t.Helper()
	from := &oidctest.Provider{ClientID: "dxpu", Claims: map[string]any{"groups": []string{"people", "ml"}, "email": "ada@example.org", "email_verified": true}}
	server := httptest.NewServer(from)
	t.Cleanup(server.Close)
	from.Issuer = server.URL
	if err := from.Rotate(); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Issuer: server.URL, ClientID: "dxpu"}
	for _, text := range grants {
		g, err := ParseGrant(text)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Grants = append(cfg.Grants, g)
	}
	if err := cfg.Check(); err != nil {
		t.Fatal(err)
	}
	return from, New(cfg)
}

func token(t *testing.T, from *oidctest.Provider, claims map[string]any) string {
	t.Helper()
	raw, err := from.Token(claims)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestClaimsAreRoles checks the grants: the first that applies counts.
func TestClaimsAreRoles(t *testing.T) {
	from, p := start(t, "groups=admins:admin", "groups=ml:tenant/team-a", "department=*:tenant/*", "email=root@example.org:operator")
	for _, tt := range []struct {
		claims map[string]any
		role   dxpuv1.Role
		tenant string
	}{
		{nil, dxpuv1.Role_ROLE_TENANT, "team-a"},
		{map[string]any{"groups": []string{"ml", "admins"}}, dxpuv1.Role_ROLE_ADMIN, ""},
		{map[string]any{"groups": "admins"}, dxpuv1.Role_ROLE_ADMIN, ""},
		{map[string]any{"groups": nil, "department": "vision"}, dxpuv1.Role_ROLE_TENANT, "vision"},
		{map[string]any{"groups": nil, "department": "../Vision"}, 0, ""},
		{map[string]any{"groups": 7, "department": []any{1, "x y"}}, 0, ""},
		{map[string]any{"groups": nil, "email": "root@example.org"}, dxpuv1.Role_ROLE_OPERATOR, ""},
		{map[string]any{"groups": nil, "email": "root@example.org", "email_verified": false}, 0, ""},
		{map[string]any{"groups": nil, "email": "root@example.org", "email_verified": nil}, 0, ""},
		{map[string]any{"aud": []string{"dxpu", "another"}, "azp": "dxpu"}, dxpuv1.Role_ROLE_TENANT, "team-a"},
	} {
		got, err := p.Verify(t.Context(), token(t, from, tt.claims))
		if tt.role == 0 != errors.Is(err, ErrNoGrant) || got.Role != tt.role || got.Tenant != tt.tenant {
			t.Errorf("%v: %+v, %v", tt.claims, got, err)
		}
	}
	if got, err := p.Verify(t.Context(), token(t, from, nil)); err != nil || got.Name != "ada@example.org" || got.Subject != "subject-1" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, _ := p.Verify(t.Context(), token(t, from, map[string]any{"email_verified": false})); got.Name != "subject-1" {
		t.Errorf("a mail address that is not verified names a person: %+v", got)
	}
}

// TestHostileTokens has tokens that must not be accepted.
func TestHostileTokens(t *testing.T) {
	from, p := start(t, "groups=ml:operator")
	other, _ := start(t, "groups=ml:operator")
	good := token(t, from, nil)
	if _, err := p.Verify(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(good, ".")
	encode := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	now := time.Now()
	for name, raw := range map[string]string{
		"of another issuer":           token(t, from, map[string]any{"iss": "https://evil.example.org"}),
		"for another audience":        token(t, from, map[string]any{"aud": "another"}),
		"issued to another client":    token(t, from, map[string]any{"azp": "another"}),
		"for several audiences":       token(t, from, map[string]any{"aud": []string{"dxpu", "another"}}),
		"for no audience":             token(t, from, map[string]any{"aud": nil}),
		"expired":                     token(t, from, map[string]any{"exp": now.Add(-time.Hour).Unix()}),
		"without an expiry":           token(t, from, map[string]any{"exp": nil}),
		"old":                         token(t, from, map[string]any{"iat": now.Add(-11 * time.Minute).Unix()}),
		"of the future":               token(t, from, map[string]any{"iat": now.Add(10 * time.Minute).Unix()}),
		"without a time":              token(t, from, map[string]any{"iat": nil}),
		"without a subject":           token(t, from, map[string]any{"sub": ""}),
		"signed by a key of a friend": token(t, other, map[string]any{"iss": from.Issuer}),
		"alg none":                    encode(`{"alg":"none"}`) + "." + parts[1] + ".",
		"alg HS256":                   encode(`{"alg":"HS256"}`) + "." + parts[1] + "." + parts[2],
		"other claims":                parts[0] + "." + encode(`{"iss":"`+from.Issuer+`","aud":"dxpu","sub":"x"}`) + "." + parts[2],
		"cut":                         good[:len(good)-8],
		"empty":                       "",
		"words":                       "not a token",
	} {
		if got, err := p.Verify(t.Context(), raw); err == nil || errors.Is(err, ErrNoGrant) {
			t.Errorf("%s: accepted: %+v, %v", name, got, err)
		}
	}
}

// TestKeysRotate checks that tokens with a new key of the provider are accepted, and those
// with the old one are not once the keys were read again.
func TestKeysRotate(t *testing.T) {
	from, p := start(t, "groups=ml:operator")
	old := token(t, from, nil)
	if _, err := p.Verify(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	if err := from.Rotate(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Verify(t.Context(), token(t, from, nil)); err != nil {
		t.Errorf("with the new key: %v", err)
	}
	// The library hands the new keys to the waiting call before it forgets the old ones.
	var err error
	for range 1_000_000 {
		if _, err = p.Verify(t.Context(), old); err != nil {
			return
		}
		runtime.Gosched()
	}
	t.Error("a token with a key that the provider has withdrawn is accepted")
}

// TestProviderIsAskedAgain checks that a provider which did not answer at first can be used
// later, also if the first caller has gone.
func TestProviderIsAskedAgain(t *testing.T) {
	from, p := start(t, "groups=ml:operator")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Verify(gone, token(t, from, nil)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without an answer: %v", err)
	}
	if _, err := p.Verify(t.Context(), token(t, from, nil)); err != nil {
		t.Error(err)
	}
}

// TestOtherTextsOfAToken checks that texts which the verification takes for the same token
// have the same hash, so that none of them can be used again.
func TestOtherTextsOfAToken(t *testing.T) {
	from, p := start(t, "groups=ml:operator")
	good := token(t, from, nil)
	first, err := p.Verify(t.Context(), good)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(good, ".")
	digits := "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(digits, good[len(good)-1]) // a signature of 256 bytes leaves four bits of it
	for name, raw := range map[string]string{
		"space":     good + "\n",
		"last bits": good[:len(good)-1] + string(digits[last^1]),
		"JSON":      `{"protected":"` + parts[0] + `","payload":"` + parts[1] + `","signature":"` + parts[2] + `"}`,
	} {
		got, err := p.Verify(t.Context(), raw)
		if err == nil && got.TokenHash != first.TokenHash {
			t.Errorf("%s: the token counts as another one", name)
		}
	}
	if other, err := p.Verify(t.Context(), token(t, from, map[string]any{"nonce": "2"})); err != nil || other.TokenHash == first.TokenHash {
		t.Errorf("another token has the same hash (%v)", err)
	}
}

// TestUnknownKeysAreBounded checks that tokens with made-up keys do not make the manager
// ask the provider each time, and that it asks again later.
func TestUnknownKeysAreBounded(t *testing.T) {
	from, other := &oidctest.Provider{ClientID: "dxpu"}, &oidctest.Provider{ClientID: "dxpu"}
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		from.ServeHTTP(w, r)
	}))
	defer server.Close()
	from.Issuer, other.Issuer = server.URL, server.URL
	if err := errors.Join(from.Rotate(), other.Rotate()); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	p := New(Config{Issuer: server.URL, ClientID: "dxpu", Grants: []Grant{{Claim: "sub", Value: "*", Role: dxpuv1.Role_ROLE_OPERATOR}}, Now: func() time.Time { return now }})
	if _, err := p.Verify(t.Context(), token(t, from, nil)); err != nil {
		t.Fatal(err)
	}
	for range 20 * requestBurst { // some share the request of the one before
		if _, err := p.Verify(t.Context(), token(t, other, nil)); err == nil {
			t.Fatal("a token with a made-up key is accepted")
		}
	}
	if n := asked.Load(); n != requestBurst {
		t.Errorf("the provider was asked %d times", n)
	}
	if _, err := p.Verify(t.Context(), token(t, from, nil)); err != nil {
		t.Errorf("a known key in the flood: %v", err)
	}
	if err := from.Rotate(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Verify(t.Context(), token(t, from, nil)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a new key in the flood: %v", err)
	}
	now = now.Add(requestInterval)
	// The library answers with the failure of the last request until it has forgotten it.
	fresh := token(t, from, nil)
	_, err := p.Verify(t.Context(), fresh)
	for range 1_000_000 {
		if err == nil {
			return
		}
		runtime.Gosched()
		_, err = p.Verify(t.Context(), fresh)
	}
	t.Errorf("a new key after it: %v", err)
}

// TestHostileProvider has answers that must not be taken.
func TestHostileProvider(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"endless":   func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 4*maxAnswer)) },
		"redirects": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/again", http.StatusFound) },
		"to cleartext": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		},
	} {
		server := httptest.NewServer(answer)
		res, err := NewClient().Get(server.URL)
		if err == nil {
			_, err = io.ReadAll(res.Body)
			_ = res.Body.Close()
		}
		if want := map[string]string{"endless": "longer than", "redirects": "more than 3 redirects", "to cleartext": "has no https"}[name]; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
		server.Close()
	}
}

func TestConfigIsChecked(t *testing.T) {
	g := []Grant{{Claim: "c", Value: "v", Role: dxpuv1.Role_ROLE_ADMIN}}
	for _, c := range []Config{
		{Issuer: "login.example.org", ClientID: "x", Grants: g},
		{Issuer: "http://login.example.org", ClientID: "x", Grants: g},
		{Issuer: "https://login.example.org", Grants: g},
		{Issuer: "https://login.example.org", ClientID: "x"},
	} {
		if c.Check() == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	for _, text := range []string{"", "groups", "groups=ml", "groups=:admin", "=ml:admin", "groups=ml:root", "groups=ml:tenant", "groups=ml:tenant/A B", "groups=ml:admin/x"} {
		if g, err := ParseGrant(text); err == nil {
			t.Errorf("%q: %+v", text, g)
		}
	}
	if g, err := ParseGrant("https://claims/groups=a:b:operator"); err != nil || g.Claim != "https://claims/groups" || g.Value != "a:b" {
		t.Errorf("%+v, %v", g, err)
	}
}
