package placement

import (
	"cmp"
	"slices"

	"k8s.io/utils/third_party/forked/golang/btree"
)

// Hosts is an index of hosts. It decides as PlaceHost does. The time for a request
// that names a host, or has at most one label, does not depend on the number of
// hosts; a request with several labels, or with a label and a domain, looks through
// the hosts that have the rarest of them. It is not safe for concurrent use.
type Hosts struct {
	hosts map[string]*indexedHost
	// options has the options by property, most free slots first.
	options map[property]*btree.BTree[*hostOption]
	count   map[property]int // options with the property, whatever their restriction
	// restrictions counts the options with each restriction.
	restrictions map[Restriction]int
	// pathSets counts the hosts with each set of paths, racked those whose rack is known.
	pathSets map[Paths]int
	racked   int
	alike    records[alikeHostKey, alikeHost]
}

// property is something that a request can ask for; the zero value is any host.
type property struct {
	of         propertyKind
	key, value string
	paths      Paths
	// restriction is that of the host: one of those that a request tolerates.
	restriction Restriction
}

type propertyKind uint8

const (
	ofAny propertyKind = iota
	ofLabel
	ofDomain
	ofPaths
	ofRack // and of paths
)

// hostOption is one choice: the free slots of one domain of a usable host. A
// usable host without free slots has one option without slots.
type hostOption struct {
	freeSlots
	in *indexedHost
}

type indexedHost struct {
	Host
	options []*hostOption
	alike   alikeHostKey
}

// NewHosts returns an empty index.
func NewHosts() *Hosts {
	return &Hosts{hosts: map[string]*indexedHost{}, options: map[property]*btree.BTree[*hostOption]{}, count: map[property]int{}, restrictions: map[Restriction]int{}, pathSets: map[Paths]int{}}
}

// SetHost adds a host with all of its slots, or replaces the host with that ID. The
// slots must differ. The index keeps a copy, except of the labels, which must not
// change afterwards.
func (h *Hosts) SetHost(host Host) {
	h.RemoveHost(host.ID)
	host.Slots = slices.SortedFunc(slices.Values(host.Slots), compareHostSlots)
	row := &indexedHost{Host: host}
	h.hosts[host.ID] = row
	h.countHost(row, 1)
	h.insert(row)
}

// countHost adds n, 1 or -1, to the numbers of hosts.
func (h *Hosts) countHost(host *indexedHost, n int) {
	if h.pathSets[host.Paths] += n; h.pathSets[host.Paths] == 0 {
		delete(h.pathSets, host.Paths)
	}
	if host.Rack != "" {
		h.racked += n
	}
}

// RemoveHost removes a host. An unknown ID changes nothing.
func (h *Hosts) RemoveHost(id string) {
	if row := h.hosts[id]; row != nil {
		h.remove(row)
		h.countHost(row, -1)
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
	h.remove(row)
	if there {
		row.Slots[at] = s
	} else {
		row.Slots = slices.Insert(row.Slots, at, s)
	}
	h.insert(row)
}

func compareHostSlots(a, b HostSlot) int { return cmp.Compare(a.Slot, b.Slot) }

// insert adds the options of a usable host to the index.
func (h *Hosts) insert(host *indexedHost) {
	free := freeSlotsOf(&host.Host)
	h.enter(host, free)
	if !host.Usable {
		return
	}
	for _, s := range free {
		host.options = append(host.options, &hostOption{*s, host})
	}
	if len(host.options) == 0 {
		host.options = append(host.options, &hostOption{freeSlots{host: host.ID, at: host.Location}, host})
	}
	for _, o := range host.options {
		h.restrictions[host.Restriction]++
		for _, p := range o.properties() {
			h.count[p]++
			p.restriction = host.Restriction
			t := h.options[p]
			if t == nil {
				t = btree.New(treeDegree, func(a, b *hostOption) bool { return compareFree(&a.freeSlots, &b.freeSlots) < 0 })
				h.options[p] = t
			}
			t.ReplaceOrInsert(o)
		}
	}
}

// remove removes the options of a host from the index.
func (h *Hosts) remove(host *indexedHost) {
	h.leave(host)
	for _, o := range host.options {
		if h.restrictions[host.Restriction]--; h.restrictions[host.Restriction] == 0 {
			delete(h.restrictions, host.Restriction)
		}
		for _, p := range o.properties() {
			if h.count[p]--; h.count[p] == 0 {
				delete(h.count, p)
			}
			p.restriction = host.Restriction
			if t := h.options[p]; t.Len() == 1 {
				delete(h.options, p)
			} else {
				t.Delete(o)
			}
		}
	}
	host.options = nil
}

func (o *hostOption) properties() []property {
	out := append(make([]property, 0, 4+len(o.in.Labels)), property{}, property{of: ofPaths, paths: o.at.Paths})
	for k, v := range o.in.Labels {
		out = append(out, property{of: ofLabel, key: k, value: v})
	}
	if len(o.slots) > 0 {
		out = append(out, property{of: ofDomain, key: o.domain})
	}
	if o.at.Rack != "" {
		out = append(out, property{of: ofRack, key: o.at.Rack, paths: o.at.Paths})
	}
	return out
}

// Place decides on host slots as PlaceHost does.
func (h *Hosts) Place(req HostRequest) HostDecision {
	if req.Host != "" {
		var one []Host
		if row := h.hosts[req.Host]; row != nil {
			one = []Host{row.Host}
		}
		return PlaceHost(one, req)
	}
	rarest := h.rarest(&req)
	var best *freeSlots
	if o := h.first(rarest, max(1, req.Count), &req, true, nil); o != nil {
		best = &o.freeSlots
	}
	// The hosts with excluded slots are few, and are looked at one by one.
	for _, id := range req.excludedHosts() {
		if row := h.hosts[id]; row != nil && eligible(&row.Host, &req) {
			best = betterOf(best, bestSlots(&row.Host, &req))
		}
	}
	if best != nil || req.Brief {
		return decideHost(best, nil, &req)
	}
	return decideHost(nil, h.all(&req), &req)
}

// rarest returns the rarest of the properties that a request asks for.
func (h *Hosts) rarest(req *HostRequest) (all property) {
	for k, v := range req.Labels {
		if p := (property{of: ofLabel, key: k, value: v}); h.count[p] < h.count[all] {
			all = p
		}
	}
	if p := (property{of: ofDomain, key: req.Domain}); req.Domain != "" && h.count[p] < h.count[all] {
		all = p
	}
	return all
}

// excludedHosts returns the hosts of excluded slots, each once.
func (r *HostRequest) excludedHosts() []string {
	var out []string
	for _, s := range r.Exclude {
		if !slices.Contains(out, s.Host) {
			out = append(out, s.Host)
		}
	}
	return out
}

// first returns the first option with a property that has at least count free slots
// and meets the request, and is of no host with excluded slots. With domain false it
// ignores the request's domain. It considers only some hosts; nil: all.
func (h *Hosts) first(p property, count int, req *HostRequest, domain bool, among func(*Host) bool) *hostOption {
	excluded := req.excludedHosts()
	return h.firstTolerated(p, req, func(o *hostOption) found {
		switch {
		case len(o.slots) < count:
			return none
		case eligible(&o.in.Host, req) && !slices.Contains(excluded, o.host) && (!domain || req.Domain == "" || o.domain == req.Domain) &&
			(among == nil || among(&o.in.Host)):
			return thisOne
		}
		return goOn
	})
}

// found is what a search says about an option: the search goes on, this is the one, or
// neither this nor a later one is.
type found uint8

const (
	goOn found = iota
	thisOne
	none
)

// firstTolerated searches the options with a property for each restriction that a request
// tolerates, and returns the first option of all.
func (h *Hosts) firstTolerated(p property, req *HostRequest, look func(*hostOption) found) (best *hostOption) {
	for r := range h.restrictions {
		p.restriction = r
		t := h.options[p]
		if t == nil || !r.toleratedBy(req.Tolerations) {
			continue
		}
		for o := range t.Ascend {
			is := look(o)
			if is == thisOne && (best == nil || compareFree(&o.freeSlots, &best.freeSlots) < 0) {
				best = o
			}
			if is != goOn {
				break
			}
		}
	}
	return best
}
