package soak

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
)

// session is the use of one attached device, by concurrent lanes.
type session struct {
	*worker
	want  *want
	bus   driver.Bus
	user  user
	ended atomic.Bool // by a reported loss
	// alive is when the last operation that the device took part in began: the session, if
	// none did.
	alive atomic.Pointer[time.Time]
}

// user drives one kind of device.
type user interface {
	// lanes returns the functions that use the device until over returns true.
	lanes() []func(r *rand.Rand, over func() bool)
	interrupts() uint64
	close() error
}

// session uses the device until a random time is over or stop is closed. The caller calls
// release when the device is detached.
func (w *worker) session(b *want, stop <-chan struct{}) (release func()) {
	began := time.Now()
	w.ledger.add(func(a *Account) { a.Sessions++ })
	length := between(w.rand, leastSession, mostSession)
	s := &session{worker: w, want: b}
	s.alive.Store(&began)
	if err := s.open(); err != nil {
		w.ledger.add(func(a *Account) { a.LostSessions++ })
		w.ledger.lose(began, "slot %d: open the device: %v: %s", w.slot, err, w.ends(b))
		return func() {}
	}
	over := func() bool { return s.ended.Load() || isClosed(stop) || time.Since(began) > length }
	var lanes sync.WaitGroup
	for i, lane := range s.user.lanes() {
		r := rand.New(rand.NewPCG(w.rand.Uint64(), uint64(i)))
		lanes.Go(func() { lane(r, over) })
	}
	lanes.Wait()
	w.peers.leave(w.slot)
	if !s.ended.Load() {
		s.balance()
	}
	w.ledger.add(func(a *Account) {
		a.Interrupts += s.user.interrupts()
		if s.ended.Load() {
			a.LostSessions++
		}
	})
	if s.ended.Load() && w.cluster.slots[w.slot].on == 0 {
		// The device may still write: the embedded host has no IOMMU, and would give the memory to others.
		return s.close
	}
	if err := errors.Join(s.user.close(), s.bus.Close()); err != nil && !s.ended.Load() {
		w.ledger.lose(began, "slot %d: close the device: %v: %s", w.slot, err, w.ends(b))
	}
	return func() {}
}

func (s *session) close() { _ = errors.Join(s.user.close(), s.bus.Close()) } // the device is gone

// open opens the device with its driver.
func (s *session) open() error {
	ctx, cancel := context.WithTimeout(context.Background(), operationLimit)
	defer cancel()
	var err error
	if s.bus, err = s.cluster.open(ctx, s.slot); err != nil {
		return err
	}
	if s.cluster.slots[s.slot].server {
		s.user, err = openServer(s)
	} else {
		s.user, err = openGPU(ctx, s)
	}
	if err != nil {
		return errors.Join(err, s.bus.Close())
	}
	return nil
}

// balance compares the counters of both ends of the link: all that one end has sent
// must have arrived at the other, because the lanes have ended.
func (s *session) balance() {
	b := s.want
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
		// A lane may have waited for another slot while this one was lost.
		s.ended.Store(true)
		s.ledger.lose(*s.alive.Load(), "slot %d: %s", s.slot, s.ends(b))
	default:
		s.ledger.add(func(a *Account) { a.BalancedSessions++ })
	}
}
