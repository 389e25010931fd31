package manager

import (
	"slices"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
)

// The records of drains, faults and unstable nodes. They are not changed once
// stored: a change makes a new record.

// drain is a request to move all bindings away from a target.
type drain struct {
	Since    time.Time `json:"since"`
	Deadline time.Time `json:"deadline,omitzero"` // when bindings that could not be moved are released; zero: never
	Done     bool      `json:"done,omitempty"`    // set once nothing is bound at the target
	Live     bool      `json:"live,omitempty"`    // bindings move while their guests go on, or stay until the deadline
}

// faultRecord holds the errors of a GPU and the state of its repair.
type faultRecord struct {
	// Serial is that of the device: the record of another device in the slot
	// starts empty.
	Serial   string       `json:"serial,omitempty"`
	Instance string       `json:"instance,omitempty"` // the run of the box proxy whose counters Errors[].Seen follows
	Errors   []errorCount `json:"errors,omitempty"`   // by code
	// Recent lists the errors that may still escalate together.
	Recent []gpuerr.Occurrence `json:"recent,omitempty"`
	// Reset is the sequence of the last reset that was requested, Done of the
	// last one that the box has confirmed.
	Reset      uint64    `json:"reset,omitempty"`
	Done       uint64    `json:"done,omitempty"`
	ResetAsked time.Time `json:"asked,omitzero"` // time of the request, or of the last event about its delay
	ResetDue   bool      `json:"due,omitempty"`  // set when the GPU must be reset before it may serve again
	// QuarantinedUntil is the earliest end of the quarantine; zero: none. Why
	// is its reason.
	QuarantinedUntil time.Time `json:"until,omitzero"`
	Why              string    `json:"why,omitempty"`
	// Quarantines counts the quarantines; Returned is when the GPU last
	// returned to service.
	Quarantines int       `json:"times,omitempty"`
	Returned    time.Time `json:"returned,omitzero"`
}

// errorCount counts the errors of one class.
type errorCount struct {
	Code   uint32    `json:"code"`
	Count  uint64    `json:"count"` // since the errors were cleared
	Seen   uint64    `json:"seen"`  // as the box counts
	Detail string    `json:"detail,omitempty"`
	Last   time.Time `json:"last"`
}

// stability records how often a node was lost.
type stability struct {
	Lost     []time.Time `json:"lost,omitempty"`     // recent losses, oldest first
	Unstable bool        `json:"unstable,omitempty"` // set while the node gets no new bindings
	// Times counts how often the node has become unstable.
	Times int       `json:"times,omitempty"`
	Since time.Time `json:"since,omitzero"` // when the node last came back
}

// takesBindings reports whether a node may get new bindings while it reports.
func (n *nodeRecord) takesBindings() bool {
	return n.Cordon == nil && !n.Deleting && (n.Stability == nil || !n.Stability.Unstable)
}

// takesBindings reports whether a slot may get new bindings if its node may.
func (s *slotRecord) takesBindings() bool {
	return s.Cordon == nil && s.Health == dxpuv1.Health_HEALTH_OK && s.Fault.usable()
}

// usable reports whether a GPU's errors let it serve.
func (c *faultRecord) usable() bool { return c == nil || !c.ResetDue && c.QuarantinedUntil.IsZero() }

// maintain advances the drains, repairs and probation of a node, and schedules
// the next look.
func (t *tx) maintain(id string) {
	t.advanceProbation(id)
	t.evictUntolerated(id)
	t.evictForPlan(id)
	n := t.nodes.get(id)
	if n.Cordon.draining() {
		t.advanceDrain(n, nil)
	}
	t.reindex() // for advanceDuplicate, which reads the devices of other boxes
	for i := range n.Slots {
		s := &t.nodes.get(id).Slots[i]
		if s.Cordon.draining() {
			t.advanceDrain(t.nodes.get(id), s)
		}
		t.advanceRepair(id, s.Slot)
		t.advanceDuplicate(id, s.Slot)
	}
}

// maintainInterval is the pause between two looks at an ongoing drain or repair
// when nothing else changes.
const maintainInterval = 250 * time.Millisecond

// maintainSoon schedules the next look at a node's maintenance.
func (t *tx) maintainSoon(id string) {
	t.dueOrSchedule(subject{nodeSubject, id}, t.now.Add(maintainInterval))
}

// drained reports whether a drain is complete.
func (c *cordon) drained() bool { return c != nil && c.Drain != nil && c.Drain.Done }

// draining reports whether bindings are still moving away.
func (c *cordon) draining() bool { return c != nil && c.Drain != nil && !c.Drain.Done }

// A node that is lost repeatedly gets no new bindings until it has reported for some
// time, longer each time. Its bindings stay.
const (
	// flapLimit losses within flapWindow make a node unstable. Two may be a
	// repeated restart.
	flapLimit  = 3
	flapWindow = 10 * time.Minute
)

// recordLoss counts the loss of a node. It ignores a loss that the manager
// noticed late because the manager itself was suspended.
func (t *tx) recordLoss(id string, due time.Time) {
	if t.now.Sub(due) > t.cfg.LostAfter {
		return
	}
	n := t.nodes.edit(id)
	s := stability{}
	if n.Stability != nil {
		s = *n.Stability
	}
	s.Lost = append(slices.DeleteFunc(slices.Clone(s.Lost), func(at time.Time) bool { return t.now.Sub(at) >= flapWindow }), t.now)
	if over := len(s.Lost) - flapLimit; over > 0 {
		s.Lost = s.Lost[over:]
	}
	if len(s.Lost) == flapLimit && !s.Unstable {
		s.Unstable = true
		s.Times++
		t.event(nodeEvent(n, dxpuv1.EventType_EVENT_TYPE_NODE_UNSTABLE),
			"%s %s was lost %d times within %s: it gets no new bindings for a while", kindWord(n.Kind), id, flapLimit, period(flapWindow))
	}
	n.Stability = &s
}

// recordReturn records that a node reports again.
func (t *tx) recordReturn(id string) {
	if n := t.nodes.get(id); n.Stability != nil {
		s := *n.Stability
		s.Since = t.now
		t.nodes.edit(id).Stability = &s
	}
}

// advanceProbation ends the probation of an unstable node that has reported for
// long enough, and forgets old losses.
func (t *tx) advanceProbation(id string) {
	n := t.nodes.get(id)
	s := n.Stability
	if s == nil || !t.connected(id) {
		return
	}
	at := subject{nodeSubject, id}
	switch {
	case s.Unstable && t.dueOrSchedule(at, s.Since.Add(t.cfg.Probation.After(s.Times))):
		next := *s
		next.Unstable, next.Lost = false, nil
		n = t.nodes.edit(id)
		n.Stability = &next
		t.event(nodeEvent(n, dxpuv1.EventType_EVENT_TYPE_NODE_STABLE), "%s %s has reported for %s and takes new bindings again",
			kindWord(n.Kind), id, t.now.Sub(s.Since).Round(time.Second))
	case !s.Unstable && t.dueOrSchedule(at, s.Since.Add(max(flapWindow, t.cfg.Probation.Max))):
		t.nodes.edit(id).Stability = nil
	}
}
