package placement

import (
	"cmp"
	"maps"
	"slices"
)

// Member is one lease of a gang.
type Member struct {
	GPUs Request
	Host HostRequest
}

// Assignment is where a member of a gang goes.
type Assignment struct {
	Decision
	Host HostDecision
}

// OK reports whether the member got its GPUs and its slots.
func (a *Assignment) OK() bool { return a.Decision.OK() && a.Host.OK() }

// GangDecision is the outcome for a gang: all of its members have a place, or none.
type GangDecision struct {
	// Members has the assignment of each member, in their order; none if the gang does not fit.
	Members []Assignment
	// Lacking is the first member that found no place, and Why its reasons; Placed is how
	// many found one before it.
	Lacking, Placed int
	Why             Assignment
}

// OK reports whether the gang fits.
func (d *GangDecision) OK() bool { return len(d.Members) > 0 }

// maxOrders bounds the orders of its members in which a gang is tried.
const maxOrders = 8

// PlaceGang decides on all members of a gang by looking at all GPUs and hosts. The
// members take their places one after the other, those with the fewest choices first. If
// one finds none, the gang is tried again with that one before all others. A gang may
// fit in an order that is not tried; a gang that is given places has no GPU or slot twice.
// Pool.PlaceGang gives the same decisions faster.
func PlaceGang(boxes []Box, hosts []Host, reserve Reserve, members []Member) GangDecision {
	return decideGang(&gangList{boxes: boxes, hosts: hosts, reserve: reserve}, members)
}

// PlaceGang decides on a gang as the function PlaceGang does. It leaves the pool and the
// hosts as they are.
func (p *Pool) PlaceGang(hosts *Hosts, reserve Reserve, members []Member) GangDecision {
	return decideGang(newGangLookup(p, hosts, reserve), members)
}

// gangStock is what the members of a gang take their places from.
type gangStock interface {
	place(m *Member) Assignment
	// take takes GPUs and slots of a host for the members that follow.
	take(gpus []Ref, host string, slots []uint32)
	// model returns the model of a GPU.
	model(gpu Ref) string
	// restore gives everything back.
	restore()
}

func decideGang(s gangStock, members []Member) GangDecision {
	order := gangOrder(members)
	promoted := map[int]bool{}
	var first GangDecision // that of the first order: the one to explain
	for n := range maxOrders {
		if n == 1 {
			members = briefly(members)
		}
		d := placeInOrder(s, members, order)
		s.restore()
		if d.OK() {
			return d
		}
		if n == 0 {
			first = d
		}
		if d.Placed == 0 || promoted[d.Lacking] {
			break
		}
		promoted[d.Lacking] = true
		order = promote(order, d.Lacking)
	}
	return first
}

// briefly returns members that do not explain at length why they find no place.
func briefly(members []Member) []Member {
	out := slices.Clone(members)
	for i := range out {
		out[i].GPUs.Brief, out[i].Host.Brief = true, true
	}
	return out
}

// promote puts a member before all others.
func promote(order []int, member int) []int {
	order = slices.DeleteFunc(order, func(i int) bool { return i == member })
	return slices.Insert(order, 0, member)
}

// gangOrder returns the members in the order in which they take their places: those that
// name a host, then those whose GPUs must be together, then the largest.
func gangOrder(members []Member) []int {
	order := make([]int, len(members))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := &members[i], &members[j]
		return cmp.Or(
			cmp.Compare(rank(a.Host.Host != ""), rank(b.Host.Host != "")),
			cmp.Compare(rank(a.GPUs.together()), rank(b.GPUs.together())),
			cmp.Compare(rank(a.GPUs.Model != ""), rank(b.GPUs.Model != "")),
			cmp.Compare(b.GPUs.Count, a.GPUs.Count))
	})
	return order
}

// together reports whether the GPUs of a request must be in one box.
func (r *Request) together() bool { return r.SameBox == Required || r.NVLink == Required }

func placeInOrder(s gangStock, members []Member, order []int) GangDecision {
	d := GangDecision{Members: make([]Assignment, len(members))}
	var room gangRoom
	for n, i := range order {
		m := room.leftFor(members[i])
		a := s.place(&m)
		if !a.OK() {
			return GangDecision{Lacking: i, Placed: n, Why: a}
		}
		d.Members[i] = a
		room.take(s, &m.GPUs, a.Picks)
		s.take(a.Picks, a.Host.Host, a.Host.Slots)
	}
	return d
}

// gangRoom is what the members of a gang that have a place leave of Request.Room; nil: all.
type gangRoom map[string]int

// leftFor returns a member with the room that is left.
func (r gangRoom) leftFor(m Member) Member {
	if r != nil {
		m.GPUs.Room = r
	}
	return m
}

// take takes the room for the GPUs of a member, which are of one model.
func (r *gangRoom) take(s gangStock, req *Request, gpus []Ref) {
	if req.Room == nil || len(gpus) == 0 {
		return
	}
	if *r == nil {
		*r = maps.Clone(req.Room)
	}
	if model := s.model(gpus[0]); (*r)[model] > 0 {
		(*r)[model] -= len(gpus)
	}
}

// gangList is the stock of the function PlaceGang. It copies what the members take.
type gangList struct {
	boxes   []Box
	hosts   []Host
	reserve Reserve
	// nowBoxes and nowHosts are without what has been taken; nil: nothing has.
	nowBoxes []Box
	nowHosts []Host
}

func (l *gangList) place(m *Member) (a Assignment) {
	if l.nowBoxes == nil {
		l.nowBoxes, l.nowHosts = slices.Clone(l.boxes), slices.Clone(l.hosts)
	}
	a.Decision, a.Host = PlaceLease(l.nowBoxes, l.nowHosts, l.reserve, m.GPUs, m.Host)
	return a
}

func (l *gangList) take(gpus []Ref, host string, slots []uint32) {
	for _, r := range gpus {
		b := &l.nowBoxes[slices.IndexFunc(l.nowBoxes, func(b Box) bool { return b.ID == r.Box })]
		b.GPUs = slices.Clone(b.GPUs)
		b.GPUs[slices.IndexFunc(b.GPUs, func(g GPU) bool { return g.Slot == r.Slot })].Free = false
	}
	if len(slots) == 0 {
		return
	}
	h := &l.nowHosts[slices.IndexFunc(l.nowHosts, func(h Host) bool { return h.ID == host })]
	h.Slots = slices.Clone(h.Slots)
	for i := range h.Slots {
		h.Slots[i].Free = h.Slots[i].Free && !slices.Contains(slots, h.Slots[i].Slot)
	}
}

func (l *gangList) model(gpu Ref) string {
	for _, b := range l.boxes {
		if at := slices.IndexFunc(b.GPUs, func(g GPU) bool { return g.Slot == gpu.Slot }); b.ID == gpu.Box && at >= 0 {
			return b.GPUs[at].Model
		}
	}
	return ""
}

func (l *gangList) restore() { l.nowBoxes, l.nowHosts = nil, nil }

// gangLookup is the stock of a Pool. Members take from the index itself; restore undoes it.
type gangLookup struct {
	pool    *Pool
	hosts   *Hosts
	reserve Reserve
	boxes   map[string]Box // as they were
	rows    map[string]Host
}

func newGangLookup(p *Pool, h *Hosts, reserve Reserve) *gangLookup {
	return &gangLookup{pool: p, hosts: h, reserve: reserve, boxes: map[string]Box{}, rows: map[string]Host{}}
}

func (l *gangLookup) place(m *Member) (a Assignment) {
	a.Decision, a.Host = l.pool.PlaceLease(l.hosts, l.reserve, m.GPUs, m.Host)
	return a
}

func (l *gangLookup) take(gpus []Ref, host string, slots []uint32) {
	for _, r := range gpus {
		b := l.pool.boxes[r.Box]
		if _, ok := l.boxes[r.Box]; !ok {
			was := b.Box
			was.GPUs = slices.Clone(was.GPUs) // SetFree changes them in place
			l.boxes[r.Box] = was
		}
		l.pool.SetFree(r.Box, []uint32{r.Slot}, false)
	}
	if len(slots) == 0 {
		return
	}
	row := l.hosts.hosts[host]
	if _, ok := l.rows[host]; !ok {
		was := row.Host
		was.Slots = slices.Clone(was.Slots) // SetSlot changes them in place
		l.rows[host] = was
	}
	for _, s := range slices.Clone(row.Slots) {
		if slices.Contains(slots, s.Slot) {
			s.Free = false
			l.hosts.SetSlot(host, s)
		}
	}
}

func (l *gangLookup) model(gpu Ref) string {
	if _, g := l.pool.find(gpu); g != nil {
		return g.Model
	}
	return ""
}

func (l *gangLookup) restore() {
	for _, b := range l.boxes {
		l.pool.SetBox(b)
	}
	for _, h := range l.rows {
		l.hosts.SetHost(h)
	}
	clear(l.boxes)
	clear(l.rows)
}
