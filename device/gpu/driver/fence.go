package driver

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Fence submits a fence and returns it. Wait for it returns when all earlier commands
// are done.
func (s *Stream) Fence(ctx context.Context) (Fence, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.roomLocked(ctx); err != nil {
		return 0, err
	}
	f := s.writeFenceLocked()
	s.ringLocked()
	return f, nil
}

// Sync waits until all submitted commands are done.
func (s *Stream) Sync(ctx context.Context) error {
	f, err := s.Fence(ctx)
	if err != nil {
		return err
	}
	return s.Wait(ctx, f)
}

// Done reports whether the fence is reached. It accesses only host memory.
func (s *Stream) Done(f Fence) bool { return s.Reached() >= f }

// Reached returns the newest fence that the device has reached. It accesses
// only host memory.
func (s *Stream) Reached() Fence { return Fence(s.status.Load64(fenceWord)) }

// Wait waits until the device reaches the fence, by interrupt if the bus has them. It
// returns a *QueueError when the queue halted, ErrDeviceLost, ErrClosed when the
// stream was closed, or the cause of ctx. After an error, call Reset or Close before
// you free memory that commands before the fence use.
func (s *Stream) Wait(ctx context.Context, f Fence) error {
	if s.dev.info.Vectors == 0 {
		return s.poll(ctx, f)
	}
	for {
		done, err := s.look(f)
		if done || err != nil {
			return err
		}
		select {
		case s.waiter <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("driver: queue %d: wait for a fence: %w", s.queue, context.Cause(ctx))
		}
		err = s.waitInterrupt(ctx, f)
		<-s.waiter
		if err != nil {
			return err
		}
	}
}

// waitInterrupt waits for the queue's interrupt. It returns nil when the caller should
// check the fence again.
func (s *Stream) waitInterrupt(ctx context.Context, f Fence) error {
	// The previous holder of the token may have received the interrupt of this fence.
	if done, err := s.look(f); done || err != nil {
		return err
	}
	n, err := s.dev.bus.WaitInterrupt(ctx, s.queue, heartbeat)
	s.dev.arrived.Add(n)
	switch {
	case n > 0:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("driver: queue %d: wait for a fence: %w", s.queue, context.Cause(ctx))
	case errors.Is(err, ErrDeviceLost):
		return s.dev.markLost()
	case err != nil:
		return err
	}
	if err := s.dev.Alive(); err != nil {
		return err
	}
	if !s.Done(f) {
		return nil
	}
	// The interrupt follows the fence and may still arrive.
	n, _ = s.dev.bus.WaitInterrupt(ctx, s.queue, heartbeat) // look reports an error
	s.dev.arrived.Add(n)
	if n == 0 {
		s.dev.missed.Add(1)
	}
	return nil
}

// collectInterrupts waits for the interrupts of fences that no caller had to wait for, at
// most a heartbeat.
func (s *Stream) collectInterrupts(ctx context.Context) error {
	s.waiter <- struct{}{}
	defer func() { <-s.waiter }()
	n, err := s.dev.bus.WaitInterrupt(ctx, s.queue, heartbeat)
	s.dev.arrived.Add(n)
	return err
}

func (s *Stream) poll(ctx context.Context, f Fence) error {
	b := backoff{bus: s.dev.bus}
	for i := 1; ; i++ {
		done, err := s.look(f)
		if done || err != nil {
			return err
		}
		// Host memory does not show whether the device still exists.
		if i%(4*spins) == 0 {
			if err := s.dev.Alive(); err != nil {
				return err
			}
		}
		if err := b.pause(ctx); err != nil {
			return fmt.Errorf("driver: queue %d: wait for a fence: %w", s.queue, err)
		}
	}
}

// look checks the fence word and the status block once.
func (s *Stream) look(f Fence) (done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, fmt.Errorf("driver: stream: %w", ErrClosed)
	}
	if uint64(f) > s.droppedAfter && uint64(f) <= s.droppedTo {
		return false, fmt.Errorf("driver: queue %d: fence %d: %w", s.queue, f, ErrDropped)
	}
	if s.Done(f) {
		return true, nil
	}
	if err := s.usableLocked(); err != nil {
		return false, err
	}
	return false, nil
}

// backoff paces polling: it first yields, for work that takes microseconds, and then
// sleeps with doubling intervals up to a millisecond.
type backoff struct {
	bus Bus
	n   int
}

const (
	spins    = 64
	minSleep = 10 * time.Microsecond
	maxSleep = time.Millisecond
)

// pause waits for the next poll. It returns the cause when ctx ends.
func (b *backoff) pause(ctx context.Context) error {
	b.n++
	if b.n < spins {
		return b.bus.Sleep(ctx, 0)
	}
	return b.bus.Sleep(ctx, min(minSleep<<min(b.n-spins, 10), maxSleep))
}
