package placement

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/third_party/forked/golang/btree"
)

// shared is the index of the GPUs that parts share and that have room for more. GPUs of
// one class and one state are alike for a request without rules, so one of them stands
// for all. There are as many states as there are different remainders of GPUs.
type shared struct {
	boxes map[string][]*sharedGPU
	// classes are those of GPUs without exclusion, and of each exclusion.
	classes map[partLabel]map[sharedClass]*states
	affine  map[partLabel]map[Ref]*sharedGPU // the GPUs with parts of an affinity
}

// sharedClass is what all GPUs of some states have in common.
type sharedClass struct {
	traits
	model  string
	memory uint64 // of the whole GPU
	share  ShareMode
}

// state is what is left of a GPU, and the programs on it.
type state struct {
	room
	programs string // those whose interference may be known, encoded
}

// states has the GPUs of a class by state, the tightest first.
type states struct {
	order *btree.BTree[*stateGPUs]
	by    map[state]*stateGPUs
}

// stateGPUs is the GPUs of one state, by rack, box and slot.
type stateGPUs struct {
	state
	tightness uint32 // thousandths of memory and compute that are left
	beside    []neighbour
	gpus      *btree.BTree[*sharedGPU]
}

// sharedGPU is a GPU with at least one part.
type sharedGPU struct {
	box       *Box
	gpu       GPU
	exclusion partLabel
	class     sharedClass
	state     state
	parts     int
	slots     []uint32    // free ones
	affine    []partLabel // of its parts
	averse    []partLabel // their anti-affinities
}

func (g *sharedGPU) ref() Ref { return Ref{g.box.ID, g.gpu.Slot} }

func compareShared(a, b *sharedGPU) int {
	return cmp.Or(cmp.Compare(a.box.Rack, b.box.Rack), cmp.Compare(a.box.ID, b.box.ID), cmp.Compare(a.gpu.Slot, b.gpu.Slot))
}

func compareStates(a, b *stateGPUs) int {
	return cmp.Or(cmp.Compare(a.tightness, b.tightness), cmp.Compare(a.compute, b.compute), cmp.Compare(a.memory, b.memory), cmp.Compare(a.programs, b.programs))
}

func newShared() shared {
	return shared{
		boxes: map[string][]*sharedGPU{}, classes: map[partLabel]map[sharedClass]*states{},
		affine: map[partLabel]map[Ref]*sharedGPU{},
	}
}

// setShared replaces a box in the index of shared GPUs; either may be nil.
func (p *Pool) setShared(old, b *Box) {
	if old != nil {
		for _, g := range p.shared.boxes[old.ID] {
			p.shared.remove(g)
		}
		delete(p.shared.boxes, old.ID)
	}
	if b == nil || len(b.Parts) == 0 {
		return
	}
	for i := range b.GPUs {
		if g := p.sharedGPU(b, &b.GPUs[i]); g != nil {
			p.shared.boxes[b.ID] = append(p.shared.boxes[b.ID], g)
			p.shared.add(g)
		}
	}
}

// sharedGPU returns the entry of a GPU, nil if no part is on it.
func (p *Pool) sharedGPU(b *Box, g *GPU) *sharedGPU {
	if !g.Usable || g.Whole || g.Modes == 0 {
		return nil
	}
	out := &sharedGPU{box: b, gpu: *g, slots: freePartSlots(b, g.Slot)}
	out.class = sharedClass{traits: traitsOf(b), model: g.Model, memory: g.Memory}
	var programs []string
	for i := range b.Parts {
		s := &b.Parts[i]
		if !s.Taken || s.GPU != g.Slot {
			continue
		}
		out.parts++
		out.class.share = s.Part.Share
		if s.Part.Exclusion != "" {
			out.exclusion = s.Part.label(s.Part.Exclusion)
		}
		if l := s.Part.Affinity; l != "" {
			out.affine = append(out.affine, s.Part.label(l))
		}
		if l := s.Part.AntiAffinity; l != "" {
			out.averse = append(out.averse, s.Part.label(l))
		}
		if w := s.Part.Workload; w != "" && len(p.interference) > 0 {
			programs = append(programs, strconv.FormatUint(uint64(s.Part.Compute), 10)+" "+w)
		}
	}
	if out.parts == 0 {
		return nil
	}
	slices.Sort(programs)
	out.state = state{roomOf(g, b.Parts), strings.Join(programs, "\x00")}
	return out
}

// neighbours decodes the programs of a state.
func (s state) neighbours() (out []neighbour) {
	for part := range strings.SplitSeq(s.programs, "\x00") {
		compute, workload, ok := strings.Cut(part, " ")
		if n, err := strconv.ParseUint(compute, 10, 32); ok && err == nil {
			out = append(out, neighbour{workload, uint32(n)})
		}
	}
	return out
}

func (x *shared) add(g *sharedGPU) {
	x.label(g)
	if len(g.slots) == 0 {
		return
	}
	of := x.classes[g.exclusion]
	if of == nil {
		of = map[sharedClass]*states{}
		x.classes[g.exclusion] = of
	}
	s := of[g.class]
	if s == nil {
		s = &states{order: btree.New(treeDegree, func(a, b *stateGPUs) bool { return compareStates(a, b) < 0 }), by: map[state]*stateGPUs{}}
		of[g.class] = s
	}
	in := s.by[g.state]
	if in == nil {
		in = &stateGPUs{
			state: g.state, tightness: g.state.compute + permille(g.state.memory, g.class.memory), beside: g.state.neighbours(),
			gpus: btree.New(treeDegree, func(a, b *sharedGPU) bool { return compareShared(a, b) < 0 }),
		}
		s.by[g.state] = in
		s.order.ReplaceOrInsert(in)
	}
	in.gpus.ReplaceOrInsert(g)
}

// label adds a GPU to those with its affinities.
func (x *shared) label(g *sharedGPU) {
	for _, l := range g.affine {
		if x.affine[l] == nil {
			x.affine[l] = map[Ref]*sharedGPU{}
		}
		x.affine[l][g.ref()] = g
	}
}

func (x *shared) remove(g *sharedGPU) {
	for _, l := range g.affine {
		if delete(x.affine[l], g.ref()); len(x.affine[l]) == 0 {
			delete(x.affine, l)
		}
	}
	if len(g.slots) == 0 {
		return
	}
	of := x.classes[g.exclusion]
	s := of[g.class]
	in := s.by[g.state]
	if in.gpus.Delete(g); in.gpus.Len() == 0 {
		s.order.Delete(in)
		delete(s.by, g.state)
	}
	if len(s.by) == 0 {
		delete(of, g.class)
	}
	if len(of) == 0 {
		delete(x.classes, g.exclusion)
	}
}
