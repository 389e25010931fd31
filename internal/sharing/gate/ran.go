package gate

import "time"

// owingMost is how much less than half of the time of its launches a program may tell, until it
// is charged for more: ends are told some at a time.
const owingMost = 2 * time.Millisecond

// lateMost is how late an end is usually told at most.
const lateMost = 200 * time.Microsecond

// ran returns how long a launch that ends ran. The gate knows it since a time; it may have begun
// before. A program that measured nothing is charged from then, or from the last end of any
// launch. One that tells less than half of that time again and again is charged for half: on a
// GPU where launches of several clients take turns, short ones end late. Once is no lie: an honest
// program stands still, or copies before the first launch of a step.
func (g *Gate) ran(c *client, since, before, told time.Duration) time.Duration {
	most := g.now - since + before
	took := g.now - max(since, g.last)
	g.last = g.now
	if told <= 0 {
		c.meter.Took(g.now, took)
		return took
	}
	told = min(told, most)
	c.meter.Tell(g.now, told)
	c.meter.Took(g.now, took-min(told/2, lateMost, took)) // the end was told late
	owes, again := took/2-told, c.short
	if c.short = owes > 0; c.short && !again {
		owes = min(owes, owingMost)
	}
	c.owing = max(c.owing+owes, -owingMost)
	if more := c.owing - owingMost; more > 0 {
		c.owing = owingMost
		told += more
	}
	return told
}
