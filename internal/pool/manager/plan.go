package manager

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// A plan keeps nodes free for maintenance at a time that is known in advance. Its phase is
// stored, and what the nodes may do follows from it: nothing else has to be undone when
// the plan is over, and cordons of operators are not touched.
//
//	PLANNED   the nodes take only leases that end before the next phase
//	DRAINING  they take none, and bindings move away
//	RUNNING   the same; bindings that cannot move end, unless the plan lets them stay
//
// The clock alone moves a plan from one phase to the next. A plan that is over has no record.

const (
	// maxPlans bounds the plans: each node with one may have a set of taints of its own,
	// and a decision looks at each set.
	maxPlans = 32
	// maxPlanLeases bounds the leases that an answer lists.
	maxPlanLeases = 100
)

// planRecord is maintenance that is not over.
type planRecord struct {
	ID          string                  `json:"id"`
	RequestID   string                  `json:"request_id,omitempty"`
	Box         string                  `json:"box,omitempty"` // one of Box, Host and Rack is set
	Host        string                  `json:"host,omitempty"`
	Rack        string                  `json:"rack,omitempty"`
	Start       time.Time               `json:"start"`
	End         time.Time               `json:"end"`
	DrainBefore time.Duration           `json:"drain_before,omitempty"`
	KeepLeases  bool                    `json:"keep_leases,omitempty"`
	Reason      string                  `json:"reason,omitempty"`
	Creator     string                  `json:"creator,omitempty"`
	CreateTime  time.Time               `json:"create_time"`
	Phase       dxpuv1.MaintenanceState `json:"phase"`
}

// The phases of a plan, shortened.
const (
	planPlanned  = dxpuv1.MaintenanceState_MAINTENANCE_STATE_PLANNED
	planDraining = dxpuv1.MaintenanceState_MAINTENANCE_STATE_DRAINING
	planRunning  = dxpuv1.MaintenanceState_MAINTENANCE_STATE_RUNNING
)

// closes returns when the nodes take no leases any more.
func (p *planRecord) closes() time.Time { return p.Start.Add(-p.DrainBefore) }

// closed reports whether the nodes take no leases. No plan closes nothing.
func (p *planRecord) closed() bool { return p != nil && p.Phase != planPlanned }

// overBy reports whether a plan is over at a time.
func (p *planRecord) overBy(at time.Time) bool { return !p.End.After(at) }

// covers reports whether a plan is for a node.
func (p *planRecord) covers(n *nodeRecord) bool {
	if n.Kind == dxpuv1.NodeKind_NODE_KIND_BOX && p.Box == n.ID || n.Kind == dxpuv1.NodeKind_NODE_KIND_HOST && p.Host == n.ID {
		return true
	}
	return p.Rack != "" && p.Rack == n.Rack
}

// what names the nodes of a plan.
func (p *planRecord) what() string {
	switch {
	case p.Box != "":
		return "box " + p.Box
	case p.Host != "":
		return "host " + p.Host
	}
	return "rack " + p.Rack
}

// taint keeps leases away that do not end before the plan begins.
func (p *planRecord) taint() placement.Taint {
	return placement.Taint{Key: "maintenance", Value: p.ID, Effect: placement.Planned}
}

// planOf returns the plan that matters most for a node: one that has closed it, else the
// next one; nil for none.
func (t *tx) planOf(n *nodeRecord) *planRecord {
	all := t.plansOf(n)
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(a, b *planRecord) int {
		return cmp.Or(cmp.Compare(b.Phase, a.Phase), a.closes().Compare(b.closes()), cmp.Compare(a.ID, b.ID))
	})
}

func (t *tx) plansOf(n *nodeRecord) (out []*planRecord) {
	for _, p := range t.plans.rows {
		if p.covers(n) {
			out = append(out, p)
		}
	}
	return out
}

// nodeRestriction returns the taints of a node, with those of one of its slots, and what is
// planned there.
func (t *tx) nodeRestriction(n *nodeRecord, slot []taint) placement.Restriction {
	all := placementTaints(slices.Concat(n.Taints, slot))
	for _, p := range t.plansOf(n) {
		if !p.closed() {
			all = append(all, p.taint())
		}
	}
	if n.LocalPeer != "" {
		all = append(all, localTaint)
	}
	return placement.NewRestriction(all...)
}

// takesBindings reports whether a node may get new bindings now.
func (t *tx) takesBindings(n *nodeRecord) bool {
	return n.takesBindings() && !slices.ContainsFunc(t.plansOf(n), func(p *planRecord) bool { return p.closed() && !p.overBy(t.tried.by) })
}

// tolerationsUntil returns the tolerations of a lease that begins and ends before a plan, or
// after it. It ends at a time; zero: never, or not known.
func (t *tx) tolerationsUntil(s *dxpuv1.LeaseSpec, until time.Time) []placement.Toleration {
	out := tolerationsOf(s)
	apart := func(p *planRecord) bool {
		return !until.IsZero() && !until.After(p.closes()) || !t.beginsBy(s).Before(p.End)
	}
	for _, id := range t.plans.ids() {
		if p := t.plans.get(id); !p.closed() && apart(p) {
			k := p.taint()
			out = append(out, placement.Toleration{Key: k.Key, Value: k.Value, Effect: k.Effect})
		}
	}
	return out
}

// endsBy returns when a lease with a spec would end if its GPUs were attached when it begins;
// zero: never.
func (t *tx) endsBy(s *dxpuv1.LeaseSpec) time.Time {
	if s.StartTime != nil {
		return expireTime(s)
	}
	if s.ExpiresAfter == nil {
		return time.Time{}
	}
	return t.beginsBy(s).Add(s.ExpiresAfter.AsDuration())
}

// advancePlan moves a plan to the phase of the present time.
func (t *tx) advancePlan(id string) {
	p, at := t.plans.get(id), subject{planSubject, id}
	switch {
	case t.dueOrSchedule(at, p.End):
		t.endPlan(id, "is over")
	case t.dueOrSchedule(at, p.Start):
		t.setPhase(id, planRunning, dxpuv1.EventType_EVENT_TYPE_MAINTENANCE_BEGUN, "begins, until "+rfc3339(p.End))
	case t.dueOrSchedule(at, p.closes()):
		t.setPhase(id, planDraining, dxpuv1.EventType_EVENT_TYPE_MAINTENANCE_DRAINING, "takes no leases any more, and begins at "+rfc3339(p.Start))
	}
}

func rfc3339(at time.Time) string { return at.UTC().Format(time.RFC3339) }

// setPhase moves a plan to a later phase, if it is not there yet.
func (t *tx) setPhase(id string, phase dxpuv1.MaintenanceState, typ dxpuv1.EventType, words string) {
	if t.plans.get(id).Phase >= phase {
		return
	}
	p := t.plans.edit(id)
	p.Phase = phase
	t.planEvent(p, typ, words)
	t.replanNodes(p)
}

// endPlan removes a plan: its nodes take leases again.
func (t *tx) endPlan(id, words string) {
	p := t.plans.get(id)
	t.plans.remove(id)
	t.planEvent(p, dxpuv1.EventType_EVENT_TYPE_MAINTENANCE_OVER, words)
	t.replanNodes(p)
}

func (t *tx) planEvent(p *planRecord, typ dxpuv1.EventType, words string) {
	text := fmt.Sprintf("maintenance %s of %s %s", p.ID, p.what(), words)
	if p.Reason != "" {
		text += ": " + p.Reason
	}
	t.event(&dxpuv1.Event{Type: typ, BoxId: p.Box, HostId: p.Host}, "%s", text)
}

// replanNodes makes the nodes of a plan follow its change. The alarms spread the work at
// many nodes over several transactions.
func (t *tx) replanNodes(p *planRecord) {
	for n := range t.nodesOf(p) {
		t.changeConnectivity(n.ID)
		t.alarms.set(subject{nodeSubject, n.ID}, t.clock())
	}
}

// nodesOf returns the nodes of a plan.
func (t *tx) nodesOf(p *planRecord) iter.Seq[*nodeRecord] {
	return func(yield func(*nodeRecord) bool) {
		if p.Rack == "" {
			if n := t.nodes.get(p.Box + p.Host); n != nil && p.covers(n) {
				yield(n)
			}
			return
		}
		for _, n := range t.nodes.rows {
			if p.covers(n) && !yield(n) {
				return
			}
		}
	}
}

// evictInterval is the pause between two attempts to move bindings that could not move.
const evictInterval = 2 * time.Second

// evictForPlan moves bindings away from a node that is closed for maintenance. A rack has
// many, so the attempts of one transaction are bounded.
func (t *tx) evictForPlan(id string) {
	n := t.nodes.get(id)
	p := t.planOf(n)
	if !p.closed() {
		return
	}
	bound := t.boundAt(n, nil)
	if len(bound) == 0 {
		return
	}
	if t.attempts >= maxAttemptsPerPass {
		t.alarms.set(subject{nodeSubject, id}, t.clock())
		return
	}
	t.attempts += len(bound)
	late := false
	for _, o := range t.plansOf(n) {
		if o.Phase == planRunning && !o.KeepLeases && (!late || o.ID < p.ID) {
			p, late = o, true // another one may let them stay
		}
	}
	if t.evict(n, bound, late, dxpuv1.Reason_REASON_DRAINED, fmt.Sprintf("host %s is in maintenance %s", n.ID, p.ID)) {
		t.maintainSoon(id)
	} else {
		t.alarms.set(subject{nodeSubject, id}, t.clock()+evictInterval)
	}
}

// planMessage returns a plan as the API has it.
func (t *tx) planMessage(p *planRecord) *dxpuv1.Maintenance {
	out := &dxpuv1.Maintenance{
		Id: p.ID, StartTime: timestamp(p.Start), EndTime: timestamp(p.End), KeepLeases: p.KeepLeases, Reason: p.Reason, State: p.Phase,
		Creator: p.Creator, CreateTime: timestamp(p.CreateTime), RequestId: p.RequestID, DrainBefore: durationMessage(p.DrainBefore),
	}
	switch {
	case p.Box != "":
		out.Target = &dxpuv1.Maintenance_BoxId{BoxId: p.Box}
	case p.Host != "":
		out.Target = &dxpuv1.Maintenance_HostId{HostId: p.Host}
	default:
		out.Target = &dxpuv1.Maintenance_Rack{Rack: p.Rack}
	}
	out.LeaseIds = t.leasesUnder(p)
	return out
}

// leasesUnder returns the leases that have bindings at the nodes of a plan, at most
// maxPlanLeases.
func (t *tx) leasesUnder(p *planRecord) []string {
	t.reindex()
	leases := map[string]bool{}
	for n := range t.nodesOf(p) {
		for _, b := range t.boundAt(n, nil) {
			leases[t.bindings.get(b).LeaseID] = true
		}
	}
	ids := make([]string, 0, len(leases))
	for id := range leases {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, compareLeaseIDs)
	return ids[:min(len(ids), maxPlanLeases)]
}

// planFrom returns the plan that a request describes.
func (t *tx) planFrom(m *dxpuv1.Maintenance) (*planRecord, error) {
	p := &planRecord{
		Box: m.GetBoxId(), Host: m.GetHostId(), Rack: m.GetRack(), Start: t.now, DrainBefore: m.GetDrainBefore().AsDuration(),
		KeepLeases: m.GetKeepLeases(), Reason: m.GetReason(), CreateTime: t.now, Phase: planPlanned,
	}
	if m.GetStartTime() != nil {
		p.Start = m.StartTime.AsTime()
	}
	p.End = m.GetEndTime().AsTime()
	switch {
	case p.Box+p.Host+p.Rack == "":
		return nil, invalid("maintenance.target: one of box_id, host_id and rack must be set")
	case m.GetEndTime() == nil:
		return nil, invalid("maintenance.end_time: must be set; EndMaintenance can end it earlier")
	case !p.End.After(p.Start):
		return nil, invalid("maintenance.end_time: the end, %s, is not after the start, %s", rfc3339(p.End), rfc3339(p.Start))
	case !p.End.After(t.now):
		return nil, invalid("maintenance.end_time: the end, %s, is in the past", rfc3339(p.End))
	case p.End.After(t.now.Add(maxPlanAhead)):
		return nil, invalid("maintenance.end_time: the end, %s, is more than a year ahead", rfc3339(p.End))
	}
	for n := range t.nodesOf(p) {
		if !n.Deleting {
			return p, nil
		}
	}
	kind, id, _ := strings.Cut(p.what(), " ")
	return nil, notFound("maintenance.target: "+kind, id)
}

// maxPlanAhead bounds how far ahead plans are.
const maxPlanAhead = 366 * 24 * time.Hour
