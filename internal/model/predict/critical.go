package predict

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"time"
)

// PathKind says what a part of the critical path is.
type PathKind uint8

// Kinds of parts.
const (
	OnGPU   PathKind = iota // an operation, with the time added to it
	OnHost                  // a thread between two calls, or in a call
	Latency                 // from a launch, or from another operation, to the start of an operation
	Return                  // from the end of an operation to the return of the call that waited for it
)

// PathPart is a part of the critical path: the chain of events of a replay, each as
// early as the one before it allows, that ends with the run. Times are those of the
// replay.
type PathPart struct {
	Kind     PathKind
	Op, Call int32 // the operation of OnGPU and after Latency, the call of OnHost and Return; else None
	From, To time.Duration
	// Added is the part of it that the longer round trip added.
	Added time.Duration
}

// Critical is a replay with its critical path. The path of a large trace has as many parts as
// there are records, so it is not kept: each caller follows it again.
type Critical struct {
	// Starts and ends of calls and ends of operations in the replay.
	CallStart, CallEnd, OpEnd []time.Duration

	path backtrack
}

// Critical replays the workload, so that the critical path can be followed from its last
// event back to one that depends on nothing.
func (p *Plan) Critical(s Setting) (*Critical, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	rc := p.costsAt(s)
	rc.causes = true
	t := p.replay(rc)
	return &Critical{CallStart: t.callStart, CallEnd: t.callEnd, OpEnd: t.opEnd, path: backtrack{p: p, rc: &rc, t: &t}}, nil
}

// Backwards returns the parts of the path, the last one first. A part is valid until the next.
func (c *Critical) Backwards() iter.Seq[*PathPart] {
	return func(yield func(*PathPart) bool) {
		b := c.path
		b.yield = yield
		b.follow()
	}
}

// Parts returns the parts of the path in order of time.
func (c *Critical) Parts() []PathPart {
	var parts []PathPart
	for part := range c.Backwards() {
		parts = append(parts, *part)
	}
	slices.Reverse(parts)
	return parts
}

// OpStart returns when an operation starts in the replay.
func (c *Critical) OpStart(op int32) time.Duration { return c.path.start(op) }

// backtrack follows a replay backwards.
type backtrack struct {
	p     *Plan
	rc    *rttCosts
	t     *times
	part  PathPart // the latest
	yield func(*PathPart) bool
	ended bool // the caller wants no more of it
}

// follow follows the path from its end.
func (b *backtrack) follow() {
	e, i := b.last()
	// Each event comes after those it depends on, so the walk ends; the bound is for
	// damaged traces only.
	for left := len(b.p.calls)*2 + len(b.p.ops); i != none && left > 0 && !b.ended; left-- {
		switch e {
		case opStart:
			e, i = b.op(i)
		case callEnd:
			e, i = b.callEnd(i)
		case callStart:
			e, i = b.callStart(i)
		}
	}
}

// add adds a part unless it is empty.
func (b *backtrack) add(kind PathKind, op, call int32, from, to, added time.Duration) {
	if to > from && !b.ended {
		b.part = PathPart{kind, op, call, from, to, max(min(added, to-from), 0)}
		b.ended = !b.yield(&b.part)
	}
}

// last returns the event that ends the run.
func (b *backtrack) last() (e event, i int32) {
	e, i = callEnd, none
	at := time.Duration(math.MinInt64)
	for k, end := range b.t.callEnd {
		if end > at {
			i, at = int32(k), end
		}
	}
	for k, end := range b.t.opEnd {
		if end > at {
			e, i, at = opStart, int32(k), end
		}
	}
	return e, i
}

// start returns when an operation began in the replay.
func (b *backtrack) start(i int32) time.Duration {
	op := &b.p.w.Ops[i]
	return b.t.opEnd[i] - b.rc.added(op) - b.rc.duration(op)
}

// op follows an operation to what determined its start.
func (b *backtrack) op(i int32) (event, int32) {
	p, op, d := b.p, &b.p.w.Ops[i], b.p.Op(i)
	at := b.start(i)
	b.add(OnGPU, i, none, at, b.t.opEnd[i], b.rc.added(op))
	self := i
	from := func(e event, i int32, then time.Duration, lag time.Duration) (event, int32) {
		b.add(Latency, self, none, then, at, at-then-lag)
		return e, i
	}
	if b.t.opBy != nil {
		return b.arrival(i, at)
	}
	if d.Prev != none && b.t.opEnd[d.Prev]+d.PrevLag == at {
		return from(opStart, d.Prev, b.t.opEnd[d.Prev], d.PrevLag)
	}
	if d.Cross != none && b.t.opEnd[d.Cross]+d.CrossLag == at {
		return from(opStart, d.Cross, b.t.opEnd[d.Cross], d.CrossLag)
	}
	for on, lag := range p.StreamWaits(i) {
		if b.t.opEnd[on]+lag == at {
			return from(opStart, on, b.t.opEnd[on], lag)
		}
	}
	if op.Call != none {
		return from(callStart, op.Call, b.t.callStart[op.Call], d.LaunchLag)
	}
	return opStart, none
}

// arrival follows the start of an operation in a replay by arrival.
func (b *backtrack) arrival(i int32, at time.Duration) (event, int32) {
	if on := b.t.opBy[i]; on != none {
		b.add(Latency, i, none, b.t.opEnd[on], at, 0)
		return opStart, on
	}
	call := b.p.w.Ops[i].Call
	if call == none {
		return opStart, none
	}
	b.add(Latency, i, none, b.t.callStart[call], at, b.p.launchCost(b.rc, call))
	return callStart, call
}

// callEnd follows the end of a call to its start, or to the operation that it waited for.
func (b *backtrack) callEnd(i int32) (event, int32) {
	at := b.t.callEnd[i]
	if by := b.waitedFor(i); by != none {
		b.add(Return, none, i, b.t.opEnd[by], at, b.rc.sync)
		return opStart, by
	}
	b.add(OnHost, none, i, b.t.callStart[i], at, 0)
	return callStart, i
}

// waitedFor returns the operation that determined the end of a call, or none.
func (b *backtrack) waitedFor(i int32) int32 {
	if b.t.callBy != nil {
		return b.t.callBy[i]
	}
	for op, lag := range b.p.Waits(i) {
		if b.t.opEnd[op]+lag+b.rc.sync == b.t.callEnd[i] {
			return op
		}
	}
	return none
}

// callStart follows the start of a call to the call that determined it.
func (b *backtrack) callStart(i int32) (event, int32) {
	c, cp, at := &b.p.w.Calls[i], &b.p.calls[i], b.t.callStart[i]
	for _, from := range [...]int32{cp.prev, cp.cross} {
		if from != none && b.t.callEnd[from]+b.p.computes(b.rc, c.Thread, b.p.Since(i, from), c.Start) == at {
			b.add(OnHost, none, i, b.t.callEnd[from], at, 0)
			return callEnd, from
		}
	}
	return callStart, none
}

// PathSum is the time that one cause takes of the critical path.
type PathSum struct {
	Name        string
	Count       int
	Time, Added time.Duration
}

// Sums adds up the critical path by cause: kernels by name, kinds of copies, the host,
// launches and waits; those that added most come first.
func (p *Plan) Sums(c *Critical) []PathSum {
	return sumParts(c, func(part *PathPart) string {
		name := [...]string{OnHost: "host, between and in calls", Latency: "launches and waits of streams", Return: "returns of waits"}[part.Kind]
		if part.Kind == OnGPU {
			op := &p.w.Ops[part.Op]
			if name = p.w.Names[op.Name]; !op.Kind.IsKernel() || name == "" {
				name = op.Kind.String()
			}
		}
		return name
	})
}

// sumParts adds up the parts of a path by a name of each.
func sumParts(c *Critical, nameOf func(*PathPart) string) []PathSum {
	by := map[string]*PathSum{}
	var order []*PathSum
	for part := range c.Backwards() {
		name := nameOf(part)
		s := by[name]
		if s == nil {
			s = &PathSum{Name: name}
			by[name] = s
			order = append(order, s)
		}
		s.Count++
		s.Time += part.To - part.From
		s.Added += part.Added
	}
	out := make([]PathSum, 0, len(order))
	for _, s := range order {
		out = append(out, *s)
	}
	slices.SortStableFunc(out, func(a, b PathSum) int {
		return cmp.Or(cmp.Compare(b.Added, a.Added), cmp.Compare(b.Time, a.Time), cmp.Compare(a.Name, b.Name))
	})
	return out
}
