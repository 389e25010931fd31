package gpu

import (
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/machine"
)

// A DELAY is not a job: it needs no processor, and several queues may wait at the
// same time. Wake ends it, so it is exact in virtual time. With late timers, the
// next command of the queue still begins at the time when the DELAY was due.

// began returns the time when the command at head began.
func (q *queue) began(c *command) time.Duration { return max(q.since, c.ready) }

// startDelay starts the DELAY at head.
func (g *GPU) startDelay(q *queue, c *command) {
	from := q.began(c)
	if c.Flags&reg.DelaySince != 0 {
		from = q.before
	}
	q.until = from + time.Duration(c.Arg1) // checkCommand has checked the bound
	q.delayed = true
	c.state = commandWaiting
	q.issue++
	q.endDelay(g.now)
}

func (q *queue) endDelay(now time.Duration) {
	if q.delayed && q.until <= now {
		q.delayed = false
		q.command(q.head).state = commandDone
	}
}

func (g *GPU) endDelays(now time.Duration) {
	if g.frozen {
		return
	}
	for i := range g.queues {
		g.queues[i].endDelay(now)
	}
}

// nextDelay returns when the first DELAY ends, or machine.Never.
func (g *GPU) nextDelay() time.Duration {
	at := machine.Never
	if g.frozen {
		return at
	}
	for i := range g.queues {
		if q := &g.queues[i]; q.delayed {
			at = min(at, q.until)
		}
	}
	return at
}

// passed notes when the retiring command at head began and ended.
func (q *queue) passed(c *command, now time.Duration) {
	q.before = q.began(c)
	q.since = now
	if c.Op == reg.OpDelay {
		q.since = max(q.until, q.before)
	}
}
