package manager

import (
	"maps"
	"slices"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// indexNode brings the index up to date with a node. It returns other nodes whose
// entries depend on this one and have changed.
func (t *tx) indexNode(id string) (others []string) {
	n := t.nodes.get(id)
	old, had := t.indexedNodes[id]
	if had && (n == nil || old.box != (n.Kind == dxpuv1.NodeKind_NODE_KIND_BOX)) {
		others = t.updateClaims(old.claims, nil)
		t.dropNode(id, old)
		old, had = nodeEntry{}, false // a new node may have the name of a deleted one
	}
	if n == nil {
		return others
	}
	claims := t.claimsOf(n)
	others = append(others, t.updateClaims(old.claims, claims)...)
	k := t.nodeEntry(n)
	k.claims = claims
	t.indexedNodes[id] = k
	if k.credential != old.credential {
		delete(t.nodeByCredential, old.credential)
		if k.credential != "" {
			t.nodeByCredential[k.credential] = id
		}
	}
	if k.box {
		t.boxIDs.add(id)
		if !had || !sameBox(old.placementBox, k.placementBox) {
			t.capacityGrew = t.capacityGrew || boxGrew(old.placementBox, k.placementBox) || t.reserved != nil && boxShrank(old.placementBox, k.placementBox)
			t.gpuPool.SetBox(k.placementBox)
		}
		return others
	}
	t.hostIDs.add(id)
	if !had || !sameHost(old.placementHost, k.placementHost) {
		t.capacityGrew = t.capacityGrew || hostGrew(old.placementHost, k.placementHost) || t.reserved != nil && hostShrank(old.placementHost, k.placementHost)
		t.hostPool.SetHost(k.placementHost)
	}
	return others
}

func (t *tx) dropNode(id string, k nodeEntry) {
	delete(t.indexedNodes, id)
	delete(t.nodeByCredential, k.credential)
	if k.box {
		t.boxIDs.remove(id)
		t.gpuPool.RemoveBox(id)
		return
	}
	t.hostIDs.remove(id)
	t.hostPool.RemoveHost(id)
}

func sameBox(a, b placement.Box) bool {
	return a.Kind == b.Kind && a.Location == b.Location && maps.Equal(a.Labels, b.Labels) && a.ProxyGPUs == b.ProxyGPUs && slices.Equal(a.GPUs, b.GPUs) && slices.Equal(a.Parts, b.Parts)
}

func sameHost(a, b placement.Host) bool {
	return a.Usable == b.Usable && a.Restriction == b.Restriction && a.Location == b.Location && maps.Equal(a.Labels, b.Labels) && slices.Equal(a.Slots, b.Slots)
}

// placementBox returns a box in the form that package placement needs.
func (t *tx) placementBox(n *nodeRecord) placement.Box {
	box := placement.Box{
		ID: n.ID, Kind: placementKinds[n.BoxKind], Location: n.location(), Labels: n.Labels, ProxyGPUs: int(min(n.ProxyGPUs, maxSlots)),
	}
	here := t.connected(n.ID) && t.takesBindings(n)
	occupants := newOccupants(t.occupantsOf(n.ID))
	ofNode := t.nodeRestriction(n, nil) // of most GPUs: few have taints of their own
	for i := range n.Slots {
		s := &n.Slots[i]
		restriction := ofNode
		if len(s.Taints) > 0 {
			restriction = t.nodeRestriction(n, s.Taints)
		}
		if s.Device == nil || s.PartOf != nil {
			continue
		}
		whole := occupants.wholeOn(s.Slot)
		box.GPUs = append(box.GPUs, placement.GPU{
			Slot: s.Slot, Model: s.Device.Model, Memory: s.Device.MemoryBytes, Domain: s.Device.NVLinkDomain, Switch: s.Device.PCIeSwitch,
			Usable:      here && s.takesBindings() && !t.isDuplicate(n.ID, s),
			Free:        !occupants.occupied(s.Slot),
			Whole:       whole,
			Modes:       s.Device.ShareModes,
			Restriction: restriction,
		})
	}
	t.addParts(&box, n, here, occupants)
	return box
}

// location returns where a node is in the network.
func (n *nodeRecord) location() placement.Location {
	at := placement.Location{Rack: n.Rack}
	for _, a := range n.Addresses {
		at.Paths |= placement.NewPaths(a.Path)
	}
	return at
}

// boxGrew reports whether a request that found no GPUs might find some in the box now, or may
// be possible again, once other leases have ended.
func boxGrew(old, box placement.Box) bool {
	changed := boxChanged(old, box)
	for i, g := range box.GPUs {
		switch {
		case !g.Usable:
		case changed, i >= len(old.GPUs), !old.GPUs[i].Usable, asIfFree(old.GPUs[i]) != asIfFree(g), g.Free && old.GPUs[i] != g:
			return true
		}
	}
	// A part that ends, or shrinks, leaves room.
	return !slices.Equal(old.Parts, box.Parts)
}

// boxShrank reports whether some requests may not have GPUs of a box any more, so that what is
// held for a lease that cannot have enough may go to others.
func boxShrank(old, box placement.Box) bool {
	changed := boxChanged(old, box)
	for i, g := range old.GPUs {
		switch {
		case !g.Usable:
		case changed, i >= len(box.GPUs), !box.GPUs[i].Usable, asIfFree(box.GPUs[i]) != asIfFree(g):
			return true
		}
	}
	return false
}

// boxChanged reports whether a request may accept the one box and not the other.
func boxChanged(a, b placement.Box) bool {
	return a.Kind != b.Kind || a.Location != b.Location || !maps.Equal(a.Labels, b.Labels)
}

// asIfFree returns a GPU as it is when no lease has it.
func asIfFree(g placement.GPU) placement.GPU {
	g.Free, g.Whole = true, false
	return g
}

// placementHost returns a host in the form that package placement needs.
func (t *tx) placementHost(n *nodeRecord) placement.Host {
	h := placement.Host{ID: n.ID, Location: n.location(), Usable: t.connected(n.ID) && t.takesBindings(n), Labels: n.Labels, Restriction: t.nodeRestriction(n, nil)}
	for _, s := range n.Slots {
		h.Slots = append(h.Slots, placement.HostSlot{
			Slot: s.Slot, Domain: s.Domain,
			Free: t.hostSlotFree(n.ID, &s, nil), Unusable: !s.usableAtHost(),
		})
	}
	return h
}

// usableAtHost reports whether a slot of a host works and is not cordoned.
func (s *slotRecord) usableAtHost() bool {
	return s.Cordon == nil && s.Health != dxpuv1.Health_HEALTH_FAILED
}

// hostSlotFree reports whether a host slot may get a binding if certain bindings were gone: it
// is usable, and no other binding is in it or has it reserved.
func (t *tx) hostSlotFree(host string, s *slotRecord, gone map[string]bool) bool {
	return s.usableAtHost() &&
		!slices.ContainsFunc(t.bindingsByHostSlot[hostSlotRef{host, s.Slot}], func(id string) bool { return t.indexedBindings[id].takesHostSlot && !gone[id] })
}

// hostGrew reports whether a request that found no host might fit the host now.
func hostGrew(old, h placement.Host) bool {
	if !h.Usable {
		return false
	}
	if !old.Usable || old.Restriction != h.Restriction || old.Location != h.Location || !maps.Equal(old.Labels, h.Labels) {
		return true
	}
	for i, s := range h.Slots {
		switch {
		case i >= len(old.Slots), s.Free && old.Slots[i] != s, !s.Unusable && old.Slots[i].Unusable:
			return true
		}
	}
	return false
}

// hostShrank reports whether some requests may not have slots of a host any more, see boxShrank.
func hostShrank(old, h placement.Host) bool {
	if !old.Usable {
		return false
	}
	for i, s := range old.Slots {
		if !s.Unusable && (i >= len(h.Slots) || h.Slots[i].Unusable) {
			return true
		}
	}
	return !h.Usable || old.Restriction != h.Restriction || old.Location != h.Location || !maps.Equal(old.Labels, h.Labels)
}

// chooseGPUs chooses GPUs for a host that is known, or for none.
func (t *tx) chooseGPUs(req placement.Request) placement.Decision {
	t.reindex()
	t.tellTypical()
	req.Uplinks, req.Brief = t.fullUplinks, req.Brief || t.isBrief()
	d := t.gpuPool.Place(t.cfg.Reserve, req)
	t.noteDecision(d.OK(), req.Brief)
	return d
}

func (t *tx) chooseHost(req placement.HostRequest) placement.HostDecision {
	t.reindex()
	req.Brief = req.Brief || t.isBrief()
	d := t.hostPool.Place(req)
	t.noteDecision(d.OK(), req.Brief)
	return d
}

// maxExplained bounds the refusals that a transaction explains at length: each may look at all
// GPUs and hosts, while all calls wait.
const maxExplained = 4

// isBrief reports whether a decision leaves out what takes a look at each GPU and host to say.
func (t *tx) isBrief() bool { return t.brief || t.explained >= maxExplained }

// noteDecision counts a decision that has explained a refusal at length.
func (t *tx) noteDecision(ok, brief bool) {
	if !ok && !brief {
		t.explained++
	}
}

// briefly calls decide, whose decisions do not explain refusals at length.
func (t *tx) briefly(decide func()) {
	was := t.brief
	t.brief = true
	decide()
	t.brief = was
}

func hasLabels(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}

// near returns the place of a host; nil if it has no record.
func (t *tx) near(host string) *placement.Location {
	n := t.nodes.get(host)
	if n == nil {
		return nil
	}
	at := n.location()
	return &at
}

// placementKinds and placementPreferences translate the API's values. Others mean
// no constraint.
var (
	placementKinds = map[dxpuv1.BoxKind]placement.Kind{
		dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH: placement.PCIeSwitch, dxpuv1.BoxKind_BOX_KIND_NVLINK: placement.NVLink,
	}
	placementPreferences = map[dxpuv1.Preference]placement.Preference{
		dxpuv1.Preference_PREFERENCE_PREFERRED: placement.Preferred,
		dxpuv1.Preference_PREFERENCE_REQUIRED:  placement.Required,
		dxpuv1.Preference_PREFERENCE_AVOID:     placement.Avoided,
	}
)

// requestOf returns the placement request for GPUs of a lease that ends at a time; zero: never.
// The ID is empty if the lease does not exist yet.
func (t *tx) requestOf(id string, s *dxpuv1.LeaseSpec, until time.Time) placement.Request {
	promised, _ := t.promised(id, s, t.beginsBy(s), until)
	req := placement.Request{
		Count: int(s.Count), Model: s.Model, MinMemory: s.MinMemoryBytes,
		Kind: placementKinds[s.BoxKind], NVLink: placementPreferences[s.Nvlink], SameBox: placementPreferences[s.SameBox],
		Labels: s.BoxLabels, Only: gpuRefs(s.GpuIds), Tolerations: t.tolerationsUntil(s, until), Part: placementPart(s),
		Exclude: promised, UseSpares: t.hasBegun(id), // others may have left just what is promised
	}
	t.keepLocal(&req, s.HostId)
	return req
}

// gpuRefs returns the GPUs of some IDs that checkSpec has accepted.
func gpuRefs(ids []string) []placement.Ref {
	var out []placement.Ref
	for _, id := range ids {
		if r, ok := parseGPU(id); ok {
			out = append(out, r)
		}
	}
	return out
}

// hostRequestOf returns the placement request for the host of a lease that ends at a time; zero: never.
func (t *tx) hostRequestOf(id string, s *dxpuv1.LeaseSpec, until time.Time) placement.HostRequest {
	_, promised := t.promised(id, s, t.beginsBy(s), until)
	req := placement.HostRequest{
		Count: int(s.Count), Host: s.HostId, Domain: s.HostDomain, Labels: s.HostLabels, Tolerations: t.tolerationsUntil(s, until), Exclude: promised,
	}
	if t.localBox(s.HostId) != "" {
		req.Tolerations = append(req.Tolerations, localToleration)
	}
	return req
}

// decide returns where a lease would be placed now, its parts with some size at most; 0: any.
// The ID is empty if the lease does not exist yet.
func (t *tx) decide(id string, s *dxpuv1.LeaseSpec, size milliGPU) (placement.Decision, placement.HostDecision) {
	gpus, host := t.requestOf(id, s, t.endsBy(s)), t.hostRequestOf(id, s, t.endsBy(s))
	gpus.Uplinks, gpus.MaxSize = t.fullUplinks, uint64(size)
	t.reindex()
	t.tellTypical()
	r := t.reservedFrom(id, s, sizeOf(s))
	if startTime(s).After(t.now) {
		r = t.tried.needed
	}
	if r != nil {
		gpus.Exclude, host.Exclude = append(gpus.Exclude, r.gpus...), append(host.Exclude, r.slots...)
	}
	gpus.Brief, host.Brief = t.isBrief(), t.isBrief()
	d, h := t.gpuPool.PlaceLease(t.hostPool, t.cfg.Reserve, gpus, host)
	t.noteDecision(d.OK() && h.OK(), gpus.Brief)
	t.noteKept(id, s, r, &d, &h)
	return d, h
}
