package network

import "time"

// agenda holds the events to come. Packets leave a stage in the order in which they came,
// so the events behind one stage need no sorting: they wait in a line, and only the first
// of each line is in the heap. So the heap has as many entries as the network has stages,
// not packets.
type agenda struct {
	heap  []*line // binary heap of the lines that are not empty, by their first event
	order uint64
}

// line holds events in the order of their times.
type line struct {
	ring   []event // a power of two
	first  int
	events int
}

type event struct {
	at    time.Duration
	order uint64 // of two events at the same time, the one that was pushed first comes first
	packet
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.order < o.order }

func (l *line) head() *event { return &l.ring[l.first] }

// push adds an event behind the others of its line. at is not before that of the last one.
func (a *agenda) push(l *line, at time.Duration, p packet) {
	if l.events == len(l.ring) {
		l.grow()
	}
	l.ring[(l.first+l.events)&(len(l.ring)-1)] = event{at, a.order, p}
	a.order++
	if l.events++; l.events > 1 {
		return
	}
	a.heap = append(a.heap, l)
	for i := len(a.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !l.head().before(a.heap[parent].head()) {
			break
		}
		a.heap[i], a.heap[parent] = a.heap[parent], l
		i = parent
	}
}

func (l *line) grow() {
	ring := make([]event, max(16, 2*len(l.ring)))
	n := copy(ring, l.ring[l.first:])
	copy(ring[n:], l.ring[:l.first])
	l.ring, l.first = ring, 0
}

// pop removes the first event if it is due before the limit.
func (a *agenda) pop(limit time.Duration) (event, bool) {
	if len(a.heap) == 0 || a.heap[0].head().at >= limit {
		return event{}, false
	}
	l := a.heap[0]
	e := *l.head()
	l.first = (l.first + 1) & (len(l.ring) - 1)
	if l.events--; l.events == 0 {
		last := len(a.heap) - 1
		l = a.heap[last]
		a.heap[last] = nil
		if a.heap = a.heap[:last]; last == 0 {
			return e, true
		}
	}
	a.sink(l)
	return e, true
}

// sink puts a line at the top of the heap, and lets it go down to its place.
func (a *agenda) sink(l *line) {
	h, i := l.head(), 0
	for {
		child := 2*i + 1
		if child >= len(a.heap) {
			break
		}
		if child+1 < len(a.heap) && a.heap[child+1].head().before(a.heap[child].head()) {
			child++
		}
		if !a.heap[child].head().before(h) {
			break
		}
		a.heap[i] = a.heap[child]
		i = child
	}
	a.heap[i] = l
}
