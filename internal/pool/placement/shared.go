package placement

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/third_party/forked/golang/btree"
)

// shared is the index of the GPUs that parts share and that have room for more.
type shared struct {
	boxes map[string][]*sharedGPU
	all   *btree.BTree[*sharedGPU] // by name, with those that have no room
	// classes are those of GPUs without exclusion, and of each exclusion.
	classes map[partLabel]map[sharedClass]*plane
	affine  map[partLabel]*btree.BTree[*sharedGPU] // the GPUs with parts of an affinity
}

// sharedClass is what all GPUs of a plane have in common.
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

// sharedGPU is a GPU with at least one part.
type sharedGPU struct {
	box       *Box
	gpu       GPU
	exclusion partLabel
	class     sharedClass
	state     state
	beside    []neighbour // the programs of the state
	parts     int
	slots     []uint32    // free ones
	usable    bool        // healthy and not cordoned; otherwise it is here for its affinities alone
	affine    []partLabel // of its parts
	averse    []partLabel // their anti-affinities
	changes   bool        // it has parts of two kinds, of which one awaits that the other leaves
	row       uint32      // in the table of its plane
}

func (g *sharedGPU) ref() Ref { return Ref{g.box.ID, g.gpu.Slot} }

func compareShared(a, b *sharedGPU) int {
	if d := cmp.Compare(a.box.Rack, b.box.Rack); d != 0 {
		return d
	}
	return cmp.Or(cmp.Compare(a.box.ID, b.box.ID), cmp.Compare(a.gpu.Slot, b.gpu.Slot))
}

func newShared() shared {
	return shared{
		boxes: map[string][]*sharedGPU{}, classes: map[partLabel]map[sharedClass]*plane{},
		all: newSharedTree(), affine: map[partLabel]*btree.BTree[*sharedGPU]{},
	}
}

func newSharedTree() *btree.BTree[*sharedGPU] {
	return btree.New(treeDegree, func(a, b *sharedGPU) bool { return compareShared(a, b) < 0 })
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
	if g.Whole {
		return nil
	}
	out := &sharedGPU{box: b, gpu: *g, usable: g.Usable}
	if g.Usable && g.Modes != 0 {
		out.slots = freePartSlots(b, g.Slot)
	}
	out.class = sharedClass{traits: traitsOf(b), model: g.Model, memory: g.Memory, restriction: g.Restriction}
	var programs []string
	for i := range b.Parts {
		s := &b.Parts[i]
		if !s.Taken || s.GPU != g.Slot {
			continue
		}
		exclusion := s.Part.label(s.Part.Exclusion)
		if out.parts > 0 && (out.class.share != s.Part.Share || out.exclusion != exclusion) {
			// A part is awaited that suits only what follows those that leave. Until they have
			// left, another one would suit one kind and not the other.
			out.slots, out.changes = nil, true
		}
		out.parts++
		out.class.share, out.exclusion = s.Part.Share, exclusion
		if l := s.Part.Affinity; l != "" {
			out.affine = append(out.affine, s.Part.label(l))
		}
		if l := s.Part.label(s.Part.AntiAffinity); l.label != "" && !slices.Contains(out.averse, l) {
			out.averse = append(out.averse, l)
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
	out.beside = out.state.neighbours()
	return out
}

// neighbours decodes the programs of a state.
func (s state) neighbours() (out []neighbour) {
	if s.programs == "" {
		return nil
	}
	for part := range strings.SplitSeq(s.programs, "\x00") {
		compute, workload, ok := strings.Cut(part, " ")
		if n, err := strconv.ParseUint(compute, 10, 32); ok && err == nil {
			out = append(out, neighbour{workload, uint32(n)})
		}
	}
	return out
}

func (x *shared) add(g *sharedGPU) {
	x.all.ReplaceOrInsert(g)
	x.label(g)
	if len(g.slots) == 0 {
		return
	}
	of := x.classes[g.exclusion]
	if of == nil {
		of = map[sharedClass]*plane{}
		x.classes[g.exclusion] = of
	}
	p := of[g.class]
	if p == nil {
		p = newPlane()
		p.racks, p.averse = map[string]*plane{}, map[partLabel]*averse{}
		of[g.class] = p
	}
	p.add(g)
}

// label adds a GPU to those with its affinities.
func (x *shared) label(g *sharedGPU) {
	for _, l := range g.affine {
		if x.affine[l] == nil {
			x.affine[l] = newSharedTree()
		}
		x.affine[l].ReplaceOrInsert(g)
	}
}

func (x *shared) remove(g *sharedGPU) {
	x.all.Delete(g)
	for _, l := range g.affine {
		if of := x.affine[l]; of != nil {
			if of.Delete(g); of.Len() == 0 {
				delete(x.affine, l)
			}
		}
	}
	if len(g.slots) == 0 {
		return
	}
	of := x.classes[g.exclusion]
	if of[g.class].remove(g); of[g.class].gpus.Len() == 0 {
		delete(of, g.class)
	}
	if len(of) == 0 {
		delete(x.classes, g.exclusion)
	}
}
