package manager

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// tlsWorld is a manager behind TLS with a manual clock.
type tlsWorld struct {
	*world
	t     *testing.T
	url   string
	roots *x509.CertPool
}

func newTLSWorld(t *testing.T, life time.Duration) *tlsWorld {
	t.Helper()
	w := &tlsWorld{t: t, world: newWorld(t, Config{CertificateLife: life}), roots: x509.NewCertPool()}
	w.clock.set(time.Now()) // the client's side of TLS uses the wall clock
	ca, _, err := w.m.Authority(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.roots.AppendCertsFromPEM(ca)
	srv := httptest.NewUnstartedServer(w.m.Handler())
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	srv.TLS = w.m.TLSConfig([]string{"127.0.0.1"}, nil)
	srv.StartTLS()
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	w.url = srv.URL
	return w
}

// client is a node's side of one connection.
func (w *tlsWorld) client(certs ...tls.Certificate) dxpuv1connect.NodeServiceClient {
	tr := &http.Transport{TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: w.roots, Time: w.clock.now,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if len(certs) == 0 {
				return &tls.Certificate{}, nil
			}
			return &certs[0], nil
		},
	}}
	w.t.Cleanup(tr.CloseIdleConnections)
	return dxpuv1connect.NewNodeServiceClient(&http.Client{Transport: tr}, w.url)
}

func keyAndRequest(t *testing.T) (*ecdsa.PrivateKey, string) {
	t.Helper()
	csr, key, err := auth.NewRequest("anything")
	if err != nil {
		t.Fatal(err)
	}
	return key, csr
}

func pair(t *testing.T, text string, key *ecdsa.PrivateKey) tls.Certificate {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.X509KeyPair([]byte(text), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// enrolTLS enrols a node and returns its certificate.
func (w *tlsWorld) enrolTLS(kind dxpuv1.NodeKind, name string) tls.Certificate {
	w.t.Helper()
	key, csr := keyAndRequest(w.t)
	res, err := w.client().Enroll(w.t.Context(), connect.NewRequest(&dxpuv1.EnrollRequest{
		JoinToken: "token-for-tests", Kind: kind, Name: name, CsrPem: csr,
	}))
	if err != nil {
		w.t.Fatal(err)
	}
	return pair(w.t, res.Msg.CertificatePem, key)
}

// report makes a report in the name of a node over a connection, and returns its error.
func report(c dxpuv1connect.NodeServiceClient, as string) error {
	_, err := c.Report(context.Background(), connect.NewRequest(&dxpuv1.ReportRequest{State: &dxpuv1.ObservedState{NodeId: as, InstanceId: "x"}}))
	return err
}

// watch watches a node's desired state and returns the error.
func watch(c dxpuv1connect.NodeServiceClient, as string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := c.WatchDesired(ctx, connect.NewRequest(&dxpuv1.WatchDesiredRequest{NodeId: as}))
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	if s.Receive() {
		return nil
	}
	return s.Err()
}

func (w *tlsWorld) renew(c dxpuv1connect.NodeServiceClient, as string) (tls.Certificate, error) {
	key, csr := keyAndRequest(w.t)
	res, err := c.Renew(w.t.Context(), connect.NewRequest(&dxpuv1.RenewRequest{NodeId: as, CsrPem: csr}))
	if err != nil {
		return tls.Certificate{}, err
	}
	return pair(w.t, res.Msg.CertificatePem, key), nil
}

// A node may report only for itself.
func TestANodeThatLies(t *testing.T) {
	w := newTLSWorld(t, 0)
	host := w.client(w.enrolTLS(dxpuv1.NodeKind_NODE_KIND_HOST, "h1"))
	w.enrolTLS(dxpuv1.NodeKind_NODE_KIND_HOST, "h2")
	w.enrolTLS(dxpuv1.NodeKind_NODE_KIND_BOX, "b1")
	if err := report(host, "h1"); err != nil {
		t.Fatalf("the truth: %v", err)
	}
	if err := watch(host, "h1"); err != nil {
		t.Fatalf("its own desired state: %v", err)
	}
	for _, other := range []string{"h2", "b1", "h9", ""} {
		if err := report(host, other); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("a report for %q: %v", other, err)
		}
		if err := watch(host, other); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("the desired state of %q: %v", other, err)
		}
		if _, err := w.renew(host, other); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("a certificate for %q: %v", other, err)
		}
	}
	_ = w.m.view(func(tx *tx) error {
		if tx.connected("h2") || tx.connected("b1") {
			t.Error("a false report made another node count as connected")
		}
		return nil
	})
}

func TestExpiredCertificates(t *testing.T) {
	w := newTLSWorld(t, time.Hour)
	cert := w.enrolTLS(dxpuv1.NodeKind_NODE_KIND_HOST, "h1")
	open := w.client(cert)
	if err := report(open, "h1"); err != nil {
		t.Fatal(err)
	}
	w.clock.pass(59 * time.Minute)
	if err := report(w.client(cert), "h1"); err != nil {
		t.Errorf("in its last minute: %v", err)
	}
	w.clock.pass(2 * time.Minute)
	if err := report(open, "h1"); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("on a connection from before: %v", err)
	}
	if report(w.client(cert), "h1") == nil { // the handshake fails
		t.Error("an expired certificate is accepted on a new connection")
	}
	if _, err := w.renew(w.client(cert), "h1"); err == nil {
		t.Error("an expired certificate is renewed")
	}
}

// Two certificates of a node are valid: the newest one, and the one with which the node
// requested it.
func TestRenewedCertificates(t *testing.T) {
	w := newTLSWorld(t, time.Hour)
	first := w.enrolTLS(dxpuv1.NodeKind_NODE_KIND_BOX, "b1")
	second, err := w.renew(w.client(first), "b1")
	if err != nil {
		t.Fatal(err)
	}
	// The answer may have been lost: the node goes on with the first one and renews it again.
	if err := report(w.client(first), "b1"); err != nil {
		t.Errorf("the first beside the second: %v", err)
	}
	third, err := w.renew(w.client(second), "b1")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		cert tls.Certificate
		good bool
	}{"first": {first, false}, "second": {second, true}, "third": {third, true}} {
		if err := report(w.client(tt.cert), "b1"); (err == nil) != tt.good {
			t.Errorf("the %s after the third was made: %v", name, err)
		}
	}
	if third.Leaf.NotAfter.Sub(w.clock.now()).Round(time.Minute) != time.Hour {
		t.Errorf("the third ends %v", third.Leaf.NotAfter)
	}
}

func TestRevokedCertificates(t *testing.T) {
	w := newTLSWorld(t, 0)
	revoke := map[string]func(){
		"deleted": func() {
			if _, err := w.api().DeleteNode(t.Context(), connect.NewRequest(&dxpuv1.DeleteNodeRequest{NodeId: "h1"})); err != nil {
				t.Fatal(err)
			}
		},
		"enrolled anew": func() {
			w.clock.pass(time.Minute) // it has not reported for long
			w.enrolTLS(dxpuv1.NodeKind_NODE_KIND_HOST, "h1")
		},
		"deleted, and another has its name": func() {
			w.clock.pass(time.Minute)
			if _, err := w.api().DeleteNode(t.Context(), connect.NewRequest(&dxpuv1.DeleteNodeRequest{NodeId: "h1"})); err != nil {
				t.Fatal(err)
			}
			w.enrolTLS(dxpuv1.NodeKind_NODE_KIND_HOST, "h1")
		},
		"deleted, and a box has its name": func() {
			w.clock.pass(time.Minute)
			if _, err := w.api().DeleteNode(t.Context(), connect.NewRequest(&dxpuv1.DeleteNodeRequest{NodeId: "h1"})); err != nil {
				t.Fatal(err)
			}
			w.enrolTLS(dxpuv1.NodeKind_NODE_KIND_BOX, "h1")
		},
	}
	for name, do := range revoke {
		t.Run(name, func(t *testing.T) {
			w.clock.pass(time.Minute)
			if known, _ := w.known("h1"); known {
				if _, err := w.api().DeleteNode(t.Context(), connect.NewRequest(&dxpuv1.DeleteNodeRequest{NodeId: "h1"})); err != nil {
					t.Fatal(err)
				}
			}
			cert := w.enrolTLS(dxpuv1.NodeKind_NODE_KIND_HOST, "h1")
			open := w.client(cert)
			if err := report(open, "h1"); err != nil {
				t.Fatal(err)
			}
			do()
			if err := report(open, "h1"); connect.CodeOf(err) != connect.CodeUnauthenticated {
				t.Errorf("on the connection that it has: %v", err)
			}
			if err := report(w.client(cert), "h1"); connect.CodeOf(err) != connect.CodeUnauthenticated {
				t.Errorf("on a new connection: %v", err)
			}
			if err := watch(w.client(cert), "h1"); connect.CodeOf(err) != connect.CodeUnauthenticated {
				t.Errorf("a watch: %v", err)
			}
			if _, err := w.renew(w.client(cert), "h1"); connect.CodeOf(err) != connect.CodeUnauthenticated {
				t.Errorf("renewed: %v", err)
			}
		})
	}
}

// The manager refuses certificates of other origins: a self-signed one, one of another
// pool's authority, one signed with a node's key, and the manager's own.
func TestForgedCertificates(t *testing.T) {
	w := newTLSWorld(t, 0)
	mine := w.enrolTLS(dxpuv1.NodeKind_NODE_KIND_HOST, "h1")
	w.enrolTLS(dxpuv1.NodeKind_NODE_KIND_HOST, "h2")
	key, csr := keyAndRequest(t)
	req, err := auth.ParseRequest(csr)
	if err != nil {
		t.Fatal(err)
	}
	cluster := mine.Leaf.URIs[0].Host
	name := auth.NodeURI(cluster, dxpuv1.NodeKind_NODE_KIND_HOST, "h2")
	other, err := auth.NewAuthority(cluster, w.clock.now())
	if err != nil {
		t.Fatal(err)
	}
	ofOther, err := other.IssueNode(req, name, w.clock.now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(parent *x509.Certificate, signer *ecdsa.PrivateKey) tls.Certificate {
		c := *ofOther
		der, err := x509.CreateCertificate(rand.Reader, &c, parent, key.Public(), signer)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: [][]byte{der, parent.Raw}, PrivateKey: key}
	}
	all, err := w.m.authority(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	own := all.Current
	server, err := own.IssueServer([]string{"h2"}, w.clock.now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	unknown, err := own.IssueNode(req, name, w.clock.now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	otherPool, err := own.IssueNode(req, auth.NodeURI("c-other", dxpuv1.NodeKind_NODE_KIND_HOST, "h2"), w.clock.now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]tls.Certificate{
		"self-signed":                              sign(ofOther, key),
		"of another authority":                     {Certificate: [][]byte{ofOther.Raw, other.Certificate().Raw}, PrivateKey: key},
		"signed with a node's key":                 sign(mine.Leaf, mine.PrivateKey.(*ecdsa.PrivateKey)),
		"the manager's":                            *server,
		"of the authority, but not on record":      {Certificate: [][]byte{unknown.Raw}, PrivateKey: key},
		"of the authority, in another pool's name": {Certificate: [][]byte{otherPool.Raw}, PrivateKey: key},
	}
	for what, cert := range tests {
		for _, as := range []string{"h1", "h2"} {
			if report(w.client(cert), as) == nil {
				t.Errorf("a certificate %s is accepted for %s", what, as)
			}
		}
	}
	if report(w.client(mine), "h1") != nil || report(w.client(), "h1") == nil {
		t.Error("the node's own certificate is refused, or none is required")
	}
}
