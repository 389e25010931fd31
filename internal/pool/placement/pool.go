package placement

import (
	"cmp"
	"maps"
	"slices"
)

// Pool is an index over boxes, kept up to date change by change: by model, kind
// of box and number of free GPUs (paper, section 5.2: "grouped and indexed in
// advance"). Its decisions are those of Place, in a time that depends on what is
// asked and not on the size of the pool. It is not safe for concurrent use.
type Pool struct {
	boxes  map[string]*Box
	models map[string]*modelIndex
	clock  uint64 // decisions so far
}

// modelIndex is what the pool has of one model.
type modelIndex struct {
	name     string
	boxes    map[string]*Box // those with a GPU of it, usable or not
	memories []memory        // sizes of the usable ones, rising
	// views has the one of all GPUs first, then some for requests that ask for
	// more memory than some GPUs of the model have.
	views []*view
}

// memory counts the usable GPUs of a model that have so many bytes.
type memory struct {
	size uint64
	n    int
}

// maxViews bounds the indexes that are kept for one model, and with them the
// price of a change. A model has one memory size, as a rule, and one view.
const maxViews = 5

// NewPool returns an empty pool.
func NewPool() *Pool {
	return &Pool{boxes: map[string]*Box{}, models: map[string]*modelIndex{}}
}

// Models returns the models of all GPUs, usable or not, in order.
func (p *Pool) Models() []string { return slices.Sorted(maps.Keys(p.models)) }

// SetBox adds a box with all of its GPUs, or puts it in the place of the one of
// that ID. Slots are distinct. The pool keeps a copy.
func (p *Pool) SetBox(b Box) {
	b.GPUs = slices.SortedFunc(slices.Values(b.GPUs), compareSlots)
	if b.Kind > NVLink {
		b.Kind = AnyKind
	}
	p.replace(p.boxes[b.ID], &b)
}

// RemoveBox takes a box and its GPUs out. An unknown ID changes nothing.
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
	b := *old
	if there {
		b.GPUs = slices.Clone(old.GPUs)
		b.GPUs[at] = g
	} else {
		b.GPUs = slices.Insert(slices.Clone(old.GPUs), at, g)
	}
	p.replace(old, &b)
}

func compareSlots(a, b GPU) int { return cmp.Compare(a.Slot, b.Slot) }

// replace puts one state of a box in the place of another; either may be nil.
func (p *Pool) replace(old, b *Box) {
	if old != nil {
		delete(p.boxes, old.ID)
		for i := range old.GPUs {
			p.models[old.GPUs[i].Model].count(&old.GPUs[i], -1)
		}
	}
	if b != nil {
		p.boxes[b.ID] = b
		for i := range b.GPUs {
			p.model(b.GPUs[i].Model).count(&b.GPUs[i], 1)
		}
		for _, m := range modelsIn(b) {
			p.models[m].set(b)
		}
	}
	if old != nil {
		for _, m := range modelsIn(old) {
			if b == nil || !hasModel(b, m) {
				p.leave(m, old.ID)
			}
		}
	}
}

// leave takes a box out of the index of a model, and the model out of the pool
// when it was its last one.
func (p *Pool) leave(name, box string) {
	m := p.models[name]
	delete(m.boxes, box)
	for _, v := range m.views {
		v.remove(box)
	}
	if len(m.boxes) == 0 {
		delete(p.models, name)
	}
}

func (p *Pool) model(name string) *modelIndex {
	m := p.models[name]
	if m == nil {
		m = &modelIndex{name: name, boxes: map[string]*Box{}, views: []*view{newView(name, 0)}}
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

func hasModel(b *Box, model string) bool {
	return slices.ContainsFunc(b.GPUs, func(g GPU) bool { return g.Model == model })
}

func (m *modelIndex) set(b *Box) {
	m.boxes[b.ID] = b
	for _, v := range m.views {
		v.set(b)
	}
}

// count keeps account of the memory sizes.
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
}

// view returns the index of the GPUs with so much memory, nil where there are none.
func (m *modelIndex) view(least, now uint64) *view {
	at, _ := slices.BinarySearchFunc(m.memories, least, func(have memory, size uint64) int { return cmp.Compare(have.size, size) })
	if at == len(m.memories) {
		return nil
	}
	floor := m.memories[at].size
	if at == 0 {
		floor = 0
	}
	for _, v := range m.views {
		if v.floor == floor {
			v.used = now
			return v
		}
	}
	return m.newView(floor, now)
}

// newView indexes the GPUs with so much memory, once for all such requests, in
// the place of the view that was not used for longest if there are too many.
func (m *modelIndex) newView(floor, now uint64) *view {
	v := newView(m.name, floor)
	v.used = now
	for _, id := range slices.Sorted(maps.Keys(m.boxes)) {
		v.set(m.boxes[id])
	}
	if len(m.views) < maxViews {
		m.views = append(m.views, v)
		return v
	}
	oldest := 1
	for i := range m.views[1:] {
		if m.views[1+i].used < m.views[oldest].used {
			oldest = 1 + i
		}
	}
	m.views[oldest] = v
	return v
}
