package predict

import "time"

// event is one step of the evaluation.
type event uint8

const (
	callStart event = iota
	opStart
	callEnd
)

// walker visits all events of a plan in order: by recorded time, then by call, then
// the start of a call, its operations, and its end.
type walker struct {
	p       *Plan
	s, o, e int // visited so far: starts of calls, operations, ends of calls
}

// next returns the next event, the index of its call or operation, and its recorded
// time; ok is false at the end.
func (w *walker) next() (kind event, i int32, at time.Duration, ok bool) {
	p, call := w.p, int32(0)
	consider := func(k event, t time.Duration, c int32) {
		if !ok || t < at || t == at && (c < call || c == call && k < kind) {
			kind, at, call, ok = k, t, c, true
		}
	}
	if w.s < len(p.calls) {
		consider(callStart, p.w.Calls[w.s].Start, int32(w.s))
	}
	if w.o < len(p.order) {
		consider(opStart, p.opKey(p.order[w.o]), p.w.Ops[p.order[w.o]].Call)
	}
	if w.e < len(p.ends) {
		consider(callEnd, p.w.Calls[p.ends[w.e]].End(), p.ends[w.e])
	}
	if !ok {
		return kind, none, at, false
	}
	switch kind {
	case callStart:
		i = int32(w.s)
		w.s++
	case opStart:
		i = p.order[w.o]
		w.o++
	case callEnd:
		i = p.ends[w.e]
		w.e++
	}
	return kind, i, at, true
}

// walk visits all events in order.
func (p *Plan) walk(visit func(e event, i int32)) {
	w := walker{p: p}
	for {
		e, i, _, ok := w.next()
		if !ok {
			return
		}
		visit(e, i)
	}
}
