package predict

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// arriving is one replay by arrival: a discrete-event simulation of the threads, which takes
// the earliest of their next calls at each turn. When a call begins, all for which its
// operations and its end can wait have come, so their times are known then.
type arriving struct {
	*arrivals
	rc *rttCosts
	t  *times

	queue   agenda
	left    []uint8   // by call: how many calls before it have not ended
	pending []int32   // by call: how many of its operations have not come, and one; nil if none comes late
	last    []int32   // by stream: the operation that came last
	came    []bool    // by operation
	running [][]int32 // by process: streams with work that may not have ended
	runs    []bool    // by stream: it is one of them
	before  [][]int32 // by event: the operations before it
	passed  []bool    // by event: its call was made
	held    [][]int32 // by stream: its waits for events since the last operation
	looks   int       // see mostLooks
}

// replay computes the times of all events. ok is false if a damaged trace makes it look at
// too much.
func (a *arrivals) replay(rc *rttCosts) (t times, ok bool) {
	w := a.p.w
	t = a.p.newTimes()
	if rc.causes {
		t.opBy, t.callBy = nones(len(w.Ops)), nones(len(w.Calls))
	}
	r := &arriving{
		arrivals: a, rc: rc, t: &t, left: slices.Clone(a.needs),
		last: nones(len(w.Streams)), came: make([]bool, len(w.Ops)), runs: make([]bool, len(w.Streams)),
		running: make([][]int32, len(w.Streams)+len(w.Threads)), held: make([][]int32, len(w.Streams)),
		before: make([][]int32, len(w.Events)), passed: make([]bool, len(w.Events)),
	}
	if len(a.late) > 0 {
		r.pending = make([]int32, len(w.Calls))
	}
	r.begin()
	for len(r.queue) > 0 && r.looks <= mostLooks {
		switch c := r.queue.pop(); c.kind {
		case marking:
			r.pass(c.i)
		case calling, syncing:
			r.start(c.i)
		case comingLate:
			r.arrive(c.i)
			r.release(w.Ops[c.i].Call)
		}
	}
	return t, r.looks <= mostLooks
}

// begin puts what comes after nothing into the queue.
func (r *arriving) begin() {
	for _, i := range r.first {
		r.arrive(i)
	}
	for _, n := range r.firstMarks {
		r.mark(n)
	}
	for i, left := range r.left {
		if left == 0 {
			r.call(int32(i))
		}
	}
}

// call puts a call into the queue, once those before it have ended.
func (r *arriving) call(i int32) {
	for n := r.markBefore.of(i); n != none; n = r.markBefore.next[n] {
		r.mark(n)
	}
	r.t.callStart[i] = r.p.startOfCall(r.t, r.rc, i)
	c := coming{at: r.t.callStart[i], kind: calling, i: i}
	if r.p.w.Calls[i].Kind.IsSync() {
		c.kind = syncing
	}
	if first := r.made.head[i]; first != none {
		c.rank = r.rank[first]
	}
	r.queue.push(c)
}

// start begins a call: its operations come to their streams.
func (r *arriving) start(i int32) {
	if r.pending != nil {
		r.pending[i] = 1
	}
	for op := r.made.head[i]; op != none; op = r.made.next[op] {
		by, late := r.late[op]
		if !late {
			r.arrive(op)
			continue
		}
		r.pending[i]++
		r.queue.push(coming{r.t.callStart[i] + by, comingLate, r.rank[op], op})
	}
	r.release(i)
}

// release ends a call if all of its operations have come.
func (r *arriving) release(i int32) {
	if r.pending != nil {
		if r.pending[i]--; r.pending[i] > 0 {
			return
		}
	}
	r.t.callEnd[i] = r.endOfCall(i)
	for n := r.markAfter.of(i); n != none; n = r.markAfter.next[n] {
		r.mark(n)
	}
	for e := r.after.head[i]; e != none; e = r.after.next[e] {
		if r.left[e/2]--; r.left[e/2] == 0 {
			r.call(e / 2)
		}
	}
}

// arrive puts an operation on its stream, and those without a call behind it.
func (r *arriving) arrive(i int32) {
	for todo := []int32{i}; len(todo) > 0; {
		i, todo = todo[len(todo)-1], todo[:len(todo)-1]
		r.t.opEnd[i] = r.endOfOp(i)
		r.came[i] = true
		s := r.p.w.Ops[i].Stream
		if !r.inOneGraph(r.last[s], i) {
			r.last[s] = i
		}
		if !r.runs[s] {
			r.runs[s] = true
			r.running[r.of[s]] = append(r.running[r.of[s]], s)
		}
		for o := r.behind.of(i); o != none; o = r.behind.next[o] {
			todo = append(todo, o)
		}
	}
}

// inOneGraph reports whether last, the last operation of a stream, is a branch of the same
// graph as operation i and ends later.
func (r *arriving) inOneGraph(last, i int32) bool {
	if last == none {
		return false
	}
	a, b := &r.p.w.Ops[last], &r.p.w.Ops[i]
	return b.Call != none && a.Call == b.Call && r.p.w.Calls[b.Call].Kind == workload.GraphLaunch && a.End() > b.End()
}

// lastOf returns the operation after which one that comes to a stream now comes, or none.
func (r *arriving) lastOf(stream int32) int32 {
	op := r.last[stream]
	if op != none && r.came[r.ends[op]] {
		return r.ends[op]
	}
	return op
}

// Kinds of what comes, in their order if they come at the same time: a trace can have whole
// microseconds, and a synchronisation waits for what began with it.
const (
	marking uint8 = iota
	calling
	syncing
	comingLate
)

// coming is the start of a call, a mark, or the arrival of an operation that comes late.
type coming struct {
	at   time.Duration
	kind uint8
	rank int32 // the order of those of one time and kind: that of the recording
	i    int32
}

func (c *coming) before(o *coming) bool {
	switch {
	case c.at != o.at:
		return c.at < o.at
	case c.kind != o.kind:
		return c.kind < o.kind
	case c.rank != o.rank:
		return c.rank < o.rank
	}
	return c.i < o.i
}

// agenda is a heap of what comes, the earliest first.
type agenda []coming

func (a *agenda) push(c coming) {
	h := append(*a, c)
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(&h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
	*a = h
}

func (a *agenda) pop() coming {
	h := *a
	out, n := h[0], len(h)-1
	h[0] = h[n]
	h = h[:n]
	for i := 0; 2*i+1 < n; {
		down := 2*i + 1
		if down+1 < n && h[down+1].before(&h[down]) {
			down++
		}
		if !h[down].before(&h[i]) {
			break
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
	*a = h
	return out
}
