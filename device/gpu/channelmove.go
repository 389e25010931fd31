package gpu

import (
	"math/bits"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/pcie"
)

// maxMoving bounds the packets without their event while the GPU moves: it stands still
// until each has one.
const maxMoving = 64

// channelState is the compute channel of a GPU whose packets have their events. The ring is
// in VRAM, and the objects of the context are in the stream of the engine.
type channelState struct {
	ring, eventBase, mirror     uint64
	ringSize, eventSize, vector uint32

	on                       bool
	fail                     reg.ComputeError
	tail, head               uint32
	written, announced, seen uint32
	report, armedOnly, armed bool
	arm                      uint32
	since                    int64 // before the time of the state, ns
	pending                  bool
	pos                      uint32
	event                    reg.Event
	arrived                  []reg.Event
}

// mover returns the engine if its contexts can move.
func (c *channel) mover() Mover {
	m, _ := c.engine.(Mover)
	return m
}

// restChannel reports whether the packets of the frozen GPU have their events, and takes
// those events.
func (g *GPU) restChannel() bool {
	c := &g.channel
	m := c.mover()
	if m == nil {
		return true
	}
	if c.on && c.engine.State() == reg.ComputeFailed {
		g.failChannel(reg.ComputeEnded)
	}
	if !m.Rest() {
		return false
	}
	var events []reg.Event
	for c.on {
		e, ok := g.nextEvent()
		if !ok {
			break
		}
		events = append(events, e)
	}
	c.arrived = events
	c.fetches = fetches{} // the packets and their data are still there
	return true
}

func (c *channel) snapshot(now time.Duration) channelState {
	s := channelState{
		ring: c.ring, eventBase: c.eventBase, mirror: c.mirror, ringSize: c.ringSize, eventSize: c.eventSize, vector: c.vector,
		on: c.on, fail: c.fail, tail: c.tail, head: c.head, written: c.written, announced: c.announced, seen: c.seen,
		report: c.report, armedOnly: c.armedOnly, armed: c.armed, arm: c.arm, since: relative(now, c.since),
		arrived: c.arrived,
	}
	if c.pending {
		s.pending, s.pos, s.event = true, c.pos, c.event
	}
	return s
}

func (s *channelState) code(c *codec) {
	nums(c, &s.ring, &s.eventBase, &s.mirror)
	nums(c, &s.ringSize, &s.eventSize, &s.vector)
	num(c, &s.fail)
	nums(c, &s.tail, &s.head, &s.written, &s.announced, &s.seen, &s.arm, &s.pos)
	for _, v := range []*bool{&s.on, &s.report, &s.armedOnly, &s.armed, &s.pending} {
		c.flag(v)
	}
	num(c, &s.since)
	codeEvent(c, &s.event)
	n := uint32(len(s.arrived))
	num(c, &n)
	if c.reading {
		if c.bad = c.bad || n > reg.MaxPacketsInFlight; c.bad {
			return
		}
		s.arrived = make([]reg.Event, n)
	}
	for i := range s.arrived {
		codeEvent(c, &s.arrived[i])
	}
}

func codeEvent(c *codec, e *reg.Event) {
	var raw [reg.EventSize]byte
	e.Append(raw[:0])
	c.bytes(raw[:])
	*e, _, _ = reg.ParseEvent(raw[:]) // a whole event
}

// valid reports whether the channel of a GPU can be in the state.
func (s *channelState) valid(g *GPU) bool {
	switch {
	case s.fail > reg.ComputeBadFetch, s.since < 0, s.since > maxAge, s.on && s.fail != reg.ComputeNoError:
		return false
	case !s.on:
		return !s.pending && len(s.arrived) == 0
	case !g.validChannel(s.ring, s.eventBase, s.mirror, s.ringSize, s.eventSize),
		s.tail-s.head > s.ringSize, s.written-s.announced > s.eventSize, s.pos > s.event.Length:
		return false
	}
	for _, e := range append(s.arrived, s.event) {
		if !g.vram.contains(e.Out, uint64(e.Length)) {
			return false
		}
	}
	return true
}

// validChannel reports whether the rings of the compute channel can be there.
func (g *GPU) validChannel(ring, eventBase, mirror uint64, ringSize, eventSize uint32) bool {
	eventBytes := uint64(eventSize)*reg.EventSize + reg.FenceAlign
	return bits.OnesCount32(ringSize) == 1 && ringSize >= reg.MinComputeRing && ringSize <= reg.MaxComputeRing &&
		ring%reg.RingAlign == 0 && g.vram.contains(ring, uint64(ringSize)) &&
		bits.OnesCount32(eventSize) == 1 && eventSize >= reg.MinComputeEvents && eventSize <= reg.MaxComputeEvents &&
		eventBase%reg.RingAlign == 0 && eventBase <= -eventBytes &&
		mirror%pcie.DW == 0 && mirror <= -uint64(g.vram.size)
}

// channelLoaded reports whether the engine has the objects that belong to a state.
func (g *GPU) channelLoaded(s *channelState) (ok bool, err error) {
	m := g.channel.mover()
	if m == nil {
		if s.on {
			return false, errState
		}
		return true, nil
	}
	started, ok, err := m.Loaded()
	if ok && started != s.on {
		return false, errState
	}
	return ok, err
}

// restoreChannel takes a state over that was checked.
func (g *GPU) restoreChannel(s *channelState) {
	c := &g.channel
	*c = channel{
		engine: c.engine, limit: c.limit, epoch: c.epoch + 1,
		ring: s.ring, eventBase: s.eventBase, mirror: s.mirror, ringSize: s.ringSize, eventSize: s.eventSize, vector: s.vector,
		on: s.on, fail: s.fail, tail: s.tail, head: s.head, written: s.written, announced: s.announced, seen: s.seen,
		report: s.report, armedOnly: s.armedOnly, armed: s.armed, arm: s.arm, since: g.now - time.Duration(s.since),
		pending: s.pending, pos: s.pos, event: s.event, arrived: s.arrived, inFlight: len(s.arrived),
	}
	c.fetches.ahead = c.head
	if c.on {
		c.packet = make([]byte, reg.MaxPacket)
	}
}
