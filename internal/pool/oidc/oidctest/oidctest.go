// Package oidctest is a small OpenID provider for tests. It signs everybody in as one
// person, without asking.
package oidctest

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Provider is a handler for the endpoints of a provider.
type Provider struct {
	// Issuer is the URL of the handler, and ClientID its only client.
	Issuer, ClientID string
	// Claims are those of the person.
	Claims map[string]any
	// Now is the clock; nil: time.Now.
	Now func() time.Time

	mu    sync.Mutex
	key   *rsa.PrivateKey
	keyID string
	codes map[string]url.Values // a code -> the request for it
	asked int                   // requests of a device for its token
}

// Rotate replaces the key with which the provider signs.
func (p *Provider) Rotate() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.key, p.keyID, p.codes = key, rand.Text(), map[string]url.Values{}
	return nil
}

// Token returns an ID token with the claims of the person and others, which replace those.
func (p *Provider) Token(others map[string]any) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.token(others)
}

func (p *Provider) token(others map[string]any) (string, error) {
	now := time.Now()
	if p.Now != nil {
		now = p.Now()
	}
	claims := map[string]any{"iss": p.Issuer, "aud": p.ClientID, "sub": "subject-1", "iat": now.Unix(), "exp": now.Add(time.Hour).Unix()}
	maps.Copy(claims, p.Claims)
	maps.Copy(claims, others)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: p.key, KeyID: p.keyID}}, nil)
	if err != nil {
		return "", err
	}
	return jwt.Signed(signer).Claims(claims).Serialize()
}

// ServeHTTP implements http.Handler.
func (p *Provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		reply(w, map[string]any{
			"issuer": p.Issuer, "authorization_endpoint": p.Issuer + "/authorize", "token_endpoint": p.Issuer + "/token",
			"device_authorization_endpoint": p.Issuer + "/device", "jwks_uri": p.Issuer + "/keys", "id_token_signing_alg_values_supported": []string{"RS256"},
		})
	case "/keys":
		reply(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: p.key.Public(), KeyID: p.keyID, Algorithm: "RS256", Use: "sig"}}})
	case "/authorize":
		code := rand.Text()
		p.codes[code] = r.URL.Query()
		http.Redirect(w, r, fmt.Sprintf("%s?code=%s&state=%s", r.URL.Query().Get("redirect_uri"), code, url.QueryEscape(r.URL.Query().Get("state"))), http.StatusFound)
	case "/device":
		reply(w, map[string]any{"device_code": "device-1", "user_code": "WDJB-MJHT", "verification_uri": p.Issuer + "/activate", "expires_in": 600, "interval": 1})
	case "/token":
		p.serveToken(w, r)
	default:
		http.NotFound(w, r)
	}
}

// serveToken answers with an ID token to a code and its PKCE verifier, once, and to a
// device that asks for the second time.
func (p *Provider) serveToken(w http.ResponseWriter, r *http.Request) {
	others := map[string]any{}
	switch r.PostFormValue("grant_type") {
	case "authorization_code":
		asked, ok := p.codes[r.PostFormValue("code")]
		delete(p.codes, r.PostFormValue("code"))
		sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
		if !ok || asked.Get("code_challenge_method") != "S256" || asked.Get("code_challenge") != base64.RawURLEncoding.EncodeToString(sum[:]) ||
			asked.Get("redirect_uri") != r.PostFormValue("redirect_uri") {
			fail(w, "invalid_grant")
			return
		}
		others["nonce"] = asked.Get("nonce")
	case "urn:ietf:params:oauth:grant-type:device_code":
		if p.asked++; p.asked == 1 || r.PostFormValue("device_code") != "device-1" {
			fail(w, "authorization_pending")
			return
		}
	default:
		fail(w, "unsupported_grant_type")
		return
	}
	token, err := p.token(others)
	if err != nil {
		fail(w, "server_error")
		return
	}
	reply(w, map[string]any{"access_token": "none", "token_type": "Bearer", "id_token": token})
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func fail(w http.ResponseWriter, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": why})
}
