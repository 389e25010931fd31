package manager

import (
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
)

// The records of what is being maintained. They are not changed once stored:
// a change makes a new one.

// drain says that what is bound at a target shall go somewhere else.
type drain struct {
	Since time.Time `json:"since"`
	// Deadline is when what could not be moved is taken away; zero: never.
	Deadline time.Time `json:"deadline,omitzero"`
	// Done: nothing is bound at the target any more.
	Done bool `json:"done,omitempty"`
}

// faultRecord is what a GPU's errors have come to.
type faultRecord struct {
	// Serial is the device's: another one in the slot starts anew.
	Serial string `json:"serial,omitempty"`
	// Instance is the run of the box proxy that Errors[].Seen are counted by.
	Instance string       `json:"instance,omitempty"`
	Errors   []errorCount `json:"errors,omitempty"` // by code
	// Recent is what may still add up to something graver.
	Recent []gpuerr.Occurrence `json:"recent,omitempty"`
	// Reset is the sequence of the reset that was asked for last, Done of the
	// one that the box has confirmed.
	Reset uint64    `json:"reset,omitempty"`
	Done  uint64    `json:"done,omitempty"`
	Asked time.Time `json:"asked,omitzero"` // when it was asked for, or the delay was spoken of
	// ResetDue: the GPU must be reset before it serves again.
	ResetDue bool `json:"due,omitempty"`
	// QuarantinedUntil: the GPU is out of service at least so long; zero: it is not. Why
	// says in words.
	QuarantinedUntil time.Time `json:"until,omitzero"`
	Why              string    `json:"why,omitempty"`
	// Quarantines is how often it was taken out of service; Returned is when it came
	// back last.
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

// stability is how often a node was lost.
type stability struct {
	Lost []time.Time `json:"lost,omitempty"` // of late, oldest first
	// Unstable: no new bindings until it has been there for a while.
	Unstable bool `json:"unstable,omitempty"`
	// Times is how often it has become unstable.
	Times int `json:"times,omitempty"`
	// Since is when it came back last.
	Since time.Time `json:"since,omitzero"`
}

// takesBindings reports whether a node is taken for new bindings, if it reports.
func (n *nodeRecord) takesBindings() bool {
	return n.Cordon == nil && !n.Deleting && (n.Stability == nil || !n.Stability.Unstable)
}

// takesBindings reports whether a slot is taken for new bindings, if its node is.
func (s *slotRecord) takesBindings() bool {
	return s.Cordon == nil && s.Health == dxpuv1.Health_HEALTH_OK && s.Fault.usable()
}

// usable reports whether a GPU's errors let it serve.
func (c *faultRecord) usable() bool { return c == nil || !c.ResetDue && c.QuarantinedUntil.IsZero() }

// maintain sees to what is being maintained at a node, and sets the alarm for
// what is to be looked at later.
func (t *tx) maintain(id string) {
	t.advanceProbation(id)
	n := t.nodes.get(id)
	if n.Cordon.draining() {
		t.advanceDrain(n, nil)
	}
	for i := range n.Slots {
		s := &t.nodes.get(id).Slots[i]
		if s.Cordon.draining() {
			t.advanceDrain(t.nodes.get(id), s)
		}
		t.advanceRepair(id, s.Slot)
	}
}

// maintainInterval is how often something that is being maintained is looked at
// when nothing else says that it has changed.
const maintainInterval = 250 * time.Millisecond

// maintainSoon sees to it that a node is maintained again soon.
func (t *tx) maintainSoon(id string) {
	t.dueOrSchedule(subject{nodeSubject, id}, t.now.Add(maintainInterval))
}

// draining reports whether what is bound is still on its way out.
func (c *cordon) draining() bool { return c != nil && c.Drain != nil && !c.Drain.Done }
