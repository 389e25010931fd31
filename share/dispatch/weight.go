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
