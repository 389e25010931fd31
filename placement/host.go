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
	Host   string // empty: any
	Domain string // empty: any one
}

// HostDecision is which slots a request gets, or why none.
type HostDecision struct {
	Host  string
	Slots []uint32 // Count entries, or none
	Why   []string
}

// OK reports whether slots were found.
func (d *HostDecision) OK() bool { return len(d.Slots) > 0 }

// PlaceHost decides on host slots: of the hosts that have enough, the one with
// the most free slots (hosts are cheap, crowded virtual switches are not).
func PlaceHost(hosts []Host, req HostRequest) HostDecision {
	type option struct {
		host   string
		domain string
		slots  []uint32
	}
	var best *option
	usable := false
	for _, h := range hosts {
		if req.Host != "" && h.ID != req.Host || !h.Usable {
			continue
		}
		usable = true
		byDomain := map[string]*option{}
		for _, s := range h.Slots {
			if !s.Free || req.Domain != "" && s.Domain != req.Domain {
				continue
			}
			if byDomain[s.Domain] == nil {
				byDomain[s.Domain] = &option{host: h.ID, domain: s.Domain}
			}
			byDomain[s.Domain].slots = append(byDomain[s.Domain].slots, s.Slot)
		}
		for _, o := range byDomain {
			if len(o.slots) < req.Count {
				continue
			}
			if best == nil || cmp.Or(cmp.Compare(len(best.slots), len(o.slots)),
				cmp.Compare(o.host, best.host), cmp.Compare(o.domain, best.domain)) < 0 {
				best = o
			}
		}
	}
	var d HostDecision
	switch {
	case best != nil:
		slices.Sort(best.slots)
		d.Host, d.Slots = best.host, best.slots[:req.Count]
		d.Why = append(d.Why, fmt.Sprintf("Host %s has %d free slots.", best.host, len(best.slots)))
	case !usable && req.Host != "":
		d.Why = append(d.Why, fmt.Sprintf("Host %s is not reachable, cordoned, or lacks the labels.", req.Host))
	case !usable:
		d.Why = append(d.Why, "No host is reachable, not cordoned and has the labels.")
	case req.Host != "":
		d.Why = append(d.Why, fmt.Sprintf("Host %s does not have %d free slots.", req.Host, req.Count))
	default:
		d.Why = append(d.Why, fmt.Sprintf("No host has %d free slots.", req.Count))
	}
	return d
}
