package inventory

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// TestNodes: the nodes that get GPUs by the selector, as the scheduler reads it, whether it names
// the others or not.
func TestNodes(t *testing.T) {
	slot := &dxpuv1.Host{Node: &dxpuv1.NodeInfo{Connected: true}, Slots: []*dxpuv1.HostSlot{{}}}
	full := &dxpuv1.Host{Node: &dxpuv1.NodeInfo{Connected: true}}
	for name, tc := range map[string]struct {
		without int // nodes without a host
		named   bool
	}{
		"all nodes but these have a host": {0, true},
		"few nodes have none":             {maxNamed - 1, true},
		"many nodes have none":            {maxNamed, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := State{
				Hosts: map[string]*dxpuv1.Host{"h1": slot, "h2": slot, "full": full},
				Nodes: map[string]string{"w1": "h1", "w2": "h2", "w-full": "full", "w-gone": "gone"},
			}
			for i := range tc.without {
				s.Nodes[fmt.Sprintf("control-%d", i)] = ""
			}
			inv := New(s)
			p := inv.Resources().Pools["dxpu/none"]
			if is := len(p.NodeSelector.NodeSelectorTerms[0].MatchFields) > 0; is != tc.named {
				t.Errorf("selector %v, by name: %v", p.NodeSelector, is)
			}
			want := []string{"w-gone", "w1", "w2"} // the claims on w-gone fail, with a reason
			if got := matching(t, p.NodeSelector, s.Nodes); !slices.Equal(got, want) {
				t.Errorf("nodes %q; want %q", got, want)
			}
			if got := matching(t, noNodes(), s.Nodes); len(got) > 0 {
				t.Errorf("no nodes are %q", got)
			}
			s.Hosts = map[string]*dxpuv1.Host{"h1": slot, "h2": slot, "full": slot}
			if now := New(s); now.Equal(inv) || now.SameClosed(inv) {
				t.Error("equal, although a host has a slot again")
			}
		})
	}
	all := New(State{Hosts: map[string]*dxpuv1.Host{"h1": slot}, Nodes: map[string]string{"w1": "h1"}})
	if p := all.Resources().Pools["dxpu/none"]; !p.AllNodes || p.NodeSelector != nil {
		t.Errorf("where no node is left out: %+v", p)
	}
}

// matching returns the nodes that a selector matches.
func matching(t *testing.T, s *corev1.NodeSelector, nodes map[string]string) (out []string) {
	t.Helper()
	parsed, err := nodeaffinity.NewNodeSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	for name, host := range nodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if host != "" {
			n.Labels = map[string]string{HostLabel: host}
		}
		if parsed.Match(n) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// TestUses: a box is for no node as soon as claims have all of it, before the pool says so.
func TestUses(t *testing.T) {
	yes := true
	part := func(memory, compute string) resourceapi.DeviceRequestAllocationResult {
		return resourceapi.DeviceRequestAllocationResult{Driver: Driver, Device: "b1-0", ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
			CapacityMemory: resource.MustParse(memory), CapacityCompute: resource.MustParse(compute),
		}}
	}
	other, monitoring := part("80Gi", "100"), part("80Gi", "100")
	other.Driver, monitoring.AdminAccess = "gpu.example.com", &yes
	whole := resourceapi.DeviceRequestAllocationResult{Driver: Driver, Device: "b1-0"}
	for name, tc := range map[string]struct {
		claims []resourceapi.DeviceRequestAllocationResult
		used   bool
	}{
		"nothing":                  {nil, false},
		"the whole":                {[]resourceapi.DeviceRequestAllocationResult{part("80Gi", "100")}, true},
		"all memory, in parts":     {[]resourceapi.DeviceRequestAllocationResult{part("30Gi", "1"), part("50Gi", "1")}, true},
		"all but a step of memory": {[]resourceapi.DeviceRequestAllocationResult{part("30Gi", "1"), part("51199Mi", "1")}, false},
		"all compute, in parts":    {[]resourceapi.DeviceRequestAllocationResult{part("1Gi", "70"), part("1Gi", "30")}, true},
		"of another driver":        {[]resourceapi.DeviceRequestAllocationResult{other}, false},
		"for monitoring":           {[]resourceapi.DeviceRequestAllocationResult{monitoring}, false},
		"of an undivided device":   {[]resourceapi.DeviceRequestAllocationResult{whole}, false},
	} {
		t.Run(name, func(t *testing.T) {
			uses := Uses{}
			for i := range tc.claims {
				uses.Add(&tc.claims[i])
			}
			p := New(State{GPUs: []*dxpuv1.GPU{divided()}, Uses: uses}).Resources().Pools["dxpu/b1"]
			if is := p.NodeSelector.NodeSelectorTerms[0].MatchFields; (len(is) > 0) != tc.used {
				t.Errorf("selector %v; used up: %v", is, tc.used)
			}
		})
	}
}
