package oidc

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	goidc "github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"golang.org/x/time/rate"
)

// Flow signs persons in whose browser returns to a page of ours with a code
// (authorization code flow with PKCE, state and nonce).
type Flow struct {
	client *http.Client

	mu        sync.Mutex // guards the fields below
	providers map[string]*goidc.Provider
}

// Strangers can begin sign-ins, and each that returns costs a request to the provider. So
// all of them together have a rate.
const (
	exchangesPerSecond = 20
	exchangeBurst      = 50
	maxIssuers         = 4 // whose answers are remembered; a manager has one
)

// NewFlow returns a Flow.
func NewFlow() *Flow {
	return &Flow{client: newClient(rate.NewLimiter(exchangesPerSecond, exchangeBurst), time.Now), providers: map[string]*goidc.Provider{}}
}

// Pending is a sign-in that has begun. The browser keeps it, where no other site reads it.
type Pending struct {
	State    string `json:"state"`
	Nonce    string `json:"nonce"`
	Verifier string `json:"verifier"` // of PKCE
}

// Start returns the URL of the provider to which the browser is sent, and what it must bring
// back.
func (f *Flow) Start(ctx context.Context, issuer, clientID, redirectURL string) (url string, p Pending, err error) {
	cfg, _, err := f.config(ctx, issuer, clientID, redirectURL)
	if err != nil {
		return "", p, err
	}
	p = Pending{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier()}
	return cfg.AuthCodeURL(p.State, goidc.Nonce(p.Nonce), oauth2.S256ChallengeOption(p.Verifier)), p, nil
}

// ErrState reports a return of the browser that is no answer to the sign-in that it began.
var ErrState = errors.New("oidc: the answer is not for a sign-in that this browser began")

// Finish exchanges the code with which the browser returns for an ID token, and checks that
// the token is for this sign-in. The caller exchanges the token at the manager, which
// decides on the role.
func (f *Flow) Finish(ctx context.Context, issuer, clientID, redirectURL string, p Pending, state, code string) (idToken string, err error) {
	if p.State == "" || subtle.ConstantTimeCompare([]byte(p.State), []byte(state)) != 1 {
		return "", ErrState
	}
	cfg, provider, err := f.config(ctx, issuer, clientID, redirectURL)
	if err != nil {
		return "", err
	}
	token, err := cfg.Exchange(goidc.ClientContext(ctx, f.client), code, oauth2.VerifierOption(p.Verifier))
	if err != nil {
		return "", fmt.Errorf("oidc: the provider gives no token for the code: %w", err)
	}
	raw, ok := token.Extra("id_token").(string)
	if !ok {
		return "", errors.New("oidc: the provider sent no ID token: the client must have the scope openid")
	}
	id, err := provider.VerifierContext(goidc.ClientContext(ctx, f.client), &goidc.Config{ClientID: clientID}).Verify(ctx, raw)
	if err != nil {
		return "", fmt.Errorf("oidc: the ID token is not valid: %w", err)
	}
	if p.Nonce == "" || subtle.ConstantTimeCompare([]byte(p.Nonce), []byte(id.Nonce)) != 1 {
		return "", fmt.Errorf("%w (nonce)", ErrState)
	}
	return raw, nil
}

// config returns what the provider says about itself, which is remembered.
func (f *Flow) config(ctx context.Context, issuer, clientID, redirectURL string) (*oauth2.Config, *goidc.Provider, error) {
	f.mu.Lock()
	provider := f.providers[issuer]
	f.mu.Unlock()
	if provider == nil {
		if err := CheckIssuer(issuer); err != nil {
			return nil, nil, err
		}
		var err error
		// The keys are fetched for later callers, too: not with this caller's context.
		if provider, err = goidc.NewProvider(goidc.ClientContext(context.WithoutCancel(ctx), f.client), issuer); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		f.mu.Lock()
		if len(f.providers) >= maxIssuers {
			clear(f.providers)
		}
		f.providers[issuer] = provider
		f.mu.Unlock()
	}
	return &oauth2.Config{
		ClientID: clientID, Endpoint: provider.Endpoint(), RedirectURL: redirectURL, Scopes: []string{goidc.ScopeOpenID, "profile", "email"},
	}, provider, nil
}
