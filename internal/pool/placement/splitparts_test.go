package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// freeDivisible returns boxes with free GPUs of one model, which have some sizes of memory.
func freeDivisible(memories ...[]uint64) *Pool {
	p := NewPool()
	for i, has := range memories {
		b := Box{ID: fmt.Sprint("b", i)}
		for g, memory := range has {
			b.GPUs = append(b.GPUs, GPU{Slot: uint32(g), Model: "A100", Memory: memory, Usable: true, Free: true, Modes: NewShareModes(Space)})
			b.Parts = append(b.Parts, PartSlot{Slot: uint32(100 + g), GPU: uint32(g), Usable: true})
		}
		p.SetBox(b)
	}
	return p
}

// TestPartsOfSomeSize bounds what parts count as, where they count less on some GPUs than on others.
func TestPartsOfSomeSize(t *testing.T) {
	for _, tt := range []struct {
		pool  *Pool
		count int
		least uint64 // that the parts, of 36 GiB each, can count as
	}{
		{freeDivisible([]uint64{40 * gib, 80 * gib, 40 * gib}), 1, 450},
		{freeDivisible([]uint64{40 * gib, 80 * gib, 40 * gib}), 2, 450 + 900},
		{freeDivisible([]uint64{40 * gib, 40 * gib}, []uint64{80 * gib, 80 * gib, 80 * gib}), 2, 450 + 450},
		{freeDivisible([]uint64{40 * gib, 40 * gib}, []uint64{40 * gib, 80 * gib}), 3, 450 + 900 + 900},
		{freeDivisible([]uint64{40 * gib}, []uint64{60 * gib}, []uint64{80 * gib}), 2, 450 + 600},
	} {
		req := several(tt.count, 36*gib, 100)
		for req.MaxSize = tt.least - 1; req.MaxSize <= tt.least; req.MaxSize++ {
			d := tt.pool.Place(Reserve{}, req)
			if d.OK() != (req.MaxSize == tt.least) {
				t.Errorf("%d parts of size %d: %v, and %d is possible: %v", tt.count, req.MaxSize, d.Picks, tt.least, d.Why)
			}
		}
	}
}

func TestLeastGPU(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		p := Part{Memory: 1 + rng.Uint64N(1<<(1+rng.IntN(44))), Compute: 1 + rng.Uint32N(Whole)}
		size := 1 + rng.Uint64N(Whole)
		n := p.leastGPU(size)
		switch {
		case size == Whole && n == 0:
		case uint64(p.Compute) > size:
			if n < 1<<60 {
				t.Errorf("%v of size %d on a GPU of %d bytes", &p, size, n)
			}
		case uint64(p.Size(n)) > size || n > 1 && uint64(p.Size(n-1)) <= size:
			t.Errorf("%d bytes of size %d: %d on a GPU of %d bytes, %d on a smaller one", p.Memory, size, p.Size(n), n, p.Size(n-1))
		}
	}
}

// TestNamedPartsLeaveTheSpares names free GPUs of several boxes, one of which is a spare.
func TestNamedPartsLeaveTheSpares(t *testing.T) {
	p := freeDivisible([]uint64{80 * gib}, []uint64{80 * gib})
	for _, model := range []string{"", "A100"} {
		req := several(2, gib, 100)
		req.Model, req.Only = model, []Ref{{"b0", 0}, {"b1", 0}}
		if d := p.Place(Reserve{Count: 1}, req); d.OK() {
			t.Errorf("model %q: %v, one of them a spare", model, d.Picks)
		}
		req.UseSpares = true
		if d := p.Place(Reserve{Count: 1}, req); !slices.Equal(boxesOf(d.Picks), []string{"b0", "b1"}) {
			t.Errorf("model %q with the spares: %v", model, d)
		}
	}
}

// TestRefusalOfPartsTellsModelsAndSpares has enough GPUs with room, but of two models, shared in two
// modes, or held back.
func TestRefusalOfPartsTellsModelsAndSpares(t *testing.T) {
	p := freeDivisible([]uint64{80 * gib, 80 * gib})
	for name, change := range map[string]func(*GPU){
		"models": func(g *GPU) { g.Model = "T4" },
		"modes":  func(g *GPU) { g.Modes = NewShareModes(Time) },
	} {
		b := p.boxes["b0"].Box
		b.ID, b.GPUs = "b0", slices.Clone(b.GPUs)
		was := b.GPUs[1]
		change(&b.GPUs[1])
		p.SetBox(b)
		t.Run(name, func(t *testing.T) {
			wantWhy(t, p.Place(Reserve{}, several(2, gib, 100)),
				"2 GPUs have room for one, at most 2 of them in one box. At most 1 of them are of one model and can be shared in one mode, 1 in one box.")
		})
		b.GPUs = slices.Clone(b.GPUs)
		b.GPUs[1] = was
		p.SetBox(b)
	}
	spare := "Model A100: 2 of 2 usable GPUs are free, 1 of them held back as spares."
	wantWhy(t, p.Place(Reserve{Count: 1}, several(2, gib, 100)), spare)
	named := several(2, gib, 100)
	named.Only = []Ref{{"b0", 0}, {"b0", 1}}
	wantWhy(t, p.Place(Reserve{Count: 1}, named), spare)
}
