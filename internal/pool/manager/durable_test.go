package manager

import (
	"context"
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// Of the changes of one record that are stored together, the last one counts.
func TestLastChangeOfABatchIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := gated(t, hostNode("h1", 1))
		var wg sync.WaitGroup
		for gpus := range uint32(6) {
			wg.Go(func() { w.putTenant("a", &dxpuv1.Quota{MaxGpus: gpus}) })
			synctest.Wait() // until it waits for the store: the first alone, the others together
		}
		s.gate <- nil
		s.gate <- nil
		wg.Wait()
		s.gate = nil
		m, err := New(t.Context(), Config{JoinToken: "token-for-tests", Store: w.m.store})
		if err != nil {
			t.Fatal(err)
		}
		if q := m.state.tenants.get("a").Quota; q.MaxGPUs != 5 {
			t.Errorf("the acknowledged quota is 5, the stored one %d", q.MaxGPUs)
		}
	})
}

// watchDesired gives a node a credential and opens its watch. The result waits until all
// goroutines are blocked and returns the number of messages received.
func (w *world) watchDesired(t *testing.T, node string, known uint64) (received func() int) {
	t.Helper()
	return w.watchDesiredIn(t.Context(), t, node, known)
}

func (w *world) watchDesiredIn(ctx context.Context, t *testing.T, node string, known uint64) (received func() int) {
	t.Helper()
	if err := w.m.update(t.Context(), func(t *tx) error {
		t.nodes.edit(node).CredentialHash = auth.Hash("credential")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return w.openWatch(ctx, t, node, known)
}

func (w *world) openWatch(ctx context.Context, t *testing.T, node string, known uint64) (received func() int) {
	t.Helper()
	body, err := (strictJSON{}).Marshal(&dxpuv1.WatchDesiredRequest{NodeId: node, KnownRevision: known, ClusterId: w.m.state.meta.ClusterID})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	t.Cleanup(cancel)
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/dxpu.v1.NodeService/WatchDesired",
		strings.NewReader(string(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...))))
	r.Header.Set("Content-Type", "application/connect+json")
	r.Header.Set("Authorization", "Bearer credential")
	res := httptest.NewRecorder()
	go w.m.Handler().ServeHTTP(res, r)
	return func() int {
		synctest.Wait()
		return strings.Count(res.Body.String(), `"revision"`)
	}
}

// A node receives its desired state only once it is durable: a manager that fails before
// would forget a binding that the node has begun to make.
func TestDesiredStateIsSentWhenDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := gated(t, hostNode("h1", 1), boxNode("b1", 1))
		gate := s.gate
		s.gate = nil
		received := w.watchDesired(t, "b1", w.m.state.nodes.get("b1").DesiredRevision)
		if n := received(); n != 0 {
			t.Fatalf("%d messages before any change", n)
		}
		s.gate = gate
		var wg sync.WaitGroup
		wg.Go(func() { w.create(&dxpuv1.LeaseSpec{Count: 1}) })
		if n := received(); n != 0 {
			t.Errorf("%d messages before the change is stored", n)
		}
		// A watch that is opened meanwhile waits too.
		again := w.openWatch(t.Context(), t, "b1", w.m.state.nodes.get("b1").DesiredRevision-1)
		if n := again(); n != 0 {
			t.Errorf("a new watch receives %d messages before the change is stored", n)
		}
		s.gate <- nil
		wg.Wait()
		s.gate = nil
		if n := received(); n != 1 {
			t.Errorf("%d messages after the change is stored, want 1", n)
		}
		if n := again(); n != 1 {
			t.Errorf("a new watch receives %d messages after the change is stored, want 1", n)
		}
	})
}

// A host slot gets its next binding only when the host has removed the last one.
func TestHostSlotIsWaitedFor(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 2))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	old := w.wantLease(id, leaseActive).Bindings[0]
	w.nodes["h1"].deaf = true // it does not learn that it is to remove the device
	if _, err := w.api().ReplaceGPU(t.Context(), connect.NewRequest(&dxpuv1.ReplaceGPURequest{GpuId: old.GpuId})); err != nil {
		t.Fatal(err)
	}
	w.settle()
	l := w.lease(id)
	next := l.Bindings[len(l.Bindings)-1]
	if next.Id == old.Id || next.State != preparing {
		t.Errorf("binding %s is %s while the host has %s in slot %d", next.Id, stateWord(next.State), old.Id, old.HostSlot)
	}
	w.nodes["h1"].deaf = false
	w.settle()
	w.wantLease(id, leaseActive)
}

// A node of the previous version that learns of a revision while it has no watch cancels
// all its watches to come. It learns of the revision once the watch is there, or when the
// watch is late.
func TestRevisionIsAnnouncedToWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
		w.create(&dxpuv1.LeaseSpec{Count: 1})
		newest := w.m.state.nodes.get("b1").DesiredRevision
		reported := func() uint64 {
			t.Helper()
			o := w.nodes["b1"].observe()
			o.AppliedRevision = newest - 1
			r, _, err := w.m.report(t.Context(), o, func(*tx) error { return nil })
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		if r := reported(); r != newest-1 {
			t.Errorf("a node without a watch learns of revision %d: it knows %d", r, newest-1)
		}
		w.clock.pass(watchGrace)
		if r := reported(); r != newest {
			t.Errorf("a node whose watch is late learns of revision %d, not of %d", r, newest)
		}
		ctx, end := context.WithCancel(t.Context())
		received := w.watchDesiredIn(ctx, t, "b1", newest)
		received()
		if r := reported(); r != newest {
			t.Errorf("a node with a watch learns of revision %d, not of %d", r, newest)
		}
		end()
		received()
		if r := reported(); r != newest-1 {
			t.Errorf("a node whose watch has just ended learns of revision %d: it knows %d", r, newest-1)
		}
	})
}
