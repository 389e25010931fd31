package vfioserver

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/dxpu-project/dxpu/device"
)

// A read of a register through a worker, the client's reader and Device.watch
// wakes three goroutines. Instead the goroutine that brings the request sends it,
// and polls the server's socket beside its own, see device.Poller.

var _ device.Poller = (*Device)(nil)

const (
	// quick is how long after a read its answer is polled for.
	quick = 50 * time.Microsecond // as reader.DefaultWindow
	// slow is an answer after a longer time than wake-ups take: polling did not help.
	slow = 4 * quick
	// firstSkip and mostSkip are how many reads after a slow one are not polled for;
	// each slow one in a row doubles the number.
	firstSkip, mostSkip = 4, 256
)

// polling is the state of the reads that are polled for.
type polling struct {
	due  atomic.Int32 // reads under way
	last atomic.Int64 // when the last one began that is polled for: nanoseconds since start
	on   atomic.Bool  // Poll handles a message, and then looks at the inbox itself
	mu   sync.Mutex   // held by Poll

	// Owned by the slot.
	skip, left int // reads that are not polled for: after the last slow one, still
}

// next reports whether to poll for the answer to the next read.
func (p *polling) next() bool {
	if p.left > 0 {
		p.left--
		return false
	}
	return true
}

// judge notes how long the server took for a read that was polled for.
func (p *polling) judge(took time.Duration) {
	if took <= slow {
		p.skip = 0
		return
	}
	p.skip = min(max(2*p.skip, firstSkip), mostSkip)
	p.left = p.skip
}

// tryRead sends a read if the socket has room. It returns false if another
// goroutine has to. Also an answer that is not polled for is taken by the goroutine
// that sleeps in all sockets, see Device.Hold.
func (c *connection) tryRead(a *access) bool {
	a.polled, a.began = c.polling.next(), time.Since(c.start)
	if a.polled {
		c.polling.last.Store(int64(a.began))
	}
	c.polling.due.Add(1)
	done := func(err error) {
		c.polling.due.Add(-1)
		a.took, a.err = time.Since(c.start)-a.began, err
		c.answered(a)
	}
	if c.client.TryRead(a.region, a.offset, a.data, done) {
		return true
	}
	c.polling.due.Add(-1)
	a.polled = false
	return false
}

// answered posts the answer to a read that is polled for. The goroutine that has
// received it goes on with it: Poll's caller, or the client's own, which notifies
// the owner at once instead of waking Device.watch. An error may come from a
// goroutine that has entered the owner's group, which must not be entered again.
func (c *connection) answered(a *access) {
	if a.err != nil || c.polling.on.Load() {
		c.post(arrival{access: a})
		return
	}
	c.put(arrival{access: a})
	c.notify()
}

// Due implements device.Poller.
func (d *Device) Due() bool {
	c := d.polled.Load()
	return c != nil && c.polling.due.Load() > 0 && time.Since(c.start)-time.Duration(c.polling.last.Load()) <= quick
}

// Poll implements device.Poller.
func (d *Device) Poll() bool {
	c := d.polled.Load()
	if c == nil || !c.polling.mu.TryLock() {
		return false
	}
	defer c.polling.mu.Unlock()
	c.polling.on.Store(true)
	got := c.client.Poll()
	c.polling.on.Store(false)
	if c.arrivals() { // also of other goroutines that found polling.on
		d.notifyOwner()
	}
	return got
}

// Hold implements device.Poller.
func (d *Device) Hold() (fd uintptr, release func()) {
	c := d.polled.Load()
	if c == nil || c.polling.due.Load() == 0 {
		return 0, nil
	}
	return c.client.Hold()
}
