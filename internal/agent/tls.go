package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/client"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// maxRenewWait bounds the sleep before a renewal: a clock that was set is
// noticed within it.
const maxRenewWait = time.Hour

// channel is the way to the manager: connections that show the node's
// certificate, made anew when the certificate is. It implements
// http.RoundTripper.
type channel struct {
	hash  string         // of the authority, "": it is in roots
	roots *x509.CertPool // nil: the system's
	clear bool           // the manager's URL is not https

	mu        sync.Mutex // guards what follows
	transport *http.Transport
	cert      *tls.Certificate // nil: none
	pool      *x509.CertPool   // roots, or the authority that enrolment named
}

// newChannel reads how the configuration says to know the manager.
func newChannel(cfg *Config, u *url.URL) (*channel, error) {
	ch := &channel{hash: cfg.CAHash, clear: u.Scheme != "https"}
	if ch.hash != "" {
		if err := auth.CheckHash(ch.hash); err != nil {
			return nil, fmt.Errorf("node: CAHash: %w", err)
		}
		if ch.clear {
			return nil, errors.New("node: CAHash is for a manager with TLS: write its URL with https")
		}
	}
	if len(cfg.CA) > 0 {
		ch.roots = x509.NewCertPool()
		if !ch.roots.AppendCertsFromPEM(cfg.CA) {
			return nil, errors.New("node: CA: no certificate in it")
		}
	}
	ch.use(identity{})
	return ch, nil
}

// use shows an identity's certificate from now on, on new connections.
func (ch *channel) use(id identity) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.cert, ch.pool = nil, ch.roots
	if id.Certificate != "" {
		if c, err := tls.X509KeyPair([]byte(id.Certificate), []byte(id.Key)); err == nil {
			ch.cert = &c
		}
	}
	if ch.pool == nil && id.CA != "" {
		ch.pool = x509.NewCertPool()
		ch.pool.AppendCertsFromPEM([]byte(id.CA))
	}
	old := ch.transport
	ch.transport = ch.newTransport(&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: ch.pool, GetClientCertificate: ch.certificate})
	if old != nil {
		old.CloseIdleConnections()
	}
}

func (ch *channel) newTransport(cfg *tls.Config) *http.Transport {
	t := &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute, TLSClientConfig: cfg, TLSHandshakeTimeout: callTimeout}
	if ch.hash != "" {
		t.DialTLSContext = client.PinnedDialer(ch.hash, cfg)
	}
	return t
}

// certificate is what the node shows. One that has expired would only spoil the
// handshake, and with it the chance to enrol again.
func (ch *channel) certificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.cert == nil || time.Now().After(ch.cert.Leaf.NotAfter) {
		return &tls.Certificate{}, nil
	}
	return ch.cert, nil
}

// RoundTrip implements http.RoundTripper.
func (ch *channel) RoundTrip(r *http.Request) (*http.Response, error) {
	ch.mu.Lock()
	t := ch.transport
	ch.mu.Unlock()
	return t.RoundTrip(r)
}

// refused reports whether an error says that the manager does not take the
// node's certificate. TLS 1.3 tells it after the handshake, as an alert.
func refused(err error) bool {
	return err != nil && strings.Contains(err.Error(), "remote error: tls:") && strings.Contains(err.Error(), "certificate")
}

// request makes a key and a certificate request, both "" where the manager has
// no TLS and a certificate would be of no use.
func (c *Client) request() (csr, key string, err error) {
	if c.channel == nil || c.channel.clear {
		return "", "", nil
	}
	csr, k, err := auth.NewRequest(c.cfg.Name)
	if err != nil {
		return "", "", err
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return "", "", errors.New("node: key cannot be encoded")
	}
	return csr, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), nil
}

// leaf returns an identity's certificate, nil for none.
func (id *identity) leaf() *x509.Certificate {
	block, _ := pem.Decode([]byte(id.Certificate))
	if block == nil {
		return nil
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil
	}
	return c
}

// renewLoop gets a new certificate when two thirds of the old one's life are over.
func (c *Client) renewLoop(ctx context.Context) error {
	pause := newBackoff()
	for {
		c.mu.Lock()
		cert := c.identity.leaf()
		c.mu.Unlock()
		if cert == nil {
			return nil // the manager issues none
		}
		if left := time.Until(auth.RenewAt(cert)); left > 0 {
			timer := time.NewTimer(min(left, maxRenewWait))
			select {
			case <-ctx.Done():
				timer.Stop()
				return ctx.Err()
			case <-timer.C:
			}
			continue
		}
		err := c.renew(ctx)
		if err := c.sessionError(err); err != nil {
			return err
		}
		if err == nil {
			pause.reset()
			continue
		}
		c.log.Warn("the certificate was not renewed", "err", err, "ends", cert.NotAfter)
		if !pause.wait(ctx, nil) {
			return ctx.Err()
		}
	}
}

func (c *Client) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	csr, key, err := c.request()
	if err != nil {
		return err
	}
	c.mu.Lock()
	id := c.identity
	c.mu.Unlock()
	req := connect.NewRequest(&dxpuv1.RenewRequest{NodeId: id.NodeID, CsrPem: csr})
	authorize(req.Header().Set, id)
	res, err := c.api.Renew(ctx, req)
	if err != nil {
		return err
	}
	id.Certificate, id.Key, id.CA = res.Msg.CertificatePem, key, res.Msg.CaPem
	if err := id.check(); err != nil {
		return err
	}
	if err := c.saveIdentity(id); err != nil {
		return &fatalError{err}
	}
	c.mu.Lock()
	c.identity = id
	c.mu.Unlock()
	c.channel.use(id)
	poke(c.rewatch) // on a connection that shows the new one
	c.log.Info("the certificate was renewed", "node", id.NodeID, "ends", id.leaf().NotAfter)
	return nil
}

// check reports a certificate that is not that of the key.
func (id *identity) check() error {
	if id.Certificate == "" {
		return nil
	}
	if _, err := tls.X509KeyPair([]byte(id.Certificate), []byte(id.Key)); err != nil {
		return errors.New("node: the manager sent a certificate that does not fit the key")
	}
	return nil
}
