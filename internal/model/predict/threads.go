package predict

import "slices"

// switches counts how often a call of one thread and a call of another follow each other, and
// at how many of these times the earlier thread goes on with calls of its own.
type switches struct{ all, beside int }

// pairOf names two threads in any order.
func pairOf(a, b int32) [2]int32 { return [2]int32{min(a, b), max(a, b)} }

// countSwitches counts the switches between the threads of each process.
func (l *linker) countSwitches() {
	if len(l.w.Threads) < 2 {
		return
	}
	last := nones(len(l.process)) // by process: the latest call
	for i := range l.w.Calls {
		thread := l.w.Calls[i].Thread
		before := last[l.threadProc[thread]]
		last[l.threadProc[thread]] = int32(i)
		if before == none || l.w.Calls[before].Thread == thread {
			continue
		}
		pair := pairOf(l.w.Calls[before].Thread, thread)
		s := l.switches[pair]
		s.all++
		if l.w.Calls[before].End() > l.w.Calls[i].Start || !l.quietAfter(before) {
			s.beside++
		}
		l.switches[pair] = s
	}
}

// mostBeside tells which two threads work at the same time: those where more than one switch
// in four finds the earlier thread still at work.
const mostBeside = 4

// besideEachOther reports whether two threads work at the same time, so that a pause of one
// of them does not show that it waited for the other.
func (l *linker) besideEachOther(a, b int32) bool {
	s := l.switches[pairOf(a, b)]
	return s.beside*mostBeside > s.all
}

// mostOwn bounds on how many streams the last work of a thread is remembered.
const mostOwn = 8

// noteLaunch notes that a thread launched an operation.
func (l *linker) noteLaunch(thread, op int32) {
	own := slices.DeleteFunc(l.threadOps[thread], func(o int32) bool { return l.w.Ops[o].Stream == l.w.Ops[op].Stream })
	if len(own) == mostOwn {
		own = slices.Delete(own, 0, 1)
	}
	l.threadOp[thread], l.threadOps[thread] = op, append(own, op)
}

// ownOf returns the operation for which synchronisation i may have waited, of which the trace
// does not tell the stream: cand, the one that ended last, or if another thread launched that,
// the work of its own thread at whose end it returned.
func (l *linker) ownOf(i, cand int32) int32 {
	c, call := &l.w.Calls[i], l.w.Ops[cand].Call
	if call == none || l.w.Calls[call].Thread == c.Thread {
		return cand
	}
	own := none
	for _, op := range l.threadOps[c.Thread] {
		end := l.w.Ops[op].End()
		if l.done[op] && end > c.Start && end <= c.End() && c.End()-end <= syncReturn && (own == none || end > l.w.Ops[own].End()) {
			own = op
		}
	}
	if own == none {
		return cand
	}
	return own
}
