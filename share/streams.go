package share

import "time"

// streams is the sharing of CUDA streams in one process: kernels of online clients go to
// streams of high priority, those of offline clients to streams of low priority, and
// the GPU's block scheduler does the rest. Nothing limits a client.
type streams struct {
	core[struct{}]
}

func newStreams(d Device, _ Settings) Policy { return &streams{core[struct{}]{device: d}} }

// Receive implements Policy.
func (p *streams) Receive(now time.Duration, e Event) { p.receive(now, &e) }

// Transmit implements Policy.
func (p *streams) Transmit(now time.Duration, out []Decision) []Decision {
	out = p.begin(now, out)
	for _, c := range p.clients {
		if c.ready() {
			out = p.permit(c, out, c.spec.Class == Online, 0)
		}
	}
	return out
}

// Wake implements Policy.
func (p *streams) Wake() time.Duration { return p.wake() }
