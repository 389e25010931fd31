package inventory

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// machines returns a pool with a box for all hosts, and two machines with GPUs of their own: m1,
// whose GPU can be divided, and m2.
func machines() State {
	host := func(peer string) *dxpuv1.Host {
		return &dxpuv1.Host{Node: &dxpuv1.NodeInfo{Connected: true, LocalPeer: peer}, Slots: []*dxpuv1.HostSlot{{}, {}}}
	}
	own := divided()
	own.Id, own.BoxId, own.LocalHost = "m1-gpus/0", "m1-gpus", "m1"
	return State{
		GPUs:  []*dxpuv1.GPU{gpu("b1/0", nil), own, gpu("m2-gpus/0", func(g *dxpuv1.GPU) { g.LocalHost = "m2" })},
		Hosts: map[string]*dxpuv1.Host{"h1": host(""), "m1": host("m1-gpus"), "m2": host("m2-gpus")},
		Nodes: map[string]string{"w1": "h1", "w2": "m1", "w3": "m2", "control": ""},
	}
}

// TestLocalNodes: the GPUs of a machine are for the node of its host alone, and this node gets no
// others.
func TestLocalNodes(t *testing.T) {
	for name, tc := range map[string]struct {
		change         func(*State)
		remote, m1, m2 []string // the nodes that get the GPUs of each box
	}{
		"each host has a node": {func(*State) {}, []string{"w1"}, []string{"w2"}, []string{"w3"}},
		"a host has no node":   {func(s *State) { delete(s.Nodes, "w2") }, []string{"w1"}, nil, []string{"w3"}},
		"the node of a host is another one now": {
			func(s *State) { s.Nodes["w1"], s.Nodes["w2"] = "m1", "h1" },
			[]string{"w2"},
			[]string{"w1"},
			[]string{"w3"},
		},
		"a host is cordoned":     {func(s *State) { s.Hosts["m1"].Node.Cordoned = true }, []string{"w1"}, nil, []string{"w3"}},
		"a host is full":         {func(s *State) { s.Hosts["m2"].Slots = nil }, []string{"w1"}, []string{"w2"}, nil},
		"leases wait for a host": {func(s *State) { s.Queued = map[string]int{"m1": 2} }, []string{"w1"}, nil, []string{"w3"}},
		"a box names a host that does not name it": {
			func(s *State) { s.Hosts["m1"].Node.LocalPeer = "" },
			[]string{"w1", "w2"},
			nil,
			[]string{"w3"},
		},
		"a host names the box of another": {func(s *State) { s.Hosts["m2"].Node.LocalPeer = "m1-gpus" }, []string{"w1"}, []string{"w2"}, nil},
		"a host that the pool has not":    {func(s *State) { delete(s.Hosts, "m1") }, []string{"w1", "w2"}, nil, []string{"w3"}},
		// The controller fails their claims, and says why.
		"two nodes name one host": {func(s *State) { s.Nodes["w9"] = "m1" }, []string{"w1"}, []string{"w2"}, []string{"w3"}},
		"more nodes than a selector names": {func(s *State) {
			for i := range maxNamed {
				s.Nodes["other-"+string(rune('a'+i))] = ""
			}
		}, []string{"w1"}, []string{"w2"}, []string{"w3"}},
		"claims have all of it": {func(s *State) {
			s.Uses = Uses{"m1-gpus-0": use{memory: 80 << 30, compute: 100}}
		}, []string{"w1"}, nil, []string{"w3"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := machines()
			before := New(s)
			tc.change(&s)
			inv := New(s)
			pools := inv.Resources().Pools
			for box, want := range map[string][]string{"b1": tc.remote, "m1-gpus": tc.m1, "m2-gpus": tc.m2} {
				if got := matching(t, pools["dxpu/"+box].NodeSelector, s.Nodes); !slices.Equal(got, want) {
					t.Errorf("box %s is for the nodes %q; want %q", box, got, want)
				}
				if terms := pools["dxpu/"+box].NodeSelector.NodeSelectorTerms; len(terms) != 1 {
					t.Errorf("box %s: %d terms; the API server wants one", box, len(terms))
				}
			}
			same := slices.Equal(tc.m1, []string{"w2"}) && slices.Equal(tc.m2, []string{"w3"})
			if inv.Equal(before) && !same {
				t.Error("equal to the inventory before, so it would not be published")
			}
		})
	}
}

// TestLocalAllocation: the scheduler's own allocator gives a node the GPUs of its machine, parts of
// them too, and no others.
func TestLocalAllocation(t *testing.T) {
	s := machines()
	inv := New(s)
	sched := newScheduler(inv)
	claim := func(selector, capacity string) resourceapi.DeviceClaim {
		return resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request("gpu", selector, capacity)}}
	}
	for _, step := range []struct{ node, selector, capacity, want string }{
		{"w1", "device.attributes['gpu.dxpu.dev'].model == 'H100'", "", "b1-0"},
		{"w1", "", "", "none"},
		{"w2", "", "memory=20Gi,compute=30", "m1-gpus-0=20Gi/300"},
		{"w2", "device.attributes['gpu.dxpu.dev'].localHost == 'm1'", "memory=60Gi,compute=70", "m1-gpus-0=60Gi/700"},
		{"w2", "", "memory=1Gi,compute=1", "none"},
		{"w3", "", "", "m2-gpus-0"},
		{"w3", "", "", "none"},
	} {
		found, err := sched.allocateOn(t.Context(), step.node, s.Nodes[step.node], claim(step.selector, step.capacity))
		if err != nil {
			t.Fatal(err)
		}
		if got := describe(inv, found); got != step.want {
			t.Errorf("%s of %q on %s: %s; want %s", step.selector, step.capacity, step.node, got, step.want)
		}
	}
}
