package dispatch

import (
	"cmp"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// stretch returns how long something takes with a share of the multiprocessors, or of the time.
func stretch(took time.Duration, of share.PPM) time.Duration {
	return time.Duration(float64(took) * float64(share.Whole) / float64(of))
}

// paced returns when the share of a client has paid for a part that began, or could have, and
// took some time: until then its launch takes no more.
func (c *client) paced(d *Dispatcher, began, took, until time.Duration) time.Duration {
	c.pace.Begin(began)
	c.pace.End(began, took, c.share(d), until)
	return c.pace.Due(c.share(d))
}

// rescale gives a client another share of the multiprocessors, which pays for the rest of its last
// part.
func (c *client) rescale(d *Dispatcher, of share.PPM) {
	former := c.share(d)
	c.limit = of
	if c.at > d.now && c.share(d) != former {
		c.pace.Pay(d.now, former)
		c.at = c.pace.Due(c.share(d))
	}
}

// weight returns the part of the GPU that a client has while others want more than there is.
func (c *client) weight(d *Dispatcher) share.PPM {
	if d.limits {
		return max(min(c.share(d), c.limitOf()), d.least)
	}
	return c.share(d)
}

// limitOf returns the limit that the policy keeps.
func (c *client) limitOf() share.PPM { return min(cmp.Or(c.spec.Limit, share.Whole), share.Whole) }

// share returns what the running launch may use of the multiprocessors, usually at least one
// of them. It is no whole number of them: the shares of several clients that are rounded up
// would be more than there is.
func (c *client) share(d *Dispatcher) share.PPM {
	n := min(c.limit, share.Whole)
	if c.sms > 0 {
		n = min(n, share.PPM(c.sms)*share.Whole/share.PPM(max(d.device.SMs, 1)))
	}
	return max(n, d.least)
}
