package manager

import (
	"fmt"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Slots and bindings are found in the last report, whatever its size and order.
func TestObserved(t *testing.T) {
	for _, slots := range []int{0, 1, fewSlots, fewSlots + 1, 100} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			l := &liveNode{}
			tx := &tx{live: map[string]*liveNode{"h1": l}}
			check := func(epoch uint64) {
				t.Helper()
				for i := range uint32(slots) {
					if s := tx.observedSlot("h1", i*7); s != l.observed.Slots[uint32(slots)-1-i] {
						t.Errorf("slot %d: %v", i*7, s)
					}
					b := &bindingRecord{ID: fmt.Sprint("b-", i/2), Epoch: epoch}
					// Two slots report it, and the first in the report counts.
					want := l.observed.Slots[uint32(slots)-1-min(i|1, uint32(slots)-1)].Binding
					if o := tx.observed("h1", b); o != want {
						t.Errorf("binding %s: %v, want %v", b.ID, o, want)
					}
					b.Epoch++
					if o := tx.observed("h1", b); o != nil {
						t.Errorf("binding %s with another epoch: %v", b.ID, o)
					}
				}
				if s, b := tx.observedSlot("h1", 3), tx.observed("h1", &bindingRecord{ID: "b"}); s != nil || b != nil {
					t.Errorf("%v and %v of a slot and a binding that are not in the report", s, b)
				}
			}
			for epoch := range uint64(2) { // the second report takes the place of the first
				o := &dxpuv1.ObservedState{}
				for i := slots - 1; i >= 0; i-- {
					o.Slots = append(o.Slots, &dxpuv1.ObservedSlot{Slot: uint32(i) * 7, Binding: &dxpuv1.ObservedBinding{BindingId: fmt.Sprint("b-", i/2), Epoch: epoch}})
				}
				l.observed = o
				check(epoch)
			}
		})
	}
	tx := &tx{}
	if s, b := tx.observedSlot("h1", 0), tx.observed("h1", &bindingRecord{}); s != nil || b != nil {
		t.Errorf("%v and %v of a node that has never reported", s, b)
	}
}
