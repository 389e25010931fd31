// Package oidc verifies the ID tokens of an OpenID provider, and says which role and
// tenant of the pool their claims stand for.
package oidc

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	goidc "github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/time/rate"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const (
	// maxAge bounds the age of an ID token: it is exchanged at once, and an older one may
	// have been stolen. maxSkew is the difference of the clocks that is tolerated.
	maxAge  = 10 * time.Minute
	maxSkew = time.Minute
)

// MinSession is the shortest lifetime of what a person gets for an ID token: as long as
// the token is remembered, so that it counts once.
const MinSession = maxAge + maxSkew

// Grant gives the persons that have a claim a role.
type Grant struct {
	Claim, Value string // Value "*": any
	Role         dxpuv1.Role
	Tenant       string // of ROLE_TENANT; "*": named by the claim
}

var tenantName = regexp.MustCompile(`^[a-z0-9._-]{1,63}$`)

// ParseGrant reads CLAIM=VALUE:ROLE, where ROLE is admin, operator or tenant/NAME.
func ParseGrant(text string) (Grant, error) {
	at := strings.LastIndexByte(text, ':')
	if at < 0 {
		return Grant{}, fmt.Errorf("%q has no role: write CLAIM=VALUE:ROLE", text)
	}
	claim, value, ok := strings.Cut(text[:at], "=")
	if !ok || claim == "" || value == "" {
		return Grant{}, fmt.Errorf("%q has no claim and value: write CLAIM=VALUE:ROLE", text)
	}
	g := Grant{Claim: claim, Value: value}
	role, tenant, _ := strings.Cut(text[at+1:], "/")
	switch {
	case role == "admin" && tenant == "":
		g.Role = dxpuv1.Role_ROLE_ADMIN
	case role == "operator" && tenant == "":
		g.Role = dxpuv1.Role_ROLE_OPERATOR
	case role == "tenant" && (tenant == "*" || tenantName.MatchString(tenant)):
		g.Role, g.Tenant = dxpuv1.Role_ROLE_TENANT, tenant
	default:
		return Grant{}, fmt.Errorf("%q: the role must be admin, operator or tenant/NAME", text)
	}
	return g, nil
}

// Config configures a Provider.
type Config struct {
	Issuer   string // URL, https except on this machine
	ClientID string // the audience of the ID tokens
	Grants   []Grant
	Now      func() time.Time // nil: time.Now
}

// Check returns an error that says what is wrong with the configuration.
func (c *Config) Check() error {
	switch {
	case c.ClientID == "":
		return errors.New("the client ID is missing")
	case len(c.Grants) == 0:
		return errors.New("no claim has a role, so no sign-in could succeed")
	}
	return CheckIssuer(c.Issuer)
}

func isLocal(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Provider verifies ID tokens. It asks the provider for its keys when it first needs them,
// and again for a key that it does not know.
type Provider struct {
	cfg    Config
	client *http.Client

	connecting chan struct{}          // has an element while a caller connects
	verifier   *goidc.IDTokenVerifier // guarded by connecting; nil: the provider has not answered yet
}

// New returns a Provider for a configuration that Check has accepted.
func New(cfg Config) *Provider {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	client := newClient(rate.NewLimiter(rate.Every(requestInterval), requestBurst), cfg.Now)
	return &Provider{cfg: cfg, client: client, connecting: make(chan struct{}, 1)}
}

// Issuer and ClientID are what a program needs to sign a person in.
func (p *Provider) Issuer() string   { return p.cfg.Issuer }
func (p *Provider) ClientID() string { return p.cfg.ClientID }

// ErrUnavailable reports that the provider did not answer: the token may be good.
var ErrUnavailable = errors.New("oidc: the provider does not answer")

// connect returns the verifier.
func (p *Provider) connect(ctx context.Context) (*goidc.IDTokenVerifier, error) {
	select {
	case p.connecting <- struct{}{}:
		defer func() { <-p.connecting }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	}
	if p.verifier != nil {
		return p.verifier, nil
	}
	provider, err := goidc.NewProvider(goidc.ClientContext(ctx, p.client), p.cfg.Issuer)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	// The keys are fetched for later callers, too: not with this caller's context.
	keys := goidc.ClientContext(context.WithoutCancel(ctx), p.client)
	p.verifier = provider.VerifierContext(keys, &goidc.Config{ClientID: p.cfg.ClientID, Now: p.cfg.Now})
	return p.verifier, nil
}

// Connect asks the provider for its description, if it has not given it yet.
func (p *Provider) Connect(ctx context.Context) error {
	_, err := p.connect(ctx)
	return err
}

// Person is the subject of an ID token, with its role.
type Person struct {
	Subject string // the provider's ID
	Name    string // for other people: the mail address, if the token has one
	Role    dxpuv1.Role
	Tenant  string
	// TokenHash is the hash of the ID token's claims. The text of a token has no hash of its
	// own: spaces, other last bits, and the JSON form do not change what is signed.
	TokenHash [sha256.Size]byte
}

// ErrNoGrant reports that a person is known but has no role.
var ErrNoGrant = errors.New("oidc: no claim of the person has a role in this pool")

// Verify checks an ID token: its signature by a key of the provider, issuer, audience,
// party, expiry and age. It returns the person with the role of the first grant that applies.
func (p *Provider) Verify(ctx context.Context, raw string) (Person, error) {
	verifier, err := p.connect(ctx)
	if err != nil {
		return Person{}, err
	}
	token, err := verifier.Verify(ctx, raw)
	switch {
	case err != nil && strings.HasPrefix(err.Error(), "failed to verify signature: fetching keys"):
		return Person{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	case err != nil:
		return Person{}, fmt.Errorf("oidc: the ID token is not valid: %w", err)
	}
	now := p.cfg.Now()
	if now.Sub(token.IssuedAt) > maxAge || token.IssuedAt.Sub(now) > maxSkew {
		return Person{}, fmt.Errorf("oidc: the ID token was issued at %s, which is not within the last %s", token.IssuedAt.UTC().Format(time.RFC3339), maxAge)
	}
	var signed json.RawMessage
	var claims map[string]any
	if err := errors.Join(token.Claims(&signed), token.Claims(&claims)); err != nil || token.Subject == "" {
		return Person{}, errors.New("oidc: the ID token has no subject")
	}
	// OpenID Connect Core, 3.1.3.7: the party for which the provider has issued the token.
	if party, named := claims["azp"]; named && party != p.cfg.ClientID || !named && len(token.Audience) > 1 {
		return Person{}, fmt.Errorf("oidc: the ID token was issued for another client (azp %v, aud %q)", party, token.Audience)
	}
	person := Person{Subject: token.Subject, Name: token.Subject, TokenHash: sha256.Sum256(signed)}
	if mail, ok := claims["email"].(string); ok && claims["email_verified"] == true {
		person.Name = mail
	} else {
		delete(claims, "email") // a person may choose it at some providers: it decides on nothing
	}
	for _, g := range p.cfg.Grants {
		if value, ok := g.appliesTo(claims); ok {
			person.Role, person.Tenant = g.Role, g.Tenant
			if g.Tenant == "*" {
				person.Tenant = value
			}
			return person, nil
		}
	}
	return person, ErrNoGrant
}

// appliesTo returns the value of the claim that a grant is for.
func (g *Grant) appliesTo(claims map[string]any) (string, bool) {
	var values []string
	switch v := claims[g.Claim].(type) {
	case string:
		values = []string{v}
	case []any:
		for _, one := range v {
			if s, ok := one.(string); ok {
				values = append(values, s)
			}
		}
	}
	i := slices.IndexFunc(values, func(v string) bool {
		return (g.Value == "*" || g.Value == v) && (g.Tenant != "*" || tenantName.MatchString(v))
	})
	if i < 0 {
		return "", false
	}
	return values[i], true
}
