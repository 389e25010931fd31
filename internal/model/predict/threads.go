package predict

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
