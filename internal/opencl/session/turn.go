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
// LAUNCH behind it are one message, so that the box knows of both at once. The device does
// nothing from the end of a turn until the next one comes, which takes as long as many kernels.
// So a turn is for several commands, if each waits for nothing but others of the turn, and all are
// expected to end within maxTurn.

// maxTurn is how long several commands may take together in one turn, in nanoseconds. The way to
// the box and back takes a tenth of it, and other tenants wait for no longer than for one usual
// kernel of training.
const maxTurn = 1_000_000

// maxGates bounds the commands of a turn, and maxLook the commands that are considered for one.
const (
	maxGates = 64
	maxLook  = 256
)

// gate holds a command back until its turn.
type gate struct {
	event  cl.Event
	cookie uint64
	queue  *queue
	waits  []uint64 // cookies of the packets that the command waits for
	blocks uint64   // work-groups
	key    uint64   // commands with one key take about the same time; 0: not known
}

// turn is a number of commands that the box lets run at once.
type turn struct {
	id       uint64
	gates    []*gate // of the commands that have not ended
	n        uint64  // of commands, those that have ended too
	blocks   uint64  // of all commands
	widest   uint64  // most blocks of a command
	expected uint64  // nanoseconds; 0: not known
	ran      uint64  // nanoseconds, of the commands that have ended
	looks    int     // commands that were considered for it
	full     bool    // no further command joins
	open     bool
}

// turns are the commands with a gate. The session's mutex guards them.
type turns struct {
	opening *gate   // of the packet that is being enqueued; nil: it needs no turn
	waiting []*gate // in the order of their packets
	asked   *turn   // has come, or was asked for
	last    uint64  // number of the last LAUNCH
	done    []byte  // DONE messages that were not sent
	changed bool    // a command came or ended since the last look for one that is ready
	times   times
}

// maxTimes bounds the keys whose times are known.
const maxTimes = 1024

// times are the times that commands took, by key, in nanoseconds: the longest one, which shorter
// ones lower slowly, because a command that takes longer than expected keeps other tenants waiting.
type times map[uint64]uint64

func (k *times) note(key, ran uint64) {
	if key == 0 || ran == 0 {
		return
	}
	if *k == nil {
		*k = times{}
	}
	old, ok := (*k)[key]
	switch {
	case !ok && len(*k) >= maxTimes:
	case ran >= old:
		(*k)[key] = ran
	default:
		(*k)[key] = old - (old-ran)/8
	}
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
	s.turns.opening = &gate{event: e, cookie: h.Cookie, queue: q, blocks: 1}
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

// keyFactor is the fractional part of the golden ratio: it spreads keys.
const keyFactor = 0x9e3779b97f4a7c15

// describe tells the box how large a launch is.
func (g *gate) describe(l launch) {
	groups := uint64(1)
	g.key = uint64(l.kernel)<<16 | uint64(reg.PacketNDRange)
	for i, n := range l.global {
		g.key = g.key*keyFactor + uint64(n)
		size := uint64(1)
		switch {
		case len(l.local) > 0:
			size = max(uint64(l.local[i]), 1)
		case i == 0:
			size = workGroup
		}
		groups *= min((max(uint64(n), 1)-1)/size+1, 1<<20)
	}
	g.blocks = groups
}

// move says that the command of the packet that is being enqueued copies or fills n bytes.
func (t *turns) move(op reg.PacketOp, n uint64) {
	if g := t.opening; g != nil {
		g.key = n*keyFactor + uint64(op)
	}
}

// ready reports whether a command waits for nothing but its turn, if that of others has come.
func (s *Session) ready(g *gate, of *turn) bool {
	if g.queue.ordered {
		before := 0
		for _, o := range of.gates {
			if o.queue == g.queue {
				before++
			}
		}
		if g.queue.commands[before].cookie != g.cookie {
			return false
		}
	}
	g.waits = slices.DeleteFunc(g.waits, func(cookie uint64) bool { _, pending := s.pending[cookie]; return !pending })
	for _, cookie := range g.waits {
		if !slices.ContainsFunc(of.gates, func(o *gate) bool { return o.cookie == cookie }) {
			return false
		}
	}
	return true
}

// add adds a command to a turn, if it is expected to end in time. The first one always fits.
func (t *turn) add(g *gate, known times) bool {
	long := known[g.key]
	if t.n > 0 && (long == 0 || t.expected+long > maxTurn) {
		t.full = true
		return false
	}
	t.gates = append(t.gates, g)
	t.n++
	t.expected += long
	t.blocks, t.widest = t.blocks+g.blocks, max(t.widest, g.blocks)
	t.full = long == 0 || t.n == maxGates
	return true
}

// nextTurn takes the commands of the next turn from those that wait; nil: none is ready.
func (s *Session) nextTurn() *turn {
	next := &turn{}
	s.turns.waiting = slices.DeleteFunc(s.turns.waiting, func(g *gate) bool {
		if next.full || !s.ready(g, next) || !next.add(g, s.turns.times) {
			if next.n > 0 {
				next.looks++
				next.full = next.full || next.looks == maxLook
			}
			return false
		}
		return true
	})
	if next.n == 0 {
		return nil
	}
	return next
}

// launch returns the message that asks for the turn: thread blocks, those of the largest command,
// commands, and nanoseconds that they are expected to take.
func (t *turn) launch() wire.Message {
	return wire.Message{Type: wire.Launch, ID: t.id, Arg: [wire.Args]uint64{t.blocks, t.widest, t.n, t.expected}}
}

// askTurn asks for the next turn, if a command is ready for it, and says that the last one is
// over.
func (s *Session) askTurn() error {
	t := &s.turns
	if t.asked == nil && t.changed {
		t.changed = false
		if next := s.nextTurn(); next != nil {
			t.changed = true
			t.last++
			next.id, t.asked = t.last, next
			t.done = next.launch().Append(t.done)
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
	_ = s.Library.Release(g.event)
	var ran uint64
	if times[3] > times[2] {
		ran = times[3] - times[2]
	}
	s.turns.end(g, ran)
}

// end takes a command that ran for some nanoseconds out of its turn. The last one ends the turn.
func (t *turns) end(g *gate, ran uint64) {
	a := t.asked
	if a == nil || !slices.Contains(a.gates, g) { // it failed without a turn, as after an error in what it waits for
		t.waiting = slices.DeleteFunc(t.waiting, func(o *gate) bool { return o == g })
		return
	}
	t.times.note(g.key, ran)
	a.ran += ran
	a.gates = slices.DeleteFunc(a.gates, func(o *gate) bool { return o == g })
	if len(a.gates) == 0 {
		t.asked = nil
		t.done = wire.Message{Type: wire.Done, ID: a.id, Arg: [wire.Args]uint64{a.ran}}.Append(t.done)
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
			s.openGates(m.ID)
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

// openGates lets the commands run whose turn has come.
func (s *Session) openGates(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.turns.asked
	if t == nil || t.id != id || t.open {
		return
	}
	t.open = true
	for _, g := range t.gates {
		_ = s.Library.SetUserEvent(g.event) // it fails for no event of ours
	}
}
