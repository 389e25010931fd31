package placement

import (
	"cmp"
	"maps"
	"slices"
)

// Pool is an index of boxes by model, kind of box and number of free GPUs. It
// decides as Place does, in a time that depends on the request and not on the
// size of the pool. It is not safe for concurrent use.
type Pool struct {
	boxes     map[string]*indexedBox
	models    map[string]*modelIndex
	decisions uint64  // number of calls of Place
	ranked    []model // a buffer of placeGPUs
	request   Request // of the current decision
	lookup    lookup  // of the current model
	spots     spots   // a buffer of the search for parts

	shared       shared // the GPUs that parts share
	labels       labelIndex
	alikes       alikes
	typical      []Typical
	losses       map[lossKey]*loss // of typical, by kind of GPU
	interference Interference
}

// indexedBox is a box with what the views have of it. A large pool does not fit into the
// processor's caches, so binding and freeing GPUs takes one look-up and few records.
type indexedBox struct {
	Box
	// flips is Box.flips. Then model is the only one of the box, and in has what the
	// model's views have of the box, nil for nothing. The bits of free are the indexes of
	// the free GPUs, dense is set if the indexes are the slots, and restricted if a GPU has a
	// restriction: most changes need no look at the GPUs, which take many lines of memory.
	flips, dense, restricted bool
	removed                  bool   // handles may still have it
	labelled                 string // labelsKey of its labels
	alike                    int    // the record in Pool.alikes of all of its GPUs, -1 if they have several
	free                     uint64
	model                    *modelIndex
	in                       [maxViews]*viewBox
	first                    viewBox // in[0], beside the box
}

// modelIndex is what a Pool has of one model.
type modelIndex struct {
	name     string
	boxes    map[string]*indexedBox // boxes with a GPU of the model, usable or not
	memories []memory               // memory sizes of the usable GPUs, ascending
	// restrictions counts the usable GPUs that have taints.
	restrictions map[Restriction]counts
	// views[0] has all GPUs, the others those with more memory than the smallest, or
	// with taints that some request tolerates.
	views []*view
}

// memory is the number of usable GPUs of a model with one memory size.
type memory struct {
	size uint64 // bytes
	n    int
}

// maxViews bounds the views of one model, and so the cost of a change. Usually a
// model has one memory size and no taints, and one view.
const maxViews = 8

// NewPool returns an empty pool.
func NewPool() *Pool {
	return &Pool{boxes: map[string]*indexedBox{}, models: map[string]*modelIndex{}, shared: newShared(), labels: labelIndex{with: map[label]*labelled{}}, losses: map[lossKey]*loss{}}
}

// Models returns the names of all models in the pool, sorted.
func (p *Pool) Models() []string { return slices.Sorted(maps.Keys(p.models)) }

// Usable returns the number of usable GPUs, free or not, by model.
func (p *Pool) Usable() map[string]int {
	out := make(map[string]int, len(p.models))
	for name, m := range p.models {
		for _, of := range m.memories {
			out[name] += of.n
		}
	}
	return out
}

// SetBox adds a box with all of its GPUs, or replaces the box with that ID. The
// slots must differ. The pool keeps a copy.
func (p *Pool) SetBox(b Box) {
	b.GPUs, b.Parts = slices.Clone(b.GPUs), slices.Clone(b.Parts)
	slices.SortFunc(b.GPUs, compareSlots)
	slices.SortStableFunc(b.Parts, func(a, b PartSlot) int { return cmp.Compare(a.Slot, b.Slot) })
	p.update(p.boxes[b.ID], &b)
}

// update replaces one state of a box by another, in place if only the free GPUs differ.
func (p *Pool) update(old *indexedBox, b *Box) {
	if old == nil || !old.flips || !old.sameButFree(b) {
		p.replace(old, b)
		return
	}
	p.flip(old, old.free^b.freeMask())
}

// RemoveBox removes a box and its GPUs. An unknown ID changes nothing.
func (p *Pool) RemoveBox(id string) {
	p.replace(p.boxes[id], nil)
}

// SetGPU adds or replaces the GPU in one slot of a box. An unknown box changes nothing.
func (p *Pool) SetGPU(box string, g GPU) {
	old := p.boxes[box]
	if old == nil {
		return
	}
	at, there := slices.BinarySearchFunc(old.GPUs, g, compareSlots)
	if there && old.GPUs[at] == g {
		return
	}
	b := old.Box
	if there {
		b.GPUs = slices.Clone(old.GPUs)
		b.GPUs[at] = g
	} else {
		b.GPUs = slices.Insert(slices.Clone(old.GPUs), at, g)
	}
	p.update(old, &b)
}

// SetParts replaces the parts of a box. An unknown box changes nothing. The GPUs of the
// box say themselves whether they are free.
func (p *Pool) SetParts(box string, parts []PartSlot) {
	if old := p.boxes[box]; old != nil {
		b := old.Box
		b.Parts = parts
		p.SetBox(b)
	}
}

func compareSlots(a, b GPU) int { return cmp.Compare(a.Slot, b.Slot) }

// replace replaces one state of a box by another; either may be nil.
func (p *Pool) replace(at *indexedBox, b *Box) {
	var before []string
	if at != nil {
		before = p.takeOut(at)
		*at = indexedBox{removed: b == nil}
	}
	if b != nil {
		if at == nil {
			at = &indexedBox{}
		}
		at.Box = *b
		at.setMasks()
		p.putIn(at)
	}
	for _, name := range before {
		if len(p.models[name].boxes) == 0 {
			delete(p.models, name)
		}
	}
}

// takeOut takes a box out of the index and returns its models, some of which may have no
// box now.
func (p *Pool) takeOut(b *indexedBox) []string {
	delete(p.boxes, b.ID)
	p.labels.leave(b)
	p.unsetShared(b.ID)
	for i := range b.GPUs {
		p.models[b.GPUs[i].Model].count(&b.GPUs[i], -1)
	}
	p.alikes.leave(b)
	models := modelsIn(&b.Box)
	for _, name := range models {
		p.models[name].remove(b.ID)
	}
	return models
}

// putIn puts a box into the index.
func (p *Pool) putIn(b *indexedBox) {
	p.boxes[b.ID] = b
	p.labels.enter(b)
	for i := range b.GPUs {
		p.model(b.GPUs[i].Model).count(&b.GPUs[i], 1)
	}
	p.alikes.enter(b)
	for _, name := range modelsIn(&b.Box) {
		p.models[name].set(b)
	}
	p.setShared(&b.Box)
}

// remove removes a box.
func (m *modelIndex) remove(box string) {
	delete(m.boxes, box)
	for _, v := range m.views {
		v.remove(box)
	}
}

func (p *Pool) model(name string) *modelIndex {
	m := p.models[name]
	if m == nil {
		m = &modelIndex{name: name, boxes: map[string]*indexedBox{}, restrictions: map[Restriction]counts{}, views: []*view{newView(name, 0, restrictionSet{all: true}, allGPUs)}}
		p.models[name] = m
	}
	return m
}

// modelsIn returns the models of a box, each once.
func modelsIn(b *Box) []string {
	var out []string
	for i := range b.GPUs {
		if m := b.GPUs[i].Model; !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	return out
}

func (m *modelIndex) set(b *indexedBox) {
	m.boxes[b.ID] = b
	if b.flips {
		b.model = m
	}
	for i := range m.views {
		m.setIn(i, b)
	}
}

// setIn sets a box in one of the views.
func (m *modelIndex) setIn(view int, b *indexedBox) {
	in := &b.first
	if !b.flips || view > 0 {
		in = &viewBox{}
	}
	if !m.views[view].set(&b.Box, in) {
		in = nil
	}
	if b.flips {
		b.in[view] = in
	}
}

// count adds n, 1 or -1, to the number of usable GPUs with this GPU's memory size.
func (m *modelIndex) count(g *GPU, n int) {
	if !g.Usable {
		return
	}
	at, there := slices.BinarySearchFunc(m.memories, g.Memory, func(have memory, size uint64) int { return cmp.Compare(have.size, size) })
	if !there {
		m.memories = slices.Insert(m.memories, at, memory{size: g.Memory})
	}
	if m.memories[at].n += n; m.memories[at].n == 0 {
		m.memories = slices.Delete(m.memories, at, at+1)
	}
	if g.Restriction == "" {
		return
	}
	c := m.restrictions[g.Restriction]
	c.usable += n
	if g.Free {
		c.free += n
	}
	if m.restrictions[g.Restriction] = c; c.usable == 0 {
		delete(m.restrictions, g.Restriction)
	}
}

// view returns the view of the GPUs that have enough memory and whose taints a request
// tolerates, or nil if none has the memory. decision is the number of the current call of
// Place.
func (m *modelIndex) view(req *Request, decision uint64) *view {
	at, _ := slices.BinarySearchFunc(m.memories, req.MinMemory, func(have memory, size uint64) int { return cmp.Compare(have.size, size) })
	if at == len(m.memories) {
		return nil
	}
	smallest := m.memories[at].size
	if at == 0 {
		smallest = 0
	}
	tolerated := m.toleratedSet(req)
	for _, v := range m.views {
		if v.minMemory == smallest && v.contains.key == tolerated.key && v.division == req.division() {
			v.lastUsed = decision
			return v
		}
	}
	return m.addView(smallest, tolerated, req.division(), decision)
}

// addView builds a view. If there are too many, it replaces the least recently used.
func (m *modelIndex) addView(minMemory uint64, tolerated restrictionSet, of division, decision uint64) *view {
	v := newView(m.name, minMemory, tolerated, of)
	v.lastUsed = decision
	at := len(m.views)
	if at < maxViews {
		m.views = append(m.views, v)
	} else {
		oldest := slices.MinFunc(m.views[1:], func(a, b *view) int { return cmp.Compare(a.lastUsed, b.lastUsed) })
		at = slices.Index(m.views, oldest)
		m.views[at] = v
	}
	for _, id := range slices.Sorted(maps.Keys(m.boxes)) {
		m.setIn(at, m.boxes[id])
	}
	return v
}
