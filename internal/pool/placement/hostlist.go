package placement

import (
	"maps"
	"slices"
)

// hostList is the host stock of the function PlaceLease: all hosts.
type hostList struct {
	hosts []Host
	req   *HostRequest
	best  map[Location]*freeSlots // nil: not computed
}

func (l *hostList) place() HostDecision { return PlaceHost(l.hosts, *l.req) }

func (l *hostList) inRack(rack string) []*freeSlots {
	return l.bestByPaths(func(at Location) bool { return at.Rack == rack })
}

func (l *hostList) anywhere(but Uplinks) []*freeSlots {
	return l.bestByPaths(func(at Location) bool { return !but[at.Rack] })
}

// bestByPaths returns the best option of hosts at some locations for each set of paths.
func (l *hostList) bestByPaths(among func(Location) bool) []*freeSlots {
	if l.best == nil {
		l.best = map[Location]*freeSlots{}
		for i := range l.hosts {
			if h := &l.hosts[i]; eligible(h, l.req) {
				if o := betterOf(l.best[h.Location], bestSlots(h, l.req)); o != nil {
					l.best[h.Location] = o
				}
			}
		}
	}
	best := map[Paths]*freeSlots{}
	for at, o := range l.best {
		if among(at) {
			best[at.Paths] = betterOf(best[at.Paths], o)
		}
	}
	return slices.Collect(maps.Values(best))
}

func (l *hostList) racks() bool {
	return slices.ContainsFunc(l.hosts, func(h Host) bool { return h.Rack != "" })
}

func (l *hostList) paths() []Paths {
	var out []Paths
	for i := range l.hosts {
		if !slices.Contains(out, l.hosts[i].Paths) {
			out = append(out, l.hosts[i].Paths)
		}
	}
	return sortedPaths(out)
}

// sortedPaths returns sets of paths in order, none if there is only one.
func sortedPaths(sets []Paths) []Paths {
	if len(sets) < 2 {
		return nil
	}
	slices.Sort(sets)
	return sets
}

func (l *hostList) locate(id string) (Location, bool) {
	if at := slices.IndexFunc(l.hosts, func(h Host) bool { return h.ID == id }); at >= 0 {
		return l.hosts[at].Location, true
	}
	return Location{}, false
}

// hostLookup is the host stock of a Pool: the index of hosts.
type hostLookup struct {
	*Hosts
	req      *HostRequest
	excluded []*indexedHost // hosts with excluded slots, which are few
	rarest   property
}

func newHostLookup(h *Hosts, req *HostRequest) *hostLookup {
	l := &hostLookup{Hosts: h, req: req}
	for _, id := range req.excludedHosts() {
		if row := h.hosts[id]; row != nil {
			l.excluded = append(l.excluded, row)
		}
	}
	l.rarest = h.rarest(req)
	return l
}

func (l *hostLookup) place() HostDecision { return l.Place(*l.req) }

func (l *hostLookup) inRack(rack string) []*freeSlots {
	return l.bestByPaths(func(p Paths) property { return property{of: ofRack, key: rack, paths: p} }, func(h *Host) bool { return h.Rack == rack })
}

func (l *hostLookup) anywhere(but Uplinks) []*freeSlots {
	return l.bestByPaths(func(p Paths) property {
		at := property{of: ofPaths, paths: p}
		if l.count[l.rarest] < l.count[at] {
			return l.rarest
		}
		return at
	}, func(h *Host) bool { return !but[h.Rack] })
}

// bestByPaths returns the best option of some hosts for each set of paths. in returns
// the property by which the index finds them.
func (l *hostLookup) bestByPaths(in func(Paths) property, among func(*Host) bool) []*freeSlots {
	var out []*freeSlots
	for paths := range l.pathSets {
		some := func(h *Host) bool { return h.Paths == paths && among(h) }
		var best *freeSlots
		if o := l.first(in(paths), max(1, l.req.Count), l.req, true, some); o != nil {
			best = &o.freeSlots
		}
		for _, row := range l.excluded {
			if eligible(&row.Host, l.req) && some(&row.Host) {
				best = betterOf(best, bestSlots(&row.Host, l.req))
			}
		}
		if best != nil {
			out = append(out, best)
		}
	}
	return out
}

func (l *hostLookup) racks() bool { return l.racked > 0 }

func (l *hostLookup) paths() []Paths { return sortedPaths(slices.Collect(maps.Keys(l.pathSets))) }

func (l *hostLookup) locate(id string) (Location, bool) {
	if row := l.hosts[id]; row != nil {
		return row.Location, true
	}
	return Location{}, false
}
