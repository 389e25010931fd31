package workload

import (
	"cmp"
	"slices"
	"time"
)

// query is a call that asks whether work is done and does not wait.
type query struct {
	start, end time.Duration
	thread     int32
	name       uint32
}

// AddQuery adds a call that asks whether work is done (cudaEventQuery, cudaStreamQuery).
func (b *Builder) AddQuery(c Call, where func() string) {
	if b.room(c.Start, c.Dur, where) {
		b.queries = append(b.queries, query{c.Start, c.End(), c.Thread, c.Name})
	}
}

const (
	leastSpin = 3                     // queries in a row that are a wait
	spinGap   = 20 * time.Microsecond // most time between two of them
)

// spin is a row of queries of a thread.
type spin struct {
	start, before, last, end time.Duration // before and last: the starts of the last two queries
	queries                  int
	name                     uint32
}

func (s *spin) join(q query) {
	if s.queries == 0 {
		s.start, s.last, s.name = q.start, q.start, q.name
	}
	s.before, s.last, s.end = s.last, q.start, max(s.end, q.end)
	s.queries++
}

// spins adds a synchronisation for each row of queries by which a thread waited for the
// work that it had launched last: one after the other without other calls between them,
// and only the last one after the end of the work. Other rows ask for work of long ago, as
// allocators do.
func (r *resolver) spins(queries []query) {
	slices.SortFunc(queries, func(x, y query) int {
		return cmp.Or(cmp.Compare(x.start, y.start), cmp.Compare(x.end, y.end), cmp.Compare(x.thread, y.thread))
	})
	rows := make([]spin, len(r.w.Threads))
	busy := make([]time.Duration, len(r.w.Threads)) // by thread: the end of its last call
	var found []Call
	end := func(th int32) {
		if s := &rows[th]; r.waited(s, th) {
			found = append(found, Call{Start: s.start, Dur: s.end - s.start, Name: s.name, Thread: th, Stream: None, Event: None, Latest: None, Record: None, Kind: StreamSync})
		}
		rows[th] = spin{}
	}
	next := 0
	for _, q := range queries {
		for ; next < len(r.w.Calls) && r.w.Calls[next].Start <= q.start; next++ {
			c := &r.w.Calls[next]
			end(c.Thread)
			busy[c.Thread] = c.End()
		}
		if q.start-rows[q.thread].end > spinGap {
			end(q.thread)
		}
		if q.start >= busy[q.thread] {
			rows[q.thread].join(q)
		}
	}
	for th := range rows {
		end(int32(th))
	}
	r.insert(found)
}

// waited reports whether a row was a wait.
func (r *resolver) waited(s *spin, thread int32) bool {
	if s.queries < leastSpin {
		return false
	}
	op, _ := around(r.threads, thread, s.start)
	return op != None && r.w.Ops[op].End() > s.before && r.w.Ops[op].End() <= s.end
}

// insert adds calls to those of the workload, which keep their order.
func (r *resolver) insert(found []Call) {
	if len(found) == 0 {
		return
	}
	r.w.Report.Note("%d rows of queries are taken as waits of the host", len(found))
	slices.SortFunc(found, func(x, y Call) int { return cmp.Or(cmp.Compare(x.Start, y.Start), cmp.Compare(x.Thread, y.Thread)) })
	all := make([]Call, 0, len(r.w.Calls)+len(found))
	moved := make([]int32, len(r.w.Calls))
	for i, c := range r.w.Calls {
		for ; len(found) > 0 && found[0].Start < c.Start; found = found[1:] {
			all = append(all, found[0])
		}
		moved[i] = int32(len(all))
		all = append(all, c)
	}
	r.w.Calls = append(all, found...)
	for i := range r.w.Ops {
		if op := &r.w.Ops[i]; op.Call != None {
			op.Call = moved[op.Call]
		}
	}
	for i := range r.calls {
		r.calls[i].call = moved[r.calls[i].call]
	}
}
