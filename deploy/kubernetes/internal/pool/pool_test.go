package pool

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
)

// TestHostShut: a host takes no GPU while it has no free slot and none is about to be, or while it
// is out of service. The claims that wait for such a host are looked at again.
func TestHostShut(t *testing.T) {
	full := []*dxpuv1.HostSlot{{BindingId: "b-1"}}
	up := func() *dxpuv1.NodeInfo { return &dxpuv1.NodeInfo{Connected: true} }
	for name, test := range map[string]struct {
		host *dxpuv1.Host
		gpus []*dxpuv1.GPU
		want string
	}{
		"a free slot":          {host: &dxpuv1.Host{Node: up(), Slots: []*dxpuv1.HostSlot{{}}}},
		"full":                 {host: &dxpuv1.Host{Node: up(), Slots: full}, want: "host h1 has no free slot"},
		"a GPU is leaving":     {host: &dxpuv1.Host{Node: up(), Slots: full}, gpus: []*dxpuv1.GPU{{Id: "b1/0", HostId: "h1", State: dxpuv1.GPUState_GPU_STATE_RELEASING}}},
		"a part is leaving":    {host: &dxpuv1.Host{Node: up(), Slots: full}, gpus: []*dxpuv1.GPU{{Id: "b1/0", Parts: []*dxpuv1.GPUPart{{HostId: "h1"}}}}},
		"one leaves another":   {host: &dxpuv1.Host{Node: up(), Slots: full}, gpus: []*dxpuv1.GPU{{Id: "b1/0", HostId: "h2", State: dxpuv1.GPUState_GPU_STATE_RELEASING}}, want: "host h1 has no free slot"},
		"a part is used":       {host: &dxpuv1.Host{Node: up(), Slots: full}, gpus: []*dxpuv1.GPU{{Id: "b1/0", Parts: []*dxpuv1.GPUPart{{HostId: "h1", Serving: true}}}}, want: "host h1 has no free slot"},
		"silent":               {host: &dxpuv1.Host{Node: &dxpuv1.NodeInfo{}, Slots: []*dxpuv1.HostSlot{{}}}, want: "host h1 does not report"},
		"cordoned":             {host: &dxpuv1.Host{Node: &dxpuv1.NodeInfo{Connected: true, Cordoned: true}, Slots: []*dxpuv1.HostSlot{{}}}, want: "host h1 is cordoned"},
		"drained":              {host: &dxpuv1.Host{Node: &dxpuv1.NodeInfo{Connected: true, Cordoned: true, Draining: true}}, want: "host h1 is being drained"},
		"lost again and again": {host: &dxpuv1.Host{Node: &dxpuv1.NodeInfo{Connected: true, Unstable: true}}, want: "host h1 was lost too often recently"},
		"tainted":              {host: &dxpuv1.Host{Node: &dxpuv1.NodeInfo{Connected: true, Taints: []*dxpuv1.Taint{{}}}}, want: "host h1 has a taint of the pool"},
	} {
		t.Run(name, func(t *testing.T) {
			w := New(nil, "c", func(string) {}, func() {})
			for claim, state := range map[string]dxpuv1.LeaseState{
				"waits": dxpuv1.LeaseState_LEASE_STATE_PENDING, "ends": dxpuv1.LeaseState_LEASE_STATE_RELEASING,
			} {
				w.Put(&dxpuv1.Lease{Id: claim, State: state, Spec: &dxpuv1.LeaseSpec{HostId: "h1", Labels: map[string]string{claims.LabelCluster: "c", claims.LabelClaim: claim}}})
			}
			s := &Snapshot{Hosts: map[string]*dxpuv1.Host{"h1": test.host}, GPUs: test.gpus}
			changed := w.SetSnapshot(s)
			if got := w.HostShut("h1", Need{Claim: "next", Slots: 1}); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
			if again := slices.Equal(changed, []string{"waits"}); again != (test.want != "") || !again && len(changed) > 0 {
				t.Errorf("claims %q are looked at again", changed)
			}
		})
	}
	if got := New(nil, "c", nil, nil).HostShut("h1", Need{Slots: 1}); got != "" {
		t.Errorf("an unknown host: %q", got)
	}
}

// TestTaken: a slot that a lease of the cluster has got since the snapshot is not free.
func TestTaken(t *testing.T) {
	w := New(nil, "c", func(string) {}, func() {})
	lease := func(id string, state dxpuv1.LeaseState) {
		w.Put(&dxpuv1.Lease{Id: id, State: state, Spec: &dxpuv1.LeaseSpec{HostId: "h1", Labels: map[string]string{claims.LabelCluster: "c", claims.LabelClaim: id}}})
	}
	slots := []*dxpuv1.HostSlot{{BindingId: "b-1", LeaseId: "old"}, {}, {}}
	w.SetSnapshot(&Snapshot{Hosts: map[string]*dxpuv1.Host{"h1": {Node: &dxpuv1.NodeInfo{Connected: true}, Slots: slots}}})
	lease("old", dxpuv1.LeaseState_LEASE_STATE_ACTIVE)
	lease("new", dxpuv1.LeaseState_LEASE_STATE_BINDING)
	if why := w.HostShut("h1", Need{Claim: "next", Slots: 1}); why != "" || w.Queued()["h1"] != 1 {
		t.Errorf("one of two free slots is taken: %q, %v", why, w.Queued())
	}
	lease("newer", dxpuv1.LeaseState_LEASE_STATE_ACTIVE)
	lease("waits", dxpuv1.LeaseState_LEASE_STATE_PENDING)
	if why := w.HostShut("h1", Need{Claim: "next", Slots: 1}); why != "host h1 has no free slot" || w.Queued()["h1"] != 3 {
		t.Errorf("both free slots are taken: %q, %v", why, w.Queued())
	}
}

// TestHostsAfterReturn: a host that does not report is not shut while the manager is away, whose GPUs
// may be read before its leases, and until the hosts have had the time to find it. A start is a return.
func TestHostsAfterReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(nil, "c", func(string) {}, func() {})
		waiting := &dxpuv1.Lease{Id: "l", Spec: &dxpuv1.LeaseSpec{HostId: "h1", Labels: map[string]string{claims.LabelCluster: "c", claims.LabelClaim: "waits"}}}
		waiting.State = dxpuv1.LeaseState_LEASE_STATE_PENDING
		check := func(when, want string) {
			t.Helper()
			again := w.SetSnapshot(&Snapshot{Hosts: map[string]*dxpuv1.Host{"h1": {Node: &dxpuv1.NodeInfo{}, Slots: []*dxpuv1.HostSlot{{}}}}})
			if got := w.HostShut("h1", Need{Claim: "waits", Slots: 1}); got != want || (len(again) > 0) != (want != "") {
				t.Errorf("%s: %q, want %q; claims %q are looked at again", when, got, want, again)
			}
		}
		w.replace([]*dxpuv1.Lease{waiting})
		check("soon after a start", "")
		time.Sleep(reconnectTime)
		check("after a start", "host h1 does not report")
		w.lost()
		check("away", "")
		w.replace([]*dxpuv1.Lease{waiting})
		time.Sleep(reconnectTime - 1)
		check("returned", "")
		time.Sleep(1)
		check("later", "host h1 does not report")
	})
}

// TestGangRuns: a gang runs while a lease of it has a GPU, also one that has taken the place of
// another and was not one of the gang in the queue.
func TestGangRuns(t *testing.T) {
	const active, pending, released = dxpuv1.LeaseState_LEASE_STATE_ACTIVE, dxpuv1.LeaseState_LEASE_STATE_PENDING, dxpuv1.LeaseState_LEASE_STATE_RELEASED
	for name, test := range map[string]struct {
		gang, label string
		state       dxpuv1.LeaseState
		want        bool
	}{
		"of the gang":     {"g", "g", active, true},
		"of an older one": {"g", "", active, true},
		"a successor":     {"", "g", active, true},
		"of another":      {"h", "h", active, false},
		"in the queue":    {"g", "g", pending, false},
		"has ended":       {"g", "g", released, false},
		"of none":         {"", "", active, false},
	} {
		w := New(nil, "c", func(string) {}, func() {})
		spec := &dxpuv1.LeaseSpec{Labels: map[string]string{claims.LabelCluster: "c", claims.LabelClaim: "u", claims.LabelGang: test.label}}
		if test.gang != "" {
			spec.Gang = &dxpuv1.Gang{Name: test.gang, Size: 2}
		}
		w.Put(&dxpuv1.Lease{Id: "l-1", State: test.state, Spec: spec})
		if got := w.GangRuns("g"); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
