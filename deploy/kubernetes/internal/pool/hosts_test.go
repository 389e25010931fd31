package pool

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
)

// made is a lease of the host h1 that the claim of a test has made, at a time.
type made struct {
	claim, gang string
	at          int64
	count       uint32 // of its GPUs; 0: one
	state       dxpuv1.LeaseState
}

// TestHostShutForAll: a host that does not have a slot for each device of a claim takes none of
// them. The leases of a gang get their slots together, so those of its other claims count, if they
// are older: the rest of the gang may wait.
func TestHostShutForAll(t *testing.T) {
	const pending, active = dxpuv1.LeaseState_LEASE_STATE_PENDING, dxpuv1.LeaseState_LEASE_STATE_ACTIVE
	two := Need{Claim: "a", Slots: 2}
	gang := two
	gang.Gang = "g"
	for name, test := range map[string]struct {
		free   int
		need   Need
		leases []made
		want   string
		again  []string // claims to be looked at again after the next snapshot
	}{
		"as many":                          {2, two, nil, "", nil},
		"too few":                          {1, two, nil, "host h1 has room for 1 of the claim's 2 GPUs", nil},
		"none":                             {0, two, nil, "host h1 has no free slot", nil},
		"one of both is attached":          {2, two, []made{{claim: "a", state: active}, {claim: "a", state: pending}}, "", nil},
		"one of both, and no slot is left": {1, two, []made{{claim: "a", state: active}, {claim: "a", state: pending}}, "host h1 has no free slot", []string{"a"}},
		// They may wait for a quota, or for their GPU.
		"others wait, without a gang": {2, two, []made{{claim: "b", state: pending}, {claim: "c", state: pending}}, "", nil},
		"another gang waits":          {2, gang, []made{{claim: "b", gang: "h", state: pending}}, "", nil},
		"the gang has the rest": {
			3, gang,
			[]made{{claim: "b", gang: "g", at: 1, state: pending}, {claim: "b", gang: "g", at: 1, state: pending}},
			"host h1 has room for 3 of the 4 GPUs that the gang wants there", nil,
		},
		"the gang leaves as many": {4, gang, []made{{claim: "b", gang: "g", at: 1, state: pending}, {claim: "b", gang: "g", at: 1, state: pending}}, "", nil},
		"the first of the gang": {3, gang, []made{
			{claim: "a", gang: "g", at: 1, state: pending}, {claim: "a", gang: "g", at: 2, state: pending}, {claim: "b", gang: "g", at: 3, state: pending}, {claim: "b", gang: "g", at: 4, state: pending},
		}, "", []string{"a", "b"}},
		"the last of the gang": {3, gang, []made{
			{claim: "b", gang: "g", at: 1, state: pending}, {claim: "b", gang: "g", at: 2, state: pending}, {claim: "a", gang: "g", at: 3, state: pending}, {claim: "a", gang: "g", at: 4, state: pending},
		}, "host h1 has room for 3 of the 4 GPUs that the gang wants there", []string{"a", "b"}},
		"one lease for both":                {2, two, []made{{claim: "a", count: 2, state: pending}}, "", nil},
		"one lease has both":                {3, two, []made{{claim: "a", count: 2, state: active}}, "", nil},
		"another one has two":               {3, two, []made{{claim: "b", count: 2, state: active}}, "host h1 has room for 1 of the claim's 2 GPUs", nil},
		"another one of the gang of two":    {3, gang, []made{{claim: "b", gang: "g", at: 1, count: 2, state: pending}}, "host h1 has room for 3 of the 4 GPUs that the gang wants there", nil},
		"nothing but access for monitoring": {1, Need{Claim: "a"}, nil, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := New(nil, "c", func(string) {}, func() {})
			for i, m := range test.leases {
				spec := &dxpuv1.LeaseSpec{Count: m.count, HostId: "h1", Labels: map[string]string{claims.LabelCluster: "c", claims.LabelClaim: m.claim}}
				if m.gang != "" {
					spec.Gang = &dxpuv1.Gang{Name: m.gang, Size: 4}
				}
				w.Put(&dxpuv1.Lease{Id: string(rune('k' - i)), State: m.state, Spec: spec, CreateTime: timestamppb.New(time.Unix(m.at, 0))})
			}
			h := &dxpuv1.Host{Node: &dxpuv1.NodeInfo{Connected: true}, Slots: make([]*dxpuv1.HostSlot, test.free)}
			for i := range h.Slots {
				h.Slots[i] = &dxpuv1.HostSlot{}
			}
			again := w.SetSnapshot(&Snapshot{Hosts: map[string]*dxpuv1.Host{"h1": h}})
			slices.Sort(again)
			if again = slices.Compact(again); !slices.Equal(again, test.again) {
				t.Errorf("claims %q are looked at again, want %q", again, test.again)
			}
			if got := w.HostShut("h1", test.need); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}
