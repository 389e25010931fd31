package placement

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkPlacePart decides on parts in a pool of 100,000 GPUs, most of which parts of
// random sizes share already. It reports the mean and the 99th percentile of a decision in
// processor time, which other programs of the machine disturb less, beside those of the clock.
func BenchmarkPlacePart(b *testing.B) {
	const hosts, perHost = 3000, 8
	rng, p, draw := sharedPool()
	index := NewHosts()
	for i := range hosts {
		h := Host{ID: fmt.Sprintf("h%04d", i), Location: Location{Rack: fmt.Sprintf("r%d", i/4)}, Usable: true}
		for slot := range uint32(perHost) {
			h.Slots = append(h.Slots, HostSlot{Slot: slot, Free: slot > 2})
		}
		index.SetHost(h)
	}
	kinds := func(n int) (out []Typical) {
		for range n {
			part := draw()
			out = append(out, Typical{Memory: part.Memory, Compute: part.Compute, Count: 10 + rng.IntN(10)})
		}
		return out
	}
	few := []Typical{{Compute: Whole, Count: 50}, {Memory: 20 << 30, Compute: 250, Count: 30}, {Memory: 40 << 30, Compute: 500, Count: 20}}
	near := Location{Rack: "r7"}
	for _, c := range []struct {
		name    string
		typical []Typical
		place   func(part *Part) Decision
	}{
		{"host known", few, func(part *Part) Decision { return p.Place(Reserve{}, Request{Count: 1, Part: part, Near: &near}) }},
		{"host known, 64 kinds", kinds(maxTypical), func(part *Part) Decision { return p.Place(Reserve{}, Request{Count: 1, Part: part, Near: &near}) }},
		{"host open", few, func(part *Part) Decision {
			d, _ := p.PlaceLease(index, Reserve{}, Request{Count: 1, Part: part}, HostRequest{Count: 1})
			return d
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			p.SetTypical(c.typical)
			measure(b, func() time.Duration {
				part := draw()
				start := processorTime(b)
				if d := c.place(&part); !d.OK() {
					b.Fatal(d.Why)
				}
				return processorTime(b) - start
			})
		})
	}
}

// measure runs one and reports the processor time that it returns.
func measure(b *testing.B, one func() time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	runtime.GC() // collects the garbage of the set-up
	var clock, processor []time.Duration
	var sum time.Duration
	for b.Loop() {
		start := time.Now()
		took := one()
		clock, processor, sum = append(clock, time.Since(start)), append(processor, took), sum+took
	}
	p99 := func(of []time.Duration) float64 {
		slices.Sort(of)
		return float64(of[len(of)*99/100].Nanoseconds())
	}
	b.ReportMetric(p99(clock), "p99-ns")
	b.ReportMetric(p99(processor), "p99-cpu-ns")
	b.ReportMetric(float64(sum.Nanoseconds())/float64(len(processor)), "cpu-ns/op")
}

// processorTime returns the processor time of the current thread.
func processorTime(b *testing.B) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}

// sharedPool returns the pool, and what draws a part.
func sharedPool() (*rand.Rand, *Pool, func() Part) {
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
	return rng, p, draw
}

// BenchmarkPlaceParts decides on two parts in the same pool, and on nine of one box, which no box
// has.
func BenchmarkPlaceParts(b *testing.B) {
	_, p, draw := sharedPool()
	near := Location{Rack: "r7"}
	for name, same := range map[string]Preference{"one box": Required, "spread": Avoided} {
		b.Run(name, func(b *testing.B) {
			measure(b, func() time.Duration {
				part := draw()
				start := processorTime(b)
				if d := p.Place(Reserve{}, Request{Count: 2, Part: &part, SameBox: same, Near: &near}); !d.OK() {
					b.Fatal(d.Why)
				}
				return processorTime(b) - start
			})
		})
	}
	b.Run("no room", func(b *testing.B) {
		for b.Loop() {
			part := draw()
			part.Compute, part.Memory = Whole, 80<<30
			if d := p.Place(Reserve{}, Request{Count: 9, SameBox: Required, Part: &part, Near: &near}); d.OK() {
				b.Fatal(d.Picks)
			}
		}
	})
}
