package network

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/machine"
)

// hop is a stage of a route, and what a packet does there.
type hop struct {
	stage
	// inline stages are reached only from the one before, so that packets come in order.
	// They need no event.
	inline bool
	// answer is at the end of a request's way: the packet goes on as the completion.
	answer bool
	// network passages can lose a packet.
	network bool
}

// packet is a packet on its way.
type packet struct {
	flow   *flow
	sent   time.Duration
	bytes  int32
	hop    uint8
	path   uint8
	kind   kind
	marked bool
}

// kind says what an event does.
type kind uint8

const (
	arrival kind = iota // the packet reaches its hop
	done                // the sender notices that the packet was delivered
	lost                // the sender notices that the packet was lost
	resume              // the GPU has computed
)

// simulation is a measurement on its way.
type simulation struct {
	*Spec
	rng      *rand.Rand
	now      time.Duration
	events   agenda                // of packets on their way
	rare     machine.Queue[packet] // losses that are noticed, and ends of computations
	gpus     []gpu
	wires    []*wire
	from, to time.Duration // of the measurement
	took     []time.Duration
	Result
}

// gpu is a GPU. A flow is nil if its bytes are 0.
type gpu struct {
	number  int
	in, out *flow
}

// any returns a flow of the GPU, nil if it copies nothing.
func (g *gpu) any() *flow {
	if g.in != nil {
		return g.in
	}
	return g.out
}

// idle reports whether the copies of the step are done.
func (g *gpu) idle() bool { return g.in.done() && g.out.done() }

// maxSamples bounds the times that are kept for the percentiles.
const maxSamples = 1 << 20

// Measure simulates twice Time. It returns early with an error if ctx ends.
func (s Spec) Measure(ctx context.Context) (Result, error) {
	if err := s.Validate(); err != nil {
		return Result{}, err
	}
	m := &simulation{Spec: &s, rng: rand.New(rand.NewPCG(s.Seed, 12)), events: newAgenda(), from: s.Time, to: 2 * s.Time}
	m.build()
	for i := range m.gpus {
		at := time.Duration(m.rng.Int64N(int64(s.Compute + s.RTT())))
		if f := m.gpus[i].any(); f != nil {
			m.later(at, packet{kind: resume, flow: f})
		}
	}
	for n := 0; ; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return Result{}, ctx.Err()
		}
		if e, ok := m.events.pop(min(m.to, m.rare.Wake())); ok {
			m.now = e.at
			m.handle(&e.packet)
			continue
		}
		if m.now = m.rare.Wake(); m.now >= m.to {
			return m.result(), nil
		}
		p, _ := m.rare.Pop(m.now)
		m.handle(&p)
	}
}

// later schedules a rare event.
func (m *simulation) later(at time.Duration, p packet) { m.rare.Push(max(at, m.now), p) }

func (m *simulation) handle(p *packet) {
	switch p.kind {
	case arrival:
		m.advance(p)
	case done:
		m.delivered(p)
	case lost:
		p.flow.lose(m.now)
		m.leave(p.flow)
		m.send(p.flow)
	case resume:
		m.step(p.flow.gpu)
	}
}

// step begins the next step of a GPU.
func (m *simulation) step(g *gpu) {
	for _, f := range []*flow{g.in, g.out} {
		if f == nil {
			continue
		}
		f.copied = f.size
		if m.Compute == 0 {
			f.copied = math.MaxInt / 2 // without end
		}
		m.send(f)
	}
}

// send sends what the window and the copy allow.
func (m *simulation) send(f *flow) {
	for (f.copied > 0 || f.again > 0) && f.room() {
		if f.again > 0 {
			f.again -= f.payload
		} else {
			f.copied -= f.payload
		}
		f.flying += f.payload
		m.Packets++
		p := packet{flow: f, bytes: int32(f.header + f.payload), sent: m.now, path: f.path}
		if f.request > 0 {
			p.bytes = int32(f.request)
		}
		m.advance(&p)
	}
}

// advance takes a packet through the stages from its hop on, up to the next one that
// needs an event.
func (m *simulation) advance(p *packet) {
	f, now := p.flow, m.now
	for {
		h := &f.routes[p.path][p.hop]
		if h.network && (m.failed(p.path, now) || m.Loss > 0 && m.rng.Float64() < m.Loss) {
			m.Lost++
			m.lose(p)
			return
		}
		at, ok := h.pass(now, p)
		if !ok {
			m.lose(p)
			return
		}
		if now = at; h.answer {
			p.bytes = int32(f.header + f.payload)
			m.Packets++
		}
		if p.hop++; int(p.hop) == len(f.routes[p.path]) {
			break
		}
		if !f.routes[p.path][p.hop].inline {
			m.events.push(now, p)
			return
		}
	}
	m.arrive(now, p)
}

// lose lets the sender notice after a quarter of a round trip more than the packet would
// have taken, as RACK does (RFC 8985).
func (m *simulation) lose(p *packet) {
	p.kind = lost
	m.later(p.sent+p.flow.base*5/4, *p)
}

// failed reports whether a path loses what passes it at the given time.
func (m *simulation) failed(path uint8, at time.Duration) bool {
	return m.FailAfter > 0 && path == 0 && at >= m.from+m.FailAfter
}

// leave takes a flow to the next path, Detect after the first loss on the failed one.
func (m *simulation) leave(f *flow) {
	if !m.failed(f.path, m.now) {
		return
	}
	if f.leaveAt == 0 {
		f.leaveAt = m.now + m.Detect
	}
	if m.now >= f.leaveAt {
		f.path = uint8(1 + (f.gpu.number/m.Paths)%(m.Paths-1))
	}
}

// arrive is at the end of a route, which the packet reaches at the given time.
func (m *simulation) arrive(at time.Duration, p *packet) {
	if at >= m.from && at < m.to {
		p.flow.counted += uint64(p.flow.payload)
		if at < m.from+m.FailAfter {
			p.flow.before += uint64(p.flow.payload)
		}
		m.Gap = max(m.Gap, at-max(p.flow.last, m.from))
		p.flow.last = at
		if len(m.took) < maxSamples {
			m.took = append(m.took, at-p.sent)
		}
	}
	p.kind = done
	m.events.push(at+p.flow.ackTime, p)
}

// delivered goes on with the copy, or with the next step.
func (m *simulation) delivered(p *packet) {
	f := p.flow
	f.ack(m.now, p)
	m.send(f)
	if m.Compute > 0 && f.gpu.idle() {
		m.later(m.now+m.Compute/2+time.Duration(m.rng.Int64N(int64(m.Compute))), packet{kind: resume, flow: f})
	}
}

func (m *simulation) result() Result {
	r := m.Result
	over := func(bytes uint64, d time.Duration) perf.BytesPerSecond {
		return perf.BytesPerSecond(float64(bytes) / max(d.Seconds(), 1e-9))
	}
	var before, after Rates
	add := func(f *flow, each, before, after *perf.BytesPerSecond) {
		if f == nil {
			return
		}
		*each = over(f.counted, m.Time)
		*after += over(f.counted-f.before, m.Time-m.FailAfter)
		*before += over(f.before, m.FailAfter)
		r.Gap = max(r.Gap, m.to-max(f.last, m.from))
	}
	for i := range m.gpus {
		var each Rates
		add(m.gpus[i].in, &each.In, &before.In, &after.In)
		add(m.gpus[i].out, &each.Out, &before.Out, &after.Out)
		r.PerGPU = append(r.PerGPU, each)
		r.Total.In += each.In
		r.Total.Out += each.Out
	}
	if m.FailAfter > 0 {
		r.Before, r.After = before, after
	}
	slices.Sort(m.took)
	if n := len(m.took); n > 0 {
		r.P50, r.P99 = m.took[n/2], m.took[min(n*99/100, n-1)]
	}
	for _, w := range m.wires {
		r.Dropped += w.dropped
		r.Marked += w.marked
	}
	return r
}
