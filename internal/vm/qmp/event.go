package qmp

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// ErrOverflow is returned by [Subscription.Next] when events came faster than they were taken.
var ErrOverflow = errors.New("qmp: subscription overflow")

// queueLimit bounds the events that wait in one subscription. A guest that reboots and loses
// all devices at once makes some hundreds.
const queueLimit = 4096

// A Subscription collects events, in the order in which QEMU sent them, from the moment
// it is made.
type Subscription struct {
	c     *Client
	names []string
	wake  chan struct{} // of capacity one: an event or the end has arrived

	// Guarded by c.mu.
	queue    []Event
	overflow bool
}

// Subscribe begins to collect the events with these names, or all events if there are none.
// The caller closes it.
func (c *Client) Subscribe(names ...string) *Subscription {
	s := &Subscription{c: c, names: names, wake: make(chan struct{}, 1)}
	c.mu.Lock()
	c.subs[s] = struct{}{}
	c.mu.Unlock()
	return s
}

// Next waits for the next event. After the end of the connection it still returns the
// earlier events. Only one goroutine may wait at a time.
func (s *Subscription) Next(ctx context.Context) (Event, error) {
	for {
		ended := false
		select {
		case <-s.c.done:
			ended = true // no event is added after this, so one look suffices
		default:
		}
		if e, ok, err := s.pop(); ok || err != nil {
			return e, err
		}
		if ended {
			return Event{}, fmt.Errorf("qmp: event: %w", s.c.cause())
		}
		select {
		case <-s.wake:
		case <-s.c.done:
		case <-ctx.Done():
			return Event{}, fmt.Errorf("qmp: event: %w", context.Cause(ctx))
		}
	}
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.c.mu.Lock()
	delete(s.c.subs, s)
	s.c.mu.Unlock()
}

func (s *Subscription) pop() (Event, bool, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if len(s.queue) > 0 {
		e := s.queue[0]
		s.queue = s.queue[1:]
		return e, true, nil
	}
	if s.overflow {
		return Event{}, false, ErrOverflow
	}
	return Event{}, false, nil
}

func (s *Subscription) offerLocked(e Event) {
	if len(s.names) > 0 && !slices.Contains(s.names, e.Name) {
		return
	}
	if len(s.queue) >= queueLimit {
		s.overflow = true
	}
	if s.overflow {
		return // a gap breaks the order of events
	}
	s.queue = append(s.queue, e)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
