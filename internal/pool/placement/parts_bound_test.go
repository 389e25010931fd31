package placement

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

const gib = 1 << 30

// bare adds GPUs of 80 GiB to the index of shared GPUs, eight in a box and 64 in a rack,
// with what room returns left of them.
func bare(p *Pool, n int, room func(i int) room) {
	var box *Box
	for i := range n {
		if i%8 == 0 {
			box = &Box{ID: fmt.Sprintf("b%05d", i/8), Kind: PCIeSwitch, Location: Location{Rack: fmt.Sprintf("r%04d", i/64)}}
		}
		p.shared.add(&sharedGPU{
			box: box, gpu: GPU{Slot: uint32(i % 8)}, class: sharedClass{traits: traitsOf(box), model: "A100", memory: 80 * gib, share: Space},
			state: state{room: room(i)}, parts: 1, slots: []uint32{8}, usable: true,
		})
	}
}

// hostileRooms are what parts may leave of GPUs.
func hostileRooms() map[string]func(int) room {
	rng := rand.New(rand.NewPCG(5, 6))
	return map[string]func(int) room{
		"alike":    func(int) room { return room{40 * gib, 500} },
		"uniform":  func(int) room { return room{rng.Uint64N(80 * gib), rng.Uint32N(Whole)} },
		"in steps": func(int) room { return room{rng.Uint64N(80) * gib, 10 * rng.Uint32N(100)} },
		"of equal sum": func(int) room {
			c := rng.Uint32N(Whole)
			return room{leastBytes(Whole-1-c, 80*gib) + rng.Uint64N(50<<20), c}
		},
		"of one resource": func(i int) room {
			c := rng.Uint32N(Whole)
			if i%2 == 0 {
				return room{79 * gib, c}
			}
			return room{leastBytes(c, 80*gib), Whole - 1 - rng.Uint32N(60)}
		},
		// Parts of 30 GiB, which is a thousandth that begins 10 MiB before.
		"a byte less": func(int) room { return room{30*gib + 50<<20 - 1, 1 + rng.Uint32N(Whole-1)} },
		"a byte less and more": func(i int) room {
			return room{30*gib + 50<<20 - 1 + uint64(i%2)*rng.Uint64N(20*gib), 1 + rng.Uint32N(Whole-1)}
		},
	}
}

// typicalMixes are requests that tenants may have made: as many kinds as count.
func typicalMixes() map[string][]Typical {
	rng := rand.New(rand.NewPCG(7, 8))
	out := map[string][]Typical{"usual": nil}
	for i := range uint64(maxTypical) {
		add := func(mix string, memory uint64, compute uint32) {
			out[mix] = append(out[mix], Typical{Memory: memory, Compute: compute, Count: 100 + rng.IntN(100)})
		}
		add("any", 1+rng.Uint64N(80*gib-1), 1+rng.Uint32N(Whole-1))
		add("small", (i+1)*gib/8, uint32(10+3*i))
		add("large", 80*gib-i*gib/4, uint32(Whole-4*i))
		add("of one resource", (64-i)*gib, uint32(10+15*i))
	}
	return out
}

// TestPartSearchIsBounded decides in pools that are made to be slow, and compares some
// decisions with those of a scan of all GPUs.
func TestPartSearchIsBounded(t *testing.T) {
	const gpus, mostCells, mostTries, decisions, compared = 100_000, 6500, 2, 100, 1
	rooms, mixes := hostileRooms(), typicalMixes()
	for _, name := range slices.Sorted(maps.Keys(rooms)) {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			p := NewPool()
			bare(p, gpus, rooms[name])
			cells, tries := 0, 0
			for _, mix := range slices.Sorted(maps.Keys(mixes)) {
				p.SetTypical(mixes[mix])
				for i := range decisions {
					part := Part{Memory: 1 + rng.Uint64N(60*gib), Compute: 1 + rng.Uint32N(700)}
					if i%2 == 0 {
						part = Part{Memory: 30*gib + 50<<20, Compute: 1 + rng.Uint32N(9)}
					}
					s := searchFor(p, part)
					s.search()
					cells, tries = max(cells, s.cells), max(tries, s.tries)
					if i >= compared {
						continue
					}
					all := searchFor(p, part)
					if all.scan(gpus); all.best != s.best {
						t.Fatalf("%v with requests %s: %s, and by a scan %s", &part, mix, s, all)
					}
				}
			}
			if t.Logf("at most %d cells and %d GPUs", cells, tries); cells > mostCells || tries > mostTries {
				t.Errorf("want at most %d and %d", mostCells, mostTries)
			}
		})
	}
}

func searchFor(p *Pool, part Part) *partSearch {
	req := &Request{Count: 1, Part: &part, Near: &Location{Rack: "r0007"}}
	req.setSite()
	return &partSearch{pool: p, req: req, part: req.Part}
}

func (s *partSearch) String() string {
	if s.best == nil {
		return "none"
	}
	return fmt.Sprintf("%s at %d with %+v", s.best.ref(), s.cost, s.best.state.room)
}

// TestAntiAffinityIsBounded has a tenant with a replica on all GPUs but one, which is the
// last one of all. A search gives up early for a free GPU; without one it finds the last one.
func TestAntiAffinityIsBounded(t *testing.T) {
	const boxes = 1000
	p := NewPool()
	replica := Part{Memory: 10 * gib, Compute: 100, Share: Space, PartRules: PartRules{Tenant: "t", AntiAffinity: "replica"}}
	set := func(i int, part Part) {
		p.SetBox(Box{
			ID: fmt.Sprintf("b%05d", i), GPUs: []GPU{{Model: "A100", Memory: 80 * gib, Usable: true, Modes: NewShareModes(Space)}},
			Parts: []PartSlot{{Slot: 8, Usable: true, Taken: true, Part: part}, {Slot: 9, Usable: true}},
		})
	}
	other := replica
	other.Tenant = "other"
	for i := range boxes - 1 {
		set(i, replica)
	}
	req := Request{Count: 1, Part: &replica}
	s := &partSearch{pool: p, req: &req, part: req.Part}
	if s.search(); s.best != nil || s.tries > 0 {
		t.Errorf("%s after %d GPUs: all have a replica", s, s.tries)
	}
	set(boxes-1, other)
	s = &partSearch{pool: p, req: &req, part: req.Part}
	if s.search(); s.best != nil || s.tries != maxTries {
		t.Errorf("%s after %d GPUs, want none after %d", s, s.tries, maxTries)
	}
	if d := p.Place(Reserve{}, req); !d.OK() || d.Picks[0].Box != fmt.Sprintf("b%05d", boxes-1) {
		t.Errorf("%v: the last GPU has room", d.Why)
	}
	free := GPU{Model: "A100", Memory: 80 * gib, Usable: true, Free: true, Modes: NewShareModes(Space)}
	p.SetBox(Box{ID: "free", GPUs: []GPU{free}, Parts: []PartSlot{{Slot: 8, Usable: true}}})
	if d := p.Place(Reserve{}, req); !d.OK() || d.Picks[0].Box != "free" {
		t.Errorf("%v: a GPU is free", d.Why)
	}
}

// TestRefusalLooksAtFewGPUs explains a refusal by some of the GPUs of a large pool.
func TestRefusalLooksAtFewGPUs(t *testing.T) {
	p := NewPool()
	bare(p, 3*maxExplained, func(i int) room { return room{gib, 100} })
	d := p.Place(Reserve{}, Request{Count: 1, Part: &Part{Memory: 2 * gib, Compute: 50}})
	const want = "Of the first 1000 of 3000 GPUs that parts share, 1000 lack the memory."
	if d.OK() || !slices.Contains(d.Why, want) {
		t.Errorf("%q, want %q", d.Why, want)
	}
}

// TestPlaneForgetsWhatItLoses adds and removes GPUs, and compares the plane with one that
// never had the removed ones.
func TestPlaneForgetsWhatItLoses(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	p := NewPool()
	bare(p, 2000, func(int) room { return room{rng.Uint64N(8) * 10 * gib / 3, 10 * rng.Uint32N(6)} })
	var all []*sharedGPU
	p.shared.all.Ascend(func(g *sharedGPU) bool {
		g.averse = []partLabel{{"t", fmt.Sprint(rng.IntN(9))}}[:rng.IntN(2)]
		all = append(all, g)
		return true
	})
	p.shared = newShared()
	for _, g := range all {
		p.shared.add(g)
	}
	rng.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	for len(all) > 0 {
		n := min(len(all), 1+rng.IntN(100))
		for _, g := range all[:n] {
			p.shared.remove(g)
		}
		all = all[n:]
		want := newShared()
		for _, g := range all {
			want.add(g)
		}
		if got, want := describePlanes(&p.shared), describePlanes(&want); !slices.Equal(got, want) {
			t.Fatalf("with %d GPUs left: %v, want %v", len(all), got, want)
		}
	}
}

func describePlanes(x *shared) (out []string) {
	describe := func(name string, p *plane) {
		for _, b := range p.blocks {
			out = append(out, fmt.Sprint(name, p.gpus.Len(), *b))
		}
		for l, a := range p.averse {
			out = append(out, fmt.Sprint(name, l, a.len()))
		}
	}
	for _, of := range x.classes {
		for _, p := range of {
			describe("all", p)
			for rack, in := range p.racks {
				describe(rack, in)
			}
		}
	}
	slices.Sort(out)
	return append(out, fmt.Sprint(x.all.Len()))
}

// TestPartsAvoidFullUplinks has GPUs of equal cost. The nearest one wins, though others are
// tighter or first by name.
func TestPartsAvoidFullUplinks(t *testing.T) {
	for name, near := range map[string]room{"alike": {8 * gib, 100}, "with more room": {16 * gib, 120}} {
		t.Run(name, func(t *testing.T) {
			p := NewPool()
			bare(p, 192, func(i int) room { // in the racks r0000 to r0002
				if i < 128 {
					return room{8 * gib, 100}
				}
				return near
			})
			req := &Request{Count: 1, Part: &Part{Memory: 8 * gib, Compute: 50}, Near: &Location{Rack: "elsewhere"}, Uplinks: Uplinks{"r0000": true, "r0001": true}}
			req.setSite()
			s := &partSearch{pool: p, req: req, part: req.Part}
			if s.search(); s.best == nil || s.best.box.Rack != "r0002" {
				t.Errorf("%s, want a GPU in the rack whose uplink has room", s)
			}
		})
	}
}
