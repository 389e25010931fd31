package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// BenchmarkPlacePart decides on parts in a pool of 100,000 GPUs, most of which parts of
// random sizes share already. It reports the 99th percentile of a decision beside the mean.
func BenchmarkPlacePart(b *testing.B) {
	const boxes, perBox = 12_500, 8
	rng := rand.New(rand.NewPCG(1, 2))
	draw := func() Part {
		c := uint32(1 + rng.IntN(100))
		p := Part{Memory: uint64(1+rng.IntN(80<<10)) << 20, Compute: 10 * c, Share: Space}
		switch rng.IntN(10) {
		case 0:
			p.PartRules = PartRules{Tenant: fmt.Sprint(rng.IntN(50)), Exclusion: "own"}
		case 1:
			p.PartRules = PartRules{Tenant: fmt.Sprint(rng.IntN(50)), AntiAffinity: "replica"}
		}
		return p
	}
	p := NewPool()
	p.SetTypical([]Typical{{Compute: Whole, Count: 50}, {Memory: 20 << 30, Compute: 250, Count: 30}, {Memory: 40 << 30, Compute: 500, Count: 20}})
	for i := range boxes {
		box := Box{ID: fmt.Sprintf("b%05d", i), Kind: PCIeSwitch, Location: Location{Rack: fmt.Sprintf("r%d", i/8)}}
		for g := range uint32(perBox) {
			gpu := GPU{Slot: g, Model: "A100", Memory: 80 << 30, Usable: true, Free: true, Modes: NewShareModes(Space)}
			for k := range uint32(7) {
				s := PartSlot{Slot: 8 + g*7 + k, GPU: g, Usable: true}
				part := draw()
				part.Exclusion = ""
				if k < 2 && i%10 > 0 && roomOf(&gpu, box.Parts).fits(&part) {
					s.Taken, s.Part, gpu.Free = true, part, false
				}
				box.Parts = append(box.Parts, s)
			}
			box.GPUs = append(box.GPUs, gpu)
		}
		p.SetBox(box)
	}
	near := Location{Rack: "r7"}
	var times []time.Duration
	for b.Loop() {
		part := draw()
		start := time.Now()
		d := p.Place(Reserve{}, Request{Count: 1, Part: &part, Near: &near})
		times = append(times, time.Since(start))
		if !d.OK() {
			b.Fatal(d.Why)
		}
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds()), "p99-ns")
}
