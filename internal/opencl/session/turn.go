package session

import (
	"slices"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// On a device that several tenants share, commands that work in the device take turns: kernels,
// copies and fills. The platform gets such a command at once, with a user event, its gate, among
// those that it waits for. The session asks the box for a turn when the command waits for nothing
// else, and opens the gate when the turn has come. So a turn is never spent on waiting, and the
// order of commands is the platform's own affair.
//
// A session asks for one turn at a time: LAUNCH, PERMIT, DONE of package wire. DONE and the
// LAUNCH behind it are one message, so that the box knows of both at once.

// gate holds a command back until its turn.
type gate struct {
	event  cl.Event
	cookie uint64
	queue  *queue
	waits  []uint64 // cookies of the packets that the command waits for
	launch wire.Message
	open   bool
}

// turns are the commands with a gate. The session's mutex guards them.
type turns struct {
	opening *gate   // of the packet that is being enqueued; nil: it needs no turn
	waiting []*gate // in the order of their packets
	asked   *gate   // has, or asked for, the turn
	last    uint64  // number of the last LAUNCH
	done    []byte  // DONE messages that were not sent
	changed bool    // a command came or ended since the last look for one that is ready
}

// needsTurn reports whether a command works in the device. Transfers between the device and
// the aperture are as slow as the network to the tenant, and need none.
func needsTurn(op reg.PacketOp) bool {
	switch op {
	case reg.PacketNDRange, reg.PacketCopy, reg.PacketCopyRect, reg.PacketFill,
		reg.PacketCopyImage, reg.PacketFillImage, reg.PacketImageBuffer, reg.PacketBufferImage:
		return true
	}
	return false
}

// newGate makes the gate of a packet, if it needs one.
func (s *Session) newGate(q *queue, h reg.PacketHeader) error {
	s.turns.opening = nil
	if s.Turns == nil || !needsTurn(h.Op) {
		return nil
	}
	e, err := s.Library.NewUserEvent(s.context)
	if err != nil {
		return err
	}
	s.turns.opening = &gate{
		event: e, cookie: h.Cookie, queue: q,
		launch: wire.Message{Type: wire.Launch, Arg: [wire.Args]uint64{1, 1, 1, uint64(h.Op)}},
	}
	return nil
}

// closeGate ends the making of a gate. The command that it belongs to, if there is one, waits
// for its turn.
func (s *Session) closeGate(err error) *gate {
	g := s.turns.opening
	s.turns.opening = nil
	switch {
	case g == nil:
		return nil
	case err != nil:
		_ = s.Library.Release(g.event) // nothing waits for it
		return nil
	}
	if !g.queue.ordered && g.queue.barrier != 0 {
		g.waits = append(g.waits, g.queue.barrier)
	}
	s.turns.waiting = append(s.turns.waiting, g)
	s.turns.changed = true
	return g
}

// workGroup is the size that a launch counts for if the platform is to choose it.
const workGroup = 256

// describe tells the box how large a launch is.
func (g *gate) describe(l launch) {
	groups, items := uint64(1), uint64(1)
	function := uint64(l.kernel)<<16 | uint64(reg.PacketNDRange)
	for i, n := range l.global {
		function = function*0x9e3779b97f4a7c15 + uint64(n)
		size := uint64(1)
		switch {
		case len(l.local) > 0:
			size = max(uint64(l.local[i]), 1)
		case i == 0:
			size = workGroup
		}
		groups *= min((max(uint64(n), 1)-1)/size+1, 1<<20)
		items = min(items*size, 1<<20)
	}
	g.launch.Arg = [wire.Args]uint64{groups, items, 1, function}
}

// ready reports whether a command waits for its turn only.
func (s *Session) ready(g *gate) bool {
	if g.queue.ordered && g.queue.commands[0].cookie != g.cookie {
		return false
	}
	g.waits = slices.DeleteFunc(g.waits, func(cookie uint64) bool { _, pending := s.pending[cookie]; return !pending })
	return len(g.waits) == 0
}

// askTurn asks for the next turn, if a command is ready for it, and says that the last one is
// over.
func (s *Session) askTurn() error {
	t := &s.turns
	if t.asked == nil && t.changed {
		t.changed = false
		if i := slices.IndexFunc(t.waiting, s.ready); i >= 0 {
			t.changed = true
			t.asked = t.waiting[i]
			t.waiting = slices.Delete(t.waiting, i, i+1)
			t.last++
			t.asked.launch.ID = t.last
			t.done = t.asked.launch.Append(t.done)
		}
	}
	if len(t.done) == 0 {
		return nil
	}
	err := s.Turns.Send(t.done)
	t.done = t.done[:0]
	return err
}

// endTurn notes that a command with a gate has ended, after times of the platform.
func (s *Session) endTurn(g *gate, times [4]uint64) {
	t := &s.turns
	_ = s.Library.Release(g.event)
	switch {
	case t.asked == g:
		t.asked = nil
		over := wire.Message{Type: wire.Done, ID: g.launch.ID}
		if times[3] > times[2] {
			over.Arg[0] = times[3] - times[2]
		}
		t.done = over.Append(t.done)
	default: // it failed without a turn, as after an error in what it waits for
		t.waiting = slices.DeleteFunc(t.waiting, func(o *gate) bool { return o == g })
	}
}

// takeTurns opens the gates of the commands whose turns come, until the box ends the
// connection.
func (s *Session) takeTurns() {
	p := make([]byte, wire.MessageSize)
	for {
		n, err := s.Turns.Receive(p, true)
		if err != nil {
			return // Run ends as well
		}
		switch m, _ := wire.ParseAnswer(p[:n]); m.Type {
		case wire.Permit:
			s.openGate(m.ID)
		case wire.Granted:
			s.allow(m.Bytes)
		default: // the box sends nothing else
		}
	}
}

// allow changes the limit of the tenant's memory. The tenant keeps the memory that it has.
func (s *Session) allow(memory uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Allowed(memory) == nil {
		s.Memory = memory
	}
}

// openGate lets the command run whose turn has come.
func (s *Session) openGate(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.turns.asked; g != nil && g.launch.ID == id && !g.open {
		g.open = true
		_ = s.Library.SetUserEvent(g.event) // it fails for no event of ours
	}
}
