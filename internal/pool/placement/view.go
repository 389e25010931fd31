package placement

import (
	"encoding/binary"
	"slices"

	"k8s.io/utils/third_party/forked/golang/btree"
)

// view is the index of the GPUs of one model with at least minMemory bytes and some taints.
type view struct {
	model     string
	minMemory uint64 // 0: all GPUs of the model
	contains  restrictionSet
	division  division
	lastUsed  uint64 // Pool.decisions when a request last used the view
	// byBox has the free GPUs of each box as one group. byDomain has those of the
	// NVLink domains of NVLink boxes, noDomain those that are in no domain.
	byBox, byDomain, noDomain classes
	boxes                     map[string]*viewBox
	numbered                  []*viewBox // by the number of the box; nil: not in the view
	counts                    tally
	labels                    map[label]*tally
}

// division is the GPUs that a view has: all, or those that can be divided in a mode.
type division uint8

const allGPUs division = 0

func (r *Request) division() division {
	if r.Part == nil {
		return allGPUs
	}
	return division(r.Part.Share) + 1
}

// has reports whether a GPU belongs to the view's part of the pool.
func (d division) has(g *GPU) bool { return d == allGPUs || g.Modes.has(ShareMode(d-1)) }

// request returns the request whose groups the view has.
func (v *view) request(nvlink Preference) *Request {
	r := &Request{MinMemory: v.minMemory, contains: &v.contains, NVLink: nvlink}
	if v.division != allGPUs {
		r.Part = &Part{Share: ShareMode(v.division - 1)}
	}
	return r
}

// counts are numbers of GPUs; the free ones are usable.
type counts struct{ usable, free int }

// count adds a usable GPU.
func (c *counts) count(g *GPU) {
	c.usable++
	if g.Free {
		c.free++
	}
}

// viewBox is what a view has of one box.
type viewBox struct {
	traits
	counts
	labels  map[string]string
	number  uint32   // of the box
	groups  []*group // in byBox, unless no slot of them is free
	domains []*group // in byDomain and noDomain
	// alone is the group of a box that flips, and room the memory of its slots: they are
	// next to each other.
	alone group
	room  [8]uint32
	// switches tells whether the GPUs of such a box are below several PCIe switches, and
	// the bits of members are the indexes of those that are in the view.
	switches bool
	members  uint64
}

// class is everything that criteria and admits look at, except for the request's
// own GPUs. All groups of a class are alike but for their names, so the first by
// name stands for all of them.
type class struct {
	traits
	free      int
	proxyRoom int
}

func (g *group) class() class { return class{g.traits, len(g.slots), g.proxyRoom} }

// classes has the groups of each class. There are few classes: sizes of groups, times room
// of proxies, times traits.
type classes struct {
	by  map[class]*classGroups
	all []*classGroups // in no order
}

// classGroups has the groups of a class, by name.
type classGroups struct {
	class
	at   int    // in classes.all
	like *group // ranks as they do
	tree *btree.BTree[entry]
}

// entry is a group with the start of its name, which tells most groups of a class apart
// without a look at them.
type entry struct {
	*group
	rack string
	box  [2]uint64 // group.start
}

func (g *group) entry() entry { return entry{g, g.rack, g.start} }

// startOf returns the first 16 bytes of a name, in its order.
func startOf(name string) [2]uint64 {
	var start [16]byte
	copy(start[:], name)
	return [2]uint64{binary.BigEndian.Uint64(start[:8]), binary.BigEndian.Uint64(start[8:])}
}

// before is compareNames for the order in the index.
func (e entry) before(o entry) bool {
	switch {
	case e.rack != o.rack:
		return e.rack < o.rack
	case e.box[0] != o.box[0]:
		return e.box[0] < o.box[0]
	case e.box[1] != o.box[1]:
		return e.box[1] < o.box[1]
	}
	return compareNames(e.group, o.group) < 0
}

// treeDegree makes nodes of 16 to 31 entries.
const treeDegree = 16

// maxIdleClasses bounds the classes that stay while they have no group: most of them soon
// have one again.
const maxIdleClasses = 64

func newClasses() classes { return classes{by: map[class]*classGroups{}} }

func (c *classes) add(g *group) {
	of := g.class()
	in := c.by[of]
	if in == nil {
		like := &group{traits: of.traits, slots: make([]uint32, of.free), proxyRoom: of.proxyRoom}
		in = &classGroups{class: of, at: len(c.all), like: like, tree: btree.New(treeDegree, entry.before)}
		c.by[of], c.all = in, append(c.all, in)
	}
	in.tree.ReplaceOrInsert(g.entry())
}

func (c *classes) remove(g *group) {
	in := c.by[g.class()]
	if in.tree.Delete(g.entry()); in.tree.Len() > 0 || len(c.all) <= maxIdleClasses {
		return
	}
	delete(c.by, in.class)
	last := len(c.all) - 1
	c.all[in.at] = c.all[last]
	c.all[in.at].at = in.at
	c.all[last], c.all = nil, c.all[:last]
}

func newView(model string, minMemory uint64, contains restrictionSet, of division) *view {
	return &view{
		model: model, minMemory: minMemory, contains: contains, division: of, boxes: map[string]*viewBox{}, labels: map[label]*tally{},
		byBox: newClasses(), byDomain: newClasses(), noDomain: newClasses(),
	}
}

// has reports whether a GPU is in the view, free or not.
func (v *view) has(g *GPU) bool {
	return g.Usable && g.Model == v.model && g.Memory >= v.minMemory && v.contains.has(g.Restriction) && v.division.has(g)
}

// set adds a box, with in for what the view has of it. It reports whether that is anything.
func (v *view) set(b *Box, in *viewBox) bool {
	*in = viewBox{traits: traitsOf(b), labels: b.Labels, number: b.number}
	req := v.request(Indifferent)
	for i := range b.GPUs {
		g := &b.GPUs[i]
		if !v.has(g) {
			continue
		}
		in.members |= 1 << i
		in.counts.count(g)
	}
	if in.usable == 0 {
		return false
	}
	if in.free > 0 {
		in.groups = appendGroups(nil, b, req, v.model)
	}
	if in.free > 0 && b.Kind == NVLink {
		in.domains = appendGroups(nil, b, v.request(Required), v.model)
	}
	if b.flips() {
		in.setAlone(b)
	}
	v.boxes[b.ID] = in
	for int(b.number) >= len(v.numbered) {
		v.numbered = append(v.numbered, nil)
	}
	v.numbered[b.number] = in
	v.count(in, 1)
	for _, g := range in.groups {
		if len(g.slots) > 0 {
			v.byBox.add(g)
		}
	}
	for _, g := range in.domains {
		v.domainClasses(g).add(g)
	}
	return true
}

// setAlone makes alone the only group, which may have no free slot yet.
func (b *viewBox) setAlone(of *Box) {
	if len(b.groups) == 0 {
		g := newGroup(of, "", false)
		g.proxyRoom = proxyRoomOf(of)
		b.groups = []*group{g}
	}
	b.alone, b.switches = *b.groups[0], of.severalSwitches()
	b.groups[0] = &b.alone
	b.alone.slots = append(b.room[:0], b.alone.slots...)
}

// remove removes a box, if the view has it.
func (v *view) remove(box string) {
	in, ok := v.boxes[box]
	if !ok {
		return
	}
	delete(v.boxes, box)
	v.numbered[in.number] = nil
	v.count(in, -1)
	for _, g := range in.groups {
		if len(g.slots) > 0 {
			v.byBox.remove(g)
		}
	}
	for _, g := range in.domains {
		v.domainClasses(g).remove(g)
	}
}

// count adds a box to the sums, or subtracts it: sign is 1 or -1.
func (v *view) count(b *viewBox, sign int) {
	n := counts{sign * b.usable, sign * b.free}
	v.counts.add(b.traits, n)
	for key, value := range b.labels {
		at := label{key, value}
		l := v.labels[at]
		if l == nil {
			l = &tally{}
			v.labels[at] = l
		}
		if l.add(b.traits, n); len(*l) == 0 {
			delete(v.labels, at)
		}
	}
}

// countFree adds free GPUs of a box to the sums.
func (v *view) countFree(b *viewBox, n int) {
	v.counts.add(b.traits, counts{free: n})
	for key, value := range b.labels {
		v.labels[label{key, value}].add(b.traits, counts{free: n})
	}
}

// tally has the sums of the boxes by their few combinations of traits.
type tally []tallied

type tallied struct {
	traits
	counts
}

func (t *tally) add(of traits, n counts) {
	i := slices.IndexFunc(*t, func(in tallied) bool { return in.traits == of })
	if i < 0 {
		i = len(*t)
		*t = append(*t, tallied{traits: of})
	}
	in := &(*t)[i]
	in.usable, in.free = in.usable+n.usable, in.free+n.free
	if in.counts == (counts{}) {
		*t = slices.Delete(*t, i, i+1)
	}
}

// matching counts the GPUs that meet the constraints of a request, the excluded ones included. It
// looks at each box that has the labels only if there are several that not every box has.
func (v *view) matching(req *Request, in *labelIndex) (sum counts) {
	add := func(t traits, c counts) {
		if admits(t, req) {
			sum.usable, sum.free = sum.usable+c.usable, sum.free+c.free
		}
	}
	list, ok := in.restricting(req.Labels)
	by := &v.counts
	switch {
	case !ok:
		return sum
	case len(list) == 1:
		by = v.labels[list[0]]
	case len(list) > 1:
		in.intersect(list).all(func(n uint32) {
			if int(n) < len(v.numbered) && v.numbered[n] != nil {
				add(v.numbered[n].traits, v.numbered[n].counts)
			}
		})
		return sum
	}
	if by != nil {
		for _, t := range *by {
			add(t.traits, t.counts)
		}
	}
	return sum
}

func (v *view) domainClasses(g *group) *classes {
	if g.domain == "" {
		return &v.noDomain
	}
	return &v.byDomain
}

// appendClasses appends the groups that a request may choose from, before admits.
func (v *view) appendClasses(to []*classes, req *Request) []*classes {
	switch {
	case req.NVLink == Required && req.alone():
		return append(to, &v.byDomain, &v.noDomain)
	case req.NVLink == Required:
		return append(to, &v.byDomain)
	default:
		return append(to, &v.byBox)
	}
}
