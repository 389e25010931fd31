package cluster

import (
	"cmp"
	"fmt"
	"math/bits"
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
	// WorstFit takes the boxes with the most free GPUs, instead of the manager's best fit.
	WorstFit bool
	// BlindToModels takes the box that fits best, whatever the model of its GPUs, for
	// pods that accept any. The manager takes the model with the most free GPUs.
	BlindToModels bool
	// MaxPerHost bounds the GPUs of one host; 0: no bound.
	MaxPerHost int
	// WholeGPUs gives a whole GPU to a pod that asks for a fraction. Otherwise pods
	// share GPUs: those of one host, or with PartsAnywhere of all hosts.
	WholeGPUs, PartsAnywhere bool
	// ManagerParts gives fractions as parts that the manager's placement chooses. Each part
	// is a device of its own, which any host can have.
	ManagerParts bool
	// HostsKept is the share of the nodes that stay as hosts, evenly over the list; 0: all.
	HostsKept float64
}

// pool places pods: hosts by best fit of processors, GPUs by the manager's package
// placement.
type pool struct {
	opt    PoolOptions
	hosts  *hostIndex
	boxes  *placement.Pool
	free   map[string]int // GPUs by model
	models []string       // sorted
	state  []boxState     // by boxNumber
	parts  partIndex
	served map[string]*placement.Box // of ManagerParts: the boxes with their parts that have changed
	uses   []poolUse                 // of running pods, and unused ones
	unused []int32
	slots  []uint32 // a buffer of setIn
	asked  []string // a buffer of modelsFor
}

// boxState is a box and which of its GPUs are free.
type boxState struct {
	id    string
	model string
	free  uint64 // bit mask
	size  int
	nfree int
	box   placement.Handle
}

// poolUse is what one running pod has. It takes one line of memory: a large pool has many.
type poolUse struct {
	gpus  boxGPUs
	more  []boxGPUs // of other boxes
	share *poolGPU
	part  *poolPart
	node  int // the host
}

// poolPart is a part that the manager's placement chose, and its slot.
type poolPart struct {
	ref  placement.Ref
	part *placement.Part
}

// boxGPUs are GPUs of a box. They take less memory than their Refs: a large pool has many.
type boxGPUs struct {
	box   int32
	slots uint64 // bit mask
}

// maxBoxSize is the number of bits of boxState.free.
const maxBoxSize = 64

func boxName(number int) string { return fmt.Sprintf("box%06d", number) }

// boxNumber is the inverse of boxName.
func boxNumber(id string) (n int) {
	for _, c := range []byte(id[len("box"):]) {
		n = 10*n + int(c-'0')
	}
	return n
}

func (c *pool) boxOf(id string) *boxState { return &c.state[boxNumber(id)] }

// take records which GPUs the pod has.
func (u *poolUse) take(refs []placement.Ref) {
	for i, r := range refs {
		if i > 0 && r.Box != refs[i-1].Box {
			u.more = append(u.more, u.gpus)
			u.gpus = boxGPUs{}
		}
		u.gpus.box = int32(boxNumber(r.Box))
		u.gpus.slots |= 1 << r.Slot
	}
}

// count returns the number of GPUs.
func (u *poolUse) count() int {
	n := bits.OnesCount64(u.gpus.slots)
	for _, g := range u.more {
		n += bits.OnesCount64(g.slots)
	}
	return n
}

func newPool(nodes []Node, opt PoolOptions) *pool {
	return newPoolOf(keptHosts(nodes, opt.HostsKept), nodes, opt, nil)
}

// newPoolFor makes a pool that knows the jobs to come.
func newPoolFor(pods []Pod, hosts, nodes []Node, opt PoolOptions, goOn progress) *pool {
	// Without jobs that ask for parts, the slots of parts would only take time.
	opt.ManagerParts = opt.ManagerParts && slices.ContainsFunc(pods, func(p Pod) bool { return p.shared() })
	p := newPoolOf(hosts, nodes, opt, goOn)
	p.setTypical(pods)
	return p
}

// newPoolOf makes a pool of hosts without their GPUs, and of the GPUs of other nodes. It has
// no more boxes from the moment when it shall not go on.
func newPoolOf(hosts, nodes []Node, opt PoolOptions, goOn progress) *pool {
	opt.BoxSize = cmp.Or(opt.BoxSize, defaultBoxSize)
	p := &pool{opt: opt, hosts: newHostIndex(hosts), boxes: placement.NewPool(), served: map[string]*placement.Box{}}
	p.free = gpusByModel(nodes)
	p.models = sortedKeys(p.free)
	boxes := countBoxes(nodes, opt)
	for _, model := range p.models {
		for n := p.free[model]; n > 0; n -= opt.BoxSize {
			if len(p.state)%checkEvery == 0 && !goOn.on(len(p.state), boxes) {
				return p
			}
			s := boxState{id: boxName(len(p.state)), model: model, size: min(n, opt.BoxSize)}
			s.free, s.nfree = 1<<s.size-1, s.size
			p.boxes.SetBox(p.newBox(&s))
			s.box = p.boxes.Handle(s.id)
			p.state = append(p.state, s)
		}
	}
	return p
}

// newBox returns a box whose GPUs are all free.
func (c *pool) newBox(s *boxState) placement.Box {
	b := placement.Box{ID: s.id, Kind: placement.PCIeSwitch}
	for slot := range s.size {
		b.GPUs = append(b.GPUs, placement.GPU{Slot: uint32(slot), Model: s.model, Usable: true, Free: true})
		c.addPartSlots(&b, slot)
	}
	return b
}

// defaultBoxSize is the number of GPUs of a box.
const defaultBoxSize = 8

func gpusByModel(nodes []Node) map[string]int {
	out := map[string]int{}
	for i := range nodes {
		out[cmp.Or(nodes[i].Model, unnamed)] += nodes[i].GPUs
	}
	return out
}

// countBoxes returns how many boxes the GPUs of the nodes fill.
func countBoxes(nodes []Node, opt PoolOptions) (out int) {
	size := cmp.Or(opt.BoxSize, defaultBoxSize)
	for _, n := range gpusByModel(nodes) {
		out += (n + size - 1) / size
	}
	return out
}

// keptHosts returns a share of the nodes, evenly over the list.
func keptHosts(nodes []Node, share float64) []Node {
	if share <= 0 || share >= 1 {
		return nodes
	}
	var out []Node
	for i := range nodes {
		if keptOf(i+1, share) > keptOf(i, share) {
			out = append(out, nodes[i])
		}
	}
	return out
}

// keptOf returns how many of the first n nodes stay. 29 % of 100 are 29, though the product
// is a little less.
func keptOf(n int, share float64) int { return int(float64(n)*share + 1e-9) }

// unnamed is the model of GPUs whose model the trace does not tell.
const unnamed = "GPU"

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
	gpus := use.count()
	if use.part != nil {
		c.setPart(use.part.ref, use.part.part)
		gpus = 1 // each part has a slot of its own in its host
	} else {
		c.set(&use, false)
	}
	if g := use.share; g != nil {
		if gpus == 0 {
			c.parts.remove(g)
		}
		g.left -= p.MilliGPU
		g.pods++
		c.parts.add(g)
		use.gpus = boxGPUs{}
		if g.host < 0 {
			gpus = 1
		}
	}
	c.hosts.change(use.node, -p.MilliCPU, -p.MemoryMiB, gpus)
	return placed{node: use.node, use: c.keep(use)}, true
}

// keep stores the use and returns its number.
func (c *pool) keep(u poolUse) int32 {
	if n := len(c.unused); n > 0 {
		i := c.unused[n-1]
		c.unused = c.unused[:n-1]
		c.uses[i] = u
		return i
	}
	c.uses = append(c.uses, u)
	return int32(len(c.uses) - 1)
}

// find decides without changing anything.
func (c *pool) find(p *Pod) (poolUse, bool) {
	if p.shared() && c.opt.ManagerParts {
		return c.findPart(p)
	}
	parts := p.shared() && !c.opt.WholeGPUs
	if parts {
		if g := c.parts.best(p, c.hosts.hosts); g != nil && g.host >= 0 {
			return poolUse{node: g.host, share: g}, true
		} else if g != nil {
			node := c.hosts.best(p, c.opt.MaxPerHost)
			return poolUse{node: node, share: g}, node >= 0
		}
	}
	node := c.hosts.best(p, c.opt.MaxPerHost)
	if node < 0 {
		return poolUse{}, false
	}
	use := poolUse{node: node}
	if p.GPUs == 0 {
		return use, true
	}
	refs := c.choose(p)
	if len(refs) > 0 && parts {
		r := refs[0]
		use.share = &poolGPU{ref: r, model: c.boxOf(r.Box).model, host: node, left: Milli}
		if c.opt.PartsAnywhere {
			use.share.host = -1
		}
	}
	use.take(refs)
	return use, len(refs) > 0
}

// choose returns free GPUs for a pod, nil if there are not enough.
func (c *pool) choose(p *Pod) []placement.Ref {
	if c.opt.BlindToModels && accepted(p) == nil {
		return c.chooseBlind(p)
	}
	for _, model := range c.modelsFor(p) {
		if refs := c.chooseOf(p, model); len(refs) > 0 {
			return refs
		}
	}
	return nil
}

// chooseOf asks for GPUs of a model; "" lets the manager choose.
func (c *pool) chooseOf(p *Pod, model string) []placement.Ref {
	req := placement.Request{Count: p.GPUs, Model: model, SameBox: c.opt.OneBox, Silent: true}
	if c.opt.WorstFit {
		if c.inOneBox(p) {
			return c.emptiest(p.GPUs, model)
		}
		req.SameBox = placement.Avoided // which takes the emptiest box first
	}
	d := c.boxes.Place(placement.Reserve{}, req)
	return d.Picks
}

// emptiest returns n GPUs of the box with the most free ones.
func (c *pool) emptiest(n int, model string) []placement.Ref {
	var best *boxState
	for i := range c.state {
		s := &c.state[i]
		if s.nfree >= n && (model == "" || s.model == model) && (best == nil || s.nfree > best.nfree) {
			best = s
		}
	}
	if best == nil {
		return nil
	}
	var out []placement.Ref
	for slot := 0; len(out) < n; slot++ {
		if best.free&(1<<slot) != 0 {
			out = append(out, placement.Ref{Box: best.id, Slot: uint32(slot)})
		}
	}
	return out
}

// chooseBlind returns the GPUs of the model whose box fits best.
func (c *pool) chooseBlind(p *Pod) (best []placement.Ref) {
	for _, model := range c.models {
		refs := c.chooseOf(p, model)
		if len(refs) > 0 && (best == nil || c.boxOf(refs[0].Box).nfree < c.boxOf(best[0].Box).nfree) {
			best = refs
		}
	}
	return best
}

// accepted returns the models that a pod accepts, nil for any.
func accepted(p *Pod) []string { return appendAccepted(nil, p) }

func appendAccepted(out []string, p *Pod) []string {
	for m := range strings.SplitSeq(p.Models, "|") {
		if m != "" {
			out = append(out, m)
		}
	}
	return out
}

// modelsFor returns the models to ask for, in turn: "" lets the manager choose; of several
// names the one with the most free GPUs comes first, as the manager does.
func (c *pool) modelsFor(p *Pod) []string {
	c.asked = appendAccepted(c.asked[:0], p)
	out := c.asked
	if len(out) == 0 {
		return anyModel
	}
	slices.SortFunc(out, func(a, b string) int { return cmp.Or(cmp.Compare(c.free[b], c.free[a]), cmp.Compare(a, b)) })
	return out
}

var anyModel = []string{""}

// set marks the GPUs of a pod as free or bound.
func (c *pool) set(u *poolUse, free bool) {
	if u.gpus.slots != 0 {
		c.setIn(u.gpus, free)
	}
	for _, g := range u.more {
		c.setIn(g, free)
	}
}

// setIn marks GPUs of one box.
func (c *pool) setIn(g boxGPUs, free bool) {
	s := &c.state[g.box]
	c.slots = c.slots[:0]
	for rest := g.slots; rest != 0; rest &= rest - 1 {
		c.slots = append(c.slots, uint32(bits.TrailingZeros64(rest)))
	}
	n := len(c.slots)
	if !free {
		n = -n
	}
	s.free ^= g.slots
	s.nfree += n
	c.free[s.model] += n
	if !c.opt.ManagerParts {
		c.boxes.SetFreeIn(s.box, c.slots, free)
		return
	}
	for _, slot := range c.slots {
		c.setServed(placement.Ref{Box: s.id, Slot: slot}, free)
	}
}

// remove ends one run of a pod.
func (c *pool) remove(p *Pod, at placed) {
	use := c.uses[at.use]
	c.uses[at.use] = poolUse{}
	c.unused = append(c.unused, at.use)
	if g := use.share; g != nil {
		c.parts.remove(g)
		g.left += p.MilliGPU
		if g.pods--; g.pods == 0 {
			use.take([]placement.Ref{g.ref})
		} else {
			c.parts.add(g)
		}
	}
	gpus := use.count()
	if use.part != nil || use.share != nil && use.share.host < 0 {
		gpus = 1
	}
	c.hosts.change(at.node, p.MilliCPU, p.MemoryMiB, -gpus)
	if use.part != nil {
		c.setPart(use.part.ref, nil)
		return
	}
	c.set(&use, true)
}
