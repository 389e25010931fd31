package placement

import (
	"cmp"
	"slices"
)

// Hosts is an index over hosts, kept up to date change by change. Its decisions
// are those of PlaceHost. A request that names a host, or at most one label,
// takes a time that does not depend on their number; one with several labels, or
// with a label and a domain, looks through those that have the rarest of them.
// It is not safe for concurrent use.
type Hosts struct {
	hosts map[string]*hostRow
	// aspects has the free slots in order by what a request can ask for: one
	// tree for all hosts, one for each label and one for each domain.
	aspects map[aspect]*tree[*hostOption]
	size    map[aspect]int
}

// aspect is one thing that a request can ask for; the zero value is any host.
type aspect struct {
	of         aspectKind
	key, value string
}

type aspectKind uint8

const (
	ofAny aspectKind = iota
	ofLabel
	ofDomain
)

// hostOption is one choice: the free slots of one domain of a usable host, or
// none of them, so that hosts without free slots are known as well.
type hostOption struct {
	switchboard
	row *hostRow
}

type hostRow struct {
	Host
	options []*hostOption
}

// NewHosts returns an empty index.
func NewHosts() *Hosts {
	return &Hosts{hosts: map[string]*hostRow{}, aspects: map[aspect]*tree[*hostOption]{}, size: map[aspect]int{}}
}

// SetHost adds a host with all of its slots, or puts it in the place of the one
// of that ID. Slots are distinct. The index keeps a copy, but for the labels,
// which are not to be changed.
func (h *Hosts) SetHost(host Host) {
	h.RemoveHost(host.ID)
	host.Slots = slices.SortedFunc(slices.Values(host.Slots), compareHostSlots)
	row := &hostRow{Host: host}
	h.hosts[host.ID] = row
	h.enter(row)
}

// RemoveHost takes a host out. An unknown ID changes nothing.
func (h *Hosts) RemoveHost(id string) {
	if row := h.hosts[id]; row != nil {
		h.leave(row)
		delete(h.hosts, id)
	}
}

// SetSlot adds or replaces one slot of a host. An unknown host changes nothing.
func (h *Hosts) SetSlot(host string, s HostSlot) {
	row := h.hosts[host]
	if row == nil {
		return
	}
	at, there := slices.BinarySearchFunc(row.Slots, s, compareHostSlots)
	if there && row.Slots[at] == s {
		return
	}
	h.leave(row)
	if there {
		row.Slots[at] = s
	} else {
		row.Slots = slices.Insert(row.Slots, at, s)
	}
	h.enter(row)
}

func compareHostSlots(a, b HostSlot) int { return cmp.Compare(a.Slot, b.Slot) }

// enter puts the options of a usable host into every tree that they belong to.
func (h *Hosts) enter(row *hostRow) {
	if !row.Usable {
		return
	}
	for _, s := range switchboards(&row.Host) {
		row.options = append(row.options, &hostOption{*s, row})
	}
	if len(row.options) == 0 {
		row.options = append(row.options, &hostOption{switchboard{host: row.ID}, row})
	}
	for _, o := range row.options {
		for _, a := range o.aspects() {
			t := h.aspects[a]
			if t == nil {
				t = &tree[*hostOption]{}
				h.aspects[a] = t
			}
			t.put(o.key(), o)
			h.size[a]++
		}
	}
}

func (h *Hosts) leave(row *hostRow) {
	for _, o := range row.options {
		for _, a := range o.aspects() {
			h.aspects[a].remove(o.key())
			if h.size[a]--; h.size[a] == 0 {
				delete(h.size, a)
				delete(h.aspects, a)
			}
		}
	}
	row.options = nil
}

// key orders options as compareFree does.
func (o *hostOption) key() key {
	return key{major: -len(o.slots), name: o.host, sub: o.domain}
}

func (o *hostOption) aspects() []aspect {
	out := append(make([]aspect, 0, 2+len(o.row.Labels)), aspect{})
	for k, v := range o.row.Labels {
		out = append(out, aspect{ofLabel, k, v})
	}
	if len(o.slots) > 0 {
		out = append(out, aspect{ofDomain, o.domain, ""})
	}
	return out
}

// Place decides on host slots, as PlaceHost does.
func (h *Hosts) Place(req HostRequest) HostDecision {
	if req.Host != "" {
		var one []Host
		if row := h.hosts[req.Host]; row != nil {
			one = []Host{row.Host}
		}
		return PlaceHost(one, req)
	}
	// The rarest of what is asked for, with the domain and without.
	labels := aspect{}
	for k, v := range req.Labels {
		if a := (aspect{ofLabel, k, v}); h.size[a] < h.size[labels] {
			labels = a
		}
	}
	rarest := labels
	if a := (aspect{ofDomain, req.Domain, ""}); req.Domain != "" && h.size[a] < h.size[rarest] {
		rarest = a
	}
	best := h.first(rarest, max(1, req.Count), &req, true)
	usable := best != nil || h.first(labels, 0, &req, false) != nil
	if best == nil {
		return decideHost(nil, usable, &req)
	}
	return decideHost(&best.switchboard, true, &req)
}

// first returns the first option with so many free slots that meets the request,
// its domain included or not.
func (h *Hosts) first(a aspect, count int, req *HostRequest, domain bool) *hostOption {
	t := h.aspects[a]
	if t == nil {
		return nil
	}
	for e := t.from(key{major: -1 << 31}); e != nil && -e.key.major >= count; e = t.after(e.key) {
		o := e.value
		if eligible(&o.row.Host, req) && (!domain || req.Domain == "" || o.domain == req.Domain) {
			return o
		}
	}
	return nil
}
