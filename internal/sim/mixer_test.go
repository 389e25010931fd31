package sim

import (
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

const (
	mixers     = 3
	mixerBAR   = 32 << 10
	mixerArea  = 4 << 10  // part of each mixer in each memory; one more is the processor's
	countersAt = 16 << 10 // eight bytes each, to which all add
	counters   = 8
	// mixerTimeout is longer than the network takes to deliver an answer after losses.
	mixerTimeout = 5 * time.Second
)

// mixer is a device with memory that reads, writes and adds at random, to host memory and to
// other mixers, as fast as it may, and compares what it reads.
type mixer struct {
	t      *ordering
	number int // of the device
	mind
	travel
	cfg    *cfgspace.Space
	id     pcie.BDF
	mem    [mixerBAR]byte
	answer []tlp.Packet // completions to send
	req    *transaction.Requester
	notify func()
	staged *tlp.Packet
	now    time.Duration
	buf    [2 * transaction.MaxOperand]byte
}

// mind is what moves with a mixer to another device.
type mind struct {
	index int // of the mixer; -1: none
	r     *rand.Rand
	going bool                  // requests begin
	open  map[uint64]*operation // by cookie
	last  uint64                // cookie of the next request
	done  int                   // requests that were answered
}

func newMind(index int, r *rand.Rand) mind {
	return mind{index: index, r: r, open: map[uint64]*operation{}}
}

// operation is a request without its answer: a read of n bytes, or an addition.
type operation struct {
	to      *target
	at, n   int
	want    []byte
	known   []bool
	counter int
	dst     []byte
}

// target is a memory that a mixer uses, and what must be in its part of it.
type target struct {
	name   string
	addr   uint64 // 0: it is away
	shadow [mixerArea]byte
	known  [mixerArea]bool // the writes of the others may have got lost
	unsure bool            // writes get lost now
	tally  *tally
}

// tally counts the additions of all mixers to the counters of a memory.
type tally struct {
	issued [counters]uint64
	seen   [counters]map[uint64]bool // values before an addition
}

func newMixer(t *ordering, number int) *mixer {
	m := &mixer{t: t, number: number, mind: newMind(-1, nil), notify: func() {}}
	var err error
	m.cfg, err = cfgspace.NewEndpoint(cfgspace.Identity{Vendor: 0x1234, Device: 2}).
		BAR(0, cfgspace.BAR{Kind: cfgspace.Memory32, Size: mixerBAR}).
		Express(cfgspace.Express{Type: cfgspace.Endpoint, Generation: pcie.Gen3, Width: 1, MaxPayload: 256, FLR: true, ExtendedTag: true, Atomics: true}).Build()
	if err != nil {
		panic(err)
	}
	m.req = transaction.NewRequester(transaction.RequesterConfig{Tags: 32})
	return m
}

func (m *mixer) SetNotify(notify func()) { m.notify = notify }

func (m *mixer) read(addr uint64, dst []byte) pcie.CplStatus {
	_, off, ok := m.cfg.Decode(addr, uint64(len(dst)))
	if !ok {
		return pcie.UnsupportedRequest
	}
	copy(dst, m.mem[off:])
	return pcie.SuccessfulCompletion
}

func (m *mixer) write(addr uint64, src []byte) pcie.CplStatus {
	_, off, ok := m.cfg.Decode(addr, uint64(len(src)))
	if !ok {
		return pcie.UnsupportedRequest
	}
	copy(m.mem[off:], src)
	m.touched(off, len(src))
	return pcie.SuccessfulCompletion
}

func (m *mixer) Receive(now time.Duration, p *tlp.Packet) bool {
	m.now = now
	var out tlp.Packet
	switch {
	case p.Type.Completion():
		if res, ok := m.req.Complete(p); ok && res.Done {
			m.finish(res)
		}
		return true
	case p.Type == tlp.MWr:
		if !p.EP {
			transaction.WriteBytes(p, m.write)
		}
		return true
	case p.Type == tlp.MRd:
		var job transaction.ReadJob
		var buf [pcie.MaxPayload + 8]byte
		job.Start(p, m.id, 64, 128)
		job.Emit(&out, buf[:], m.read, func(c *tlp.Packet) bool {
			c2 := *c
			c2.Data = append([]byte(nil), c.Data...)
			m.answer = append(m.answer, c2)
			return true
		})
		return true
	case p.Type.Atomic():
		transaction.ExecuteAtomic(&out, p, m.id, m.buf[:], m.read, m.write)
		out.Data = append([]byte(nil), out.Data...)
	case p.Type == tlp.CfgWr0:
		m.id = p.Target
		m.req.SetID(m.id)
		if m.cfg.WriteBE(p.Register, p.FirstBE, binary.LittleEndian.Uint32(p.Data)).Has(cfgspace.FLR) {
			m.Reset(now, device.FunctionLevelReset)
		}
		transaction.Respond(&out, p, m.id, pcie.SuccessfulCompletion)
	case p.Type == tlp.CfgRd0:
		transaction.Respond(&out, p, m.id, pcie.SuccessfulCompletion)
		out.Type, out.Length = tlp.CplD, 1
		out.Data = binary.LittleEndian.AppendUint32(nil, m.cfg.Read(int(p.Register), 4))
	default:
		if !p.Type.NonPosted() {
			return true
		}
		transaction.Respond(&out, p, m.id, pcie.UnsupportedRequest)
	}
	m.answer = append(m.answer, out)
	return true
}

func (m *mixer) Transmit(now time.Duration, emit func(p *tlp.Packet) bool) {
	m.now = now
	m.req.Expire(now, nil, m.finish)
	for n := 0; ; n++ {
		for m.staged == nil && len(m.answer) > 0 {
			if !emit(&m.answer[0]) {
				return
			}
			m.answer = m.answer[1:]
		}
		if m.staged == nil && (!m.going || m.frozen || n > 64 || !m.cfg.BusMaster() || !m.begin()) {
			return
		}
		if !emit(m.staged) {
			return
		}
		m.staged = nil
	}
}

func (m *mixer) Wake() time.Duration                 { return m.req.Wake() }
func (m *mixer) NextJob() (device.Job, bool)         { return nil, false }
func (m *mixer) FinishJob(time.Duration, device.Job) {}

func (m *mixer) Reset(now time.Duration, kind device.ResetKind) {
	m.now = now
	m.answer, m.staged, m.going, m.frozen, m.from = nil, nil, false, false, nil
	m.req.CancelAll(now, func(transaction.Result) {})
	clear(m.open)
	m.cfg.Reset(kind == device.FunctionLevelReset)
}

// busy reports whether an operation on the bytes has no answer.
func (m *mixer) busy(to *target, at, n int) bool {
	for _, o := range m.open {
		if o.to == to && at < o.at+o.n && o.at < at+n {
			return true
		}
	}
	return false
}

// begin makes the next request.
func (m *mixer) begin() bool {
	to := m.t.targets[m.index][m.r.IntN(mixers)]
	if to.addr == 0 || m.r.IntN(20) == 0 {
		return false
	}
	at := m.r.IntN(mixerArea - 128)
	addr := to.addr + uint64(m.index*mixerArea+at)
	n := tlp.NextChunk(addr, 1+m.r.IntN(128), 128)
	p := &tlp.Packet{}
	switch k := m.r.IntN(10); {
	case k < 2:
		o := &operation{to: to, counter: m.r.IntN(counters), dst: make([]byte, 8)}
		*p = tlp.Packet{Type: tlp.FetchAdd, Length: 2, FirstBE: 15, LastBE: 15, Data: binary.LittleEndian.AppendUint64(nil, 1)}
		p.Addr = to.addr + countersAt + 8*uint64(o.counter)
		if !m.request(p, o) {
			return false
		}
		to.tally.issued[o.counter]++
	case m.busy(to, at, n): // a later write may pass a read, and so may its data
		return false
	case k < 6:
		o := &operation{to: to, at: at, n: n, dst: make([]byte, n)}
		o.want, o.known = append(o.want, to.shadow[at:][:n]...), append(o.known, to.known[at:][:n]...)
		p.Type = tlp.MRd
		p.SetMemory(addr, n)
		if !m.request(p, o) {
			return false
		}
	default:
		pad := transaction.Pad(addr)
		*p = tlp.Packet{Type: tlp.MWr, EP: m.r.IntN(16) == 0, Requester: m.id, Data: make([]byte, (pad+n+3)&^3)}
		for i := range n {
			p.Data[pad+i] = byte(m.r.Uint32())
		}
		p.SetMemory(addr, n)
		for i := range n {
			if !p.EP {
				to.shadow[at+i], to.known[at+i] = p.Data[pad+i], !to.unsure
			}
		}
	}
	m.staged = p
	return true
}

// request notes a request with an answer. It reports whether there was a tag.
func (m *mixer) request(p *tlp.Packet, o *operation) bool {
	if !m.req.Begin(m.now, m.now+mixerTimeout, p, o.dst, m.last) {
		return false
	}
	m.open[m.last] = o
	m.last++
	return true
}

// finish takes the end of a request.
func (m *mixer) finish(res transaction.Result) {
	o := m.open[res.Cookie]
	delete(m.open, res.Cookie)
	switch {
	case o == nil: // of the time before a reset
		return
	case !res.OK():
		if m.t.steady {
			m.t.fail("mixer %d: a request to %s has %v with %v", m.index, o.to.name, res.Outcome, res.Status)
		}
		return
	}
	m.done++
	if o.n == 0 {
		old, seen := binary.LittleEndian.Uint64(o.dst), o.to.tally.seen[o.counter]
		if seen[old] {
			m.t.fail("mixer %d: counter %d of %s was %d twice", m.index, o.counter, o.to.name, old)
		}
		seen[old] = true
	}
	for i := range o.n {
		if o.known[i] && o.to.known[o.at+i] && o.dst[i] != o.want[i] {
			m.t.fail("mixer %d: byte %d of its part of %s is %#x, want %#x", m.index, o.at+i, o.to.name, o.dst[i], o.want[i])
			return
		}
	}
}
