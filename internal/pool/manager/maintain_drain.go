package manager

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/plural"
)

func (s *poolService) Cordon(ctx context.Context, req *connect.Request[dxpuv1.CordonRequest]) (*connect.Response[dxpuv1.CordonResponse], error) {
	c := &cordon{Reason: req.Msg.Reason}
	return updateResponse(ctx, s.m, func(t *tx, _ *dxpuv1.CordonResponse) error {
		return t.cordon(req.Msg.Target, req.Msg.ResourceVersion, c)
	})
}

func (s *poolService) Uncordon(ctx context.Context, req *connect.Request[dxpuv1.UncordonRequest]) (*connect.Response[dxpuv1.UncordonResponse], error) {
	return updateResponse(ctx, s.m, func(t *tx, _ *dxpuv1.UncordonResponse) error {
		return t.cordon(req.Msg.Target, req.Msg.ResourceVersion, nil)
	})
}

// cordon sets the cordon of a target that has the version; nil removes it.
func (t *tx) cordon(target *dxpuv1.Target, version uint64, c *cordon) error {
	n, err := t.target(target)
	if err != nil {
		return err
	}
	if version != 0 && version != n.ResourceVersion {
		return conflict("target", n.ID, n.ResourceVersion, version)
	}
	t.setCordon(target, c)
	return nil
}

func (t *tx) target(target *dxpuv1.Target) (*nodeRecord, error) {
	node := func(kind, id string, want dxpuv1.NodeKind) (*nodeRecord, error) {
		if n := t.nodes.get(id); n != nil && n.Kind == want && !n.Deleting {
			return n, nil
		}
		return nil, notFound(kind, id)
	}
	switch {
	case target.GetGpuId() != "":
		n, _, ok := t.gpuByID(target.GetGpuId())
		if !ok || n.Deleting {
			return nil, notFound("gpu", target.GetGpuId())
		}
		return n, nil
	case target.GetBoxId() != "":
		return node("box", target.GetBoxId(), dxpuv1.NodeKind_NODE_KIND_BOX)
	case target.GetHostId() != "":
		return node("host", target.GetHostId(), dxpuv1.NodeKind_NODE_KIND_HOST)
	}
	return nil, invalid("target: one of gpu_id, box_id and host_id must be set")
}

// setCordon sets or removes the cordon of a target that exists. Nothing happens to a target
// without a cordon that loses it.
func (t *tx) setCordon(target *dxpuv1.Target, c *cordon) {
	n, err := t.target(target)
	if err != nil || c == nil && t.ownCordon(target) == nil {
		return
	}
	n = t.nodes.edit(n.ID)
	n.ResourceVersion = t.revision()
	what := n.ID
	typ := dxpuv1.EventType_EVENT_TYPE_CORDONED
	if c == nil {
		typ = dxpuv1.EventType_EVENT_TYPE_UNCORDONED
	}
	e := nodeEvent(n, typ)
	if id := target.GetGpuId(); id != "" {
		_, s, _ := t.gpuByID(id) // of the editable record
		s.Cordon = c
		what, e.GpuId = id, id
	} else {
		n.Cordon = c
	}
	if c == nil {
		t.event(e, "%s takes new bindings again", what)
		return
	}
	text := what + " takes no new bindings"
	if c.Reason != "" {
		text += ": " + c.Reason
	}
	t.event(e, "%s", text)
}

// ownCordon returns the cordon of a target that exists, without that of its box.
func (t *tx) ownCordon(target *dxpuv1.Target) *cordon {
	if id := target.GetGpuId(); id != "" {
		_, s, _ := t.gpuByID(id)
		return s.Cordon
	}
	n, _ := t.target(target)
	return n.Cordon
}

// Drain implements dxpuv1connect.PoolServiceHandler.
//
// The request is stored with the cordon, so that the drain goes on after a restart;
// removing the cordon ends it.
//
// Each binding of a GPU or box moves to another GPU under the constraints of its
// lease. Spares may be used. One binding per lease moves at a time, so that leases
// stay up; GPUs that must be together move together. Without a deadline no lease
// loses a GPU that cannot be replaced. At the deadline the remaining bindings are
// released; their leases are degraded and get the next GPU that fits.
//
// A live drain moves bindings by live migration, as long as each of them can; before the
// deadline none moves in another way.
//
// A GPU of a host cannot move, because it is plugged into a VM there. So nothing
// happens before the deadline, and leases may end by themselves. At the deadline
// the leases of the host lose their GPUs: a lease that may wait and is not pinned
// to the host goes back into the queue, the others end.
func (s *poolService) Drain(ctx context.Context, req *connect.Request[dxpuv1.DrainRequest]) (*connect.Response[dxpuv1.DrainResponse], error) {
	r := req.Msg
	if err := checkDuration("deadline", r.Deadline); err != nil {
		return nil, err
	}
	if r.Live && r.Target.GetHostId() != "" {
		return nil, invalid("live: a GPU moves live to another box, not to another host")
	}
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.DrainResponse) error {
		if r.Live && !t.alike {
			return errOldManagers()
		}
		c := &cordon{Reason: r.Reason, Drain: &drain{Since: t.now, Live: r.Live}}
		if r.Deadline != nil {
			c.Drain.Deadline = t.now.Add(r.Deadline.AsDuration())
		}
		if err := t.cordon(r.Target, r.ResourceVersion, c); err != nil {
			return err
		}
		n, _ := t.target(r.Target)
		var slot *slotRecord
		if id := r.Target.GetGpuId(); id != "" {
			_, slot, _ = t.gpuByID(id)
		}
		res.BindingIds = t.boundAt(n, slot)
		t.event(drainEvent(n, slot, dxpuv1.EventType_EVENT_TYPE_DRAINING), "%s is being drained of %s", targetName(n, slot), plural.Count(len(res.BindingIds), "binding", "bindings"))
		return nil
	})
}

// targetName returns the ID of a node or of the GPU in its slot.
func targetName(n *nodeRecord, s *slotRecord) string {
	if s != nil {
		return gpuID(n.ID, s.Slot)
	}
	return n.ID
}

func drainEvent(n *nodeRecord, s *slotRecord, typ dxpuv1.EventType) *dxpuv1.Event {
	if s != nil {
		return gpuEvent(n, s.Slot, typ)
	}
	return nodeEvent(n, typ)
}

// boundAt returns the bindings that still occupy a node, or one of its slots: of a host also
// those of leases that have lost their GPUs and get others there.
func (t *tx) boundAt(n *nodeRecord, s *slotRecord) []string {
	if s != nil {
		t.reindexBindings()
		var out []string
		for _, b := range t.occupantsOf(n.ID) {
			if b.holdsGPU() && (b.BoxSlot == s.Slot || b.gpu().Slot == s.Slot) {
				out = append(out, b.ID)
			}
		}
		return out
	}
	bound := slices.DeleteFunc(t.bindingsAt(n.ID), func(id string) bool {
		b := t.bindings.get(id)
		return b.HostID == n.ID && !b.holdsHostSlot() || b.BoxID == n.ID && !b.holdsGPU()
	})
	if n.Kind == dxpuv1.NodeKind_NODE_KIND_BOX {
		return bound
	}
	for lease := range t.unreplaced {
		for _, id := range t.bindingsByLease[lease] {
			if k := t.indexedBindings[id]; k.unreplaced && k.slot.host == n.ID {
				bound = append(bound, id)
			}
		}
	}
	slices.Sort(bound)
	return slices.Compact(bound)
}

// uses reports whether a binding keeps its lease at a node: it serves the lease, or at its host
// awaits another GPU.
func (t *tx) uses(n *nodeRecord, b *bindingRecord) bool {
	return b.serving() || b.HostID == n.ID && t.awaitsReplacement(b)
}

func (t *tx) advanceDrain(n *nodeRecord, s *slotRecord) {
	c := n.Cordon
	if s != nil {
		c = s.Cordon
	}
	bound := t.boundAt(n, s)
	if len(bound) == 0 {
		t.drained(n.ID, s, c)
		return
	}
	t.maintainSoon(n.ID)
	late := !c.Drain.Deadline.IsZero() && t.dueOrSchedule(subject{nodeSubject, n.ID}, c.Drain.Deadline)
	if c.Drain.Live && !late {
		t.moveAllLive(bound, c.Drain.Since)
	}
	if late || !c.Drain.Live {
		t.evict(n, bound, late, dxpuv1.Reason_REASON_DRAINED, fmt.Sprintf("host %s is drained", n.ID))
	}
}

// evict moves bindings away from a node. Where no other GPU fits, and at a host, it ends
// them if it is late. why is the reason for the leases of a host. It reports whether
// bindings are still on their way, so that a look at the node soon is worthwhile.
func (t *tx) evict(n *nodeRecord, bound []string, late bool, reason dxpuv1.Reason, why string) (moving bool) {
	byLease := map[string][]string{}
	for _, id := range bound {
		if b := t.bindings.get(id); t.uses(n, b) {
			byLease[b.LeaseID] = append(byLease[b.LeaseID], id)
		} else {
			moving = true
		}
	}
	for _, lease := range slices.Sorted(maps.Keys(byLease)) {
		l := t.leases.get(lease)
		switch {
		case l == nil || !l.holds():
			moving = true
		case n.Kind == dxpuv1.NodeKind_NODE_KIND_HOST:
			if late {
				t.evictFromHost(l, reason, why)
				moving = true
			}
		case t.moveAway(l, byLease[lease], reason):
			moving = true
		case late:
			for _, id := range byLease[lease] {
				t.release(id, reason, true)
			}
			moving = true
		}
	}
	return moving
}

// drained records that nothing is bound at a target any more.
func (t *tx) drained(id string, s *slotRecord, c *cordon) {
	d := *c.Drain
	d.Done = true
	done := &cordon{Reason: c.Reason, Drain: &d}
	n := t.nodes.edit(id)
	n.ResourceVersion = t.revision()
	if s == nil {
		n.Cordon = done
	} else {
		s = n.slot(s.Slot)
		s.Cordon = done
	}
	t.event(drainEvent(n, s, dxpuv1.EventType_EVENT_TYPE_DRAINED), "%s is drained: nothing is bound there", targetName(n, s))
}

// evictFromHost ends a lease on a host, or returns it to the queue if it may
// get GPUs on another host.
func (t *tx) evictFromHost(l *leaseRecord, reason dxpuv1.Reason, why string) {
	if l.spec.Wait && l.spec.HostId == "" {
		t.requeue(l.ID, reason, why, true)
		return
	}
	t.endLease(l.ID, reason, why, true)
}

// moveAway moves bindings of a lease to other GPUs: the first of them, or all
// if they must be together. It moves nothing while a GPU of the lease is being
// attached, so that the lease loses no more at a time. It reports whether the
// move was possible or not necessary.
func (t *tx) moveAway(l *leaseRecord, ids []string, reason dxpuv1.Reason) bool {
	if l.State != leaseActive || t.isAttaching(l) || t.isMigrating(l) {
		return l.State != leaseDegraded
	}
	if !mustBeTogether(l.spec) {
		ids = ids[:1]
	}
	req := t.replacement(l, ids)
	for _, id := range ids {
		req.Leaves = append(req.Leaves, t.bindings.get(id).gpu())
	}
	d := t.chooseOthers(l, req)
	if !d.OK() {
		t.reportStuck(l, ids, "move", d.Why)
		return false
	}
	for _, id := range ids {
		t.release(id, reason, true)
	}
	for i, id := range ids {
		t.bindReplacement(id, d.Picks[i], d.Share)
	}
	return true
}

// mustBeTogether reports whether the GPUs of a lease must be in one box or
// NVLink domain.
func mustBeTogether(s *dxpuv1.LeaseSpec) bool {
	return s.SameBox == dxpuv1.Preference_PREFERENCE_REQUIRED || s.Nvlink == dxpuv1.Preference_PREFERENCE_REQUIRED
}

func (t *tx) isAttaching(l *leaseRecord) bool {
	return slices.ContainsFunc(t.bindingsOf(l.ID), func(id string) bool {
		b := t.bindings.get(id)
		return b.serving() && b.State != attached
	})
}

// reportStuck makes an event, once per binding, about why bindings cannot move or
// be replaced.
func (t *tx) reportStuck(l *leaseRecord, ids []string, what string, why []string) {
	for _, id := range ids {
		if t.bindings.get(id).NoSpare {
			continue
		}
		b := t.bindings.edit(id)
		b.NoSpare = true
		t.event(b.event(dxpuv1.EventType_EVENT_TYPE_REPLACEMENT_IMPOSSIBLE),
			"GPU %s of lease %s cannot %s now: %s", b.gpuID(), l.ID, what, strings.Join(why, " "))
	}
}
