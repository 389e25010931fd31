package vswitch

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/internal/embedded/rootcomplex"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := "testdata/" + name
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// At boot the host sees the switch only, and keeps room for the GPUs (section
// 3.3 of the paper).
func TestBootSeesEmptySwitch(t *testing.T) {
	b := newTestBus(t, 4)
	root := b.enumerate()
	golden(t, "empty.txt", root.String())
	up := root.Children[0]
	if len(up.Children) != 4 {
		t.Fatalf("%d downstream ports, want 4", len(up.Children))
	}
	for _, d := range up.Children {
		if !d.HotPlug || d.Window64.Size < 32<<30 || d.Window32.Size < 16<<20 || d.Subordinate <= d.Secondary {
			t.Errorf("%v: hot-plug %v, windows %v and %v, buses %d to %d", d.ID, d.HotPlug, d.Window32, d.Window64, d.Secondary, d.Subordinate)
		}
	}
}

func TestHotPlugAndRescan(t *testing.T) {
	b := newTestBus(t, 3)
	root := b.enumerate()
	port := root.Children[0].Children[1]
	b.plug(1)
	if err := rootcomplex.Rescan(b, rootcomplex.DefaultEnumSpec(), port); err != nil {
		t.Fatal(err)
	}
	golden(t, "plugged.txt", root.String())
	gpu := port.Children[0]
	for _, bar := range gpu.BARs {
		p := tlp.Packet{Type: tlp.MRd, Tag: 1}
		p.SetMemory(bar.Range.Base+bar.Range.Size-4, 4)
		if got := b.sw.FromHost(&p); got != (mapping.Route{Where: mapping.ToSlot, Slot: 1}) {
			t.Errorf("last word of BAR %d goes to %v", bar.Index, got)
		}
	}
	b.unplug(1)
	if err := rootcomplex.Rescan(b, rootcomplex.DefaultEnumSpec(), port); err != nil {
		t.Fatal(err)
	}
	if len(port.Children) != 0 {
		t.Errorf("after unplug: %v", root)
	}
}

func TestConfigurationSpaceDecodes(t *testing.T) {
	b := newTestBus(t, 1)
	b.plug(0)
	b.enumerate()
	golden(t, "upstream.txt", cfgspace.Describe(b.sw.up.space.Bytes()))
	golden(t, "downstream.txt", cfgspace.Describe(b.sw.down[0].space.Bytes()))
}

func TestRouting(t *testing.T) {
	b := newTestBus(t, 3)
	b.plug(0)
	b.plug(2)
	root := b.enumerate()
	slots := root.Children[0].Children
	gpu0, gpu2 := slots[0].Children[0], slots[2].Children[0]
	aperture := func(f *rootcomplex.Function) uint64 { bar, _ := f.BAR(2); return bar.Range.Base }
	memory := func(kind tlp.Type, addr uint64) tlp.Packet {
		p := tlp.Packet{Type: kind, Requester: gpu0.ID, Tag: 7}
		p.SetMemory(addr, 4)
		if kind == tlp.MWr {
			p.Data = make([]byte, 4)
		}
		return p
	}
	slot := func(n int) mapping.Route { return mapping.Route{Where: mapping.ToSlot, Slot: n} }
	toHost := mapping.Route{Where: mapping.ToHost}
	refused := mapping.Route{Where: mapping.Unsupported}
	host := -1
	for _, c := range []struct {
		name string
		from int
		p    tlp.Packet
		want mapping.Route
	}{
		{"read of a GPU", host, memory(tlp.MRd, aperture(gpu2)), slot(2)},
		{"write to a GPU", host, memory(tlp.MWr, aperture(gpu0)), slot(0)},
		{"window of an empty slot", host, memory(tlp.MRd, slots[1].Window64.Base), refused},
		{"address in no window", host, memory(tlp.MRd, 0x1000), refused},
		{"I/O", host, tlp.Packet{Type: tlp.IORd, Length: 1, FirstBE: 0xf}, refused},
		{"completion for a GPU", host, tlp.Packet{Type: tlp.CplD, Requester: gpu2.ID}, slot(2)},
		{"completion for no device", host, tlp.Packet{Type: tlp.CplD, Requester: pcie.NewBDF(200, 0, 0)}, refused},
		{"configuration behind the slot", host, tlp.Packet{Type: tlp.CfgRd1, Length: 1, FirstBE: 0xf, Target: gpu2.ID}, slot(2)},
		{"configuration of device 1 on a link", host, tlp.Packet{Type: tlp.CfgRd1, Length: 1, FirstBE: 0xf, Target: gpu2.ID + 8}, refused},
		{"configuration of a port that is not", host, tlp.Packet{Type: tlp.CfgRd1, Length: 1, FirstBE: 0xf, Target: slots[2].ID + 8}, refused},
		{"configuration of device 1 above", host, tlp.Packet{Type: tlp.CfgRd0, Length: 1, FirstBE: 0xf, Target: pcie.NewBDF(1, 1, 0)}, refused},
		{"configuration of a port", host, tlp.Packet{Type: tlp.CfgRd1, Length: 1, FirstBE: 0xf, Target: slots[1].ID}, mapping.Route{Where: mapping.Here}},
		{"broadcast", host, tlp.Packet{Type: tlp.Msg, DW4: true, Routing: tlp.RouteBroadcast, Code: tlp.CodePMETurnOff}, mapping.Route{Where: mapping.ToAll}},
		{"message by ID", host, tlp.Packet{Type: tlp.Msg, DW4: true, Routing: tlp.RouteByID, Target: gpu0.ID, Code: tlp.CodeVendorType1}, slot(0)},
		{"local message", host, tlp.Packet{Type: tlp.Msg, DW4: true, Routing: tlp.RouteLocal, Code: tlp.CodeVendorType1}, mapping.Route{Where: mapping.Here}},

		{"DMA to host memory", 0, memory(tlp.MWr, 0x10_0000), toHost},
		{"MSI", 0, memory(tlp.MWr, 0xfee0_0000), toHost},
		{"peer to peer", 0, memory(tlp.MRd, aperture(gpu2)), slot(2)},
		{"own window", 0, memory(tlp.MRd, aperture(gpu0)), refused},
		{"window of an empty slot from a GPU", 0, memory(tlp.MRd, slots[1].Window64.Base), refused},
		{"DMA of an empty slot", 1, memory(tlp.MRd, 0x10_0000), refused},
		{"completion for the CPU", 0, tlp.Packet{Type: tlp.CplD}, toHost},
		{"completion for a peer", 0, tlp.Packet{Type: tlp.CplD, Requester: gpu2.ID}, slot(2)},
		{"completion for oneself", 0, tlp.Packet{Type: tlp.CplD, Requester: gpu0.ID}, refused},
		{"completion for a port", 0, tlp.Packet{Type: tlp.CplD, Requester: slots[2].ID}, refused},
		{"error message", 0, tlp.Packet{Type: tlp.Msg, DW4: true, Routing: tlp.RouteToRootComplex, Code: tlp.CodeErrCor}, toHost},
		{"message to a peer", 0, tlp.Packet{Type: tlp.Msg, DW4: true, Routing: tlp.RouteByID, Target: gpu2.ID, Code: tlp.CodeVendorType1}, slot(2)},
		{"broadcast from below", 0, tlp.Packet{Type: tlp.Msg, DW4: true, Routing: tlp.RouteBroadcast, Code: tlp.CodePMETurnOff}, refused},
		{"configuration from below", 0, tlp.Packet{Type: tlp.CfgRd0, Length: 1, FirstBE: 0xf}, refused},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got mapping.Route
			p, before := c.p, b.sw.Counters()
			if c.from == host {
				got = b.sw.FromHost(&p)
			} else {
				got = b.sw.FromSlot(c.from, &p)
			}
			if c := b.sw.Counters(); got == here && c != before {
				got = refused
			}
			if got != c.want {
				t.Errorf("goes to %v, want %v", got, c.want)
			}
			if c.p.Type == tlp.CfgRd1 && got.Where == mapping.ToSlot && p.Type != tlp.CfgRd0 {
				t.Errorf("leaves as %v, want CfgRd0", p.Type)
			}
			answers := 0
			b.sw.Transmit(func(to int, a *tlp.Packet) bool {
				if a.Type.Completion() {
					answers++
					if to != c.from || got == refused && a.Status != pcie.UnsupportedRequest {
						t.Errorf("answer %v to %d", a.Status, to)
					}
				}
				return true
			})
			if wants := got.Where != mapping.ToSlot && got.Where != mapping.ToHost && c.p.Type.NonPosted(); wants != (answers == 1) {
				t.Errorf("%d answers", answers)
			}
		})
	}
}

// Before bus mastering is on, a port forwards no memory request upstream
// (section 7.5.1.1.3).
func TestBusMasterGatesDMA(t *testing.T) {
	b := newTestBus(t, 1)
	b.plug(0)
	p := tlp.Packet{Type: tlp.MRd}
	p.SetMemory(0x1000, 4)
	if got := b.sw.FromSlot(0, &p); got != here {
		t.Errorf("before enumeration DMA goes to %v", got)
	}
	b.enumerate()
	if got := b.sw.FromSlot(0, &p); got.Where != mapping.ToHost {
		t.Errorf("after enumeration DMA goes to %v", got)
	}
}

func TestACSRedirectsPeers(t *testing.T) {
	b := newTestBus(t, 2)
	b.plug(0)
	b.plug(1)
	slots := b.enumerate().Children[0].Children
	at := cfgspace.FindExtended(b.sw.down[0].space.Bytes(), cfgspace.ExtACS)
	for _, c := range []struct {
		name      string
		control   uint32
		peer, own mapping.Where
	}{
		{"off", 0, mapping.ToSlot, mapping.Here},
		{"request redirect", acsRequestRedirect, mapping.ToHost, mapping.Here},
		{"upstream forwarding", acsUpstreamForward, mapping.ToSlot, mapping.ToHost},
	} {
		if err := b.ConfigWrite32(slots[0].ID, uint16(at)+4, c.control<<16); err != nil {
			t.Fatal(err)
		}
		for i, want := range []mapping.Where{c.own, c.peer} {
			p := tlp.Packet{Type: tlp.MRd}
			p.SetMemory(slots[i].Window64.Base, 4)
			if got := b.sw.FromSlot(0, &p); got.Where != want {
				t.Errorf("%s: request for the window of slot %d goes to %v, want %v", c.name, i, got, want)
			}
		}
	}
}

func TestRoutingDoesNotAllocate(t *testing.T) {
	b := newTestBus(t, 4)
	b.plug(3)
	gpu := b.enumerate().Children[0].Children[3].Children[0]
	bar, _ := gpu.BAR(2)
	down, up := tlp.Packet{Type: tlp.MRd}, tlp.Packet{Type: tlp.MRd}
	down.SetMemory(bar.Range.Base, 64)
	up.SetMemory(0x1000, 64)
	if n := testing.AllocsPerRun(100, func() {
		b.sw.FromHost(&down)
		b.sw.FromSlot(3, &up)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestSpecRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		spec Spec
	}{
		{"no slots", Spec{}},
		{"too many slots", Spec{Slots: 33}},
		{"odd width", Spec{Slots: 1, Width: 3}},
		{"slot number", Spec{Slots: 1, FirstSlotNumber: 1 << 13}},
	} {
		if _, err := New(c.spec); err == nil {
			t.Errorf("%s: taken", c.name)
		}
	}
}
