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
	// restriction is the taints. There are few different ones in a pool.
	restriction Restriction
}

func compareClasses(a, b sharedClass) int {
	return cmp.Or(cmp.Compare(a.model, b.model), cmp.Compare(a.memory, b.memory), cmp.Compare(a.share, b.share),
		cmp.Compare(a.restriction, b.restriction), cmp.Compare(a.kind, b.kind), cmp.Compare(a.paths, b.paths))
}

// state is what is left of a GPU, and the programs on it.
type state struct {
	room
	programs string // those whose interference may be known, encoded
}

// states has the GPUs of a class by state.
type states struct {
	rows []*stateRow // by compute, at most Whole + 1
	by   map[state]*stateGPUs
}

// stateRow has the states with some compute left, by the memory that is left.
type stateRow struct {
	compute uint32
	states  *btree.BTree[*stateGPUs]
}

// stateGPUs is the GPUs of one state, by rack, box and slot.
type stateGPUs struct {
	state
	beside []neighbour
	gpus   *btree.BTree[*sharedGPU]
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
	usable    bool        // healthy and not cordoned; otherwise it is here for its affinities alone
	affine    []partLabel // of its parts
	averse    []partLabel // their anti-affinities
}

func (g *sharedGPU) ref() Ref { return Ref{g.box.ID, g.gpu.Slot} }

func compareShared(a, b *sharedGPU) int {
	return cmp.Or(cmp.Compare(a.box.Rack, b.box.Rack), cmp.Compare(a.box.ID, b.box.ID), cmp.Compare(a.gpu.Slot, b.gpu.Slot))
}

func compareStates(a, b *stateGPUs) int {
	return cmp.Or(cmp.Compare(a.memory, b.memory), cmp.Compare(a.programs, b.programs))
}

// row returns where the row of some compute is, or belongs.
func (s *states) row(compute uint32) (int, bool) {
	return slices.BinarySearchFunc(s.rows, compute, func(r *stateRow, c uint32) int { return cmp.Compare(r.compute, c) })
}

func (s *states) add(in *stateGPUs) {
	s.by[in.state] = in
	at, ok := s.row(in.compute)
	if !ok {
		r := &stateRow{in.compute, btree.New(treeDegree, func(a, b *stateGPUs) bool { return compareStates(a, b) < 0 })}
		s.rows = slices.Insert(s.rows, at, r)
	}
	s.rows[at].states.ReplaceOrInsert(in)
}

func (s *states) remove(in *stateGPUs) {
	delete(s.by, in.state)
	at, _ := s.row(in.compute)
	if s.rows[at].states.Delete(in); s.rows[at].states.Len() == 0 {
		s.rows = slices.Delete(s.rows, at, at+1)
	}
}

func newShared() shared {
	return shared{
		boxes: map[string][]*sharedGPU{}, classes: map[partLabel]map[sharedClass]*states{},
		affine: map[partLabel]map[Ref]*sharedGPU{},
	}
}

// unsetShared removes a box from the index of shared GPUs.
func (p *Pool) unsetShared(box string) {
	for _, g := range p.shared.boxes[box] {
		p.shared.remove(g)
	}
	delete(p.shared.boxes, box)
}

// setShared adds a box to the index of shared GPUs, which does not have it.
func (p *Pool) setShared(b *Box) {
	if len(b.Parts) == 0 {
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
	if g.Whole || g.Modes == 0 {
		return nil
	}
	out := &sharedGPU{box: b, gpu: *g, usable: g.Usable}
	if g.Usable {
		out.slots = freePartSlots(b, g.Slot)
	}
	out.class = sharedClass{traits: traitsOf(b), model: g.Model, memory: g.Memory, restriction: g.Restriction}
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
		s = &states{by: map[state]*stateGPUs{}}
		of[g.class] = s
	}
	in := s.by[g.state]
	if in == nil {
		in = &stateGPUs{
			state: g.state, beside: g.state.neighbours(),
			gpus: btree.New(treeDegree, func(a, b *sharedGPU) bool { return compareShared(a, b) < 0 }),
		}
		s.add(in)
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
		s.remove(in)
	}
	if len(s.by) == 0 {
		delete(of, g.class)
	}
	if len(of) == 0 {
		delete(x.classes, g.exclusion)
	}
}
