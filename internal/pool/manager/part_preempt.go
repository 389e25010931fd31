package manager

import (
	"cmp"
	"slices"
	"strings"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

const (
	// maxPartGPUs bounds the GPUs whose sets of parts are compared: at most 4096 sets each,
	// while the manager's lock is held. Those that lack least come first.
	maxPartGPUs = 256
	// maxPartSets bounds the GPUs whose smallest set of parts is tried by a placement.
	maxPartSets = 32
)

// partsToPreempt is the parts of a GPU that may be preempted, and what it lacks.
type partsToPreempt struct {
	gpu                      placement.Ref
	parts                    []placement.PartVictim
	freeMemory, needMemory   uint64
	freeCompute, needCompute uint32
	// lack bounds the size of every set that is enough, in thousandths of the GPU, from below.
	lack uint32
}

// smallestParts returns the smallest set of parts of one GPU whose end makes room for a
// lease of a part or of one GPU; nil for none. Preempt chooses among all leases, and may
// miss the smallest set where parts of several sizes share a GPU.
func (t *tx) smallestParts(leases []*leaseRecord, candidates []placement.Victim, fits func([]placement.Victim) bool) []placement.Victim {
	if len(leases) != 1 || leases[0].spec.Count != 1 {
		return nil
	}
	byGPU := map[placement.Ref][]placement.PartVictim{}
	for _, v := range candidates {
		for _, id := range t.bindingsByLease[v.ID] {
			if b := t.bindings.get(id); b.serving() && b.Part != nil {
				byGPU[b.gpu()] = append(byGPU[b.gpu()], placement.PartVictim{Victim: v, Memory: b.Part.memory(), Compute: b.Part.compute()})
			}
		}
	}
	var sets [][]placement.Victim
	gpus := t.gpusToPreempt(leases[0], byGPU)
	for _, g := range gpus[:min(len(gpus), maxPartGPUs)] {
		if set := placement.SmallestParts(g.parts, g.freeMemory, g.freeCompute, g.needMemory, g.needCompute); set != nil {
			sets = append(sets, set)
		}
	}
	slices.SortStableFunc(sets, func(a, b []placement.Victim) int {
		switch {
		case placement.Cheaper(a, b):
			return -1
		case placement.Cheaper(b, a):
			return 1
		}
		return 0
	})
	for _, set := range sets[:min(len(sets), maxPartSets)] {
		if fits(set) {
			return set
		}
	}
	return nil
}

// gpusToPreempt returns the GPUs on which the end of parts makes room for a lease, those
// that lack least first.
func (t *tx) gpusToPreempt(l *leaseRecord, byGPU map[placement.Ref][]placement.PartVictim) []partsToPreempt {
	var out []partsToPreempt
	for gpu, parts := range byGPU {
		box := t.indexedNodes[gpu.Box].placementBox
		g := partsToPreempt{gpu: gpu, parts: parts}
		g.freeMemory, g.freeCompute = placement.RoomBesideSlots(&box, gpu.Slot)
		g.needMemory, g.needCompute = t.needOn(l, gpu)
		memory, compute := g.freeMemory, g.freeCompute
		for _, p := range parts {
			memory, compute = memory+p.Memory, compute+p.Compute
		}
		if memory < g.needMemory || compute < g.needCompute {
			continue
		}
		missing := placement.Part{Memory: g.needMemory - min(g.needMemory, g.freeMemory), Compute: g.needCompute - min(g.needCompute, g.freeCompute)}
		g.lack = missing.Compute
		if s := t.boxSlot(gpu); s != nil && s.Device != nil && missing.Memory > 0 {
			g.lack = missing.Size(s.Device.MemoryBytes)
		}
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b partsToPreempt) int {
		return cmp.Or(cmp.Compare(a.lack, b.lack), strings.Compare(a.gpu.Box, b.gpu.Box), cmp.Compare(a.gpu.Slot, b.gpu.Slot))
	})
	return out
}

// needOn returns the memory and the compute that a lease takes of a GPU.
func (t *tx) needOn(l *leaseRecord, gpu placement.Ref) (memory uint64, compute uint32) {
	if p := l.spec.Part; p != nil {
		return p.MemoryBytes, p.Compute
	}
	if s := t.boxSlot(gpu); s != nil && s.Device != nil {
		memory = s.Device.MemoryBytes
	}
	return memory, placement.Whole
}
