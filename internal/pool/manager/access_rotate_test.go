package manager

import (
	"context"
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const (
	beginRotation     = dxpuv1.AuthorityStep_AUTHORITY_STEP_BEGIN
	activateAuthority = dxpuv1.AuthorityStep_AUTHORITY_STEP_ACTIVATE
	retireAuthority   = dxpuv1.AuthorityStep_AUTHORITY_STEP_RETIRE
)

// rotate takes a step of a rotation, and lets the time pass after which managers know it.
func (w *tlsWorld) rotate(step dxpuv1.AuthorityStep) (*dxpuv1.Authority, error) {
	res, err := (&poolService{m: w.m}).RotateAuthority(w.t.Context(), connect.NewRequest(&dxpuv1.RotateAuthorityRequest{Step: step}))
	if err != nil {
		return nil, err
	}
	w.roots.AppendCertsFromPEM([]byte(res.Msg.Authority.CaPem))
	w.clock.pass(2 * authorityAge)
	return res.Msg.Authority, nil
}

// told reports for a node, with a certificate, and returns whether it is told to renew.
func (w *tlsWorld) told(node string, cert tls.Certificate) (bool, error) {
	res, err := w.client(cert).Report(context.Background(), connect.NewRequest(&dxpuv1.ReportRequest{State: &dxpuv1.ObservedState{
		NodeId: node, InstanceId: "i", Sequence: uint64(w.clock.now().UnixNano()),
	}}))
	if err != nil {
		return false, err
	}
	return res.Msg.RenewCertificate, nil
}

// renewed renews a node's certificate.
func (w *tlsWorld) renewed(node string, cert tls.Certificate) tls.Certificate {
	w.t.Helper()
	next, err := w.renew(w.client(cert), node)
	if err != nil {
		w.t.Fatal(err)
	}
	return next
}

// A node is told to renew after each step. While it has not, or has lost the answer, the
// next step is refused. The certificates of both authorities are good in between, and
// those of the old one are not in the end.
func TestRotation(t *testing.T) {
	w := newTLSWorld(t, time.Hour)
	old := w.enrolTLS(dxpuv1.NodeKind_NODE_KIND_HOST, "h1")
	if told, err := w.told("h1", old); told || err != nil {
		t.Fatalf("without a rotation: told %v, %v", told, err)
	}
	if _, err := w.rotate(activateAuthority); err == nil {
		t.Error("an authority that does not exist was activated")
	}
	_ = w.m.peek(func(t *tx) error {
		t.alike = false // as in a leader that has not looked at the other managers yet
		return nil
	})
	first, err := w.rotate(beginRotation)
	if err != nil || first.NextHash == "" || first.NodesLeft != 1 || strings.Count(first.CaPem, "BEGIN CERTIFICATE") != 2 {
		t.Fatalf("BEGIN: %v, %v", first, err)
	}
	if _, err := w.rotate(beginRotation); err == nil {
		t.Error("a second rotation began")
	}
	if told, err := w.told("h1", old); !told || err != nil {
		t.Errorf("after BEGIN: told %v, %v", told, err)
	}
	if _, err := w.rotate(activateAuthority); err == nil || !strings.Contains(err.Error(), "1 node has not renewed") {
		t.Errorf("ACTIVATE before the node has renewed: %v", err)
	}
	second := w.renewed("h1", old)
	if told, err := w.told("h1", old); !told || err != nil { // as if the answer had been lost
		t.Errorf("a node with the certificate before: told %v, %v", told, err)
	}
	if _, err := w.rotate(activateAuthority); err == nil {
		t.Error("ACTIVATE although the node uses the certificate before")
	}
	w.m.mu.Lock()
	delete(w.m.live, "h1") // as another leader begins
	w.m.mu.Unlock()
	if _, err := w.rotate(activateAuthority); err == nil {
		t.Fatal("ACTIVATE after a failover, although the node may have lost the answer")
	}
	if told, err := w.told("h1", second); told || err != nil {
		t.Errorf("a node that has renewed: told %v, %v", told, err)
	}
	active, err := w.rotate(activateAuthority)
	if err != nil || active.Hash != first.NextHash || active.PreviousHash != first.Hash {
		t.Fatalf("ACTIVATE: %v, %v", active, err)
	}
	third := w.renewed("h1", second)
	if told, err := w.told("h1", third); told || err != nil {
		t.Errorf("after ACTIVATE: told %v, %v", told, err)
	}
	last, err := w.rotate(retireAuthority)
	if err != nil || last.PreviousHash != "" || strings.Count(last.CaPem, "BEGIN CERTIFICATE") != 1 {
		t.Fatalf("RETIRE: %v, %v", last, err)
	}
	if _, err := w.told("h1", old); err == nil {
		t.Error("a certificate of the retired authority is accepted")
	}
	if told, err := w.told("h1", third); !told || err != nil { // to forget the old authority
		t.Errorf("after RETIRE: told %v, %v", told, err)
	}
}

// At most renewRate nodes are told to renew in a second.
func TestRenewalsAreSpread(t *testing.T) {
	w := newTLSWorld(t, time.Hour)
	cert := w.enrolTLS(dxpuv1.NodeKind_NODE_KIND_HOST, "h1")
	if _, err := w.rotate(beginRotation); err != nil {
		t.Fatal(err)
	}
	if err := w.m.view(func(t *tx) error {
		r, told := renewals{}, 0
		for range 2 * renewRate {
			if r.ask(t, "h1", cert.Leaf.SerialNumber.Text(16)) {
				told++
			}
		}
		if told != renewRate {
			w.t.Errorf("%d nodes are told in one second, want %d", told, renewRate)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// The error speaks of one node or of several.
func TestRotationNamesWhatIsLeft(t *testing.T) {
	w := newTLSWorld(t, time.Hour)
	for _, id := range []string{"h1", "h2"} {
		w.enrolTLS(dxpuv1.NodeKind_NODE_KIND_HOST, id)
	}
	if _, err := w.rotate(beginRotation); err != nil {
		t.Fatal(err)
	}
	if _, err := w.rotate(activateAuthority); err == nil || !strings.Contains(err.Error(), "step: 2 nodes have not renewed their certificates, h1 first; ") {
		t.Error(err)
	}
}
