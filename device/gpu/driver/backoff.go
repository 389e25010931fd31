package driver

import (
	"context"
	"runtime"
	"time"
)

// backoff paces polling: it spins a little for what takes microseconds, then
// sleeps longer and longer up to a millisecond.
type backoff struct{ n int }

const (
	spins    = 64
	minSleep = 10 * time.Microsecond
	maxSleep = time.Millisecond
)

// pause waits a moment, or returns the reason why ctx ended.
func (b *backoff) pause(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	b.n++
	if b.n < spins {
		runtime.Gosched()
		return nil
	}
	d := min(minSleep<<min(b.n-spins, 10), maxSleep)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
