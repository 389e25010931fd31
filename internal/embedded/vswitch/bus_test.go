package vswitch

import (
	"encoding/binary"
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/internal/embedded/rootcomplex"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// testBus is a host above a switch and endpoints that have nothing but a
// configuration space below it.
type testBus struct {
	t       testing.TB
	sw      *Switch
	devices map[int]*cfgspace.Space
	up      []tlp.Packet // what reached the host, without completions of config
}

func newTestBus(t testing.TB, slots int) *testBus {
	t.Helper()
	sw, err := New(Spec{Slots: slots, FirstSlotNumber: 10})
	if err != nil {
		t.Fatal(err)
	}
	return &testBus{t: t, sw: sw, devices: map[int]*cfgspace.Space{}}
}

// endpoint is a function with the BARs of the software GPU.
func endpoint(t testing.TB) *cfgspace.Space {
	t.Helper()
	s, err := cfgspace.NewEndpoint(cfgspace.Identity{Vendor: 0x1234, Device: 0xd9b0, Class: 0x120000}).
		BAR(0, cfgspace.BAR{Kind: cfgspace.Memory32, Size: 64 << 10}).
		BAR(2, cfgspace.BAR{Kind: cfgspace.Memory64, Prefetchable: true, Size: 16 << 30}).
		BAR(4, cfgspace.BAR{Kind: cfgspace.Memory32, Size: 16 << 10}).
		Msix(16, 4, 0, 4, 0x2000).
		Express(cfgspace.Express{Type: cfgspace.Endpoint, Generation: pcie.Gen4, Width: 16, MaxPayload: 512, FLR: true, ExtendedTag: true, TenBitTag: true}).
		Build()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// plug puts an endpoint into a slot and brings its link up.
func (b *testBus) plug(slot int) *cfgspace.Space {
	d := endpoint(b.t)
	b.devices[slot] = d
	b.sw.SetPresence(slot, true)
	b.sw.SetLink(slot, true)
	return d
}

func (b *testBus) unplug(slot int) {
	delete(b.devices, slot)
	b.sw.SetPresence(slot, false)
}

// drain returns what the switch generated.
func (b *testBus) drain() (out []tlp.Packet) {
	b.sw.Transmit(func(slot int, p *tlp.Packet) bool {
		q := *p
		q.Data = append([]byte(nil), p.Data...)
		if err := q.Validate(); err != nil {
			b.t.Errorf("switch generates a bad TLP: %v", err)
		}
		if slot == Upstream {
			out = append(out, q)
		}
		return true
	})
	return out
}

// config makes one configuration access; it returns all ones without an answer.
func (b *testBus) config(id pcie.BDF, off uint16, be uint8, write bool, v uint32) uint32 {
	p := tlp.Packet{Type: tlp.CfgRd0, Target: id, Register: off, FirstBE: be, Length: 1, Tag: 5}
	if id.Bus() != 1 {
		p.Type = tlp.CfgRd1
	}
	if write {
		p.Type++ // CfgWr0 and CfgWr1 follow their reads
		p.Data = binary.LittleEndian.AppendUint32(nil, v)
	}
	if write != (p.Type == tlp.CfgWr0 || p.Type == tlp.CfgWr1) {
		b.t.Fatal("order of tlp types")
	}
	route := b.sw.FromHost(&p)
	answer := uint32(0xffffffff)
	if route.Where == mapping.ToSlot {
		d := b.devices[route.Slot]
		switch {
		case d == nil || p.Target.Function() != 0:
		case p.Type == tlp.CfgWr0:
			d.WriteBE(off, be, v)
		case p.Type == tlp.CfgRd0:
			answer = d.Read(int(off), 4)
		default:
			b.t.Errorf("%v reached slot %d", p.Type, route.Slot)
		}
	}
	for _, c := range b.drain() {
		switch {
		case !c.Type.Completion():
			b.up = append(b.up, c)
		case c.Tag != 5:
			b.t.Errorf("completion has tag %d", c.Tag)
		case c.Type == tlp.CplD:
			answer = binary.LittleEndian.Uint32(c.Data)
		}
	}
	return answer
}

func (b *testBus) ConfigRead32(id pcie.BDF, off uint16) (uint32, error) {
	return b.config(id, off, 0xf, false, 0), nil
}

func (b *testBus) ConfigWrite32(id pcie.BDF, off uint16, v uint32) error {
	b.config(id, off, 0xf, true, v)
	return nil
}

func (b *testBus) enumerate() *rootcomplex.Function {
	b.t.Helper()
	root, err := rootcomplex.Enumerate(b, rootcomplex.DefaultEnumSpec())
	if err != nil {
		b.t.Fatal(err)
	}
	return root
}
