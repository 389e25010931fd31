package placement

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/dxpu-project/dxpu/internal/plural"
)

// Host is a host and the slots of its virtual switches.
type Host struct {
	ID string
	Location
	Usable bool // reachable and not cordoned
	Labels map[string]string
	// Restriction is the taints of the host.
	Restriction Restriction
	Slots       []HostSlot
}

// HostSlot is a slot where a device can be attached.
type HostSlot struct {
	Slot   uint32
	Domain string // the VM or virtual switch of the slot
	Free   bool
	// Unusable reports that the slot is not free and does not become so when its lease ends:
	// it has failed or is cordoned.
	Unusable bool
}

// HostRequest asks for Count slots in one domain of one host.
type HostRequest struct {
	Count  int
	Host   string            // empty: any
	Domain string            // empty: any
	Labels map[string]string // the host must have all of them
	// Tolerations are for the taints of the hosts that the request may have.
	Tolerations []Toleration
	// Exclude lists slots not to choose, such as those held for another request.
	Exclude []HostSlotRef
	// Brief leaves out of a refusal what takes a look at each host to say.
	Brief bool
}

// HostSlotRef identifies a slot by its host.
type HostSlotRef struct {
	Host string
	Slot uint32
}

// HostDecision is the outcome of a request for slots.
type HostDecision struct {
	Host  string
	Slots []uint32 // Count slots, or none
	Why   []string // the explanation, in sentences
	// Kept lists the free slots of the hosts that only HostRequest.Exclude keeps from a request
	// that is refused.
	Kept []HostSlotRef
}

// OK reports whether the request got its slots.
func (d *HostDecision) OK() bool { return len(d.Slots) > 0 }

// freeSlots is the free slots of one domain of a host.
type freeSlots struct {
	host   string
	at     Location
	domain string
	slots  []uint32 // in order
}

// compareFree puts the domain with the most free slots first, to spread the load.
func compareFree(a, b *freeSlots) int {
	return cmp.Or(cmp.Compare(len(b.slots), len(a.slots)), cmp.Compare(a.host, b.host), cmp.Compare(a.domain, b.domain))
}

// freeSlotsOf returns the free slots of a host by domain.
func freeSlotsOf(h *Host) []*freeSlots {
	var out []*freeSlots
	for _, s := range h.Slots {
		if !s.Free {
			continue
		}
		at := slices.IndexFunc(out, func(o *freeSlots) bool { return o.domain == s.Domain })
		if at < 0 {
			at = len(out)
			out = append(out, &freeSlots{host: h.ID, at: h.Location, domain: s.Domain})
		}
		out[at].slots = append(out[at].slots, s.Slot)
	}
	for _, o := range out {
		slices.Sort(o.slots)
	}
	return out
}

// eligible reports whether a host may be chosen, apart from its free slots.
func eligible(h *Host, req *HostRequest) bool {
	return eligibleButTaints(h, req) && h.Restriction.toleratedBy(req.Tolerations)
}

// eligibleButTaints reports whether a host may be chosen, apart from its free slots and
// its taints.
func eligibleButTaints(h *Host, req *HostRequest) bool {
	if req.Host != "" && h.ID != req.Host || !h.Usable {
		return false
	}
	return hasLabels(h.Labels, req.Labels)
}

// PlaceHost decides on host slots by looking at every host. Of the domains with
// enough free slots it takes the one with the most. Hosts gives the same decisions
// faster, and is tested against PlaceHost.
func PlaceHost(hosts []Host, req HostRequest) HostDecision {
	var best *freeSlots
	for i := range hosts {
		if h := &hosts[i]; eligible(h, &req) {
			best = betterOf(best, bestSlots(h, &req))
		}
	}
	return decideHost(best, func(yield func(countedHost) bool) {
		for i := range hosts {
			h := &hosts[i]
			if (req.Host == "" || h.ID == req.Host) && !yield(countedHost{h, freeSlotsOf(h), 1}) {
				return
			}
		}
	}, &req)
}

// bestSlots returns the best choice of an eligible host, nil if there is none.
func bestSlots(h *Host, req *HostRequest) (best *freeSlots) {
	for _, o := range freeSlotsOf(h) {
		o.slots = slices.DeleteFunc(o.slots, func(s uint32) bool { return slices.Contains(req.Exclude, HostSlotRef{h.ID, s}) })
		if len(o.slots) >= max(1, req.Count) && (req.Domain == "" || o.domain == req.Domain) {
			best = betterOf(best, o)
		}
	}
	return best
}

// betterOf returns the better of two choices, which may be nil.
func betterOf(a, b *freeSlots) *freeSlots {
	if a == nil || b != nil && compareFree(b, a) < 0 {
		return b
	}
	return a
}

// decideHost makes a decision from the best choice, which may be nil. hosts returns all hosts, or
// the one that the request names.
func decideHost(best *freeSlots, hosts iter.Seq[countedHost], req *HostRequest) HostDecision {
	var d HostDecision
	say := func(format string, args ...any) { d.Why = append(d.Why, fmt.Sprintf(format, args...)) }
	switch {
	case req.Count < 1:
		say("The request asks for no slots.")
	case best != nil:
		d.Host, d.Slots = best.host, slices.Clone(best.slots[:req.Count])
		say("Host %s has %s.", best.host, freeSlotCount(len(best.slots)))
	case req.Brief:
		say("No host has %s for the request.", freeSlotCount(req.Count))
	default:
		req.refuse(&d, hosts)
	}
	return d
}

// refuse explains why no host will do, by what those lack that lack least.
func (r *HostRequest) refuse(d *HostDecision, hosts iter.Seq[countedHost]) {
	var all lacking
	keys, excluded := slices.Sorted(maps.Keys(r.Labels)), setOf(r.Exclude)
	for c := range hosts {
		l := r.lacks(&c, keys, excluded)
		if all.add(l, c.host.Restriction, c.n); l == keptSlots {
			d.Kept = append(d.Kept, keptAt(c.host, excluded)...)
		}
	}
	slices.SortFunc(d.Kept, func(a, b HostSlotRef) int { return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Slot, b.Slot)) })
	if r.Host != "" {
		d.Why = append(d.Why, r.whyNotHost(&all))
	} else {
		d.Why = append(d.Why, r.whyNoHost(&all))
	}
}

// whyNotHost returns the sentence about the host that the request names. all has what it lacks.
func (r *HostRequest) whyNotHost(all *lacking) string {
	if len(all.sets) == 0 {
		return fmt.Sprintf("Host %s is not in the pool.", r.Host)
	}
	least, taints := all.least()
	var what []string
	if least&notUsable != 0 {
		what = append(what, "is unreachable, cordoned or in maintenance")
	}
	if len(taints) > 0 {
		what = append(what, "has "+obstacles(maps.Keys(taints), r.Tolerations))
	}
	if least.hasLabel() {
		what = append(what, "does not have the "+least.labels(r.Labels))
	}
	if least&lackSlots != 0 {
		what = append(what, "does not have "+r.slotsText(least))
	}
	return fmt.Sprintf("Host %s %s.", r.Host, strings.Join(what, ", and "))
}

// whyNoHost returns the sentence about all hosts, of which all has what they lack.
func (r *HostRequest) whyNoHost(all *lacking) string {
	least, taints := all.least()
	which, what := "No host", []string{}
	if least.hasLabel() {
		which += " that has the " + least.labels(r.Labels)
	}
	if least&notUsable != 0 || len(all.sets) == 0 {
		what = append(what, "is reachable and not cordoned")
	}
	if len(taints) > 0 {
		what = append(what, "is without "+obstacles(maps.Keys(taints), r.Tolerations))
	}
	if least&lackSlots != 0 {
		what = append(what, "has "+r.slotsText(least))
	}
	if len(what) == 0 {
		what = append(what, "is in the pool")
	}
	return fmt.Sprintf("%s %s.", which, strings.Join(what, " and "))
}

// keptAt returns the free slots of a host that are excluded.
func keptAt(h *Host, excluded map[HostSlotRef]bool) (out []HostSlotRef) {
	for _, s := range h.Slots {
		if at := (HostSlotRef{h.ID, s.Slot}); s.Free && excluded[at] {
			out = append(out, at)
		}
	}
	return out
}

// lackSlots is what a host lacks without the slots for a request.
const lackSlots = noSlots | notTogether | keptSlots

// slotsText returns the words for the slots that hosts lack.
func (r *HostRequest) slotsText(l lack) string {
	text := freeSlotCount(r.Count)
	switch {
	case l&notTogether != 0 && r.Domain != "":
		text += " in domain " + r.Domain
	case l&notTogether != 0:
		text += " in one domain"
	}
	if l&keptSlots != 0 {
		text += byNumber(r.Count, " that is not", " that are not") + " kept for other leases"
	}
	return text
}

// lacks returns what a host lacks for a request, whose labels have some keys, and which may not
// have the excluded slots.
func (r *HostRequest) lacks(c *countedHost, keys []string, excluded map[HostSlotRef]bool) (l lack) {
	h := c.host
	if !h.Usable {
		l |= notUsable
	}
	if !h.Restriction.toleratedBy(r.Tolerations) {
		l |= intolerable
	}
	free, most, allowed := 0, 0, 0
	for _, o := range c.free {
		n := len(o.slots)
		if free += n; r.Domain != "" && o.domain != r.Domain {
			continue
		}
		most = max(most, n)
		if len(excluded) > 0 {
			for _, s := range o.slots {
				if excluded[HostSlotRef{h.ID, s}] {
					n--
				}
			}
		}
		allowed = max(allowed, n)
	}
	switch {
	case free < r.Count:
		l |= noSlots
	case most < r.Count:
		l |= notTogether
	case allowed < r.Count:
		l |= keptSlots
	}
	return l | lacksLabels(h.Labels, r.Labels, keys)
}

func freeSlotCount(n int) string { return plural.Count(n, "free slot", "free slots") }
