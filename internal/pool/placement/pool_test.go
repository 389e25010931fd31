package placement

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// answers compares decisions by what they tell.
var answers = cmpopts.IgnoreUnexported(Decision{})

// TestPoolDecidesAsPlace checks the index against Place, for any changes and
// requests, down to the words of the reasons.
func TestPoolDecidesAsPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newReference()
		t.Repeat(m.actions(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				all, _ := m.all()
				for range 4 {
					reserve, req := drawReserve(t), drawRequest(t)
					want, got := Place(all, reserve, req), m.pool.Place(reserve, req)
					if diff := cmp.Diff(want, got, answers); diff != "" {
						t.Fatalf("%+v (-scan +index)\n%s", req, diff)
					}
					req.Silent = true
					want.Why, want.Kept = nil, nil
					if diff := cmp.Diff(want, m.pool.Place(reserve, req), answers); diff != "" {
						t.Fatalf("%+v (-with reasons +silent)\n%s", req, diff)
					}
				}
			},
		}))
	})
}

// The index follows boxes of any size and with any slots, and slots that a box does not have.
func TestSetFreeInAnyBox(t *testing.T) {
	for _, size := range []int{1, 8, 63, maxFlips, maxFlips + 1, 100} {
		for _, stride := range []uint32{1, 3} {
			t.Run(fmt.Sprintf("%d GPUs, each %d slots", size, stride), func(t *testing.T) {
				b := Box{ID: "b", Kind: PCIeSwitch}
				for i := range size {
					b.GPUs = append(b.GPUs, GPU{Slot: uint32(i) * stride, Model: "A", Usable: i != 2, Free: true})
				}
				p := NewPool()
				p.SetBox(b)
				set := func(free bool, slots ...uint32) {
					p.SetFree("b", slots, free)
					for i := range b.GPUs {
						if slices.Contains(slots, b.GPUs[i].Slot) {
							b.GPUs[i].Free = free
						}
					}
					for _, n := range []int{1, 2, size - 3, size - 2, size - 1, size} {
						req := Request{Count: n, Model: "A"}
						if diff := cmp.Diff(Place([]Box{b}, Reserve{}, req), p.Place(Reserve{}, req), answers); diff != "" {
							t.Fatalf("after %v are free: %v, %d GPUs (-scan +index)\n%s", slots, free, n, diff)
						}
					}
				}
				last := uint32(size-1) * stride
				set(false, last, last, 0)
				set(false, 1, last+1, 1<<31)
				set(true, last)
				set(true, 0, 1, 2)
				set(false, 2*stride, 4*stride)
			})
		}
	}
}

func drawBoxID(t *rapid.T) string { return fmt.Sprintf("b%d", rapid.IntRange(0, 9).Draw(t, "box")) }

func drawBox(t *rapid.T) Box {
	b := Box{
		ID: drawBoxID(t), Kind: Kind(rapid.IntRange(0, 2).Draw(t, "kind")), Location: drawLocation(t),
		ProxyGPUs: rapid.SampledFrom([]int{0, 0, 1, 2, 4}).Draw(t, "proxy"),
	}
	if rapid.Bool().Draw(t, "labelled") { // boxes without labels differ by the rest alone
		b.Labels = drawLabels(t)
	}
	stride := rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "stride")
	for i := range rapid.IntRange(0, 8).Draw(t, "gpus") {
		b.GPUs = append(b.GPUs, drawGPU(t, uint32(i*stride)))
	}
	return b
}

func drawGPU(t *rapid.T, slot uint32) GPU {
	return GPU{
		Slot: slot, Model: rapid.SampledFrom([]string{"A", "A", "A", "B"}).Draw(t, "model"),
		Memory: uint64(rapid.SampledFrom([]int{16, 16, 16, 24, 32, 40, 48, 80, 96}).Draw(t, "memory")),
		Domain: rapid.SampledFrom([]string{"", "d0", "d0", "d1"}).Draw(t, "domain"),
		Switch: rapid.SampledFrom([]string{"", "s0", "s0", "s1", "s2"}).Draw(t, "switch"),
		Usable: rapid.IntRange(0, 9).Draw(t, "usable") > 0, Free: rapid.IntRange(0, 3).Draw(t, "free") > 0,
		Restriction: drawRestriction(t),
	}
}

// drawLocation draws few racks and few sets of paths, one of which has nothing in
// common with another.
func drawLocation(t *rapid.T) Location {
	return Location{
		Rack:  rapid.SampledFrom([]string{"", "r1", "r1", "r2", "r3"}).Draw(t, "rack"),
		Paths: rapid.SampledFrom([]Paths{0, 1, 1, 3, 3, 4}).Draw(t, "paths"),
	}
}

func drawUplinks(t *rapid.T) Uplinks {
	return rapid.SampledFrom([]Uplinks{nil, {"r1": true}, {"r2": true}, {"r1": true, "r2": true, "r3": true}}).Draw(t, "uplinks")
}

func drawReserve(t *rapid.T) Reserve {
	return Reserve{
		Count:    rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "spares"),
		Fraction: rapid.SampledFrom([]float64{0, 0, 0.1}).Draw(t, "fraction"),
	}
}

func drawRequest(t *rapid.T) Request {
	preference := rapid.SampledFrom([]Preference{Indifferent, Indifferent, Preferred, Required, Avoided})
	var near *Location
	if rapid.Bool().Draw(t, "near") {
		at := drawLocation(t)
		near = &at
	}
	var labels map[string]string
	if rapid.IntRange(0, 3).Draw(t, "labelled") == 0 {
		labels = drawLabels(t)
	}
	return Request{
		Near: near, Uplinks: drawUplinks(t), Labels: labels,
		Count:     rapid.SampledFrom([]int{0, 1, 1, 2, 3, 4, 8, 12, 20}).Draw(t, "count"),
		Model:     rapid.SampledFrom([]string{"", "A", "A", "B", "C"}).Draw(t, "model"),
		MinMemory: uint64(rapid.SampledFrom([]int{0, 0, 16, 20, 30, 40, 48, 80, 90, 100}).Draw(t, "least")),
		Kind:      Kind(rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "kind")),
		NVLink:    preference.Draw(t, "nvlink"),
		SameBox:   preference.Draw(t, "same"),
		Exclude:   drawRefs(t, "exclude"),
		Together:  drawRefs(t, "together"),
		UseSpares: rapid.Bool().Draw(t, "use"), Tolerations: drawTolerations(t),
		Room: rapid.SampledFrom([]map[string]int{nil, nil, nil, {"A": 2}, {"A": 0, "B": 3}}).Draw(t, "room"),
	}
}

func drawRefs(t *rapid.T, name string) []Ref {
	var out []Ref
	for range rapid.SampledFrom([]int{0, 0, 0, 1, 2, 5}).Draw(t, name) {
		out = append(out, Ref{drawBoxID(t), uint32(rapid.IntRange(0, 8).Draw(t, "slot"))})
	}
	return out
}

// TestPoolForgets checks that the index keeps nothing of boxes that were removed.
func TestPoolForgets(t *testing.T) {
	p := NewPool()
	for i := range 20 {
		p.SetBox(box(fmt.Sprint("b", i), Kind(i%3), fmt.Sprint("m", i%3), "..x!"))
	}
	p.SetGPU("b0", GPU{Slot: 1, Model: "other", Usable: true, Free: true})
	p.SetGPU("b0", GPU{Slot: 1, Model: "m0", Usable: true, Free: true})
	if p.models["other"] != nil {
		t.Error("the index keeps a model without boxes")
	}
	for i := range 20 {
		p.RemoveBox(fmt.Sprint("b", i))
	}
	if len(p.boxes)+len(p.models) != 0 {
		t.Errorf("the index keeps %d boxes and %d models", len(p.boxes), len(p.models))
	}
	if n := len(p.alikes.of) - len(p.alikes.left); n+len(p.alikes.at) != 0 {
		t.Errorf("the index keeps %d records of GPUs that are alike under %d keys", n, len(p.alikes.at))
	}
}

// TestPoolBoundsViews checks that views for memory sizes are built on demand, and bounded.
func TestPoolBoundsViews(t *testing.T) {
	p := NewPool()
	b := Box{ID: "b"}
	for i := range 32 {
		b.GPUs = append(b.GPUs, GPU{Slot: uint32(i), Model: "A", Memory: uint64(i), Usable: true, Free: true})
	}
	p.SetBox(b)
	for i := range 32 {
		d := p.Place(Reserve{}, Request{Count: 1, MinMemory: uint64(i)})
		if !d.OK() || d.Picks[0].Slot != uint32(i) {
			t.Errorf("at least %d: %v", i, d)
		}
	}
	if n := len(p.models["A"].views); n != maxViews {
		t.Errorf("%d views, want %d", n, maxViews)
	}
}

// benchPool returns a pool, as boxes and as an index, with about half of its GPUs bound.
func benchPool(boxes int) ([]Box, *Pool) {
	var all []Box
	pool := NewPool()
	for i := range boxes {
		b := box(fmt.Sprintf("box-%05d", i), Kind(1+i%2), fmt.Sprint("model-", i%4), "........")
		b.ProxyGPUs = 6
		for j := range i % 9 {
			b.GPUs[j].Free = false
		}
		all = append(all, b)
		pool.SetBox(b)
	}
	return all, pool
}

func BenchmarkPool(b *testing.B) {
	for _, boxes := range []int{64, 12500} {
		_, pool := benchPool(boxes)
		for _, req := range []Request{
			{Count: 1},
			{Count: 1, Model: "model-1"},
			{Count: 8, Model: "model-1", SameBox: Required},
			{Count: 8, Model: "model-2", SameBox: Avoided},
		} {
			b.Run(fmt.Sprintf("boxes=%d/count=%d/model=%s/same=%d", boxes, req.Count, req.Model, req.SameBox), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if d := pool.Place(Reserve{Count: 4}, req); !d.OK() {
						b.Fatal(d.Why)
					}
				}
			})
		}
		b.Run(fmt.Sprintf("boxes=%d/bind", boxes), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				g := GPU{Slot: 7, Model: "model-0", Memory: 16 << 30, Usable: true, Free: i%2 == 0}
				pool.SetGPU("box-00004", g)
			}
		})
	}
}

// BenchmarkRefusal refuses requests with the reasons. A tenant can repeat such a request, and each one
// takes its time under the lock of the leader.
func BenchmarkRefusal(b *testing.B) {
	_, pool := benchPool(12500)
	for _, r := range []struct {
		name string
		req  Request
	}{
		{"memory", Request{Count: 1, MinMemory: 1 << 40}},
		{"label", Request{Count: 1, Labels: map[string]string{"zone": "west"}}},
		{"model", Request{Count: 8, Model: "none"}},
		{"count", Request{Count: 500000}},
	} {
		b.Run(r.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d := pool.Place(Reserve{Count: 4}, r.req); d.OK() {
					b.Fatal("granted")
				}
			}
		})
	}
}
