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

// enoughSerial is the number of times that work on a stream must have been held up by
// work on the default stream, or the reverse, to show what the trace does not tell: that
// the two wait for each other.
const enoughSerial = 8

// gpu is a device of a process.
type gpu struct {
	process uint64
	device  int64
}

// implicit adds the waits of the legacy default stream, for which a program makes no
// call: its work starts after all work that was launched on blocking streams before, and
// theirs after its own. It returns those that the recorded times show, and those that they
// allow and do not show.
func (r *resolver) implicit(types map[int32]StreamType) (shown, possible []Wait) {
	r.measure()
	defaults := r.defaultStreams(types)
	on := map[gpu][]int32{}
	for i, s := range r.w.Streams {
		g := gpu{s.Process, s.Device}
		if d, ok := defaults[g]; (!ok || d != int32(i)) && types[int32(i)] != NonBlockingStream {
			on[g] = append(on[g], int32(i))
		}
	}
	launches := map[int32][]launch{}
	for from, to := 0, 0; from < len(r.streams); from = to {
		for to = from; to < len(r.streams) && r.streams[to].queue == r.streams[from].queue; to++ {
		}
		launches[r.streams[from].queue] = r.streams[from:to]
	}
	for g, others := range on {
		if _, ok := defaults[g]; !ok {
			continue
		}
		for _, s := range others {
			waits, held := r.serial(launches[defaults[g]], launches[s])
			if types[s] == BlockingStream {
				r.w.Waits = append(r.w.Waits, slices.Concat(waits[0], waits[1])...)
				continue
			}
			for i := range waits {
				if held[i] >= enoughSerial {
					shown = append(shown, waits[i]...)
				} else {
					possible = append(possible, waits[i]...)
				}
			}
		}
	}
	return shown, possible
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

// serial returns the waits of two streams that never work at the same time, each for the
// last operation that was launched on the other before, and how many of each stream were
// held up. It returns none if an operation started earlier. It looks at no more launches
// than twice those of the shorter queue, since a trace can have many streams beside a long
// default stream.
func (r *resolver) serial(a, b []launch) (waits [2][]Wait, held [2]int) {
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
		last[own] = queues[own][n-1].op
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
			return [2][]Wait{}, held
		case r.heldUp(op, l.at, before.End()):
			held[own]++
		}
		waits[own] = append(waits[own], Wait{Op: l.op, On: on})
	}
	return waits, held
}

// heldUp reports whether work that was launched at a time seems to have waited for the end
// of other work: that was longer than a launch takes, or the work followed it at once and
// later than it would have started otherwise.
func (r *resolver) heldUp(op *Op, at, end time.Duration) bool {
	return end > at+r.lag || end > at && op.Start > at+r.lag && op.Start >= end && op.Start < end+atOnce
}

func compareLaunch(x, y *launch) int { return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(x.op, y.op)) }
