package placement

import (
	"cmp"
	"maps"
	"slices"
)

// take returns n slots of a group, in order. They are below as few PCIe switches as
// possible, because GPUs below one switch reach each other without a root complex: the
// switch with the fewest free GPUs that suffice, or else whole switches, the largest
// first, and the best fit for the rest.
func (g *group) take(n int) []uint32 {
	if g.switches == nil || n == len(g.slots) {
		return g.slots[:n]
	}
	bySwitch := map[string][]uint32{}
	for i, s := range g.slots {
		bySwitch[g.switches[i]] = append(bySwitch[g.switches[i]], s)
	}
	var out []uint32
	for n > len(out) {
		need := n - len(out)
		names := slices.Sorted(maps.Keys(bySwitch))
		best := names[0]
		for _, name := range names[1:] {
			if fitsBetter(bySwitch[name], bySwitch[best], need) {
				best = name
			}
		}
		out = append(out, bySwitch[best][:min(need, len(bySwitch[best]))]...)
		delete(bySwitch, best)
	}
	slices.Sort(out)
	return out
}

// fitsBetter reports whether the slots a are better than b for need GPUs.
func fitsBetter(a, b []uint32, need int) bool {
	enoughA, enoughB := len(a) >= need, len(b) >= need
	switch {
	case enoughA != enoughB:
		return enoughA
	case enoughA:
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a[0], b[0])) < 0
	}
	return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a[0], b[0])) < 0
}

// switchesOf returns the number of switches above some slots of a group; 0: not known.
func (g *group) switchesOf(slots []uint32) int {
	if g.switches == nil {
		return 0
	}
	names := map[string]bool{}
	for i, s := range g.slots {
		if slices.Contains(slots, s) {
			names[g.switches[i]] = true
		}
	}
	return len(names)
}

// severalSwitches reports whether the GPUs of a box are below several PCIe switches.
func (b *Box) severalSwitches() bool {
	return slices.ContainsFunc(b.GPUs, func(g GPU) bool { return g.Switch != b.GPUs[0].Switch })
}

// setSwitches records the PCIe switches of the group's slots, if there are several.
func (g *group) setSwitches(b *Box) {
	if !b.severalSwitches() {
		return
	}
	var of []string
	several := false
	for _, s := range g.slots {
		at := slices.IndexFunc(b.GPUs, func(o GPU) bool { return o.Slot == s })
		of = append(of, b.GPUs[at].Switch)
		several = several || of[0] != of[len(of)-1]
	}
	if several {
		g.switches = of
	}
}
