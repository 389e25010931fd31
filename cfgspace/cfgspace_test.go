package cfgspace_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
)

func endpoint(t testing.TB) *cfgspace.Space {
	t.Helper()
	s, err := cfgspace.NewEndpoint(cfgspace.Identity{
		Vendor: 0x1234, Device: 0xd9b0, Class: 0x120000, Revision: 1, SubVendor: 0x1234, SubDevice: 1, InterruptPin: 1,
	}).
		BAR(0, cfgspace.BAR{Kind: cfgspace.Memory32, Size: 64 << 10}).
		BAR(2, cfgspace.BAR{Kind: cfgspace.Memory64, Prefetchable: true, Size: 8 << 30}).
		BAR(4, cfgspace.BAR{Kind: cfgspace.IO, Size: 32}).
		PowerManagement(true).
		Msi(5).
		Msix(16, 0, 0x8000, 0, 0xc000).
		Express(cfgspace.Express{
			Type: cfgspace.Endpoint, Generation: pcie.Gen4, Width: 16, MaxPayload: 512, MaxReadRequest: 4096,
			FLR: true, ExtendedTag: true, TenBitTag: true, Atomics: true,
		}).
		Vendor([]byte("dxpu")).
		AER(false).
		SerialNumber(0x0123456789abcdef).
		ExtendedVendor(7, 1, []byte{1, 2, 3, 4}).
		Build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func port(t testing.TB, typ cfgspace.PortType) *cfgspace.Space {
	t.Helper()
	e := cfgspace.Express{Type: typ, Generation: pcie.Gen3, Width: 8, MaxPayload: 256, PortNumber: 3, Atomics: true, TenBitTag: true}
	if typ != cfgspace.UpstreamPort {
		e.Slot = &cfgspace.Slot{Number: 5, HotPlug: true}
		e.LinkDown = typ == cfgspace.DownstreamPort
	}
	b := cfgspace.NewBridge(cfgspace.Identity{Vendor: 0x1234, Device: 0xd9b1, Class: 0x060400, SubVendor: 0x1234, SubDevice: 2}).
		PowerManagement(false).Msi(0).Express(e).AER(typ == cfgspace.RootPort).ACS(0x1f)
	s, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func spaces(t testing.TB) map[string]*cfgspace.Space {
	return map[string]*cfgspace.Space{
		"endpoint":   endpoint(t),
		"root":       port(t, cfgspace.RootPort),
		"upstream":   port(t, cfgspace.UpstreamPort),
		"downstream": port(t, cfgspace.DownstreamPort),
	}
}

func TestDescribeGolden(t *testing.T) {
	for name, s := range spaces(t) {
		t.Run(name, func(t *testing.T) {
			golden, err := os.ReadFile(filepath.Join("testdata", name+".txt"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(golden), cfgspace.Describe(s.Bytes())); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// lspci is an independent decoder: it must print every capability and no error.
func TestLspciDecodes(t *testing.T) {
	if _, err := exec.LookPath("lspci"); err != nil {
		t.Skip("lspci is not installed; TestDescribeGolden checks the same spaces with our decoder")
	}
	want := map[string][]string{
		"endpoint": {
			"Processing accelerators", "Region 0: Memory at fe000000 (32-bit, non-prefetchable)",
			"Power Management version 3", "MSI: Enable- Count=1/32 Maskable+ 64bit+", "MSI-X: Enable- Count=16 Masked-",
			"Express (v2) Endpoint", "ExtTag+", "FLReset+", "MaxReadReq 4096 bytes", "Speed 16GT/s", "Width x16", "32bit+ 64bit+",
			"Vendor Specific Information", "Advanced Error Reporting", "Device Serial Number 01-23-45-67-89-ab-cd-ef", "10BitTagReq+",
		},
		"root":       {"Express (v2) Root Port (Slot+)", "Slot #5", "HotPlug+ Surprise+", "PresDet+", "DLActive+", "Access Control Services", "PCI bridge"},
		"upstream":   {"Express (v2) Upstream Port", "Subsystem: "},
		"downstream": {"Express (v2) Downstream Port (Slot+)", "PresDet-"},
	}
	for name, s := range spaces(t) {
		t.Run(name, func(t *testing.T) {
			if name == "endpoint" {
				s.Write(cfgspace.OffCommand, 2, cfgspace.CmdMemory|cfgspace.CmdBusMaster)
				s.Write(cfgspace.OffBAR0, 4, 0xfe000000)
			}
			out := lspci(t, s.Bytes())
			for _, w := range want[name] {
				if !strings.Contains(out, w) {
					t.Errorf("lspci does not print %q", w)
				}
			}
			if t.Failed() {
				t.Log(out)
			}
		})
	}
}

func lspci(t *testing.T, dump []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dump")
	if err := os.WriteFile(file, []byte(cfgspace.HexDump(pcie.NewBDF(1, 0, 0), "device", dump)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("lspci", "-vvv", "-F", file).CombinedOutput()
	if err != nil {
		t.Fatalf("lspci: %v\n%s", err, out)
	}
	for _, bad := range []string{"chain looped", "chain broken", "!!!", "access denied", "unknown", "Unknown", "<unreadable>"} {
		if strings.Contains(string(out), bad) {
			t.Errorf("lspci prints %q:\n%s", bad, out)
		}
	}
	return string(out)
}

func TestBARSizing(t *testing.T) {
	s := endpoint(t)
	tests := []struct {
		name string
		bar  int
		kind cfgspace.BARKind
		size uint64
		addr uint64
	}{
		{"32-bit", 0, cfgspace.Memory32, 64 << 10, 0xfe000000},
		{"64-bit", 2, cfgspace.Memory64, 8 << 30, 0x4200000000},
		{"I/O", 4, cfgspace.IO, 32, 0xc020},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			at := cfgspace.OffBAR0 + 4*tt.bar
			c := s.Write(at, 4, 0xffffffff)
			var hi uint32
			if tt.kind == cfgspace.Memory64 {
				c = s.Write(at+4, 4, 0xffffffff) // 8 GiB: no bit of the lower half is writable
				hi = s.Read(at+4, 4)
			}
			if !c.Has(cfgspace.BARs) || c.BARs != 1<<tt.bar {
				t.Errorf("change %+v", c)
			}
			if got := cfgspace.SizeBAR(tt.kind, s.Read(at, 4), hi); got != tt.size {
				t.Errorf("size %#x, want %#x", got, tt.size)
			}
			s.Write(at, 4, uint32(tt.addr))
			if tt.kind == cfgspace.Memory64 {
				s.Write(at+4, 4, uint32(tt.addr>>32))
			}
			if got := s.BAR(tt.bar); got.Addr != tt.addr || got.Size != tt.size || got.Kind != tt.kind {
				t.Errorf("BAR %+v", got)
			}
			decoded := cfgspace.DecodeBARs(s.Bytes())[tt.bar]
			if decoded.Addr != tt.addr || decoded.Kind != tt.kind || decoded.Prefetchable != s.BAR(tt.bar).Prefetchable {
				t.Errorf("decoded %+v", decoded)
			}
		})
	}
	if _, _, ok := s.Decode(0xfe000010, 4); ok {
		t.Error("decodes with Memory Space Enable off")
	}
	s.Write(cfgspace.OffCommand, 2, cfgspace.CmdMemory)
	if bar, off, ok := s.Decode(0x4200000000+8<<30-4, 4); !ok || bar != 2 || off != 8<<30-4 {
		t.Errorf("Decode = %d, %#x, %v", bar, off, ok)
	}
	if _, _, ok := s.Decode(0x4200000000+8<<30-4, 8); ok {
		t.Error("a request across the end of a BAR is decoded")
	}
	if _, _, ok := s.Decode(0xc020, 4); ok {
		t.Error("a memory request hits an I/O BAR")
	}
}

func TestChanges(t *testing.T) {
	s := endpoint(t)
	exp, msix, pm := s.ExpressOffset(), s.MSIXOffset(), s.PMOffset()
	msi := cfgspace.Find(s.Bytes(), cfgspace.CapMSI)
	steps := []struct {
		name       string
		off, width int
		v          uint32
		want       cfgspace.Effects
	}{
		{"bus master", cfgspace.OffCommand, 2, 4, cfgspace.Command},
		{"same again", cfgspace.OffCommand, 2, 4, 0},
		{"read-only", cfgspace.OffVendor, 4, 0, 0},
		{"MPS", exp + cfgspace.OffDevCtl, 2, 0x2000 | 1<<5 | cfgspace.DevCtlExtTag, cfgspace.DeviceControl},
		{"10-bit tags", exp + cfgspace.OffDevCtl2, 2, cfgspace.DevCtl2TenBitTag, cfgspace.DeviceControl},
		{"FLR", exp + cfgspace.OffDevCtl + 1, 1, 0x80 | 0x21, cfgspace.FLR},
		{"D3hot", pm + cfgspace.OffPMStatus, 2, 3, cfgspace.PowerState},
		{"D0", pm + cfgspace.OffPMStatus, 2, 0, cfgspace.PowerState | cfgspace.SoftReset},
		{"MSI-X enable", msix + 2, 2, cfgspace.MSIXEnable, cfgspace.MSIX},
		{"MSI-X mask by byte", msix + 3, 1, 0xc0, cfgspace.MSIX},
		{"MSI address", msi + 4, 4, 0xfee00000, cfgspace.MSI},
		{"beyond the end", 4096, 4, 1, 0},
		{"negative", -4, 4, 1, 0},
		{"odd width", cfgspace.OffCommand, 3, 0, 0},
	}
	for _, st := range steps {
		if c := s.Write(st.off, st.width, st.v); c.Effects != st.want {
			t.Errorf("%s: change %#x, want %#x", st.name, c.Effects, st.want)
		}
	}
	if got := s.Read(exp+cfgspace.OffDevCtl, 2) & cfgspace.DevCtlFLR; got != 0 {
		t.Error("FLR bit does not clear itself")
	}
	if s.MaxPayload() != 256 || s.MaxReadRequest() != 512 || s.TagLimit() != 1024 {
		t.Errorf("MPS %d MRRS %d tags %d", s.MaxPayload(), s.MaxReadRequest(), s.TagLimit())
	}
	if on, masked := s.MSIXControl(); !on || !masked {
		t.Error("MSI-X control")
	}
	if m := s.MSI(); m.Addr != 0xfee00000 || m.Enabled || m.Vectors != 1 {
		t.Errorf("MSI %+v", m)
	}
}

func TestBridgeChanges(t *testing.T) {
	s := port(t, cfgspace.DownstreamPort)
	exp := s.ExpressOffset()
	steps := []struct {
		name       string
		off, width int
		v          uint32
		want       cfgspace.Effects
	}{
		{"buses", cfgspace.OffPrimaryBus, 4, 0x00090801, cfgspace.BusNumbers},
		{"memory window", cfgspace.OffMemBase, 4, 0xfe1ffe00, cfgspace.Windows},
		{"prefetchable upper", cfgspace.OffPrefBaseUpper, 4, 0x42, cfgspace.Windows},
		{"secondary reset", cfgspace.OffBridgeControl, 2, cfgspace.BridgeSecReset, cfgspace.SecondaryReset},
		{"slot control", exp + cfgspace.OffSlotCtl, 2, cfgspace.SlotCtlHotPlug, cfgspace.SlotControl},
		{"link disable", exp + cfgspace.OffLinkCtl, 2, cfgspace.LinkCtlDisable, cfgspace.LinkControl},
	}
	for _, st := range steps {
		if c := s.Write(st.off, st.width, st.v); c.Effects != st.want {
			t.Errorf("%s: change %#x, want %#x", st.name, c.Effects, st.want)
		}
	}
	if p, sec, sub := s.Buses(); p != 1 || sec != 8 || sub != 9 {
		t.Errorf("buses %d %d %d", p, sec, sub)
	}
	if w := s.MemoryWindow(); w.Base != 0xfe000000 || w.Limit != 0xfe1fffff || !w.Contains(0xfe100000, 0x100000) || w.Contains(0xfe1ffffc, 8) {
		t.Errorf("window %#x", w)
	}
	if w := s.PrefetchableWindow(); w.Base != 0x4200000000 || w.Contains(w.Base, 1) {
		t.Errorf("prefetchable window %#x", w)
	}
	s.SetLink(true, pcie.Gen3, 8)
	if s.Read(exp+cfgspace.OffLinkSta, 2)&cfgspace.LinkStaActive == 0 || s.Read(exp+cfgspace.OffSlotSta, 2) != cfgspace.SlotStaPresent|cfgspace.SlotStaPresence|cfgspace.SlotStaLinkChange {
		t.Error("SetLink")
	}
	s.Write(exp+cfgspace.OffSlotSta, 2, 0xffff)
	if got := s.Read(exp+cfgspace.OffSlotSta, 2); got != cfgspace.SlotStaPresent {
		t.Errorf("slot status after clearing: %#x", got)
	}
}

func TestResetKeepsSticky(t *testing.T) {
	s := endpoint(t)
	exp, aer := s.ExpressOffset(), s.AEROffset()
	dirty := func() {
		s.Write(cfgspace.OffCommand, 2, 7)
		s.Write(exp+cfgspace.OffDevCtl, 2, 2<<5|5<<12)
		s.LogUncorrectable(cfgspace.AERPoisoned, false, make([]byte, 16))
	}
	dirty()
	s.Reset(true)
	if s.Command() != 0 || s.MaxPayload() != 512 || s.Read(aer+cfgspace.OffAERUncorrectable, 4) != cfgspace.AERPoisoned {
		t.Error("Function Level Reset")
	}
	dirty()
	s.Reset(false)
	if diff := cmp.Diff(endpoint(t).Bytes(), s.Bytes()); diff != "" {
		t.Errorf("conventional reset: %s", diff)
	}
}

func TestLogUncorrectable(t *testing.T) {
	s := endpoint(t)
	aer := s.AEROffset()
	header := []byte{0x20, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8}
	s.Write(aer+cfgspace.OffAERCorMask, 4, 0)
	if m := s.LogUncorrectable(cfgspace.AERUnsupported, true, header); m != 0 {
		t.Errorf("message %#x while reporting is off", m)
	}
	if got := s.Read(aer+cfgspace.OffAERHeader, 4); got != 0x20000001 {
		t.Errorf("header log %#x", got)
	}
	if got := s.Read(aer+cfgspace.OffAERControl, 4) & 0x1f; got != 20 {
		t.Errorf("first error pointer %d", got)
	}
	s.LogUncorrectable(cfgspace.AERTimeout, false, nil)
	if got := s.Read(aer+cfgspace.OffAERHeader, 4); got != 0x20000001 {
		t.Error("the second error overwrote the first header")
	}
	s.Write(s.ExpressOffset()+cfgspace.OffDevCtl, 2, 0xf)
	if m := s.LogUncorrectable(cfgspace.AERTimeout, false, nil); m != 0x31 {
		t.Errorf("message %#x, want ERR_NONFATAL", m)
	}
	if m := s.LogUncorrectable(cfgspace.AERMalformed, false, nil); m != 0x33 {
		t.Errorf("message %#x, want ERR_FATAL", m)
	}
	s.Write(aer+cfgspace.OffAERUncorrectable, 4, 0xffffffff)
	if got := s.Read(aer+cfgspace.OffAERUncorrectable, 4); got != 0 {
		t.Errorf("status %#x after clearing", got)
	}
}

// A write of a power state that the function lacks is discarded. Registers of another function
// bring neither such a state nor a reset.
func TestUnsupportedPowerStates(t *testing.T) {
	s := endpoint(t)
	at := s.PMOffset() + cfgspace.OffPMStatus
	for _, st := range []struct {
		write uint32
		state int
		want  cfgspace.Effects
	}{
		{1, 0, 0},
		{2, 0, 0},
		{3, 3, cfgspace.PowerState},
		{1, 3, 0},
		{0, 0, cfgspace.PowerState | cfgspace.SoftReset},
	} {
		if c := s.Write(at, 2, st.write); c.Effects != st.want || s.PowerState() != st.state {
			t.Errorf("a write of D%d: state D%d, effects %#x, want D%d, %#x", st.write, s.PowerState(), c.Effects, st.state, st.want)
		}
	}
	image := s.Bytes()
	image[at] |= 2
	image[s.ExpressOffset()+cfgspace.OffDevCtl+1] |= cfgspace.DevCtlFLR >> 8
	if err := s.Adopt(image); err != nil {
		t.Fatal(err)
	}
	if c := s.Write(cfgspace.OffCommand, 2, cfgspace.CmdMemory); s.PowerState() != 0 || c.Effects != cfgspace.Command {
		t.Errorf("after the registers of another function: D%d, and a write of Command has the effects %#x", s.PowerState(), c.Effects)
	}
}

func TestCompletionTimeout(t *testing.T) {
	s := endpoint(t)
	at := s.ExpressOffset() + cfgspace.OffDevCtl2
	for v, want := range map[uint32]time.Duration{0: time.Second, 1: 100 * time.Microsecond, 6: 210 * time.Millisecond, 0xe: 64 * time.Second, 3: time.Second} {
		s.Write(at, 2, v)
		if got, on := s.CompletionTimeout(time.Second); !on || got != want {
			t.Errorf("value %d: %v, %v", v, got, on)
		}
	}
	s.Write(at, 2, cfgspace.DevCtl2TimeoutDisable)
	if _, on := s.CompletionTimeout(time.Second); on {
		t.Error("disabled timeout is on")
	}
}

func TestBuilderRefuses(t *testing.T) {
	id := cfgspace.Identity{}
	tests := map[string]*cfgspace.Builder{
		"BAR size":        cfgspace.NewEndpoint(id).BAR(0, cfgspace.BAR{Kind: cfgspace.Memory32, Size: 100}),
		"BAR too large":   cfgspace.NewEndpoint(id).BAR(0, cfgspace.BAR{Kind: cfgspace.Memory32, Size: 4 << 30}),
		"BAR number":      cfgspace.NewEndpoint(id).BAR(6, cfgspace.BAR{Kind: cfgspace.Memory32, Size: 4096}),
		"BAR 5 in 64 bit": cfgspace.NewEndpoint(id).BAR(5, cfgspace.BAR{Kind: cfgspace.Memory64, Size: 4096}),
		"BAR of a bridge": cfgspace.NewBridge(id).BAR(2, cfgspace.BAR{Kind: cfgspace.Memory32, Size: 4096}),
		"BAR taken": cfgspace.NewEndpoint(id).BAR(0, cfgspace.BAR{Kind: cfgspace.Memory64, Size: 4096}).
			BAR(1, cfgspace.BAR{Kind: cfgspace.Memory32, Size: 4096}),
		"prefetchable I/O":   cfgspace.NewEndpoint(id).BAR(0, cfgspace.BAR{Kind: cfgspace.IO, Size: 16, Prefetchable: true}),
		"vectors":            cfgspace.NewEndpoint(id).Msix(2049, 0, 0, 0, 0),
		"MSI":                cfgspace.NewEndpoint(id).Msi(6),
		"width":              cfgspace.NewEndpoint(id).Express(cfgspace.Express{Generation: 1, Width: 3, MaxPayload: 128}),
		"slot of endpoint":   cfgspace.NewEndpoint(id).Express(cfgspace.Express{Generation: 1, Width: 1, MaxPayload: 128, Slot: &cfgspace.Slot{}}),
		"no room":            cfgspace.NewEndpoint(id).Vendor(make([]byte, 180)).Vendor(make([]byte, 100)),
		"no extended room":   cfgspace.NewEndpoint(id).ExtendedVendor(1, 1, make([]byte, 3800)).ExtendedVendor(1, 1, make([]byte, 100)),
		"interrupt pin":      cfgspace.NewEndpoint(cfgspace.Identity{InterruptPin: 5}),
		"egress control ACS": cfgspace.NewBridge(id).ACS(1 << 5),
	}
	for name, b := range tests {
		if s, err := b.Build(); err == nil || s != nil {
			t.Errorf("%s: Build = %v, %v", name, s, err)
		}
	}
}

// Writing any value at any offset in any width changes only writable bits, and
// reading back in any other width agrees.
func TestWriteMaskProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := endpoint(t)
		for range rapid.IntRange(1, 20).Draw(rt, "n") {
			off := rapid.IntRange(-8, 4104).Draw(rt, "off")
			width := rapid.SampledFrom([]int{1, 2, 4}).Draw(rt, "width")
			s.Write(off, width, rapid.Uint32().Draw(rt, "v"))
		}
		dump := s.Bytes()
		fresh := endpoint(t).Bytes()
		for _, ro := range [][2]int{{0, 4}, {6, 12}, {0x2c, 0x3c}, {0x3d, 0x40}} {
			if diff := cmp.Diff(fresh[ro[0]:ro[1]], dump[ro[0]:ro[1]]); diff != "" {
				rt.Fatalf("read-only bytes %x: %s", ro, diff)
			}
		}
		if cfgspace.Find(dump, cfgspace.CapExpress) != s.ExpressOffset() || cfgspace.FindExtended(dump, cfgspace.ExtAER) != s.AEROffset() {
			rt.Fatal("capability chain changed")
		}
		for off := range 4096 {
			if got := s.Read(off, 1); got != uint32(dump[off]) {
				rt.Fatalf("byte %#x", off)
			}
		}
	})
}

func TestWalkerEndsOnLoops(t *testing.T) {
	d := make([]byte, 4096)
	d[cfgspace.OffStatus] = cfgspace.StaCapabilities
	d[cfgspace.OffCapPtr] = 0x40
	copy(d[0x40:], []byte{1, 0x48})
	copy(d[0x48:], []byte{5, 0x40})
	binary.LittleEndian.PutUint32(d[0x100:], 0x14010001)
	binary.LittleEndian.PutUint32(d[0x140:], 0x10010003)
	var ids []string
	for id, at := range cfgspace.Capabilities(d) {
		ids = append(ids, fmt.Sprintf("%d@%x", id, at))
	}
	for c := range cfgspace.ExtendedCapabilities(d) {
		ids = append(ids, fmt.Sprintf("%d@%x", c.ID, c.Offset))
	}
	if diff := cmp.Diff([]string{"1@40", "5@48", "1@100", "3@140"}, ids); diff != "" {
		t.Error(diff)
	}
}

func FuzzWalk(f *testing.F) {
	for _, s := range spaces(f) {
		f.Add(s.Bytes())
		f.Add(s.Bytes()[:256])
		f.Add(s.Bytes()[:70])
	}
	f.Fuzz(func(t *testing.T, d []byte) {
		n := 0
		for _, at := range cfgspace.Capabilities(d) {
			if at+2 > len(d) || n > 64 {
				t.Fatalf("capability at %#x, count %d", at, n)
			}
			n++
		}
		for c := range cfgspace.ExtendedCapabilities(d) {
			if c.Offset+4 > len(d) || n > 2000 {
				t.Fatalf("extended capability at %#x", c.Offset)
			}
			n++
		}
		cfgspace.Find(d, cfgspace.CapMSIX)
		cfgspace.FindMSIX(d)
		cfgspace.DecodeBARs(d)
		cfgspace.Describe(d)
	})
}

func TestAccessDoesNotAllocate(t *testing.T) {
	s := endpoint(t)
	if n := testing.AllocsPerRun(100, func() {
		s.Write(cfgspace.OffCommand, 2, 6)
		s.Read(cfgspace.OffCommand, 2)
		s.Decode(0xfe000000, 4)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
