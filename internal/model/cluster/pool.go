package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// PoolOptions say how GPUs are pooled. The nodes stay as hosts, with their processors
// and memory; their GPUs stand in boxes.
type PoolOptions struct {
	BoxSize int // GPUs of a box, all of one model; 0: 8
	// OneBox keeps the GPUs of a pod in one box: preferred as the manager does by
	// itself, required, or avoided (spread).
	OneBox placement.Preference
	// MaxPerHost bounds the GPUs of one host; 0: no bound.
	MaxPerHost int
	// WholeGPUs gives a whole GPU to a pod that asks for a fraction. Otherwise pods on
	// one host share the host's GPUs.
	WholeGPUs bool
}

// host is a node without its GPUs.
type host struct {
	cpu, memory int64
	gpus        int
	shared      []*poolGPU // GPUs that fractions use
}

// poolGPU is a GPU that pods of one host share.
type poolGPU struct {
	ref   placement.Ref
	model string
	left  int64
}

// pool places pods: hosts by best fit of processors, GPUs by the manager's package
// placement.
type pool struct {
	opt   PoolOptions
	hosts []host
	boxes *placement.Pool
	free  map[string]int // GPUs by model
	gpus  map[placement.Ref]placement.GPU
	used  map[*Pod][]poolUse
}

// poolUse is what one running pod has. A pod of the trace may run several times.
type poolUse struct {
	at    placed
	refs  []placement.Ref
	share *poolGPU
}

func newPool(nodes []Node, opt PoolOptions) *pool {
	if opt.BoxSize == 0 {
		opt.BoxSize = 8
	}
	p := &pool{
		opt: opt, hosts: make([]host, len(nodes)), boxes: placement.NewPool(), free: map[string]int{},
		gpus: map[placement.Ref]placement.GPU{}, used: map[*Pod][]poolUse{},
	}
	for i := range nodes {
		p.hosts[i] = host{cpu: nodes[i].MilliCPU, memory: nodes[i].MemoryMiB}
		p.free[nodes[i].Model] += nodes[i].GPUs
	}
	delete(p.free, "")
	if n := countUnnamed(nodes); n > 0 {
		p.free[unnamed] += n
	}
	box := 0
	for _, model := range sortedKeys(p.free) {
		for n := p.free[model]; n > 0; n -= opt.BoxSize {
			b := placement.Box{ID: fmt.Sprintf("box%05d", box), Kind: placement.PCIeSwitch}
			for slot := range min(n, opt.BoxSize) {
				g := placement.GPU{Slot: uint32(slot), Model: model, Usable: true, Free: true}
				b.GPUs = append(b.GPUs, g)
				p.gpus[placement.Ref{Box: b.ID, Slot: g.Slot}] = g
			}
			p.boxes.SetBox(b)
			box++
		}
	}
	return p
}

// unnamed is the model of GPUs whose model the trace does not tell.
const unnamed = "GPU"

func countUnnamed(nodes []Node) int {
	n := 0
	for i := range nodes {
		if nodes[i].Model == "" {
			n += nodes[i].GPUs
		}
	}
	return n
}

func sortedKeys(m map[string]int) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// place puts a pod on a host and gives it GPUs.
func (c *pool) place(p *Pod) (placed, bool) {
	use, ok := c.find(p)
	if !ok {
		return placed{}, false
	}
	h := &c.hosts[use.at.node]
	h.cpu -= p.MilliCPU
	h.memory -= p.MemoryMiB
	h.gpus += len(use.refs)
	for _, r := range use.refs {
		c.set(r, false)
	}
	if use.share != nil {
		if len(use.refs) > 0 {
			h.shared = append(h.shared, use.share)
		}
		use.share.left -= p.MilliGPU
		use.refs = nil
	}
	c.used[p] = append(c.used[p], use)
	return use.at, true
}

// find decides without changing anything.
func (c *pool) find(p *Pod) (poolUse, bool) {
	if p.shared() && !c.opt.WholeGPUs {
		if use, ok := c.findShared(p); ok {
			return use, true
		}
	}
	node := c.bestHost(p)
	if node < 0 {
		return poolUse{}, false
	}
	use := poolUse{at: placed{node: node}}
	if p.GPUs == 0 {
		return use, true
	}
	for _, model := range c.models(p) {
		d := c.boxes.Place(placement.Reserve{}, placement.Request{Count: p.GPUs, Model: model, SameBox: c.opt.OneBox})
		if d.OK() {
			use.refs = d.Picks
			if p.shared() && !c.opt.WholeGPUs {
				r := d.Picks[0]
				use.share = &poolGPU{ref: r, model: c.gpus[r].Model, left: Milli}
			}
			return use, true
		}
	}
	return poolUse{}, false
}

// models returns the models to ask for, in turn: "" lets the manager choose; of several
// names the one with the most free GPUs comes first, as the manager does.
func (c *pool) models(p *Pod) []string {
	if strings.Trim(p.Models, "|") == "" {
		return []string{""}
	}
	var out []string
	for m := range strings.SplitSeq(p.Models, "|") {
		if m != "" {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b string) int { return cmp.Or(cmp.Compare(c.free[b], c.free[a]), cmp.Compare(a, b)) })
	return out
}

// bestHost returns the host with the fewest processors left that suffice, or -1.
func (c *pool) bestHost(p *Pod) int {
	best := -1
	for i := range c.hosts {
		h := &c.hosts[i]
		if h.cpu < p.MilliCPU || h.memory < p.MemoryMiB || c.opt.MaxPerHost > 0 && p.GPUs > 0 && h.gpus+p.GPUs > c.opt.MaxPerHost {
			continue
		}
		if best < 0 || h.cpu < c.hosts[best].cpu {
			best = i
		}
	}
	return best
}

// findShared looks for room on a GPU that a host has already: the one with the least
// room that suffices, of these the host with the fewest processors left.
func (c *pool) findShared(p *Pod) (poolUse, bool) {
	var best poolUse
	for i := range c.hosts {
		h := &c.hosts[i]
		if h.cpu < p.MilliCPU || h.memory < p.MemoryMiB {
			continue
		}
		for _, g := range h.shared {
			if g.left < p.MilliGPU || !p.accepts(g.model) {
				continue
			}
			if best.share == nil || g.left < best.share.left || g.left == best.share.left && h.cpu < c.hosts[best.at.node].cpu {
				best = poolUse{at: placed{node: i}, share: g}
			}
		}
	}
	return best, best.share != nil
}

// set marks a GPU as free or bound.
func (c *pool) set(r placement.Ref, free bool) {
	g := c.gpus[r]
	g.Free = free
	c.boxes.SetGPU(r.Box, g)
	if free {
		c.free[g.Model]++
	} else {
		c.free[g.Model]--
	}
}

// remove ends one run of a pod.
func (c *pool) remove(p *Pod, at placed) {
	runs := c.used[p]
	i := slices.IndexFunc(runs, func(u poolUse) bool { return u.at == at })
	use := runs[i]
	c.used[p] = slices.Delete(runs, i, i+1)
	h := &c.hosts[at.node]
	h.cpu += p.MilliCPU
	h.memory += p.MemoryMiB
	if g := use.share; g != nil {
		if g.left += p.MilliGPU; g.left == Milli {
			h.shared = slices.DeleteFunc(h.shared, func(o *poolGPU) bool { return o == g })
			use.refs = []placement.Ref{g.ref}
		}
	}
	h.gpus -= len(use.refs)
	for _, r := range use.refs {
		c.set(r, true)
	}
}
