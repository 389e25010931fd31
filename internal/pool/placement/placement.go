// Package placement decides which GPUs a request gets. Its decisions are pure
// functions of an inventory and a request, so the manager, the simulator and a
// dry run decide alike.
//
// The policy (paper, sections 3.2 and 5.2); rules.go has the criteria in their order:
//
//   - All GPUs of a request are of one model. A request that names none gets the
//     model with the most GPUs available first, which leaves scarce models alone.
//   - Spares are held back from ordinary requests, per model.
//   - GPUs and hosts with taints are for requests that tolerate them (taints.go).
//   - A request goes into one box if it fits there. First come boxes in which the
//     lease has GPUs already, then boxes of the kind that the request prefers (not
//     NVLink without a wish, which keeps NVLink boxes whole), then boxes whose proxy
//     has bandwidth left for the request, then those nearest to the host (site.go: its
//     rack, its networks), then those with the fewest free GPUs that suffice (best
//     fit), which keeps boxes whole for large requests.
//   - Within a box, GPUs come from as few PCIe switches as possible.
//   - A request that fits into no single box is split over as few boxes as possible.
//   - A host that the request leaves open is chosen together with the first box: the
//     nearest one, of these the one with the most free slots.
//
// Ties are broken by rack, box ID and slot, so equal inventories give equal decisions.
//
// # Two implementations
//
// [Place] looks at every GPU; it is the definition. [Pool] keeps an index and
// gives the same decisions in a time that does not depend on the size of the pool
// (section 5.2: "grouped and indexed in advance"). Both use the rules in rules.go,
// and TestPoolDecidesAsPlace compares them.
//
// # Parts of GPUs
//
// A request may ask for a part of a GPU: memory and compute (part.go). The index has the
// GPUs that parts share by what is left of them (shared.go), beside the free ones. A part
// goes where it adds least to the fragmentation of the pool, measured interference
// included; labels of a tenant keep parts together or apart. Several parts of a request go
// to different GPUs, of one box if possible (placeparts.go).
//
// # How to add a rule
//
//   - A rule that ranks boxes is a criterion, a function of one line in rules.go,
//     with its place in bestFit, largestFirst or emptiestFirst.
//   - A rule that excludes boxes is a condition in admits, in rules.go. If it comes
//     from the request, add a field to Request and its words to noMatch.
//   - A rule over a property of boxes that the index does not know yet needs the
//     property in Box and in traits (rules.go). Nothing else in the index changes.
//     Its cost: a decision looks once at each combination of traits, number of free
//     GPUs and room of the proxy that occurs in the pool, and at each rack of it while
//     no box is near enough.
//   - In each case add decisions to testdata/place.txt, and a new field to drawBox
//     or drawRequest in the tests.
package placement

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
)

// Kind is the interconnect between the GPUs of a box.
type Kind uint8

// Kinds of box (paper, section 3.2).
const (
	AnyKind Kind = iota
	PCIeSwitch
	NVLink
)

// String returns the name of the kind, as in "NVLink".
func (k Kind) String() string {
	switch k {
	case PCIeSwitch:
		return "PCIe-switch"
	case NVLink:
		return "NVLink"
	default:
		return "any"
	}
}

// Preference is what a request says about a property of its GPUs.
type Preference uint8

// Preferences.
const (
	Indifferent Preference = iota
	Preferred
	Required
	Avoided
)

// Ref identifies a GPU by its box and slot.
type Ref struct {
	Box  string
	Slot uint32
}

// String returns "BOX/SLOT", which is the GPU's ID.
func (r Ref) String() string { return fmt.Sprintf("%s/%d", r.Box, r.Slot) }

// GPU is a device in a box slot.
type GPU struct {
	Slot   uint32
	Model  string
	Memory uint64 // bytes
	Domain string // NVLink domain within the box; empty: none
	Switch string // PCIe switch above the slot; empty: not known
	Usable bool   // healthy, reachable and not cordoned, free or not
	Free   bool   // not bound, nor any part of it
	// Restriction is the taints of the GPU and of its box.
	Restriction Restriction
	// Modes are those in which parts can share the GPU; 0: it cannot be divided.
	Modes ShareModes
	// Whole is set while a binding has the GPU as a whole, or awaits it.
	Whole bool
}

// Box is a GPU box.
type Box struct {
	ID   string
	Kind Kind
	Location
	Labels map[string]string // must not change once the box is in a Pool
	// ProxyGPUs is the number of GPUs that the box's proxies serve at full
	// bandwidth; 0: not known. One proxy of the paper slows down 4 GPUs
	// (section 4.3.2, Table 12).
	ProxyGPUs int
	GPUs      []GPU
	// Parts are the slots for parts of the GPUs, and the parts in them.
	Parts []PartSlot

	number uint32 // in the index of a Pool
}

// Request asks for Count GPUs of one model.
type Request struct {
	Count int
	Model string // exact; empty: any
	// Room is how many whole GPUs of a model the request may have, of the models that it
	// lists. The members of a gang have it together.
	Room      map[string]int
	MinMemory uint64 // bytes
	Kind      Kind   // AnyKind: no constraint
	// Labels are those that the boxes must have.
	Labels map[string]string
	// NVLink Required: all GPUs in one NVLink domain. Preferred: NVLink boxes first.
	NVLink Preference
	// SameBox Required: all GPUs in one box. Avoided: spread over boxes.
	SameBox Preference
	// Only lists the GPUs to choose from, if the caller names them. Nil: all.
	Only []Ref
	// Box is the box on the machine of the host, if the host has no other GPUs. Only lists
	// GPUs then. Empty: there is none.
	Box string
	// Several says that the host can give several of them to one lease.
	Several bool
	// Exclude lists GPUs not to choose, such as those that failed before.
	Exclude []Ref
	// excluded is the set of Exclude where many GPUs are looked up; nil: not made.
	excluded map[Ref]bool
	// Leaves lists the GPUs that parts of the request leave, such as those that are drained. An
	// affinity to the other parts on them does not count: they leave, too, and follow.
	Leaves []Ref
	// Together lists the GPUs that the lease has already. New GPUs must join
	// them if SameBox or NVLink is Required; otherwise they do so where possible.
	Together []Ref
	// Tolerations are for the taints of the GPUs that the request may have.
	Tolerations []Toleration
	// UseSpares lets the request take held-back GPUs: it replaces a broken one.
	UseSpares bool
	// Silent leaves the reasons out of a decision on whole GPUs.
	Silent bool
	// Brief leaves out of a refusal what takes a look at each GPU to say.
	Brief bool
	// Part asks for a part of each GPU; nil: whole GPUs. Only and Together name GPUs, and
	// the picks are slots for parts. NVLink means nothing then.
	Part *Part
	// MaxSize bounds the sum of the sizes that the parts have on their GPUs, in thousandths of
	// a GPU (Part.Size). 0: any.
	MaxSize uint64
	// Near is where the host is; nil: not known, or chosen by PlaceLease.
	Near    *Location
	Uplinks Uplinks // the full ones

	site     site            // nil: Near
	noFresh  bool            // no free GPU is divided for the part
	contains *restrictionSet // of a view; nil: those that Tolerations are for
}

// Decision is the outcome of a request.
type Decision struct {
	// Picks are Count GPUs, or none if the request cannot be satisfied now.
	Picks []Ref
	// Share is the mode in which a part shares its GPU.
	Share ShareMode
	// Why explains the decision in sentences, in the order of its steps.
	Why []string
	// Kept lists the free GPUs that only Request.Exclude keeps from a request that is refused.
	Kept []Ref

	silent bool
}

// OK reports whether the request got its GPUs.
func (d *Decision) OK() bool { return len(d.Picks) > 0 }

func (d *Decision) say(format string, args ...any) {
	if !d.silent {
		d.Why = append(d.Why, fmt.Sprintf(format, args...))
	}
}

// Place decides on a request by looking at every GPU. It does not change its
// arguments. Pool gives the same decisions faster, and is tested against Place.
func Place(boxes []Box, reserve Reserve, req Request) Decision {
	if len(req.Only) > 0 || req.Part != nil {
		p := NewPool()
		for _, b := range boxes {
			p.SetBox(b)
		}
		return p.Place(reserve, req)
	}
	req.setSite()
	in := inventory{
		models: modelsOf(boxes, &req), stock: func(model string) stock { return candidates(boxes, &req, model) },
		gpus: func(string, bool, []Ref) iter.Seq[counted] { return gpusOf(boxes) },
		others: func(models []model) map[string]bool {
			return besides(func(yield func(string) bool) {
				for of := range gpusOf(boxes) {
					if !yield(of.gpu.Model) {
						return
					}
				}
			}, models)
		},
	}
	return in.decide(reserve, &req)
}

// inventory is what a decision looks at.
type inventory struct {
	models []model
	// stock returns the groups of a model.
	stock func(model string) stock
	// gpus returns the GPUs of the boxes with a model, "" for all, box by box. It may leave out
	// those that are not free, and count together those that lack the same. Excluded ones are
	// told one by one.
	gpus func(model string, free bool, exclude []Ref) iter.Seq[counted]
	// others returns the models beside some.
	others func([]model) map[string]bool
}

// besides returns the names that some models do not have.
func besides(names iter.Seq[string], models []model) map[string]bool {
	out := map[string]bool{}
	for name := range names {
		if !slices.ContainsFunc(models, func(m model) bool { return m.name == name }) {
			out[name] = true
		}
	}
	return out
}

// gpusOf returns the GPUs of boxes.
func gpusOf(boxes []Box) iter.Seq[counted] {
	return func(yield func(counted) bool) {
		for i := range boxes {
			for j := range boxes[i].GPUs {
				if !yield(counted{&boxes[i], &boxes[i].GPUs[j], 1}) {
					return
				}
			}
		}
	}
}

// decide tries the models in order.
func (in *inventory) decide(reserve Reserve, req *Request) Decision {
	d := Decision{silent: req.Silent}
	if req.Count < 1 {
		d.say("The request asks for no GPUs.")
		return d
	}
	for _, m := range in.models {
		held := 0
		if !req.UseSpares {
			held = m.held(reserve)
		}
		d.sayFree(&m, req, held)
		if allowed := min(m.common().free-held, m.available); allowed < req.Count {
			d.sayLacks(in.gpus(m.name, true, req.Exclude), m.name, req)
			d.say("That leaves %d for this request, which needs %d.", allowed, req.Count)
			continue
		}
		said, site := len(d.Why), req.site
		if d.Picks = choose(in.stock(m.name), req, &d); d.OK() {
			d.Kept = nil
			return d
		}
		why := slices.Clone(d.Why[said:])
		d.Why, req.site = d.Why[:said], site // no host is chosen
		d.sayLacks(in.gpus(m.name, true, req.Exclude), m.name, req)
		d.Why = append(d.Why, why...)
	}
	switch {
	case d.silent:
	case len(in.models) == 0:
		d.say("%s", noMatch(in.gpus("", false, req.Exclude), req))
	case req.Model == "":
		d.sayOthers(in, req)
	}
	return d
}

// sayFree says how many GPUs of a model are free, and which are held back.
func (d *Decision) sayFree(m *model, req *Request, held int) {
	switch {
	case d.silent: // a decision of a simulation formats nothing
		return
	case req.UseSpares:
		d.say("Model %s: %d of %d usable GPUs are free; spares may be used.", m.name, m.free, m.usable)
	default:
		d.say("Model %s: %d of %d usable GPUs are free, %d of them held back as spares.", m.name, m.free, m.usable, held)
	}
}

// model counts the GPUs of one model.
type model struct {
	name         string
	usable, free int // in the whole pool
	// local is those of them that only the host on their machine may have. They can replace
	// no GPU of another host, so they are no spares, and none is held back for them.
	local     counts
	available int  // free, and meet the constraints
	matches   bool // some GPU meets the constraints, free or not
}

// common counts the GPUs that any host may have, which is what spares are a share of.
func (m *model) common() counts {
	return counts{m.usable - m.local.usable, m.free - m.local.free}
}

// held returns how many free GPUs are held back as spares.
func (m *model) held(reserve Reserve) int {
	of := m.common()
	return min(reserve.Held(of.usable), of.free)
}

// modelsOf returns the models that have GPUs which meet the constraints, in the
// order in which they are tried.
func modelsOf(boxes []Box, req *Request) []model {
	var out []model
	for i := range boxes {
		b := &boxes[i]
		for j := range b.GPUs {
			g := &b.GPUs[j]
			if !g.Usable {
				continue
			}
			at := slices.IndexFunc(out, func(m model) bool { return m.name == g.Model })
			if at < 0 {
				at = len(out)
				out = append(out, model{name: g.Model})
			}
			m := &out[at]
			fits := admitsBox(b, req) && req.mayHave(g.Model) && g.Memory >= req.MinMemory && req.tolerates(g.Restriction)
			m.usable++
			m.matches = m.matches || fits
			if g.Free {
				m.free++
			}
			if g.Restriction.local() {
				m.local.count(g)
			}
			if g.Free && fits && !slices.Contains(req.Exclude, Ref{b.ID, g.Slot}) {
				m.available++
			}
		}
	}
	out = slices.DeleteFunc(out, func(m model) bool { return !m.matches })
	slices.SortFunc(out, compareContention)
	return out
}

// compareContention puts the model with more available GPUs first.
func compareContention(a, b model) int {
	return cmp.Or(cmp.Compare(b.available, a.available), cmp.Compare(a.name, b.name))
}

// mayHave reports whether the request may have its GPUs of a model.
func (r *Request) mayHave(model string) bool {
	room, bound := r.Room[model]
	return (r.Model == "" || r.Model == model) && (!bound || room >= r.Count)
}

// divides reports whether a GPU can be divided as the request needs.
func (r *Request) divides(g *GPU) bool { return r.Part == nil || g.Modes.has(r.Part.Share) }

// excludes reports whether the request may not have a GPU.
func (r *Request) excludes(at Ref) bool {
	if r.excluded != nil {
		return r.excluded[at]
	}
	return slices.Contains(r.Exclude, at)
}

// setSite makes a site of Near.
func (r *Request) setSite() {
	if r.site == nil && r.Near != nil {
		r.site = fixedSite{host: *r.Near, full: r.Uplinks}
	}
}

// alone reports whether the request is for a single GPU and has none yet, so
// there is nothing to place it together with.
func (r *Request) alone() bool { return r.Count+len(r.Together) <= 1 }
