package inventory

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// BenchmarkAllocator is what the scheduler does with a claim for each node that it looks at, in a
// pool of 2,000 GPUs of which half are in use.
func BenchmarkAllocator(b *testing.B) {
	for name, tc := range map[string]struct {
		divisible, plain bool
		without          int // nodes without a host
		unpublished      int // boxes that are used up and are not yet published as such
	}{
		"without conditions and attributes": {plain: true},
		"whole":                             {without: 3},
		"whole, all nodes have a host":      {},
		"whole, many nodes without a host":  {without: maxNamed + 1},
		"divisible":                         {divisible: true, without: 3},
		"divisible, published late":         {divisible: true, without: 3, unpublished: 10},
	} {
		b.Run(name, func(b *testing.B) {
			const boxes, perBox = 250, 8
			var gpus []*dxpuv1.GPU
			for box := range boxes {
				for slot := range perBox {
					g := gpu(fmt.Sprintf("box-%05d/%d", box, slot), nil)
					if tc.divisible {
						g = divided()
						g.Id, g.BoxId = fmt.Sprintf("box-%05d/%d", box, slot), fmt.Sprintf("box-%05d", box)
					}
					if box < boxes/2-tc.unpublished {
						g.LeaseId, g.State, g.FreeParts = "l-1", dxpuv1.GPUState_GPU_STATE_BOUND, 0
					}
					gpus = append(gpus, g)
				}
			}
			nodes := map[string]string{"n": "h1"}
			for i := range tc.without {
				nodes[fmt.Sprintf("control-%d", i)] = ""
			}
			host := &dxpuv1.Host{Node: &dxpuv1.NodeInfo{Connected: true}, Slots: []*dxpuv1.HostSlot{{}}}
			s := newScheduler(New(State{GPUs: gpus, Ours: map[string]bool{"l-1": true}, Nodes: nodes, Hosts: map[string]*dxpuv1.Host{"h1": host}}))
			yes := true
			for _, slice := range s.slices {
				if tc.plain {
					slice.Spec.NodeSelector, slice.Spec.AllNodes = nil, &yes
				}
				for i, d := range slice.Spec.Devices {
					id := structured.MakeDeviceID(Driver, slice.Spec.Pool.Name, d.Name)
					var box int
					fmt.Sscanf(d.Name, "box-%05d", &box)
					if tc.plain {
						slice.Spec.Devices[i] = resourceapi.Device{Name: d.Name}
					}
					switch {
					case box >= boxes/2:
					case tc.divisible:
						s.state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, consumed(d)))
					default:
						s.state.AllocatedDevices.Insert(id)
					}
				}
			}
			a, err := structured.NewAllocator(b.Context(), structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true},
				s.state, classes{}, s.slices, cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
			if err != nil {
				b.Fatal(err)
			}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{HostLabel: "h1"}}}
			claim := &resourceapi.ResourceClaim{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request("gpu", "", "")}}}}
			b.ReportAllocs()
			began := processorTime(b)
			for b.Loop() {
				found, err := a.Allocate(b.Context(), node, []*resourceapi.ResourceClaim{claim})
				if err != nil || len(found) == 0 {
					b.Fatal(found, err)
				}
			}
			b.ReportMetric(float64(processorTime(b)-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

// processorTime is that of this process: it does not depend on what else the machine does.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// consumed is what a claim for the whole of a device has of it.
func consumed(d resourceapi.Device) map[resourceapi.QualifiedName]resource.Quantity {
	c := map[resourceapi.QualifiedName]resource.Quantity{}
	for name, v := range d.Capacity {
		c[name] = v.Value
	}
	return c
}
