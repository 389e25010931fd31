package web

import (
	"crypto/rand"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const formOfTests = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

// post sends a form as one of our pages does, with a form token.
func post(t *testing.T, target string, fields url.Values, header ...string) (*http.Response, string) {
	t.Helper()
	if !fields.Has("form") {
		fields.Set("form", formOfTests)
	}
	if !fields.Has("request") {
		fields.Set("request", rand.Text())
	}
	cookies := formCookie + "=" + formOfTests
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Cookie" {
			cookies += "; " + header[i+1]
		}
	}
	return send(t, http.MethodPost, target, fields.Encode(), append(header, "Cookie", cookies)...)
}

func cookieOf(res *http.Response, name string) *http.Cookie {
	for _, c := range res.Cookies() {
		if c.Name == name {
			return c
		}
	}
	return nil
}

func TestSignIn(t *testing.T) {
	w, _ := busyWorld(t)
	token := w.token(dxpuv1.Role_ROLE_TENANT, "research")
	for _, tt := range []struct {
		name   string
		fields url.Values
		status int
		to     string
		says   string
	}{
		{"a good token", url.Values{"token": {token}, "next": {"/ui/leases?state=active"}}, 303, "/ui/leases?state=active", ""},
		{"with spaces around it", url.Values{"token": {" " + token + "\n"}}, 303, "/", ""},
		{"a wrong one", url.Values{"token": {token + "x"}}, 401, "", "does not know this token"},
		{"nothing", url.Values{}, 400, "", "This is not a token"},
		{"several words", url.Values{"token": {"a b"}}, 400, "", "This is not a token"},
		{"one that would end the cookie", url.Values{"token": {"a; Path=/x"}}, 400, "", "This is not a token"},
		{"a line end", url.Values{"token": {"a\r\nSet-Cookie: b=c"}}, 400, "", "This is not a token"},
		{"to another site", url.Values{"token": {token}, "next": {"https://example.com/ui/"}}, 303, "/", ""},
		{"to another host", url.Values{"token": {token}, "next": {"//example.com/ui/leases"}}, 303, "/", ""},
		{"to another host, with backslashes", url.Values{"token": {token}, "next": {`/\example.com`}}, 303, "/", ""},
		{"to a script", url.Values{"token": {token}, "next": {"javascript:alert(1)"}}, 303, "/", ""},
		{"a form of another site", url.Values{"token": {token}, "form": {"ZYXWVUTSRQPONMLKJIHGFEDCBA"}}, 403, "", "sent by another site"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res, body := post(t, w.url+"/ui/signin", tt.fields)
			c := cookieOf(res, tokenCookie)
			if res.StatusCode != tt.status || res.Header.Get("Location") != tt.to || !strings.Contains(body, tt.says) || (c != nil) != (tt.status == 303) {
				t.Fatalf("%s to %q with %v: %s", res.Status, res.Header.Get("Location"), c, body)
			}
			if c != nil && (c.Value != token || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.MaxAge != int(signInLifetime/time.Second)) {
				t.Errorf("the cookie is %v", c)
			}
			if c == nil {
				checkPage(t, body)
			}
		})
	}
}

// TestSignedIn checks that a browser with a tenant's token has the tenant's rights
// until the token is deleted.
func TestSignedIn(t *testing.T) {
	w, lease := busyWorld(t)
	token := w.token(dxpuv1.Role_ROLE_TENANT, "speech")
	mine := tokenCookie + "=" + token
	for _, after := range []string{"", "1"} {
		header := []string{"Cookie", mine}
		if after != "" {
			header = append(header, afterHeader, after)
		}
		if _, body := get(t, w.url+"/ui/leases/"+lease, header...); !strings.Contains(body, "does not exist") {
			t.Errorf("speech sees a lease of research: %s", body)
		}
		if _, body := get(t, w.url+"/ui/leases", header...); !strings.Contains(body, "speech") || strings.Contains(body, ">vision<") {
			t.Errorf("the leases of speech: %s", body)
		}
	}
	if res, body := post(t, w.url+"/ui/do", url.Values{"do": {"delete"}, "id": {lease}}, "Cookie", mine); res.StatusCode != 404 {
		t.Errorf("speech deletes a lease of research: %s %s", res.Status, body)
	}
	if res, body := post(t, w.url+"/ui/do", url.Values{"do": {"drain"}, "kind": {"box"}, "id": {"r2-nv"}}, "Cookie", mine); res.StatusCode != 403 {
		t.Errorf("a tenant drains a box: %s %s", res.Status, body)
	}
	tokens, err := w.pool.ListTokens(t.Context(), connect.NewRequest(&dxpuv1.ListTokensRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range tokens.Msg.Tokens {
		if _, err := w.pool.DeleteToken(t.Context(), connect.NewRequest(&dxpuv1.DeleteTokenRequest{TokenId: k.Id})); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/", "/ui/leases?state=active", "/ui/stream"} {
		res, _ := get(t, w.url+path, "Cookie", mine, afterHeader, "1")
		if to := res.Header.Get("Location"); path != "/ui/stream" && (res.StatusCode != 303 || to != "/ui/signin?next="+url.QueryEscape(path)) ||
			path == "/ui/stream" && res.StatusCode != 401 {
			t.Errorf("%s with a deleted token: %s to %q", path, res.Status, to)
		}
	}
}

func TestSignOut(t *testing.T) {
	w := newWorld(t, 0)
	res, _ := post(t, w.url+"/ui/signout", url.Values{}, "Cookie", tokenCookie+"=x")
	if c := cookieOf(res, tokenCookie); res.StatusCode != 303 || c == nil || c.MaxAge >= 0 {
		t.Errorf("%s, cookie %v", res.Status, c)
	}
	res, _ = post(t, w.url+"/ui/signout", url.Values{"form": {"x"}})
	if c := cookieOf(res, tokenCookie); c != nil {
		t.Errorf("another site can sign the viewer out: %v", c)
	}
}

// TestForgedForms checks that forms from other sites and browsers are refused.
func TestForgedForms(t *testing.T) {
	w, lease := busyWorld(t)
	del := url.Values{"do": {"delete"}, "id": {lease}, "request": {formOfTests}}
	for _, tt := range []struct {
		name   string
		method string
		target string
		form   string
		header []string
		status int
	}{
		{"from another site, by what the browser says", "POST", "/ui/do", formOfTests, []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"from another origin", "POST", "/ui/do", formOfTests, []string{"Origin", "https://example.com"}, 403},
		{"without a token", "POST", "/ui/do", "", nil, 403},
		{"with another token", "POST", "/ui/do", strings.Repeat("Z", 26), nil, 403},
		{"as a link", "GET", "/ui/do?do=delete&form=" + formOfTests + "&id=" + lease, formOfTests, nil, 404},
		{"in the query", "POST", "/ui/do?form=" + formOfTests, "", nil, 403},
		{"too long", "POST", "/ui/do", strings.Repeat("A", maxForm), nil, 403},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fields := url.Values{"form": {tt.form}}
			for k, v := range del {
				fields[k] = v
			}
			body := fields.Encode()
			if tt.method == "GET" {
				body = ""
			}
			res, _ := send(t, tt.method, w.url+tt.target, body, append(tt.header, "Cookie", formCookie+"="+formOfTests)...)
			if res.StatusCode != tt.status {
				t.Errorf("%s, want %d", res.Status, tt.status)
			}
		})
	}
	l, err := w.pool.GetLease(t.Context(), connect.NewRequest(&dxpuv1.GetLeaseRequest{LeaseId: lease}))
	if err != nil || l.Msg.Lease.State != dxpuv1.LeaseState_LEASE_STATE_ACTIVE {
		t.Fatalf("the lease is %v, %v", l, err)
	}
}

// TestActions checks that forms take effect and are confirmed.
func TestActions(t *testing.T) {
	w, lease := busyWorld(t)
	w.token(dxpuv1.Role_ROLE_TENANT, "speech")
	for _, tt := range []struct {
		name   string
		fields url.Values
		status int
		says   string
	}{
		{"cordon", url.Values{"do": {"cordon"}, "kind": {"box"}, "id": {"r4-nv"}, "reason": {"dust"}}, 303, "r4-nv takes no new bindings."},
		{"uncordon", url.Values{"do": {"uncordon"}, "kind": {"box"}, "id": {"r4-nv"}}, 303, "r4-nv takes new bindings again."},
		{"drain", url.Values{"do": {"drain"}, "kind": {"gpu"}, "id": {"r4-nv/0"}, "deadline": {"5"}}, 303, "r4-nv/0 is being drained: 0 bindings must be released."},
		{"plan", url.Values{"do": {"plan"}, "kind": {"box"}, "id": {"r4-nv"}, "in": {"60"}, "for": {"30"}, "drain": {"5"}}, 303, "Maintenance m-1 of r4-nv is planned."},
		{"plan without a length", url.Values{"do": {"plan"}, "kind": {"box"}, "id": {"r4-nv"}, "in": {"60"}, "for": {"0"}, "drain": {"0"}}, 400, "is not a number from 1 to"},
		{"plan of a rack", url.Values{"do": {"plan"}, "kind": {"rack"}, "id": {"r4"}, "in": {"60"}, "for": {"30"}, "drain": {"5"}}, 303, "Maintenance m-2 of r4 is planned."},
		{"end the plan of the rack", url.Values{"do": {"endplan"}, "id": {"m-2"}}, 303, "Maintenance m-2 is over."},
		{"end a plan", url.Values{"do": {"endplan"}, "id": {"m-1"}}, 303, "Maintenance m-1 is over."},
		{"replace", url.Values{"do": {"replace"}, "id": {"r1-nv/0"}}, 429, "no other GPU fits"},
		{"replace one of many", url.Values{"do": {"replace"}, "id": {"r4-sw/4"}}, 303, "GPU r4-sw/4 is being replaced by r"},
		{"clear", url.Values{"do": {"clear"}, "id": {"r4-sw/5"}}, 303, "The errors of GPU r4-sw/5 were cleared."},
		{"resize", url.Values{"do": {"resize"}, "id": {lease}, "count": {"1"}}, 303, "Lease " + lease + " gets 1 GPU."},
		{"resize to nothing", url.Values{"do": {"resize"}, "id": {lease}, "count": {"0"}}, 400, "is not a number from 1 to 64"},
		{"resize to a text", url.Values{"do": {"resize"}, "id": {lease}, "count": {hostile}}, 400, "is not a number from 1 to 64"},
		{"create", url.Values{"do": {"create"}, "count": {"1"}, "host": {"h08"}, "tenant": {"speech"}, "priority": {"-5"}, "hours": {"2"}, "wait": {"yes"}}, 303, "was created: it"},
		{"create parts of two GPUs", url.Values{"do": {"create"}, "count": {"2"}, "memory": {"8"}, "compute": {"30"}, "tenant": {"speech"}, "wait": {"yes"}}, 303, "was created: it"},
		{"create a part without its compute", url.Values{"do": {"create"}, "count": {"1"}, "memory": {"8"}}, 400, "compute: \"\" is not a number from 1 to 100"},
		{"create without a count", url.Values{"do": {"create"}}, 400, "is not a number from 1 to 64"},
		{"create with a wrong priority", url.Values{"do": {"create"}, "count": {"1"}, "priority": {"200"}}, 400, "is not a number from -100 to 100"},
		{"create on an unknown host", url.Values{"do": {"create"}, "count": {"1"}, "host": {hostile}, "wait": {"yes"}}, 404, "host"},
		{"delete", url.Values{"do": {"delete"}, "id": {lease}}, 303, "Lease " + lease + " is being released."},
		{"delete an unknown lease", url.Values{"do": {"delete"}, "id": {hostile}}, 404, "does not exist"},
		{"cordon an unknown kind", url.Values{"do": {"cordon"}, "kind": {"rack"}, "id": {"r1"}}, 400, "is not gpu, box or host"},
		{"an unknown action", url.Values{"do": {"dance"}}, 400, "there is no action"},
		{"drain an unknown host", url.Values{"do": {"drain"}, "kind": {"host"}, "id": {"h99"}}, 404, "does not exist"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.fields.Set("next", "/ui/hosts")
			res, body := post(t, w.url+"/ui/do", tt.fields)
			if res.StatusCode == http.StatusSeeOther {
				if to := res.Header.Get("Location"); to != "/ui/hosts" && (!strings.HasPrefix(tt.name, "create") || !strings.HasPrefix(to, "/ui/leases/l-")) {
					t.Errorf("it redirects to %q", to)
				}
				c := cookieOf(res, noticeCookie)
				if c == nil {
					t.Fatal("no notice is set")
				}
				_, body = get(t, w.url+"/ui/hosts", "Cookie", noticeCookie+"="+c.Value)
			}
			if said := text(checkPage(t, body)); res.StatusCode != tt.status || !strings.Contains(strings.ToLower(said), strings.ToLower(tt.says)) {
				t.Errorf("%s: %s", res.Status, said)
			}
		})
	}
}

// TestMistypedTenant checks that the form makes no tenant, also before the pool has one.
func TestMistypedTenant(t *testing.T) {
	w := newWorld(t, 0)
	form := url.Values{"do": {"create"}, "count": {"1"}, "tenant": {"typo"}, "wait": {"yes"}, "next": {"/ui/leases"}}
	if res, body := post(t, w.url+"/ui/do", form); res.StatusCode != http.StatusNotFound || !strings.Contains(text(checkPage(t, body)), `"typo" is not defined`) {
		t.Errorf("%s: %s", res.Status, body)
	}
}

// TestUpdateLeavesTheNotice checks that the page of an action, which updates itself
// before the browser follows the redirect, leaves the notice to the next page.
func TestUpdateLeavesTheNotice(t *testing.T) {
	w, _ := busyWorld(t)
	res, _ := post(t, w.url+"/ui/do", url.Values{"do": {"cordon"}, "kind": {"box"}, "id": {"r4-nv"}, "next": {"/ui/hosts"}})
	c := cookieOf(res, noticeCookie)
	if c == nil {
		t.Fatal("no notice is set")
	}
	for _, tt := range []struct{ path, after string }{{"/ui/boxes/r4-nv", "0"}, {"/ui/boxes/r4-nv", ""}, {"/ui/boxes/none", "0"}} {
		res, body := get(t, w.url+tt.path, afterHeader, tt.after, "Cookie", noticeCookie+"="+c.Value)
		if cookieOf(res, noticeCookie) != nil || strings.Contains(body, `class="notice"`) {
			t.Errorf("the update of %s after %q took the notice", tt.path, tt.after)
		}
	}
	res, body := get(t, w.url+"/ui/hosts", "Cookie", noticeCookie+"="+c.Value)
	if taken := cookieOf(res, noticeCookie); taken == nil || taken.Value != "" || !strings.Contains(body, `role="status">r4-nv takes no new bindings.`) {
		t.Errorf("the next page does not show the notice, or leaves its cookie: %v", taken)
	}
}
