package netio

import (
	"time"

	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

const (
	// sampleEvery bounds what sampling costs: two readings of the clock, 50 ns
	// each, in so long.
	sampleEvery = time.Millisecond
	// sampleLimit gives up a request that is not answered: longer than any
	// Completion Timeout of this program.
	sampleLimit = 4 * time.Second
)

// sampler measures one request at a time, from when it passes to when its last
// completion does.
type sampler struct {
	RoundTrip
	open      bool
	requester pcie.BDF
	tag       pcie.Tag
	began     time.Duration
	next      time.Duration // when another sample may begin
}

// see looks at a non-posted request or at a completion. now may be somewhat
// old; clock tells the time.
func (s *sampler) see(now time.Duration, p *tlp.Packet, clock func() time.Duration) {
	if !p.Type.Completion() {
		if now >= s.next && (!s.open || now-s.began > sampleLimit) {
			s.open, s.requester, s.tag, s.began = true, p.Requester, p.Tag, clock()
		}
		return
	}
	if s.open && p.Tag == s.tag && p.Requester == s.requester && last(p) {
		now = clock()
		s.open, s.next = false, now+sampleEvery
		s.add(now - s.began)
	}
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
