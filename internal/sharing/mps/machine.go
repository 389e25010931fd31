package mps

import (
	"cmp"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
	"github.com/dxpu-project/dxpu/share"
)

// Machine decides for the service of one GPU. The zero value is ready.
type Machine struct {
	now     time.Time
	state   State
	since   time.Time // of the state
	notices []Notice

	clients []*client // in order of their admission
	limits  serverLimits
	server  int // process ID of the server that takes clients; 0: none

	tried  map[Verb]time.Time // last attempts
	starts int                // attempts to start since the service was stable
	rested int                // rests since the service was stable
	faults []time.Time
	until  time.Time // of a rest
	asked  time.Time // when a daemon was last there to be asked
	left   time.Time // the last client left a server with a fault
}

// serverLimits are the limits that a server has for clients to come.
type serverLimits struct {
	server int
	Limits
}

// State returns the present state and the time of its begin.
func (m *Machine) State() (State, time.Time) { return m.state, m.since }

// Notices returns the notices since the last call.
func (m *Machine) Notices() []Notice {
	out := m.notices
	m.notices = nil
	return out
}

// Wake returns the time at which Step is due.
func (m *Machine) Wake() time.Time {
	rest := m.state == Stopped || m.state == Held || m.state == Active && m.admitting() == nil
	if rest {
		return m.now.Add(poll)
	}
	return m.now.Add(quickPoll)
}

// Step compares the wanted with the observed state and returns what to do.
func (m *Machine) Step(now time.Time, want Want, seen Seen) []Action {
	m.now = now
	want.Others.Share = cmp.Or(want.Others.Share, share.Whole)
	if m.tried == nil {
		m.tried = make(map[Verb]time.Time)
	}
	if seen.Daemon == Answers || seen.Daemon == Mute {
		m.asked = now
	}
	m.pick(seen)
	m.observe(seen)
	var out []Action
	switch {
	case seen.Daemon == Mute, seen.Daemon == Unasked && !want.Run:
		out = m.silent()
	case seen.Daemon == Unasked: // nothing is wrong with the daemon, and nothing can be told to it
		m.refuseUnasked()
	case !want.Run:
		out = m.stop(seen)
	case seen.Daemon == Absent:
		out = m.start()
		m.refuseUnasked()
	case m.server == 0:
		out = m.startServer(want)
	default:
		out = m.serve(want, seen)
	}
	return append(out, m.forceEnds()...)
}

// Done takes the result of an action.
func (m *Machine) Done(a Action, err error) {
	if err != nil {
		if a.Verb == SetShare || a.Verb == SetMemory {
			m.limits = serverLimits{}
		}
		return
	}
	switch a.Verb {
	case SetShare:
		m.limits = serverLimits{a.Server, Limits{Share: a.Limits.Share, Memory: -1}} // until SetMemory
		if a.Limits.Memory == 0 {
			m.limits.Memory = 0
		}
	case SetMemory:
		m.limits.Memory = a.Limits.Memory
	default:
	}
}

func (m *Machine) enter(s State) {
	if m.state == s {
		return
	}
	m.state, m.since = s, m.now
	m.notices = append(m.notices, Notice{Kind: Changed, State: s})
}

// attempt reports whether a command is due, and records the attempt.
func (m *Machine) attempt(v Verb, after time.Duration) bool {
	if last, ok := m.tried[v]; ok && m.now.Sub(last) < after {
		return false
	}
	m.tried[v] = m.now
	return true
}

// pick chooses the server that counts: the one of before, or else one that is active.
// A daemon has two while the old one ends.
func (m *Machine) pick(seen Seen) {
	if seen.Daemon == Mute || seen.Daemon == Unasked {
		return
	}
	if slices.ContainsFunc(seen.Servers, func(s Server) bool { return s.PID == m.server }) {
		return
	}
	before := m.server
	m.server = 0
	for _, s := range seen.Servers {
		if m.server == 0 || s.Status == StatusActive {
			m.server = s.PID
		}
	}
	if before != 0 {
		m.lost()
	}
}

// start starts the daemon, later after each attempt that failed.
func (m *Machine) start() []Action {
	m.enter(Starting)
	wait := gpuerr.Backoff{Base: startLimit, Max: restMost}.After(m.starts)
	if m.starts == 0 {
		wait = 0
	}
	if !m.attempt(StartDaemon, wait) {
		return nil
	}
	m.starts++
	return []Action{{Verb: StartDaemon}}
}

// startServer sets the limits of servers to come, and starts one.
func (m *Machine) startServer(want Want) []Action {
	if m.resting() {
		return nil
	}
	m.enter(Starting)
	if m.now.Sub(m.since) > startLimit && m.attempt(Quit, startLimit) {
		m.enter(Stopped) // the daemon starts no server: begin again
		return []Action{{Verb: Quit}}
	}
	if !m.attempt(StartServer, retry) {
		return nil
	}
	out := []Action{{Verb: SetDefaultShare, Limits: want.Others}}
	if want.Others.Memory > 0 {
		out = append(out, Action{Verb: SetDefaultMemory, Limits: want.Others})
	}
	return append(out, Action{Verb: StartServer, UID: want.UID})
}

// serve does what the status of the server requires.
func (m *Machine) serve(want Want, seen Seen) []Action {
	s := seen.Servers[slices.IndexFunc(seen.Servers, func(s Server) bool { return s.PID == m.server })]
	switch s.Status {
	case StatusFault:
		return m.fault(s)
	case StatusInitializing:
		m.enter(Initializing)
		if m.now.Sub(m.since) > initLimit && m.attempt(ShutdownServer, retry) {
			return []Action{{Verb: ShutdownServer, Server: s.PID}}
		}
	case StatusActive:
		if m.resting() {
			return nil
		}
		m.enter(Active)
		delete(m.tried, StartServer) // a server that ends is replaced at once
		if m.now.Sub(m.since) >= stableAfter {
			m.starts, m.rested = 0, 0
		}
		return m.admit(want, s)
	default:
		return m.silent()
	}
	return nil
}

// fault handles a server after a fatal fault: all of its clients leave, and it is shut
// down if it does not recover then.
func (m *Machine) fault(s Server) []Action {
	if m.state != Fault {
		m.enter(Fault)
		m.left = m.now
		m.faults = append(slices.DeleteFunc(m.faults, func(t time.Time) bool { return m.now.Sub(t) >= faultWindow }), m.now)
		m.endAll(ReasonFault)
		if len(m.faults) >= maxFaults {
			m.rested++
			m.until = m.now.Add(gpuerr.Backoff{Base: restBase, Max: restMost}.After(m.rested))
			m.faults = nil
		}
	}
	due := m.left.Add(recoverLimit) // it should have recovered
	if len(s.Clients) > 0 {
		m.left = m.now
		due = m.since.Add(3*endGrace + recoverLimit)
	}
	if !m.now.After(due) {
		return nil
	}
	if m.now.Sub(due) > startLimit && m.attempt(KillDaemon, startLimit) {
		return []Action{{Verb: KillDaemon}}
	}
	if m.attempt(ShutdownServer, retry) {
		return []Action{{Verb: ShutdownServer, Server: s.PID}}
	}
	return nil
}

// resting reports whether the service rests after too many faults.
func (m *Machine) resting() bool {
	if m.now.Before(m.until) {
		m.enter(Held)
		return true
	}
	return false
}

// silent waits for a daemon that does not answer, and kills it in the end. A dead
// daemon takes its servers with it, so all clients must leave.
func (m *Machine) silent() []Action {
	m.enter(Silent)
	if m.now.Sub(m.since) < silentLimit || !m.attempt(KillDaemon, silentLimit) {
		return nil
	}
	m.lost()
	return []Action{{Verb: KillDaemon}}
}

// stop lets the clients leave and ends the daemon.
func (m *Machine) stop(seen Seen) []Action {
	if seen.Daemon == Absent {
		m.enter(Stopped)
		m.starts, m.limits = 0, serverLimits{}
		return nil
	}
	if m.state != Draining {
		m.enter(Draining)
		m.endAll(ReasonStop)
	}
	busy := slices.ContainsFunc(seen.Servers, func(s Server) bool { return len(s.Clients) > 0 })
	if busy && m.now.Sub(m.since) <= 3*endGrace {
		return nil
	}
	if m.now.Sub(m.since) > 3*endGrace+quitLimit && m.attempt(KillDaemon, quitLimit) {
		return []Action{{Verb: KillDaemon}}
	}
	if m.attempt(Quit, retry) {
		return []Action{{Verb: Quit, Busy: busy}}
	}
	return nil
}
