package manager

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

func (w *world) resize(id string, count uint32, version uint64) error {
	_, err := w.api().ResizeLease(context.Background(), connect.NewRequest(&dxpuv1.ResizeLeaseRequest{LeaseId: id, Count: count, ResourceVersion: version}))
	return err
}

// has lists the GPUs that a lease has or is getting.
func (w *world) has(id string) string {
	var out []string
	for _, b := range w.lease(id).Bindings {
		if (b.State == attached || b.State == ready || b.State == preparing) && b.FollowsBindingId == "" {
			out = append(out, b.GpuId)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func nvlinkBox(id string, slots int) *fakeNode {
	n := boxNode(id, slots)
	n.boxKind = dxpuv1.BoxKind_BOX_KIND_NVLINK
	return n
}

func TestResize(t *testing.T) {
	w := newWorld(t, Config{Reserve: placement.Reserve{Count: 1}}, hostNode("h1", 4), hostNode("h2", 8), boxNode("b1", 3), boxNode("b2", 3))
	w.putTenant("default", &dxpuv1.Quota{MaxGpus: 4})
	id := w.create(&dxpuv1.LeaseSpec{Count: 2, HostId: "h1"})
	wantErr(t, w.resize(id, 3, 0), connect.CodeFailedPrecondition, "is binding")
	w.settle()
	v := w.wantLease(id, leaseActive).ResourceVersion
	for _, tt := range []struct {
		name    string
		count   uint32
		version uint64
		code    connect.Code
		want    string
	}{
		{"none", 0, 0, connect.CodeInvalidArgument, "count: 0 is not 1 to 64"},
		{"more than any host has", 65, 0, connect.CodeInvalidArgument, "count: 65"},
		{"never in the quota", 5, 0, connect.CodeInvalidArgument, "5 GPUs exceed the quota of 4"},
		{"an old version", 3, v + 1, connect.CodeAborted, "read it again"},
	} {
		t.Run(tt.name, func(t *testing.T) { wantErr(t, w.resize(id, tt.count, tt.version), tt.code, tt.want) })
	}
	if err := w.resize(id, 4, v); err != nil {
		t.Fatal(err)
	}
	if err := w.resize(id, 4, v); err != nil {
		t.Errorf("the same call again: %v", err)
	}
	for range 12 {
		w.wantLease(id, leaseActive) // all the while
		w.rounds(1)
	}
	if got := w.has(id); got != "b1/0 b1/1 b2/0 b2/1" {
		t.Errorf("it has %s", got)
	}
	// From four to two: the newest of two equal boxes go.
	if err := w.resize(id, 2, 0); err != nil {
		t.Fatal(err)
	}
	for range 12 {
		w.wantLease(id, leaseActive)
		w.rounds(1)
	}
	if got := w.has(id); got != "b1/0 b1/1" {
		t.Errorf("it has %s", got)
	}
	if p := w.m.totals(); p.GpusFree != 4 || p.GpusBound != 2 {
		t.Errorf("pool %v", p)
	}
	w.delete(id, true)
	w.settle()
	w.wantLease(id, leaseReleased)
}

func TestGrowthIsBounded(t *testing.T) {
	tests := []struct {
		name string
		spec *dxpuv1.LeaseSpec
		want string
	}{
		{"no slots of the host", &dxpuv1.LeaseSpec{Count: 2, HostId: "small"}, "does not have 2 free slots"},
		{"no GPUs in the box", &dxpuv1.LeaseSpec{Count: 2, HostId: "h1", SameBox: dxpuv1.Preference_PREFERENCE_REQUIRED}, "where at most 1 of 2 are free for the request"},
		{"no GPUs but spares", &dxpuv1.LeaseSpec{Count: 3, HostId: "h1"}, "2 of them held back as spares"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Config{Reserve: placement.Reserve{Count: 2}}, hostNode("h1", 8), hostNode("small", 3), boxNode("b1", 3), boxNode("b2", 3))
			id := w.create(tt.spec)
			w.settle()
			before := w.wantLease(id, leaseActive)
			err := w.resize(id, tt.spec.Count+2, 0)
			if connect.CodeOf(err) != connect.CodeResourceExhausted {
				t.Fatalf("got %v", err)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("explanation: %v, want %q", err, tt.want)
			}
			if after := w.lease(id); after.ResourceVersion != before.ResourceVersion || after.Spec.Count != tt.spec.Count {
				t.Error("the lease was changed")
			}
		})
	}
}

// A resize gives up GPUs that cannot be attached; the lease stays as it was.
func TestGrowthFails(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 4))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	w.nodes["h1"].refuses = true
	if err := w.resize(id, 2, 0); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		w.settle()
	}
	l := w.wantLease(id, leaseActive)
	if l.Spec.Count != 1 || !strings.Contains(w.events(), "was resized from 2 to 1 GPU: GPU") {
		t.Errorf("lease %v\n%s", l, w.events())
	}
	if p := w.m.totals(); p.GpusFree != 3 {
		t.Errorf("%d GPUs are free, want 3", p.GpusFree)
	}
}

// A repeated creation returns the lease in any state.
func TestResizedLeaseIsStillTheSame(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 4))
	create := func(count uint32) (*dxpuv1.Lease, error) {
		res, err := w.api().CreateLease(context.Background(), connect.NewRequest(&dxpuv1.CreateLeaseRequest{RequestId: "r", Spec: &dxpuv1.LeaseSpec{Count: count}}))
		if err != nil {
			return nil, err
		}
		return res.Msg.Lease, nil
	}
	first, err := create(1)
	if err != nil {
		t.Fatal(err)
	}
	w.settle()
	if err := w.resize(first.Id, 3, 0); err != nil {
		t.Fatal(err)
	}
	if again, err := create(1); err != nil || again.Id != first.Id {
		t.Errorf("again: %v, %v", again, err)
	}
	_, err = create(3)
	wantErr(t, err, connect.CodeAlreadyExists, "request_id")
}

func (w *world) drain(target *dxpuv1.Target, deadline time.Duration) []string {
	w.t.Helper()
	req := &dxpuv1.DrainRequest{Target: target, Reason: "firmware"}
	if deadline > 0 {
		req.Deadline = durationpb.New(deadline)
	}
	res, err := w.api().Drain(context.Background(), connect.NewRequest(req))
	if connect.CodeOf(err) == connect.CodeNotFound {
		return nil // it has just been deleted
	}
	if err != nil {
		w.t.Fatalf("drain: %v", err)
	}
	return res.Msg.BindingIds
}

func atGPU(id string) *dxpuv1.Target {
	return &dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: id}}
}

func atBox(id string) *dxpuv1.Target {
	return &dxpuv1.Target{Target: &dxpuv1.Target_BoxId{BoxId: id}}
}

func atHost(id string) *dxpuv1.Target {
	return &dxpuv1.Target{Target: &dxpuv1.Target_HostId{HostId: id}}
}

func TestDrain(t *testing.T) {
	const required = dxpuv1.Preference_PREFERENCE_REQUIRED
	tests := []struct {
		name     string
		nodes    []*fakeNode
		spares   int
		spec     *dxpuv1.LeaseSpec
		target   *dxpuv1.Target
		deadline time.Duration
		after    time.Duration
		state    dxpuv1.LeaseState
		has      string
		event    string
	}{
		{"GPU", []*fakeNode{boxNode("b1", 3)}, 0, &dxpuv1.LeaseSpec{Count: 2}, atGPU("b1/0"), 0, 0, leaseActive, "b1/1 b1/2", "b1/0 is drained"},
		{"GPU: a spare", []*fakeNode{boxNode("b1", 2)}, 1, &dxpuv1.LeaseSpec{Count: 1}, atGPU("b1/0"), 0, 0, leaseActive, "b1/1", "b1/0 is drained"},
		{"GPU: none fits", []*fakeNode{boxNode("b1", 2)}, 0, &dxpuv1.LeaseSpec{Count: 2}, atGPU("b1/0"), 0, time.Hour, leaseActive, "b1/0 b1/1", "cannot move now"},
		{"GPU: none fits, deadline", []*fakeNode{boxNode("b1", 2)}, 0, &dxpuv1.LeaseSpec{Count: 2}, atGPU("b1/0"), time.Minute, time.Minute, leaseDegraded, "b1/1", "b1/0 is drained"},
		{"box", []*fakeNode{boxNode("b1", 3), boxNode("b2", 4)}, 0, &dxpuv1.LeaseSpec{Count: 3}, atBox("b1"), 0, 0, leaseActive, "b2/0 b2/1 b2/2", "b1 is drained"},
		{
			"box, together",
			[]*fakeNode{boxNode("b1", 3), boxNode("b2", 4)},
			0,
			&dxpuv1.LeaseSpec{Count: 3, SameBox: required},
			atBox("b1"), 0, 0, leaseActive, "b2/0 b2/1 b2/2", "b1 is drained",
		},
		{
			"box, together and no place",
			[]*fakeNode{boxNode("b1", 3), boxNode("b2", 2)},
			0,
			&dxpuv1.LeaseSpec{Count: 3, SameBox: required},
			atBox("b1"), 0, time.Hour, leaseActive, "b1/0 b1/1 b1/2", "cannot move now",
		},
		{"box of another model", []*fakeNode{boxNode("b1", 1), modelBox("b2", "T4")}, 0, &dxpuv1.LeaseSpec{Count: 1, Model: "DX100"}, atBox("b1"), 0, time.Hour, leaseActive, "b1/0", "cannot move now"},
		{"host: leases stay", []*fakeNode{boxNode("b1", 3)}, 0, &dxpuv1.LeaseSpec{Count: 1}, atHost("h1"), 0, time.Hour, leaseActive, "b1/0", "h1 is being drained of 1 binding"},
		{"host: deadline", []*fakeNode{boxNode("b1", 3)}, 0, &dxpuv1.LeaseSpec{Count: 1}, atHost("h1"), time.Minute, time.Minute, leaseReleased, "", "h1 is drained: nothing"},
		{"host: deadline, pinned", []*fakeNode{boxNode("b1", 3)}, 0, &dxpuv1.LeaseSpec{Count: 1, HostId: "h1", Wait: true}, atHost("h1"), time.Minute, time.Minute, leaseReleased, "", "h1 is drained: nothing"},
		{"host: deadline, may wait", []*fakeNode{boxNode("b1", 3)}, 0, &dxpuv1.LeaseSpec{Count: 1, Wait: true}, atHost("h1"), time.Minute, time.Minute, leaseActive, "b1/0", "h1 is drained: nothing"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			nodes := append([]*fakeNode{hostNode("h1", 4), hostNode("h2", 3)}, tt.nodes...)
			w := newWorld(t, Config{Reserve: placement.Reserve{Count: tt.spares}}, nodes...)
			id := w.create(tt.spec)
			w.settle()
			w.wantLease(id, leaseActive)
			if got := w.drain(tt.target, tt.deadline); len(got) == 0 {
				t.Error("no binding is being released")
			}
			low := len(w.nodes["h1"].has)
			alone := tt.spec.SameBox != required && tt.deadline == 0
			for range 8 {
				for range 12 {
					w.rounds(1)
					low = min(low, len(w.nodes["h1"].has))
				}
				w.pass(200 * time.Millisecond)
			}
			if alone && low < int(tt.spec.Count)-1 {
				t.Errorf("the lease was down to %d of %d GPUs", low, tt.spec.Count)
			}
			if tt.after > 0 {
				w.pass(tt.after)
				for range 4 {
					w.settle()
				}
			}
			w.wantLease(id, tt.state)
			if got := w.has(id); got != tt.has {
				t.Errorf("it has %s, want %s", got, tt.has)
			}
			if !strings.Contains(w.events(), tt.event) {
				t.Errorf("no event says %q:\n%s", tt.event, w.events())
			}
			w.checkIndex(t)
		})
	}
}

func modelBox(id, model string) *fakeNode {
	n := boxNode(id, 2)
	n.model = model
	return n
}

// A drain is stored: it continues after a restart, and ends with the cordon.
func TestDrainSurvivesRestart(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 4), boxNode("b1", 2), modelBox("b2", "T4"))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1, Model: "DX100"})
	w.settle()
	w.nodes["b1"].dead[1] = true
	w.settle()
	w.drain(atBox("b1"), 0)
	w.settle()
	w.wantLease(id, leaseActive) // no other GPU yet
	m, err := New(context.Background(), Config{JoinToken: "token-for-tests", Store: store, Now: w.clock.now})
	if err != nil {
		t.Fatal(err)
	}
	w.m = m
	w.nodes["b2"].model = "DX100"
	for range 4 {
		w.settle()
	}
	w.wantLease(id, leaseActive)
	if got := w.has(id); got != "b2/0" {
		t.Errorf("it has %s\n%s", got, w.events())
	}
	res, err := w.api().GetBox(context.Background(), connect.NewRequest(&dxpuv1.GetBoxRequest{BoxId: "b1"}))
	if err == nil && (res.Msg.Box.Node.Draining || !res.Msg.Box.Node.Drained || !res.Msg.Box.Node.Cordoned) {
		t.Errorf("box %v", res.Msg.Box.Node)
	}
}

func TestUncordonCancelsDrain(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 1))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	w.drain(atBox("b1"), time.Minute)
	w.settle()
	if _, err := w.api().Uncordon(context.Background(), connect.NewRequest(&dxpuv1.UncordonRequest{Target: atBox("b1")})); err != nil {
		t.Fatal(err)
	}
	w.pass(time.Hour)
	w.settle()
	w.wantLease(id, leaseActive)
}
