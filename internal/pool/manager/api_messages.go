package manager

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// visibleInSlot returns the binding to show in a host slot. While one binding leaves
// and its successor waits for the slot, it is the leaving one.
func (t *tx) visibleInSlot(s hostSlotRef) *bindingRecord {
	var shown *bindingRecord
	for _, id := range t.bindingsIn(s) {
		if b := t.bindings.get(id); b.holdsHostSlot() && b.Follows == "" && (shown == nil || shown.HostClear) {
			shown = b
		}
	}
	return shown
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func (t *tx) nodeInfo(n *nodeRecord) *dxpuv1.NodeInfo {
	info := &dxpuv1.NodeInfo{
		Id: n.ID, Number: n.Number, Name: n.ID, Rack: n.Rack, Labels: n.Labels, Addresses: addresses(n),
		Connected: t.connected(n.ID), Version: n.Version, DesiredRevision: n.DesiredRevision, LocalPeer: n.LocalPeer,
	}
	if n.Cordon != nil {
		info.Cordoned, info.CordonReason, info.Draining, info.Drained = true, n.Cordon.Reason, n.Cordon.draining(), n.Cordon.drained()
	}
	info.Taints = taintMessages(n.Taints)
	if p := t.planOf(n); p != nil {
		info.MaintenanceId, info.MaintenanceState = p.ID, p.Phase
	}
	info.Unstable = n.Stability != nil && n.Stability.Unstable
	if l := t.live[n.ID]; l != nil {
		info.LastReportTime = timestamp(l.last)
		info.AppliedRevision = l.observed.GetAppliedRevision()
	}
	return info
}

func addresses(n *nodeRecord) []*dxpuv1.PathAddress {
	var out []*dxpuv1.PathAddress
	for _, a := range n.Addresses {
		out = append(out, &dxpuv1.PathAddress{Path: a.Path, Address: a.Address, Mtu: a.MTU, Network: a.Network})
	}
	return out
}

func (t *tx) hostMessage(n *nodeRecord) *dxpuv1.Host {
	out := &dxpuv1.Host{Node: t.nodeInfo(n), ResourceVersion: n.ResourceVersion}
	for _, s := range n.Slots {
		slot := &dxpuv1.HostSlot{Slot: s.Slot, Domain: s.Domain}
		if b := t.visibleInSlot(hostSlotRef{n.ID, s.Slot}); b != nil {
			slot.BindingId, slot.LeaseId, slot.GpuId = b.ID, b.LeaseID, b.gpuID()
			if o := t.observed(n.ID, b); o != nil {
				slot.ObservedState, slot.Counters, slot.Paths = o.State, o.Counters, o.Paths
				slot.Use, slot.Ejected = o.Use, b.Ejected
			}
		}
		out.Slots = append(out.Slots, slot)
	}
	return out
}

func (t *tx) boxMessage(n *nodeRecord) *dxpuv1.Box {
	out := &dxpuv1.Box{Node: t.nodeInfo(n), Kind: n.BoxKind, ResourceVersion: n.ResourceVersion, ProxyGpus: n.ProxyGPUs}
	parts := t.partsOfAll(n)
	for i := range n.Slots {
		if n.Slots[i].Device == nil {
			out.EmptySlots = append(out.EmptySlots, n.Slots[i].Slot)
			continue
		}
		if n.Slots[i].PartOf != nil { // its GPU tells
			continue
		}
		out.Gpus = append(out.Gpus, t.gpuMessageWith(n, &n.Slots[i], parts))
	}
	return out
}

func (t *tx) gpuMessage(n *nodeRecord, s *slotRecord) *dxpuv1.GPU {
	return t.gpuMessageWith(n, s, t.partsOfOne(n))
}

// gpuMessageWith is gpuMessage for a GPU of a box whose parts are known.
func (t *tx) gpuMessageWith(n *nodeRecord, s *slotRecord, parts boxParts) *dxpuv1.GPU {
	ref := placement.Ref{Box: n.ID, Slot: s.Slot}
	g := &dxpuv1.GPU{
		Id: ref.String(), BoxId: n.ID, Slot: s.Slot, Device: deviceMessage(s.Device), BoxKind: n.BoxKind,
		Health: s.Health, HealthDetail: s.HealthDetail, State: dxpuv1.GPUState_GPU_STATE_FREE,
		ResourceVersion: n.ResourceVersion, LocalHost: n.LocalPeer,
	}
	if why := s.Fault.outOfService(); why != "" {
		if g.Health == dxpuv1.Health_HEALTH_OK {
			g.Health, g.HealthDetail = dxpuv1.Health_HEALTH_DEGRADED, why
		}
		g.QuarantinedUntil = timestamp(s.Fault.QuarantinedUntil)
	}
	if why := t.whyDuplicate(n.ID, s); why != "" && g.Health == dxpuv1.Health_HEALTH_OK {
		g.Health, g.HealthDetail = dxpuv1.Health_HEALTH_DEGRADED, why
	}
	g.Taints = taintMessages(s.Taints)
	g.Errors = s.Fault.errorsMessage()
	if s.Device == nil {
		g.HealthDetail = "the slot is empty"
	}
	if !t.connected(n.ID) {
		g.Health, g.HealthDetail = dxpuv1.Health_HEALTH_UNREACHABLE, "the box does not report"
	}
	for _, c := range []*cordon{n.Cordon, s.Cordon} {
		if c != nil {
			g.Cordoned, g.CordonReason, g.Draining, g.Drained = true, c.Reason, g.Draining || c.draining(), g.Drained || c.drained()
		}
	}
	g.Drained = g.Drained && !g.Draining
	b := t.holderOf(ref)
	switch {
	case b != nil && b.occupied():
		g.State = dxpuv1.GPUState_GPU_STATE_BOUND
	case b != nil:
		g.State = dxpuv1.GPUState_GPU_STATE_RELEASING
	case g.Cordoned || t.planOf(n).closed() || g.Health != dxpuv1.Health_HEALTH_OK:
		g.State = dxpuv1.GPUState_GPU_STATE_UNAVAILABLE
	}
	if b != nil {
		g.BindingId, g.LeaseId, g.HostId, g.HostSlot = b.ID, b.LeaseID, b.HostID, b.HostSlot
		if l := t.leases.get(b.LeaseID); l != nil {
			g.Tenant = l.spec.Tenant
		}
		if o := t.observed(n.ID, b); o != nil {
			g.ObservedState, g.Counters = o.State, o.Counters
		}
		g.Ejected = b.Ejected
		if o := t.observed(b.HostID, b); o != nil && t.connected(b.HostID) {
			g.Use = o.Use
		}
	}
	if s.PartOf == nil && s.Device != nil {
		t.partsMessage(g, parts)
		g.Immovable = t.slotImmovable(ref)
		g.Movable = g.Immovable == ""
	}
	return g
}

func deviceMessage(d *deviceRecord) *dxpuv1.Device {
	if d == nil {
		return nil
	}
	return &dxpuv1.Device{
		Model: d.Model, MemoryBytes: d.MemoryBytes, Serial: d.Serial, VendorId: d.VendorID, DeviceId: d.DeviceID,
		NvlinkDomain: d.NVLinkDomain, PcieSwitch: d.PCIeSwitch, Multiprocessors: d.Multiprocessors, ShareModes: shareModes(d.ShareModes),
	}
}

func (t *tx) leaseMessage(l *leaseRecord) *dxpuv1.Lease {
	out := &dxpuv1.Lease{
		Id: l.ID, RequestId: l.RequestID, Spec: proto.CloneOf(l.spec), State: l.State, StateReason: l.StateReason,
		HostId: l.HostID, CreateTime: timestamp(l.CreateTime), ActiveTime: timestamp(l.ActiveTime),
		EndTime: timestamp(l.EndTime), ResourceVersion: l.ResourceVersion, Creator: l.Creator,
	}
	switch l.State {
	case leasePending:
		out.QueuePosition = t.queuePosition(l.ID)
	case leaseActive:
		out.StateReason += t.silence(l)
	}
	out.ExpireTime, out.Reservation = timestamp(l.expires()), reservationMessage(l.Promise)
	if !l.ended() {
		out.RenewBefore = timestamp(t.renewBy(l))
	}
	for _, id := range t.bindingsOf(l.ID) {
		b := t.bindings.get(id)
		out.Bindings = append(out.Bindings, bindingMessage(b))
		out.Bindings[len(out.Bindings)-1].Migration = t.migrationProgress(b)
	}
	return out
}

// bindingMessage returns the public part of a binding: all but its secret.
func bindingMessage(b *bindingRecord) *dxpuv1.Binding {
	out := &dxpuv1.Binding{
		Id: b.ID, Epoch: b.Epoch, LeaseId: b.LeaseID, HostId: b.HostID, HostSlot: b.HostSlot, BoxId: b.BoxID,
		BoxSlot: b.BoxSlot, GpuId: b.gpuID(), State: b.State, Reason: b.Reason, Detail: b.Detail,
		ReplacesBindingId: b.Replaces, FollowsBindingId: b.Follows, HostClear: b.HostClear, BoxClear: b.BoxClear,
		Ejected: b.Ejected, Waiting: b.Waiting, Part: b.Part.message(),
	}
	if b.Part != nil {
		out.PartOfGpuId, out.HeldMemoryBytes = b.gpu().String(), b.Part.HeldMemory
	}
	for _, s := range b.Steps {
		out.Timeline = append(out.Timeline, &dxpuv1.Step{
			Name: s.Name, Time: timestamp(s.Time), Duration: durationpb.New(s.Duration), NodeId: s.NodeID,
		})
	}
	return out
}

// desired returns the whole desired state of a node.
func (t *tx) desired(n *nodeRecord) *dxpuv1.DesiredState {
	out := &dxpuv1.DesiredState{
		ClusterId: t.meta.ClusterID, NodeId: n.ID, NodeNumber: n.Number, Revision: n.DesiredRevision,
		Resets: desiredResets(n),
	}
	for _, id := range t.bindingsAt(n.ID) {
		b := t.bindings.get(id)
		switch {
		case b.BoxID == n.ID && b.wantedByBox():
			out.Bindings = append(out.Bindings, t.desiredBinding(b, b.BoxSlot, b.HostID, b.HostSlot))
			t.addTransfers(n.ID, b, out.Bindings[len(out.Bindings)-1])
		case b.HostID == n.ID && b.wantedByHost():
			out.Bindings = append(out.Bindings, t.desiredBinding(b, b.HostSlot, b.BoxID, b.BoxSlot))
			t.addTransfers(n.ID, b, out.Bindings[len(out.Bindings)-1])
		}
	}
	return out
}

func (t *tx) desiredBinding(b *bindingRecord, slot uint32, peer string, peerSlot uint32) *dxpuv1.DesiredBinding {
	host, box := t.nodes.get(b.HostID), t.nodes.get(b.BoxID)
	p := t.nodes.get(peer)
	out := &dxpuv1.DesiredBinding{
		BindingId: b.ID, Epoch: b.Epoch, LeaseId: b.LeaseID, Slot: slot,
		Peer:   &dxpuv1.Peer{NodeId: peer, NodeNumber: p.Number, Slot: peerSlot, Addresses: addresses(p)},
		Cipher: dxpuv1.Cipher_CIPHER_AES_256_GCM, Secret: b.Secret, Mtu: t.mtu(host, box),
		UnplugTimeout: durationpb.New(t.cfg.UnplugTimeout), Domain: b.HostID + "/", State: b.State,
		Traceparent: b.Trace, Replugs: b.Replugs, Part: b.Part.message(),
	}
	if b.State == copying || b.State == switching { // nodes have no such states
		out.State = ready
	}
	if s := host.slot(b.HostSlot); s != nil {
		out.Domain += s.Domain
	}
	if s := box.slot(b.BoxSlot); s != nil {
		out.Device = deviceMessage(s.Device)
	}
	// Bindings of a box take turns on the paths that both sides have.
	if common := commonPaths(host, box); len(common) > 0 {
		out.Path = common[int(b.BoxSlot)%len(common)]
	}
	return out
}

// mtu returns the smallest MTU of all paths that both sides have.
func (t *tx) mtu(a, b *nodeRecord) uint32 {
	mtu := uint32(0)
	for _, addr := range slices.Concat(a.Addresses, b.Addresses) {
		m := cmp.Or(addr.MTU, t.cfg.MTU)
		mtu = min(cmp.Or(mtu, m), m)
	}
	return cmp.Or(mtu, t.cfg.MTU)
}

func commonPaths(a, b *nodeRecord) []uint32 {
	var out []uint32
	for _, x := range a.Addresses {
		for _, y := range b.Addresses {
			if x.Path == y.Path {
				out = append(out, x.Path)
			}
		}
	}
	return out
}
