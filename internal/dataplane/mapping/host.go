// Package mapping holds the tables by which both proxies route TLPs. They map the
// slots of a host's virtual switch to the slots of GPU boxes.
//
// The columns are those of the paper's Tables 2 and 3. Router does all routing. For
// a virtual machine it follows the BARs that the guest programs, for the embedded
// host the registers of its switch, and in a box the BARs of the devices of one
// host. The tables are pure data; their owners serialize access.
//
// Section numbers without a name refer to the PCI Express Base Specification,
// revision 6.0.
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

// HostTable is the mapping table on the host side of a virtual machine. The VMM
// implements the ports above the slots, so the proxy does not see the windows that
// the guest programs there. It uses the devices' BARs in their place.
type HostTable struct {
	entries []HostEntry
	router  *Router
}

// NewHostTable returns a table of free slots. Slot i has bus i+1, the bus behind
// downstream port i of the virtual switch, until a configuration request has
// another number.
func NewHostTable(slots int) *HostTable {
	t := &HostTable{entries: make([]HostEntry, slots), router: newDeviceRouter(slots)}
	for i := range t.entries {
		t.entries[i].ID = SlotID(i)
	}
	return t
}

// SlotID is the Routing ID that the device of a slot has until a configuration
// write gives it another.
func SlotID(slot int) pcie.BDF { return pcie.NewBDF(uint8(slot+1), 0, 0) }

// Entry returns a copy of the row of a slot.
func (t *HostTable) Entry(slot int) (HostEntry, bool) {
	if slot < 0 || slot >= len(t.entries) {
		return HostEntry{}, false
	}
	return t.entries[slot], true
}

// SetBARs sets the BARs that the device of a slot has, as probing found them.
func (t *HostTable) SetBARs(slot int, bars [pcie.MaxBARs]pcie.BAR) {
	t.entries[slot].BARs = bars
	t.update(slot)
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
	t.update(slot)
	return nil
}

// Retarget replaces the far end of the binding of a slot, whose device has moved there.
func (t *HostTable) Retarget(slot int, target Target) {
	if e := &t.entries[slot]; e.Used {
		e.Target = target
	}
}

// Unbind frees the row of a slot.
func (t *HostTable) Unbind(slot int) {
	if slot >= 0 && slot < len(t.entries) {
		t.entries[slot] = HostEntry{Function: Function{ID: SlotID(slot)}}
		t.router.Set(slot, Port{})
	}
}

// Disable clears the Command register of the device of a slot, as a function
// level reset does: the device decodes no memory.
func (t *HostTable) Disable(slot int) {
	t.entries[slot].command = 0
	t.update(slot)
}

// Snoop learns from a configuration write that is forwarded to a slot.
func (t *HostTable) Snoop(slot int, p *tlp.Packet) {
	if t.entries[slot].Snoop(p) {
		t.update(slot)
	}
}

func (t *HostTable) update(slot int) {
	if e := &t.entries[slot]; e.Used {
		t.router.Set(slot, e.port())
	}
}

// AllToHost reports whether a run of memory requests of a device goes to the host, see
// Router.
func (t *HostTable) AllToHost(from int, addr, n uint64) bool {
	return t.router.AllToHost(from, addr, n)
}

// FromSlot routes a TLP that the device of a slot sends. The port above the
// slot belongs to the VMM, so a TLP that ends at the port goes to the host.
func (t *HostTable) FromSlot(from int, p *tlp.Packet) Route {
	r := t.router.FromSlot(from, p)
	if r.Where == Here {
		r.Where = ToHost
	}
	return r
}
