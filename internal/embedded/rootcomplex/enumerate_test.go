package rootcomplex

import (
	"errors"
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
)

// spaces is a bus whose functions always have the addresses they are listed
// under, whatever the bridges say.
type spaces map[pcie.BDF]*cfgspace.Space

func (s spaces) ConfigRead32(id pcie.BDF, off uint16) (uint32, error) {
	if f := s[id]; f != nil {
		return f.Read(int(off), 4), nil
	}
	return allOnes, nil
}

func (s spaces) ConfigWrite32(id pcie.BDF, off uint16, v uint32) error {
	if f := s[id]; f != nil {
		f.Write(int(off), 4, v)
	}
	return nil
}

func endpoint(t testing.TB, mps pcie.PayloadSize, bars ...cfgspace.BAR) *cfgspace.Space {
	t.Helper()
	b := cfgspace.NewEndpoint(cfgspace.Identity{Vendor: 0x1234, Device: 0x11e8, Class: 0x00ff00})
	i := 0
	for _, bar := range bars {
		b.BAR(i, bar)
		i++
		if bar.Kind == cfgspace.Memory64 {
			i++
		}
	}
	s, err := b.Msix(4, 0, 0, 0, 0x800).Express(cfgspace.Express{
		Type: cfgspace.Endpoint, Generation: pcie.Gen4, Width: 4, MaxPayload: mps, ExtendedTag: true, TenBitTag: true,
	}).Build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEnumerateOneDevice(t *testing.T) {
	dev := endpoint(t, 512,
		cfgspace.BAR{Kind: cfgspace.Memory32, Size: 4096},
		cfgspace.BAR{Kind: cfgspace.IO, Size: 16},
		cfgspace.BAR{Kind: cfgspace.Memory64, Prefetchable: true, Size: 1 << 33},
		cfgspace.BAR{Kind: cfgspace.Memory64, Size: 1 << 20})
	spec := DefaultEnumSpec()
	spec.TenBitTags, spec.MaxReadRequest = true, 4096
	root, err := Enumerate(spaces{pcie.NewBDF(1, 0, 0): dev}, spec)
	if err != nil {
		t.Fatal(err)
	}
	f := root.Find(pcie.NewBDF(1, 0, 0))
	if f == nil {
		t.Fatal("device is not found")
	}
	for _, c := range []struct {
		bar  int
		want Range
	}{
		{0, Range{0xC010_0000, 4096}},
		{2, Range{1 << 40, 1 << 33}},
		{4, Range{0xC000_0000, 1 << 20}},
	} {
		if got, _ := f.BAR(c.bar); got.Range != c.want || dev.BAR(c.bar).Addr != c.want.Base {
			t.Errorf("BAR %d: %v, in the device %#x, want %v", c.bar, got.Range, dev.BAR(c.bar).Addr, c.want)
		}
	}
	if !dev.MemoryEnabled() || !dev.BusMaster() || dev.MaxPayload() != 256 || dev.MaxReadRequest() != 4096 || dev.TagLimit() != 1024 {
		t.Errorf("device is set to memory %v, bus master %v, payload %d, read %d, tags %d",
			dev.MemoryEnabled(), dev.BusMaster(), dev.MaxPayload(), dev.MaxReadRequest(), dev.TagLimit())
	}
}

func TestEnumerateFails(t *testing.T) {
	id := pcie.NewBDF(1, 0, 0)
	poked := func(poke func(s *cfgspace.Space)) spaces {
		s := endpoint(t, 128, cfgspace.BAR{Kind: cfgspace.Memory32, Size: 4096})
		poke(s)
		return spaces{id: s}
	}
	bridges := spaces{}
	for bus := range 255 {
		b, err := cfgspace.NewBridge(cfgspace.Identity{Vendor: 1, Device: 1, Class: 0x060400}).Build()
		if err != nil {
			t.Fatal(err)
		}
		bridges[pcie.NewBDF(uint8(bus+1), 0, 0)] = b
	}
	for _, c := range []struct {
		name string
		bus  spaces
		want error
	}{
		{"capability list with a loop", poked(func(s *cfgspace.Space) { s.Poke(s.MSIXOffset()+1, 1, uint32(s.MSIXOffset())) }), ErrMalformed},
		{"reserved payload size", poked(func(s *cfgspace.Space) { s.Poke(s.ExpressOffset()+cfgspace.OffDevCap, 1, 7) }), ErrMalformed},
		{"BAR larger than the window", spaces{id: endpoint(t, 128, cfgspace.BAR{Kind: cfgspace.Memory32, Size: 1 << 31})}, ErrNoSpace},
		{"64-bit BAR larger than the window", spaces{id: endpoint(t, 128, cfgspace.BAR{Kind: cfgspace.Memory64, Prefetchable: true, Size: 1 << 50})}, ErrNoSpace},
		{"bridges without end", bridges, ErrNoBus},
	} {
		t.Run(c.name, func(t *testing.T) {
			if root, err := Enumerate(c.bus, DefaultEnumSpec()); !errors.Is(err, c.want) || root != nil {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

func TestEnumSpecRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(s *EnumSpec)
	}{
		{"buses", func(s *EnumSpec) { s.LastBus = 0 }},
		{"window above 4 GiB", func(s *EnumSpec) { s.Window32.Size = 1 << 32 }},
		{"window wraps", func(s *EnumSpec) { s.Window64 = Range{1 << 63, 1<<63 + 1} }},
		{"odd reserve", func(s *EnumSpec) { s.HotPlugWindow32 = 4096 }},
		{"payload", func(s *EnumSpec) { s.MaxPayload = 100 }},
	} {
		spec := DefaultEnumSpec()
		c.change(&spec)
		if _, err := Enumerate(spaces{}, spec); err == nil {
			t.Errorf("%s: taken", c.name)
		}
	}
}

// A device whose link is set to larger payloads than it takes must not be
// switched on.
func TestRescanRefusesSmallerPayload(t *testing.T) {
	port, err := cfgspace.NewBridge(cfgspace.Identity{Vendor: 1, Device: 1, Class: 0x060400}).Express(cfgspace.Express{
		Type: cfgspace.DownstreamPort, Generation: pcie.Gen4, Width: 4, MaxPayload: 512, Slot: &cfgspace.Slot{HotPlug: true},
	}).Build()
	if err != nil {
		t.Fatal(err)
	}
	bus := spaces{pcie.NewBDF(1, 0, 0): port}
	root, err := Enumerate(bus, DefaultEnumSpec())
	if err != nil {
		t.Fatal(err)
	}
	bus[pcie.NewBDF(2, 0, 0)] = endpoint(t, 128)
	if err := Rescan(bus, DefaultEnumSpec(), root.Children[0]); !errors.Is(err, ErrMalformed) {
		t.Errorf("smaller payload: %v", err)
	}
	bus[pcie.NewBDF(2, 0, 0)] = endpoint(t, 512, cfgspace.BAR{Kind: cfgspace.Memory32, Size: 32 << 20})
	if err := Rescan(bus, DefaultEnumSpec(), root.Children[0]); !errors.Is(err, ErrNoSpace) {
		t.Errorf("BAR larger than the reserve: %v", err)
	}
	bus[pcie.NewBDF(2, 0, 0)] = endpoint(t, 512, cfgspace.BAR{Kind: cfgspace.Memory32, Size: 16 << 20})
	if err := Rescan(bus, DefaultEnumSpec(), root.Children[0]); err != nil {
		t.Errorf("BAR as large as the reserve: %v", err)
	}
}

// memory is memory space that remembers writes.
type memory map[uint64]uint32

func (m memory) MemoryRead32(addr uint64) (uint32, error)  { return m[addr], nil }
func (m memory) MemoryWrite32(addr uint64, v uint32) error { m[addr] = v; return nil }

func TestEnableMSIX(t *testing.T) {
	dev := endpoint(t, 128, cfgspace.BAR{Kind: cfgspace.Memory32, Size: 4096})
	bus := spaces{pcie.NewBDF(1, 0, 0): dev}
	root, err := Enumerate(bus, DefaultEnumSpec())
	if err != nil {
		t.Fatal(err)
	}
	f, mem := root.Children[0], memory{}
	if err := EnableMSIX(bus, mem, f, []Message{{0xfee0_0000, 7}, {1<<32 | 0x10, 8}}); err != nil {
		t.Fatal(err)
	}
	base := f.BARs[0].Range.Base
	want := memory{base + 8: 7, base + 16: 0x10, base + 20: 1, base + 24: 8, base + 28: 0, base + 44: 1, base + 60: 1}
	for addr, want := range want {
		if mem[addr] != want {
			t.Errorf("table at %#x: %#x, want %#x", addr-base, mem[addr], want)
		}
	}
	if on, masked := dev.MSIXControl(); !on || masked {
		t.Errorf("enabled %v, masked %v", on, masked)
	}
	if err := EnableMSIX(bus, mem, f, make([]Message, 5)); err == nil {
		t.Error("five vectors of four were granted")
	}
}

// noise answers configuration reads from a fuzzer's bytes.
type noise struct {
	data []byte
	n    int
}

func (x *noise) ConfigRead32(pcie.BDF, uint16) (uint32, error) {
	x.n++
	if len(x.data) == 0 {
		return allOnes, nil
	}
	var v uint32
	for range 4 {
		v = v<<8 | uint32(x.data[0])
		x.data = append(x.data[1:], x.data[0]*5+byte(x.n))
	}
	return v, nil
}

func (x *noise) ConfigWrite32(pcie.BDF, uint16, uint32) error { return nil }

func FuzzEnumerate(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0x11, 0xe8, 0x12, 0x34, 0, 0xff, 0, 0, 0, 1, 0, 0, 0, 0x10, 0, 0})
	f.Add([]byte{0, 1, 0, 1, 6, 4, 0, 0, 0, 0x81, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		spec := DefaultEnumSpec()
		spec.LastBus = 8 // keeps the run short
		root, err := Enumerate(&noise{data: append([]byte(nil), data...)}, spec)
		if (err == nil) != (root != nil) {
			t.Fatalf("%v and %v", root, err)
		}
		if err != nil {
			return
		}
		root.Walk(func(f *Function) bool {
			for _, b := range f.BARs {
				if !spec.Window32.Contains(b.Range.Base, b.Range.Size) && !spec.Window64.Contains(b.Range.Base, b.Range.Size) {
					t.Errorf("%v BAR %d at %v lies outside the windows", f.ID, b.Index, b.Range)
				}
			}
			return true
		})
		_ = root.String()
	})
}
