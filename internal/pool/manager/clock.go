package manager

import (
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Silence, time limits of bindings and other short times follow the time that passes. Leases,
// tokens, reservations and maintenance end and begin by the wall clock, because people and
// programs have agreed on times of day, and because another manager goes on with them. A clock that
// is set moves these times, so the manager tells the operator.

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

// sleptFor returns for how long no manager led, by the clock of this one, as far as the samples of
// the pool's history and the time of the newest event tell. During an upgrade there are no samples.
func (t *tx) sleptFor(newest time.Time) time.Duration {
	for _, r := range t.samples.rows {
		if r.Time.After(newest) {
			newest = r.Time
		}
	}
	if newest.IsZero() {
		return 0
	}
	return t.now.Sub(newest)
}
