package placement

import (
	"cmp"
	"maps"
	"slices"
)

// maxPlanned bounds the boxes and the hosts with which Gather checks that a gang
// could ever fit.
const maxPlanned = 256

// Gather chooses the GPUs and slots to hold for a gang that does not fit now: the places
// that its members find one after the other, and the free part of a place for those that
// find none. ok is false if it is not certain that
// the gang would fit if everything were free. A gang of one is a lease.
func (p *Pool) Gather(hosts *Hosts, reserve Reserve, members []Member) (gpus []Ref, slots []HostSlotRef, ok bool) {
	if len(members) > 1 && !p.couldFit(hosts, reserve, members) {
		return nil, nil, false
	}
	order, promoted := gangOrder(members), map[int]bool{}
	for range maxOrders {
		lacking := -1
		if gpus, slots, lacking = p.gatherInOrder(hosts, reserve, members, order); lacking < 0 {
			return gpus, slots, true
		}
		if lacking == order[0] || promoted[lacking] {
			break
		}
		promoted[lacking] = true
		order = promote(order, lacking)
	}
	return nil, nil, false
}

// gatherInOrder gathers for the members of a gang, one after the other. lacking is the first one
// that could have no place, beside those before it; -1: none.
func (p *Pool) gatherInOrder(hosts *Hosts, reserve Reserve, members []Member, order []int) (gpus []Ref, slots []HostSlotRef, lacking int) {
	s := newGangLookup(p, hosts, reserve)
	defer s.restore()
	var room gangRoom
	for _, i := range order {
		m, hold, ok := room.leftFor(members[i]), held{}, true
		m.GPUs.Brief, m.Host.Brief = true, true // only the picks count
		if a := s.place(&m); a.OK() {
			hold = held{a.Picks, a.Host.Host, a.Host.Slots}
		} else if hold, ok = p.gatherLease(hosts, reserve, &m); !ok {
			return nil, nil, i
		}
		room.take(s, &m.GPUs, hold.gpus)
		s.take(hold.gpus, hold.host, hold.slots)
		gpus = append(gpus, hold.gpus...)
		for _, slot := range hold.slots {
			slots = append(slots, HostSlotRef{hold.host, slot})
		}
	}
	return gpus, slots, -1
}

// held is what a lease holds.
type held struct {
	gpus  []Ref
	host  string
	slots []uint32
}

// gatherLease chooses the GPUs and the slots to hold for one lease, such that the host
// has a network in common with the boxes. It tries the sets of networks that hosts have,
// and takes the one with most of what the lease needs.
func (p *Pool) gatherLease(hosts *Hosts, reserve Reserve, m *Member) (best held, ok bool) {
	for _, paths := range hosts.pathsFor(&m.Host) {
		req := m.GPUs
		req.Near = &Location{Paths: paths}
		gpus := p.Place(reserve, req).Picks
		if len(gpus) == 0 {
			some, possible := p.gather(reserve, req)
			if !possible {
				continue
			}
			gpus = some
		}
		slots, possible := hosts.gather(m.Host, paths)
		if !possible {
			continue
		}
		if !ok || len(gpus)+len(slots) > len(best.gpus)+len(best.slots) {
			best, ok = held{gpus: gpus}, true
			for _, s := range slots {
				best.host, best.slots = s.Host, append(best.slots, s.Slot)
			}
		}
	}
	return best, ok
}

// pathsFor returns the sets of networks that the hosts of a request may have, in order.
func (h *Hosts) pathsFor(req *HostRequest) []Paths {
	if req.Host != "" {
		if row := h.hosts[req.Host]; row != nil {
			return []Paths{row.Paths}
		}
		return nil
	}
	return slices.Sorted(maps.Keys(h.pathSets))
}

// couldFit reports whether a gang fits into some of the boxes and hosts if all of their
// usable GPUs and slots are free. It may miss that a gang fits if there are
// more than maxPlanned of them.
func (p *Pool) couldFit(hosts *Hosts, reserve Reserve, members []Member) bool {
	pool, some := NewPool(), NewHosts()
	for _, b := range p.mostUsable(members) {
		b := *b
		b.GPUs = slices.Clone(b.GPUs)
		for i := range b.GPUs {
			b.GPUs[i].Free = b.GPUs[i].Usable
		}
		pool.SetBox(b)
	}
	for _, row := range hosts.mostSlots(members) {
		h := row.Host
		h.Slots = slices.Clone(h.Slots)
		for i := range h.Slots {
			h.Slots[i].Free = !h.Slots[i].Unusable
		}
		some.SetHost(h)
	}
	free := slices.Clone(members)
	for i := range free {
		free[i].GPUs.Exclude, free[i].Host.Exclude = nil, nil
	}
	d := pool.PlaceGang(some, reserve, free)
	return d.OK()
}

// mostUsable returns the boxes that have the most usable GPUs for the members.
func (p *Pool) mostUsable(members []Member) []*Box {
	usable := map[*Box]int{}
	for _, one := range p.boxes {
		b, n := &one.Box, 0
		for i := range b.GPUs {
			g := &b.GPUs[i]
			if g.Usable && slices.ContainsFunc(members, func(m Member) bool {
				return m.GPUs.names(b, g) && m.GPUs.mayHave(g.Model) && g.Memory >= m.GPUs.MinMemory && m.GPUs.tolerates(g.Restriction) && admitsBox(b, &m.GPUs)
			}) {
				n++
			}
		}
		if n > 0 {
			usable[b] = n
		}
	}
	return firstPlanned(usable, func(b *Box) string { return b.ID })
}

// names reports whether a request names a GPU, or none at all.
func (r *Request) names(b *Box, g *GPU) bool {
	return len(r.Only) == 0 || slices.Contains(r.Only, Ref{b.ID, g.Slot})
}

// mostSlots returns the hosts that have the most slots of those that the members may use.
func (h *Hosts) mostSlots(members []Member) []*indexedHost {
	slots := map[*indexedHost]int{}
	for _, row := range h.hosts {
		if i := slices.IndexFunc(members, func(m Member) bool { return eligible(&row.Host, &m.Host) }); i >= 0 {
			slots[row] = len(row.Slots)
			if members[i].Host.Host != "" {
				slots[row] = unlimited // a host that is named has no substitute
			}
		}
	}
	return firstPlanned(slots, func(h *indexedHost) string { return h.ID })
}

// firstPlanned returns the maxPlanned keys with the largest numbers.
func firstPlanned[K comparable](sizes map[K]int, name func(K) string) []K {
	keys := slices.SortedFunc(maps.Keys(sizes), func(a, b K) int {
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(name(a), name(b)))
	})
	return keys[:min(len(keys), maxPlanned)]
}
