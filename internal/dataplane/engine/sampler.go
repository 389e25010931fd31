package engine

import (
	"time"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

const (
	// sampleInterval is the least time between two samples. It bounds what
	// sampling costs: two readings of the clock, 50 ns each.
	sampleInterval = time.Millisecond
	// sampleLimit is when a request without an answer is given up: longer than
	// any Completion Timeout of this program.
	sampleLimit = 4 * time.Second
)

// RoundTrip describes how long requests took, from samples.
type RoundTrip struct {
	// Smoothed as in RFC 9002, the least, and the last.
	Smoothed, Min, Last time.Duration
	Samples             uint64
}

// RoundTrips returns how long requests that this proxy sent waited for their
// last completion, and how long this proxy took to answer requests of its peer.
// The first, less the round trip of the network, is the time of the other end.
func (b *Binding) RoundTrips(Entry) (sent, served RoundTrip) {
	return b.times.sent.RoundTrip, b.times.served.RoundTrip
}

// watch sees each TLP that passes between the link and the handler.
func (b *Binding) watch(e Entry, received bool, p *tlp.Packet) {
	cfg := &e.group.cfg
	if !p.Type.Posted() { // the others have an answer, or are one
		b.times.see(e.Now(), received, p, cfg.Clock)
	}
	if w := cfg.Watcher; w != nil && w.Watching() {
		e.group.watched = *p // a copy, so that the caller's packet may stay on its stack
		w.TLP(b, received, &e.group.watched)
	}
}

// watchRun sees the TLPs of a run.
func (b *Binding) watchRun(e Entry, received bool, r *link.Run) {
	g := b.group
	if w := g.cfg.Watcher; w != nil && w.Watching() {
		for i := range r.Count {
			var p tlp.Packet
			r.TLP(i, &p)
			b.watch(e, received, &p)
		}
		return
	}
	if !r.First.Type.Posted() {
		b.times.seeRun(e.Now(), received, r, g.cfg.Clock)
	}
}

// times samples the round trips of a binding, in both directions.
type times struct{ sent, served sampler }

// see looks at a non-posted request or a completion. A received completion
// answers a sent request, and a sent one a received request.
func (t *times) see(now time.Duration, received bool, p *tlp.Packet, clock func() time.Duration) {
	t.of(received, p).see(now, p, clock)
}

func (t *times) of(received bool, p *tlp.Packet) *sampler {
	if p.Type.Completion() == received {
		return &t.sent
	}
	return &t.served
}

// seeRun looks at the TLP of a run that begins or ends a sample: the first request, or the
// completion of the request that is sampled.
func (t *times) seeRun(now time.Duration, received bool, r *link.Run, clock func() time.Duration) {
	s, i := t.of(received, &r.First), 0
	if r.First.Type.Completion() {
		if i = int(s.tag) - int(r.First.Tag); !s.open || i < 0 || i >= r.Count {
			return
		}
	}
	var p tlp.Packet
	r.TLP(i, &p)
	s.see(now, &p, clock)
}

// sampler measures one request at a time, from the request to its last
// completion.
type sampler struct {
	RoundTrip
	open      bool
	requester pcie.BDF
	tag       pcie.Tag
	began     time.Duration
	next      time.Duration // when another sample may begin
}

// see looks at a non-posted request or at a completion. now may be somewhat
// old; clock, if it is not nil, returns the exact time.
func (s *sampler) see(now time.Duration, p *tlp.Packet, clock func() time.Duration) {
	if !p.Type.Completion() {
		if now >= s.next && (!s.open || now-s.began > sampleLimit) {
			s.open, s.requester, s.tag, s.began = true, p.Requester, p.Tag, exact(now, clock)
		}
		return
	}
	if s.open && p.Tag == s.tag && p.Requester == s.requester && last(p) {
		now = exact(now, clock)
		s.open, s.next = false, now+sampleInterval
		s.add(now - s.began)
	}
}

func exact(now time.Duration, clock func() time.Duration) time.Duration {
	if clock == nil {
		return now
	}
	return clock()
}

// last reports whether no other completion follows for the same request: the
// byte count is what was left before this one (section 2.3.1.1).
func last(p *tlp.Packet) bool {
	return !p.Type.HasData() || p.Status != pcie.SuccessfulCompletion || int(p.ByteCount) <= p.PayloadLen()-int(p.LowerAddr%pcie.DW)
}

func (r *RoundTrip) add(d time.Duration) {
	d = max(d, 1)
	r.Last = d
	r.Samples++
	if r.Samples == 1 {
		r.Smoothed, r.Min = d, d
		return
	}
	r.Min = min(r.Min, d)
	r.Smoothed += (d - r.Smoothed) / 8
}
