// Package placement decides which GPUs a request gets: pure functions of an
// inventory and a request, so that the manager, the simulator and a dry run
// decide alike.
//
// The policy, in the order in which it is applied (paper, sections 3.2 and 5.2):
//
//   - All GPUs of a request are of one model; without a wish the model with the
//     most free GPUs is tried first, so that contested models go last.
//   - Spares are held back from ordinary requests, per model.
//   - A request goes into one box where one fits it, the one with the fewest free
//     GPUs that still suffices (best fit), so that large requests find whole boxes.
//   - Unless NVLink is asked for, PCIe-switch boxes go first: NVLink boxes stay whole.
//   - Among those, a box whose proxy has bandwidth left for the request goes first.
//   - What fits into no single box is cut over as few boxes as possible.
//
// Ties are broken by box ID and slot, so equal inventories give equal answers.
package placement

import (
	"cmp"
	"fmt"
	"slices"
)

// Kind is how the GPUs of a box are connected among each other.
type Kind uint8

// Kinds of box (paper, section 3.2).
const (
	AnyKind Kind = iota
	PCIeSwitch
	NVLink
)

// String returns the kind in words.
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

// Preference is how much a request wants a property.
type Preference uint8

// Preferences.
const (
	Indifferent Preference = iota
	Preferred
	Required
	Avoided
)

// Ref names a GPU by where it sits.
type Ref struct {
	Box  string
	Slot uint32
}

// String returns "BOX/SLOT", the form of a GPU's ID.
func (r Ref) String() string { return fmt.Sprintf("%s/%d", r.Box, r.Slot) }

// GPU is a device in a box slot.
type GPU struct {
	Slot   uint32
	Model  string
	Memory uint64 // bytes
	Domain string // NVLink domain within the box; empty: none
	// Usable says that the GPU is healthy, reachable and not cordoned, whether
	// it is free or not.
	Usable bool
	Free   bool
}

// Box is a GPU box.
type Box struct {
	ID   string
	Kind Kind
	Rack string // empty: not known
	// ProxyGPUs is how many GPUs in use take up the bandwidth of the box's
	// proxies; 0: not known. One proxy of the paper serves 4 GPUs and more at
	// less than their bandwidth (section 4.3.2, Table 12).
	ProxyGPUs int
	GPUs      []GPU
}

// Request is what is asked for.
type Request struct {
	Count     int
	Model     string // exact; empty: any
	MinMemory uint64 // bytes
	Kind      Kind
	NVLink    Preference
	SameBox   Preference
	// Exclude lists GPUs that must not be chosen, such as those that failed
	// this request before.
	Exclude []Ref
	// Together lists what the request already has: with SameBox or NVLink
	// required the new GPUs join them, otherwise they do so where they can.
	Together []Ref
	// UseSpares lets the request take the GPUs that are held back: it replaces
	// a broken one.
	UseSpares bool
}

// Decision is where a request goes and why, or why it goes nowhere.
type Decision struct {
	// Picks has Count entries, or none when the request cannot be satisfied now.
	Picks []Ref
	// Why tells in sentences, in the order of the decisions.
	Why []string
}

// OK reports whether the request found its GPUs.
func (d *Decision) OK() bool { return len(d.Picks) > 0 }

func (d *Decision) say(format string, args ...any) {
	d.Why = append(d.Why, fmt.Sprintf(format, args...))
}

// Place decides on a request by looking at every GPU. It does not change its
// arguments. A Pool decides the same faster; Place is what it is tested against.
func Place(boxes []Box, reserve Reserve, req Request) Decision {
	return decide(modelsOf(boxes, &req), reserve, &req, func(model string) stock { return candidates(boxes, &req, model) })
}

// decide tries the models in their order, each with the stock that there is of it.
func decide(models []model, reserve Reserve, req *Request, of func(model string) stock) Decision {
	var d Decision
	if req.Count < 1 {
		d.say("The request is for no GPU.")
		return d
	}
	for _, m := range models {
		take := m.free
		if req.UseSpares {
			d.say("Model %s: %d of %d usable GPUs are free; spares may be used.", m.name, m.free, m.usable)
		} else {
			held := min(reserve.Held(m.usable), m.free)
			take -= held
			d.say("Model %s: %d of %d usable GPUs are free, %d of them held back as spares.", m.name, m.free, m.usable, held)
		}
		if take = min(take, m.fit); take < req.Count {
			d.say("That leaves %d that this request may have, %d are needed.", take, req.Count)
			continue
		}
		if d.Picks = choose(of(m.name), req, &d); d.OK() {
			return d
		}
	}
	if len(d.Why) == 0 {
		d.say("%s", nothingMatches(req))
	}
	return d
}

func nothingMatches(req *Request) string {
	s := "No GPU of the pool matches"
	if req.Model != "" {
		s += fmt.Sprintf(" model %q", req.Model)
	}
	if req.MinMemory > 0 {
		s += fmt.Sprintf(" with at least %d MiB of memory", req.MinMemory>>20)
	}
	if req.Kind != AnyKind {
		s += fmt.Sprintf(" in a box of kind %s", req.Kind)
	}
	return s + "."
}

// model counts the GPUs of one model: in the whole pool, since that is what
// spares are counted by, and those free that the constraints admit.
type model struct {
	name              string
	usable, free, fit int
	wanted            bool // some GPU of it meets the constraints, free or not
}

// modelsOf returns the models that the constraints admit, the least contested first.
func modelsOf(boxes []Box, req *Request) []model {
	var out []model
	for i := range boxes {
		b := &boxes[i]
		for _, g := range b.GPUs {
			if !g.Usable {
				continue
			}
			at := slices.IndexFunc(out, func(m model) bool { return m.name == g.Model })
			if at < 0 {
				at = len(out)
				out = append(out, model{name: g.Model})
			}
			m := &out[at]
			fits := admits(b.Kind, req) && (req.Model == "" || g.Model == req.Model) && g.Memory >= req.MinMemory
			m.usable++
			m.wanted = m.wanted || fits
			if g.Free {
				m.free++
			}
			if g.Free && fits && !slices.Contains(req.Exclude, Ref{b.ID, g.Slot}) {
				m.fit++
			}
		}
	}
	out = slices.DeleteFunc(out, func(m model) bool { return !m.wanted })
	slices.SortFunc(out, compareContested)
	return out
}

// compareContested puts the model of which more could be had first.
func compareContested(a, b model) int {
	return cmp.Or(cmp.Compare(b.fit, a.fit), cmp.Compare(a.name, b.name))
}

func admits(k Kind, req *Request) bool {
	if req.Kind != AnyKind && k != req.Kind {
		return false
	}
	return req.NVLink != Required || k == NVLink
}

// alone reports whether the request is for one GPU and has none yet, so that
// there is nothing it could be joined to.
func (r *Request) alone() bool { return r.Count+len(r.Together) <= 1 }
