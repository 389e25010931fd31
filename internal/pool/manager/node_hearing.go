package manager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// A busy manager hears its nodes late: their reports wait in sockets, for the scheduler,
// and for the lock. Its clock does not: a timer goes before everything that waits. So the
// manager also sends itself a message by the same way, again and again. What nodes sent
// before a message that has come back was heard, and their silence is judged as of then.
// A manager with time to spare hears at once, and judges as of now.

// heardLocked returns the time up to which the manager has heard what nodes have sent.
func (m *Manager) heardLocked(now time.Time) time.Time {
	if m.echoed.IsZero() {
		return now
	}
	if at := m.echoed.Add(stallLimit); at.Before(now) {
		return at
	}
	return now
}

// deafLimit is the delay that the log mentions.
const deafLimit = time.Second

// measureHearing sends messages by Config.Echo until ctx ends.
func (m *Manager) measureHearing(ctx context.Context) {
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	late := false // the log has said so
	for ctx.Err() == nil {
		sent := m.cfg.Now()
		err := m.cfg.Echo(ctx)
		m.mu.Lock() // behind the reports that wait for it
		m.echoed = sent
		if err != nil {
			m.echoed = time.Time{}
		}
		delay := m.cfg.Now().Sub(sent)
		m.mu.Unlock()
		if err == nil {
			m.metrics.hearing.Observe(delay.Seconds())
		}
		switch {
		case ctx.Err() != nil:
		case err != nil:
			m.log.Warn("cannot measure how late this manager hears the nodes", "err", err)
			return
		case delay > deafLimit && !late:
			late = true
			m.log.Warn("this manager is too busy to hear the nodes in time: it does not count as silence of the nodes", "late", delay.Round(time.Millisecond))
		case delay < stallLimit:
			late = false
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	m.mu.Lock()
	m.echoed = time.Time{}
	m.mu.Unlock()
}

// Echo is a way from this process to itself through the kernel and Go's scheduler, as that
// of a report to the manager.
type Echo struct {
	out, in *os.File // of the caller
	running sync.WaitGroup
}

// echoTrips is the number of round trips of a message: a report wakes a few goroutines
// one after the other.
const echoTrips = 2

// NewEcho returns a way, which Close ends.
func NewEcho() (*Echo, error) {
	there, out, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	in, back, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("manager: %w", err), there.Close(), out.Close())
	}
	e := &Echo{out: out, in: in}
	e.running.Go(func() {
		defer func() { _ = errors.Join(there.Close(), back.Close()) }()
		b := make([]byte, 1)
		for {
			if _, err := there.Read(b); err != nil {
				return
			}
			if _, err := back.Write(b); err != nil {
				return
			}
		}
	})
	return e, nil
}

// Send sends a message and returns when it is back. It is for one caller at a time.
func (e *Echo) Send(context.Context) error {
	b := []byte{0}
	for range echoTrips {
		if _, err := e.out.Write(b); err != nil {
			return err
		}
		if _, err := e.in.Read(b); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the way.
func (e *Echo) Close() error {
	err := e.out.Close() // the other end reads its end
	e.running.Wait()
	return errors.Join(err, e.in.Close())
}
