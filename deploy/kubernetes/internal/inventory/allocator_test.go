package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// scheduler allocates devices of an inventory as the scheduler of Kubernetes does: with its
// own allocator.
type scheduler struct {
	slices []*resourceapi.ResourceSlice
	state  structured.AllocatedState
}

func newScheduler(inv *Inventory) *scheduler {
	s := &scheduler{state: structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}}
	for name, p := range inv.Resources().Pools {
		for i, part := range p.Slices {
			slice := &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, i)},
				Spec: resourceapi.ResourceSliceSpec{
					Driver: Driver, Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(p.Slices))},
					NodeSelector: p.NodeSelector, Devices: part.Devices,
				},
			}
			if p.AllNodes {
				slice.Spec.AllNodes = &p.AllNodes
			}
			s.slices = append(s.slices, slice)
		}
	}
	return s
}

type classes struct{}

func (classes) List() ([]*resourceapi.DeviceClass, error) { return nil, errors.New("not called") }

func (classes) Get(name string) (*resourceapi.DeviceClass, error) {
	c := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == '" + Driver + "'"}}}
	return c, nil
}

// request returns a request of a claim. capacity is such as "memory=16Gi,compute=30".
func request(name, selector, capacity string, tolerations ...resourceapi.DeviceToleration) resourceapi.DeviceRequest {
	exactly := &resourceapi.ExactDeviceRequest{
		DeviceClassName: Driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1, Tolerations: tolerations,
	}
	if selector != "" {
		exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: selector}}}
	}
	if capacity != "" {
		exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		for c := range strings.SplitSeq(capacity, ",") {
			name, value, _ := strings.Cut(c, "=")
			exactly.Capacity.Requests[resourceapi.QualifiedName(name)] = resource.MustParse(value)
		}
	}
	return resourceapi.DeviceRequest{Name: name, Exactly: exactly}
}

// allocate allocates a claim on a node whose host is given, and returns the devices, nil if
// the scheduler finds none.
func (s *scheduler) allocate(ctx context.Context, host string, spec resourceapi.DeviceClaim) ([]resourceapi.DeviceRequestAllocationResult, error) {
	return s.allocateOn(ctx, "n", host, spec)
}

func (s *scheduler) allocateOn(ctx context.Context, name, host string, spec resourceapi.DeviceClaim) ([]resourceapi.DeviceRequestAllocationResult, error) {
	a, err := structured.NewAllocator(ctx, structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true},
		s.state, classes{}, s.slices, cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		return nil, err
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if host != "" {
		node.Labels = map[string]string{HostLabel: host}
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "lab", UID: "u"}, Spec: resourceapi.ResourceClaimSpec{Devices: spec}}
	found, err := a.Allocate(ctx, node, []*resourceapi.ResourceClaim{claim})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	for _, r := range found[0].Devices.Results {
		if r.AdminAccess != nil && *r.AdminAccess {
			continue // the scheduler does not count it as a use
		}
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		if r.ShareID == nil {
			s.state.AllocatedDevices.Insert(id)
			continue
		}
		s.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
		s.state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
	}
	return found[0].Devices.Results, nil
}

// describe names the devices of a claim, with the part that the claim has of each.
func describe(inv *Inventory, results []resourceapi.DeviceRequestAllocationResult) string {
	if results == nil {
		return "none"
	}
	var out []string
	for _, r := range results {
		text := r.Device
		p, err := inv.Part(&r)
		if err != nil {
			text += " refused"
		}
		if p != nil {
			text += fmt.Sprintf("=%dGi/%d", p.MemoryBytes>>30, p.Compute)
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestAllocator: the scheduler's own allocator gives claims the devices of a pool. Each case
// is a series of claims; none of them is given back.
func TestAllocator(t *testing.T) {
	one := func(selector, capacity string, tolerations ...resourceapi.DeviceToleration) resourceapi.DeviceClaim {
		return resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request("gpu", selector, capacity, tolerations...)}}
	}
	monitoring := func(capacity string) resourceapi.DeviceClaim {
		c, yes := one("", capacity), true
		c.Requests[0].Exactly.AdminAccess = &yes
		return c
	}
	two := func(capacity string, constraints ...resourceapi.DeviceConstraint) resourceapi.DeviceClaim {
		return resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request("a", "", capacity), request("b", "", capacity)}, Constraints: constraints}
	}
	matches := func(attribute resourceapi.FullyQualifiedName) resourceapi.DeviceConstraint {
		return resourceapi.DeviceConstraint{MatchAttribute: &attribute}
	}
	differs := func(attribute resourceapi.FullyQualifiedName) resourceapi.DeviceConstraint {
		return resourceapi.DeviceConstraint{DistinctAttribute: &attribute}
	}
	failed := gpu("b1/0", func(g *dxpuv1.GPU) { g.Health = dxpuv1.Health_HEALTH_FAILED })
	tainted := gpu("b1/0", func(g *dxpuv1.GPU) { g.Taints = []*dxpuv1.Taint{{Key: "team", Value: "ml", Effect: noSchedule}} })
	ours := resourceapi.DeviceToleration{Key: "team", Operator: resourceapi.DeviceTolerationOpEqual, Value: "ml", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	theirs := ours
	theirs.Value = "web"
	slots := func(taken ...string) *dxpuv1.Host {
		h := &dxpuv1.Host{Node: &dxpuv1.NodeInfo{Connected: true}}
		for _, b := range taken {
			h.Slots = append(h.Slots, &dxpuv1.HostSlot{BindingId: b})
		}
		return h
	}
	for name, tc := range map[string]struct {
		gpus   []*dxpuv1.GPU
		hosts  map[string]*dxpuv1.Host
		host   string // "h1" if empty
		claims []resourceapi.DeviceClaim
		want   string
	}{
		"whole GPUs, until none is left": {
			gpus: []*dxpuv1.GPU{gpu("b1/0", nil), gpu("b2/0", nil)}, claims: []resourceapi.DeviceClaim{one("", ""), one("", ""), one("", "")}, want: "b1-0, b2-0, none",
		},
		"by an attribute": {
			gpus: []*dxpuv1.GPU{gpu("b1/0", nil), gpu("b2/3", nil)}, claims: []resourceapi.DeviceClaim{one("device.attributes['gpu.dxpu.dev'].gpu == 'b2/3'", "")}, want: "b2-3",
		},
		"two on one NVLink domain": {
			gpus: []*dxpuv1.GPU{gpu("b1/0", nil), gpu("b2/0", nil), gpu("b2/1", nil)}, claims: []resourceapi.DeviceClaim{two("", matches("gpu.dxpu.dev/nvlinkDomain"))}, want: "b2-0 b2-1",
		},
		"a node without a host": {gpus: []*dxpuv1.GPU{gpu("b1/0", nil)}, host: "-", claims: []resourceapi.DeviceClaim{one("", "")}, want: "none"},
		"a host without a free slot": {
			gpus: []*dxpuv1.GPU{gpu("b1/0", nil)}, hosts: map[string]*dxpuv1.Host{"h1": slots("x"), "h2": slots("")}, claims: []resourceapi.DeviceClaim{one("", "")}, want: "none",
		},
		"beside that host": {
			gpus: []*dxpuv1.GPU{gpu("b1/0", nil)}, hosts: map[string]*dxpuv1.Host{"h1": slots("x"), "h2": slots("")}, host: "h2", claims: []resourceapi.DeviceClaim{one("", "")}, want: "b1-0",
		},
		"a failed GPU": {gpus: []*dxpuv1.GPU{failed, gpu("b2/0", nil)}, claims: []resourceapi.DeviceClaim{one("", ""), one("", "")}, want: "b2-0, none"},
		"a taint, tolerated and not": {
			gpus: []*dxpuv1.GPU{tainted}, claims: []resourceapi.DeviceClaim{one("", ""), one("", "", theirs), one("", "", ours)}, want: "none, none, b1-0",
		},
		"parts, until there is no memory": {
			gpus: []*dxpuv1.GPU{divided()}, claims: []resourceapi.DeviceClaim{one("", "memory=40Gi,compute=30"), one("", "memory=41Gi,compute=30"), one("", "memory=40Gi,compute=30"), one("", "memory=1Mi,compute=1")},
			want: "b1-0=40Gi/300, none, b1-0=40Gi/300, none",
		},
		"parts, until there is no compute": {
			gpus: []*dxpuv1.GPU{divided()}, claims: []resourceapi.DeviceClaim{one("", "memory=1Gi,compute=70"), one("", "memory=1Gi,compute=31"), one("", "memory=1Gi,compute=30")},
			want: "b1-0=1Gi/700, none, b1-0=1Gi/300",
		},
		"as many parts as the GPU has": {
			gpus: []*dxpuv1.GPU{divided()}, claims: slices.Repeat([]resourceapi.DeviceClaim{one("", "memory=1Gi,compute=1")}, 5),
			want: strings.Repeat("b1-0=1Gi/10, ", 4) + "none",
		},
		"steps, rounded up": {
			gpus: []*dxpuv1.GPU{divided()}, claims: []resourceapi.DeviceClaim{one("", "memory=1073741823,compute=900m")}, want: "b1-0=1Gi/10",
		},
		"the whole without a capacity": {
			gpus: []*dxpuv1.GPU{divided()}, claims: []resourceapi.DeviceClaim{one("", ""), one("", "memory=1Gi,compute=1")}, want: "b1-0, none",
		},
		"no whole beside a part": {
			gpus: []*dxpuv1.GPU{divided()}, claims: []resourceapi.DeviceClaim{one("", "memory=1Gi,compute=1"), one("", "")}, want: "b1-0=1Gi/10, none",
		},
		"what others leave": {
			gpus: []*dxpuv1.GPU{divided(part("x", 30, 250))}, claims: []resourceapi.DeviceClaim{one("", ""), one("", "memory=51Gi,compute=10"), one("", "memory=50Gi,compute=75")},
			want: "none, none, b1-0=50Gi/750",
		},
		// The scheduler rounds the largest number up to a negative one, so it allocates.
		"below zero and beyond all numbers": {
			gpus: []*dxpuv1.GPU{divided()}, want: "b1-0=0Gi/10, none, b1-0 refused, b1-0=1Gi/10",
			claims: []resourceapi.DeviceClaim{one("", "memory=-5Gi,compute=-1"), one("", "memory=81Gi,compute=1"), one("", "memory=9223372036854775807,compute=1"), one("", "memory=1Gi,compute=1")},
		},
		"monitoring beside a user of the whole": {
			gpus: []*dxpuv1.GPU{gpu("b1/0", nil)}, claims: []resourceapi.DeviceClaim{one("", ""), one("", ""), monitoring("")}, want: "b1-0, none, b1-0",
		},
		"monitoring of a divided GPU, within what is free": {
			gpus: []*dxpuv1.GPU{divided()}, want: "b1-0=40Gi/500, none, b1-0=0Gi/10, b1-0=40Gi/500",
			claims: []resourceapi.DeviceClaim{one("", "memory=40Gi,compute=50"), monitoring(""), monitoring("memory=1Mi,compute=1"), one("", "memory=40Gi,compute=50")},
		},
		"two parts of one GPU": {gpus: []*dxpuv1.GPU{divided()}, claims: []resourceapi.DeviceClaim{two("memory=1Gi,compute=1")}, want: "b1-0=1Gi/10 b1-0=1Gi/10"},
		"no two parts of one GPU": {
			gpus: []*dxpuv1.GPU{divided()}, claims: []resourceapi.DeviceClaim{two("memory=1Gi,compute=1", differs("gpu.dxpu.dev/gpu"))}, want: "none",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inv := New(State{GPUs: tc.gpus, Hosts: tc.hosts})
			s := newScheduler(inv)
			host := strings.TrimPrefix(tc.host, "-")
			if tc.host == "" {
				host = "h1"
			}
			var got []string
			for _, c := range tc.claims {
				results, err := s.allocate(t.Context(), host, c)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range results { // the binding of the pod waits for the controller
					if !slices.Equal(r.BindingConditions, []string{Attached}) || !slices.Equal(r.BindingFailureConditions, []string{Failed}) {
						t.Errorf("%s: conditions %q, failures %q", r.Device, r.BindingConditions, r.BindingFailureConditions)
					}
				}
				got = append(got, describe(inv, results))
			}
			if text := strings.Join(got, ", "); text != tc.want {
				t.Errorf("allocated %s; want %s", text, tc.want)
			}
		})
	}
}

// TestUsedUp: a box whose GPUs the cluster's own claims have, all of each, is for no node, which
// spares the scheduler the selectors of its devices. A GPU with something left is for all nodes.
func TestUsedUp(t *testing.T) {
	whole := func(lease string) *dxpuv1.GPU {
		g := divided()
		g.FreeMemoryBytes, g.FreeCompute, g.FreeParts = 0, 0, 0
		g.LeaseId, g.State = lease, dxpuv1.GPUState_GPU_STATE_BOUND
		return g
	}
	second := whole("l-1")
	second.Id = "b1/1"
	undivided := gpu("b1/0", func(g *dxpuv1.GPU) { g.LeaseId, g.State = "l-1", dxpuv1.GPUState_GPU_STATE_BOUND })
	for name, tc := range map[string]struct {
		gpus []*dxpuv1.GPU
		used bool
	}{
		"whole":                      {[]*dxpuv1.GPU{whole("l-1")}, true},
		"both":                       {[]*dxpuv1.GPU{whole("l-1"), second}, true},
		"one of two":                 {[]*dxpuv1.GPU{divided(), second}, false},
		"all memory in parts":        {[]*dxpuv1.GPU{divided(part("l-1", 30, 300), part("l-1", 50, 300))}, true},
		"all compute in parts":       {[]*dxpuv1.GPU{divided(part("l-1", 30, 500), part("l-1", 20, 495))}, true},
		"some left":                  {[]*dxpuv1.GPU{divided(part("l-1", 30, 500), part("l-1", 20, 490))}, false},
		"the rest is that of others": {[]*dxpuv1.GPU{divided(part("l-1", 30, 500), part("x", 50, 500))}, true},
		// A claim that tolerates the taint may wait for it.
		"of others":                     {[]*dxpuv1.GPU{whole("x")}, false},
		"all of it in parts, of others": {[]*dxpuv1.GPU{divided(part("x", 80, 1000))}, false},
		"not divisible":                 {[]*dxpuv1.GPU{undivided}, false}, // the scheduler skips it by itself, and monitoring may ask for it
	} {
		t.Run(name, func(t *testing.T) {
			inv := New(State{GPUs: tc.gpus, Ours: map[string]bool{"l-1": true}})
			monitor := request("gpu", "", "")
			yes := true
			monitor.Exactly.AdminAccess, monitor.Exactly.Tolerations = &yes, []resourceapi.DeviceToleration{{Operator: resourceapi.DeviceTolerationOpExists}}
			found, err := newScheduler(inv).allocate(t.Context(), "h1", resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{monitor}})
			if err != nil || (len(found) == 0) != tc.used {
				t.Errorf("devices %v, %v; used up %v", found, err, tc.used)
			}
			if tc.used && New(State{GPUs: []*dxpuv1.GPU{divided()}}).Equal(inv) {
				t.Error("equal to a box that is free") // and would not be published
			}
		})
	}
}
