package web

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
	"github.com/dxpu-project/dxpu/internal/pool/oidc"
	"github.com/dxpu-project/dxpu/internal/pool/oidc/oidctest"
)

// ssoPool starts a pool with single sign-on, and its provider.
func ssoPool(t *testing.T) (url string, from *oidctest.Provider) {
	t.Helper()
	from = &oidctest.Provider{ClientID: "dxpu", Claims: map[string]any{"groups": []string{"ops"}, "email": "ada@example.org", "email_verified": true}}
	provider := httptest.NewServer(from)
	t.Cleanup(provider.Close)
	from.Issuer = provider.URL
	if err := from.Rotate(); err != nil {
		t.Fatal(err)
	}
	grant, err := oidc.ParseGrant("groups=ops:operator")
	if err != nil {
		t.Fatal(err)
	}
	m, err := manager.New(t.Context(), manager.Config{
		JoinToken: joinToken, Version: "v0.4.0", SignInLife: 12 * time.Hour,
		SignIn: oidc.New(oidc.Config{Issuer: provider.URL, ClientID: "dxpu", Grants: []oidc.Grant{grant}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(Handler(m.Handler()))
	t.Cleanup(srv.Close)
	return srv.URL, from
}

// begin begins a sign-in, lets the provider confirm it, and returns the cookie that the
// browser keeps and the URL to which it is sent back.
func begin(t *testing.T, pool string) (*http.Cookie, *url.URL) {
	t.Helper()
	res, _ := send(t, http.MethodGet, pool+"/ui/sso?next="+url.QueryEscape("/ui/leases?state=active"), "")
	c := cookieOf(res, ssoCookie)
	if res.StatusCode != http.StatusSeeOther || c == nil {
		t.Fatalf("%s, cookies %v", res.Status, res.Cookies())
	}
	res, _ = send(t, http.MethodGet, res.Header.Get("Location"), "")
	back, err := url.Parse(res.Header.Get("Location"))
	if err != nil || !strings.HasPrefix(back.String(), pool+ssoCallback+"?") {
		t.Fatalf("the provider sends the browser to %q: %v", back, err)
	}
	return c, back
}

// TestSingleSignOn signs a person in at the provider, and uses the cookie.
func TestSingleSignOn(t *testing.T) {
	pool, from := ssoPool(t)
	if _, page := send(t, http.MethodGet, pool+"/ui/signin?next=/ui/hosts", ""); !strings.Contains(page, `href="/ui/sso?next=%2fui%2fhosts"`) || !strings.Contains(page, "Sign in at "+from.Issuer) {
		t.Errorf("the page does not offer the sign-in:\n%s", page)
	}
	c, back := begin(t, pool)
	if c.SameSite != http.SameSiteLaxMode || !c.HttpOnly || c.Path != ssoPath || c.MaxAge != 600 || c.Secure {
		t.Errorf("the cookie of the sign-in: %v", c)
	}
	res, page := send(t, http.MethodGet, back.String(), "", "Cookie", ssoCookie+"="+c.Value, "Authorization", "Bearer of-before")
	token := cookieOf(res, tokenCookie)
	if res.StatusCode != http.StatusOK || token == nil || res.Header.Get("Refresh") != "0; url=/ui/leases?state=active" {
		t.Fatalf("%s, Refresh %q, cookies %v\n%s", res.Status, res.Header.Get("Refresh"), res.Cookies(), page)
	}
	if life := time.Duration(token.MaxAge) * time.Second; token.SameSite != http.SameSiteStrictMode || !token.HttpOnly || life > 12*time.Hour || life < 11*time.Hour {
		t.Errorf("the cookie of the session: %v", token)
	}
	if old := cookieOf(res, ssoCookie); old == nil || old.MaxAge >= 0 {
		t.Errorf("the cookie of the sign-in stays: %v", old)
	}
	if res, _ := send(t, http.MethodGet, pool+"/ui/leases", "", "Cookie", tokenCookie+"="+token.Value); res.StatusCode != http.StatusOK {
		t.Errorf("a page of the session: %s", res.Status)
	}
	me := connect.NewRequest(&dxpuv1.WhoAmIRequest{})
	me.Header().Set("Authorization", "Bearer "+token.Value)
	who, err := dxpuv1connect.NewPoolServiceClient(http.DefaultClient, pool).WhoAmI(t.Context(), me)
	if err != nil || who.Msg.Role != dxpuv1.Role_ROLE_OPERATOR {
		t.Errorf("the session is of %v, %v", who, err)
	}
}

// TestForgedSignIns has answers that are not for the sign-in that the browser began.
func TestForgedSignIns(t *testing.T) {
	pool, from := ssoPool(t)
	change := func(u *url.URL, key, value string) string {
		out, q := *u, u.Query()
		if q.Set(key, value); value == "" {
			q.Del(key)
		}
		out.RawQuery = q.Encode()
		return out.String()
	}
	mine, back := begin(t, pool)
	other, theirs := begin(t, pool)
	used, once := begin(t, pool)
	if res, _ := send(t, http.MethodGet, once.String(), "", "Cookie", ssoCookie+"="+used.Value); res.StatusCode != http.StatusOK {
		t.Fatalf("a good one: %s", res.Status)
	}
	denied, no := begin(t, pool)
	changed, again := begin(t, pool)
	text, err := base64.RawURLEncoding.DecodeString(changed.Value)
	if err != nil {
		t.Fatal(err)
	}
	var state ssoState
	if err := json.Unmarshal(text, &state); err != nil {
		t.Fatal(err)
	}
	state.Nonce = "another"
	if text, err = json.Marshal(state); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, at, cookie string
		status           int
		says             string
	}{
		{"without a cookie", back.String(), "", 400, "not the answer to a sign-in"},
		{"with a cookie that is none", back.String(), "x!", 400, "not the answer to a sign-in"},
		{"with an empty state on both sides", change(back, "state", ""), "e30", 400, "not the answer to a sign-in"},
		{"of another sign-in", theirs.String(), mine.Value, 400, "not the answer to a sign-in"},
		{"with another state", change(back, "state", "x"), mine.Value, 400, "not the answer to a sign-in"},
		{"with the code of another sign-in", change(theirs, "state", back.Query().Get("state")), mine.Value, 401, "did not confirm"},
		{"with a code that is none", change(back, "code", "x"), mine.Value, 401, "did not confirm"},
		{"of another provider", change(back, "iss", "https://login.example.org"), mine.Value, 400, "not the answer to a sign-in"},
		{"with an ID token for another sign-in", again.String(), base64.RawURLEncoding.EncodeToString(text), 400, "not the answer to a sign-in"},
		{"for the second time", once.String(), used.Value, 401, "did not confirm"},
		{"that says no", change(no, "code", "") + "&error_description=<b>not+today</b>", denied.Value, 401, "refused the sign-in: &lt;b&gt;not today"},
		{"that says no in another browser", change(no, "code", "") + "&error_description=x", other.Value, 400, "not the answer to a sign-in"},
	} {
		res, page := send(t, http.MethodGet, c.at, "", "Cookie", ssoCookie+"="+c.cookie)
		if res.StatusCode != c.status || !strings.Contains(page, c.says) || cookieOf(res, tokenCookie) != nil {
			t.Errorf("%s: %s, want %d and %q; cookies %v", c.name, res.Status, c.status, c.says, res.Cookies())
		}
	}
	// A person without a role in the pool.
	from.Claims["groups"] = []string{"guests"}
	c, back := begin(t, pool)
	if res, page := send(t, http.MethodGet, back.String(), "", "Cookie", ssoCookie+"="+c.Value); res.StatusCode != http.StatusForbidden || !strings.Contains(page, "no role in this pool") {
		t.Errorf("without a role: %s", res.Status)
	}
}

// TestNoSingleSignOn has a pool without a provider, and a server with TLS.
func TestNoSingleSignOn(t *testing.T) {
	w, _ := busyWorld(t)
	if res, page := send(t, http.MethodGet, w.url+"/ui/sso", ""); res.StatusCode != http.StatusNotFound || !strings.Contains(page, "no single sign-on") {
		t.Errorf("%s", res.Status)
	}
	if _, page := send(t, http.MethodGet, w.url+"/ui/signin", ""); strings.Contains(page, "/ui/sso") {
		t.Error("the page offers single sign-on")
	}
	r := httptest.NewRequest(http.MethodGet, "https://pool.example.org/ui/sso", http.NoBody)
	rec := httptest.NewRecorder()
	setSSOCookie(rec, r, "x", time.Minute)
	if c := cookieOf(rec.Result(), ssoCookie); !c.Secure || redirectURL(r) != "https://pool.example.org/ui/sso/callback" {
		t.Errorf("with TLS: %v, %s", c, redirectURL(r))
	}
}

// TestLongPageBeforeTheSignIn begins a sign-in on a page with a long address: browsers keep no
// cookie above 4096 bytes, so the sign-in would never succeed.
func TestLongPageBeforeTheSignIn(t *testing.T) {
	pool, _ := ssoPool(t)
	res, _ := send(t, http.MethodGet, pool+"/ui/sso?next="+url.QueryEscape("/ui/leases?q="+strings.Repeat("x", 4000)), "")
	if c := cookieOf(res, ssoCookie); c == nil || len(c.Name)+len(c.Value) > 4000 {
		t.Errorf("the cookie has %d bytes", len(c.Value))
	}
}
