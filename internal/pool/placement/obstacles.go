package placement

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// maxNamedTaints bounds the sets of taints, and the plans, that a sentence names.
const maxNamedTaints = 4

// obstacles returns what some restrictions have that a request does not tolerate, in the
// words for what "has" or "is without" it: taints, and what has an effect of its own and
// is no taint for those who read the sentence.
func obstacles(of iter.Seq[Restriction], tolerations []Toleration) string {
	taints, plans, local := map[string]bool{}, map[string]bool{}, false
	for r := range of {
		var set []Taint
		for _, t := range r.taints() {
			switch {
			case Tolerated(t, tolerations):
			case t.Effect == Planned:
				plans[t.Value] = true
			case t.Effect == Local:
				local = true
			default:
				set = append(set, t)
			}
		}
		if len(set) > 0 {
			taints[string(NewRestriction(set...))] = true
		}
	}
	var out []string
	if len(taints) > 0 {
		out = append(out, "taints that the request does not tolerate: "+someOf(taints, "; "))
	}
	if len(plans) > 0 {
		out = append(out, "planned maintenance before which the request does not end: "+someOf(plans, ", "))
	}
	if local {
		out = append(out, "a sharing agent, which serves leases that name its host")
	}
	return strings.Join(out, "; or ")
}

// someOf returns a list for a sentence, with a bound.
func someOf(names map[string]bool, separator string) string {
	list := slices.Sorted(maps.Keys(names))
	if more := len(list) - maxNamedTaints; more > 0 {
		list = append(list[:maxNamedTaints], fmt.Sprintf("and %d others", more))
	}
	return strings.Join(list, separator)
}
