package manager

import (
	"slices"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// maxPartSets bounds the GPUs whose smallest set of parts is tried by a placement.
const maxPartSets = 32

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
	for gpu, parts := range byGPU {
		box := t.indexedNodes[gpu.Box].placementBox
		memory, compute, _ := placement.Room(&box, gpu.Slot)
		needMemory, needCompute := t.needOn(leases[0], gpu)
		if set := placement.SmallestParts(parts, memory, compute, needMemory, needCompute); set != nil {
			sets = append(sets, set)
		}
	}
	slices.SortFunc(sets, func(a, b []placement.Victim) int {
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
