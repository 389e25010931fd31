package auth

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"net/url"
	"strings"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const (
	// authorityLife is the lifetime of an authority: longer than a pool's hardware.
	authorityLife = 10 * 365 * 24 * time.Hour
	// clockSkew is how far a node's clock may be behind the manager's.
	clockSkew = 5 * time.Minute
	// maxRequestPEM bounds a certificate request, in bytes. A request with an
	// Ed25519 or ECDSA key has about 500.
	maxRequestPEM = 8 << 10
	pemCert       = "CERTIFICATE"
	pemRequest    = "CERTIFICATE REQUEST"
	// HashPrefix is the prefix of an authority's hash in text.
	HashPrefix = "sha256:"
)

// Authority is the certificate authority of one pool. It issues client certificates
// to nodes and server certificates to managers.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority for a pool, with an ECDSA key on P-256.
func NewAuthority(cluster string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("auth: authority's key: %w", err)
	}
	t := template(pkix.Name{CommonName: "DxPU pool " + cluster}, now, authorityLife)
	t.IsCA, t.MaxPathLenZero, t.BasicConstraintsValid = true, true, true
	t.KeyUsage = x509.KeyUsageCertSign
	a := &Authority{t, key}
	a.cert, err = a.sign(t, key.Public())
	return a, err
}

// LoadAuthority returns the authority that Marshal encoded.
func LoadAuthority(cert, key []byte) (*Authority, error) {
	c, err := x509.ParseCertificate(cert)
	if err != nil {
		return nil, fmt.Errorf("auth: authority's certificate: %w", err)
	}
	k, err := x509.ParseECPrivateKey(key)
	if err != nil {
		return nil, errors.New("auth: authority's key cannot be read") // the cause might quote it
	}
	if !k.PublicKey.Equal(c.PublicKey) || !c.IsCA {
		return nil, errors.New("auth: authority's key and certificate do not belong together")
	}
	return &Authority{c, k}, nil
}

// Marshal returns the certificate and the key in DER. The key is secret.
func (a *Authority) Marshal() (cert, key []byte, err error) {
	key, err = x509.MarshalECPrivateKey(a.key)
	if err != nil {
		return nil, nil, errors.New("auth: authority's key cannot be encoded")
	}
	return a.cert.Raw, key, nil
}

// Certificate returns the authority's own certificate.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// PEM returns the authority's own certificate, which is public.
func (a *Authority) PEM() []byte { return []byte(EncodeCertificate(a.cert)) }

// Hash returns the hash of the authority's public key, by which nodes pin it.
func (a *Authority) Hash() string { return HashOf(a.cert) }

// HashOf returns "sha256:" and the SHA-256 of a SubjectPublicKeyInfo in hexadecimal.
func HashOf(c *x509.Certificate) string {
	h := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return HashPrefix + hex.EncodeToString(h[:])
}

// CheckHash returns an error if s does not have the form of a hash.
func CheckHash(s string) error {
	raw, err := hex.DecodeString(strings.TrimPrefix(s, HashPrefix))
	if err != nil || len(raw) != sha256.Size || !strings.HasPrefix(s, HashPrefix) {
		return fmt.Errorf("%q is not a hash: want %q and 64 hexadecimal digits, as the manager prints it", s, HashPrefix)
	}
	return nil
}

func template(name pkix.Name, now time.Time, life time.Duration) *x509.Certificate {
	serial := make([]byte, 16)
	_, _ = rand.Read(serial) // never fails
	serial[0] = serial[0]&0x7f | 0x40
	return &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(serial), Subject: name,
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(life),
	}
}

// RenewAt returns when to renew a certificate: after two thirds of its lifetime.
func RenewAt(c *x509.Certificate) time.Time {
	begin := c.NotBefore.Add(clockSkew)
	return begin.Add(c.NotAfter.Sub(begin) * 2 / 3)
}

// Serial returns a certificate's serial number in hexadecimal digits.
func Serial(c *x509.Certificate) string { return c.SerialNumber.Text(16) }

// NodeURI returns the name of a node in its certificate,
// "dxpu://CLUSTER/host/NODE" or "dxpu://CLUSTER/box/NODE".
func NodeURI(cluster string, kind dxpuv1.NodeKind, node string) *url.URL {
	return &url.URL{Scheme: "dxpu", Host: cluster, Path: "/" + RoleWord(NodeRole(kind)) + "/" + node}
}

// ParseRequest parses and checks a PKCS #10 certificate request (RFC 2986): one PEM
// block, signed by its own key, which is ECDSA on P-256 or P-384, or Ed25519.
func ParseRequest(text string) (*x509.CertificateRequest, error) {
	if len(text) > maxRequestPEM {
		return nil, fmt.Errorf("longer than %d bytes", maxRequestPEM)
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != pemRequest || strings.TrimSpace(string(rest)) != "" {
		return nil, errors.New("not one PEM block of the type " + pemRequest)
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, errors.New("not a PKCS #10 certificate request")
	}
	switch k := req.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() && k.Curve != elliptic.P384() {
			return nil, errors.New("the curve of its key is neither P-256 nor P-384")
		}
	case ed25519.PublicKey:
	default:
		return nil, errors.New("its key is neither ECDSA nor Ed25519")
	}
	if err := req.CheckSignature(); err != nil {
		return nil, errors.New("its signature does not match its key")
	}
	return req, nil
}

// IssueNode issues a client certificate with a node's name for the key of a request.
// It ignores everything else in the request.
func (a *Authority) IssueNode(req *x509.CertificateRequest, name *url.URL, now time.Time, life time.Duration) (*x509.Certificate, error) {
	t := template(pkix.Name{CommonName: name.Path[1:]}, now, life)
	t.URIs = []*url.URL{name}
	t.KeyUsage, t.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(t, req.PublicKey)
}

// IssueServer issues a manager's certificate with a new key for DNS names and IPs.
func (a *Authority) IssueServer(names []string, now time.Time, life time.Duration) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("auth: server key: %w", err)
	}
	t := template(pkix.Name{CommonName: "DxPU manager"}, now, life)
	t.KeyUsage, t.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, n := range names {
		if ip, err := netip.ParseAddr(n); err == nil {
			t.IPAddresses = append(t.IPAddresses, ip.Unmap().WithZone("").AsSlice())
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	cert, err := a.sign(t, key.Public())
	if err != nil {
		return nil, err
	}
	// The chain has the authority, so that a node can compare its hash.
	return &tls.Certificate{Certificate: [][]byte{cert.Raw, a.cert.Raw}, PrivateKey: key, Leaf: cert}, nil
}

func (a *Authority) sign(t *x509.Certificate, public any) (*x509.Certificate, error) {
	if t.NotAfter.After(a.cert.NotAfter) {
		t.NotAfter = a.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("auth: issue certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("auth: issue certificate: %w", err)
	}
	return cert, nil
}

// EncodeCertificate returns a certificate in PEM form.
func EncodeCertificate(c *x509.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: c.Raw}))
}

// NodeOf returns the kind, "host" or "box", and ID of the node in a certificate.
func NodeOf(c *x509.Certificate, cluster string) (kind, node string, err error) {
	if len(c.URIs) != 1 || c.URIs[0].Scheme != "dxpu" || c.URIs[0].Host != cluster {
		return "", "", fmt.Errorf("auth: not a certificate of a node of the pool %s", cluster)
	}
	kind, node, ok := strings.Cut(strings.TrimPrefix(c.URIs[0].Path, "/"), "/")
	if !ok || node == "" {
		return "", "", errors.New("auth: the certificate names no node")
	}
	return kind, node, nil
}

// VerifyPinned checks the certificate chain of a server whose authority is known
// only by its hash. The chain must contain the authority, and the authority must
// have issued the first certificate, for the name. All must be valid at now.
func VerifyPinned(hash string, chain []*x509.Certificate, name string, now time.Time) error {
	if len(chain) == 0 {
		return errors.New("auth: the manager sent no certificate")
	}
	roots := x509.NewCertPool()
	found := false
	for _, c := range chain[1:] {
		if c.IsCA && HashOf(c) == hash {
			roots.AddCert(c)
			found = true
		}
	}
	if !found {
		return fmt.Errorf("auth: the manager's authority is not the one with the hash %s: it is another pool's manager, or an attacker intercepts the connection", hash)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: roots, DNSName: name, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}

// NewRequest makes a key and a certificate request in PEM. name is informative: the
// authority decides which name the certificate gets.
func NewRequest(name string) (request string, key *ecdsa.PrivateKey, err error) {
	key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", nil, fmt.Errorf("auth: key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
	if err != nil {
		return "", nil, fmt.Errorf("auth: certificate request: %w", err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: pemRequest, Bytes: der})), key, nil
}
