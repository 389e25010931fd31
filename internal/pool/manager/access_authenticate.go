package manager

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
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

// Open selects what callers without a credential may do.
type Open int

const (
	// OpenNever allows them only to enrol nodes.
	OpenNever Open = iota
	// OpenLoopback allows everything to callers on the same machine.
	OpenLoopback
	// OpenInsecure allows everything to every caller.
	OpenInsecure
)

func unauthenticated(format string, args ...any) error {
	return errorf(connect.CodeUnauthenticated, format, args...)
}

func errNoCredential() error {
	return unauthenticated("no credential: send \"Authorization: Bearer TOKEN\" (dxpu: --token-file or $DXPU_TOKEN)")
}

// errToken is the answer to every caller with a bad token. It does not say
// whether the token never existed, has expired, was deleted or has lost its
// tenant: only an operator may know.
func errToken() error {
	return unauthenticated("the token is not valid, or no longer valid: ask an admin for a new one")
}

// Authenticate identifies the sender of a request: a node by a certificate of
// the pool's authority or by its credential, a person or a program by a token.
// A request without any of these comes from the anonymous caller, with
// ROLE_ADMIN if Config.Open allows it, else ROLE_UNSPECIFIED. The error of a
// wrong credential is a *connect.Error with UNAUTHENTICATED.
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

// anonymous returns the identity of a caller without a credential. It refuses
// the trust of OpenLoopback to requests that a page of another site makes in a
// browser on this machine.
func (m *Manager) anonymous(r *http.Request) auth.Identity {
	id := auth.Identity{Actor: auth.Anonymous}
	switch m.cfg.Open {
	case OpenInsecure:
		id.Role = dxpuv1.Role_ROLE_ADMIN
	case OpenLoopback:
		if isLoopback(r.RemoteAddr) && addressedByNumber(r.Host) && http.NewCrossOriginProtection().Check(r) == nil && !readByOtherSite(r) {
			id.Role = dxpuv1.Role_ROLE_ADMIN
		}
	case OpenNever:
	}
	return id
}

// readByOtherSite reports whether a browser sends a read for a page of another site.
// http.CrossOriginProtection lets those pass, because the page cannot see the answer;
// but it could measure how long the answer is or takes.
func readByOtherSite(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return false
	}
	return true
}

func isLoopback(addr string) bool {
	a, err := netip.ParseAddrPort(addr)
	return err == nil && a.Addr().Unmap().IsLoopback()
}

// addressedByNumber reports whether a Host header is an IP address or "localhost". A
// site that resolves its own name to this machine sends its name there.
func addressedByNumber(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return host == "localhost" || net.ParseIP(host) != nil
}

func (m *Manager) tokenCaller(id, text string) (caller auth.Identity, err error) {
	err = m.peek(func(t *tx) error {
		r := t.tokens.get(id)
		if r == nil {
			auth.Matches(text, auth.Hash(text)) // takes as long as for a token that exists
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

// tokenIsGood reports whether a token has not expired and its tenant still exists. A
// tenant that was created again under the same name is another tenant: its revision
// tells, because the clock may have been set back since.
func (t *tx) tokenIsGood(r *tokenRecord) bool {
	if !r.ExpireTime.IsZero() && !t.now.Before(r.ExpireTime) {
		return false
	}
	if r.Role != dxpuv1.Role_ROLE_TENANT || r.Tenant == defaultTenant {
		return true
	}
	tenant := t.tenants.get(r.Tenant)
	switch {
	case tenant == nil:
		return false
	case tenant.Created != 0 && r.TenantCreated != 0:
		return tenant.Created == r.TenantCreated
	}
	return !r.CreateTime.Before(tenant.CreateTime) // of an earlier version
}

// credentialCaller returns the identity of the node with a credential.
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

// certificateCaller returns the identity of the node of a certificate that the
// TLS handshake has verified. It checks with each call whether the certificate
// has expired or was revoked since.
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

func errCertificate() error {
	return unauthenticated("the certificate is of another pool, has expired or was revoked: enrol again with a join token")
}

// call is one request of the API. The audit log uses it, and streams whose
// caller may lose its rights while they are open.
type call struct {
	caller    auth.Identity
	request   *http.Request
	procedure string
	peer      string
	msg       proto.Message // nil: not read
	target    string        // created by the transaction, if the request does not name it
	changes   bool
	recorded  bool // a transaction has the audit entry

	open  bool  // limits counts it among the open calls of its caller; guarded by limits.mu, as is
	bytes int64 // the part of its body that has arrived
}

type callKey struct{}

// callFrom returns the call of a context, nil for none.
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
		id, err = auth.Identity{Actor: auth.Anonymous}, nil // a node with an old credential may enrol again
	}
	err = m.asLeader(err)
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

// Protect passes a request on if its credential is good or if it has none. The
// handler learns the caller from auth.From.
func (m *Manager) Protect(next http.Handler) http.Handler {
	errs := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, err := m.admit(r)
		if err == nil {
			err = m.limited(ctx, callFrom(ctx), m.limits.openCall(callFrom(ctx)))
		}
		if err != nil {
			m.metrics.call(r.URL.Path, err)
		}
		if connect.CodeOf(err) == connect.CodeUnavailable {
			if header, refusal := (leaderOnly{m}).check(); refusal != nil {
				w.Header().Set(client.LeaderHeader, header) // nothing was done: the caller can repeat it there
			}
		}
		switch {
		case err == nil:
			defer m.limits.closeCall(callFrom(ctx))
			r = r.WithContext(ctx)
			m.limits.boundBody(w, r, mayCall(r))
			next.ServeHTTP(w, r)
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

// retryAfter returns the time in seconds after which a caller may try again.
func retryAfter(err error) string {
	var ce *connect.Error
	if errors.As(err, &ce) {
		return cmp.Or(ce.Meta().Get("Retry-After"), "1")
	}
	return "1"
}

// message returns an error's text without the name of its code.
func message(err error) string {
	var ce *connect.Error
	if errors.As(err, &ce) {
		return ce.Message()
	}
	return err.Error()
}
