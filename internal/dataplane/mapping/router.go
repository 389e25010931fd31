package mapping

import (
	"fmt"
	"slices"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// Where is the kind of a TLP's destination at a switch.
type Where uint8

// Destinations.
const (
	Unsupported Where = iota // no destination: the caller answers a request with Unsupported Request
	ToHost                   // the root complex: host memory, or the requester there
	ToSlot                   // the device of one slot
	ToAll                    // every device (a broadcast from the root complex)
	Here                     // ends at the port where it arrived
)

// String names the destination.
func (w Where) String() string {
	return [...]string{"unsupported", "host", "slot", "all", "here"}[min(w, Here)]
}

// Route is the destination of a TLP. Slot is valid for ToSlot only.
type Route struct {
	Where Where
	Slot  int
}

// String prints the route, "slot 2" or "host".
func (r Route) String() string {
	if r.Where == ToSlot {
		return fmt.Sprintf("slot %d", r.Slot)
	}
	return r.Where.String()
}

// Port is the part of a port's state that routing depends on. The zero Port does
// not forward any TLP.
type Port struct {
	Windows         []cfgspace.Window // memory that the port forwards downstream
	FirstID, LastID pcie.BDF          // Routing IDs behind the port; LastID 0: none
	Active          bool              // the link below is up
	Master          bool              // Bus Master Enable: the port forwards memory requests upstream

	// Access Control Services of a downstream port (section 6.12.1.1).
	RedirectRequests    bool // requests for a peer go to the host
	RedirectCompletions bool // completions for a peer go to the host, unless relaxed
	ForwardUpstream     bool // TLPs for the sender's own slot go to the host
}

func (p *Port) claims(addr, n uint64) bool {
	return slices.ContainsFunc(p.Windows, func(w cfgspace.Window) bool { return w.Contains(addr, n) })
}

func (p *Port) overlaps(addr, n uint64) bool {
	return slices.ContainsFunc(p.Windows, func(w cfgspace.Window) bool { return overlap(w, addr, n) })
}

func (p *Port) covers(id pcie.BDF) bool {
	return p.LastID != 0 && id >= p.FirstID && id <= p.LastID
}

// Router routes TLPs between the upstream port of a switch and its slots: by
// address, by ID, or implicitly (section 2.2.4; paper, section 3.3.3). Its owner
// serializes the calls of its methods.
type Router struct {
	up     Port
	slots  []Port
	byAddr windowIndex
}

// NewRouter returns the router of a switch whose ports do not forward TLPs yet.
func NewRouter(slots int) *Router { return &Router{slots: make([]Port, slots)} }

// newDeviceRouter returns a router that knows the devices in its slots but not the
// ports above them. Its upstream port has no windows; it forwards all requests
// that no device claims.
func newDeviceRouter(slots int) *Router {
	r := NewRouter(slots)
	r.SetUpstream(Port{Master: true})
	return r
}

// SetUpstream replaces the state of the upstream port. It ignores Active and the
// Access Control Services.
func (r *Router) SetUpstream(p Port) { r.up = p }

// Set replaces the state of the port above a slot.
func (r *Router) Set(slot int, p Port) {
	r.slots[slot] = p
	r.byAddr.rebuild(r.slots)
}

// FromHost routes a TLP that arrives at the upstream port.
func (r *Router) FromHost(p *tlp.Packet) Route {
	switch {
	case p.Type.Memory():
		return r.downByAddress(p)
	case p.Type.Config():
		return r.downByID(p.Target)
	case p.Type.Completion():
		return r.downByID(p.Requester)
	case p.Type.Message():
		switch p.Routing {
		case tlp.RouteByID:
			return r.downByID(p.Target)
		case tlp.RouteByAddress:
			return r.downByAddress(p)
		case tlp.RouteBroadcast:
			return Route{Where: ToAll}
		case tlp.RouteLocal:
			return Route{Where: Here}
		}
	}
	return Route{} // I/O: the ports have no I/O windows
}

// FromSlot routes a TLP that the device of a slot sends.
func (r *Router) FromSlot(from int, p *tlp.Packet) Route {
	switch {
	case p.Type.Memory():
		return r.upByAddress(from, p)
	case p.Type.Completion():
		return r.upByID(from, p.Requester, r.slots[from].RedirectCompletions && p.Attr&tlp.RelaxedOrdering == 0)
	case p.Type.Message():
		switch p.Routing {
		case tlp.RouteToRootComplex, tlp.RouteGatherToRoot:
			return Route{Where: ToHost}
		case tlp.RouteByID:
			return r.upByID(from, p.Target, false)
		case tlp.RouteByAddress:
			return r.upByAddress(from, p)
		case tlp.RouteLocal:
			return Route{Where: Here}
		}
	}
	return Route{} // a device sends no configuration and no I/O requests upstream
}

func (r *Router) downByAddress(p *tlp.Packet) Route {
	n := uint64(p.Length) * pcie.DW
	if slot, ok := r.byAddr.find(p.Addr, n); ok && r.up.claims(p.Addr, n) && r.slots[slot].Active {
		return Route{ToSlot, slot}
	}
	return Route{}
}

func (r *Router) downByID(id pcie.BDF) Route {
	if slot, ok := r.byID(id); ok && r.up.covers(id) && r.slots[slot].Active {
		return Route{ToSlot, slot}
	}
	return Route{}
}

// upByAddress routes a memory request of a device. An address in the window of
// another port goes to that slot. An address in the window of the device's own
// port, or in the windows of the upstream port but of no slot, has no destination.
// All other addresses go to the host (PCI-to-PCI Bridge Architecture
// Specification, section 4.2).
func (r *Router) upByAddress(from int, p *tlp.Packet) Route {
	port, n := &r.slots[from], uint64(p.Length)*pcie.DW
	if !port.Master || !port.Active {
		return Route{}
	}
	slot, ok := r.byAddr.find(p.Addr, n)
	switch {
	case !ok && r.up.claims(p.Addr, n):
		return Route{}
	case ok && !r.redirected(from, slot, port.RedirectRequests && p.AT != tlp.ATTranslated):
		return r.peer(from, slot)
	case !r.up.Master:
		return Route{}
	}
	return Route{Where: ToHost}
}

// AllToHost reports whether every untranslated memory request of a device in the n
// bytes at addr goes to the host. It may return false although it is so, where a
// window of a port overlaps the bytes.
func (r *Router) AllToHost(from int, addr, n uint64) bool {
	port := &r.slots[from]
	return port.Master && port.Active && r.up.Master && !r.up.overlaps(addr, n) && !r.byAddr.overlaps(addr, n)
}

// upByID routes a TLP of a device that names a function, by the same rules.
func (r *Router) upByID(from int, id pcie.BDF, redirect bool) Route {
	slot, ok := r.byID(id)
	switch {
	case !ok && r.up.covers(id):
		return Route{}
	case ok && !r.redirected(from, slot, redirect):
		return r.peer(from, slot)
	}
	return Route{Where: ToHost}
}

// redirected reports whether Access Control Services redirect a TLP from one slot
// to another, or back to the same slot, to the host.
func (r *Router) redirected(from, to int, redirect bool) bool {
	if from == to {
		return r.slots[from].ForwardUpstream
	}
	return redirect
}

func (r *Router) peer(from, to int) Route {
	if from == to || !r.slots[to].Active {
		return Route{}
	}
	return Route{ToSlot, to}
}

func (r *Router) byID(id pcie.BDF) (slot int, ok bool) {
	for i := range r.slots {
		if r.slots[i].covers(id) {
			return i, true
		}
	}
	return 0, false
}
