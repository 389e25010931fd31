package mapping_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// For any values in the headers, a peer is a slot that decodes the address.
func TestHostTableSurvivesAnyProgramming(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		table := mapping.NewHostTable(3)
		for slot := range 3 {
			if err := table.Bind(slot, mapping.Target{}); err != nil {
				r.Fatal(err)
			}
			table.SetBARs(slot, gpuBARs)
		}
		for range rapid.IntRange(0, 30).Draw(r, "writes") {
			slot := rapid.IntRange(0, 2).Draw(r, "slot")
			register := rapid.SampledFrom([]uint16{4, 0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, 0x30, 0xffc}).Draw(r, "register")
			value, be := rapid.Uint32().Draw(r, "value"), rapid.Uint8Range(0, 15).Draw(r, "be")
			table.Snoop(slot, configWrite(mapping.SlotID(slot), register, value, be))
		}
		p := tlp.Packet{Type: tlp.MRd, Length: rapid.Uint16Range(1, 1024).Draw(r, "length")}
		p.SetAddr(rapid.Uint64().Draw(r, "addr") &^ 3)
		route := table.FromSlot(0, &p)
		if route.Where != mapping.ToSlot {
			return
		}
		e, _ := table.Entry(route.Slot)
		for i := range pcie.MaxBARs {
			if w, ok := e.Window(i); ok && w.Contains(p.Addr, uint64(p.Length)*pcie.DW) {
				return
			}
		}
		r.Fatalf("slot %d does not decode %#x", route.Slot, p.Addr)
	})
}

func TestRoutingDoesNotAllocate(t *testing.T) {
	table := mapping.NewHostTable(1)
	if err := table.Bind(0, mapping.Target{}); err != nil {
		t.Fatal(err)
	}
	p := &tlp.Packet{Type: tlp.MRd, Length: 1}
	if n := testing.AllocsPerRun(100, func() { table.FromSlot(0, p) }); n != 0 {
		t.Errorf("routing allocates %v times", n)
	}
}
