package inventory

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func gpu(id string, change func(*dxpuv1.GPU)) *dxpuv1.GPU {
	box, _, _ := strings.Cut(id, "/")
	g := &dxpuv1.GPU{
		Id: id, BoxId: box, Health: dxpuv1.Health_HEALTH_OK, State: dxpuv1.GPUState_GPU_STATE_FREE,
		Device: &dxpuv1.Device{Model: "H100", MemoryBytes: 80 << 30, NvlinkDomain: "nv0"},
	}
	if change != nil {
		change(g)
	}
	return g
}

const noSchedule, noExecute = dxpuv1.TaintEffect_TAINT_EFFECT_NO_SCHEDULE, dxpuv1.TaintEffect_TAINT_EFFECT_NO_EXECUTE

func TestTaints(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*dxpuv1.GPU)
		want   string
	}{
		"free":        {nil, ""},
		"failed":      {func(g *dxpuv1.GPU) { g.Health = dxpuv1.Health_HEALTH_FAILED }, "dxpu.dev/health=failed:NoExecute"},
		"degraded":    {func(g *dxpuv1.GPU) { g.Health = dxpuv1.Health_HEALTH_DEGRADED }, "dxpu.dev/health=degraded:NoSchedule"},
		"unreachable": {func(g *dxpuv1.GPU) { g.Health = dxpuv1.Health_HEALTH_UNREACHABLE }, "dxpu.dev/health=unreachable:NoSchedule"},
		"cordoned":    {func(g *dxpuv1.GPU) { g.Cordoned = true }, "dxpu.dev/cordoned=:NoSchedule"},
		"draining":    {func(g *dxpuv1.GPU) { g.Cordoned, g.Draining = true, true }, "dxpu.dev/draining=:NoExecute"},
		"errors":      {func(g *dxpuv1.GPU) { g.QuarantinedUntil = timestamppb.New(time.Unix(9, 0)) }, "dxpu.dev/quarantine=:NoSchedule"},
		"ours":        {func(g *dxpuv1.GPU) { g.LeaseId, g.State = "l-1", dxpuv1.GPUState_GPU_STATE_BOUND }, ""},
		"in parts":    {func(g *dxpuv1.GPU) { g.State = dxpuv1.GPUState_GPU_STATE_SHARED }, "dxpu.dev/leased=:NoSchedule"},
		"taints of operators": {func(g *dxpuv1.GPU) {
			g.BoxId = "lab"
			g.Taints = []*dxpuv1.Taint{{Key: "team", Value: "ml", Effect: noSchedule}, {Key: "lab", Effect: noExecute}, {Key: "a/b/c", Value: "-", Effect: noSchedule}}
		}, "lab=:NoExecute team=ml:NoSchedule dxpu.dev/taint=:NoSchedule"},
		"of others": {func(g *dxpuv1.GPU) { g.LeaseId, g.State = "l-2", dxpuv1.GPUState_GPU_STATE_BOUND }, "dxpu.dev/leased=:NoSchedule"},
		"spare":     {func(g *dxpuv1.GPU) { g.Device.Model = "T4" }, "dxpu.dev/spare=:NoSchedule"},
		"in use, of a model with spares only": {func(g *dxpuv1.GPU) {
			g.Device.Model, g.LeaseId, g.State = "T4", "l-1", dxpuv1.GPUState_GPU_STATE_BOUND
		}, ""},
		"of the machine's own, which is no spare": {func(g *dxpuv1.GPU) { g.Device.Model, g.LocalHost = "T4", "m1" }, ""},
		"box out of service":                      {func(g *dxpuv1.GPU) { g.State = dxpuv1.GPUState_GPU_STATE_UNAVAILABLE }, "dxpu.dev/cordoned=:NoSchedule"},
		"lost":                                    {func(g *dxpuv1.GPU) { g.Id, g.LeaseId, g.State = "b9/9", "l-1", dxpuv1.GPUState_GPU_STATE_BOUND }, "dxpu.dev/lost=:NoExecute"},
	} {
		t.Run(name, func(t *testing.T) {
			inv := New(State{
				GPUs: []*dxpuv1.GPU{gpu("b1/0", tc.change)}, Ours: map[string]bool{"l-1": true}, Lost: map[string]bool{"b9-9": true},
				BoxTaints: map[string][]*dxpuv1.Taint{"lab": {{Key: "lab", Effect: noExecute}}},
				Spares:    []*dxpuv1.SpareStatus{{Model: "T4", Free: 2, Held: 2}, {Model: "H100", Free: 3, Held: 2}},
			})
			var got []string
			for _, x := range inv.Devices[0].Taints {
				got = append(got, fmt.Sprintf("%s=%s:%s", x.Key, x.Value, x.Effect))
			}
			if s := strings.Join(got, " "); s != tc.want {
				t.Errorf("taints %q, want %q", s, tc.want)
			}
		})
	}
}

// TestDeviceNames: names are DNS labels, and different GPUs have different ones.
func TestDeviceNames(t *testing.T) {
	label := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	long := strings.Repeat("b", 80)
	seen := map[string]string{}
	for _, id := range []string{"b1/2", "b1-2/0", "b1/20", "B1/2", "b1.x/2", "b1_x/2", "b1-x/2", "-b/2", long + "/1", long + "/11", long + "c/1", "b-x0123456789abcdef/0"} {
		name := DeviceName(id)
		if !label.MatchString(name) {
			t.Errorf("%s: %q is not a DNS label", id, name)
		}
		if seen[name] != "" {
			t.Errorf("%s and %s are both %s", id, seen[name], name)
		}
		seen[name] = id
	}
	if DeviceName("box-1/2") != "box-1-2" {
		t.Errorf("box-1/2 is %s", DeviceName("box-1/2"))
	}
}

func TestDevices(t *testing.T) {
	var gpus []*dxpuv1.GPU
	for i := range 100 {
		gpus = append(gpus, gpu(fmt.Sprintf("b%03d/0", i), nil), gpu(fmt.Sprintf("large/%d", i), nil))
	}
	gpus = append(gpus, &dxpuv1.GPU{Id: "b999/1"}) // its device was removed
	inv := New(State{GPUs: gpus})
	inv.SetRacks(map[string]string{"b000": "r1"})
	pools := inv.Resources().Pools
	n := 0
	for name, p := range pools {
		if name != "dxpu/large" && len(p.Slices) != 1 {
			t.Errorf("pool %s of one box has %d slices", name, len(p.Slices))
		}
		for _, s := range p.Slices {
			if len(s.Devices) > devicesPerSlice {
				t.Errorf("a slice of %d devices", len(s.Devices))
			}
			n += len(s.Devices)
		}
	}
	if n != 200 || len(pools) != 101 {
		t.Errorf("%d devices in %d pools, want 200 in 101", n, len(pools))
	}
	d := inv.Devices[0]
	text := func(name resourceapi.QualifiedName) string { return *d.Attributes[name].StringValue }
	memory := d.Capacity["memory"].Value
	if text("rack") != "r1" || text("model") != "H100" || text("nvlinkDomain") != "b000/nv0" || memory.String() != "80Gi" {
		t.Errorf("device %+v", d)
	}
	if id, ok := inv.GPU("b007-0"); !ok || id != "b007/0" {
		t.Errorf("device b007-0 is GPU %q", id)
	}
	if e := (&Inventory{}).Resources(); len(e.Pools["dxpu/none"].Slices) != 1 {
		t.Error("a driver without devices publishes no slice")
	}
}

func TestClosedHosts(t *testing.T) {
	host := func(free int, change func(*dxpuv1.NodeInfo)) *dxpuv1.Host {
		h := &dxpuv1.Host{Node: &dxpuv1.NodeInfo{Connected: true}, Slots: []*dxpuv1.HostSlot{{BindingId: "b-1"}}}
		for range free {
			h.Slots = append(h.Slots, &dxpuv1.HostSlot{})
		}
		if change != nil {
			change(h.Node)
		}
		return h
	}
	inv := New(State{
		Hosts: map[string]*dxpuv1.Host{
			"free": host(1, nil), "full": host(0, nil), "queued": host(1, nil), "less-queued": host(2, nil),
			"silent": host(1, func(n *dxpuv1.NodeInfo) { n.Connected = false }), "cordoned": host(1, func(n *dxpuv1.NodeInfo) { n.Cordoned = true }),
			"draining": host(1, func(n *dxpuv1.NodeInfo) { n.Draining = true }), "unstable": host(1, func(n *dxpuv1.NodeInfo) { n.Unstable = true }),
		},
		Queued: map[string]int{"queued": 1, "less-queued": 1},
	})
	got := inv.Resources().Pools["dxpu/none"].NodeSelector.NodeSelectorTerms[0].MatchExpressions
	if want := "[{dxpu.dev.node-restriction.kubernetes.io/host Exists []} {dxpu.dev.node-restriction.kubernetes.io/host NotIn [cordoned draining full queued silent unstable]}]"; fmt.Sprint(got) != want {
		t.Errorf("nodes %v, want %s", got, want)
	}
	none := New(State{})
	if inv.Equal(none) || inv.SameClosed(none) {
		t.Error("inventories for other nodes are equal")
	}
	if !none.KeepClosed(inv) || none.KeepClosed(inv) || !none.SameClosed(inv) {
		t.Error("the hosts that are left out are not kept")
	}
}
