package placement

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// labelledPool has GPUs in boxes with labels at random, and a free part slot on each.
func labelledPool(rng *rand.Rand, boxes, labels int) *Pool {
	p := NewPool()
	for i := range boxes {
		setLabelled(p, rng, i, labels)
	}
	return p
}

func setLabelled(p *Pool, rng *rand.Rand, i, labels int) {
	b := Box{ID: fmt.Sprintf("b%05d", i), Labels: map[string]string{"name": fmt.Sprint(i)}}
	for k := range labels {
		b.Labels[fmt.Sprint("l", k)] = fmt.Sprint(rng.IntN(2))
	}
	for g := range uint32(2) {
		part := Part{Memory: rng.Uint64N(80 * gib), Compute: rng.Uint32N(Whole), Share: Space, PartRules: PartRules{Tenant: "t"}}
		if rng.IntN(2) == 0 {
			part.AntiAffinity = "replica"
		}
		b.GPUs = append(b.GPUs, GPU{Slot: g, Model: "A100", Memory: 80 * gib, Usable: true, Modes: NewShareModes(Space)})
		b.Parts = append(b.Parts, PartSlot{Slot: 8 + 2*g, GPU: g, Usable: true, Taken: true, Part: part}, PartSlot{Slot: 9 + 2*g, GPU: g, Usable: true})
	}
	p.SetBox(b)
}

// askLabelled draws a request with some labels.
func askLabelled(rng *rand.Rand, labels int) *Request {
	req := &Request{Count: 1, Part: &Part{Memory: 60*gib + rng.Uint64N(20*gib), Compute: 900 + rng.Uint32N(100), PartRules: PartRules{Tenant: "t"}}, Labels: map[string]string{}}
	for k := range labels {
		if rng.IntN(3) > 0 {
			req.Labels[fmt.Sprint("l", k)] = fmt.Sprint(rng.IntN(2))
		}
	}
	if rng.IntN(2) == 0 {
		req.Part.AntiAffinity = "replica"
	}
	return req
}

// The scan finds the GPU that a question to each GPU finds, also after boxes have changed and gone.
func TestScanFindsTheBest(t *testing.T) {
	const boxes, labels = 300, 4
	rng := rand.New(rand.NewPCG(11, 12))
	p := labelledPool(rng, boxes, labels)
	found := 0
	for range 500 {
		if i := rng.IntN(boxes); rng.IntN(3) == 0 {
			p.RemoveBox(fmt.Sprintf("b%05d", i))
		} else {
			setLabelled(p, rng, i, labels)
		}
		req := askLabelled(rng, labels)
		want := &partSearch{pool: p, req: req, part: req.Part}
		p.shared.all.Ascend(func(g *sharedGPU) bool {
			want.consider(g)
			return true
		})
		got := &partSearch{pool: p, req: req, part: req.Part}
		if got.scan(boxes * 2); got.best != want.best {
			t.Fatalf("%v with labels %v: %s, want %s", req.Part, req.Labels, got, want)
		}
		if got.best != nil {
			found++
		}
	}
	if found < 100 || found > 400 {
		t.Errorf("%d requests of 500 have a place", found)
	}
	for i := range boxes {
		p.RemoveBox(fmt.Sprintf("b%05d", i))
	}
	if x := &p.labels; len(x.with) > 0 || len(x.boxes) != len(x.free) || len(x.boxes) > boxes {
		t.Errorf("%d labels and %d of %d numbers are left", len(x.with), len(x.boxes)-len(x.free), len(x.boxes))
	}
}

// hostilePool has many GPUs that all lack one of the labels of a request, or have a replica of its
// tenant, but for some at the end.
func hostilePool(boxes, labels, places int) (*Pool, *Request) {
	p := NewPool()
	want := map[string]string{}
	for k := range labels {
		want[fmt.Sprint("l", k)] = strings.Repeat("x", 200)
	}
	part := Part{Memory: 10 * gib, Compute: 100, Share: Space, PartRules: PartRules{Tenant: "t", AntiAffinity: "replica"}}
	for i := range boxes {
		b := Box{ID: fmt.Sprintf("b%05d", i), Labels: maps.Clone(want)}
		taken := part
		switch {
		case i >= boxes-places:
			taken.AntiAffinity = ""
		case i%2 == 0:
			taken.AntiAffinity = ""
			b.Labels[fmt.Sprint("l", i/2%labels)] = "y"
		}
		for g := range uint32(8) {
			b.GPUs = append(b.GPUs, GPU{Slot: g, Model: "A100", Memory: 80 * gib, Usable: true, Modes: NewShareModes(Space)})
			b.Parts = append(b.Parts, PartSlot{Slot: 8 + 2*g, GPU: g, Usable: true, Taken: true, Part: taken}, PartSlot{Slot: 9 + 2*g, GPU: g, Usable: true})
		}
		p.SetBox(b)
	}
	return p, &Request{Count: 1, Part: &part, Labels: want}
}

// A scan asks no GPU that the tables exclude, and few of those that can have the part.
func TestScanIsBounded(t *testing.T) {
	for _, places := range []int{0, 1, 100} {
		p, req := hostilePool(2000, 64, places)
		s := &partSearch{pool: p, req: req, part: req.Part}
		if s.search(); s.best != nil && places == 0 || !s.cut {
			t.Fatalf("the search ends with %s, cut %t", s, s.cut)
		}
		s.best, s.tries = nil, 0
		if s.scan(maxFound); s.tries > min(8*places, maxFound) || s.best == nil && places > 0 {
			t.Errorf("%d places: %s after %d GPUs", places, s, s.tries)
		}
		if d := p.Place(Reserve{}, *req); d.OK() != (places > 0) {
			t.Errorf("%d places: %v", places, d.Why)
		}
	}
}

func TestNumbers(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	var sets [2]numbers
	var want [2]map[uint32]bool
	for i := range sets {
		want[i] = map[uint32]bool{}
		for range 1000 {
			n := rng.Uint32N(300) * rng.Uint32N(300)
			if rng.IntN(3) == 0 {
				sets[i].clear(n)
				delete(want[i], n)
			} else {
				sets[i].set(n)
				want[i][n] = true
			}
		}
	}
	check := func(s numbers, want map[uint32]bool) {
		t.Helper()
		bits := s.bits()
		for n := range uint32(300 * 300) {
			if hasBit(bits, n) != want[n] {
				t.Fatalf("%d: %t", n, !want[n])
			}
		}
		if slices.ContainsFunc(s, func(w word) bool { return w.bits == 0 }) {
			t.Error("an empty word")
		}
	}
	check(sets[0], want[0])
	both := slices.Clone(sets[0])
	both.keep(sets[1])
	maps.DeleteFunc(want[0], func(n uint32, _ bool) bool { return !want[1][n] })
	check(both, want[0])
}

// BenchmarkScanPart decides on a part in a pool of 100,000 GPUs, all but those of one box of which
// its 64 labels or its anti-affinity exclude.
func BenchmarkScanPart(b *testing.B) {
	p, req := hostilePool(12_500, 64, 1)
	measure(b, func() time.Duration {
		start := processorTime(b)
		if d := p.Place(Reserve{}, *req); !d.OK() {
			b.Fatal(d.Why)
		}
		return processorTime(b) - start
	})
}
