package cluster

import (
	"cmp"
	"slices"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// Stranded are the free resources of servers on which no pod of the list that asks for
// GPUs fits.
type Stranded struct {
	GPU         int64 // thousandths
	CPU, Memory int64
}

// smallest returns the pods with GPUs without those that ask for at least as much as
// another one: if any pod fits somewhere, one of these does.
func smallest(pods []Pod) []*Pod {
	byShape := map[shape]*Pod{}
	for i := range pods {
		if p := &pods[i]; p.GPUs > 0 {
			byShape[p.shape()] = p
		}
	}
	all := make([]*Pod, 0, len(byShape))
	for _, p := range byShape {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *Pod) int {
		return cmp.Or(cmp.Compare(a.GPUs, b.GPUs), cmp.Compare(a.MilliGPU, b.MilliGPU), cmp.Compare(a.MilliCPU, b.MilliCPU),
			cmp.Compare(a.MemoryMiB, b.MemoryMiB), cmp.Compare(a.Models, b.Models))
	})
	var out []*Pod
	for _, p := range all {
		needsMore := func(q *Pod) bool {
			return q.GPUs <= p.GPUs && q.MilliGPU <= p.MilliGPU && q.MilliCPU <= p.MilliCPU && q.MemoryMiB <= p.MemoryMiB && (q.Models == p.Models || accepted(q) == nil)
		}
		if !slices.ContainsFunc(out, needsMore) {
			out = append(out, p)
		}
	}
	return out
}

func (c *scheduler) stranded(pods []*Pod) (out Stranded) {
	for i := range c.servers {
		s := &c.servers[i]
		if !slices.ContainsFunc(pods, s.fits) {
			out.GPU += s.left
			out.CPU += s.cpu
			out.Memory += s.memory
		}
	}
	return out
}

func (c *pool) stranded(pods []*Pod) (out Stranded) {
	free := slices.DeleteFunc(slices.Clone(pods), func(p *Pod) bool { return !c.hasGPUs(p) })
	parts := c.partsOf()
	for i := range c.hosts.hosts {
		h := &c.hosts.hosts[i]
		fits := func(p *Pod) bool { return h.fits(p, c.opt.MaxPerHost) }
		onPart := func(p *Pod) bool {
			return p.shared() && h.fits(p, 0) && slices.ContainsFunc(parts[i], func(g *poolGPU) bool { return g.left >= p.MilliGPU && p.accepts(g.model) })
		}
		if !slices.ContainsFunc(free, fits) && !(len(parts[i]) > 0 && slices.ContainsFunc(pods, onPart)) {
			out.CPU += h.cpu
			out.Memory += h.memory
		}
	}
	onHost := slices.DeleteFunc(slices.Clone(pods), func(p *Pod) bool { return c.hosts.best(p, c.opt.MaxPerHost) < 0 })
	for i := range c.state {
		s := &c.state[i]
		if s.nfree > 0 && !slices.ContainsFunc(onHost, func(p *Pod) bool { return c.gives(s, p) }) {
			out.GPU += int64(s.nfree) * Milli
		}
	}
	out.GPU += c.strandedParts(pods) + c.strandedServed(pods)
	return out
}

// gives reports whether a free GPU of a box can be one of those of a pod, on whatever host.
func (c *pool) gives(s *boxState, p *Pod) bool {
	free := c.free[s.model]
	if c.inOneBox(p) {
		free = s.nfree
	}
	return s.nfree > 0 && free >= p.GPUs && p.accepts(s.model)
}

// inOneBox reports whether the GPUs of a pod are of one box in any case.
func (c *pool) inOneBox(p *Pod) bool {
	return p.GPUs > 1 && (c.opt.OneBox == placement.Required || c.opt.WorstFit && c.opt.OneBox != placement.Avoided)
}

// strandedParts returns what is left of shared GPUs and suffices for no pod.
func (c *pool) strandedParts(pods []*Pod) (out int64) {
	for _, step := range c.parts {
		for _, g := range step {
			fits := func(p *Pod) bool {
				if !p.shared() || g.left < p.MilliGPU || !p.accepts(g.model) {
					return false
				}
				return g.host < 0 && c.hosts.best(p, c.opt.MaxPerHost) >= 0 || g.host >= 0 && c.hosts.hosts[g.host].fits(p, 0)
			}
			if !slices.ContainsFunc(pods, fits) {
				out += g.left
			}
		}
	}
	return out
}

// hasGPUs reports whether the pool has GPUs for a pod, on whatever host.
func (c *pool) hasGPUs(p *Pod) bool {
	if p.shared() && c.opt.ManagerParts {
		_, ok := c.findPart(p)
		return ok
	}
	return slices.ContainsFunc(c.state, func(s boxState) bool { return c.gives(&s, p) }) ||
		p.shared() && c.opt.PartsAnywhere && !c.opt.WholeGPUs && c.parts.best(p, c.hosts.hosts) != nil
}

// partsOf returns the GPUs that each host shares already, if they are its own.
func (c *pool) partsOf() map[int][]*poolGPU {
	out := map[int][]*poolGPU{}
	if c.opt.WholeGPUs || c.opt.PartsAnywhere {
		return out
	}
	for _, step := range c.parts {
		for _, g := range step {
			out[g.host] = append(out[g.host], g)
		}
	}
	return out
}
