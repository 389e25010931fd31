package cfgspace_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
)

// bridgeRegisters describes the function of port.
func bridgeRegisters(s *cfgspace.Space, typ cfgspace.PortType) []register {
	exp := s.ExpressOffset()
	msi, acs := cfgspace.Find(s.Bytes(), cfgspace.CapMSI), cfgspace.FindExtended(s.Bytes(), cfgspace.ExtACS)
	all := append([]register{
		{0x04, rw, 0x0547},
		{0x04, rw1c, 0xf900 << 16},
		{0x0c, rw, 0xff},
		{0x18, rw, 0x00ffffff},      // bus numbers
		{0x1c, rw1c, 0xf900 << 16},  // Secondary Status; no I/O window
		{0x20, rw, 0xfff0fff0},      // memory window
		{0x24, rw, 0xfff0fff0},      // prefetchable window
		{0x28, rw, 0xffffffff},      // its upper halves
		{0x2c, rw, 0xffffffff},      //
		{0x3c, rw, 0xff | 0x5f<<16}, // Interrupt Line, Bridge Control
		{s.PMOffset() + 4, rw, 3},
		{msi, rw, 0x0071 << 16},
		{msi + 4, rw, 0xfffffffc},
		{msi + 8, rw, 0xffffffff},
		{msi + 12, rw, 0xffff},
		{msi + 16, rw, 1},
		{exp + 0x08, rw, 0x781f},
		{exp + 0x08, rws, 0x00e0},
		{exp + 0x08, rw1c, 0x000f << 16},
		{exp + 0x30, rws, 0xf},
		{acs + 4, rw, 0x1f << 16},
	}, aerRegisters(s.AEROffset())...)
	if typ == cfgspace.UpstreamPort {
		return append(all, register{exp + 0x10, rws, 0x03cb}, register{exp + 0x28, rw, 0x1080})
	}
	all = append(all, register{exp + 0x10, rws, 0x0fdb}, register{exp + 0x10, rw1c, 0xc000 << 16},
		register{exp + 0x18, rw, 0x1fff}, register{exp + 0x18, rw1c, 0x011f << 16}) // Slot Control, Slot Status
	if typ == cfgspace.DownstreamPort {
		return append(all, register{exp + 0x28, rw, 0x10a0})
	}
	aer := s.AEROffset()
	return append(all, register{exp + 0x1c, rw, 0x1f}, register{exp + 0x20, rw1c, 1 << 16}, register{exp + 0x28, rw, 0x10ff},
		register{aer + 0x2c, rw, 7}, register{aer + 0x30, rw1c, 0x7f})
}

// bridgeOf reads what a bridge forwards from its registers, as section 7.5.1.3 describes them.
func (m *model) bridgeOf() string {
	mem, pref := m.word(0x20), m.word(0x24)
	return fmt.Sprintf("buses %d %d %d, memory %#x to %#x, prefetchable %#x to %#x",
		m.value[0x18], m.value[0x19], m.value[0x1a],
		uint64(mem&0xfff0)<<16, uint64(mem>>20)<<20|0xfffff,
		uint64(m.word(0x28))<<32|uint64(pref&0xfff0)<<16, uint64(m.word(0x2c))<<32|uint64(pref>>20)<<20|0xfffff)
}

func bridgeOf(s *cfgspace.Space) string {
	primary, secondary, subordinate := s.Buses()
	mem, pref := s.MemoryWindow(), s.PrefetchableWindow()
	return fmt.Sprintf("buses %d %d %d, memory %#x to %#x, prefetchable %#x to %#x",
		primary, secondary, subordinate, mem.Base, mem.Limit, pref.Base, pref.Limit)
}

// effects names the events of a write, by the registers that it has changed.
func (m *model) effects(old *[4096]byte) (e cfgspace.Effects) {
	for _, r := range []struct {
		from, to int
		effect   cfgspace.Effects
	}{
		{0x04, 0x06, cfgspace.Command},
		{0x18, 0x1b, cfgspace.BusNumbers},
		{0x1c, 0x1e, cfgspace.Windows},
		{0x20, 0x34, cfgspace.Windows},
		{m.pm + 4, m.pm + 5, cfgspace.PowerState},
		{m.msi, m.msi + 24, cfgspace.MSI},
		{m.express + 0x08, m.express + 0x0a, cfgspace.DeviceControl},
		{m.express + 0x28, m.express + 0x2a, cfgspace.DeviceControl},
		{m.express + 0x10, m.express + 0x12, cfgspace.LinkControl},
		{m.express + 0x18, m.express + 0x1a, cfgspace.SlotControl},
	} {
		if string(old[r.from:r.to]) != string(m.value[r.from:r.to]) {
			e |= r.effect
		}
	}
	if (old[0x3e]^m.value[0x3e])&0x40 != 0 {
		e |= cfgspace.SecondaryReset
	}
	return e
}

// setLink changes the state of the link behind a port (sections 7.5.3.8 and 7.5.3.11).
func (m *model) setLink(active bool, gen, width int, downstream bool) {
	at := m.express + 0x12
	m.value[at] = byte(gen | width<<4)
	m.value[at+1] = m.value[at+1]&^3 | byte(width>>4)
	if !downstream || m.bit(at*8+13) == active {
		return
	}
	m.put(at*8+13, active)
	slot := (m.express + 0x1a) * 8
	m.put(slot+6, active) // Presence Detect State
	m.put(slot+3, true)
	m.put(slot+8, true)
}

// Random accesses, resets, errors and changes of the link leave a bridge as the specification
// describes it.
func TestBridgeFollowsTheModel(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 6))
		typ := []cfgspace.PortType{cfgspace.RootPort, cfgspace.UpstreamPort, cfgspace.DownstreamPort}[seed%3]
		s := port(t, typ)
		m := newModel(s, bridgeRegisters(s, typ))
		m.msi, m.keepsState = cfgspace.Find(s.Bytes(), cfgspace.CapMSI), true
		for step := range 400 {
			off, v := 4*r.IntN(0x40/4)+r.IntN(4), r.Uint32()>>(r.IntN(4)*8)
			switch r.IntN(4) {
			case 0:
				off = m.express + r.IntN(0x3c)
			case 1:
				off = r.IntN(4108) - 6
			}
			b := []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)}
			old := m.value
			switch r.IntN(12) {
			case 0:
				number, advisory, header := 12+r.IntN(11), r.IntN(2) == 0, [16]byte{byte(v)}
				if got, want := s.LogUncorrectable(1<<number, advisory, header[:]), m.fail(number, advisory, header); got != want {
					t.Fatalf("seed %d, step %d: error %d (advisory %v) sends message %#x, want %#x", seed, step, number, advisory, got, want)
				}
			case 1:
				s.Reset(false) // ports have no function level reset
				m.restart(false)
			case 2:
				gen, width, active := 1+r.IntN(6), 1<<r.IntN(6), r.IntN(2) == 0
				s.SetLink(active, pcie.Generation(gen), width)
				m.setLink(active, gen, width, typ != cfgspace.UpstreamPort)
			case 3, 4, 5:
				if off < 0 || off >= 4096 {
					continue
				}
				be := uint8(r.IntN(16))
				change := s.WriteBE(uint16(off), be, v)
				m.enabled(off&^3, be, b)
				m.checkEffects(t, seed, step, &old, change)
			default:
				width := 1 << r.IntN(3)
				change := s.Write(off, width, v)
				if off >= 0 {
					m.write(off, b[:width])
				}
				m.checkEffects(t, seed, step, &old, change)
			}
			m.compare(t, s, seed, step)
			if got, want := bridgeOf(s), m.bridgeOf(); got != want {
				t.Fatalf("seed %d, step %d: %s, want %s", seed, step, got, want)
			}
		}
	}
}

func (m *model) checkEffects(t *testing.T, seed uint64, step int, old *[4096]byte, got cfgspace.Change) {
	t.Helper()
	if want := m.effects(old); got.Effects != want || got.BARs != 0 {
		t.Fatalf("seed %d, step %d: effects %#x of BARs %#x, want %#x", seed, step, got.Effects, got.BARs, want)
	}
}

// Contains agrees with a look at each end, also at the ends of the address space.
func TestWindowContains(t *testing.T) {
	edges := []uint64{0, 1, 0xfffff, 0x100000, 1 << 32, 1<<64 - 0x100000, 1<<64 - 2, 1<<64 - 1}
	for _, base := range edges {
		for _, limit := range edges {
			for _, addr := range edges {
				for _, n := range []uint64{0, 1, 2, 4096} {
					w := cfgspace.Window{Base: base, Limit: limit}
					room := addr >= base && addr <= limit && (n == 0 || limit-addr >= n-1)
					if got := w.Contains(addr, n); got != room {
						t.Errorf("%#x contains %d bytes at %#x: %v", w, n, addr, got)
					}
				}
			}
		}
	}
}
