package auth

import (
	"crypto/x509"
	"errors"
	"fmt"
)

// Authorities are the certificate authorities of a pool: one, or two while it is being
// replaced by another.
type Authorities struct {
	// Current signs the certificates of managers.
	Current *Authority
	// Next is trusted and signs the certificates of nodes, so that all parties know it
	// when it takes the place of Current. nil: none.
	Next *Authority
	// Previous is that which Current has replaced. It is still trusted, and signs
	// nothing: its key is gone. nil: none.
	Previous *x509.Certificate
}

// Trusted returns the certificates of all authorities, that of Current first.
func (a *Authorities) Trusted() []*x509.Certificate {
	out := []*x509.Certificate{a.Current.cert}
	if a.Next != nil {
		out = append(out, a.Next.cert)
	}
	if a.Previous != nil {
		out = append(out, a.Previous)
	}
	return out
}

// PEM returns the certificates of all authorities, which are public.
func (a *Authorities) PEM() []byte {
	var out []byte
	for _, c := range a.Trusted() {
		out = append(out, EncodeCertificate(c)...)
	}
	return out
}

// Pool returns the set by which to verify a certificate.
func (a *Authorities) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range a.Trusted() {
		p.AddCert(c)
	}
	return p
}

// NodeIssuer returns the authority that signs the certificates of nodes.
func (a *Authorities) NodeIssuer() *Authority {
	if a.Next != nil {
		return a.Next
	}
	return a.Current
}

// ParseAuthority parses the certificate of an authority in DER.
func ParseAuthority(der []byte) (*x509.Certificate, error) {
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("auth: authority's certificate: %w", err)
	}
	if !c.IsCA {
		return nil, errors.New("auth: the certificate is not that of an authority")
	}
	return c, nil
}
