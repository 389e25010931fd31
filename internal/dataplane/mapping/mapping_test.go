package mapping_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/cfgspace"
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

// A run that goes to the host as a whole goes there with each of its TLPs, whatever the
// windows of the devices and of the upstream port are.
func TestAllToHostHoldsForEachTLP(t *testing.T) {
	yes := 0
	rapid.Check(t, func(r *rapid.T) {
		page := rapid.Uint64Range(0, 24)
		router := mapping.NewRouter(3)
		port := func(name string) mapping.Port {
			p := mapping.Port{Active: rapid.IntRange(0, 9).Draw(r, name+" active") > 0, Master: rapid.IntRange(0, 9).Draw(r, name+" master") > 0}
			for range rapid.IntRange(0, 2).Draw(r, name+" windows") {
				base := page.Draw(r, name+" base") * 512
				p.Windows = append(p.Windows, cfgspace.Window{Base: base, Limit: base + page.Draw(r, name+" size")*512 + 511})
			}
			return p
		}
		router.SetUpstream(port("upstream"))
		for slot := range 3 {
			router.Set(slot, port("port"))
		}
		addr, n := page.Draw(r, "addr")*512, (2+page.Draw(r, "n"))*512
		if !router.AllToHost(0, addr, n) {
			return
		}
		yes++
		for at := addr; at < addr+n; at += 512 {
			p := tlp.Packet{Type: tlp.MWr}
			p.SetMemory(at, 512)
			if route := router.FromSlot(0, &p); route.Where != mapping.ToHost {
				r.Fatalf("%#x goes to %v", at, route)
			}
		}
	})
	if yes == 0 {
		t.Error("no run went to the host")
	}
}

func TestRoutingDoesNotAllocate(t *testing.T) {
	table := mapping.NewHostTable(1)
	if err := table.Bind(0, mapping.Target{}); err != nil {
		t.Fatal(err)
	}
	p := &tlp.Packet{Type: tlp.MRd, Length: 1}
	if n := testing.AllocsPerRun(100, func() { table.FromSlot(0, p); table.AllToHost(0, 0, 1<<16) }); n != 0 {
		t.Errorf("routing allocates %v times", n)
	}
}
