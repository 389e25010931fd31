package agent

import (
	"sync"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Desired keeps what the manager wants of a proxy and wakes the controllers of
// its slots: the half of Handler that proxies have in common. Embed it. The
// zero value wants nothing.
type Desired struct {
	mu      sync.Mutex // guards what follows
	state   *dxpuv1.DesiredState
	wake    []func()
	changed func()
}

// OnWake registers what Apply calls, in its own goroutine, when there is
// something new. Call it before the proxy runs.
func (d *Desired) OnWake(f func()) { d.wake = append(d.wake, f) }

// OnChange registers who is told that Observe has news. Call it before the
// proxy runs.
func (d *Desired) OnChange(f func()) { d.changed = f }

// Changed says that Observe has news.
func (d *Desired) Changed() {
	if d.changed != nil {
		d.changed()
	}
}

// Apply implements Handler.
func (d *Desired) Apply(state *dxpuv1.DesiredState) {
	d.mu.Lock()
	d.state = state
	d.mu.Unlock()
	for _, f := range d.wake {
		f()
	}
}

// Wanted returns what the manager wants in a slot, nil for nothing, and all
// that it wants.
func (d *Desired) Wanted(slot int) (*dxpuv1.DesiredBinding, *dxpuv1.DesiredState) {
	d.mu.Lock()
	state := d.state
	d.mu.Unlock()
	return Wanted(state, slot), state
}
