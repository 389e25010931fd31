package manager

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

const (
	// authorityID is the record of the pool's certificate authority, which all
	// its managers share.
	authorityID = "authority"
	// defaultCertificateLife bounds the use of a stolen certificate of a node
	// or manager. A node may be away for a third of it.
	defaultCertificateLife = 30 * 24 * time.Hour
)

// secretRecord is the pool's authority, the credentials of deleted nodes, or the check
// value of the join token. It is not changed once stored.
type secretRecord struct {
	Certificate []byte `json:"certificate,omitempty"` // DER
	Key         []byte `json:"key,omitempty"`         // DER
	// Deleted lists the hashes of the credentials of deleted nodes.
	Deleted [][]byte `json:"deleted,omitempty"`
	Check   []byte   `json:"check,omitempty"` // a few bytes of the hash of the join token
}

// ca caches the pool's authority.
type ca struct {
	mu        sync.Mutex // guards the fields below
	raw       *secretRecord
	authority *auth.Authority
}

// authority returns the pool's authority and creates it in the first call of a pool. A
// manager that is not the leader reads it once the leader has created it.
func (m *Manager) authority(ctx context.Context) (a *auth.Authority, err error) {
	err = m.viewIn(ctx, func(t *tx) error {
		a, err = m.ca.load(t)
		return err
	})
	if err != nil && m.cluster != nil && connect.CodeOf(err) == connect.CodeUnavailable {
		return m.readAuthority(ctx)
	}
	if err != nil || a != nil {
		return a, err
	}
	err = m.update(ctx, func(t *tx) error {
		if a, err = m.ca.load(t); err != nil || a != nil {
			return err
		}
		if a, err = auth.NewAuthority(t.meta.ClusterID, t.now); err != nil {
			return err
		}
		r := &secretRecord{}
		if r.Certificate, r.Key, err = a.Marshal(); err != nil {
			return err
		}
		t.secrets.put(authorityID, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("manager: authority: %w", err)
	}
	return a, nil
}

// readAuthority reads the authority that another manager created, once.
func (m *Manager) readAuthority(ctx context.Context) (*auth.Authority, error) {
	m.ca.mu.Lock()
	defer m.ca.mu.Unlock()
	if m.ca.authority != nil {
		return m.ca.authority, nil
	}
	var raw []byte
	if err := m.store.Scan(ctx, secretPrefix+authorityID, func(page map[string][]byte) error {
		raw = page[secretPrefix+authorityID]
		return nil
	}); err != nil {
		return nil, err
	}
	ok := raw != nil
	if !ok {
		return nil, unavailable("the pool has no certificate authority yet; try again in a second")
	}
	r := &secretRecord{}
	if err := decode(raw, r); err != nil {
		return nil, err
	}
	a, err := auth.LoadAuthority(r.Certificate, r.Key)
	if err == nil {
		m.ca.raw, m.ca.authority = r, a
	}
	return a, err
}

// load returns the authority as it is stored, nil for none.
func (c *ca) load(t *tx) (*auth.Authority, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := t.secrets.get(authorityID)
	switch r {
	case nil:
		return nil, nil
	case c.raw:
		return c.authority, nil
	}
	a, err := auth.LoadAuthority(r.Certificate, r.Key)
	if err != nil {
		return nil, err
	}
	c.raw, c.authority = r, a
	return a, nil
}

// Authority returns the certificate of the pool's authority in PEM, and its hash for
// nodes that enrol. It creates the authority in the first call of a pool.
func (m *Manager) Authority(ctx context.Context) (pem []byte, hash string, err error) {
	a, err := m.authority(ctx)
	if err != nil {
		return nil, "", err
	}
	return a.PEM(), a.Hash(), nil
}

// TLSConfig returns the TLS configuration of a listener of the API. Its certificate is
// own or, if that is nil, one of the pool's authority for the names, which is renewed
// in time. It verifies the certificates of nodes, and accepts callers without one, such
// as persons. Handshakes fail until the pool has an authority: see Authority.
func (m *Manager) TLSConfig(names []string, own *tls.Certificate) *tls.Config {
	s := &serverTLS{m: m, names: names, own: own}
	protocols := []string{"h2", "http/1.1"}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: protocols,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			a, cert, err := s.get(hello.Context())
			if err != nil {
				return nil, err
			}
			nodes := x509.NewCertPool()
			nodes.AddCert(a.Certificate())
			return &tls.Config{
				MinVersion: tls.VersionTLS13, NextProtos: protocols, Time: m.cfg.Now,
				Certificates: []tls.Certificate{*cert}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: nodes,
			}, nil
		},
	}
}

// serverTLS holds the certificate by which a manager identifies itself.
type serverTLS struct {
	m     *Manager
	names []string
	own   *tls.Certificate // issued by another authority

	mu    sync.Mutex // guards the fields below
	a     *auth.Authority
	cert  *tls.Certificate
	tried time.Time
}

// get returns the authority of the nodes and the manager's certificate. It
// issues a new certificate after two thirds of the life of the old one.
func (s *serverTLS) get(ctx context.Context) (*auth.Authority, *tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.m.cfg.Now()
	if s.a == nil {
		if now.Sub(s.tried) < time.Second {
			return nil, nil, errors.New("manager: the pool has no certificate authority yet")
		}
		s.tried = now
		a, err := s.m.authority(ctx)
		if err != nil {
			return nil, nil, err
		}
		s.a = a
	}
	if s.own != nil {
		return s.a, s.own, nil
	}
	if s.cert == nil || !now.Before(auth.RenewAt(s.cert.Leaf)) {
		cert, err := s.a.IssueServer(s.names, now, s.m.cfg.CertificateLife)
		if err != nil {
			return nil, nil, err
		}
		s.cert = cert
	}
	return s.a, s.cert, nil
}

// issue creates a certificate for a node. n must be editable. known is the
// serial number of the certificate that the node uses until it has the new one.
func (t *tx) issue(a *auth.Authority, req *x509.CertificateRequest, n *nodeRecord, known string) (string, error) {
	cert, err := a.IssueNode(req, auth.NodeURI(t.meta.ClusterID, n.Kind, n.ID), t.now, t.cfg.CertificateLife)
	if err != nil {
		return "", err
	}
	n.Certificates = []string{auth.Serial(cert)}
	if known != "" {
		n.Certificates = append(n.Certificates, known)
	}
	return auth.EncodeCertificate(cert), nil
}

// parseRequest parses the certificate request of a call; pem may be empty.
func (m *Manager) parseRequest(ctx context.Context, pem string) (*x509.CertificateRequest, *auth.Authority, error) {
	if pem == "" {
		return nil, nil, nil
	}
	req, err := auth.ParseRequest(pem)
	if err != nil {
		return nil, nil, invalid("csr_pem: %v", err)
	}
	a, err := m.authority(ctx)
	return req, a, err
}

func (s *nodeService) Renew(ctx context.Context, req *connect.Request[dxpuv1.RenewRequest]) (*connect.Response[dxpuv1.RenewResponse], error) {
	if req.Msg.CsrPem == "" {
		return nil, invalid("csr_pem: must be set")
	}
	csr, a, err := s.m.parseRequest(ctx, req.Msg.CsrPem)
	if err != nil {
		return nil, apiError(err)
	}
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.RenewResponse) (err error) {
		if err := exists(t, req.Msg.NodeId); err != nil {
			return err
		}
		n := t.nodes.edit(req.Msg.NodeId)
		n.ResourceVersion = t.revision()
		res.CaPem = string(a.PEM())
		res.CertificatePem, err = t.issue(a, csr, n, presented(ctx))
		return err
	})
}

// presented returns the serial number of the certificate of a call, "" for none.
func presented(ctx context.Context) string {
	c := callFrom(ctx)
	if c == nil || c.request == nil {
		return ""
	}
	if leaf := verifiedLeaf(c.request.TLS); leaf != nil {
		return auth.Serial(leaf)
	}
	return ""
}

// verifiedLeaf returns the caller's certificate if the handshake has verified
// it, else nil.
func verifiedLeaf(s *tls.ConnectionState) *x509.Certificate {
	if s == nil || len(s.VerifiedChains) == 0 || len(s.VerifiedChains[0]) == 0 {
		return nil
	}
	return s.VerifiedChains[0][0]
}
