package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

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
	usable := false
	var tainted refused
	for i := range hosts {
		switch h := &hosts[i]; {
		case eligible(h, &req):
			usable = true
			best = betterOf(best, bestSlots(h, &req))
		case eligibleButTaints(h, &req):
			tainted = tainted.add(h.Restriction, 1)
		}
	}
	return decideHost(best, usable, tainted, &req)
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

// decideHost makes a decision from the best choice, which may be nil. usable
// reports whether any host may be chosen. tainted is the taints of those that only their
// taints exclude.
func decideHost(best *freeSlots, usable bool, tainted refused, req *HostRequest) HostDecision {
	var d HostDecision
	say := func(format string, args ...any) { d.Why = append(d.Why, fmt.Sprintf(format, args...)) }
	switch {
	case req.Count < 1:
		say("The request asks for no slots.")
	case best != nil:
		d.Host, d.Slots = best.host, slices.Clone(best.slots[:req.Count])
		say("Host %s has %s.", best.host, freeSlotCount(len(best.slots)))
	case !usable && req.Host != "" && len(tainted) > 0:
		say("Host %s has %s.", req.Host, obstacles(maps.Keys(tainted), req.Tolerations))
	case !usable && len(tainted) > 0:
		say("Each host that %sis reachable and not cordoned has %s.", labelWords(req, "has the labels, "), obstacles(maps.Keys(tainted), req.Tolerations))
	case !usable && req.Host != "" && len(req.Labels) == 0:
		say("Host %s is unreachable, cordoned or in maintenance.", req.Host)
	case !usable && req.Host != "":
		say("Host %s is unreachable, cordoned, in maintenance, or lacks the labels.", req.Host)
	case !usable:
		say("No host %sis reachable and not cordoned.", labelWords(req, "that has the labels "))
	case req.Host != "":
		say("Host %s does not have %s.", req.Host, freeSlotCount(req.Count))
	default:
		say("No host has %s.", freeSlotCount(req.Count))
	}
	return d
}

// labelWords returns words for a request that asks for labels, and nothing for others.
func labelWords(req *HostRequest, words string) string {
	if len(req.Labels) == 0 {
		return ""
	}
	return words
}

func freeSlotCount(n int) string { return plural.Count(n, "free slot", "free slots") }
