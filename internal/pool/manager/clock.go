package manager

import (
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
)

// Silence, time limits of bindings and other short times follow the time that passes. Leases,
// tokens, reservations and maintenance end and begin by the wall clock, because people and
// programs have agreed on times of day, and because another manager goes on with them. A clock that
// is set moves these times, so the manager tells the operator. Another manager goes on with the short
// times from the records, by its own clock; forgetFuture bounds what a clock that is behind adds.

// wallOf returns the wall clock of a time, without the monotonic one.
func wallOf(now time.Time) time.Time { return now.Round(0) }

// noticeJumpLocked compares the wall clock with the time that has passed since m.awake.
func (m *Manager) noticeJumpLocked(now time.Time) {
	wall := m.wall(now)
	if !m.wallWas.IsZero() {
		if jump := wall.Sub(m.wallWas) - now.Sub(m.awake); jump.Abs() >= clockTolerance {
			m.jumped += jump
			m.log.Warn("the clock of this manager was set, or its machine was suspended", "by", jump.Round(time.Millisecond))
		}
	}
	m.wallWas = wall
}

// announceJump makes the event of a wall clock that was set.
func (t *tx) announceJump(by time.Duration) {
	if t.jump = by; by == 0 {
		return
	}
	way, effect := "forward", "earlier"
	if by < 0 {
		way, effect = "back", "later"
	}
	t.event(&dxpuv1.Event{Type: dxpuv1.EventType_EVENT_TYPE_LEADER_CHANGED},
		"the clock of the leading manager was set %s by %v, or its machine was suspended: leases, tokens, reservations and maintenance may end and begin that much %s; check NTP on the managers",
		way, by.Abs().Round(time.Second), effect)
}

// idleFor returns how old the newest trace of a leader is, by the clock of this one: a sample of the
// pool's history or an event. 0: there is none yet. A restored pool has the samples of another one,
// which say nothing of its leaders, but none of its events. During an upgrade there are no samples.
func (t *tx) idleFor(newest time.Time) time.Duration {
	if newest.IsZero() {
		return 0
	}
	for _, r := range t.samples.rows {
		if r.Time.After(newest) {
			newest = r.Time
		}
	}
	return t.now.Sub(newest)
}

// forgetFuture takes times of the past that lie ahead for the present one: the clock of an earlier
// leader was ahead, or this one was set back. Otherwise what waits only for a short time, such as a
// host for its link, or a GPU in quarantine, would wait that much longer.
func (s *state) forgetFuture(now time.Time, quarantine gpuerr.Backoff) {
	past := func(at *time.Time) {
		if at.After(now) {
			*at = now
		}
	}
	for _, b := range s.bindings.rows {
		past(&b.LinkLostAt)
		past(&b.WaitedUntil)
		past(&b.MoveFailed)
		for i := range b.Steps {
			past(&b.Steps[i].Time)
		}
	}
	for _, n := range s.nodes.rows {
		if n.Stability != nil {
			past(&n.Stability.Since)
			for i := range n.Stability.Lost {
				past(&n.Stability.Lost[i])
			}
		}
		for i := range n.Slots {
			if c := n.Slots[i].Fault; c != nil {
				past(&c.ResetAsked)
				past(&c.Returned)
				if end := now.Add(quarantine.After(c.Quarantines)); c.QuarantinedUntil.After(end) {
					c.QuarantinedUntil = end
				}
			}
		}
	}
}
