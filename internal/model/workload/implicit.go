package workload

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/dxpu-project/dxpu/internal/quantile"
)

// StreamType tells whether a stream and the default stream wait for each other.
type StreamType uint8

// Types of streams.
const (
	UnknownStream     StreamType = iota // the trace does not tell
	DefaultStream                       // the legacy default stream of its device
	BlockingStream                      // waits for the legacy default stream and makes it wait
	NonBlockingStream                   // does not
)

// SetStreamType tells the type of a stream, if operations ran on it.
func (b *Builder) SetStreamType(s Stream, t StreamType) {
	if i, ok := b.streams[s]; ok {
		b.types[i] = t
	}
}

// Numbers of times that work on a stream and on the default stream must have been held up by
// the other's, without a wait for an event that explains it, to show what the trace does not
// tell: that the two wait for each other.
const (
	enoughSerial = 8 // if the trace does not tell for which event each stream waits
	enoughKnown  = 3 // if it does
)

// gpu is a device of a process.
type gpu struct {
	process uint64
	device  int64
}

// implicit adds the waits of the legacy default stream, for which a program makes no
// call: its work starts after all work that was launched on blocking streams before, and
// theirs after its own. It returns those that the recorded times show, and those that they
// allow and do not show. explained are the waits for which there are calls.
func (r *resolver) implicit(types map[int32]StreamType, explained []Wait) (shown, possible []Wait) {
	r.measure()
	defaults := r.defaultStreams(types)
	on := map[gpu][]int32{}
	for i, s := range r.w.Streams {
		g := gpu{s.Process, s.Device}
		if d, ok := defaults[g]; ok && d != int32(i) && types[int32(i)] != NonBlockingStream {
			on[g] = append(on[g], int32(i))
		}
	}
	launches := map[int32][]launch{}
	for from, to := 0, 0; from < len(r.streams); from = to {
		for to = from; to < len(r.streams) && r.streams[to].queue == r.streams[from].queue; to++ {
		}
		launches[r.streams[from].queue] = r.streams[from:to]
	}
	enough := enoughKnown
	if slices.ContainsFunc(r.marks, func(m mark) bool { return m.kind == StreamWait && !m.told }) {
		enough = enoughSerial
	}
	r.defaults = map[int32]bool{}
	for _, d := range defaults {
		r.defaults[d] = true
	}
	r.behind, r.perhaps = make([][]int32, len(r.w.Streams)), make([][]int32, len(r.w.Streams))
	for g, others := range on {
		var unknown []pair
		blocks := false
		for _, s := range others {
			p := pair{streams: [2]int32{defaults[g], s}}
			r.serial(&p, launches[p.streams[0]], launches[s], explained)
			switch {
			case types[s] == BlockingStream:
				for i, own := range p.streams {
					r.w.Waits = append(r.w.Waits, p.waits[i]...)
					r.behind[own] = append(r.behind[own], p.streams[1-i])
					if !p.overlap {
						r.w.setBehind(own, p.streams[1-i])
					}
				}
			case !p.overlap:
				unknown = append(unknown, p)
				blocks = blocks || len(r.marks) > 0 && p.held[0]+p.held[1] >= enough
			}
		}
		// A program that has one blocking stream has others, and they and the default stream
		// wait for each other. A trace without calls for events may lack them, and then shows
		// only what waited.
		for _, p := range unknown {
			for i, own := range p.streams {
				if blocks || p.held[i] >= enoughSerial {
					shown = append(shown, p.waits[i]...)
					r.behind[own] = append(r.behind[own], p.streams[1-i])
					r.w.setBehind(own, p.streams[1-i])
				} else {
					possible = append(possible, p.waits[i]...)
					r.perhaps[own] = append(r.perhaps[own], p.streams[1-i])
				}
			}
		}
	}
	for i, of := range r.behind {
		r.perhaps[i] = append(r.perhaps[i], of...)
	}
	return shown, possible
}

// pair is the default stream and another one of its device.
type pair struct {
	streams [2]int32
	// By stream: the waits of its operations, each for the last one that was launched on the
	// other before, and how many were held up by the other's without another reason.
	waits   [2][]Wait
	held    [2]int
	overlap bool // the two worked at the same time, so they do not wait for each other
}

// mostLag is more than a launch takes that nothing holds up.
const mostLag = 10 * time.Microsecond

// atOnce is more than work takes to follow what it waited for.
const atOnce = 3 * time.Microsecond

// measure finds what the times of the trace can tell: their resolution, and how late an
// operation starts that waits for nothing.
func (r *resolver) measure() {
	r.rounded = roundedTime
	var lags []time.Duration
	for i := range r.w.Ops {
		op := &r.w.Ops[i]
		if op.Dur%time.Microsecond != 0 {
			r.rounded = fineTime
		}
		if op.Call != None {
			lags = append(lags, op.Start-r.w.Calls[op.Call].Start)
		}
	}
	r.lag = min(max(quantile.Of(lags, 0.02), 0)*5/4, mostLag)
}

// defaultStreams returns the default stream of each device: the one that the trace names
// so, or else the one with the lowest number that no call made, because it is made with the
// context.
func (r *resolver) defaultStreams(types map[int32]StreamType) map[gpu]int32 {
	defaults := map[gpu]int32{}
	for i, s := range r.w.Streams {
		if t := types[int32(i)]; t == BlockingStream || t == NonBlockingStream {
			continue
		}
		g := gpu{s.Process, s.Device}
		d, ok := defaults[g]
		if !ok || types[int32(i)] == DefaultStream || types[d] != DefaultStream && s.ID < r.w.Streams[d].ID {
			defaults[g] = int32(i)
		}
	}
	return defaults
}

// serial finds the waits of two streams that never work at the same time. It looks at no more
// launches than twice those of the shorter queue, since a trace can have many streams beside
// a long default stream.
func (r *resolver) serial(p *pair, a, b []launch, explained []Wait) {
	queues := [2][]launch{a, b}
	last := [2]int32{None, None} // by stream: the operation that was launched last
	for len(queues[0]) > 0 || len(queues[1]) > 0 {
		own := 0
		if len(queues[0]) == 0 || len(queues[1]) > 0 && compareLaunch(&queues[1][0], &queues[0][0]) < 0 {
			own = 1
		}
		l, n := queues[own][0], len(queues[own])
		if other := queues[1-own]; len(other) > 0 {
			n = sort.Search(n, func(i int) bool { return compareLaunch(&queues[own][i], &other[0]) > 0 })
		}
		// The others of these wait for the same operation, and for the first of these.
		last[own] = r.ends[queues[own][n-1].op]
		queues[own] = queues[own][n:]
		on := last[1-own]
		if on == None {
			continue
		}
		op, before := &r.w.Ops[l.op], &r.w.Ops[on]
		switch {
		case op.Call == before.Call && op.Call != None:
			continue // branches of one graph
		case op.Start < before.End()-r.rounded || op.Start < before.Start:
			p.waits, p.overlap = [2][]Wait{}, true
			return
		case r.heldUp(op, l.at, before.End()) && !r.waitsUntil(explained, l.op, before.End()):
			p.held[own]++
		}
		p.waits[own] = append(p.waits[own], Wait{Op: l.op, On: on})
	}
}

// waitsUntil reports whether an operation had to wait for a time by sorted waits.
func (r *resolver) waitsUntil(sorted []Wait, op int32, t time.Duration) bool {
	n := sort.Search(len(sorted), func(i int) bool { return sorted[i].Op >= op })
	for ; n < len(sorted) && sorted[n].Op == op; n++ {
		if r.w.Ops[sorted[n].On].End() >= t-r.rounded {
			return true
		}
	}
	return false
}

// heldUp reports whether work that was launched at a time seems to have waited for the end
// of other work: that was longer than a launch takes, or the work followed it at once and
// later than it would have started otherwise.
func (r *resolver) heldUp(op *Op, at, end time.Duration) bool {
	return end > at+r.lag || end > at && op.Start > at+r.lag && op.Start >= end && op.Start < end+atOnce
}

func compareLaunch(x, y *launch) int { return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(x.op, y.op)) }
