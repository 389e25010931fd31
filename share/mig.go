package share

import (
	"slices"
	"time"
)

// MIGProfile is a kind of GPU instance of NVIDIA's Multi-Instance GPU. Starts are the
// memory slices at which an instance may begin, of eight.
type MIGProfile struct {
	Name   string
	Slices int   // compute slices, of seven
	Size   int   // memory slices
	SMs    int32 // multiprocessors
	Starts []int
	Most   int // instances of this profile on a GPU; 0: no limit
}

// MIGLayout is what a model of GPU can be divided into.
type MIGLayout struct {
	Profiles []MIGProfile
	Memory   int // memory slices
	Compute  int // compute slices
}

// MIGProfiles are the profiles of an A100 with their placements, as published in NVIDIA's
// MIG user guide and listed by nvidia-smi mig -lgipp.
var MIGProfiles = []MIGProfile{
	{"1g", 1, 1, 14, []int{0, 1, 2, 3, 4, 5, 6}, 0},
	{"1g, double memory", 1, 2, 14, []int{0, 2, 4, 6}, 0},
	{"2g", 2, 2, 28, []int{0, 2, 4}, 0},
	{"3g", 3, 4, 42, []int{0, 4}, 0},
	{"4g", 4, 4, 56, []int{0}, 0},
	{"7g", 7, 8, 98, []int{0}, 0},
}

// MIGA100 is the layout of an A100.
var MIGA100 = MIGLayout{Profiles: MIGProfiles, Memory: 8, Compute: 7}

// MIGInstance is an instance that exists or is planned. A pinned one is in use: it
// cannot be destroyed.
type MIGInstance struct {
	Profile int // index into the layout's Profiles
	Start   int // memory slice
	Pinned  bool
}

// Plan places the profiles want beside the current instances. It moves as few of
// those as possible, and never a pinned one. It returns where the current instances
// lie afterwards and where the wanted ones do, or false if they do not fit.
func (l *MIGLayout) Plan(current []MIGInstance, want []int) (kept, placed []MIGInstance, ok bool) {
	if len(current)+len(want) > l.Compute {
		return nil, nil, false
	}
	s := migSearch{layout: l, best: len(current) + 1}
	for _, i := range current {
		s.items = append(s.items, migItem{profile: i.Profile, at: i.Start, pinned: i.Pinned})
	}
	for _, p := range want {
		s.items = append(s.items, migItem{profile: p, at: -1})
	}
	compute := 0
	count := make([]int, len(l.Profiles))
	for _, i := range s.items {
		if i.profile < 0 || i.profile >= len(l.Profiles) {
			return nil, nil, false
		}
		p := &l.Profiles[i.profile]
		compute += p.Slices
		if count[i.profile]++; p.Most > 0 && count[i.profile] > p.Most {
			return nil, nil, false
		}
	}
	if compute > l.Compute {
		return nil, nil, false
	}
	s.starts = make([]int, len(s.items))
	s.place(0, 0, 0)
	if s.found == nil {
		return nil, nil, false
	}
	for n, i := range s.items {
		x := MIGInstance{Profile: i.profile, Start: s.found[n], Pinned: i.pinned}
		if n < len(current) {
			kept = append(kept, x)
		} else {
			placed = append(placed, x)
		}
	}
	return kept, placed, true
}

// migSearch tries all placements: on the published profiles at most seven instances with
// at most seven starts.
type migSearch struct {
	layout *MIGLayout
	tries  int
	items  []migItem
	starts []int
	found  []int
	best   int // moves of the best placement so far, plus nothing: fewer wins
}

type migItem struct {
	profile, at int // at: where it lies now, -1 for a new one
	pinned      bool
}

// maxMIGTries bounds a search among profiles that a driver lists. Seven instances of one of
// eight memory slices, with eight starts each, take 69,281 tries.
const maxMIGTries = 1 << 20

func (s *migSearch) place(n int, used uint, moves int) {
	if s.tries++; moves >= s.best || s.tries > maxMIGTries {
		return
	}
	if n == len(s.items) {
		s.best, s.found = moves, slices.Clone(s.starts)
		return
	}
	i := s.items[n]
	p := &s.layout.Profiles[i.profile]
	try := func(start, cost int) {
		mask := uint(1<<p.Size-1) << start
		if used&mask == 0 {
			s.starts[n] = start
			s.place(n+1, used|mask, moves+cost)
		}
	}
	if i.at >= 0 {
		try(i.at, 0)
	}
	if i.pinned {
		return
	}
	cost := min(i.at+1, 1) // a new instance moves nothing
	for _, start := range p.Starts {
		if start != i.at {
			try(start, cost)
		}
	}
}

// mig gives each client an instance of MIG: the profile whose compute slices are nearest
// to its request (or its limit, without a request) and whose memory is enough, or the
// next smaller one that can be placed. Instances are created without touching those
// of other clients, and one whose client has neither memory nor launches may move.
// A client for which there is no room is evicted. The rounding is ours.
type mig struct {
	core[migClient]
}

type migClient struct {
	placed bool
	at     MIGInstance
	told   bool
}

func newMIG(d Device, _ Settings) Policy { return &mig{core[migClient]{device: d}} }

// Receive implements Policy.
func (p *mig) Receive(now time.Duration, e Event) {
	c := p.receive(now, &e)
	if c == nil {
		return
	}
	switch e.Kind {
	case Join:
		p.assign(c)
	case Resized: // the instance stays: a client gets another one by leaving
		if c.state.placed {
			c.spec.Memory = min(c.spec.Memory, p.memoryOf(&MIGProfiles[c.state.at.Profile]))
		}
	default:
	}
}

// candidates returns the profiles for a client, best first.
func (p *mig) candidates(c *client[migClient]) []int {
	want := c.spec.Request
	if want == 0 {
		want = c.spec.Limit
	}
	n := int((want*PPM(MIGA100.Compute) + Whole/2) / Whole)
	var list []int
	for i := range slices.Backward(MIGProfiles) {
		m := &MIGProfiles[i]
		if m.Slices <= max(n, 1) && p.memoryOf(m) >= c.spec.Memory {
			list = append(list, i)
		}
	}
	slices.SortStableFunc(list, func(a, b int) int {
		x, y := &MIGProfiles[a], &MIGProfiles[b]
		if x.Slices != y.Slices {
			return y.Slices - x.Slices
		}
		return x.Size - y.Size
	})
	if len(list) == 0 { // only larger profiles have the memory
		for i := range MIGProfiles {
			if p.memoryOf(&MIGProfiles[i]) >= c.spec.Memory {
				list = append(list, i)
			}
		}
	}
	return list
}

func (p *mig) memoryOf(m *MIGProfile) int64 {
	return p.device.Memory * int64(m.Size) / int64(MIGA100.Memory)
}

func (p *mig) assign(c *client[migClient]) {
	var current []MIGInstance
	var owners []*client[migClient]
	for _, o := range p.clients {
		if o.state.placed {
			i := o.state.at
			i.Pinned = o.memory > 0 || o.request > 0 || o.busy()
			current, owners = append(current, i), append(owners, o)
		}
	}
	for _, profile := range p.candidates(c) {
		kept, placed, ok := MIGA100.Plan(current, []int{profile})
		if !ok {
			continue
		}
		for n, o := range owners {
			o.state.at = kept[n]
		}
		c.state = migClient{placed: true, at: placed[0]}
		c.spec.Memory = min(c.spec.Memory, p.memoryOf(&MIGProfiles[profile]))
		return
	}
	p.evictFor(c, ReasonFull)
}

// Transmit implements Policy.
func (p *mig) Transmit(now time.Duration, out []Decision) []Decision {
	out = p.begin(now, out)
	for _, c := range p.clients {
		if !c.state.placed {
			continue
		}
		if !c.state.told {
			c.state.told = true
			out = append(out, Decision{Kind: SetShare, Client: c.id, Share: PPM(MIGProfiles[c.state.at.Profile].SMs) * Whole / PPM(A100.SMs)})
		}
		if c.ready() {
			out = p.permit(c, out, false, 0)
		}
	}
	return out
}

// Wake implements Policy.
func (p *mig) Wake() time.Duration { return p.wake() }
