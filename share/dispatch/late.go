package dispatch

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/share"
)

// Launches of real hardware cannot be cut into parts: a launch there is one part, as long as
// its kernel. Such a part ends when it likes, or never. After Patience it is late, and gives
// its permit back: the policy takes it as completed, and the parts of other clients run
// beside it, as the hardware lets them. Its client has no other part meanwhile, and pays for
// all of it at its end: the policy, which took it as completed, sees no launch of the client until
// the rest is paid for by its limits, each for as long as it holds. The owner may end a launch that does not end by itself.
//
// A client that waits for an uncut launch of another one may wait longer than catchUp. That
// time is no idleness: it makes up for all of it, up to Patience.

// Patience is how long the uncut launch of a client may keep the launches of others waiting.
// Many kernels of training take milliseconds, and people notice half a second.
const Patience = 200 * time.Millisecond

// maxDebt bounds how long a client waits after a launch, whatever that launch took: after one
// that did not end until its context did, the next program of the client is not to wait for
// hours.
const maxDebt = time.Minute

// leastUncut is the least share of a launch that cannot be cut. It is a share of the time,
// so it is not that of a multiprocessor, of which small devices have two.
const leastUncut = share.Whole / 100

// NewUncut returns a dispatcher without clients for launches that cannot be cut: More of Ran
// is always false.
func NewUncut(d share.Device, p share.Policy) *Dispatcher {
	out := New(d, p)
	out.uncut = true
	out.least = min(out.least, leastUncut)
	return out
}

// UncutByName is NewUncut with a policy of package share.
func UncutByName(d share.Device, policy string) (*Dispatcher, error) {
	return byName(NewUncut, d, policy)
}

// lateAt returns when the part that runs is late, or machine.Never.
func (d *Dispatcher) lateAt() time.Duration {
	if !d.uncut || d.out == nil {
		return machine.Never
	}
	return machine.After(d.out.began, Patience)
}

// checkLate lets other parts run beside a late one.
func (d *Dispatcher) checkLate() {
	if d.now < d.lateAt() {
		return
	}
	c := d.out
	d.out, c.late = nil, true
	if c.known && !c.gone {
		c.known = false
		d.policy.Receive(d.now, share.Event{Kind: share.Completed, Client: c.id, Launch: c.launch, Ran: d.now - c.began})
	}
}

// owe makes a client pay for a late part, with the time that the policy has counted: a bucket fills
// while the client pays.
func (d *Dispatcher) owe(c *client, took time.Duration) {
	if !c.late || !d.limits {
		return
	}
	c.debt.End(d.now, took, c.pays(), machine.After(d.now, maxDebt))
}

// pays returns the limit that pays for late parts.
func (c *client) pays() share.PPM { return max(c.limitOf(), leastUncut) }

// paidAt returns when the policy may see the next launch.
func (c *client) paidAt() time.Duration { return c.debt.Due(c.pays()) }

// postpone keeps a launch from the policy until its client has paid. It reports whether it did.
func (d *Dispatcher) postpone(c *client) bool {
	if c.unseen = d.now < c.paidAt(); !c.unseen {
		return false
	}
	c.known = false
	if c.inBurst { // the policy waits for no launch of the client
		c.inBurst = false
		d.policy.Receive(d.now, share.Event{Kind: share.Idle, Client: c.id})
	}
	return true
}

// checkPaid presents the launches of clients that have paid.
func (d *Dispatcher) checkPaid() {
	for _, c := range d.clients {
		if c.unseen && d.now >= c.paidAt() {
			c.launch-- // the same one
			d.present(c, c.kernel)
		}
	}
}

// wait notes that a client waited because others ran.
func (c *client) wait(d *Dispatcher, long time.Duration) {
	if d.uncut {
		c.behind = min(c.behind+long, Patience)
	}
}
