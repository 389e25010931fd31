package inventory

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const gib = 1 << 30

// divided returns a GPU of 80 GiB that the pool can divide into four, with some parts.
func divided(parts ...*dxpuv1.GPUPart) *dxpuv1.GPU {
	return gpu("b1/0", func(g *dxpuv1.GPU) {
		g.Device.ShareModes = []dxpuv1.ShareMode{dxpuv1.ShareMode_SHARE_MODE_SPACE}
		g.Parts, g.FreeMemoryBytes, g.FreeCompute, g.FreeParts = parts, 80*gib, 1000, uint32(4-len(parts))
		for _, p := range parts {
			g.State = dxpuv1.GPUState_GPU_STATE_SHARED
			g.FreeMemoryBytes -= p.Part.MemoryBytes
			g.FreeCompute -= p.Part.Compute
		}
	})
}

func part(lease string, memory uint64, compute uint32) *dxpuv1.GPUPart {
	return &dxpuv1.GPUPart{LeaseId: lease, Part: &dxpuv1.Part{MemoryBytes: memory * gib, Compute: compute}}
}

// TestDivide: a device has what the cluster's own claims may have together, and a request
// that names nothing asks for the whole GPU.
func TestDivide(t *testing.T) {
	whole := divided()
	whole.FreeMemoryBytes, whole.FreeCompute, whole.FreeParts = 0, 0, 0
	whole.LeaseId, whole.State = "l-1", dxpuv1.GPUState_GPU_STATE_BOUND
	foreign := proto.CloneOf(whole)
	foreign.LeaseId = "x"
	for name, tc := range map[string]struct {
		gpu  *dxpuv1.GPU
		want string
	}{
		"free":                     {divided(), "80Gi 100 4"},
		"own parts":                {divided(part("l-1", 20, 500), part("l-1", 60, 500)), "80Gi 100 4"},
		"parts of others":          {divided(part("l-1", 20, 100), part("x", 30, 255)), "50Gi 74 3"},
		"no room beside others":    {divided(part("x", 80, 500)), "80Gi 100 4 dxpu.dev/leased"},
		"no compute beside others": {divided(part("x", 10, 985)), "80Gi 100 4 dxpu.dev/leased"},
		"whole, ours":              {whole, "80Gi 100 4"}, // as before: no new slice for each lease
		// The taint alone says so: a claim that was allocated before still has the whole GPU.
		"whole, of others": {foreign, "80Gi 100 4 dxpu.dev/leased"},
	} {
		t.Run(name, func(t *testing.T) {
			before := New(State{GPUs: []*dxpuv1.GPU{divided()}})
			inv := New(State{GPUs: []*dxpuv1.GPU{tc.gpu}, Ours: map[string]bool{"l-1": true}, Before: before})
			d := inv.Devices[0]
			var got []string
			for _, c := range []resourceapi.QualifiedName{CapacityMemory, CapacityCompute, CapacityParts} {
				v := d.Capacity[c].Value
				got = append(got, v.String())
			}
			for _, x := range d.Taints {
				got = append(got, x.Key)
			}
			if s := strings.Join(got, " "); s != tc.want {
				t.Errorf("device %q, want %q", s, tc.want)
			}
			if p := d.Capacity[CapacityMemory].RequestPolicy; p == nil || p.Default.Value() != 80*gib {
				t.Fatalf("a request without memory has not 80 GiB: %v", p)
			}
			if p, err := inv.Part(consumes("80Gi", "100")); err != nil || p != nil {
				t.Errorf("a claim for all of it has the part %v, %v", p, err)
			}
		})
	}
}

// consumes returns an allocation of some of a GPU.
func consumes(memory, compute string) *resourceapi.DeviceRequestAllocationResult {
	return &resourceapi.DeviceRequestAllocationResult{Device: "b1-0", ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
		CapacityMemory: resource.MustParse(memory), CapacityCompute: resource.MustParse(compute), CapacityParts: resource.MustParse("1"),
	}}
}

// TestWholeGPUs: a GPU that is not to be divided is as one that cannot be.
func TestWholeGPUs(t *testing.T) {
	for name, s := range map[string]State{
		"a setting":  {GPUs: []*dxpuv1.GPU{divided(part("l-1", 1, 1))}, WholeGPUs: true, Ours: map[string]bool{"l-1": true}},
		"the device": {GPUs: []*dxpuv1.GPU{gpu("b1/0", func(g *dxpuv1.GPU) { g.State = dxpuv1.GPUState_GPU_STATE_SHARED })}},
	} {
		d := New(s).Devices[0]
		if d.AllowMultipleAllocations != nil || len(d.Capacity) != 1 || len(d.Taints) != 1 || d.Taints[0].Key != TaintLeased {
			t.Errorf("%s: device %v", name, d)
		}
	}
}

// TestPart: what Kubernetes says an allocation consumes is a part, or the whole GPU.
func TestPart(t *testing.T) {
	inv := New(State{GPUs: []*dxpuv1.GPU{divided()}})
	for in, want := range map[string]*dxpuv1.Part{
		"":         nil,
		"80Gi 100": nil,
		"16Gi 30":  {MemoryBytes: 16 * gib, Compute: 300},
		"80Gi 30":  {MemoryBytes: 80 * gib, Compute: 300},
		"16Gi 100": {MemoryBytes: 16 * gib, Compute: 1000},
	} {
		r := &resourceapi.DeviceRequestAllocationResult{Device: "b1-0"}
		if in != "" {
			var memory, compute string
			if _, err := fmt.Sscan(in, &memory, &compute); err != nil {
				t.Fatal(err)
			}
			r = consumes(memory, compute)
		}
		if got, err := inv.Part(r); err != nil || !proto.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%q: part %v, %v, want %v", in, got, err, want)
		}
	}
	for _, memory := range []string{"-9223372036854775808", "-1", "0"} {
		r := &resourceapi.DeviceRequestAllocationResult{Device: "b1-0", ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
			CapacityMemory: resource.MustParse(memory), CapacityCompute: resource.MustParse("1"),
		}}
		if got, err := inv.Part(r); err == nil || got != nil {
			t.Errorf("%s bytes: part %v", memory, got)
		}
	}
}

// TestTolerations: those of a request hold for the taints of operators.
func TestTolerations(t *testing.T) {
	got := Tolerations([]resourceapi.DeviceToleration{
		{Key: "team", Operator: resourceapi.DeviceTolerationOpEqual, Value: "ml", Effect: resourceapi.DeviceTaintEffectNoSchedule},
		{Operator: resourceapi.DeviceTolerationOpExists},
		{Key: strings.Repeat("k", 64), Operator: resourceapi.DeviceTolerationOpExists},
		{Key: "none", Effect: resourceapi.DeviceTaintEffectNone},
	})
	want := []*dxpuv1.Toleration{{Key: "team", Value: "ml", Effect: noSchedule}, {AnyValue: true}}
	if len(got) != len(want) {
		t.Fatalf("%d tolerations, want %d: %v", len(got), len(want), got)
	}
	for i := range want {
		if !proto.Equal(got[i], want[i]) {
			t.Errorf("toleration %v, want %v", got[i], want[i])
		}
	}
}
