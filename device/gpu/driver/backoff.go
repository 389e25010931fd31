package driver

import (
	"context"
	"time"
)

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
