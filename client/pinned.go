package client

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// PinnedDialer returns what an http.Transport dials managers with (its
// DialTLSContext) whose authority is known by its hash only. cfg says the rest,
// and is not changed.
func PinnedDialer(hash string, cfg *tls.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		c := cfg.Clone()
		c.ServerName = host
		c.InsecureSkipVerify = true // VerifyConnection does it, with the authority that the hash names
		c.VerifyConnection = func(s tls.ConnectionState) error {
			return auth.VerifyPinned(hash, s.PeerCertificates, host, time.Now())
		}
		return (&tls.Dialer{Config: c}).DialContext(ctx, network, addr)
	}
}
