package mapping

import (
	"fmt"

	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// Host is the near end of a binding as the box side sees it.
type Host struct {
	Node   uint32 // number of the host
	Domain string // the virtual switch of that host: one address space, one VM
	Slot   uint16 // slot of the virtual switch
	Path   uint8
	Epoch  uint64 // fences the bindings before
	// Incarnation of the pool that gave out Epoch. Epochs of different
	// incarnations are not comparable.
	Incarnation uint64
}

// BoxEntry is a row of the box side's table (paper, Table 3). The row number
// is the slot of the box.
type BoxEntry struct {
	Valid bool // a device is in place
	Used  bool // and bound to a host
	Function
	Host
}

// BoxTable is the mapping table on the GPU box side.
type BoxTable struct {
	entries []BoxEntry
}

// NewBoxTable makes a table of empty slots.
func NewBoxTable(slots int) *BoxTable { return &BoxTable{entries: make([]BoxEntry, slots)} }

// Len returns the number of slots.
func (t *BoxTable) Len() int { return len(t.entries) }

// Entry returns a copy of the row of a slot.
func (t *BoxTable) Entry(slot int) (BoxEntry, bool) {
	if slot < 0 || slot >= len(t.entries) {
		return BoxEntry{}, false
	}
	return t.entries[slot], true
}

// Insert says that a device with these BARs is in a slot.
func (t *BoxTable) Insert(slot int, bars [pcie.MaxBARs]pcie.BAR) error {
	if slot < 0 || slot >= len(t.entries) {
		return fmt.Errorf("mapping: slot %d does not exist: the box has %d", slot, len(t.entries))
	}
	t.entries[slot] = BoxEntry{Valid: true, Function: Function{BARs: bars}}
	return nil
}

// Remove says that the slot is empty.
func (t *BoxTable) Remove(slot int) {
	if slot >= 0 && slot < len(t.entries) {
		t.entries[slot] = BoxEntry{}
	}
}

// Bind dedicates the device of a slot to a host. It refuses an empty slot, one
// that is bound, and an epoch that is not newer than the slot has seen in the same incarnation.
func (t *BoxTable) Bind(slot int, host Host) error {
	e, ok := t.Entry(slot)
	switch {
	case !ok || !e.Valid:
		return fmt.Errorf("mapping: slot %d holds no device", slot)
	case e.Used:
		return fmt.Errorf("mapping: slot %d is bound to node %d", slot, e.Node)
	case host.Incarnation == e.Incarnation && host.Epoch <= e.Epoch:
		return fmt.Errorf("mapping: slot %d has seen epoch %d, refused epoch %d", slot, e.Epoch, host.Epoch)
	}
	row := &t.entries[slot]
	row.Used, row.Host = true, host
	row.Reset()
	return nil
}

// Unbind frees a slot; its epoch stays as the fence.
func (t *BoxTable) Unbind(slot int) {
	if slot < 0 || slot >= len(t.entries) {
		return
	}
	row := &t.entries[slot]
	row.Used, row.Host = false, Host{Epoch: row.Epoch, Incarnation: row.Incarnation}
	row.Reset()
}

// Snoop takes note of a configuration write on its way to the device of a slot.
func (t *BoxTable) Snoop(slot int, p *tlp.Packet) { t.entries[slot].Snoop(p) }

// Peer finds the slot of this box to which a TLP of another slot can be handed
// without crossing the network: both bound to the same virtual switch of the
// same host. Everything else goes to the host, which routes it (a GPU is
// dedicated to one host, paper section 3.3.3).
func (t *BoxTable) Peer(from int, p *tlp.Packet) (slot int, ok bool) {
	me := &t.entries[from]
	if !me.Used {
		return 0, false
	}
	for i := range t.entries {
		e := &t.entries[i]
		if i == from || !e.Used || e.Node != me.Node || e.Domain != me.Domain {
			continue
		}
		if e.takes(p) {
			return i, true
		}
	}
	return 0, false
}

// takes reports whether a TLP is addressed to this function.
func (e *BoxEntry) takes(p *tlp.Packet) bool {
	switch p.Type {
	case tlp.MRd, tlp.MWr, tlp.FetchAdd, tlp.Swap, tlp.CAS:
		for i := range e.BARs {
			if w, ok := e.Window(i); ok && w.Contains(p.Addr, uint64(p.Length)*pcie.DW) {
				return true
			}
		}
	case tlp.Cpl, tlp.CplD:
		// A function that has seen no configuration write has no number yet;
		// 00:00.0, the zero value, is the root complex's.
		return e.ID != 0 && e.ID>>3 == p.Requester>>3
	}
	return false
}
