package manager

import (
	"cmp"
	"slices"
	"strings"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// A device is in one slot. If several slots report one serial number, a box is
// configured wrongly or lists a device twice, and a lease of each slot would share the
// device with another tenant. So none of these slots gets new bindings until only one
// of them reports the device. Bindings that exist stay: the manager cannot tell which
// of the slots has the device.

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

// deviceClaim is a slot that reports a device.
type deviceClaim struct {
	key deviceKey
	at  placement.Ref
}

func compareRefs(a, b placement.Ref) int {
	return cmp.Or(strings.Compare(a.Box, b.Box), cmp.Compare(a.Slot, b.Slot))
}

// claimsOf returns the devices that a box has. The report of a box that is away may be
// old, and its device may be in another box now, unless the device is bound. A box that
// was deleted blocks no GPU of others with what it reported, whether it is away or not.
func (t *tx) claimsOf(n *nodeRecord) []deviceClaim {
	var out []deviceClaim
	here := t.connected(n.ID) && !n.Deleting
	for i := range n.Slots {
		s := &n.Slots[i]
		if k, ok := s.Device.key(); ok && (here || t.holder(n.ID, s.Slot) != nil) {
			out = append(out, deviceClaim{k, placement.Ref{Box: n.ID, Slot: s.Slot}})
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
		for _, r := range t.slotsByDevice[c.key] {
			if r.Box != c.at.Box {
				others = append(others, r.Box)
			}
		}
	}
	for _, c := range old {
		t.slotsByDevice[c.key] = removeSorted(slices.Clone(t.slotsByDevice[c.key]), c.at, compareRefs)
		if len(t.slotsByDevice[c.key]) == 0 {
			delete(t.slotsByDevice, c.key)
		}
		affected(c)
	}
	for _, c := range now {
		t.slotsByDevice[c.key] = insertSorted(slices.Clone(t.slotsByDevice[c.key]), c.at, compareRefs)
		affected(c)
	}
	for _, o := range others {
		t.mark(subject{nodeSubject, o})
	}
	return others
}

// isDuplicate reports whether other slots claim the device that a slot claims. A slot
// that claims nothing, because its box is away, does not depend on the others.
func (t *tx) isDuplicate(box string, s *slotRecord) bool {
	k, ok := s.Device.key()
	if !ok || len(t.slotsByDevice[k]) < 2 {
		return false
	}
	_, claims := slices.BinarySearchFunc(t.slotsByDevice[k], placement.Ref{Box: box, Slot: s.Slot}, compareRefs)
	return claims
}

// maxDuplicatesNamed bounds the slots that a message names.
const maxDuplicatesNamed = 8

// whyDuplicate returns why a slot must not be used, "" if it may be.
func (t *tx) whyDuplicate(box string, s *slotRecord) string {
	if !t.isDuplicate(box, s) {
		return ""
	}
	k, _ := s.Device.key()
	var names []string
	for _, r := range t.slotsByDevice[k] {
		if (r != placement.Ref{Box: box, Slot: s.Slot}) && len(names) < maxDuplicatesNamed {
			names = append(names, r.String())
		}
	}
	return "serial number " + s.Device.Serial + " is also that of " + strings.Join(names, ", ")
}

// advanceDuplicate raises the alarm when other slots begin to report the device of a
// slot, and ends it.
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
		t.event(e, "no other slot reports the device of GPU %s any more", e.GpuId)
		return
	}
	e := gpuEvent(n, slot, dxpuv1.EventType_EVENT_TYPE_GPU_DUPLICATE)
	t.event(e, "GPU %s gets no new bindings: its %s; check the configuration of the boxes", e.GpuId, why)
}
