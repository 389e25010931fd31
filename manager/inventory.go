package manager

import (
	"cmp"
	"slices"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/placement"
)

// boxes returns the pool as placement sees it.
func (t *tx) boxes() []placement.Box {
	taken := map[placement.Ref]bool{}
	for _, id := range t.bindings.ids() {
		if b := t.bindings.get(id); b.holdsGPU() {
			taken[b.ref()] = true
		}
	}
	var out []placement.Box
	for _, id := range t.nodes.ids() {
		n := t.nodes.get(id)
		if n.Kind != dxpuv1.NodeKind_NODE_KIND_BOX {
			continue
		}
		box := placement.Box{ID: n.ID, Kind: placementKind(n.BoxKind)}
		here := t.connected(id) && n.Cordon == nil
		for _, s := range n.Slots {
			if s.Device == nil {
				continue
			}
			box.GPUs = append(box.GPUs, placement.GPU{
				Slot: s.Slot, Model: s.Device.Model, Memory: s.Device.MemoryBytes, Domain: s.Device.NVLinkDomain,
				Usable: here && s.Cordon == nil && s.Health == dxpuv1.Health_HEALTH_OK,
				Free:   !taken[placement.Ref{Box: n.ID, Slot: s.Slot}],
			})
		}
		out = append(out, box)
	}
	return out
}

// hosts returns the hosts that have the labels, as placement sees them.
func (t *tx) hosts(labels map[string]string) []placement.Host {
	type slot struct {
		host string
		slot uint32
	}
	taken := map[slot]bool{}
	for _, id := range t.bindings.ids() {
		b := t.bindings.get(id)
		// A slot whose GPU broke and could not be replaced yet waits for the next one.
		waits := !b.good() && b.Successor == "" && t.leases.get(b.LeaseID).holds()
		if waits || b.holdsHostSlot() {
			taken[slot{b.HostID, b.HostSlot}] = true
		}
	}
	var out []placement.Host
	for _, id := range t.nodes.ids() {
		n := t.nodes.get(id)
		if n.Kind != dxpuv1.NodeKind_NODE_KIND_HOST || !hasLabels(n.Labels, labels) {
			continue
		}
		h := placement.Host{ID: id, Usable: t.connected(id) && n.Cordon == nil}
		for _, s := range n.Slots {
			h.Slots = append(h.Slots, placement.HostSlot{
				Slot: s.Slot, Domain: s.Domain,
				Free: !taken[slot{id, s.Slot}] && s.Cordon == nil && s.Health != dxpuv1.Health_HEALTH_FAILED,
			})
		}
		out = append(out, h)
	}
	return out
}

func hasLabels(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}

func placementKind(k dxpuv1.BoxKind) placement.Kind {
	switch k {
	case dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH:
		return placement.PCIeSwitch
	case dxpuv1.BoxKind_BOX_KIND_NVLINK:
		return placement.NVLink
	default:
		return placement.AnyKind
	}
}

func placementPreference(p dxpuv1.Preference) placement.Preference {
	switch p {
	case dxpuv1.Preference_PREFERENCE_PREFERRED:
		return placement.Preferred
	case dxpuv1.Preference_PREFERENCE_REQUIRED:
		return placement.Required
	case dxpuv1.Preference_PREFERENCE_AVOID:
		return placement.Avoided
	default:
		return placement.Indifferent
	}
}

// requestOf translates a lease's wishes.
func requestOf(s *dxpuv1.LeaseSpec) placement.Request {
	return placement.Request{
		Count:     int(s.Count),
		Model:     s.Model,
		MinMemory: s.MinMemoryBytes,
		Kind:      placementKind(s.BoxKind),
		NVLink:    placementPreference(s.Nvlink),
		SameBox:   placementPreference(s.SameBox),
	}
}

// decide works out where a lease would go now.
func (t *tx) decide(s *dxpuv1.LeaseSpec, avoid []placement.Ref) (placement.Decision, placement.HostDecision) {
	h := placement.PlaceHost(t.hosts(s.HostLabels), placement.HostRequest{
		Count: int(s.Count), Host: s.HostId, Domain: s.HostDomain,
	})
	req := requestOf(s)
	req.Exclude = avoid
	return placement.Place(t.boxes(), t.cfg.Reserve, req), h
}

// bindingsOf returns the IDs of a lease's bindings, oldest first. The result is
// not to be changed.
func (t *tx) bindingsOf(lease string) []string {
	if t.byLease == nil {
		t.byLease = map[string][]string{}
		for _, id := range t.bindings.ids() {
			l := t.bindings.get(id).LeaseID
			t.byLease[l] = append(t.byLease[l], id)
		}
		for _, ids := range t.byLease {
			slices.SortFunc(ids, func(a, b string) int {
				return cmp.Compare(t.bindings.get(a).Epoch, t.bindings.get(b).Epoch)
			})
		}
	}
	return t.byLease[lease]
}
