package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/pool/oidc/oidctest"
)

// fakeProvider is an OpenID provider that signs everybody in. It writes its URL to a file.
//
//	dxpu-fake-oidc FILE
func fakeProvider(args []string) int {
	p := &oidctest.Provider{ClientID: "dxpu", Claims: map[string]any{"groups": []string{"ops"}, "email": "ada@example.org", "email_verified": true}}
	server := httptest.NewServer(p)
	p.Issuer = server.URL
	if err := p.Rotate(); err != nil {
		return exitFailure
	}
	if err := atomicfile.Write(args[0], []byte(p.Issuer)); err != nil {
		return exitFailure
	}
	select {}
}

// TestLoginWithCode is the browser: it follows the URL that the command shows, and tries
// answers that the command must not take.
func TestLoginWithCode(t *testing.T) {
	p := &oidctest.Provider{ClientID: "dxpu"}
	server := httptest.NewServer(p)
	defer server.Close()
	p.Issuer = server.URL
	if err := p.Rotate(); err != nil {
		t.Fatal(err)
	}
	get := func(at string) (int, string) {
		res, err := http.Get(at)
		if err != nil {
			return 0, err.Error()
		}
		defer func() { _ = res.Body.Close() }()
		body, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(body)
	}
	o := &login{show: func(at string) {
		u, err := url.Parse(at)
		if err != nil {
			t.Error(err)
			return
		}
		q := u.Query()
		if q.Get("code_challenge_method") != "S256" || q.Get("nonce") == "" || len(q.Get("state")) < 20 {
			t.Errorf("%s", at)
		}
		back := q.Get("redirect_uri")
		for _, wrong := range []string{"?code=stolen", "?code=stolen&state=" + strings.Repeat("A", 26), "/other?code=x&state=" + q.Get("state")} {
			if code, _ := get(back + wrong); code != http.StatusBadRequest {
				t.Errorf("%s: %d", wrong, code)
			}
		}
		if code, text := get(at); code != http.StatusOK || !strings.Contains(text, "Signed in") {
			t.Errorf("%d %s", code, text)
		}
	}}
	at := &dxpuv1.GetSignInResponse{Issuer: p.Issuer, ClientId: "dxpu"}
	if raw, err := o.signIn(t.Context(), io.Discard, at); err != nil || strings.Count(raw, ".") != 2 {
		t.Errorf("%q, %v", raw, err)
	}
	// The person refuses.
	o.show = func(at string) {
		u, _ := url.Parse(at)
		get(u.Query().Get("redirect_uri") + "?error=access_denied&state=" + u.Query().Get("state"))
	}
	if _, err := o.signIn(t.Context(), io.Discard, at); err == nil || !strings.Contains(err.Error(), "access_denied") {
		t.Errorf("refused: %v", err)
	}
	// A code of another sign-in, with its own challenge, does not fit this one.
	o.show = func(at string) {
		u, _ := url.Parse(at)
		q := u.Query()
		state := q.Get("state")
		q.Set("code_challenge", "another")
		u.RawQuery = q.Encode()
		no := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		res, err := no.Get(u.String())
		if err != nil {
			t.Error(err)
			return
		}
		_ = res.Body.Close()
		to, _ := res.Location()
		get(fmt.Sprintf("%s?code=%s&state=%s", q.Get("redirect_uri"), to.Query().Get("code"), state))
	}
	if _, err := o.signIn(t.Context(), io.Discard, at); err == nil || !strings.Contains(err.Error(), "invalid_grant") {
		t.Errorf("another code: %v", err)
	}
	// An ID token for another request: its nonce is not that of this sign-in.
	o.show = func(at string) {
		u, _ := url.Parse(at)
		q := u.Query()
		q.Set("nonce", "another")
		u.RawQuery = q.Encode()
		get(u.String())
	}
	if _, err := o.signIn(t.Context(), io.Discard, at); err == nil || !strings.Contains(err.Error(), "nonce") {
		t.Errorf("another nonce: %v", err)
	}
	// A manager that names a provider in cleartext.
	if _, err := o.signIn(t.Context(), io.Discard, &dxpuv1.GetSignInResponse{Issuer: "http://192.0.2.1", ClientId: "dxpu"}); err == nil || !strings.Contains(err.Error(), "must have https") {
		t.Errorf("without https: %v", err)
	}
	// The command is interrupted.
	ctx, cancel := context.WithCancel(t.Context())
	o.show = func(string) { cancel() }
	if _, err := o.signIn(ctx, io.Discard, at); err == nil {
		t.Error("it goes on without its context")
	}
}
