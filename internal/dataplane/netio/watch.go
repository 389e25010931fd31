package netio

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/capture"
	"github.com/dxpu-project/dxpu/tlp"
)

// captures are the captures that run: an immutable list, nil for none, which is
// all that the data plane looks at when nobody captures.
type captures struct {
	list atomic.Pointer[[]*capture.Session]
}

// Capture writes the TLPs that pass between the links of this fabric and their
// handlers to w, as o says, until ctx ends or w fails. It never holds them up:
// what w is too slow for is dropped and counted. flush is called when what was
// written should go out.
func (f *Fabric) Capture(ctx context.Context, o capture.Options, w io.Writer, flush func()) error {
	s := capture.NewSession(o)
	f.changeCaptures(func(list []*capture.Session) []*capture.Session { return append(list, s) })
	defer f.changeCaptures(func(list []*capture.Session) []*capture.Session {
		kept := list[:0]
		for _, other := range list {
			if other != s {
				kept = append(kept, other)
			}
		}
		return kept
	})
	return s.Stream(ctx, w, flush)
}

// changeCaptures replaces the list by what change makes of a copy.
func (f *Fabric) changeCaptures(change func([]*capture.Session) []*capture.Session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []*capture.Session
	if old := f.captures.list.Load(); old != nil {
		list = append(list, *old...)
	}
	if list = change(list); len(list) == 0 {
		f.captures.list.Store(nil)
		return
	}
	f.captures.list.Store(&list)
}

// watch looks at a TLP that passes between the link and the handler.
func (b *Binding) watch(received bool, p *tlp.Packet) {
	if !p.Type.Posted() { // what follows has an answer, or is one
		b.times.see(b.group.now, received, p, b.group.fabric.Now)
	}
	if list := b.group.fabric.captures.list.Load(); list != nil {
		b.capture(*list, received, p)
	}
}

func (b *Binding) capture(list []*capture.Session, received bool, p *tlp.Packet) {
	f := b.group.fabric
	at := uint64(f.start.UnixNano() + int64(f.Now()))
	h := capture.Header{Received: received, Binding: b.id, Epoch: b.epoch, Source: b.local, Destination: b.remote}
	if received {
		h.Source, h.Destination = h.Destination, h.Source
	}
	for _, s := range list {
		s.TLP(at, &h, p)
	}
}

// RoundTrip is how long requests took, from samples.
type RoundTrip struct {
	// Smoothed as RFC 9002 does it, the least, and the last.
	Smoothed, Min, Last time.Duration
	Samples             uint64
}

// RoundTrips returns how long requests that this proxy sent through the link
// waited for their last completion, and how long requests that came through
// the link took to be answered here. The first less the round trip of the
// network is what the other end took. Call it with the group entered.
func (b *Binding) RoundTrips() (sent, served RoundTrip) {
	return b.times.sent.RoundTrip, b.times.served.RoundTrip
}

// times samples the round trips of a binding, in both directions.
type times struct{ sent, served sampler }

// see looks at a non-posted request or a completion. A request that was sent is
// answered by a completion that is received, and the other way round.
func (t *times) see(now time.Duration, received bool, p *tlp.Packet, clock func() time.Duration) {
	if p.Type.Completion() == received {
		t.sent.see(now, p, clock)
	} else {
		t.served.see(now, p, clock)
	}
}
