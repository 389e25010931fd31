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
	// The authority that takes the place of this one, and that which this one has
	// replaced, while the authority is rotated. DER.
	NextCertificate     []byte `json:"next_certificate,omitempty"`
	NextKey             []byte `json:"next_key,omitempty"`
	PreviousCertificate []byte `json:"previous_certificate,omitempty"`
	// Step is the last step of a rotation, Steps the number of steps of all rotations,
	// StepTime the time of the last one.
	Step     dxpuv1.AuthorityStep `json:"step,omitempty"`
	Steps    uint64               `json:"steps,omitempty"`
	StepTime time.Time            `json:"step_time,omitzero"`
	// Deleted lists the hashes of the credentials of deleted nodes.
	Deleted [][]byte `json:"deleted,omitempty"`
	Check   []byte   `json:"check,omitempty"` // a few bytes of the hash of the join token
}

// authorities returns the authorities of a record.
func (r *secretRecord) authorities() (a *auth.Authorities, err error) {
	a = &auth.Authorities{}
	a.Current, err = auth.LoadAuthority(r.Certificate, r.Key)
	if err == nil && r.NextCertificate != nil {
		a.Next, err = auth.LoadAuthority(r.NextCertificate, r.NextKey)
	}
	if err == nil && r.PreviousCertificate != nil {
		a.Previous, err = auth.ParseAuthority(r.PreviousCertificate)
	}
	return a, err
}

// ca caches the pool's authorities.
type ca struct {
	mu          sync.Mutex // guards the fields below
	raw         *secretRecord
	authorities *auth.Authorities
}

// authority returns the pool's authorities and creates one in the first call of a pool. A
// manager that is not the leader reads them once the leader has created one.
func (m *Manager) authority(ctx context.Context) (a *auth.Authorities, err error) {
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
		first, err := auth.NewAuthority(t.meta.ClusterID, t.now)
		if err != nil {
			return err
		}
		r := &secretRecord{}
		if r.Certificate, r.Key, err = first.Marshal(); err != nil {
			return err
		}
		a = &auth.Authorities{Current: first}
		t.secrets.put(authorityID, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("manager: authority: %w", err)
	}
	return a, nil
}

// readAuthority reads the authorities that another manager has stored.
func (m *Manager) readAuthority(ctx context.Context) (*auth.Authorities, error) {
	var raw []byte
	if err := m.store.Scan(ctx, secretPrefix+authorityID, func(page map[string][]byte) error {
		raw = page[secretPrefix+authorityID]
		return nil
	}); err != nil {
		return nil, err
	}
	if raw == nil {
		return nil, unavailable("the pool has no certificate authority yet; try again in a second")
	}
	r := &secretRecord{}
	if err := decode(raw, r); err != nil {
		return nil, err
	}
	return r.authorities()
}

// load returns the authorities as they are stored, nil for none.
func (c *ca) load(t *tx) (*auth.Authorities, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := t.secrets.get(authorityID)
	switch r {
	case nil:
		return nil, nil
	case c.raw:
		return c.authorities, nil
	}
	a, err := r.authorities()
	if err != nil {
		return nil, err
	}
	c.raw, c.authorities = r, a
	return a, nil
}

// Authority returns the certificates of the pool's authorities in PEM, and the hash, for
// nodes that enrol, of that which signs the certificates of managers. It creates the
// authority in the first call of a pool.
func (m *Manager) Authority(ctx context.Context) (pem []byte, hash string, err error) {
	a, err := m.authority(ctx)
	if err != nil {
		return nil, "", err
	}
	return a.PEM(), a.Current.Hash(), nil
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
			return &tls.Config{
				MinVersion: tls.VersionTLS13, NextProtos: protocols, Time: m.cfg.Now,
				Certificates: []tls.Certificate{*cert}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: a.Pool(),
			}, nil
		},
	}
}

// serverTLS holds the certificate by which a manager identifies itself.
type serverTLS struct {
	m     *Manager
	names []string
	own   *tls.Certificate // issued by another authority

	mu     sync.Mutex // guards the fields below
	a      *auth.Authorities
	cert   *tls.Certificate
	issuer string // the hash of the authority that signed cert
	tried  time.Time
}

// authorityAge is the age at which a manager that does not lead reads the authorities
// again for a handshake.
const authorityAge = time.Second

// get returns the authorities of the nodes and the manager's certificate. It issues a
// new certificate after two thirds of the life of the old one.
func (s *serverTLS) get(ctx context.Context) (*auth.Authorities, *tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.m.cfg.Now()
	known := s.m.peek(func(t *tx) error { // the leader trusts a new authority at once
		a, err := s.m.ca.load(t)
		if err == nil && a != nil {
			s.a = a
			return nil
		}
		return errors.New("manager: no authority is known")
	})
	if known != nil && now.Sub(s.tried).Abs() >= authorityAge {
		s.tried = now
		a, err := s.m.authority(ctx)
		if err == nil {
			s.a = a
		} else if s.a == nil {
			return nil, nil, err
		}
	}
	if s.a == nil {
		return nil, nil, errors.New("manager: the pool has no certificate authority yet")
	}
	if s.own != nil {
		return s.a, s.own, nil
	}
	if issuer := s.a.Current.Hash(); s.cert == nil || s.issuer != issuer || !now.Before(auth.RenewAt(s.cert.Leaf)) {
		cert, err := s.a.Current.IssueServer(s.names, now, s.m.cfg.CertificateLife)
		if err != nil {
			return nil, nil, err
		}
		s.cert, s.issuer = cert, issuer
	}
	return s.a, s.cert, nil
}

// issue creates a certificate for a node. n must be editable. known is the
// serial number of the certificate that the node uses until it has the new one.
func (t *tx) issue(a *auth.Authorities, req *x509.CertificateRequest, n *nodeRecord, known string) (string, error) {
	signer, step := a.NodeIssuer(), t.authorityRecord().Steps
	if a.Next != nil && !t.authorityIsKnown() {
		signer, step = a.Current, step-1 // the node will be told to renew
	}
	cert, err := signer.IssueNode(req, auth.NodeURI(t.meta.ClusterID, n.Kind, n.ID), t.now, t.cfg.CertificateLife)
	if err != nil {
		return "", err
	}
	n.Certificates = []string{auth.Serial(cert)}
	if known != "" {
		n.Certificates = append(n.Certificates, known)
	}
	n.AuthorityStep = step
	return auth.EncodeCertificate(cert), nil
}

// parseRequest parses the certificate request of a call; pem may be empty.
func (m *Manager) parseRequest(ctx context.Context, pem string) (*x509.CertificateRequest, *auth.Authorities, error) {
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
	csr, _, err := s.m.parseRequest(ctx, req.Msg.CsrPem)
	if err != nil {
		return nil, apiError(err)
	}
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.RenewResponse) (err error) {
		if err := exists(t, req.Msg.NodeId); err != nil {
			return err
		}
		a, err := s.m.ca.load(t) // that of this transaction: a step may have been taken since
		if err != nil {
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
