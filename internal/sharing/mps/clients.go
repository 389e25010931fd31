package mps

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// phase is how far a client has come.
type phase uint8

const (
	waiting phase = iota // for its turn
	called               // Go was given: it may connect
	joined               // it is connected
	ending               // End was given
)

type client struct {
	Client
	phase  phase
	since  time.Time // of the phase
	reason Reason
	forced int  // how far its end was forced
	stale  bool // its limits changed while it runs
}

// ErrFull: a GPU has as many clients as MPS takes.
var ErrFull = errors.New("the GPU has as many MPS clients as a server takes")

// Admit asks for a new client. A notice Go, or Refused, follows. Between Go and Joined
// the server gives the client's limits to whatever connects, so clients are
// admitted one after the other.
func (m *Machine) Admit(now time.Time, c Client) error {
	m.now = now
	if err := c.Limits.check(); err != nil {
		return fmt.Errorf("client %d: %w", c.ID, err)
	}
	if m.find(c.ID) != nil {
		return fmt.Errorf("client %d is admitted already", c.ID)
	}
	if len(m.clients) >= MaxClients {
		return ErrFull
	}
	added := &client{Client: c, since: now}
	if c.Running {
		added.phase = joined
	}
	m.clients = append(m.clients, added)
	return nil
}

// Leave tells that a client's process has ended.
func (m *Machine) Leave(now time.Time, id ClientID) {
	m.now = now
	m.clients = slices.DeleteFunc(m.clients, func(c *client) bool { return c.ID == id })
}

// Resize changes the limits of a client. MPS fixes them when a client connects: an
// offline client that is connected is asked to end, so that its owner starts it
// again; an online client keeps its limits until its next start.
func (m *Machine) Resize(now time.Time, id ClientID, l Limits) error {
	m.now = now
	c := m.find(id)
	if c == nil {
		return fmt.Errorf("no client %d", id)
	}
	if err := l.check(); err != nil {
		return fmt.Errorf("client %d: %w", id, err)
	}
	if c.Limits == l {
		return nil
	}
	c.Limits = l
	switch c.phase {
	case called: // it may have connected by now: set the new limits, and look
		if m.limits.Limits != l {
			c.stale = true
		}
	case joined:
		c.stale = true
		m.endStale(c)
	case waiting, ending:
	}
	return nil
}

// Stale returns the clients whose limits changed after they connected.
func (m *Machine) Stale() []ClientID {
	var out []ClientID
	for _, c := range m.clients {
		if c.stale {
			out = append(out, c.ID)
		}
	}
	return out
}

func (m *Machine) find(id ClientID) *client {
	if i := slices.IndexFunc(m.clients, func(c *client) bool { return c.ID == id }); i >= 0 {
		return m.clients[i]
	}
	return nil
}

// admitting returns the client whose turn it is.
func (m *Machine) admitting() *client {
	for _, c := range m.clients {
		if c.phase == called {
			return c
		}
	}
	for _, c := range m.clients {
		if c.phase == waiting {
			return c
		}
	}
	return nil
}

func (m *Machine) move(c *client, p phase) { c.phase, c.since = p, m.now }

// observe follows which clients are connected.
func (m *Machine) observe(seen Seen) {
	if seen.Daemon != Answers {
		return
	}
	connected := make(map[int]bool)
	for _, s := range seen.Servers {
		for _, pid := range s.Clients {
			connected[pid] = true
		}
	}
	for _, c := range slices.Clone(m.clients) {
		switch {
		case c.phase == waiting && connected[c.PID]:
			m.end(c, ReasonEarly)
		case c.phase == called && connected[c.PID]:
			m.move(c, joined)
			m.notices = append(m.notices, Notice{Kind: Joined, Client: c.ID, PID: c.PID})
			m.endStale(c)
		case c.phase == called && m.now.Sub(c.since) > joinLimit:
			m.refuse(c, ReasonLate)
		default:
		}
	}
}

// admit gives the limits of the next client to the server, and then the client its
// turn. Without a client the server gets the limits of others.
func (m *Machine) admit(want Want, s Server) []Action {
	c := m.admitting()
	limits := want.Others
	if c != nil {
		limits = c.Limits
	}
	limits = Limits{limits.Share, cmp.Or(limits.Memory, want.Memory) &^ (minimumMemory - 1)}
	if m.limits == (serverLimits{s.PID, limits}) {
		if c != nil && c.phase == waiting {
			m.move(c, called)
			m.notices = append(m.notices, Notice{Kind: Go, Client: c.ID, PID: c.PID})
		}
		return nil
	}
	out := []Action{{Verb: SetShare, Server: s.PID, Limits: limits}}
	if limits.Memory > 0 {
		out = append(out, Action{Verb: SetMemory, Server: s.PID, Limits: limits})
	}
	return out
}

func (m *Machine) refuse(c *client, r Reason) {
	m.notices = append(m.notices, Notice{Kind: Refused, Client: c.ID, PID: c.PID, Reason: r})
	m.clients = slices.DeleteFunc(m.clients, func(o *client) bool { return o == c })
}

// refuseUnasked refuses clients that have waited long since the daemon was last asked: they get an
// answer, and may ask again.
func (m *Machine) refuseUnasked() {
	for _, c := range slices.Clone(m.clients) {
		from := c.since
		if m.asked.After(from) {
			from = m.asked
		}
		if c.phase == waiting && m.now.Sub(from) > unaskedLimit {
			m.refuse(c, ReasonUnasked)
		}
	}
}

func (m *Machine) end(c *client, r Reason) {
	if c.phase == ending {
		return
	}
	m.move(c, ending)
	c.reason = r
	m.notices = append(m.notices, Notice{Kind: End, Client: c.ID, PID: c.PID, Reason: r})
}

func (m *Machine) endStale(c *client) {
	if c.stale && c.Offline {
		m.end(c, ReasonShare)
	}
}

// endAll ends all clients that have, or may have, a context in the server.
func (m *Machine) endAll(r Reason) {
	for _, c := range m.clients {
		if c.phase == called || c.phase == joined {
			m.end(c, r)
		}
	}
	if r != ReasonStop {
		return
	}
	for _, c := range slices.Clone(m.clients) {
		if c.phase == waiting {
			m.refuse(c, r)
		}
	}
}

// lost handles the end of the server: clients that were connected have lost their
// contexts. Those that wait get the next server.
func (m *Machine) lost() {
	m.limits = serverLimits{}
	m.endAll(ReasonServer)
}

// forceEnds cancels the work of clients that did not end in time, and asks for their
// kill later. The kill of a client whose kernels run makes all clients fail.
func (m *Machine) forceEnds() []Action {
	var out []Action
	for _, c := range m.clients {
		late := m.now.Sub(c.since)
		switch {
		case c.phase != ending:
		case c.forced == 0 && late > endGrace:
			c.forced = 1
			if m.server != 0 && (m.state == Active || m.state == Draining) {
				out = append(out, Action{Verb: TerminateClient, Server: m.server, Client: c.PID})
			}
		case c.forced == 1 && late > 2*endGrace:
			c.forced = 2
			m.notices = append(m.notices, Notice{Kind: End, Client: c.ID, PID: c.PID, Reason: c.reason, Force: true})
		default:
		}
	}
	return out
}
