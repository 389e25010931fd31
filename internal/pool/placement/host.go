package placement

import (
	"cmp"
	"fmt"
	"slices"
)

// Host is a host with slots in its virtual switches.
type Host struct {
	ID     string
	Usable bool // reachable and not cordoned
	Labels map[string]string
	Slots  []HostSlot
}

// HostSlot is a place where a device can appear.
type HostSlot struct {
	Slot   uint32
	Domain string // the VM or virtual switch that has it
	Free   bool
}

// HostRequest asks for slots of one domain of one host.
type HostRequest struct {
	Count  int
	Host   string            // empty: any
	Domain string            // empty: any one
	Labels map[string]string // the host has all of them
}

// HostDecision is which slots a request gets, or why none.
type HostDecision struct {
	Host  string
	Slots []uint32 // Count entries, or none
	Why   []string
}

// OK reports whether slots were found.
func (d *HostDecision) OK() bool { return len(d.Slots) > 0 }

// switchboard is the free slots of one domain of a host.
type switchboard struct {
	host   string
	domain string
	slots  []uint32 // in order
}

// compareFree orders by free slots, most first: hosts are cheap, crowded virtual
// switches are not.
func compareFree(a, b *switchboard) int {
	return cmp.Or(
		cmp.Compare(len(b.slots), len(a.slots)),
		cmp.Compare(a.host, b.host),
		cmp.Compare(a.domain, b.domain),
	)
}

// switchboards returns the domains of a host that have free slots.
func switchboards(h *Host) []*switchboard {
	var out []*switchboard
	for _, s := range h.Slots {
		if !s.Free {
			continue
		}
		at := slices.IndexFunc(out, func(o *switchboard) bool { return o.domain == s.Domain })
		if at < 0 {
			at = len(out)
			out = append(out, &switchboard{host: h.ID, domain: s.Domain})
		}
		out[at].slots = append(out[at].slots, s.Slot)
	}
	for _, o := range out {
		slices.Sort(o.slots)
	}
	return out
}

// eligible reports whether a host may be chosen, whatever slots it has free.
func eligible(h *Host, req *HostRequest) bool {
	if req.Host != "" && h.ID != req.Host || !h.Usable {
		return false
	}
	for k, v := range req.Labels {
		if have, ok := h.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// PlaceHost decides on host slots by looking at every host: of those that have
// enough, it takes the one with the most free. Hosts decides the same faster;
// PlaceHost is what it is tested against.
func PlaceHost(hosts []Host, req HostRequest) HostDecision {
	var best *switchboard
	usable := false
	for i := range hosts {
		h := &hosts[i]
		if !eligible(h, &req) {
			continue
		}
		usable = true
		for _, o := range switchboards(h) {
			fits := len(o.slots) >= req.Count && (req.Domain == "" || o.domain == req.Domain)
			if fits && (best == nil || compareFree(o, best) < 0) {
				best = o
			}
		}
	}
	return decideHost(best, usable, &req)
}

// decideHost puts what was found into words. Usable says whether there is any
// host that may be chosen.
func decideHost(best *switchboard, usable bool, req *HostRequest) HostDecision {
	var d HostDecision
	say := func(format string, args ...any) { d.Why = append(d.Why, fmt.Sprintf(format, args...)) }
	switch {
	case req.Count < 1:
		say("The request is for no slot.")
	case best != nil:
		d.Host, d.Slots = best.host, slices.Clone(best.slots[:req.Count])
		say("Host %s has %d free slots.", best.host, len(best.slots))
	case !usable && req.Host != "":
		say("Host %s is not reachable, cordoned, or lacks the labels.", req.Host)
	case !usable:
		say("No host is reachable, not cordoned and has the labels.")
	case req.Host != "":
		say("Host %s does not have %d free slots.", req.Host, req.Count)
	default:
		say("No host has %d free slots.", req.Count)
	}
	return d
}
