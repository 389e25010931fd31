package inventory

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// The capacities of a device that can be divided. A request that names none of them has
// the whole GPU: the default of each is all there is.
const (
	// CapacityMemory is the memory in bytes, in steps of memoryStep.
	CapacityMemory = "memory"
	// CapacityCompute is the share of the compute in per cent. Thousandths would be no whole
	// numbers, and the scheduler rounds steps to whole numbers.
	CapacityCompute = "compute"
	// CapacityParts is the number of parts. Each allocation has one.
	CapacityParts = "parts"
)

const (
	memoryStep = 1 << 20
	percent    = 10 // thousandths
	allCompute = 100
)

// shared is how a device is divided.
type shared struct {
	memory int64 // of the whole GPU, in whole steps
	parts  int64 // that the GPU has room for
}

// divisible reports whether the pool can divide a GPU.
func divisible(g *dxpuv1.GPU) bool {
	return len(g.Device.ShareModes) > 0 && g.Device.MemoryBytes >= 2*memoryStep
}

// Uses are what claims have of devices, by device.
type Uses map[string]use

type use struct {
	memory, compute int64
	whole           bool // of a device that cannot be divided
}

// Add adds an allocation of a device.
func (u Uses) Add(r *resourceapi.DeviceRequestAllocationResult) {
	if r.Driver != Driver || r.AdminAccess != nil && *r.AdminAccess {
		return
	}
	memory, divided := r.ConsumedCapacity[CapacityMemory]
	compute, has := r.ConsumedCapacity[CapacityCompute], u[r.Device]
	u[r.Device] = use{has.memory + memory.Value(), has.compute + compute.Value(), has.whole || !divided}
}

// usedUp reports whether the claims of this cluster leave nothing of a GPU that can be divided.
// The claims show it before the pool does.
func usedUp(g *dxpuv1.GPU, ours map[string]bool, has use) bool {
	if !divisible(g) {
		return false
	}
	if has.compute >= allCompute || has.memory > 0 && has.memory > int64(g.Device.MemoryBytes/memoryStep-1)*memoryStep {
		return true
	}
	own := slices.ContainsFunc(g.Parts, func(p *dxpuv1.GPUPart) bool { return ours[p.LeaseId] })
	return ours[g.LeaseId] || own && (g.FreeParts == 0 || g.FreeMemoryBytes < memoryStep || g.FreeCompute < percent)
}

// divide lets several claims have a part of a device each. It reports whether the users
// outside of this cluster leave room for a part.
func (i *Inventory) divide(d *resourceapi.Device, g *dxpuv1.GPU, s State) (room bool) {
	whole := shared{memory: int64(g.Device.MemoryBytes / memoryStep * memoryStep), parts: int64(len(g.Parts)) + int64(g.FreeParts)}
	memory, compute, parts, others := g.FreeMemoryBytes, g.FreeCompute, int64(g.FreeParts), 0
	for _, p := range g.Parts {
		if !s.Ours[p.LeaseId] {
			others++
			continue
		}
		memory, compute, parts = memory+p.Part.GetMemoryBytes(), compute+p.Part.GetCompute(), parts+1
	}
	if g.FreeParts == 0 && len(g.Parts) == 0 { // in use as a whole, or out of service
		whole.parts = 1
		if s.Before != nil {
			whole.parts = max(s.Before.shared[d.Name].parts, 1)
		}
	}
	i.shared[d.Name] = whole
	left := shared{memory: min(int64(memory/memoryStep*memoryStep), whole.memory), parts: parts}
	percents := int64(compute / percent)
	room = others == 0 || left.memory >= 2*memoryStep && percents >= 2 && parts > 0
	if others == 0 || !room {
		left, percents = whole, allCompute // of a device without room, the taint keeps claims away
	}
	yes := true
	d.AllowMultipleAllocations = &yes
	d.Capacity[CapacityMemory] = capacity(left.memory, whole.memory, memoryStep, resource.BinarySI)
	d.Capacity[CapacityCompute] = capacity(percents, allCompute, 1, resource.DecimalSI)
	one := *resource.NewQuantity(1, resource.DecimalSI)
	d.Capacity[CapacityParts] = resourceapi.DeviceCapacity{
		Value:         *resource.NewQuantity(left.parts, resource.DecimalSI),
		RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &one, ValidValues: []resource.Quantity{one}},
	}
	return room
}

// capacity returns a capacity of which requests may have any number of steps, and have the
// whole if they do not name it.
func capacity(left, whole, step int64, format resource.Format) resourceapi.DeviceCapacity {
	quantity := func(n int64) *resource.Quantity { return resource.NewQuantity(n, format) }
	return resourceapi.DeviceCapacity{Value: *quantity(left), RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default: quantity(whole), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity(step), Step: quantity(step)},
	}}
}

// Part returns the part of a GPU that an allocation has consumed, nil for the whole GPU. The
// scheduler of Kubernetes 1.36 rounds a request near the largest number up to a negative one.
func (i *Inventory) Part(r *resourceapi.DeviceRequestAllocationResult) (*dxpuv1.Part, error) {
	memory, ok := r.ConsumedCapacity[CapacityMemory]
	if !ok {
		return nil, nil
	}
	compute := r.ConsumedCapacity[CapacityCompute]
	if memory.Sign() <= 0 || compute.Sign() <= 0 {
		return nil, fmt.Errorf("the allocation has %s of memory and %s %% of compute: ask for a capacity that the GPU has", memory.String(), compute.String())
	}
	whole, known := i.shared[r.Device]
	if known && memory.Value() >= whole.memory && compute.Value() >= allCompute {
		return nil, nil
	}
	return &dxpuv1.Part{MemoryBytes: uint64(memory.Value()), Compute: uint32(min(compute.Value(), allCompute) * percent)}, nil
}
