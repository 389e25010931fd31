//go:build linux

package agent

import "time"

// patience is the longest time between two heartbeats. A process that finds a heartbeat
// older than the silence goes on alone, and may take memory that is left. The agent cannot
// know that when it was stopped (SIGSTOP, a debugger, a machine without a free processor),
// so it breaks with all processes when it may have happened.
//
// It may also be stopped between its look at the clock and a grant. Therefore a process
// takes no grant when the heartbeat is older than the other half of the silence. If one has
// gone on alone at a time T, the heartbeat was older than the silence; the agent can have
// written one more, whose time is before T less half of the silence; and every later one
// comes with another number of the agent. So no grant is taken after T.
const patience = silence / 2

// enter locks the agent before it takes an input, and breaks with its processes if it was
// silent. It returns the time, for a heartbeat.
func (a *Agent) enter() int64 {
	a.mu.Lock()
	now := monotonic()
	if silent := time.Duration(now - a.beaten); silent > patience && !a.closing {
		a.lapseLocked(silent)
		a.beatLocked(now)
	}
	return now
}

// lapseLocked breaks with all processes: each connects again, and tells what it has.
func (a *Agent) lapseLocked(silent time.Duration) {
	if len(a.shares) > 0 {
		a.config.Log.Warn("the agent was stopped: its programs may have taken memory meanwhile, and report it", "for", silent.String())
	}
	a.config.Broker.Agent++
	a.broker.Lapse(a.config.Broker.Agent)
	a.settleAt = a.now() + settleAfter
	a.flushLocked() // the pages have the new number before the heartbeat
}

// beatLocked writes the heartbeats.
func (a *Agent) beatLocked(now int64) {
	a.beaten = now
	for _, s := range a.shares {
		s.page.beat(now)
	}
}
