package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
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
	slot    int
	rand    *rand.Rand
}

func newWorker(c *cluster, l *ledger, slot int, random *rand.Rand) *worker {
	return &worker{cluster: c, ledger: l, slot: slot, rand: random}
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
		if w.awaitAttached(b, began) {
			w.session(b, stop)
		}
		w.cluster.unbind(w.slot)
		if !w.cluster.until(detachLimit, func() bool {
			h, x := w.cluster.observed(w.slot, b)
			return h == nil && x == nil
		}) {
			h, x := w.cluster.observed(w.slot, b)
			w.ledger.violate("slot %d: %v after the detach the host reports %v, the box %v", w.slot, detachLimit, h.GetState(), x.GetState())
		}
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
	done := w.cluster.until(attachLimit, func() bool {
		have, at = w.cluster.observed(w.slot, b)
		return have.GetState() == attached || over(have) || over(at)
	})
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
	return fmt.Sprintf("the host reports %v (%s) and %d completion timeouts, the box %v (%s)",
		h.GetState(), h.GetDetail(), h.GetCounters().GetCompletionTimeouts(), x.GetState(), x.GetDetail())
}

// session is the use of one attached device. Two lanes use it concurrently: one
// copies, the other writes and reads registers.
type session struct {
	*worker
	want   *want
	dev    *driver.Device
	gpu    *sequence
	ended  atomic.Bool // by a reported loss
	writes uint64      // numbered ones so far
}

// session uses the device until a random time is over or stop is closed.
func (w *worker) session(b *want, stop <-chan struct{}) {
	began := time.Now()
	w.ledger.add(func(a *Account) { a.Sessions++ })
	length := between(w.rand, leastSession, mostSession)
	copies, accesses := rand.New(rand.NewPCG(w.rand.Uint64(), 1)), rand.New(rand.NewPCG(w.rand.Uint64(), 2))
	s := &session{worker: w, want: b}
	ctx, cancel := context.WithTimeout(context.Background(), operationLimit)
	defer cancel()
	bus, g, err := w.cluster.device(ctx, w.slot)
	if err == nil {
		s.gpu = g
		if s.dev, err = driver.Open(ctx, bus, driver.Options{}); err != nil {
			err = errors.Join(err, bus.Close())
		}
	}
	if err != nil {
		w.ledger.add(func(a *Account) { a.LostSessions++ })
		w.ledger.lose(began, "slot %d: open the device: %v: %s", w.slot, err, w.ends(b))
		return
	}
	over := func() bool { return s.ended.Load() || isClosed(stop) || time.Since(began) > length }
	var lanes sync.WaitGroup
	lanes.Go(func() { s.copyLane(copies, over) })
	lanes.Go(func() { s.accessLane(accesses, over) })
	lanes.Wait()
	if !s.ended.Load() {
		s.balance()
	}
	arrived, _ := s.dev.Interrupts()
	w.ledger.add(func(a *Account) {
		a.Interrupts += arrived
		if s.ended.Load() {
			a.LostSessions++
		}
	})
	if err := errors.Join(s.dev.Close(), bus.Close()); err != nil && !s.ended.Load() {
		w.ledger.lose(began, "slot %d: close the device: %v: %s", w.slot, err, w.ends(b))
	}
}

// balance compares the counters of both ends of the link: all that one end has sent
// must have arrived at the other, because the lanes have ended.
func (s *session) balance() {
	b, began := s.want, time.Now()
	var host, box *dxpuv1.Counters
	even := s.cluster.until(operationLimit, func() bool {
		h, x := s.cluster.observed(s.slot, b)
		host, box = h.GetCounters(), x.GetCounters()
		return h.GetState() != attached || x.GetState() != attached ||
			host.GetTlpsSent() == box.GetTlpsReceived() && host.GetTlpsReceived() == box.GetTlpsSent() &&
				host.GetBytesSent() == box.GetBytesReceived() && host.GetBytesReceived() == box.GetBytesSent()
	})
	h, x := s.cluster.observed(s.slot, b)
	switch {
	case !even:
		s.ledger.violate("slot %d: the host has sent %d TLPs and received %d, the box has received %d and sent %d", s.slot,
			host.GetTlpsSent(), host.GetTlpsReceived(), box.GetTlpsReceived(), box.GetTlpsSent())
	case h.GetState() != attached || x.GetState() != attached:
		s.ended.Store(true)
		s.ledger.lose(began, "slot %d: %s", s.slot, s.ends(b))
	default:
		s.ledger.add(func(a *Account) { a.BalancedSessions++ })
	}
}
