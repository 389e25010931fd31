package netio

import (
	"context"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
)

var _ engine.Driver = (*Fabric)(nil)

// NewGroup implements engine.Driver.
func (f *Fabric) NewGroup() engine.GroupDriver { return f.newGroup() }

// WallTime implements engine.Driver.
func (f *Fabric) WallTime() time.Time { return time.Now() }

// AfterFunc implements engine.Driver.
func (f *Fabric) AfterFunc(d time.Duration, do func()) engine.Timer { return time.AfterFunc(d, do) }

// Compute implements engine.Driver: run takes the time that it takes. One
// computation runs per processor, and the others wait in the order of their last
// part, so a long one does not hold up those of other tenants.
func (f *Fabric) Compute(run func() (more bool), _ time.Duration, done func()) {
	go func() {
		for more := true; more; {
			f.compute <- struct{}{}
			more = run()
			<-f.compute
		}
		done()
	}()
}

// NewSignal implements engine.Driver.
func (f *Fabric) NewSignal() engine.Signal { return make(signal, 1) }

// signal holds one token while it is set.
type signal chan struct{}

// Set implements engine.Signal.
func (s signal) Set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Wait implements engine.Signal.
func (s signal) Wait(ctx context.Context, timeout time.Duration) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-s:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}
