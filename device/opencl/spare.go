package opencl

import "github.com/dxpu-project/dxpu/device/gpu/reg"

// A box starts the process of the next tenant in advance, with its context: a platform takes
// a second and more to load. Such a spare has the memory of the next tenant, which renew
// has exchanged, and no tenant's packet has come to it.

// noContext is the number of the context of a spare. Those of others start at 1.
const noContext = 0

// spare returns the process that waits for a tenant, or nil. The caller holds mu.
func (e *engine) spare() *process {
	if p := e.process; p != nil && p.context == noContext && !p.killed && !p.reaped {
		return p
	}
	return nil
}

// adopt gives the spare to a new context. The caller holds mu.
func (e *engine) adopt(p *process) {
	p.context = e.context
	if p.ready {
		e.state = reg.ComputeReady
	}
}

// next returns the number of the context for which a process is to start, if any. The
// caller holds mu.
func (e *engine) next() (number uint64, needed bool) {
	number, needed = e.context, e.wanted
	if !needed && e.wantSpare {
		number, needed = noContext, true
	}
	e.wantSpare = false // one that ends by itself has no successor until Scrub
	return number, needed
}

// dropSpare ends the spare, and the one that is being started.
func (e *engine) dropSpare() {
	e.wantSpare = false
	if p := e.spare(); p != nil {
		p.end()
	}
}

// shut ends all processes, now and later.
func (e *engine) shut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.change(false, reg.ComputeOff)
	e.dropSpare()
}
