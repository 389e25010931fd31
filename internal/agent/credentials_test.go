package agent_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
)

// secure is a manager with TLS.
type secure struct {
	t    *testing.T
	m    *manager.Manager
	url  string
	hash string
	ca   []byte
	// refused counts failed handshakes: the server logs a line for each.
	refused lines
}

// lines counts writes.
type lines struct{ atomic.Int32 }

func (l *lines) Write(b []byte) (int, error) {
	l.Add(1)
	return len(b), nil
}

func newSecure(t *testing.T, cfg manager.Config) *secure {
	t.Helper()
	cfg.JoinToken, cfg.Heartbeat = token, 20*time.Millisecond
	cfg.Open = manager.OpenLoopback
	m, err := manager.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := &secure{t: t, m: m}
	if s.ca, s.hash, err = m.Authority(t.Context()); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(m.Handler())
	srv.Config.ErrorLog = log.New(&s.refused, "", 0)
	srv.TLS = m.TLSConfig([]string{"127.0.0.1"}, nil)
	srv.StartTLS()
	s.url = srv.URL
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = m.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		srv.CloseClientConnections()
		srv.Close()
	})
	return s
}

// trusting returns a client that trusts the manager and shows the certificates.
func (s *secure) trusting(certs ...tls.Certificate) *http.Client {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.ca)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certs, MinVersion: tls.VersionTLS13}}
	s.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func (s *secure) pool() dxpuv1connect.PoolServiceClient {
	return dxpuv1connect.NewPoolServiceClient(s.trusting(), s.url)
}

// run runs a node; the channel receives the result of Run.
func (s *secure) run(cfg agent.Config) (c *agent.Agent, stop func(), ended <-chan error) {
	s.t.Helper()
	cfg.Manager, cfg.JoinToken, cfg.Kind = s.url, token, dxpuv1.NodeKind_NODE_KIND_HOST
	c, err := agent.New(cfg, &proxy{})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() { result <- c.Run(ctx) })
	stop = func() {
		cancel()
		wg.Wait()
	}
	s.t.Cleanup(stop)
	return c, stop, result
}

type kept struct {
	Credential, Certificate, Key, CA string
}

func identityIn(t *testing.T, dir string) (k kept) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "node.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return k
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &k); err != nil {
		t.Fatal(err)
	}
	return k
}

func TestNodesGetCertificates(t *testing.T) {
	s := newSecure(t, manager.Config{})
	dir := t.TempDir()
	c, stop, _ := s.run(agent.Config{Name: "h1", StateDir: dir, CAHash: s.hash})
	eventually(t, "h1 reports", c.Connected)
	k := identityIn(t, dir)
	if k.Certificate == "" || k.CA != string(s.ca) {
		t.Fatal("the node got no certificate")
	}
	if info, err := os.Stat(filepath.Join(dir, "node.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("identity has mode %v: %v", info.Mode(), err)
	}
	// The credential of a node with a certificate is not enough.
	api := dxpuv1connect.NewNodeServiceClient(s.trusting(), s.url)
	req := connect.NewRequest(&dxpuv1.ReportRequest{State: &dxpuv1.ObservedState{NodeId: "h1"}})
	req.Header().Set("Authorization", "Bearer "+k.Credential)
	if _, err := api.Report(t.Context(), req); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("the credential alone: %v", err)
	}
	// The node comes back with the files on its disk, without hash or file of the authority.
	stop()
	again, _, _ := s.run(agent.Config{Name: "h1", StateDir: dir})
	eventually(t, "h1 reports again", again.Connected)
	if identityIn(t, dir) != k {
		t.Error("the node enrolled again")
	}
}

func TestManagersAreVerified(t *testing.T) {
	s := newSecure(t, manager.Config{})
	other := newSecure(t, manager.Config{})
	tests := []struct {
		name string
		cfg  agent.Config
		good bool
	}{
		{"hash", agent.Config{CAHash: s.hash}, true},
		{"file", agent.Config{CA: s.ca}, true},
		{"another pool's hash", agent.Config{CAHash: other.hash}, false},
		{"another pool's file", agent.Config{CA: other.ca}, false},
		{"nothing", agent.Config{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Name = strings.ReplaceAll("h-"+tt.name, " ", "")
			tt.cfg.Name = strings.ReplaceAll(tt.cfg.Name, "'", "")
			c, stop, _ := s.run(tt.cfg)
			if tt.good {
				eventually(t, "it reports", c.Connected)
				return
			}
			before := s.refused.Load()
			eventually(t, "the node has tried three times", func() bool { return s.refused.Load() >= before+3 })
			if stop(); c.Connected() {
				t.Error("the node talks to the manager")
			}
			if _, err := s.pool().GetHost(t.Context(), connect.NewRequest(&dxpuv1.GetHostRequest{HostId: tt.cfg.Name})); connect.CodeOf(err) != connect.CodeNotFound {
				t.Errorf("the join token reached it: %v", err)
			}
		})
	}
	for _, bad := range []agent.Config{
		{Manager: s.url, CAHash: "sha256:1"}, {Manager: "http://127.0.0.1:1", CAHash: s.hash}, {Manager: s.url, CA: []byte("no PEM")},
	} {
		bad.Kind, bad.Name = dxpuv1.NodeKind_NODE_KIND_HOST, "h"
		if _, err := agent.New(bad, &proxy{}); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

func TestCertificatesAreRenewed(t *testing.T) {
	s := newSecure(t, manager.Config{CertificateLife: 2 * time.Second})
	dir := t.TempDir()
	c, _, _ := s.run(agent.Config{Name: "h1", StateDir: dir, CAHash: s.hash})
	eventually(t, "h1 reports", c.Connected)
	first := identityIn(t, dir)
	var second kept
	eventually(t, "a second certificate", func() bool {
		second = identityIn(t, dir)
		return second.Certificate != first.Certificate
	})
	eventually(t, "a third", func() bool { return identityIn(t, dir).Certificate != second.Certificate })
	eventually(t, "h1 still reports", c.Connected)
	if k := identityIn(t, dir); k.Credential != first.Credential || k.Key == first.Key {
		t.Error("the node enrolled again, or kept its key")
	}
}

func TestADeletedNodeStaysAway(t *testing.T) {
	s := newSecure(t, manager.Config{})
	dir := t.TempDir()
	c, _, ended := s.run(agent.Config{Name: "h1", StateDir: dir, CAHash: s.hash})
	eventually(t, "h1 reports", c.Connected)
	k := identityIn(t, dir)
	if _, err := s.pool().DeleteNode(t.Context(), connect.NewRequest(&dxpuv1.DeleteNodeRequest{NodeId: "h1"})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "h1 is disconnected", func() bool { return !c.Connected() })
	// Its certificate is revoked, on existing and on new connections.
	cert, err := tls.X509KeyPair([]byte(k.Certificate), []byte(k.Key))
	if err != nil {
		t.Fatal(err)
	}
	api := dxpuv1connect.NewNodeServiceClient(s.trusting(cert), s.url)
	_, err = api.Report(t.Context(), connect.NewRequest(&dxpuv1.ReportRequest{State: &dxpuv1.ObservedState{NodeId: "h1"}}))
	if connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("its certificate: %v", err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "was deleted from this pool") {
		t.Errorf("Run returned %v", err)
	}
	// It cannot come back by a restart; another node may take the name.
	_, err = api.Enroll(t.Context(), connect.NewRequest(&dxpuv1.EnrollRequest{
		JoinToken: token, Kind: dxpuv1.NodeKind_NODE_KIND_HOST, Name: "h1", PreviousCredential: k.Credential,
	}))
	if connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("it can enrol again: %v", err)
	}
	next, _, _ := s.run(agent.Config{Name: "h1", StateDir: t.TempDir(), CAHash: s.hash})
	eventually(t, "another h1 reports", next.Connected)
	_, err = api.Report(t.Context(), connect.NewRequest(&dxpuv1.ReportRequest{State: &dxpuv1.ObservedState{NodeId: "h1"}}))
	if connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("the old certificate works for the new node: %v", err)
	}
}

// The manager refuses a certificate of another authority, and one of another node.
func TestForgedCertificates(t *testing.T) {
	s := newSecure(t, manager.Config{})
	dir := t.TempDir()
	c, _, _ := s.run(agent.Config{Name: "h1", StateDir: dir, CAHash: s.hash})
	eventually(t, "h1 reports", c.Connected)
	k := identityIn(t, dir)
	mine, err := tls.X509KeyPair([]byte(k.Certificate), []byte(k.Key))
	if err != nil {
		t.Fatal(err)
	}
	forge := func(a *auth.Authority) tls.Certificate {
		text, key, err := auth.NewRequest("h1")
		if err != nil {
			t.Fatal(err)
		}
		req, err := auth.ParseRequest(text)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := a.IssueNode(req, mine.Leaf.URIs[0], time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
	}
	a, err := auth.NewAuthority(mine.Leaf.URIs[0].Host, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	report := func(cert tls.Certificate, as string) error {
		api := dxpuv1connect.NewNodeServiceClient(s.trusting(cert), s.url)
		_, err := api.Report(t.Context(), connect.NewRequest(&dxpuv1.ReportRequest{State: &dxpuv1.ObservedState{NodeId: as}}))
		return err
	}
	// The handshake fails; in TLS 1.3 the client may notice only while it sends the request.
	if report(forge(a), "h1") == nil {
		t.Error("a certificate of another authority is accepted")
	}
	if err := report(mine, "h1"); err != nil {
		t.Errorf("its own certificate: %v", err)
	}
	if err := report(mine, "h2"); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("a report for another node: %v", err)
	}
}
