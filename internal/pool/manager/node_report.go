package manager

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// truncateText truncates a text of a caller to maxText bytes.
func truncateText(s string) string { return truncate(s, maxText) }

// truncate bounds a text, in bytes, and removes invalid UTF-8, such as half a
// character at its end or an escaped byte of a URL. An answer with such a text
// could not be encoded. Control characters become spaces: they could move the cursor
// of an operator's terminal, or change the order of the text.
func truncate(s string, most int) string {
	if len(s) <= most && isPrintable(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s[:min(len(s), most)], ""))
}

// isPrintable reports whether a text has only printable characters of ASCII.
func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// report processes a report and returns the revision that the node should have
// and its report interval. o belongs to the manager afterwards.
func (m *Manager) report(ctx context.Context, o *dxpuv1.ObservedState, allowed func(*tx) error) (uint64, time.Duration, error) {
	essence, err := digestOf(o)
	if err != nil {
		return 0, 0, invalid("state: %v", err)
	}
	m.mu.Lock()
	revision, charged, c, err := m.reportLocked(ctx, o, essence, allowed)
	heartbeat := m.cfg.Heartbeat
	if err == nil {
		heartbeat = m.readLocked(m.cfg.Now()).heartbeat()
	}
	l := m.live[o.NodeId]
	if err == nil {
		revision = l.announced(revision, o.AppliedRevision, m.cfg.Now())
	}
	// A late report also waits for its answer, but is no sign of life.
	waits := l != nil && l.observed == o && c != nil && !isClosed(c.done)
	if waits {
		l.unanswered++
	}
	m.mu.Unlock()
	err = m.answer(ctx, c, err)
	if connect.CodeOf(err) == connect.CodeUnavailable {
		m.limits.refundReport(callFrom(ctx), charged, m.cfg.Now())
	}
	if waits {
		m.mu.Lock()
		l.unanswered--
		l.silentSince = m.cfg.Now()
		m.mu.Unlock()
	}
	return revision, heartbeat, err
}

// reportLocked is report without the wait for the store. charged is the number of calls that the
// node is charged for the changes.
func (m *Manager) reportLocked(ctx context.Context, o *dxpuv1.ObservedState, essence []byte, allowed func(*tx) error) (
	revision uint64, charged int, c *commit, err error,
) {
	if err := m.readyLocked(ctx); err != nil {
		return 0, 0, nil, err
	}
	t := m.readLocked(m.cfg.Now())
	if err := allowed(t); err != nil {
		return 0, 0, m.last, err
	}
	l := m.liveLocked(o.NodeId)
	if !l.runs.accepts(o.InstanceId, o.Sequence) {
		return t.nodes.get(o.NodeId).DesiredRevision, 0, m.tellOfTwoLocked(ctx, o.NodeId), nil
	}
	was := t.connected(o.NodeId) && l.told.connected
	same := was && bytes.Equal(l.digest, essence)
	l.rates.update(o, t.now)
	l.uses = t.usesOf(o)
	l.observed, l.last, l.silentSince, l.told.lost, l.digest = o, t.now, t.now, false, essence
	l.timeout = t.lostTimeout(t.heartbeat())
	if same {
		l.told.paths = o // the same, and the older report need not stay in memory
		return m.publishedRevisionLocked(l, o), 0, nil, nil
	}
	c, err = m.updateLocked(ctx, func(t *tx) error {
		told := t.tell(l)
		if !was {
			told.connected = true
			n := t.nodes.get(o.NodeId)
			t.event(nodeEvent(n, dxpuv1.EventType_EVENT_TYPE_NODE_CONNECTED), "%s %s is connected", kindWord(n.Kind), n.ID)
			t.changeConnectivity(n.ID)
			t.recordReturn(n.ID)
		}
		t.markNode(o.NodeId)
		fallen := t.newlyFailed(o)
		t.inventory(o)
		t.recordErrors(o, fallen)
		t.pathEvents(told, o)
		charged = m.limits.chargeReport(callFrom(ctx), t.changes(), t.now)
		return nil
	})
	if err != nil {
		l.digest = nil // process the next report in full
		return 0, charged, c, err
	}
	return t.nodes.get(o.NodeId).DesiredRevision, charged, c, nil
}

// publishedRevisionLocked returns the newest durable revision of a node's desired
// state. The answer to a report that changes nothing does not wait for the store, so
// it must not contain what is not durable.
func (m *Manager) publishedRevisionLocked(l *liveNode, o *dxpuv1.ObservedState) uint64 {
	switch {
	case l.published != 0:
		return l.published
	case m.last == nil || isClosed(m.last.done):
		return m.state.nodes.get(o.NodeId).DesiredRevision
	default:
		return o.AppliedRevision // the next report tells
	}
}

// inventory records the properties of the node that a report contains.
func (t *tx) inventory(o *dxpuv1.ObservedState) {
	n := t.nodes.get(o.NodeId)
	addrs := make([]pathAddress, 0, len(o.Addresses))
	for _, a := range o.Addresses {
		addrs = append(addrs, pathAddress{a.Path, truncateText(a.Address), a.Mtu, truncateText(a.Network)})
	}
	slots := make([]slotRecord, 0, len(o.Slots))
	for _, s := range o.Slots {
		r := slotRecord{
			Slot: s.Slot, Domain: truncateText(s.Domain), Device: deviceOf(s.Device),
			Health: s.Health, HealthDetail: truncateText(s.HealthDetail), PartOf: partOf(n, s),
		}
		old := n.slot(s.Slot)
		if old != nil {
			r.Cordon, r.Taints, r.Fault, r.Duplicate = old.Cordon, old.Taints, old.Fault, old.Duplicate
			if sameDevice(old.Device, r.Device) {
				r.Device = old.Device
			}
		}
		r.Since = t.deviceSince(old, r.Device)
		slots = append(slots, r)
	}
	sortSlots(slots)
	listed := slots
	for i := range n.Slots {
		// A slot may be missing from a report. Its cordon, its taints and its quarantine stay.
		if old := &n.Slots[i]; old.keeps() && len(slots) < maxSlots && findSlot(listed, old.Slot) == nil {
			slots = append(slots, slotRecord{Slot: old.Slot, Cordon: old.Cordon, Taints: old.Taints, Fault: old.Fault})
		}
	}
	if len(slots) > len(listed) {
		sortSlots(slots)
	}
	moved := !slices.Equal(addrs, n.Addresses)
	changed := t.compareSlots(n, slots)
	if !moved && !changed && n.Rack == o.Rack && maps.Equal(n.Labels, o.Labels) && n.Version == o.Version &&
		n.BoxKind == o.BoxKind && n.ProxyGPUs == o.ProxyGpus && n.LocalPeer == o.LocalPeer && n.SeveralGPUs == o.SeveralGpus {
		return
	}
	n = t.nodes.edit(n.ID)
	n.Addresses, n.Slots = addrs, slots
	n.Rack, n.Labels, n.Version = truncateText(o.Rack), o.Labels, truncateText(o.Version)
	n.BoxKind, n.ProxyGPUs, n.LocalPeer, n.SeveralGPUs = o.BoxKind, o.ProxyGpus, o.LocalPeer, o.SeveralGpus
	n.ResourceVersion = t.revision()
	if moved {
		t.updatePeers(n.ID)
	}
}

// updatePeers renews the desired state of all nodes that have a binding with a
// node whose addresses changed.
func (t *tx) updatePeers(node string) {
	for _, id := range t.bindingsAt(node) {
		b := t.bindings.get(id)
		if b.BoxID == node && b.wantedByHost() {
			t.touch(b.HostID)
		}
		if b.HostID == node && b.wantedByBox() {
			t.touch(b.BoxID)
		}
	}
}

// compareSlots makes events of the changes of a node's slots.
func (t *tx) compareSlots(n *nodeRecord, slots []slotRecord) (changed bool) {
	box := n.Kind == dxpuv1.NodeKind_NODE_KIND_BOX
	for i := range slots {
		s := &slots[i]
		old := n.slot(s.Slot)
		if old == nil {
			old = &slotRecord{Slot: s.Slot}
			changed = true
		}
		if old.Domain != s.Domain || old.Health != s.Health || old.HealthDetail != s.HealthDetail || !sameDevice(old.Device, s.Device) || !samePartOf(old.PartOf, s.PartOf) {
			changed = true
		}
		if !box || s.PartOf != nil || old.PartOf != nil { // no GPU of its own
			continue
		}
		gpu := func(typ dxpuv1.EventType) *dxpuv1.Event { return gpuEvent(n, s.Slot, typ) }
		switch {
		case s.Device == nil && old.Device != nil:
			t.event(gpu(dxpuv1.EventType_EVENT_TYPE_GPU_REMOVED), "GPU %s was removed", gpuID(n.ID, s.Slot))
		case s.Device != nil && !sameDevice(old.Device, s.Device):
			t.event(gpu(dxpuv1.EventType_EVENT_TYPE_GPU_ADDED), "GPU %s was added: %s", gpuID(n.ID, s.Slot), s.Device.Model)
		case s.Device != nil && old.Health != s.Health:
			detail := ""
			if s.HealthDetail != "" {
				detail = ": " + s.HealthDetail
			}
			t.event(gpu(dxpuv1.EventType_EVENT_TYPE_GPU_HEALTH), "GPU %s changed from %s to %s%s",
				gpuID(n.ID, s.Slot), healthWord(old.Health), healthWord(s.Health), detail)
		}
	}
	for i := range n.Slots {
		if box && n.Slots[i].Device != nil && n.Slots[i].PartOf == nil && findSlot(slots, n.Slots[i].Slot) == nil {
			t.event(gpuEvent(n, n.Slots[i].Slot, dxpuv1.EventType_EVENT_TYPE_GPU_REMOVED), "GPU %s was removed", gpuID(n.ID, n.Slots[i].Slot))
		}
	}
	return changed || len(slots) != len(n.Slots)
}

func deviceOf(d *dxpuv1.Device) *deviceRecord {
	if d == nil {
		return nil
	}
	return &deviceRecord{
		Model: truncateText(d.Model), MemoryBytes: d.MemoryBytes, Serial: truncateText(d.Serial), VendorID: d.VendorId, DeviceID: d.DeviceId,
		NVLinkDomain: truncateText(d.NvlinkDomain), PCIeSwitch: truncateText(d.PcieSwitch),
		Multiprocessors: d.Multiprocessors, ShareModes: shareModesOf(d.ShareModes),
	}
}

func sameDevice(a, b *deviceRecord) bool { return a == b || a != nil && b != nil && *a == *b }
