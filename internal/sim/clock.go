package sim

import (
	"container/heap"
	"time"
)

// clock is virtual time and what happens later in it. Events of one moment
// happen in the order in which they were made, so a run depends on its input
// only.
type clock struct {
	now    time.Duration
	events events
	order  uint64
}

// at calls do at the given moment, or now if that has passed.
func (c *clock) at(when time.Duration, do func()) {
	c.order++
	heap.Push(&c.events, event{at: max(when, c.now), order: c.order, do: do})
}

// next returns when the next event happens.
func (c *clock) next() (when time.Duration, ok bool) {
	if len(c.events) == 0 {
		return 0, false
	}
	return c.events[0].at, true
}

// advance moves to a moment and lets happen what is due.
func (c *clock) advance(to time.Duration) {
	c.now = max(c.now, to)
	for len(c.events) > 0 && c.events[0].at <= c.now {
		heap.Pop(&c.events).(event).do()
	}
}

type event struct {
	at    time.Duration
	order uint64
	do    func()
}

// events is a heap by time, then by the order of making.
type events []event

func (e events) Len() int { return len(e) }

func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}

func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

func (e *events) Push(x any) { *e = append(*e, x.(event)) }

func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = event{} // keep nothing alive
	*e = (*e)[:last]
	return x
}
