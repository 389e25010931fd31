package sim

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// clock is virtual time and its pending events.
type clock struct {
	now    time.Duration
	events machine.Queue[func()]
}

// at calls do at the given time, or at the current time if that has passed.
func (c *clock) at(when time.Duration, do func()) { c.events.Push(max(when, c.now), do) }

// advance moves to the given time and runs the events that are due.
func (c *clock) advance(to time.Duration) {
	c.now = max(c.now, to)
	for do, ok := c.events.Pop(c.now); ok; do, ok = c.events.Pop(c.now) {
		do()
	}
}
