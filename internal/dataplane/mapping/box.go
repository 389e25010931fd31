package mapping

import (
	"fmt"

	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// Owner is the slot of a host to which a slot of the box is bound.
type Owner struct {
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
	Used  bool // the device is bound to a host
	Function
	Owner
	router *Router // shared by the slots that are bound to the same domain
}

// BoxTable is the mapping table on the GPU box side.
type BoxTable struct {
	entries []BoxEntry
}

// NewBoxTable makes a table of empty slots.
func NewBoxTable(slots int) *BoxTable { return &BoxTable{entries: make([]BoxEntry, slots)} }

// Entry returns a copy of the row of a slot.
func (t *BoxTable) Entry(slot int) (BoxEntry, bool) {
	if slot < 0 || slot >= len(t.entries) {
		return BoxEntry{}, false
	}
	return t.entries[slot], true
}

// Insert puts a device with these BARs into a free slot. The row keeps epoch and
// incarnation as the fence.
func (t *BoxTable) Insert(slot int, bars [pcie.MaxBARs]pcie.BAR) error {
	if slot < 0 || slot >= len(t.entries) {
		return fmt.Errorf("mapping: slot %d does not exist: the box has %d", slot, len(t.entries))
	}
	e := &t.entries[slot]
	if e.Used {
		return fmt.Errorf("mapping: slot %d is bound to node %d", slot, e.Node)
	}
	e.Valid, e.Function = true, Function{BARs: bars}
	return nil
}

// Bind dedicates the device of a slot to a host. It refuses an empty slot, one
// that is bound, and an epoch that is not newer than the slot has seen
// in the same incarnation.
func (t *BoxTable) Bind(slot int, owner Owner) error {
	e, ok := t.Entry(slot)
	switch {
	case !ok || !e.Valid:
		return fmt.Errorf("mapping: slot %d holds no device", slot)
	case e.Used:
		return fmt.Errorf("mapping: slot %d is bound to node %d", slot, e.Node)
	case owner.Incarnation == e.Incarnation && owner.Epoch <= e.Epoch:
		return fmt.Errorf("mapping: slot %d has seen epoch %d, refused epoch %d", slot, e.Epoch, owner.Epoch)
	}
	t.entries[slot] = BoxEntry{
		Valid: true, Used: true, Owner: owner, Function: Function{BARs: e.BARs}, router: t.router(owner),
	}
	t.update(slot)
	return nil
}

// router returns the router of the owner's domain.
func (t *BoxTable) router(owner Owner) *Router {
	for i := range t.entries {
		if e := &t.entries[i]; e.Used && e.Node == owner.Node && e.Domain == owner.Domain {
			return e.router
		}
	}
	return newDeviceRouter(len(t.entries))
}

// Unbind frees a slot. The row keeps epoch and incarnation: a later binding
// needs a newer epoch.
func (t *BoxTable) Unbind(slot int) {
	if slot < 0 || slot >= len(t.entries) || !t.entries[slot].Used {
		return
	}
	e := &t.entries[slot]
	e.router.Set(slot, Port{})
	*e = BoxEntry{Valid: true, Owner: Owner{Epoch: e.Epoch, Incarnation: e.Incarnation}, Function: Function{BARs: e.BARs}}
}

// Snoop learns from a configuration write on its way to the device of a slot.
func (t *BoxTable) Snoop(slot int, p *tlp.Packet) {
	if t.entries[slot].Snoop(p) {
		t.update(slot)
	}
}

func (t *BoxTable) update(slot int) {
	if e := &t.entries[slot]; e.Used {
		e.router.Set(slot, e.port())
	}
}

// Peer finds the slot of this box to which a TLP of another slot can be handed
// without crossing the network: both are bound to the same virtual switch of
// the same host. All other TLPs go to the host, which routes them (a GPU is
// dedicated to one host, paper section 3.3.3).
func (t *BoxTable) Peer(from int, p *tlp.Packet) (slot int, ok bool) {
	e := &t.entries[from]
	if !e.Used {
		return 0, false
	}
	r := e.router.FromSlot(from, p)
	return r.Slot, r.Where == ToSlot
}
