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
	// authorityID is the record of the pool's authority, which all managers of
	// the pool share.
	authorityID = "authority"
	// defaultCertificateLife of nodes and managers: a stolen one is of use for
	// no longer, and a node may be away for a third of it.
	defaultCertificateLife = 30 * 24 * time.Hour
)

// secretRecord is the pool's authority, or what it knows of deleted nodes. It
// is not changed once stored.
type secretRecord struct {
	Certificate []byte `json:"certificate,omitempty"` // DER
	Key         []byte `json:"key,omitempty"`         // DER
	// Deleted are the hashes of the credentials of nodes that were deleted.
	Deleted [][]byte `json:"deleted,omitempty"`
}

func (r *secretRecord) clone() *secretRecord { c := *r; return &c }

// ca is the pool's authority once it is loaded.
type ca struct {
	mu        sync.Mutex // guards what follows
	raw       *secretRecord
	authority *auth.Authority
}

// authority returns the pool's authority. The first call of a pool makes it. A
// manager that does not lead reads it, once another has made it.
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

// readAuthority reads the authority that another manager made, once.
func (m *Manager) readAuthority(ctx context.Context) (*auth.Authority, error) {
	m.ca.mu.Lock()
	defer m.ca.mu.Unlock()
	if m.ca.authority != nil {
		return m.ca.authority, nil
	}
	records, err := m.store.Load(ctx)
	if err != nil {
		return nil, err
	}
	raw, ok := records[secretPrefix+authorityID]
	if !ok {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("the pool has no certificate authority yet; try again in a second"))
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

// Authority returns the certificate of the pool's authority in PEM, and its hash
// for nodes that enrol. The first call of a pool makes the authority.
func (m *Manager) Authority(ctx context.Context) (pem []byte, hash string, err error) {
	a, err := m.authority(ctx)
	if err != nil {
		return nil, "", err
	}
	return a.PEM(), a.Hash(), nil
}

// TLSConfig returns what a listener of the API needs: a certificate of the
// pool's authority for the names, renewed in time, or the one given, and a look
// at the certificates of nodes. A caller without one is let through: a person.
// Handshakes fail until there is an authority: see Authority.
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

// serverTLS is how a manager shows who it is.
type serverTLS struct {
	m     *Manager
	names []string
	own   *tls.Certificate // that somebody else's authority made

	mu    sync.Mutex // guards what follows
	a     *auth.Authority
	cert  *tls.Certificate
	tried time.Time
}

// get returns the authority of the nodes, and the manager's certificate, which is
// made anew after two thirds of its life.
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

// issue makes a certificate for a node's request, which must be one to change.
// known is the certificate that the node goes on using until it has this one.
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

// parseRequest reads the certificate request of a call; nil: there is none.
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

// Renew implements dxpuv1connect.NodeServiceHandler.
func (s *nodeService) Renew(ctx context.Context, req *connect.Request[dxpuv1.RenewRequest]) (*connect.Response[dxpuv1.RenewResponse], error) {
	if req.Msg.CsrPem == "" {
		return nil, invalid("csr_pem: must be set")
	}
	csr, a, err := s.m.parseRequest(ctx, req.Msg.CsrPem)
	if err != nil {
		return nil, apiError(err)
	}
	res := &dxpuv1.RenewResponse{CaPem: string(a.PEM())}
	err = s.m.update(ctx, func(t *tx) (err error) {
		if err := exists(t, req.Msg.NodeId); err != nil {
			return err
		}
		n := t.nodes.edit(req.Msg.NodeId)
		n.ResourceVersion = t.revision()
		res.CertificatePem, err = t.issue(a, csr, n, presented(ctx))
		return err
	})
	if err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(res), nil
}

// presented is the serial number of the certificate that a call came with, ""
// for none.
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

// verifiedLeaf is a caller's certificate that the handshake verified, nil for none.
func verifiedLeaf(s *tls.ConnectionState) *x509.Certificate {
	if s == nil || len(s.VerifiedChains) == 0 || len(s.VerifiedChains[0]) == 0 {
		return nil
	}
	return s.VerifiedChains[0][0]
}
