package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// handshakeTimeout bounds a TLS handshake, which takes milliseconds.
const handshakeTimeout = 5 * time.Second

// newTransport returns the transport of a configuration. It speaks HTTP/1.1: a
// connection to a manager that hangs is closed with the request that timed out,
// where HTTP/2 would keep using it.
func newTransport(cfg *Config, scheme string) (http.RoundTripper, error) {
	if cfg.CAHash == "" && cfg.CA == nil && cfg.Certificate == nil {
		return http.DefaultTransport, nil
	}
	t := &http.Transport{
		MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: handshakeTimeout,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, GetClientCertificate: cfg.Certificate},
	}
	var roots *x509.CertPool
	if cfg.CA != nil {
		roots = x509.NewCertPool()
		if !roots.AppendCertsFromPEM(cfg.CA) {
			return nil, errors.New("the PEM of the authority contains no certificate")
		}
	}
	switch {
	case cfg.CAHash != "" && scheme == "http":
		return nil, errors.New("the hash of an authority needs a manager with TLS: write its URL with https")
	case cfg.CAHash != "":
		if err := auth.CheckHash(cfg.CAHash); err != nil {
			return nil, fmt.Errorf("hash of the authority: %w", err)
		}
		t.DialTLSContext = pinnedDialer(cfg.CAHash, roots, t.TLSClientConfig)
	default:
		t.TLSClientConfig.RootCAs = roots
	}
	return t, nil
}

// pinnedDialer returns a DialTLSContext for managers of which an authority is known by
// its hash, or is among roots; nil: none. cfg holds the other TLS settings and is not
// changed.
func pinnedDialer(hash string, roots *x509.CertPool, cfg *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		c := cfg.Clone()
		c.ServerName = host
		c.InsecureSkipVerify = true // VerifyConnection verifies, with the authority that the hash names
		c.VerifyConnection = func(s tls.ConnectionState) error {
			err := auth.VerifyPinned(hash, s.PeerCertificates, host, time.Now())
			if err != nil && roots != nil && len(s.PeerCertificates) > 0 {
				known := x509.VerifyOptions{Roots: roots, DNSName: host, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
				if _, err := s.PeerCertificates[0].Verify(known); err == nil {
					return nil
				}
			}
			if err != nil {
				err = &pinError{err}
			}
			return err
		}
		return (&tls.Dialer{Config: c}).DialContext(ctx, network, addr)
	}
}

// pinError says that a certificate is not of the pinned authority.
type pinError struct{ error }

func (e *pinError) Unwrap() error { return e.error }

// untrusted reports whether an error says that the certificate of a manager does not hold.
// Another attempt within seconds does not help then.
func untrusted(err error) bool {
	var pin *pinError
	var chain *tls.CertificateVerificationError
	return errors.As(err, &pin) || errors.As(err, &chain)
}
