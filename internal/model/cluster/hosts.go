package cluster

import (
	"cmp"
	"slices"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// host is a node without its GPUs.
type host struct {
	hostState
	class *hostClass
}

// hostState is what decides whether a pod can run on a host. Hosts of equal state are alike.
type hostState struct {
	cpu, memory int64
	gpus        int // bound to it
}

// hostClass has the hosts of one state. low is a heap of their numbers, smallest first;
// it may hold numbers that have left, and some twice.
type hostClass struct {
	hostState
	n   int
	low []int32
}

// hostIndex finds the host with the fewest processors left that suffice, of equals the first.
type hostIndex struct {
	hosts   []host
	classes map[hostState]*hostClass
	// byCPU has the classes by their free processors, in steps of width.
	byCPU [][]*hostClass
	width int64
}

// cpuSteps is how many steps of free processors a hostIndex tells apart.
const cpuSteps = 512

func newHostIndex(nodes []Node) *hostIndex {
	x := &hostIndex{hosts: make([]host, len(nodes)), classes: map[hostState]*hostClass{}, width: 1}
	for i := range nodes {
		x.width = max(x.width, nodes[i].MilliCPU/cpuSteps+1)
	}
	x.byCPU = make([][]*hostClass, cpuSteps+1)
	for i := range nodes {
		x.hosts[i].hostState = hostState{cpu: nodes[i].MilliCPU, memory: nodes[i].MemoryMiB}
		x.enter(i)
	}
	return x
}

// enter puts a host into the class of its state.
func (x *hostIndex) enter(i int) {
	h := &x.hosts[i]
	c := x.classes[h.hostState]
	if c == nil {
		c = &hostClass{hostState: h.hostState}
		x.classes[h.hostState] = c
		step := &x.byCPU[h.cpu/x.width]
		*step = append(*step, c)
	}
	h.class = c
	c.n++
	c.push(int32(i))
	if len(c.low) > 4*c.n+64 {
		c.low = slices.DeleteFunc(c.low, func(k int32) bool { return x.hosts[k].class != c })
		slices.Sort(c.low)
		c.low = slices.Compact(c.low) // a sorted list is a heap
	}
}

func (x *hostIndex) leave(i int) {
	c := x.hosts[i].class
	x.hosts[i].class = nil
	if c.n--; c.n > 0 {
		return
	}
	delete(x.classes, c.hostState)
	step := &x.byCPU[c.cpu/x.width]
	k := slices.Index(*step, c)
	(*step)[k] = (*step)[len(*step)-1]
	*step = (*step)[:len(*step)-1]
}

// change adds to what is free on a host, and to the number of GPUs bound to it.
func (x *hostIndex) change(i int, cpu, memory int64, gpus int) {
	x.leave(i)
	h := &x.hosts[i]
	h.cpu, h.memory, h.gpus = h.cpu+cpu, h.memory+memory, h.gpus+gpus
	x.enter(i)
}

// best returns the host for a pod, or -1. most bounds the GPUs of one host; 0: no bound.
func (x *hostIndex) best(p *Pod, most int) int {
	if p.MilliCPU/x.width >= int64(len(x.byCPU)) {
		return -1
	}
	for _, step := range x.byCPU[p.MilliCPU/x.width:] {
		best, cpu := -1, int64(0)
		for _, c := range step {
			if !c.fits(p, most) || best >= 0 && c.cpu > cpu {
				continue
			}
			if i := c.first(x.hosts); best < 0 || c.cpu < cpu || i < best {
				best, cpu = i, c.cpu
			}
		}
		if best >= 0 {
			return best
		}
	}
	return -1
}

func (s *hostState) fits(p *Pod, most int) bool {
	return s.cpu >= p.MilliCPU && s.memory >= p.MemoryMiB && (most == 0 || p.GPUs == 0 || s.gpus+p.GPUs <= most)
}

// first returns the host with the smallest number.
func (c *hostClass) first(hosts []host) int {
	for hosts[c.low[0]].class != c {
		c.pop()
	}
	return int(c.low[0])
}

func (c *hostClass) push(k int32) {
	c.low = append(c.low, k)
	for i := len(c.low) - 1; i > 0 && c.low[i] < c.low[(i-1)/2]; i = (i - 1) / 2 {
		c.low[i], c.low[(i-1)/2] = c.low[(i-1)/2], c.low[i]
	}
}

func (c *hostClass) pop() {
	last := len(c.low) - 1
	c.low[0] = c.low[last]
	c.low = c.low[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child+1 < last && c.low[child+1] < c.low[child] {
			child++
		}
		if child >= last || c.low[i] <= c.low[child] {
			return
		}
		c.low[i], c.low[child] = c.low[child], c.low[i]
		i = child
	}
}

// poolGPU is a GPU that fractions use, of one host or of any.
type poolGPU struct {
	ref   placement.Ref
	model string
	host  int // -1: any
	left  int64
	pods  int
	at    int // place in its step of partIndex
}

// partIndex has the shared GPUs by what is left of them.
type partIndex [Milli + 1][]*poolGPU

func (x *partIndex) add(g *poolGPU) {
	g.at = len(x[g.left])
	x[g.left] = append(x[g.left], g)
}

func (x *partIndex) remove(g *poolGPU) {
	step := &x[g.left]
	last := (*step)[len(*step)-1]
	(*step)[g.at], last.at = last, g.at
	*step = (*step)[:len(*step)-1]
}

// best returns the GPU with the least room that suffices, of these the one whose host
// has the fewest processors left; nil: there is none.
func (x *partIndex) best(p *Pod, hosts []host) *poolGPU {
	for left := p.MilliGPU; left < Milli; left++ {
		var best *poolGPU
		for _, g := range x[left] {
			if !p.accepts(g.model) {
				continue
			}
			if g.host >= 0 && (hosts[g.host].cpu < p.MilliCPU || hosts[g.host].memory < p.MemoryMiB) {
				continue
			}
			if best == nil || compareParts(g, best, hosts) < 0 {
				best = g
			}
		}
		if best != nil {
			return best
		}
	}
	return nil
}

func compareParts(a, b *poolGPU, hosts []host) int {
	if a.host >= 0 && b.host >= 0 {
		if d := cmp.Or(cmp.Compare(hosts[a.host].cpu, hosts[b.host].cpu), cmp.Compare(a.host, b.host)); d != 0 {
			return d
		}
	}
	return cmp.Or(cmp.Compare(a.ref.Box, b.ref.Box), cmp.Compare(a.ref.Slot, b.ref.Slot))
}
