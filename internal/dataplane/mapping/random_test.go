package mapping_test

import (
	"math/rand/v2"
	"testing"

	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// place is the reference for a slot: registers of configuration space, byte by byte.
type place struct {
	valid, used bool
	owner       mapping.Owner
	id          pcie.BDF
	regs        [64]byte // BARs and Command, as written
	enabled     bool     // Memory Space Enable
	bars        [pcie.MaxBARs]pcie.BAR
}

// write stores the enabled bytes of a double word.
func (s *place) write(id pcie.BDF, register uint16, v uint32, be uint8) {
	s.id = id
	for i := range 4 {
		if be>>i&1 != 0 && int(register)+i < len(s.regs) {
			s.regs[int(register)+i] = byte(v >> (8 * i))
		}
	}
	s.enabled = s.regs[4]&2 != 0
}

// decodes returns the base of the memory BAR that holds n bytes at an address.
func (s *place) decodes(addr uint64, n int) (base uint64, ok bool) {
	for i := 0; i < pcie.MaxBARs; i++ {
		b := s.bars[i]
		bytes := 4
		if b.Wide {
			bytes = 8
		}
		var at uint64
		for j := range bytes {
			at |= uint64(s.regs[0x10+4*i+j]) << (8 * j)
		}
		if b.Size > 0 {
			at -= at % b.Size
		}
		last := at + (b.Size - 1)
		if b.Size > 0 && !b.IO && s.enabled && addr >= at && addr <= last && uint64(n-1) <= last-addr && (!ok || at > base) {
			base, ok = at, true
		}
		if b.Wide {
			i++
		}
	}
	return base, ok
}

// target returns where a memory request of one slot goes among others: the highest base wins.
func target(places []place, from int, reaches func(to int) bool, addr uint64, n int) (slot int, found bool) {
	var best uint64
	for i := range places {
		base, ok := places[i].decodes(addr, n)
		if ok && reaches(i) && (!found || base >= best) {
			slot, best, found = i, base, true
		}
	}
	return slot, found
}

// randomBARs returns BARs of all kinds.
func randomBARs(r *rand.Rand) (bars [pcie.MaxBARs]pcie.BAR) {
	for i := 0; i < pcie.MaxBARs; i++ {
		switch r.IntN(5) {
		case 0:
			bars[i] = pcie.BAR{Size: 16 << r.IntN(24)}
		case 1:
			bars[i] = pcie.BAR{Size: 4 << r.IntN(6), IO: true}
		case 2, 3:
			if i+1 < pcie.MaxBARs {
				bars[i] = pcie.BAR{Size: 4096 << r.IntN(50), Wide: true}
				i++
			}
		}
	}
	return bars
}

// randomAddress returns an address of few, near others and the ends of the address spaces.
func randomAddress(r *rand.Rand) uint64 {
	at := []uint64{0, 1 << 32, 0, 1 << 40}[r.IntN(4)]
	return at + uint64(r.IntN(64))<<(4*r.IntN(8)) - uint64(r.IntN(2)*r.IntN(64))<<12
}

// A request of a device goes to the device of the same switch that decodes it, and to no other:
// the tables of both proxies, against registers and plain searches.
func TestRandomTables(t *testing.T) {
	const slots = 6
	var toHostPeer, toBoxPeer int
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 8))
		host, box := mapping.NewHostTable(slots), mapping.NewBoxTable(slots)
		var inHost, inBox [slots]place
		for range 150 {
			i := r.IntN(slots)
			h, b := &inHost[i], &inBox[i]
			switch op := r.IntN(20); {
			case op == 0:
				host.Unbind(i)
				*h = place{}
			case op == 1:
				if err := host.Bind(i, mapping.Target{}); (err == nil) == h.used {
					t.Fatalf("seed %d: host slot %d in use %v: %v", seed, i, h.used, err)
				} else if err == nil {
					*h = place{used: true, id: mapping.SlotID(i)}
					h.bars = randomBARs(r)
					host.SetBARs(i, h.bars)
				}
			case op == 2 && h.used:
				host.Disable(i)
				h.regs[4], h.regs[5], h.enabled = 0, 0, false
			case op == 3:
				box.Unbind(i)
				*b = place{valid: b.valid, bars: b.bars, owner: mapping.Owner{Epoch: b.owner.Epoch, Incarnation: b.owner.Incarnation}}
			case op == 4:
				bars := randomBARs(r)
				if err := box.Insert(i, bars); (err == nil) == b.used {
					t.Fatalf("seed %d: box slot %d in use %v: %v", seed, i, b.used, err)
				} else if err == nil {
					b.valid, b.bars = true, bars
				}
			case op < 8:
				o := mapping.Owner{Node: uint32(1 + r.IntN(2)), Domain: []string{"a", "b"}[r.IntN(2)], Epoch: uint64(r.IntN(40)), Incarnation: uint64(r.IntN(2))}
				may := b.valid && !b.used && (o.Incarnation != b.owner.Incarnation || o.Epoch > b.owner.Epoch)
				if err := box.Bind(i, o); (err == nil) != may {
					t.Fatalf("seed %d: %+v binds %+v: %v", seed, o, b.owner, err)
				} else if may {
					*b = place{valid: true, used: true, bars: b.bars, owner: o}
				}
			default:
				register := []uint16{4, 4, 0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, 0x0c, 0x3c}[r.IntN(10)]
				value, be, id := uint32(randomAddress(r)>>(32*r.IntN(2))), uint8(15), pcie.BDF(0x100*(1+r.IntN(8))+r.IntN(8))
				if r.IntN(4) == 0 {
					be = uint8(r.IntN(16))
				}
				if register == 4 {
					value = uint32(r.IntN(8))
				}
				p := configWrite(id, register, value, be)
				if r.IntN(2) == 0 && h.used {
					host.Snoop(i, p)
					h.write(id, register, value, be)
				} else if b.used {
					box.Snoop(i, p)
					b.write(id, register, value, be)
				}
			}
			from := r.IntN(slots)
			p := tlp.Packet{Type: tlp.MRd}
			addr := randomAddress(r) &^ 3
			n := 4 << r.IntN(11)
			p.SetMemory(addr, min(n, pcie.PageSize-int(addr%pcie.PageSize)))
			n = int(p.Length) * pcie.DW
			if inHost[from].used {
				slot, found := target(inHost[:], from, func(to int) bool { return inHost[to].used }, addr, n)
				want := mapping.Route{Where: mapping.ToHost}
				if found {
					toHostPeer++
					want = mapping.Route{Where: mapping.ToSlot, Slot: slot}
				}
				if found && slot == from {
					want = mapping.Route{}
				}
				if got := host.FromSlot(from, &p); got != want {
					t.Fatalf("seed %d: %d bytes at %#x of host slot %d go to %v, want %v", seed, n, addr, from, got, want)
				}
			}
			a := &inBox[from]
			slot, found := target(inBox[:], from, func(to int) bool {
				o := &inBox[to]
				return a.used && o.used && o.owner.Node == a.owner.Node && o.owner.Domain == a.owner.Domain
			}, addr, n)
			if found = found && slot != from; found {
				toBoxPeer++
			}
			if got, ok := box.Peer(from, &p); ok != found || ok && got != slot {
				t.Fatalf("seed %d: %d bytes at %#x of box slot %d go to slot %d (%v), want %d (%v)", seed, n, addr, from, got, ok, slot, found)
			}
		}
	}
	if toHostPeer < 1000 || toBoxPeer < 200 {
		t.Errorf("only %d and %d requests had a device as their destination", toHostPeer, toBoxPeer)
	}
}
