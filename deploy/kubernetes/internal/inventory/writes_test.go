package inventory

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// writes returns the number of slices that differ: those that are written to the API server.
func writes(before, after *Inventory) (n int) {
	old := before.Resources().Pools
	for name, p := range after.Resources().Pools {
		if !equality.Semantic.DeepEqual(p, old[name]) {
			n += len(p.Slices)
		}
	}
	return n
}

// TestSliceWrites: of 2,000 GPUs in 250 boxes, a lease that fills its host is a write for each box
// with a free GPU, and for no other: the slices name the nodes that get none. When a GPU of another
// box is free again, the slice of this box names the nodes of that moment.
func TestSliceWrites(t *testing.T) {
	for _, divided := range []bool{false, true} {
		for _, free := range []int{250, 3, 0} {
			t.Run(fmt.Sprintf("%d boxes with a free GPU, divided %v", free, divided), func(t *testing.T) { sliceWrites(t, divided, free) })
		}
	}
}

func sliceWrites(t *testing.T, divided bool, free int) {
	const boxes, gpus, hosts = 250, 8, 200
	s := State{Hosts: map[string]*dxpuv1.Host{}, Nodes: map[string]string{}, Uses: Uses{}}
	for i := range hosts {
		id := fmt.Sprintf("h%03d", i)
		s.Hosts[id] = &dxpuv1.Host{Node: &dxpuv1.NodeInfo{Connected: true}, Slots: []*dxpuv1.HostSlot{{}, {}}}
		s.Nodes["w"+id] = id
	}
	for b := range boxes {
		for g := range gpus {
			d := gpu(fmt.Sprintf("b%03d/%d", b, g), func(g *dxpuv1.GPU) {
				if divided {
					g.Device.ShareModes, g.FreeMemoryBytes, g.FreeCompute, g.FreeParts = []dxpuv1.ShareMode{dxpuv1.ShareMode_SHARE_MODE_SPACE}, 80*gib, 1000, 4
				}
			})
			s.GPUs = append(s.GPUs, d)
			switch {
			case b < free && g == 0:
			case divided:
				s.Uses[DeviceName(d.Id)] = use{memory: 80 * gib, compute: allCompute}
			default:
				s.Uses[DeviceName(d.Id)] = use{whole: true}
			}
		}
	}
	renew := func(what string, want int) {
		t.Helper()
		after := New(s)
		if got := writes(s.Before, after); got != want {
			t.Errorf("%s: %d slices are written; want %d", what, got, want)
		}
		if want > 0 && after.Equal(s.Before) {
			t.Errorf("%s: equal, so it is not published", what)
		}
		s.Before = after
	}
	s.Before = New(s)
	s.Hosts["h007"].Slots[0].BindingId = "b-1"
	renew("a lease on a host with another slot", 0)
	s.Hosts["h007"].Slots[1].BindingId = "b-2"
	renew("a lease that fills its host", free)
	s.Hosts["h008"].Slots = nil
	renew("one that fills another host", free)
	delete(s.Uses, "b249-7")
	renew("a GPU of a box that has none, free again", map[bool]int{true: 0, false: 1}[free == boxes])
	if got := matching(t, s.Before.Resources().Pools["dxpu/b249"].NodeSelector, s.Nodes); len(got) != hosts-2 {
		t.Errorf("its box is for %d nodes; want %d", len(got), hosts-2)
	}
	s.Hosts["h007"].Slots[1].BindingId = ""
	renew("a host with a slot again", min(free+1, boxes))
}
