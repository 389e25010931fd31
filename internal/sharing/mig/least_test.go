package mig

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Plans create as few instances as there must be, and are refused only if there is no other
// way: checked against all placements of the wanted profiles.
func TestPlansDisturbTheLeast(t *testing.T) {
	base := a100(t)
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		g := *base
		g.Instances = nil
		for range rng.IntN(9) { // anywhere, as instances that came and went leave them
			n := rng.IntN(len(g.Profiles))
			p := g.Profiles[n]
			i := Instance{ID: len(g.Instances) + 1, Profile: p.Name, Start: p.Starts[rng.IntN(len(p.Starts))], Size: p.Size, Compute: []Compute{{}}}
			if rng.IntN(4) == 0 {
				i.Busy = []int{1}
			}
			if l, _ := g.layout(); fits(append(slices.Clone(g.Instances), i)) {
				now := []int{n}
				for _, o := range g.Instances {
					now = append(now, g.profile(o.Profile))
				}
				if _, _, ok := l.Plan(nil, now); ok {
					g.Instances = append(g.Instances, i)
				}
			}
		}
		var want []string
		var profiles []int
		for range rng.IntN(8) {
			n := rng.IntN(len(g.Profiles))
			want, profiles = append(want, g.Profiles[n].Name), append(profiles, n)
		}
		if l, _ := g.layout(); rng.IntN(2) == 0 {
			if _, _, ok := l.Plan(nil, profiles); !ok {
				continue
			}
		}
		slices.Sort(profiles)
		least := leastCreated(&g, profiles, nil)
		p, err := Make(&g, want)
		switch {
		case err != nil && least >= 0:
			t.Fatalf("seed %d: %v for %+v, want %q: %d would do", seed, err, g.Instances, want, least)
		case err == nil && least < 0:
			t.Fatalf("seed %d: a plan for %+v, want %q", seed, g.Instances, want)
		case err != nil:
			continue
		}
		created := 0
		for _, s := range p.Steps {
			if s.Verb == Create {
				created++
			}
		}
		if created != least {
			t.Fatalf("seed %d: %d instances are created for %+v, want %q: %d would do: %s", seed, created, g.Instances, want, least, text(p))
		}
	}
}

// fits reports whether no two instances overlap.
func fits(list []Instance) bool {
	used := uint(0)
	for _, i := range list {
		mask := (uint(1)<<i.Size - 1) << i.Start
		if used&mask != 0 {
			return false
		}
		used |= mask
	}
	return true
}

// leastCreated returns the least number of instances that must be created, -1 if there is no
// way without those in use. It tries all placements; profiles of one kind are in a row.
func leastCreated(g *GPU, profiles []int, placed []Instance) int {
	if n := len(placed); n > 0 && !fits(placed) {
		return -1
	}
	if len(placed) == len(profiles) {
		return createdFor(g, placed)
	}
	n := profiles[len(placed)]
	p := &g.Profiles[n]
	best := -1
	for _, start := range p.Starts {
		if k := len(placed); k > 0 && profiles[k-1] == n && placed[k-1].Start >= start {
			continue // in order: they are alike
		}
		got := leastCreated(g, profiles, append(slices.Clip(placed), Instance{Profile: p.Name, Start: start, Size: p.Size}))
		if got >= 0 && (best < 0 || got < best) {
			best = got
		}
	}
	return best
}

// createdFor returns how many instances of a state must be created, -1 if it lacks one in use or
// has more than a GPU can have.
func createdFor(g *GPU, placed []Instance) int {
	same := func(a, b Instance) bool { return a.Profile == b.Profile && a.Start == b.Start }
	n, compute := 0, 0
	count := map[string]int{}
	for _, i := range placed {
		p := &g.Profiles[g.profile(i.Profile)]
		if compute += p.slices(); compute > 7 {
			return -1
		}
		if count[p.Name]++; count[p.Name] > p.Most {
			return -1
		}
		if !slices.ContainsFunc(g.Instances, func(o Instance) bool { return same(i, o) }) {
			n++
		}
	}
	for _, o := range g.Instances {
		if len(o.Busy) > 0 && !slices.ContainsFunc(placed, func(i Instance) bool { return same(i, o) }) {
			return -1
		}
	}
	return n
}
