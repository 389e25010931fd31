package manager

import (
	"slices"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

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
			"%s %s was lost %d times within %s: it gets no new bindings for a while", kindWord(n.Kind), id, flapLimit, flapWindow)
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
