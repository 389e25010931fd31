package share

import "time"

// mps is NVIDIA's Multi-Process Service with static shares: a client gets at most its
// Limit of the multiprocessors (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE) from its start to
// its end, or to a resize, and kernels of all clients run side by side without priorities.
type mps struct {
	core[mpsClient]
}

type mpsClient struct{ told bool }

func newMPS(d Device, _ Settings) Policy { return &mps{core[mpsClient]{device: d}} }

// Receive implements Policy.
func (p *mps) Receive(now time.Duration, e Event) {
	if c := p.receive(now, &e); c != nil && e.Kind == Resized {
		c.state.told = false
	}
}

// Transmit implements Policy.
func (p *mps) Transmit(now time.Duration, out []Decision) []Decision {
	out = p.begin(now, out)
	for _, c := range p.clients {
		if !c.state.told {
			c.state.told = true
			out = append(out, Decision{Kind: SetShare, Client: c.id, Share: c.spec.Limit})
		}
		if c.ready() {
			out = p.permit(c, out, false, 0)
		}
	}
	return out
}

// Wake implements Policy.
func (p *mps) Wake() time.Duration { return p.wake() }
