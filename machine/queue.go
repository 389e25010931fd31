package machine

import "time"

// Queue holds events until they are due. Events of the same time leave in the
// order in which they were pushed, so a simulation depends on its input only.
// The zero value is an empty queue. Push allocates only to grow the queue.
type Queue[E any] struct {
	heap   []entry[E] // binary heap by (at, order)
	pushed uint64
}

type entry[E any] struct {
	at    time.Duration
	order uint64
	event E
}

// before orders entries by time, then by insertion.
func (a *entry[E]) before(b *entry[E]) bool {
	return a.at < b.at || a.at == b.at && a.order < b.order
}

// Len returns the number of events in the queue.
func (q *Queue[E]) Len() int { return len(q.heap) }

// Push adds an event that is due at the given time.
func (q *Queue[E]) Push(at time.Duration, event E) {
	q.heap = append(q.heap, entry[E]{at, q.pushed, event})
	q.pushed++
	for i := len(q.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q.heap[i].before(&q.heap[parent]) {
			break
		}
		q.heap[i], q.heap[parent] = q.heap[parent], q.heap[i]
		i = parent
	}
}

// Wake returns when the first event is due, or Never.
func (q *Queue[E]) Wake() time.Duration {
	if len(q.heap) == 0 {
		return Never
	}
	return q.heap[0].at
}

// Pop removes the first event if it is due at now.
func (q *Queue[E]) Pop(now time.Duration) (event E, ok bool) {
	if len(q.heap) == 0 || q.heap[0].at > now {
		return event, false
	}
	event = q.heap[0].event
	last := len(q.heap) - 1
	q.heap[0] = q.heap[last]
	q.heap[last] = entry[E]{} // release what the event refers to
	q.heap = q.heap[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if q.heap[child].before(&q.heap[least]) {
				least = child
			}
		}
		if least == i {
			return event, true
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
}
