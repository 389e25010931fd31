package placement

import (
	"maps"
	"slices"

	"pgregory.net/rapid"
)

// reference is an inventory as lists and as indexes, which must decide alike.
type reference struct {
	boxes map[string]Box
	pool  *Pool
	// handles are those of the boxes, taken when each came; gone is of a removed box.
	handles map[string]Handle
	gone    Handle
	hosts   map[string]Host
	index   *Hosts
}

func newReference() *reference {
	return &reference{boxes: map[string]Box{}, pool: NewPool(), handles: map[string]Handle{}, hosts: map[string]Host{}, index: NewHosts()}
}

// all returns the boxes and the hosts.
func (m *reference) all() ([]Box, []Host) {
	return slices.Collect(maps.Values(m.boxes)), slices.Collect(maps.Values(m.hosts))
}

// actions adds the changes of an inventory to the actions of a test.
func (m *reference) actions(of map[string]func(*rapid.T)) map[string]func(*rapid.T) {
	changes := map[string]func(*rapid.T){
		"set box": func(t *rapid.T) {
			b := drawBox(t)
			m.boxes[b.ID] = b
			m.pool.SetBox(b)
			if _, ok := m.handles[b.ID]; !ok {
				m.handles[b.ID] = m.pool.Handle(b.ID)
			}
		},
		"remove box": func(t *rapid.T) {
			id := drawBoxID(t)
			if h, ok := m.handles[id]; ok {
				m.gone = h
			}
			delete(m.boxes, id)
			delete(m.handles, id)
			m.pool.RemoveBox(id)
		},
		"set GPU": func(t *rapid.T) {
			id, g := drawBoxID(t), drawGPU(t, uint32(rapid.IntRange(0, 8).Draw(t, "slot")))
			if b, ok := m.boxes[id]; ok {
				b.GPUs = append(slices.DeleteFunc(slices.Clone(b.GPUs), func(o GPU) bool { return o.Slot == g.Slot }), g)
				m.boxes[id] = b
			}
			m.pool.SetGPU(id, g)
		},
		"bind or free": func(t *rapid.T) {
			id, free := drawBoxID(t), rapid.Bool().Draw(t, "free")
			slots := rapid.SliceOfN(rapid.Uint32Range(0, 8), 0, 4).Draw(t, "slots")
			if b, ok := m.boxes[id]; ok {
				b.GPUs = slices.Clone(b.GPUs)
				for i := range b.GPUs {
					if slices.Contains(slots, b.GPUs[i].Slot) {
						b.GPUs[i].Free = free
					}
				}
				m.boxes[id] = b
			}
			m.pool.SetFreeIn(m.gone, slots, free)
			if rapid.Bool().Draw(t, "by handle") {
				m.pool.SetFreeIn(m.handles[id], slots, free)
			} else {
				m.pool.SetFree(id, slots, free)
			}
		},
		"set host": func(t *rapid.T) {
			h := drawHost(t)
			m.hosts[h.ID] = h
			m.index.SetHost(h)
		},
		"remove host": func(t *rapid.T) {
			id := drawHostID(t)
			delete(m.hosts, id)
			m.index.RemoveHost(id)
		},
		"set slot": func(t *rapid.T) {
			id, s := drawHostID(t), drawHostSlot(t, uint32(rapid.IntRange(0, 6).Draw(t, "slot")))
			if h, ok := m.hosts[id]; ok {
				h.Slots = append(slices.DeleteFunc(slices.Clone(h.Slots), func(o HostSlot) bool { return o.Slot == s.Slot }), s)
				m.hosts[id] = h
			}
			m.index.SetSlot(id, s)
		},
	}
	maps.Copy(changes, of)
	return changes
}
