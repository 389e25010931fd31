package workload

import (
	"cmp"
	"slices"
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
// were held up.
func (r *resolver) serial(a, b []launch, enough int) []Wait {
	last := [2]int32{None, None} // by stream: the operation that was launched last
	seen := [2]int32{None, None} // by stream: the last one of the other stream for which it waits
	var waits [2][]Wait
	var held [2]int
	for len(a) > 0 || len(b) > 0 {
		own := 0
		if len(a) == 0 || len(b) > 0 && compareLaunch(&b[0], &a[0]) < 0 {
			own = 1
			a, b = b, a
		}
		l := a[0]
		if a = a[1:]; own == 1 {
			a, b = b, a
		}
		last[own] = l.op
		on := last[1-own]
		if on == None || on == seen[own] {
			continue
		}
		seen[own] = on
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
