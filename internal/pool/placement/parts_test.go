package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// partPool is a pool of boxes with GPUs that can be divided, beside what its parts hold.
type partPool struct {
	*Pool
	boxes map[string]*Box
	held  []heldPart
}

type heldPart struct {
	at   Ref // the slot
	gpu  Ref
	part Part
}

// newPartPool returns boxes of four GPUs of 80 GiB with some slots for parts each.
func newPartPool(boxes, slots int) *partPool {
	p := &partPool{Pool: NewPool(), boxes: map[string]*Box{}}
	for i := range boxes {
		b := &Box{ID: fmt.Sprintf("b%d", i), Kind: PCIeSwitch, Location: Location{Rack: fmt.Sprintf("r%d", i%3)}}
		for g := range uint32(4) {
			b.GPUs = append(b.GPUs, GPU{Slot: g, Model: "A100", Memory: 80 << 30, Usable: true, Free: true, Modes: NewShareModes(Space, Time)})
			for k := range uint32(slots) {
				b.Parts = append(b.Parts, PartSlot{Slot: 100 + g*16 + k, GPU: g, Usable: true})
			}
		}
		p.boxes[b.ID] = b
		p.SetBox(*b)
	}
	return p
}

// set gives a slot a part, or takes it away.
func (p *partPool) set(at Ref, part *Part) (gpu Ref) {
	b := p.boxes[at.Box]
	b.GPUs, b.Parts = slices.Clone(b.GPUs), slices.Clone(b.Parts)
	s := &b.Parts[slices.IndexFunc(b.Parts, func(s PartSlot) bool { return s.Slot == at.Slot })]
	if s.Taken = part != nil; part != nil {
		s.Part = *part
	} else {
		s.Part = Part{}
	}
	for i := range b.GPUs {
		b.GPUs[i].Free = !slices.ContainsFunc(b.Parts, func(s PartSlot) bool { return s.Taken && s.GPU == b.GPUs[i].Slot })
	}
	gpu = Ref{at.Box, s.GPU}
	p.SetBox(*b)
	return gpu
}

// lease places a part and keeps it.
func (p *partPool) lease(part Part) Decision {
	d := p.Place(Reserve{}, Request{Count: 1, Part: &part})
	if d.OK() {
		part.Share = d.Share
		p.held = append(p.held, heldPart{d.Picks[0], p.set(d.Picks[0], &part), part})
	}
	return d
}

func (p *partPool) gpuOf(d Decision) Ref {
	return p.held[slices.IndexFunc(p.held, func(h heldPart) bool { return h.at == d.Picks[0] })].gpu
}

func TestPartGoesToASharedGPU(t *testing.T) {
	p := newPartPool(2, 8)
	first := p.lease(Part{Memory: 16 << 30, Compute: 300})
	second := p.lease(Part{Memory: 16 << 30, Compute: 300})
	if !first.OK() || !second.OK() || p.gpuOf(first) != p.gpuOf(second) {
		t.Fatalf("%v and %v are on two GPUs", first, second)
	}
	third := p.lease(Part{Memory: 16 << 30, Compute: 500})
	if p.gpuOf(third) == p.gpuOf(first) {
		t.Errorf("a GPU has 1100 thousandths: %v", third.Why)
	}
}

func TestWholeGPUsAndPartsExcludeEachOther(t *testing.T) {
	p := newPartPool(1, 8)
	p.lease(Part{Memory: 1, Compute: 1})
	d := p.Place(Reserve{}, Request{Count: 4})
	if d.OK() {
		t.Errorf("4 whole GPUs beside a part: %v", d.Picks)
	}
	b := p.boxes["b0"]
	for i := range b.GPUs {
		b.GPUs[i].Free, b.GPUs[i].Whole = false, true
	}
	p.SetBox(*b)
	if d := p.Place(Reserve{}, Request{Count: 1, Part: &Part{Memory: 1, Compute: 1}}); d.OK() {
		t.Errorf("a part on a GPU that is bound whole: %v", d.Picks)
	}
}

func TestPartRules(t *testing.T) {
	small := func(r PartRules) Part { return Part{Memory: 1 << 30, Compute: 50, PartRules: r} }
	t.Run("affinity", func(t *testing.T) {
		p := newPartPool(2, 8)
		a := p.lease(small(PartRules{Tenant: "t", Affinity: "x"}))
		p.lease(Part{Memory: 1 << 30, Compute: 800})
		b := p.lease(small(PartRules{Tenant: "t", Affinity: "x"}))
		if p.gpuOf(a) != p.gpuOf(b) {
			t.Errorf("the parts are on two GPUs: %v", b.Why)
		}
		if d := p.lease(Part{Memory: 1, Compute: 999, PartRules: PartRules{Tenant: "t", Affinity: "x"}}); d.OK() || !strings.Contains(strings.Join(d.Why, " "), "1 lacks the compute") {
			t.Errorf("a part that must join a full GPU: %v", d)
		}
	})
	t.Run("affinity to a cordoned GPU", func(t *testing.T) {
		p := newPartPool(2, 8)
		a := p.lease(small(PartRules{Tenant: "t", Affinity: "x"}))
		cordon := func(usable bool) {
			b := p.boxes[p.gpuOf(a).Box]
			b.GPUs = slices.Clone(b.GPUs)
			for i := range b.GPUs {
				b.GPUs[i].Usable = usable || b.GPUs[i].Slot != p.gpuOf(a).Slot
			}
			p.SetBox(*b)
		}
		cordon(false)
		if d := p.Place(Reserve{}, Request{Count: 1, Part: &Part{Memory: 1 << 30, Compute: 50, PartRules: PartRules{Tenant: "t", Affinity: "x"}}}); d.OK() || !strings.Contains(strings.Join(d.Why, " "), "1 is cordoned, has failed or does not report") {
			t.Errorf("a part that must join a cordoned GPU: %v", d)
		}
		if d := p.lease(small(PartRules{Tenant: "t"})); p.gpuOf(d) == p.gpuOf(a) {
			t.Error("a part is on the cordoned GPU")
		}
		cordon(true)
		if d := p.lease(small(PartRules{Tenant: "t", Affinity: "x"})); p.gpuOf(d) != p.gpuOf(a) {
			t.Errorf("the parts are on two GPUs: %v", d.Why)
		}
	})
	t.Run("anti-affinity", func(t *testing.T) {
		p := newPartPool(1, 8)
		seen := map[Ref]bool{}
		for range 4 {
			d := p.lease(small(PartRules{Tenant: "t", AntiAffinity: "replica"}))
			if !d.OK() || seen[p.gpuOf(d)] {
				t.Fatalf("%v: two replicas on one GPU", d.Why)
			}
			seen[p.gpuOf(d)] = true
		}
		if d := p.lease(small(PartRules{Tenant: "t", AntiAffinity: "replica"})); d.OK() {
			t.Errorf("a fifth replica on four GPUs: %v", d)
		} else if !strings.Contains(strings.Join(d.Why, " "), "4 have a part with the same anti-affinity") {
			t.Errorf("the reason is missing: %v", d.Why)
		}
		if d := p.lease(small(PartRules{Tenant: "other", AntiAffinity: "replica"})); !d.OK() {
			t.Errorf("another tenant's label counts: %v", d.Why)
		}
	})
	t.Run("exclusion", func(t *testing.T) {
		p := newPartPool(2, 8)
		a := p.lease(small(PartRules{Tenant: "t", Exclusion: "x"}))
		b := p.lease(small(PartRules{Tenant: "t", Exclusion: "x"}))
		c := p.lease(small(PartRules{Tenant: "other", Exclusion: "x"}))
		d := p.lease(small(PartRules{Tenant: "t"}))
		if p.gpuOf(a) != p.gpuOf(b) || p.gpuOf(c) == p.gpuOf(a) || p.gpuOf(d) == p.gpuOf(a) || p.gpuOf(d) == p.gpuOf(c) {
			t.Errorf("GPUs %v, %v, %v, %v", p.gpuOf(a), p.gpuOf(b), p.gpuOf(c), p.gpuOf(d))
		}
	})
}

// TestInterferenceIsACost lets a part avoid a neighbour that slows it down, and take it
// where nothing else is left.
func TestInterferenceIsACost(t *testing.T) {
	p := newPartPool(1, 8)
	p.SetInterference(Interference{{"a", "b"}: 900, {"b", "a"}: 600})
	part := func(w string) Part {
		return Part{Memory: 30 << 30, Compute: 400, PartRules: PartRules{Workload: w}}
	}
	first := p.lease(part("a"))
	if d := p.lease(part("b")); p.gpuOf(d) == p.gpuOf(first) {
		t.Errorf("b is beside a: %v", d.Why)
	}
	for range 4 {
		p.lease(Part{Memory: 70 << 30, Compute: 900})
	}
	d := p.lease(part("b"))
	if !d.OK() {
		t.Fatalf("interference refuses a part: %v", d.Why)
	}
	d = p.lease(Part{Memory: 1 << 30, Compute: 300, PartRules: PartRules{Workload: "b"}})
	if !d.OK() || p.gpuOf(d) != p.gpuOf(first) {
		t.Fatalf("the last place is beside a: %v", d)
	}
	if !strings.Contains(strings.Join(d.Why, " "), "interference") {
		t.Errorf("the cost is not explained: %v", d.Why)
	}
}

func TestSparesAreHeldBackFromParts(t *testing.T) {
	p := newPartPool(1, 8)
	d := p.Place(Reserve{Count: 4}, Request{Count: 1, Part: &Part{Memory: 1, Compute: 1}})
	if d.OK() {
		t.Errorf("a part opens a spare: %v", d)
	}
}

// TestPromisesAreKeptInAnyOrder has a small part that leaves for a large one, and a large
// one that leaves for a small one. The first promise may be kept before the second: room
// that only both together leave is not free.
func TestPromisesAreKeptInAnyOrder(t *testing.T) {
	g := GPU{Slot: 0, Memory: 100}
	parts := []PartSlot{
		{Slot: 1, Taken: true, Leaving: true, Promise: "x", Part: Part{Memory: 10, Compute: 100}},
		{Slot: 2, Taken: true, Awaited: true, Promise: "x", Part: Part{Memory: 40, Compute: 400}},
		{Slot: 3, Taken: true, Leaving: true, Promise: "y", Part: Part{Memory: 60, Compute: 600}},
		{Slot: 4, Taken: true, Awaited: true, Promise: "y", Part: Part{Memory: 10, Compute: 100}},
	}
	if r := roomOf(&g, parts); r != (room{}) {
		t.Errorf("room %+v", r)
	}
}

// TestNothingJoinsAChangeOfMode has a GPU whose parts leave for one that shares it in another
// way. Until they have left, a third one would share it with either.
func TestNothingJoinsAChangeOfMode(t *testing.T) {
	for name, awaited := range map[string]Part{
		"the same": {Memory: 10, Compute: 100, Share: Space}, "another mode": {Memory: 10, Compute: 100, Share: Time},
		"an exclusion": {Memory: 10, Compute: 100, Share: Space, PartRules: PartRules{Tenant: "a", Exclusion: "x"}},
	} {
		leaving := Part{Memory: 10, Compute: 100, Share: Space}
		p := NewPool()
		p.SetBox(Box{
			ID: "b", GPUs: []GPU{{Slot: 0, Model: "m", Memory: 100, Usable: true, Modes: NewShareModes(Space, Time)}},
			Parts: []PartSlot{
				{Slot: 1, GPU: 0, Usable: true},
				{Slot: 2, GPU: 0, Usable: true},
				{Slot: 1, GPU: 0, Taken: true, Leaving: true, Promise: "x", Part: leaving},
				{Slot: 1, GPU: 0, Taken: true, Awaited: true, Promise: "x", Part: awaited},
			},
		})
		for _, share := range []ShareMode{Space, Time, AnyShare} {
			part := Part{Memory: 10, Compute: 100, Share: share, PartRules: PartRules{Tenant: awaited.Tenant, Exclusion: awaited.Exclusion}}
			d := p.Place(Reserve{}, Request{Count: 1, Part: &part})
			if want := name == "the same" && share != Time; d.OK() != want {
				t.Errorf("%s, %v: placed: %v, want %v: %v", name, share, d.OK(), want, d.Why)
			}
		}
	}
}

// TestPromisedRoom counts room that a leaving part still holds, and that an awaited part
// will have, once each.
func TestPromisedRoom(t *testing.T) {
	g := GPU{Memory: 100}
	parts := []PartSlot{
		{Slot: 1, Taken: true, Leaving: true, Promise: "x", Part: Part{Memory: 60, Compute: 600}},
		{Slot: 2, Taken: true, Awaited: true, Promise: "x", Part: Part{Memory: 70, Compute: 100}},
	}
	if r := roomOf(&g, parts); r != (room{30, 400}) {
		t.Errorf("room %+v, want 30 bytes and 400 thousandths", r)
	}
}

// TestPartsNeverExceedAGPU leases and releases parts at random. No GPU ever has more than
// its memory, its compute or its slots; a refused part has no place by brute force; and
// the chosen place is one of least cost.
func TestPartsNeverExceedAGPU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPartPool(2, 4)
		p.SetTypical([]Typical{{Compute: Whole, Count: 3}, {Memory: 20 << 30, Compute: 250, Count: 5}, {Memory: 50 << 30, Compute: 300, Count: 2}})
		p.SetInterference(Interference{{"a", "b"}: 200})
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(p.held) > 0 && rapid.IntRange(0, 3).Draw(t, "end") == 0 {
				i := rapid.IntRange(0, len(p.held)-1).Draw(t, "which")
				p.set(p.held[i].at, nil)
				p.held = slices.Delete(p.held, i, i+1)
				continue
			}
			part := drawPart(t)
			cost, possible := p.leastCost(&part)
			before := p.costs(&part)
			d := p.lease(part)
			if d.OK() != possible {
				t.Fatalf("%+v: possible %v, decision %v", part, possible, d)
			}
			if d.OK() && before[p.gpuOf(d)] != cost {
				t.Fatalf("%+v: cost %d, the least is %d: %v", part, before[p.gpuOf(d)], cost, d.Why)
			}
			p.check(t)
		}
	})
}

// TestPartCostsLeastOfMany compares the cost of decisions among thousands of states, more than a
// decision looks at, with that of a scan.
func TestPartCostsLeastOfMany(t *testing.T) {
	const boxes, perBox = 250, 8
	rng := rand.New(rand.NewPCG(3, 4))
	draw := func() Part {
		return Part{Memory: uint64(1+rng.IntN(60<<10)) << 20, Compute: uint32(1+rng.IntN(80)) * 10, Share: Space}
	}
	p := NewPool()
	p.SetTypical([]Typical{{Compute: Whole, Count: 50}, {Memory: 20 << 30, Compute: 250, Count: 30}, {Memory: 40 << 30, Compute: 500, Count: 20}, {Memory: 5 << 30, Compute: 700, Count: 9}})
	for i := range boxes {
		b := Box{ID: fmt.Sprintf("b%05d", i), Kind: PCIeSwitch}
		for g := range uint32(perBox) {
			b.GPUs = append(b.GPUs, GPU{Slot: g, Model: "A100", Memory: 80 << 30, Usable: true, Modes: NewShareModes(Space)})
			b.Parts = append(b.Parts, PartSlot{Slot: 8 + 2*g, GPU: g, Usable: true, Taken: true, Part: draw()}, PartSlot{Slot: 9 + 2*g, GPU: g, Usable: true})
		}
		p.SetBox(b)
	}
	l := p.lossOf("A100", 80<<30)
	cost := func(r room, part *Part) int64 { return l.gradient(r, 80<<30, part) }
	for range 300 {
		part := draw()
		least, possible := int64(0), false
		for _, of := range p.shared.boxes {
			for _, g := range of {
				if !g.state.fits(&part) {
					continue
				}
				if c := cost(g.state.room, &part); !possible || c < least {
					least, possible = c, true
				}
			}
		}
		d := p.Place(Reserve{}, Request{Count: 1, Part: &part})
		if d.OK() != possible {
			t.Fatalf("%v: possible %v: %v", &part, possible, d.Why)
		}
		if !possible {
			continue
		}
		at := slices.IndexFunc(p.shared.boxes[d.Picks[0].Box], func(g *sharedGPU) bool { return g.slots[0] == d.Picks[0].Slot })
		if got := cost(p.shared.boxes[d.Picks[0].Box][at].state.room, &part); got != least {
			t.Errorf("%v: cost %d, the least is %d", &part, got, least)
		}
	}
}

// TestPartDecidesAlike decides the same among many states of several classes: the search is bounded,
// and so the order of the classes counts.
func TestPartDecidesAlike(t *testing.T) {
	const programs = 12
	rng := rand.New(rand.NewPCG(5, 6))
	slow := Interference{}
	for i := range programs {
		for k := range programs {
			slow[[2]string{fmt.Sprint(i), fmt.Sprint(k)}] = rng.Uint32N(600)
		}
	}
	draw := func(compute uint32) *Part {
		return &Part{Memory: uint64(1+rng.IntN(60<<10)) << 20, Compute: 1 + rng.Uint32N(compute), Share: Space, PartRules: PartRules{Workload: fmt.Sprint(rng.IntN(programs))}}
	}
	p := NewPool()
	p.SetInterference(slow)
	for i := range 1600 {
		p.SetBox(Box{
			ID: fmt.Sprintf("b%05d", i), Kind: PCIeSwitch,
			GPUs:  []GPU{{Model: fmt.Sprint(i / 4 % 3), Memory: 80 << 30, Usable: true, Modes: NewShareModes(Space)}},
			Parts: []PartSlot{{Slot: 8, Usable: true, Taken: true, Part: *draw(700)}, {Slot: 9, Usable: true}},
		})
	}
	for range 60 {
		req := Request{Count: 1, Part: draw(300)}
		first := p.Place(Reserve{}, req).Picks
		for range 8 {
			if d := p.Place(Reserve{}, req); !slices.Equal(d.Picks, first) {
				t.Fatalf("%v: %v, and %v before", req.Part, d.Picks, first)
			}
		}
	}
}

func drawPart(t *rapid.T) Part {
	return Part{
		Memory: rapid.Uint64Range(1, 80<<30).Draw(t, "memory"), Compute: rapid.Uint32Range(1, Whole).Draw(t, "compute"), Share: ShareMode(rapid.IntRange(0, 2).Draw(t, "share")),
		PartRules: PartRules{
			Tenant: rapid.SampledFrom([]string{"s", "t"}).Draw(t, "tenant"), AntiAffinity: rapid.SampledFrom([]string{"", "", "x"}).Draw(t, "anti"),
			Exclusion: rapid.SampledFrom([]string{"", "", "y"}).Draw(t, "exclusion"), Workload: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "workload"),
		},
	}
}

// costs returns the cost of each GPU that could take a part, found without the index.
func (p *partPool) costs(part *Part) map[Ref]int64 {
	out := map[Ref]int64{}
	l := p.lossOf("A100", 80<<30)
	for id, b := range p.boxes {
		for _, g := range b.GPUs {
			at := Ref{id, g.Slot}
			left, n, fits := room{80 << 30, Whole}, 0, true
			var beside []neighbour
			for _, h := range p.held {
				if h.gpu != at {
					continue
				}
				n++
				left = left.less(&h.part)
				beside = append(beside, neighbour{h.part.Workload, h.part.Compute})
				same := h.part.Tenant == part.Tenant
				fits = fits && (part.Share == AnyShare || h.part.Share == part.Share) &&
					(h.part.Exclusion == part.Exclusion && (same || part.Exclusion == "")) &&
					(part.AntiAffinity == "" || !same || h.part.AntiAffinity != part.AntiAffinity)
			}
			if fits && n < 4 && left.fits(part) {
				out[at] = l.gradient(left, 80<<30, part) + p.interference.slowdown(part, beside)
			}
		}
	}
	return out
}

func (p *partPool) leastCost(part *Part) (least int64, possible bool) {
	for _, c := range p.costs(part) {
		if !possible || c < least {
			least, possible = c, true
		}
	}
	return least, possible
}

func (p *partPool) check(t *rapid.T) {
	memory, compute := map[Ref]uint64{}, map[Ref]uint32{}
	slots := map[Ref]bool{}
	for _, h := range p.held {
		memory[h.gpu] += h.part.Memory
		compute[h.gpu] += h.part.Compute
		if slots[h.at] || memory[h.gpu] > 80<<30 || compute[h.gpu] > Whole {
			t.Fatalf("GPU %s: %d bytes, %d thousandths, slot %s twice: %v", h.gpu, memory[h.gpu], compute[h.gpu], h.at, slots[h.at])
		}
		slots[h.at] = true
	}
}

// TestSmallestPartsAllocatesLittle bounds the cost of the choice among 4096 sets, which is
// made for many GPUs while the manager's lock is held.
func TestSmallestPartsAllocatesLittle(t *testing.T) {
	var victims []PartVictim
	for i := range maxPartVictims {
		victims = append(victims, PartVictim{Victim: Victim{ID: fmt.Sprint(i), Size: 70 + i, Order: uint64(i)}, Memory: 10, Compute: 70 + uint32(i)})
	}
	if n := testing.AllocsPerRun(1, func() { SmallestParts(victims, 0, 0, 40, 400) }); n > 64 {
		t.Errorf("%v allocations", n)
	}
}
