package placement

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Paths is the set of networks on which a node has an address: bit i is path i. The
// same path is the same network on all nodes. 0: not known.
type Paths uint64

// NewPaths returns the set of some paths. Paths from 64 on are left out.
func NewPaths(ids ...uint32) (p Paths) {
	for _, id := range ids {
		if id < 64 {
			p |= 1 << id
		}
	}
	return p
}

// reaches reports whether two nodes have a network in common.
func (p Paths) reaches(o Paths) bool { return p == 0 || o == 0 || p&o != 0 }

// Location is where a node is in the network.
type Location struct {
	Rack  string // empty: not known
	Paths Paths
}

// Uplinks lists the racks whose connection with the other racks has no bandwidth left
// for another GPU.
type Uplinks map[string]bool

// distance says how far a box is from a host; less is nearer. The racks count first,
// then the networks of the host that the box lacks.
type distance int

const (
	sameRack    distance = 0
	otherRack   distance = 1 * 64
	busyUplink  distance = 2 * 64 // another rack, over an uplink that is full; over two: 3 * 64
	unreachable distance = math.MaxInt32
)

// distanceOf returns the distance of a host and a box.
func distanceOf(host, box Location, full Uplinks) distance {
	if !host.Paths.reaches(box.Paths) {
		return unreachable
	}
	d := otherRack
	switch {
	case host.Rack != "" && host.Rack == box.Rack:
		d = sameRack
	default:
		for _, rack := range []string{host.Rack, box.Rack} {
			if full[rack] {
				d += busyUplink - otherRack
			}
		}
	}
	if host.Paths != 0 && box.Paths != 0 {
		d += distance(bits.OnesCount64(uint64(host.Paths &^ box.Paths)))
	}
	return min(d, unreachable-1)
}

// site is where the host of a request is, or may be.
type site interface {
	// reaches reports whether a host has a network in common with boxes on some paths.
	reaches(box Paths) bool
	// distance returns the distance of a box from the nearest host.
	distance(box Location) distance
	// least returns a lower bound of the distances of boxes on some paths, and the rack
	// of boxes that may be nearer; empty: none.
	least(box Paths) (d distance, nearer string)
	// settle chooses the host, because a box has been chosen. It returns where the host is.
	settle(box Location) site
}

// fixedSite is the place of a host that is known.
type fixedSite struct {
	host   Location
	full   Uplinks
	chosen bool // with the first box
}

func (s fixedSite) reaches(box Paths) bool         { return s.host.Paths.reaches(box) }
func (s fixedSite) distance(box Location) distance { return distanceOf(s.host, box, s.full) }
func (s fixedSite) settle(Location) site           { return s }

func (s fixedSite) least(box Paths) (d distance, nearer string) {
	return s.distance(Location{Paths: box}), s.host.Rack
}

// freeSite is the places of all hosts that have room for a request. The host is chosen
// together with the first box.
type freeSite struct {
	hosts  hostStock
	full   Uplinks
	paths  *Paths // only hosts with these; nil: with any
	known  map[Location]*hostFor
	chosen *freeSlots // nil until settled
}

// hostFor is the best host for boxes of a location.
type hostFor struct {
	distance
	*freeSlots
}

func newFreeSite(hosts hostStock, full Uplinks, paths *Paths) *freeSite {
	return &freeSite{hosts: hosts, full: full, paths: paths, known: map[Location]*hostFor{}}
}

// to returns the best host for boxes of a location: the nearest, of these the one with
// the most free slots.
func (s *freeSite) to(box Location) *hostFor {
	if n := s.known[box]; n != nil {
		return n
	}
	best := &hostFor{distance: unreachable}
	consider := func(options []*freeSlots) {
		for _, o := range options {
			if s.paths != nil && o.at.Paths != *s.paths {
				continue
			}
			d := distanceOf(o.at, box, s.full)
			if d < best.distance || d == best.distance && best.freeSlots != nil && compareFree(o, best.freeSlots) < 0 {
				best = &hostFor{d, o}
			}
		}
	}
	if box.Rack != "" {
		consider(s.hosts.inRack(box.Rack))
	}
	if best.distance >= otherRack {
		consider(s.hosts.anywhere(s.full))
	}
	if best.distance >= busyUplink && len(s.full) > 0 {
		consider(s.hosts.anywhere(nil))
	}
	s.known[box] = best
	return best
}

func (s *freeSite) reaches(box Paths) bool { return s.to(Location{Paths: box}).freeSlots != nil }

func (s *freeSite) distance(box Location) distance { return s.to(box).distance }

func (s *freeSite) least(box Paths) (d distance, nearer string) {
	d = s.to(Location{Paths: box}).distance
	if d != unreachable && s.hosts.racks() {
		d = sameRack + d%otherRack // the paths that are missing stay the same
	}
	return d, ""
}

func (s *freeSite) settle(box Location) site {
	s.chosen = s.to(box).freeSlots
	return fixedSite{s.chosen.at, s.full, true}
}

// hostStock is the hosts that a request may choose from: a list, or the index of Hosts.
// The options that it returns meet the request and have enough free slots.
type hostStock interface {
	// place chooses a host by its free slots alone.
	place() HostDecision
	// inRack returns the best option of a rack for each set of paths.
	inRack(rack string) []*freeSlots
	// anywhere returns the best option of all racks but some for each set of paths.
	anywhere(but Uplinks) []*freeSlots
	// racks reports whether the rack of any host is known.
	racks() bool
	// paths returns the sets of paths that hosts have, in order.
	paths() []Paths
	// locate returns the place of the host with an ID, false if there is none.
	locate(id string) (Location, bool)
}

// PlaceLease decides on GPUs and host slots together, by looking at all of them. A host
// that the request names counts as it is. Otherwise the decision chooses the host and
// the boxes such that they are near each other. Pool.PlaceLease gives the same
// decisions faster.
func PlaceLease(boxes []Box, hosts []Host, reserve Reserve, req Request, host HostRequest) (Decision, HostDecision) {
	l := leasePlacer{
		hosts: &hostList{hosts: hosts, req: &host}, req: &req, host: &host,
		place: func() Decision { return Place(boxes, reserve, req) },
		rackOf: func(box string) string {
			return boxes[slices.IndexFunc(boxes, func(b Box) bool { return b.ID == box })].Rack
		},
	}
	return l.decide()
}

// PlaceLease decides on GPUs and host slots as the function PlaceLease does.
func (p *Pool) PlaceLease(hosts *Hosts, reserve Reserve, req Request, host HostRequest) (Decision, HostDecision) {
	l := leasePlacer{
		hosts: newHostLookup(hosts, &host), req: &req, host: &host,
		place:  func() Decision { return p.Place(reserve, req) },
		rackOf: func(box string) string { return p.boxes[box].Rack },
	}
	return l.decide()
}

// leasePlacer decides on one lease. place decides on the GPUs of req.
type leasePlacer struct {
	hosts  hostStock
	req    *Request
	host   *HostRequest
	place  func() Decision
	rackOf func(box string) string
}

func (l *leasePlacer) decide() (Decision, HostDecision) {
	h := l.hosts.place()
	at, named := l.hosts.locate(l.host.Host)
	if named {
		l.req.site = fixedSite{host: at, full: l.req.Uplinks}
	}
	if named || !h.OK() {
		d := l.place()
		if d.OK() && h.OK() {
			l.sayWhere(&d, h.Host, at.Rack)
		}
		return d, h
	}
	s := newFreeSite(l.hosts, l.req.Uplinks, nil)
	l.req.site = s
	d := l.place()
	for _, paths := range l.hosts.paths() {
		if d.OK() {
			break
		}
		// The first box may have been on a network that reaches too few of the others.
		t := newFreeSite(l.hosts, l.req.Uplinks, &paths)
		l.req.site, l.req.Brief = t, true // a refusal is explained already
		if other := l.place(); other.OK() {
			s, d = t, other
		}
	}
	if d.OK() {
		h = decideHost(s.chosen, nil, l.host)
		l.sayWhere(&d, h.Host, s.chosen.at.Rack)
	}
	return d, h
}

// sayWhere says how many of the chosen GPUs are in the rack of the host.
func (l *leasePlacer) sayWhere(d *Decision, host, rack string) {
	if rack == "" {
		return
	}
	near := 0
	for _, p := range d.Picks {
		if l.rackOf(p.Box) == rack {
			near++
		}
	}
	switch near {
	case len(d.Picks):
		d.say("Host %s is in the same rack, %s.", host, rack)
	case 0:
		d.say("Host %s is in another rack, %s: no place there fits.", host, rack)
	default:
		d.say("Host %s is in rack %s, like %d of the %d GPUs.", host, rack, near, len(d.Picks))
	}
}

// String returns the paths as "0, 2".
func (p Paths) String() (out string) {
	for i := range 64 {
		if p&(1<<i) != 0 {
			if out != "" {
				out += ", "
			}
			out += fmt.Sprint(i)
		}
	}
	return out
}
