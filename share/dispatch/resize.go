package dispatch

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// Resize changes what a client may use. A launch that runs ends as it began, but for mps,
// whose share sets the speed of what is left of it. It returns false, and changes nothing,
// if there is not that much memory, or the policy has no room.
func (d *Dispatcher) Resize(now time.Duration, id share.ClientID, spec share.ClientSpec) bool {
	d.now = max(d.now, now)
	c := d.find(id)
	if c == nil || c.evicted || spec.Memory < 0 || spec.Memory > d.left()+c.spec.Memory {
		return false
	}
	c.debt.Pay(d.now, c.pays())
	if !d.rejoins {
		return d.change(c, spec)
	}
	old := c.spec
	ok := d.rejoin(c, spec)
	if !ok {
		// The old size is still free: no other client has joined since.
		c.evicted = false
		d.evicted = slices.DeleteFunc(d.evicted, func(e Eviction) bool { return e.Client == id })
		d.rejoin(c, old)
	}
	if c.state == waiting && !c.known {
		d.present(c, c.kernel)
		d.decide(nil)
	}
	return ok
}

// change tells the policy the new limits of a client and its memory.
func (d *Dispatcher) change(c *client, spec share.ClientSpec) bool {
	old := c.spec
	more := spec.Memory - old.Memory
	if more < 0 {
		d.policy.Receive(d.now, share.Event{Kind: share.Free, Client: c.id, Bytes: -more})
	}
	d.policy.Receive(d.now, share.Event{Kind: share.Resized, Client: c.id, Spec: spec})
	if c.spec = spec; d.allocate(c, more) {
		return true
	}
	c.spec = old
	d.policy.Receive(d.now, share.Event{Kind: share.Resized, Client: c.id, Spec: old})
	d.decide(nil)
	return false
}

// rejoin makes a client known to the policy again, without its launch. It reports whether
// the policy has room for it.
func (d *Dispatcher) rejoin(c *client, spec share.ClientSpec) bool {
	c.spec, c.limit, c.known = spec, share.Whole, false
	d.policy.Receive(d.now, share.Event{Kind: share.Leave, Client: c.id})
	return d.enter(c)
}
