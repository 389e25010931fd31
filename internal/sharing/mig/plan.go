package mig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dxpu-project/dxpu/share"
)

// Make plans the steps to exactly the instances of the wanted profiles, in any order.
// Present instances of a wanted profile stay, those in use first; as few others as
// possible move. Instances in use are never touched: a plan that needs that is a
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
	kept, gone, missing := g.match(missing)
	if busy := g.busy(gone); busy != nil {
		return Plan{}, busy
	}
	current := make([]share.MIGInstance, 0, len(kept))
	for _, i := range kept {
		current = append(current, share.MIGInstance{Profile: g.profile(i.Profile), Start: i.Start, Pinned: len(i.Busy)+len(g.Busy) > 0})
	}
	after, placed, ok := layout.Plan(current, missing)
	if !ok {
		inTheWay := slices.DeleteFunc(kept, func(i Instance) bool { return len(i.Busy) == 0 })
		return Plan{}, &BusyError{GPU: g.UUID, Instances: inTheWay, Processes: g.Busy}
	}
	var p Plan
	for _, i := range gone {
		p.Steps = append(p.Steps, g.destroy(i, false))
	}
	for n, i := range kept {
		if after[n].Start != i.Start {
			p.Steps = append(p.Steps, g.destroy(i, true))
			placed = append(placed, after[n])
		}
	}
	slices.SortFunc(placed, func(a, b share.MIGInstance) int { return cmp.Compare(a.Start, b.Start) })
	for _, i := range placed {
		p.Steps = append(p.Steps, g.create(g.Profiles[i.Profile].Name, i.Start))
	}
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

// Restore plans the way back to the instances of a former state, as far as none that
// is in use must go.
func Restore(g, before *GPU) Plan {
	var p Plan
	at := func(in *GPU, i Instance) bool {
		return slices.ContainsFunc(in.Instances, func(o Instance) bool { return o.Profile == i.Profile && o.Start == i.Start })
	}
	taken := make(map[int]bool) // memory slices that stay
	for _, i := range g.Instances {
		if at(before, i) && len(i.Compute) > 0 || len(i.Busy) > 0 {
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
			p.Steps = append(p.Steps, before.create(i.Profile, i.Start))
		}
	}
	return p
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
	if len(g.Busy) > 0 {
		return p, true, &BusyError{GPU: g.UUID, Processes: g.Busy}
	}
	return Plan{Steps: []Step{{Verb: EnableMode}}, Again: true}, true, nil
}

// ResetError says that a change of the mode waits for a reset of the GPU.
type ResetError struct{ GPU string }

func (e ResetError) Error() string {
	return fmt.Sprintf("the MIG mode of %s changes with the next reset of the GPU: stop the programs that use it (also nvidia-persistenced and DCGM), and run \"nvidia-smi --gpu-reset -i %s\", or restart the machine", e.GPU, e.GPU)
}

// match divides the present instances into those that stay and those that go, and
// returns the wanted profiles that no present instance has.
func (g *GPU) match(want []int) (kept, gone []Instance, missing []int) {
	missing = slices.Clone(want)
	present := slices.Clone(g.Instances)
	slices.SortStableFunc(present, func(a, b Instance) int { return cmp.Compare(min(len(b.Busy), 1), min(len(a.Busy), 1)) })
	for _, i := range present {
		n := slices.Index(missing, g.profile(i.Profile))
		if n < 0 || len(i.Compute) == 0 && len(i.Busy) == 0 { // without a compute instance it is of no use
			gone = append(gone, i)
			continue
		}
		missing = slices.Delete(missing, n, n+1)
		kept = append(kept, i)
	}
	return kept, gone, missing
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
		e.Processes = g.Busy
	}
	if len(e.Instances)+len(e.Processes) == 0 {
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

func (g *GPU) create(name string, start int) Step {
	s := Step{Verb: Create, Profile: name, Start: start}
	if p := g.profile(name); p >= 0 {
		s.ID = g.Profiles[p].ID
	}
	return s
}
