// Package mapping holds the tables by which both proxies route TLPs: which
// slot of the host's virtual switch stands for which slot of which GPU box.
//
// The columns are those of the paper's Tables 2 and 3; the routing is that of
// its section 3.3.3: by address, by ID, implicit. The tables are pure data:
// whoever owns them guards them.
package mapping

import (
	"fmt"

	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// Target is the far end of a binding as the manager allocates it.
type Target struct {
	Box  uint32 // node ID of the GPU box
	Slot uint16 // slot of the box
	Path uint8  // path to prefer
}

// HostEntry is a row of the host side's table (paper, Table 2). The row number
// is the slot of the virtual switch.
type HostEntry struct {
	Used bool
	Function
	Target
}

// HostTable is the mapping table on the host side.
type HostTable struct {
	entries []HostEntry
	byAddr  windowIndex
}

// NewHostTable makes a table of free slots. Slot i is given bus i+1: the bus
// behind downstream port i of the virtual switch, until a configuration
// request says otherwise.
func NewHostTable(slots int) *HostTable {
	t := &HostTable{entries: make([]HostEntry, slots)}
	for i := range t.entries {
		t.entries[i].ID = SlotID(i)
	}
	return t
}

// SlotID is the Routing ID that the device of a slot has until it is told another.
func SlotID(slot int) pcie.BDF { return pcie.NewBDF(uint8(slot+1), 0, 0) }

// Len returns the number of slots.
func (t *HostTable) Len() int { return len(t.entries) }

// Entry returns a copy of the row of a slot.
func (t *HostTable) Entry(slot int) (HostEntry, bool) {
	if slot < 0 || slot >= len(t.entries) {
		return HostEntry{}, false
	}
	return t.entries[slot], true
}

// SetBARs says what the device of a slot has, once it has been asked.
func (t *HostTable) SetBARs(slot int, bars [pcie.MaxBARs]pcie.BAR) {
	t.entries[slot].BARs = bars
	t.reindex()
}

// Bind fills the row of a free slot.
func (t *HostTable) Bind(slot int, target Target) error {
	if slot < 0 || slot >= len(t.entries) {
		return fmt.Errorf("mapping: slot %d does not exist: the virtual switch has %d", slot, len(t.entries))
	}
	if t.entries[slot].Used {
		return fmt.Errorf("mapping: slot %d is in use", slot)
	}
	t.entries[slot] = HostEntry{Used: true, Target: target, Function: Function{ID: SlotID(slot)}}
	t.reindex()
	return nil
}

// Unbind frees the row of a slot.
func (t *HostTable) Unbind(slot int) {
	if slot >= 0 && slot < len(t.entries) {
		t.entries[slot] = HostEntry{Function: Function{ID: SlotID(slot)}}
		t.reindex()
	}
}

// Disable says that the device of a slot decodes no memory any more, as after
// a function level reset.
func (t *HostTable) Disable(slot int) {
	t.entries[slot].command = 0
	t.reindex()
}

// Snoop takes note of a configuration write that is forwarded to a slot.
func (t *HostTable) Snoop(slot int, p *tlp.Packet) {
	if t.entries[slot].Snoop(p) {
		t.reindex()
	}
}

func (t *HostTable) reindex() {
	t.byAddr.rebuild(func(yield func(int, Window)) {
		for slot := range t.entries {
			if !t.entries[slot].Used {
				continue
			}
			for i := range pcie.MaxBARs {
				if w, ok := t.entries[slot].Window(i); ok {
					yield(slot, w)
				}
			}
		}
	})
}

// ByAddress finds the slot whose device decodes the n bytes at addr.
func (t *HostTable) ByAddress(addr, n uint64) (slot int, ok bool) { return t.byAddr.find(addr, n) }

// ByID finds the slot of a Routing ID. The function number does not matter:
// the whole device is behind the slot.
func (t *HostTable) ByID(id pcie.BDF) (slot int, ok bool) {
	for i := range t.entries {
		if e := &t.entries[i]; e.Used && e.ID>>3 == id>>3 {
			return i, true
		}
	}
	return 0, false
}

// Where a TLP goes.
type Where uint8

// Destinations of a TLP at the virtual switch.
const (
	Unsupported Where = iota // nobody: answer a request with Unsupported Request
	ToHost                   // the root complex: host memory, or the requester there
	ToSlot                   // the device of one slot
	ToAll                    // every device (a broadcast from the root complex)
	Here                     // ends at this port (a local message)
)

// String names the destination.
func (w Where) String() string {
	return [...]string{"unsupported", "host", "slot", "all", "here"}[min(w, Here)]
}

// FromHost routes a TLP that the root complex sends down (section 3.3.3 of the
// paper: by address, by ID, implicit).
func (t *HostTable) FromHost(p *tlp.Packet) (Where, int) {
	switch p.Type {
	case tlp.MRd, tlp.MRdLk, tlp.MWr, tlp.FetchAdd, tlp.Swap, tlp.CAS, tlp.IORd, tlp.IOWr:
		return t.toSlot(t.ByAddress(p.Addr, uint64(p.Length)*pcie.DW))
	case tlp.CfgRd0, tlp.CfgWr0, tlp.CfgRd1, tlp.CfgWr1:
		return t.toSlot(t.ByID(p.Target))
	case tlp.Cpl, tlp.CplD, tlp.CplLk, tlp.CplDLk:
		return t.toSlot(t.ByID(p.Requester))
	case tlp.Msg, tlp.MsgD:
		switch p.Routing {
		case tlp.RouteByID:
			return t.toSlot(t.ByID(p.Target))
		case tlp.RouteByAddress:
			return t.toSlot(t.ByAddress(p.Addr, uint64(p.Length)*pcie.DW))
		case tlp.RouteBroadcast:
			return ToAll, 0
		case tlp.RouteLocal:
			return Here, 0
		}
	}
	return Unsupported, 0
}

func (t *HostTable) toSlot(slot int, ok bool) (Where, int) {
	if !ok {
		return Unsupported, 0
	}
	return ToSlot, slot
}

// FromSlot routes a TLP that the device of a slot sends up. An address inside
// the window of another slot is peer-to-peer; one inside the device's own
// window has no way back through its own port and is unsupported.
func (t *HostTable) FromSlot(from int, p *tlp.Packet) (Where, int) {
	switch p.Type {
	case tlp.MRd, tlp.MRdLk, tlp.MWr, tlp.FetchAdd, tlp.Swap, tlp.CAS:
		return t.upByAddress(from, p)
	case tlp.Cpl, tlp.CplD, tlp.CplLk, tlp.CplDLk:
		return t.upByID(from, p.Requester)
	case tlp.Msg, tlp.MsgD:
		switch p.Routing {
		case tlp.RouteToRootComplex, tlp.RouteGatherToRoot:
			return ToHost, 0
		case tlp.RouteByID:
			return t.upByID(from, p.Target)
		case tlp.RouteByAddress:
			return t.upByAddress(from, p)
		case tlp.RouteLocal:
			return Here, 0
		}
	}
	return Unsupported, 0 // a device sends no configuration and no I/O requests upstream
}

func (t *HostTable) upByAddress(from int, p *tlp.Packet) (Where, int) {
	slot, ok := t.ByAddress(p.Addr, uint64(p.Length)*pcie.DW)
	return up(from, slot, ok)
}

func (t *HostTable) upByID(from int, id pcie.BDF) (Where, int) {
	slot, ok := t.ByID(id)
	return up(from, slot, ok)
}

// up decides between a peer, the host and the way back to where it came from.
func up(from, slot int, found bool) (Where, int) {
	switch {
	case !found:
		return ToHost, 0
	case slot == from:
		return Unsupported, 0
	}
	return ToSlot, slot
}
