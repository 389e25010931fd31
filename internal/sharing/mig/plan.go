package mig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dxpu-project/dxpu/share"
)

// Make plans the steps to exactly the instances of the wanted profiles, in any order.
// Present instances of a wanted profile stay, those in use first, and of the others those
// with which the fewest move. Instances in use are never touched: a plan that needs that is a
// *BusyError.
func Make(g *GPU, want []string) (Plan, error) {
	if p, done, err := mode(g, true); done {
		return p, err
	}
	layout, err := g.layout()
	if err != nil {
		return Plan{}, err
	}
	missing := make([]int, 0, len(want))
	for _, name := range want {
		p := g.profile(name)
		if p < 0 {
			return Plan{}, fmt.Errorf("%s has no profile %q: it has %s", g.UUID, name, strings.Join(g.names(), ", "))
		}
		missing = append(missing, p)
	}
	if _, _, ok := layout.Plan(nil, missing); !ok {
		return Plan{}, fmt.Errorf("%s has no room for %s together: it has %d compute and %d memory slices; \"nvidia-smi mig -lgipp\" lists the placements",
			g.UUID, strings.Join(want, ", "), layout.Compute, layout.Memory)
	}
	ways := g.match(missing)
	if busy := g.busy(ways[0].gone); busy != nil { // the same in all of them
		return Plan{}, busy
	}
	var p Plan
	var create []Step
	least := -1
	for i := range ways {
		w := &ways[i]
		after, created, ok := layout.Plan(g.current(w.kept), w.missing)
		if !ok { // programs use what is in the way
			inTheWay := slices.DeleteFunc(w.kept, func(i Instance) bool { return len(i.Busy) == 0 })
			return Plan{}, &BusyError{GPU: g.UUID, Instances: inTheWay, Processes: g.Busy, Untold: g.Untold}
		}
		steps, moved := g.clear(w, after)
		if least < 0 || len(moved) < least {
			least, p.Steps, create = len(moved), steps, moved
			for _, c := range created {
				create = append(create, g.create(g.Profiles[c.Profile].Name, c.Start, nil))
			}
		}
		if least == 0 {
			break
		}
	}
	slices.SortFunc(create, func(a, b Step) int { return cmp.Compare(a.Start, b.Start) })
	p.Steps = append(p.Steps, create...)
	return p, nil
}

// Off plans the end of MIG mode.
func Off(g *GPU) (Plan, error) {
	if p, done, err := mode(g, false); done {
		return p, err
	}
	if busy := g.busy(g.Instances); busy != nil {
		return Plan{}, busy
	}
	var p Plan
	for _, i := range g.Instances {
		p.Steps = append(p.Steps, g.destroy(i, false))
	}
	p.Steps = append(p.Steps, Step{Verb: DisableMode})
	return p, nil
}

// Restore plans the way back to the mode and the instances of a former state, as far as none
// that is in use must go. A mode that the former state had only until the next reset is not
// requested: that would take back the request which waits for the reset.
func Restore(g, before *GPU) Plan {
	var p Plan
	if before.Enabled && before.Pending && !(g.Enabled && g.Pending) {
		p.Steps = append(p.Steps, Step{Verb: EnableMode})
	}
	taken := make(map[int]bool) // memory slices that stay
	for _, i := range g.Instances {
		if before.has(i) || len(i.Busy) > 0 {
			for s := range i.Size {
				taken[i.Start+s] = true
			}
			continue
		}
		p.Steps = append(p.Steps, g.destroy(i, false))
	}
	for _, i := range before.Instances {
		free := true
		for s := range i.Size {
			free = free && !taken[i.Start+s]
		}
		if free {
			p.Steps = append(p.Steps, before.create(i.Profile, i.Start, i.parts()))
		}
	}
	if !before.Enabled && (g.Enabled || g.Pending) && len(taken) == 0 {
		p.Steps = append(p.Steps, Step{Verb: DisableMode})
	}
	return p
}

// Same reports whether a GPU has the mode and the instances of a former state.
func Same(g, before *GPU) bool {
	return g.Enabled == before.Enabled && g.Pending == before.Pending && len(g.Instances) == len(before.Instances) &&
		!slices.ContainsFunc(g.Instances, func(i Instance) bool { return !before.has(i) })
}

// has reports whether the GPU has an instance in the same place, divided in the same way.
func (g *GPU) has(i Instance) bool {
	return slices.ContainsFunc(g.Instances, func(o Instance) bool {
		return o.Profile == i.Profile && o.Start == i.Start && (o.parts() == nil) == (i.parts() == nil) && slices.Equal(o.parts(), i.parts())
	})
}

// mode plans a change of the mode, if one is needed, and says whether that is all.
func mode(g *GPU, on bool) (p Plan, done bool, err error) {
	switch {
	case !g.Supported:
		return p, true, fmt.Errorf("%s (%s) has no MIG", g.UUID, g.Name)
	case g.Enabled == on && g.Pending == on:
		return p, !on, nil
	case g.Enabled != g.Pending:
		return p, true, ResetError{g.UUID}
	case !on:
		return p, false, nil
	}
	if len(g.Busy) > 0 || g.Untold {
		return p, true, &BusyError{GPU: g.UUID, Processes: g.Busy, Untold: g.Untold}
	}
	return Plan{Steps: []Step{{Verb: EnableMode}}, Again: true}, true, nil
}

// ResetError says that a change of the mode waits for a reset of the GPU.
type ResetError struct{ GPU string }

func (e ResetError) Error() string {
	return fmt.Sprintf("the MIG mode of %s changes with the next reset of the GPU: stop the programs that use it (also nvidia-persistenced and DCGM), and run \"nvidia-smi --gpu-reset -i %s\", or restart the machine", e.GPU, e.GPU)
}

// current returns instances as the solver takes them.
func (g *GPU) current(kept []Instance) []share.MIGInstance {
	out := make([]share.MIGInstance, 0, len(kept))
	for _, i := range kept {
		out = append(out, share.MIGInstance{Profile: g.profile(i.Profile), Start: i.Start, Pinned: len(i.Busy)+len(g.Busy) > 0 || g.Untold})
	}
	return out
}

// clear returns the steps that destroy the instances that go, and those that move, and the
// steps that create the latter again.
func (g *GPU) clear(w *way, after []share.MIGInstance) (steps, moved []Step) {
	for _, i := range w.gone {
		steps = append(steps, g.destroy(i, false))
	}
	for n, i := range w.kept {
		if after[n].Start != i.Start {
			steps = append(steps, g.destroy(i, true))
			moved = append(moved, g.create(i.Profile, after[n].Start, i.parts()))
		}
	}
	return steps, moved
}

// way is a division of the present instances into those that stay and those that go, with
// the wanted profiles that none of those that stay has.
type way struct {
	kept, gone []Instance
	missing    []int
}

// maxWays bounds the ways that are tried. A GPU with seven instances has 35 at most.
const maxWays = 64

// match returns the ways to keep as many of the present instances as are wanted, those in
// use in each of them. There is at least one.
func (g *GPU) match(want []int) (ways []way) {
	present := slices.Clone(g.Instances)
	slices.SortStableFunc(present, func(a, b Instance) int { return cmp.Compare(min(len(b.Busy), 1), min(len(a.Busy), 1)) })
	// without a compute instance it is of no use
	usable := func(i Instance) bool { return len(i.Compute)+len(i.Busy) > 0 }
	var divide func(rest []Instance, w way)
	divide = func(rest []Instance, w way) {
		switch {
		case len(ways) == maxWays:
			return
		case len(rest) == 0:
			ways = append(ways, w)
			return
		}
		i, wanted, others := rest[0], 0, 0
		for _, p := range w.missing {
			if p == g.profile(i.Profile) {
				wanted++
			}
		}
		for _, o := range rest[1:] {
			if o.Profile == i.Profile && usable(o) {
				others++
			}
		}
		if usable(i) && wanted > 0 {
			n := slices.Index(w.missing, g.profile(i.Profile))
			divide(rest[1:], way{append(slices.Clip(w.kept), i), w.gone, slices.Delete(slices.Clone(w.missing), n, n+1)})
		}
		if !usable(i) || wanted == 0 || len(i.Busy) == 0 && others >= wanted {
			divide(rest[1:], way{w.kept, append(slices.Clip(w.gone), i), w.missing})
		}
	}
	divide(present, way{missing: want})
	return ways
}

// busy returns an error if instances that must go are in use, or may be.
func (g *GPU) busy(gone []Instance) error {
	e := &BusyError{GPU: g.UUID}
	for _, i := range gone {
		if len(i.Busy) > 0 {
			e.Instances = append(e.Instances, i)
		}
	}
	if len(gone) > 0 {
		e.Processes, e.Untold = g.Busy, g.Untold
	}
	if len(e.Instances)+len(e.Processes) == 0 && !e.Untold {
		return nil
	}
	return e
}

func (g *GPU) names() []string {
	var out []string
	for _, p := range g.Profiles {
		out = append(out, p.Name)
	}
	return out
}

func (g *GPU) destroy(i Instance, move bool) Step {
	s := Step{Verb: Destroy, Profile: i.Profile, Start: i.Start, Instance: i.ID, Move: move}
	for _, c := range i.Compute {
		s.Compute = append(s.Compute, c.ID)
	}
	return s
}

func (g *GPU) create(name string, start int, parts []Place) Step {
	s := Step{Verb: Create, Profile: name, Start: start, Parts: parts}
	if p := g.profile(name); p >= 0 {
		s.ID = g.Profiles[p].ID
	}
	return s
}
