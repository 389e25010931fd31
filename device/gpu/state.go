package gpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/pcie"
)

// stateMagic and stateVersion begin a state. A GPU takes its own version only: the boxes
// of a pool are upgraded before GPUs move between them.
const (
	stateMagic   = 0x53475844 // "DXGS"
	stateVersion = 2
)

// state is what moves from one GPU to another, besides VRAM. Every number is eight bytes,
// little-endian, in the order of code; texts and the configuration space are bytes.
type state struct {
	shape    shapeState
	serial   uint64
	id       pcie.BDF
	config   [pcie.ConfigSize]byte
	errors   uint8 // of messages
	asserted bool
	time     int64 // device time, ns
	regs     registers
	msix     cfgspace.MSIXTable
	queues   []queueState
	channel  channelState
}

// shapeState is what both GPUs must have in common, because the driver has read it.
type shapeState struct {
	model                                            [reg.ModelSize]byte
	vram, aperture, queues, vectors, engines, tags   uint64
	payload, readRequest, generation, lanes, options uint64

	kind, computeMemory uint64
	engine              [maxIdentity]byte // text
}

// maxIdentity bounds the identity of a compute engine, in bytes.
const maxIdentity = 256

// queueState is a queue. Its commands are those of the window, from head on.
type queueState struct {
	base            uint64
	size            uint32
	enabled, halted bool
	tail, issue     uint32
	head            uint32
	errCode         reg.Error
	errAddr         uint64
	errID, vector   uint32
	fence           uint64
	statusAddr      uint64
	report          bool
	since, before   int64 // before the time of the state, ns
	commands        []commandStateOf
}

// commandStateOf is a command of the window.
type commandStateOf struct {
	raw   [reg.CommandSize]byte
	state commandState
	pos   uint64
	fail  reg.Error
	at    uint64
	ready int64 // before the time of the state, ns
	addr  uint64
	left  uint64
	used  uint32 // entries of its scatter-gather list that are taken
}

// shape returns the properties that the driver can see.
func (g *GPU) shape() (s shapeState) {
	copy(s.model[:], g.spec.Model)
	s.vram, s.aperture, s.queues = uint64(g.spec.VRAM), uint64(g.spec.Aperture), uint64(g.spec.Queues)
	s.vectors, s.engines, s.tags = uint64(g.spec.Vectors), uint64(g.spec.CopyEngines), uint64(g.tags())
	s.payload, s.readRequest = uint64(g.spec.MaxPayload), uint64(g.spec.MaxReadRequest)
	s.generation, s.lanes, s.options = uint64(g.spec.Generation), uint64(g.spec.Width), g.caps()
	if m := g.channel.mover(); m != nil {
		s.kind, s.computeMemory = uint64(m.Kind()), m.Memory()
		copy(s.engine[:], m.Identity())
	}
	return s
}

// codec writes a state, or reads one.
type codec struct {
	b       []byte
	reading bool
	bad     bool // the state is short, or a number is out of range
}

// integer is a field of a state.
type integer interface {
	~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int64
}

func num[T integer](c *codec, v *T) {
	if !c.reading {
		c.b = binary.LittleEndian.AppendUint64(c.b, uint64(*v))
		return
	}
	if len(c.b) < 8 {
		c.bad = true
		return
	}
	n := binary.LittleEndian.Uint64(c.b)
	c.b = c.b[8:]
	*v = T(n)
	c.bad = c.bad || uint64(*v) != n
}

func nums[T integer](c *codec, vs ...*T) {
	for _, v := range vs {
		num(c, v)
	}
}

func (c *codec) flag(v *bool) {
	n := uint8(0)
	if *v {
		n = 1
	}
	num(c, &n)
	*v = n == 1
	c.bad = c.bad || n > 1
}

func (c *codec) bytes(p []byte) {
	if !c.reading {
		c.b = append(c.b, p...)
		return
	}
	if len(c.b) < len(p) {
		c.bad = true
		return
	}
	c.b = c.b[copy(p, c.b):]
}

// code writes or reads a state. A reader has made the queues.
func (s *state) code(c *codec) {
	magic, version := uint32(stateMagic), uint16(stateVersion)
	num(c, &magic)
	num(c, &version)
	if c.bad = c.bad || magic != stateMagic || version != stateVersion; c.bad {
		return
	}
	s.shape.code(c)
	num(c, &s.serial)
	num(c, &s.id)
	c.bytes(s.config[:])
	num(c, &s.errors)
	c.flag(&s.asserted)
	num(c, &s.time)
	s.regs.code(c)
	for i := range s.msix.Entries {
		e := &s.msix.Entries[i]
		num(c, &e.Addr)
		num(c, &e.Data)
		c.flag(&e.Unmasked)
	}
	num(c, &s.msix.Pending)
	for i := range s.queues {
		s.queues[i].code(c)
	}
	s.channel.code(c)
}

func (s *shapeState) code(c *codec) {
	c.bytes(s.model[:])
	nums(c, &s.vram, &s.aperture, &s.queues, &s.vectors, &s.engines, &s.tags)
	nums(c, &s.payload, &s.readRequest, &s.generation, &s.lanes, &s.options)
	nums(c, &s.kind, &s.computeMemory)
	c.bytes(s.engine[:])
}

// code leaves out the history of the memory, which is the hardware's.
func (r *registers) code(c *codec) {
	num(c, &r.errorCode)
	nums(c, &r.errorQueue, &r.errorCount, &r.xid, &r.intStatus, &r.intMask, &r.intVector, &r.latch)
	nums(c, &r.errorAddr, &r.apertureBase)
	for i := range r.scratch {
		num(c, &r.scratch[i])
	}
	for i := range r.semaphores {
		num(c, &r.semaphores[i])
	}
	for i := range r.counters {
		num(c, &r.counters[i])
	}
}

func (q *queueState) code(c *codec) {
	num(c, &q.base)
	nums(c, &q.size, &q.tail, &q.head, &q.issue, &q.errID, &q.vector)
	num(c, &q.errCode)
	nums(c, &q.errAddr, &q.fence, &q.statusAddr)
	c.flag(&q.enabled)
	c.flag(&q.halted)
	c.flag(&q.report)
	nums(c, &q.since, &q.before)
	n := uint32(len(q.commands))
	num(c, &n)
	if c.reading {
		if c.bad = c.bad || n > window; c.bad {
			return
		}
		q.commands = make([]commandStateOf, n)
	}
	for i := range q.commands {
		q.commands[i].code(c)
	}
}

func (o *commandStateOf) code(c *codec) {
	c.bytes(o.raw[:])
	num(c, &o.state)
	num(c, &o.fail)
	nums(c, &o.pos, &o.at, &o.addr, &o.left)
	num(c, &o.ready)
	num(c, &o.used)
}

var errState = errors.New("gpu: the state of the other GPU is damaged, or of another version")

// parseState reads the state of a GPU with a number of queues.
func parseState(b []byte, queues int) (*state, error) {
	s := &state{queues: make([]queueState, queues)}
	c := &codec{b: b, reading: true}
	if s.code(c); c.bad || len(c.b) != 0 {
		return nil, errState
	}
	return s, nil
}

// append returns b with the state.
func (s *state) append(b []byte) []byte {
	c := &codec{b: b}
	s.code(c)
	return c.b
}

// check returns an error for a state that no GPU of this shape can be in.
func (s *state) check(g *GPU) error {
	own := g.shape()
	if s.shape.engine != own.engine {
		return fmt.Errorf("gpu: the compute engine of the other GPU differs from this one: %q and %q", cString(s.shape.engine[:]), cString(own.engine[:]))
	}
	if s.shape != own {
		return fmt.Errorf("gpu: the other GPU differs from this one: %q with %d bytes of memory and %d tags, and %q with %d and %d",
			cString(s.shape.model[:]), s.shape.vram, s.shape.tags, cString(own.model[:]), own.vram, own.tags)
	}
	for i := range s.queues {
		if !s.queues[i].valid() {
			return fmt.Errorf("%w: queue %d", errState, i)
		}
	}
	if !s.channel.valid(g) {
		return fmt.Errorf("%w: compute channel", errState)
	}
	if s.time < 0 || s.time > maxAge || s.errors >= 1<<len(errorCodes) {
		return errState
	}
	return nil
}

// maxAge bounds the times of a state, in ns: 36 years.
const maxAge = int64(1) << 60

func cString(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// valid reports whether a queue can be in the state.
func (q *queueState) valid() bool {
	past := func(t int64) bool { return t >= 0 && t <= maxAge }
	fetched := uint32(len(q.commands))
	switch {
	case q.enabled && q.halted, q.statusAddr%reg.FenceAlign != 0, !past(q.since), !past(q.before),
		!q.enabled && fetched > 0, q.report && !q.halted:
		return false
	case !q.enabled:
		return true
	case !validRing(q.base, q.size), q.tail-q.head > q.size, q.tail-q.head < fetched, q.issue-q.head > fetched:
		return false
	}
	for i := range q.commands {
		if !past(q.commands[i].ready) || !q.commands[i].valid(q.head+uint32(i) == q.issue) {
			return false
		}
	}
	return true
}

// valid reports whether a command can be in the state. next: its requests are the next
// to go out.
func (o *commandStateOf) valid(next bool) bool {
	c, _, err := reg.ParseCommand(o.raw[:])
	if err != nil {
		return false
	}
	switch o.state {
	case commandReady, commandDone:
		return o.pos == 0 && o.addr == 0 && o.left == 0 && o.used == 0
	case commandIssuing:
		bus := c.Flags&(reg.CopySrcBus|reg.CopyDstBus) != 0
		return next && c.Op == reg.OpCopy && bus && o.pos <= c.Arg2 && o.left <= c.Arg2-o.pos && (o.left == 0 || o.addr <= -o.left) &&
			o.used <= c.Dim0 && (o.used > 0 || c.Flags&reg.CopySegment == 0 || o.pos == 0 && o.left == 0)
	case commandFetching, commandWaiting:
	}
	return false
}

// relative returns how long a time lies before now.
func relative(now, at time.Duration) int64 { return int64(max(now-at, 0)) }
