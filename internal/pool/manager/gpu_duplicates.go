package manager

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// A device is in one slot. If several slots report one serial number, a box is
// configured wrongly, lists a device twice or wants to block another box's GPU, and a
// lease of each slot would share the device with another tenant. So one of the slots
// keeps the device: one that has a binding, otherwise the first that reported it. The
// others get no new bindings, and an alarm. Bindings that exist stay: the manager cannot
// tell which of the slots has the device.

// deviceKey identifies a device. Serial numbers are unique per vendor and model.
type deviceKey struct {
	vendor, device uint32
	model, serial  string
}

// key returns the identity of a device, and false if it reports no serial number.
func (d *deviceRecord) key() (k deviceKey, ok bool) {
	if d == nil || strings.Trim(d.Serial, "0") == "" {
		return k, false
	}
	return deviceKey{d.VendorID, d.DeviceID, d.Model, d.Serial}, true
}

// deviceSince returns slotRecord.Since of a slot that reports a device. old is the record
// of the slot, nil if it is new.
func (t *tx) deviceSince(old *slotRecord, now *deviceRecord) uint64 {
	k, ok := now.key()
	if !ok {
		return 0
	}
	if old != nil {
		if had, ok := old.Device.key(); ok && had == k {
			return old.Since
		}
	}
	return t.meta.Revision + 1 // that of this change
}

// deviceClaim is a slot that reports a device.
type deviceClaim struct {
	key   deviceKey
	at    placement.Ref
	bound bool
	since uint64 // slotRecord.Since
}

// compare puts the claim of the slot first that keeps the device.
func (a deviceClaim) compare(b deviceClaim) int {
	return cmp.Or(rankTrueFirst(a.bound, b.bound), cmp.Compare(a.since, b.since), strings.Compare(a.at.Box, b.at.Box), cmp.Compare(a.at.Slot, b.at.Slot))
}

// claimsOf returns the devices that a box has. The report of a box that is away may be
// old, and its device may be in another box now, unless the device is bound. A box that
// was deleted blocks no GPU of others with what it reported, whether it is away or not.
func (t *tx) claimsOf(n *nodeRecord) []deviceClaim {
	var out []deviceClaim
	here := t.connected(n.ID) && !n.Deleting
	for i := range n.Slots {
		s := &n.Slots[i]
		bound := t.holder(n.ID, s.Slot) != nil
		if k, ok := s.Device.key(); ok && (here || bound) {
			out = append(out, deviceClaim{k, placement.Ref{Box: n.ID, Slot: s.Slot}, bound, s.Since})
		}
	}
	return out
}

// updateClaims replaces the claims of a box in the index, and returns the other boxes
// that report one of the devices: they may be usable now, or not any more.
func (t *tx) updateClaims(old, now []deviceClaim) (others []string) {
	if slices.Equal(old, now) {
		return nil
	}
	affected := func(c deviceClaim) {
		for _, o := range t.slotsByDevice[c.key] {
			if o.at.Box != c.at.Box {
				others = append(others, o.at.Box)
			}
		}
	}
	for _, c := range old {
		t.slotsByDevice[c.key] = removeSorted(slices.Clone(t.slotsByDevice[c.key]), c, deviceClaim.compare)
		if len(t.slotsByDevice[c.key]) == 0 {
			delete(t.slotsByDevice, c.key)
		}
		affected(c)
	}
	for _, c := range now {
		t.slotsByDevice[c.key] = insertSorted(slices.Clone(t.slotsByDevice[c.key]), c, deviceClaim.compare)
		affected(c)
	}
	for _, o := range others {
		t.mark(subject{nodeSubject, o})
	}
	return others
}

// keeperOf returns the slot that keeps the device which another slot claims as well,
// false if the slot may be used: no other slot keeps its device, or it claims nothing,
// because its box is away.
func (t *tx) keeperOf(box string, s *slotRecord) (keeper deviceClaim, ok bool) {
	k, ok := s.Device.key()
	if !ok || len(t.slotsByDevice[k]) < 2 {
		return keeper, false
	}
	claims, at := t.slotsByDevice[k], placement.Ref{Box: box, Slot: s.Slot}
	mine := slices.IndexFunc(claims, func(c deviceClaim) bool { return c.at == at })
	return claims[0], mine > 0
}

// isDuplicate reports whether another slot keeps the device that a slot claims.
func (t *tx) isDuplicate(box string, s *slotRecord) bool {
	_, dup := t.keeperOf(box, s)
	return dup
}

// whyDuplicate returns why a slot must not be used, "" if it may be.
func (t *tx) whyDuplicate(box string, s *slotRecord) string {
	keeper, dup := t.keeperOf(box, s)
	if !dup {
		return ""
	}
	first := "which reported it first"
	if keeper.bound {
		first = "which a lease has"
	}
	return fmt.Sprintf("serial number %s is also that of %s, %s", s.Device.Serial, keeper.at, first)
}

// advanceDuplicate raises the alarm for a slot whose device another slot keeps, and ends it.
func (t *tx) advanceDuplicate(id string, slot uint32) {
	s := t.nodes.get(id).slot(slot)
	why := t.whyDuplicate(id, s)
	if (why != "") == s.Duplicate {
		return
	}
	n := t.nodes.edit(id)
	n.ResourceVersion = t.revision()
	n.slot(slot).Duplicate = why != ""
	if why == "" {
		e := gpuEvent(n, slot, dxpuv1.EventType_EVENT_TYPE_GPU_RETURNED)
		t.event(e, "no other slot has the device of GPU %s any more", e.GpuId)
		return
	}
	e := gpuEvent(n, slot, dxpuv1.EventType_EVENT_TYPE_GPU_DUPLICATE)
	t.event(e, "GPU %s gets no new bindings: its %s; check the configuration of the boxes", e.GpuId, why)
}
