package gpu

import (
	"encoding/binary"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// channel is the compute channel: a ring of packets in VRAM towards the engine, and
// a ring of events in host memory back.
//
//	off --enable--> starting --engine--> ready --error--> failed
//	 ^                  |                  |                |
//	 +----- disable, reset ----------------+----------------+
//
// Invariant: seen <= written <= events+1 in modular order; at most
// reg.MaxPacketsInFlight packets are without their event.
type channel struct {
	engine Engine // nil: the GPU has none
	limit  time.Duration

	ring, eventBase, mirror     uint64
	ringSize, eventSize, vector uint32

	on         bool
	fail       reg.ComputeError
	tail, head uint32 // bytes of the ring
	written    uint32 // events written
	announced  uint32 // events that the count in host memory shows
	seen       uint32
	report     bool // the count in host memory has to show the failure

	// With armedOnly, the vector fires only while armed, and once written is beyond arm.
	armedOnly, armed bool
	arm              uint32

	inFlight int           // packets without their event
	since    time.Duration // last progress
	packet   []byte        // made when the channel first starts
	epoch    uint64        // of the context: reads of an earlier one do not count
	fetches  fetches

	event   reg.Event // being written
	pending bool      // event is valid
	pos     uint32    // bytes of its result that have left

	arrived  []reg.Event // taken from the engine when the GPU came to rest, before those that follow
	moving   bool        // Track
	streamed uint64      // bytes of the engine's stream
}

// reset ends the context and forgets the addresses.
func (c *channel) reset() {
	if c.engine != nil {
		c.engine.Stop()
	}
	*c = channel{
		engine: c.engine, limit: c.limit, vector: reg.ComputeNoVector, epoch: c.epoch + 1, packet: c.packet,
		moving: c.moving, streamed: c.streamed,
	}
}

func (c *channel) state() reg.ComputeState {
	switch {
	case c.engine == nil || !c.on && c.fail == reg.ComputeNoError:
		return reg.ComputeOff
	case c.fail != reg.ComputeNoError:
		return reg.ComputeFailed
	}
	return c.engine.State()
}

// channelRegisters are the readable registers of the compute channel.
var channelRegisters = map[uint64]func(c *channel) uint64{
	reg.ComputeKindReg:   func(c *channel) uint64 { return uint64(c.engine.Kind()) },
	reg.ComputeVersion:   func(*channel) uint64 { return reg.PacketVersion },
	reg.ComputeControl:   (*channel).control,
	reg.ComputeStateReg:  func(c *channel) uint64 { return uint64(c.state()) },
	reg.ComputeErrorReg:  func(c *channel) uint64 { return uint64(c.fail) },
	reg.ComputeTail:      func(c *channel) uint64 { return uint64(c.tail) },
	reg.ComputeHead:      func(c *channel) uint64 { return uint64(c.head) },
	reg.ComputeEvents:    func(c *channel) uint64 { return uint64(c.written) },
	reg.ComputeSeen:      func(c *channel) uint64 { return uint64(c.seen) },
	reg.ComputeVector:    func(c *channel) uint64 { return uint64(c.vector) },
	reg.ComputeRing:      func(c *channel) uint64 { return c.ring },
	reg.ComputeRingSize:  func(c *channel) uint64 { return uint64(c.ringSize) },
	reg.ComputeEventSize: func(c *channel) uint64 { return uint64(c.eventSize) },
	reg.ComputeEventBase: func(c *channel) uint64 { return c.eventBase },
	reg.ComputeMirror:    func(c *channel) uint64 { return c.mirror },
	reg.ComputeMemory:    func(c *channel) uint64 { return c.engine.Memory() },
	reg.ComputeLimit:     func(c *channel) uint64 { return uint64(c.limit) },
	reg.ComputeFeatures:  func(*channel) uint64 { return reg.Features },
	reg.ComputeArm:       func(c *channel) uint64 { return uint64(c.arm) },
}

func (c *channel) control() uint64 {
	switch {
	case !c.on && c.fail == reg.ComputeNoError:
		return 0
	case c.armedOnly:
		return reg.ComputeEnable | reg.ComputeArmed
	}
	return reg.ComputeEnable
}

// writeChannel stores the masked bits of a double word of the compute channel.
func (g *GPU) writeChannel(off uint64, v, mask uint32) {
	c := &g.channel
	switch off {
	case reg.ComputeControl:
		switch on := v&mask&reg.ComputeEnable != 0; {
		case on && c.control() == 0:
			c.armedOnly = v&mask&reg.ComputeArmed != 0
			g.startChannel()
		case !on && mask&reg.ComputeEnable != 0:
			c.stop()
		}
		return
	case reg.ComputeVector:
		set32(&c.vector, v, mask)
		return
	case reg.ComputeArm:
		set32(&c.arm, v, mask)
		c.armed = c.on && c.armedOnly
		g.interruptDriver(c.announced)
		return
	case reg.ComputeTail:
		if c.on {
			set32(&c.tail, v, mask)
			if c.tail-c.head > c.ringSize {
				g.failChannel(reg.ComputeBadRing)
			}
		}
		return
	case reg.ComputeSeen:
		if c.on {
			if c.stalled() {
				c.since = g.now
			}
			set32(&c.seen, v, mask)
		}
		return
	}
	if c.control() != 0 {
		return
	}
	switch off {
	case reg.ComputeRing, reg.ComputeRing + 4:
		setHalf(&c.ring, off, v, mask)
	case reg.ComputeRingSize:
		set32(&c.ringSize, v, mask)
	case reg.ComputeEventSize:
		set32(&c.eventSize, v, mask)
	case reg.ComputeEventBase, reg.ComputeEventBase + 4:
		setHalf(&c.eventBase, off, v, mask)
	case reg.ComputeMirror, reg.ComputeMirror + 4:
		setHalf(&c.mirror, off, v, mask)
	}
}

// stop ends the context and keeps the addresses.
func (c *channel) stop() {
	c.engine.Stop()
	*c = channel{
		engine: c.engine, limit: c.limit, ring: c.ring, ringSize: c.ringSize,
		eventBase: c.eventBase, eventSize: c.eventSize, mirror: c.mirror, vector: c.vector, epoch: c.epoch + 1, packet: c.packet,
		moving: c.moving, streamed: c.streamed,
	}
}

// startChannel checks the rings and makes a context.
func (g *GPU) startChannel() {
	c := &g.channel
	if !g.validChannel(c.ring, c.eventBase, c.mirror, c.ringSize, c.eventSize) {
		g.failChannel(reg.ComputeBadRing)
		return
	}
	c.on = true
	c.since = g.now
	if c.packet == nil {
		c.packet = make([]byte, reg.MaxPacket)
	}
	c.engine.Start()
}

// failChannel ends the context with an error. The driver finds it in the count
// behind the event ring, and in ComputeErrorReg.
func (g *GPU) failChannel(e reg.ComputeError) {
	c := &g.channel
	c.engine.Stop()
	c.report = c.on
	c.on, c.pending, c.inFlight, c.arrived = false, false, 0, nil
	c.fetches = fetches{}
	c.epoch++
	c.fail = e
	g.noteXID(reg.XIDEngine)
}

// stepChannel advances the compute channel: at most one TLP.
func (g *GPU) stepChannel(emit func(p *tlp.Packet) bool) stepResult {
	c := &g.channel
	if c.report {
		if !g.announceEvents(emit, reg.EventsFailed) {
			return stepRefused
		}
		c.report = false
		return stepMoved
	}
	if !c.on {
		return stepIdle
	}
	if r := g.sendEvent(emit); r != stepIdle {
		return r
	}
	fetched := g.stepFetch(emit)
	if fetched == stepRefused || !c.on {
		return fetched
	}
	return max(fetched, g.submitPacket())
}

// submitPacket hands the oldest packet of the ring to the engine.
func (g *GPU) submitPacket() stepResult {
	c := &g.channel
	switch c.engine.State() {
	case reg.ComputeFailed:
		g.failChannel(reg.ComputeEnded)
		return stepMoved
	case reg.ComputeReady:
	case reg.ComputeOff, reg.ComputeStarting:
		return stepIdle
	}
	left := c.tail - c.head
	if left == 0 || c.inFlight == reg.MaxPacketsInFlight || c.moving && c.inFlight >= maxMoving {
		return stepIdle
	}
	// The packet is copied out of VRAM before anything in it counts: the driver may
	// write to VRAM at any time.
	g.readRing(c.packet[:4], c.head)
	size := binary.LittleEndian.Uint32(c.packet)
	if size < reg.PacketHeaderSize || size > reg.MaxPacket || size%reg.PacketAlign != 0 || size > left {
		g.failChannel(reg.ComputeBadPacket)
		return stepMoved
	}
	p := c.packet[:size]
	g.readRing(p, c.head)
	binary.LittleEndian.PutUint32(p, size)
	switch c.fetches.check(c.head, packetFlags(p)&reg.PacketFetch != 0) {
	case fetchWrong:
		g.failChannel(reg.ComputeBadPacket)
		return stepMoved
	case fetchDue:
		return stepIdle
	case fetchDone:
	}
	if !c.engine.Submit(p) {
		return stepIdle
	}
	c.fetches.pass(c.head)
	if c.inFlight == 0 {
		c.since = g.now
	}
	c.inFlight++
	c.head += size
	return stepMoved
}

// readRing copies from byte at of the ring, which may wrap.
func (g *GPU) readRing(p []byte, at uint32) {
	c := &g.channel
	from := at & (c.ringSize - 1)
	n := min(uint32(len(p)), c.ringSize-from)
	g.vram.read(p[:n], int64(c.ring)+int64(from))
	g.vram.read(p[n:], int64(c.ring))
}

// sendEvent sends the next TLP of an event: its result, its entry, or the count that
// announces entries.
func (g *GPU) sendEvent(emit func(p *tlp.Packet) bool) stepResult {
	c := &g.channel
	if !c.pending && c.written-c.seen < c.eventSize {
		if c.event, c.pending = g.nextEvent(); c.pending {
			c.pos = 0
			c.inFlight = max(c.inFlight-1, 0)
			c.since = g.now
		}
	}
	switch {
	case !c.pending && c.announced == c.written:
		return stepIdle
	case !c.pending:
		if !g.announceEvents(emit, 0) {
			return stepRefused
		}
		c.announced = c.written
		return stepMoved
	case c.pos < c.event.Length:
		return g.sendResult(emit)
	}
	entry := c.eventBase + uint64(c.written&(c.eventSize-1))*reg.EventSize
	if !g.sendWrite(emit, entry, c.event.Append(g.buf[:0])) {
		return stepRefused
	}
	c.written++
	c.pending = false
	return stepMoved
}

// nextEvent returns the next event. The engine has written its result to VRAM.
func (g *GPU) nextEvent() (e reg.Event, ok bool) {
	c := &g.channel
	if len(c.arrived) > 0 {
		e, c.arrived = c.arrived[0], c.arrived[1:]
		return e, true
	}
	if e, ok = c.engine.Event(); !ok {
		return e, false
	}
	if !g.vram.contains(e.Out, uint64(e.Length)) {
		e.Length = 0 // an engine that a program has taken over
	}
	g.vram.wrote(int64(e.Out), int64(e.Length))
	return e, true
}

// sendResult sends the next piece of a result.
func (g *GPU) sendResult(emit func(p *tlp.Packet) bool) stepResult {
	c := &g.channel
	at := c.event.Out + uint64(c.pos)
	addr := c.mirror + at
	n := chunkAt(addr, uint64(c.event.Length-c.pos), g.maxPayload())
	p := &g.out
	*p = tlp.Packet{Type: tlp.MWr, Requester: g.id, Data: g.payload(int64(at), int(addr%pcie.DW), n)}
	p.SetMemory(addr, n)
	if !emit(p) {
		return stepRefused
	}
	g.regs.count(reg.CountWriteTLPs, 1)
	g.regs.count(reg.CountWriteBytes, uint64(n))
	c.pos += uint32(n)
	return stepMoved
}

// announceEvents writes the count of events behind the event ring, and interrupts.
func (g *GPU) announceEvents(emit func(p *tlp.Packet) bool, flags uint64) bool {
	c := &g.channel
	at := c.eventBase + uint64(c.eventSize)*reg.EventSize
	if !g.sendWrite(emit, at, binary.LittleEndian.AppendUint64(g.buf[:0], uint64(c.written)|flags)) {
		return false
	}
	c.armed = c.armed || flags != 0
	g.interruptDriver(c.written)
	return true
}

// interruptDriver fires the vector if the driver waits for the count that it now sees.
func (g *GPU) interruptDriver(count uint32) {
	c := &g.channel
	if c.vector == reg.ComputeNoVector || c.armedOnly && (!c.armed || c.on && int32(count-c.arm) <= 0) {
		return
	}
	c.armed = false
	g.fire(c.vector)
}

// checkChannel ends a context that has made no progress, or has not started, for the
// time limit.
func (g *GPU) checkChannel() {
	if g.now >= g.channel.deadline() {
		g.failChannel(reg.ComputeTimeLimit)
	}
}

// deadline returns when the context ends without an event, or machine.Never.
func (c *channel) deadline() time.Duration {
	starting := c.on && c.engine.State() == reg.ComputeStarting
	if !starting && (c.inFlight == 0 || c.stalled()) {
		return machine.Never
	}
	return machine.After(c.since, c.limit)
}

// stalled reports whether the driver, not the engine, delays the events.
func (c *channel) stalled() bool { return c.pending || c.written-c.seen >= c.eventSize }
