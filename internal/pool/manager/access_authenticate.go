package manager

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/client"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// Open says what callers without a credential may do.
type Open int

const (
	// OpenNever: nothing but enrol nodes.
	OpenNever Open = iota
	// OpenLoopback: everything, where the call comes from the same machine.
	OpenLoopback
	// OpenInsecure: everything, wherever the call comes from.
	OpenInsecure
)

func unauthenticated(format string, args ...any) error {
	return connect.NewError(connect.CodeUnauthenticated, fmt.Errorf(format, args...))
}

// errNoCredential is what a caller without a credential learns.
func errNoCredential() error {
	return unauthenticated("no credential: send \"Authorization: Bearer TOKEN\" (dxpu: --token-file or $DXPU_TOKEN)")
}

// errToken is all that a caller with a bad token learns: whether it never
// existed, has expired, was deleted or lost its tenant is the operator's to tell.
func errToken() error {
	return unauthenticated("the token is not valid, or no longer valid: ask an admin for a new one")
}

// Authenticate finds out who sent a request: a node by its certificate of the
// pool's own authority or by its credential, a person or a program by a token.
// A request without any of these is of the anonymous caller: ROLE_ADMIN where
// the manager is open to it, else ROLE_UNSPECIFIED. The error of a wrong
// credential is a *connect.Error with UNAUTHENTICATED.
func (m *Manager) Authenticate(r *http.Request) (auth.Identity, error) {
	if leaf := verifiedLeaf(r.TLS); leaf != nil {
		return m.certificateCaller(leaf)
	}
	header := r.Header.Get("Authorization")
	if header == "" {
		return m.anonymous(r), nil
	}
	secret, ok := auth.Bearer(header)
	if !ok {
		return auth.Identity{}, unauthenticated("Authorization: must have the form \"Bearer TOKEN\"")
	}
	if id, ok := auth.ParseToken(secret); ok {
		return m.tokenCaller(id, secret)
	}
	return m.credentialCaller(secret)
}

// anonymous is the caller without a credential. A page of another site that a
// browser on this machine shows is not the person at the browser.
func (m *Manager) anonymous(r *http.Request) auth.Identity {
	id := auth.Identity{Actor: auth.Anonymous}
	switch m.cfg.Open {
	case OpenInsecure:
		id.Role = dxpuv1.Role_ROLE_ADMIN
	case OpenLoopback:
		if isLoopback(r.RemoteAddr) && addressedByNumber(r.Host) && http.NewCrossOriginProtection().Check(r) == nil {
			id.Role = dxpuv1.Role_ROLE_ADMIN
		}
	case OpenNever:
	}
	return id
}

func isLoopback(addr string) bool {
	a, err := netip.ParseAddrPort(addr)
	return err == nil && a.Addr().Unmap().IsLoopback()
}

// addressedByNumber reports whether a Host header is an address or "localhost":
// a site that lets its own name point at this machine has its name there.
func addressedByNumber(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return host == "localhost" || net.ParseIP(host) != nil
}

// tokenCaller finds the owner of a token.
func (m *Manager) tokenCaller(id, text string) (caller auth.Identity, err error) {
	err = m.peek(func(t *tx) error {
		r := t.tokens.get(id)
		if r == nil {
			auth.Matches(text, auth.Hash(text)) // as long as for one that exists
			return errToken()
		}
		if !auth.Matches(text, r.SecretHash) || !t.tokenIsGood(r) {
			return errToken()
		}
		caller = auth.Identity{Actor: r.ID, Role: r.Role, Tenant: r.Tenant}
		return nil
	})
	return caller, err
}

// tokenIsGood reports whether a token has neither expired nor outlived its
// tenant. A tenant that was made anew under an old name is another one.
func (t *tx) tokenIsGood(r *tokenRecord) bool {
	if !r.ExpireTime.IsZero() && !t.now.Before(r.ExpireTime) {
		return false
	}
	if r.Role != dxpuv1.Role_ROLE_TENANT || r.Tenant == defaultTenant {
		return true
	}
	tenant := t.tenants.get(r.Tenant)
	return tenant != nil && !r.CreateTime.Before(tenant.CreateTime)
}

// credentialCaller finds the node that has a credential.
func (m *Manager) credentialCaller(secret string) (caller auth.Identity, err error) {
	hash := string(auth.Hash(secret))
	err = m.peek(func(t *tx) error {
		n := t.nodes.get(t.nodeByCredential[hash])
		if n == nil || !auth.Matches(secret, n.CredentialHash) || len(n.Certificates) > 0 {
			return errCredential()
		}
		caller = nodeCaller(n)
		return nil
	})
	return caller, err
}

func nodeCaller(n *nodeRecord) auth.Identity {
	return auth.Identity{Actor: n.ID, Role: auth.NodeRole(n.Kind), Node: n.ID}
}

// certificateCaller finds the node of a certificate that the handshake has
// verified. What can have happened since then is looked at with each call.
func (m *Manager) certificateCaller(c *x509.Certificate) (caller auth.Identity, err error) {
	err = m.peek(func(t *tx) error {
		kind, id, err := auth.NodeOf(c, t.meta.ClusterID)
		if err != nil || t.now.Before(c.NotBefore) || t.now.After(c.NotAfter) {
			return errCertificate()
		}
		n := t.nodes.get(id)
		if n == nil || auth.RoleWord(auth.NodeRole(n.Kind)) != kind || !slices.Contains(n.Certificates, auth.Serial(c)) {
			return errCertificate()
		}
		caller = nodeCaller(n)
		return nil
	})
	return caller, err
}

// errCertificate is all that the owner of a bad certificate learns.
func errCertificate() error {
	return unauthenticated("the certificate is of another pool, has expired or was revoked: enrol again with a join token")
}

// call is one request of the API, for the audit log and for streams that
// outlive what their caller may do.
type call struct {
	caller    auth.Identity
	request   *http.Request
	procedure string
	peer      string
	msg       proto.Message // nil: not read
	target    string        // what a transaction made, where the request does not name it
	changes   bool
	recorded  bool // a transaction has the audit entry
}

type callKey struct{}

// callFrom returns the call that a context belongs to, nil for none.
func callFrom(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// admit authenticates a request and returns the context of its call.
func (m *Manager) admit(r *http.Request) (context.Context, error) {
	c := &call{request: r, procedure: r.URL.Path, peer: r.RemoteAddr, caller: auth.Identity{Actor: auth.Anonymous}}
	now := m.cfg.Now()
	id, err := m.Authenticate(r)
	if rule, _ := auth.Lookup(c.procedure); connect.CodeOf(err) == connect.CodeUnauthenticated && rule.Anonymous != auth.Deny {
		id, err = auth.Identity{Actor: auth.Anonymous}, nil // a node with an old credential enrols again
	}
	if err != nil {
		if connect.CodeOf(err) != connect.CodeUnauthenticated {
			return nil, err
		}
		if err := m.limited(r.Context(), c, m.limits.countUnauthenticated(c, now)); err != nil {
			return nil, err
		}
		m.auditRefusal(r.Context(), c, err)
		return nil, err
	}
	c.caller = id
	if err := m.limited(r.Context(), c, m.limits.admit(c, now)); err != nil {
		return nil, err
	}
	return context.WithValue(auth.With(r.Context(), id), callKey{}, c), nil
}

// Protect lets a handler see only requests whose sender is known, or that carry
// no credential; auth.From tells the handler whose they are.
func (m *Manager) Protect(next http.Handler) http.Handler {
	errs := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, err := m.admit(r)
		if connect.CodeOf(err) == connect.CodeUnavailable {
			if header, refusal := (leaderOnly{m}).check(); refusal != nil {
				w.Header().Set(client.LeaderHeader, header) // nothing was done: who calls can repeat it there
			}
		}
		switch {
		case err == nil:
			m.limits.boundBody(w, r, auth.From(ctx).Role != dxpuv1.Role_ROLE_UNSPECIFIED)
			next.ServeHTTP(w, r.WithContext(ctx))
		case errs.IsSupported(r):
			_ = errs.Write(w, r, err) // the caller has gone
		case connect.CodeOf(err) == connect.CodeResourceExhausted:
			w.Header().Set("Retry-After", retryAfter(err))
			http.Error(w, message(err), http.StatusTooManyRequests)
		case connect.CodeOf(err) == connect.CodeUnauthenticated:
			http.Error(w, message(err), http.StatusUnauthorized)
		default:
			http.Error(w, message(err), http.StatusServiceUnavailable)
		}
	})
}

// retryAfter is when a caller may try again, in seconds.
func retryAfter(err error) string {
	var ce *connect.Error
	if errors.As(err, &ce) {
		return cmp.Or(ce.Meta().Get("Retry-After"), "1")
	}
	return "1"
}

// message is an error's text without the name of its code.
func message(err error) string {
	var ce *connect.Error
	if errors.As(err, &ce) {
		return ce.Message()
	}
	return err.Error()
}
