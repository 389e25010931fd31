package workload

import (
	"cmp"
	"slices"
	"sort"
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
// theirs after its own.
func (r *resolver) implicit(types map[int32]StreamType) {
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
			enough := enoughSerial
			if types[s] == BlockingStream {
				enough = 0
			}
			r.w.Waits = append(r.w.Waits, r.serial(launches[defaults[g]], launches[s], enough)...)
		}
	}
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

// serial returns the waits of two streams that never work at the same time: of each
// operation for the last one that was launched on the other stream before. It returns
// none if an operation started earlier, and none of a stream of which fewer than enough
// were held up. It looks at no more launches than twice those of the shorter queue, since
// a trace can have many streams beside a long default stream.
func (r *resolver) serial(a, b []launch, enough int) []Wait {
	queues := [2][]launch{a, b}
	last := [2]int32{None, None} // by stream: the operation that was launched last
	var waits [2][]Wait
	var held [2]int
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
		case op.Start < before.End()-roundedTime || op.Start < before.Start:
			return nil
		case before.End() > l.at:
			held[own]++
		}
		waits[own] = append(waits[own], Wait{Op: l.op, On: on})
	}
	for i := range waits {
		if held[i] < enough {
			waits[i] = nil
		}
	}
	return slices.Concat(waits[0], waits[1])
}

func compareLaunch(x, y *launch) int { return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(x.op, y.op)) }
