package soak

import (
	"fmt"
	"math/rand/v2"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const (
	attached = dxpuv1.BindingState_BINDING_STATE_ATTACHED
	lost     = dxpuv1.BindingState_BINDING_STATE_LOST
	failed   = dxpuv1.BindingState_BINDING_STATE_FAILED
)

// worker uses one slot of the host: it has a device attached, uses it for a random
// time, has it detached, and repeats.
type worker struct {
	cluster *cluster
	ledger  *ledger
	peers   *peers
	slot    int
	rand    *rand.Rand
}

const (
	// Limits of the duration of a session without a loss.
	leastSession, mostSession = 300 * time.Millisecond, 4 * time.Second
	// attachLimit and detachLimit are the limits of an attach and a detach.
	attachLimit, detachLimit = 30 * time.Second, 30 * time.Second
	// operationLimit is the limit of one operation; a longer one is a violation.
	operationLimit = 30 * time.Second
)

// run works until stop is closed, and leaves the slot empty.
func (w *worker) run(stop <-chan struct{}) {
	for !isClosed(stop) {
		began := time.Now()
		b := w.cluster.bind(w.slot)
		release := func() {}
		if w.awaitAttached(b, began) {
			release = w.session(b, stop)
		}
		w.cluster.unbind(w.slot)
		if !w.cluster.until(detachLimit, func() bool {
			h, x := w.cluster.observed(w.slot, b)
			return h == nil && x == nil
		}) {
			h, x := w.cluster.observed(w.slot, b)
			w.ledger.violate("slot %d: %v after the detach the host reports %v, the box %v", w.slot, detachLimit, h.GetState(), x.GetState())
		}
		release()
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// awaitAttached waits until the device is in the slot.
func (w *worker) awaitAttached(b *want, began time.Time) bool {
	var have, at *dxpuv1.ObservedBinding
	over := func(o *dxpuv1.ObservedBinding) bool { return o.GetState() == lost || o.GetState() == failed }
	settled := func() bool {
		have, at = w.cluster.observed(w.slot, b)
		return have.GetState() == attached || over(have) || over(at)
	}
	more := w.ledger.overtime()
	done := w.cluster.until(attachLimit, settled)
	for d := more(); !done && d > 0; d = more() {
		done = w.cluster.until(d, settled)
	}
	if done && have.GetState() == attached {
		return true
	}
	w.ledger.add(func(a *Account) { a.FailedAttaches++ })
	if !done {
		w.ledger.violate("slot %d: not attached after %v: the host reports %v (%s), the box %v (%s)",
			w.slot, attachLimit, have.GetState(), have.GetDetail(), at.GetState(), at.GetDetail())
		return false
	}
	w.ledger.lose(began, "slot %d: attach: %s", w.slot, w.ends(b))
	return false
}

// ends says what both ends report of a binding.
func (w *worker) ends(b *want) string {
	h, x := w.cluster.observed(w.slot, b)
	return fmt.Sprintf("the host reports %v (%s) and %d completion timeouts, %s; the box %v (%s), %s",
		h.GetState(), h.GetDetail(), h.GetCounters().GetCompletionTimeouts(), traffic(h), x.GetState(), x.GetDetail(), traffic(x))
}

// traffic says how the link of a binding is at one end.
func traffic(b *dxpuv1.ObservedBinding) string {
	c := b.GetCounters()
	out := fmt.Sprintf("%d TLPs sent and %d received, %d datagrams resent, round trip %v", c.GetTlpsSent(), c.GetTlpsReceived(), c.GetDatagramsRetransmitted(), time.Duration(c.GetRttNs()))
	for _, p := range b.GetPaths() {
		out += fmt.Sprintf(", path %d %v", p.Path, p.Health)
	}
	return out
}
