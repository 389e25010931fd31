package manager

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// seenByOperator returns a GPU as an operator sees it.
func (w *world) seenByOperator(id string) *dxpuv1.GPU {
	w.t.Helper()
	ctx := auth.With(context.Background(), auth.Identity{Actor: "t-1", Role: dxpuv1.Role_ROLE_OPERATOR})
	res, err := w.api().GetGPU(ctx, connect.NewRequest(&dxpuv1.GetGPURequest{GpuId: id}))
	if err != nil {
		w.t.Fatalf("GetGPU %s: %v", id, err)
	}
	return res.Msg.Gpu
}

// history returns the history of a GPU as lines.
func (w *world) history(id string) string {
	w.t.Helper()
	var b strings.Builder
	for _, i := range w.seenByOperator(id).History {
		fmt.Fprintf(&b, "%s %s code %d ×%d over %s: %s\n", i.Subject, strings.TrimPrefix(i.Type.String(), "EVENT_TYPE_"), i.ErrorCode, i.Count,
			i.LastTime.AsTime().Sub(i.FirstTime.AsTime()).Round(time.Minute), i.Message)
	}
	return b.String()
}

// A GPU that flaps and reports errors has a short history, also after a change of leader
// and when the ring of events has long forgotten them.
func TestHistoryOfAGPU(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, boxNode("b1", 2))
	if h := w.history("b1/0"); h != "" {
		t.Errorf("the history of a new GPU:\n%s", h)
	}
	for range 3 {
		w.nodes["b1"].dead[0] = true
		w.settle()
		delete(w.nodes["b1"].dead, 0)
		w.settle()
		w.pass(5 * time.Minute)
		w.settle()
	}
	w.pass(8 * 24 * time.Hour)
	w.nodes["b1"].addError(0, 79)
	w.nodes["b1"].addError(0, 79)
	w.settle()
	for i := range keepEventRecords + 1 {
		_ = w.m.update(t.Context(), func(t *tx) error {
			t.event(&dxpuv1.Event{Type: dxpuv1.EventType_EVENT_TYPE_OVERDUE}, "%d", i)
			return nil
		})
	}
	var err error
	if w.m, err = New(t.Context(), Config{JoinToken: "token-for-tests", Store: store, Now: w.clock.now}); err != nil {
		t.Fatal(err)
	}
	w.settle()
	h := w.history("b1/0")
	for _, want := range []string{
		"b1/0 GPU_ERROR code 79 ×2 over 0s: GPU b1/0 has had XID 79 (GPU has fallen off the bus) 2 times: replace\n",
		"b1/0 GPU_HEALTH code 0 ×3 over ", ": GPU b1/0 changed from ok to failed\n", ": GPU b1/0 changed from failed to ok\n", "b1 NODE_LOST code 0 ",
	} {
		if !strings.Contains(h, want) {
			t.Errorf("no %q in\n%s", want, h)
		}
	}
	if n := strings.Count(h, "GPU_HEALTH"); n != 2 {
		t.Errorf("%d incidents of health, want one for each direction:\n%s", n, h)
	}
	if strings.Contains(w.history("b1/1"), "b1/1") {
		t.Errorf("the neighbour has a history of its own:\n%s", w.history("b1/1"))
	}
	ctx := auth.With(t.Context(), auth.Identity{Role: dxpuv1.Role_ROLE_TENANT, Tenant: "default"})
	w.join(hostNode("h1", 2))
	w.settle()
	w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	res, err := w.api().GetGPU(ctx, connect.NewRequest(&dxpuv1.GetGPURequest{GpuId: "b1/1"}))
	if err != nil || len(res.Msg.Gpu.History) > 0 {
		t.Errorf("a tenant reads what happened before its lease: %v, %v", res, err)
	}
	w.pass(keepIncident)
	w.settle()
	if h := w.history("b1/0"); strings.Contains(h, "XID 79") {
		t.Errorf("after %s:\n%s", keepIncident, h)
	}
}

// Histories are bounded, each and in number, and end with their node.
func TestHistoriesAreBounded(t *testing.T) {
	w := newWorld(t, Config{}, boxNode("b1", 1))
	happen := func(gpu string, code uint32) {
		w.clock.pass(time.Second)
		_ = w.m.update(t.Context(), func(t *tx) error {
			t.event(&dxpuv1.Event{Type: dxpuv1.EventType_EVENT_TYPE_GPU_ERROR, GpuId: gpu, ErrorCode: code}, "%s", strings.Repeat("x", 3*maxIncidentText))
			return nil
		})
	}
	for code := range uint32(maxIncidents + 5) {
		happen("b1/0", code)
	}
	r := w.m.state.histories.get("b1/0")
	if len(r.Incidents) != maxIncidents || r.Incidents[0].Code != 5 || len(r.Incidents[0].Message) > maxIncidentText {
		t.Errorf("%d incidents, the oldest %+v", len(r.Incidents), r.Incidents[0])
	}
	_ = w.m.update(t.Context(), func(t *tx) error {
		for i := range 2 * maxHistories {
			t.event(&dxpuv1.Event{Type: dxpuv1.EventType_EVENT_TYPE_GPU_ERROR, GpuId: fmt.Sprintf("b2/%d", i)}, "x")
		}
		return nil
	})
	if n := w.m.state.histories.len(); n > maxHistories {
		t.Errorf("%d histories", n)
	}
	happen("b1/0", 1)
	if _, err := w.api().DeleteNode(t.Context(), connect.NewRequest(&dxpuv1.DeleteNodeRequest{NodeId: "b1", Force: true})); err != nil {
		t.Fatal(err)
	}
	w.nodes["b1"].forget()
	w.settle()
	for id := range w.m.state.histories.rows {
		if strings.HasPrefix(id, "b1/") {
			t.Errorf("the history of %s is left", id)
		}
	}
}

// mixedCluster has managers of some versions.
type mixedCluster struct {
	Cluster
	versions []string
}

func (*mixedCluster) Valid() bool { return true }

func (c *mixedCluster) Managers() (out []*dxpuv1.ManagerInfo) {
	for _, v := range c.versions {
		out = append(out, &dxpuv1.ManagerInfo{Version: v})
	}
	return out
}

// A manager of the previous version refuses a state with tables that it does not know, so
// nothing is written to the new ones until all managers are of this version.
func TestHistoryWaitsForTheEndOfAnUpgrade(t *testing.T) {
	w := newWorld(t, Config{Version: "2"}, hostNode("h1", 1), boxNode("b1", 1))
	c := &mixedCluster{versions: []string{"2", "1"}}
	w.m.cluster = c
	defer func() { w.m.cluster = nil }()
	kept := func() (n int) {
		_ = w.m.view(func(t *tx) error {
			n = t.samples.len() + t.histories.len()
			return nil
		})
		return n
	}
	w.passReporting(2 * time.Minute)
	w.nodes["b1"].down = true
	w.passReporting(2 * time.Minute)
	before := kept()
	w.nodes["b1"].down = false
	w.passReporting(2 * time.Minute)
	w.nodes["b1"].down = true
	w.passReporting(2 * time.Minute)
	if n := kept(); before != 0 || n != 0 {
		t.Errorf("%d, then %d records while a manager of another version runs", before, n)
	}
	c.versions = []string{"2", "2"}
	w.passReporting(2 * time.Minute)
	w.nodes["b1"].down = false
	w.passReporting(2 * time.Minute)
	w.nodes["b1"].down = true
	w.passReporting(2 * time.Minute)
	if n := kept(); n < 4 {
		t.Errorf("%d records after the upgrade", n)
	}
}
