package agent

import (
	"sync"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Desired holds the desired state of a proxy and wakes the controllers of its
// slots. It is the part of Handler that both proxies share, for embedding. The zero
// value has no bindings.
type Desired struct {
	mu      sync.Mutex // guards the fields below
	state   *dxpuv1.DesiredState
	wake    []func()
	changed func()
}

// OnWake registers a function that Apply calls, in Apply's goroutine, for a new
// snapshot. Call OnWake before the proxy runs.
func (d *Desired) OnWake(f func()) { d.wake = append(d.wake, f) }

// OnChange registers the function that Changed calls. Call OnChange before the
// proxy runs.
func (d *Desired) OnChange(f func()) { d.changed = f }

// Changed reports that Observe now returns another state.
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

// Wanted returns the desired binding of a slot, nil for none, and the desired
// state.
func (d *Desired) Wanted(slot int) (*dxpuv1.DesiredBinding, *dxpuv1.DesiredState) {
	d.mu.Lock()
	state := d.state
	d.mu.Unlock()
	return Wanted(state, slot), state
}
