package manager

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// TestPartsAreAccountedFor makes, resizes, grows and ends leases of parts at random. The parts of a
// GPU never have more than it has, the tenant never more than its quota, a refused resize changes
// nothing, and after the last lease the pool is as it was before the first.
func TestPartsAreAccountedFor(t *testing.T) {
	worlds := 12
	if raceEnabled {
		worlds = 3
	}
	done, refused := 0, 0
	for seed := range worlds {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		w := newWorld(t, Config{}, boxesOfTwoSizes(1+r.IntN(3), 1+r.IntN(3))...)
		w.nodes["b2"].keeps = oneIn(r, 2)
		quota := uint32(1 + r.IntN(3))
		w.putTenant("a", &dxpuv1.Quota{MaxGpus: quota})
		before := w.partBooks()
		var leases []string
		for range 25 {
			books, err := w.partBooks(), error(nil)
			resizes := false
			switch id := ""; r.IntN(6) {
			case 0, 1:
				s := parts(uint32(1+r.IntN(2)), uint64(1+r.IntN(1000)), uint32(1+r.IntN(600)))
				s.Tenant = "a"
				if id, err = w.tryCreate(s); err == nil {
					leases = append(leases, id)
				}
			case 2, 3, 4:
				if len(leases) == 0 {
					continue
				}
				id, resizes = leases[r.IntN(len(leases))], true
				if oneIn(r, 3) {
					err = w.resize(id, uint32(1+r.IntN(3)), 0)
				} else {
					err = w.resizePart(id, &dxpuv1.Part{MemoryBytes: uint64(r.IntN(1000)) << 20, Compute: uint32(r.IntN(900))}, 0)
				}
			case 5:
				if len(leases) > 0 {
					w.delete(leases[0], false)
					leases = leases[1:]
				}
			}
			if err == nil {
				done++
			} else if refused++; resizes {
				if diff := cmp.Diff(books, w.partBooks(), cmp.AllowUnexported(tenantUsage{})); diff != "" {
					t.Errorf("seed %d: %v changes (-before +after)\n%s", seed, err, diff)
				}
			}
			w.checkParts(t, quota)
			if oneIn(r, 2) {
				w.settle()
				w.checkParts(t, quota)
			}
			if t.Failed() {
				t.Fatalf("in the world of seed %d", seed)
			}
		}
		for _, id := range leases {
			w.delete(id, false)
		}
		w.settle()
		if diff := cmp.Diff(before, w.partBooks(), cmp.AllowUnexported(tenantUsage{})); diff != "" {
			t.Errorf("seed %d: after all leases (-before +after)\n%s", seed, diff)
		}
	}
	t.Logf("%d changes, %d refused", done, refused)
	if done < worlds || refused < worlds {
		t.Error("the worlds ask too little")
	}
}

// partBooks are what is known of the parts of a pool.
type partBooks struct {
	Boxes map[string]string
	Usage tenantUsage
}

func (w *world) partBooks() partBooks {
	b := partBooks{Boxes: map[string]string{}}
	_ = w.m.view(func(tx *tx) error {
		b.Usage = tx.usageOf("a")
		b.Usage.open = nil
		if len(b.Usage.byModel) == 0 {
			b.Usage.byModel = nil
		}
		for _, id := range []string{"b1", "b2"} {
			box := tx.indexedNodes[id].placementBox
			for i := range box.GPUs {
				memory, compute, slots := placement.Room(&box, box.GPUs[i].Slot)
				b.Boxes[fmt.Sprint(id, "/", i)] = fmt.Sprintf("%d bytes, %d thousandths, %d slots, free: %v", memory, compute, slots, box.GPUs[i].Free)
			}
		}
		return nil
	})
	return b
}

// checkParts checks that no GPU and no tenant has more than it may have.
func (w *world) checkParts(t *testing.T, quota uint32) {
	t.Helper()
	_ = w.m.view(func(tx *tx) error {
		memory, compute, slots := map[placement.Ref]uint64{}, map[placement.Ref]uint32{}, map[placement.Ref]string{}
		size := map[string]milliGPU{}
		for _, id := range tx.bindings.ids() {
			b := tx.bindings.get(id)
			if !b.holdsGPU() {
				continue
			}
			gpu := tx.boxSlot(b.gpu()).Device.MemoryBytes
			memory[b.gpu()] += b.Part.memory()
			compute[b.gpu()] += b.Part.compute()
			if memory[b.gpu()] > gpu || compute[b.gpu()] > placement.Whole || slots[b.ref()] != "" {
				t.Errorf("the parts of GPU %s have %d of %d bytes and %d thousandths; slot %s has %s and %s",
					b.gpu(), memory[b.gpu()], gpu, compute[b.gpu()], b.ref(), slots[b.ref()], id)
			}
			if slots[b.ref()] = id; b.serving() {
				size[b.LeaseID] += max(milliGPU(b.Part.Compute), milliGPU((b.Part.Memory*1000+gpu-1)/gpu))
			}
		}
		for id, n := range size {
			if l := tx.leases.get(id); l.size() != n {
				t.Errorf("lease %s counts as %v, and its parts as %v", id, l.size(), n)
			}
		}
		if u := tx.usageOf("a"); u.gpus > wholeGPUs(quota) {
			t.Errorf("the tenant has %v of %d GPUs", u.gpus, quota)
		}
		return nil
	})
}

// What occupies a GPU is the same with few bindings and with many.
func TestManyOccupants(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for n := range 3 * fewOccupants {
		var all []*bindingRecord
		for i := range n {
			b := &bindingRecord{ID: fmt.Sprint("b-", i), BoxID: "b1", BoxSlot: r.Uint32N(48), Epoch: uint64(i)}
			if r.IntN(2) == 0 {
				b.Part = &partRecord{GPU: r.Uint32N(8)}
			}
			all = append(all, b)
		}
		scanned, found := occupants{all: all}, newOccupants(all)
		for slot := range uint32(50) {
			gpu := slot % 8
			s := &slotRecord{Slot: slot, PartOf: &gpu}
			if !slices.Equal(scanned.partsOn(slot), found.partsOn(slot)) || scanned.wholeOn(slot) != found.wholeOn(slot) ||
				scanned.occupied(slot) != found.occupied(slot) || scanned.takenOtherwise(s) != found.takenOtherwise(s) {
				t.Fatalf("%d bindings: slot %d is occupied otherwise", n, slot)
			}
		}
	}
}
