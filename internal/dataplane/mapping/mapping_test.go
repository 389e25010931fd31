package mapping

import (
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// gpuBARs: 64 KiB of registers, 256 MiB of prefetchable 64-bit memory.
var gpuBARs = [pcie.MaxBARs]pcie.BAR{0: {Size: 64 << 10}, 2: {Size: 256 << 20, Wide: true, Prefetchable: true}}

func cfgWrite(id pcie.BDF, register uint16, value uint32, be uint8) *tlp.Packet {
	return &tlp.Packet{
		Type: tlp.CfgWr0, Target: id, Register: register, FirstBE: be, Length: 1,
		Data: binary.LittleEndian.AppendUint32(nil, value),
	}
}

// program does to a slot what firmware does.
func program(snoop func(*tlp.Packet), id pcie.BDF, bar0 uint32, bar2 uint64) {
	for _, p := range []*tlp.Packet{
		cfgWrite(id, 0x10, 0xffffffff, 0xf), // sizing
		cfgWrite(id, 0x10, bar0, 0xf),
		cfgWrite(id, 0x18, uint32(bar2), 0xf),
		cfgWrite(id, 0x1c, uint32(bar2>>32), 0xf),
		cfgWrite(id, 0x04, 0x0006, 0x3),
	} {
		snoop(p)
	}
}

func twoSlots(t *testing.T) *HostTable {
	t.Helper()
	table := NewHostTable(4)
	for slot := range 2 {
		if err := table.Bind(slot, Target{Box: uint32(10 + slot), Slot: uint16(slot)}); err != nil {
			t.Fatal(err)
		}
		table.SetBARs(slot, gpuBARs)
		program(func(p *tlp.Packet) { table.Snoop(slot, p) }, SlotID(slot), 0xfe000000+uint32(slot)<<16, 0x8000000000+uint64(slot)<<28)
	}
	return table
}

func TestHostTableFollowsConfiguration(t *testing.T) {
	table := twoSlots(t)
	e, _ := table.Entry(1)
	if got := e.BARAddress(2); got != 0x8010000000 {
		t.Errorf("BAR2 = %#x, want 0x8010000000", got)
	}
	if span, ok := e.Span(); !ok || span != (Window{0xfe010000, 0x801fffffff}) {
		t.Errorf("memory base and limit %#x, %v", span, ok)
	}
	for _, c := range []struct {
		name    string
		addr, n uint64
		slot    int
		ok      bool
	}{
		{"first byte", 0xfe000000, 4, 0, true},
		{"last double word", 0xfe00fffc, 4, 0, true},
		{"next slot", 0xfe010000, 4, 1, true},
		{"crossing into the next slot", 0xfe00fffc, 8, 0, false},
		{"64-bit window", 0x800ffffff0, 16, 0, true},
		{"past the last", 0x8020000000, 4, 0, false},
		{"below", 0xfdfffffc, 4, 0, false},
		{"end of the address space", ^uint64(3), 8, 0, false},
	} {
		if slot, ok := table.ByAddress(c.addr, c.n); slot != c.slot || ok != c.ok {
			t.Errorf("%s: ByAddress(%#x, %d) = %d, %v; want %d, %v", c.name, c.addr, c.n, slot, ok, c.slot, c.ok)
		}
	}

	table.Snoop(0, cfgWrite(SlotID(0), 0x04, 0, 0x3)) // memory decode off
	if _, ok := table.ByAddress(0xfe000000, 4); ok {
		t.Error("a device that does not decode memory is found by address")
	}
	table.Snoop(1, cfgWrite(SlotID(1), 0x10, 0xaa000000, 0x8)) // one byte enabled
	if e, _ := table.Entry(1); e.BARAddress(0) != 0xaa010000 {
		t.Errorf("byte enables ignored: BAR0 = %#x", e.BARAddress(0))
	}
	table.Unbind(1)
	if _, ok := table.ByID(SlotID(1)); ok {
		t.Error("an unbound slot is found by ID")
	}
}

func TestHostTableRouting(t *testing.T) {
	table := twoSlots(t)
	mem := func(addr uint64) *tlp.Packet {
		p := &tlp.Packet{Type: tlp.MRd, Length: 1}
		p.SetAddr(addr)
		return p
	}
	for _, c := range []struct {
		name  string
		p     *tlp.Packet
		from  int // -1: the host
		where Where
		slot  int
	}{
		{"host reads a BAR", mem(0xfe010010), -1, ToSlot, 1},
		{"host reads nothing", mem(0x1000), -1, Unsupported, 0},
		{"configuration by ID", &tlp.Packet{Type: tlp.CfgRd0, Target: SlotID(1)}, -1, ToSlot, 1},
		{"configuration of another function of the device", &tlp.Packet{Type: tlp.CfgRd0, Target: SlotID(1) | 3}, -1, ToSlot, 1},
		{"completion to a device", &tlp.Packet{Type: tlp.CplD, Requester: SlotID(0)}, -1, ToSlot, 0},
		{"broadcast", &tlp.Packet{Type: tlp.Msg, Routing: tlp.RouteBroadcast}, -1, ToAll, 0},
		{"local message", &tlp.Packet{Type: tlp.Msg, Routing: tlp.RouteLocal}, -1, Here, 0},
		{"device reads host memory", mem(0x1000), 0, ToHost, 0},
		{"device reads its peer", mem(0xfe010010), 0, ToSlot, 1},
		{"device reads itself", mem(0xfe000010), 0, Unsupported, 0},
		{"device completes for the host", &tlp.Packet{Type: tlp.CplD, Requester: 0}, 0, ToHost, 0},
		{"device completes for its peer", &tlp.Packet{Type: tlp.CplD, Requester: SlotID(0)}, 1, ToSlot, 0},
		{"message to the root complex", &tlp.Packet{Type: tlp.Msg, Routing: tlp.RouteToRootComplex}, 1, ToHost, 0},
		{"broadcast from a device", &tlp.Packet{Type: tlp.Msg, Routing: tlp.RouteBroadcast}, 1, Unsupported, 0},
		{"configuration request from a device", &tlp.Packet{Type: tlp.CfgRd0, Target: SlotID(0)}, 1, Unsupported, 0},
	} {
		where, slot := table.FromHost(c.p)
		if c.from >= 0 {
			where, slot = table.FromSlot(c.from, c.p)
		}
		if where != c.where || slot != c.slot {
			t.Errorf("%s: %v %d, want %v %d", c.name, where, slot, c.where, c.slot)
		}
	}
	p := mem(0xfe010010)
	if n := testing.AllocsPerRun(100, func() { table.FromSlot(0, p) }); n != 0 {
		t.Errorf("routing allocates %v times", n)
	}
}

func TestBoxTable(t *testing.T) {
	table := NewBoxTable(3)
	for slot := range 2 {
		if err := table.Insert(slot, gpuBARs); err != nil {
			t.Fatal(err)
		}
	}
	a := Host{Node: 1, Domain: "vm7", Slot: 0, Epoch: 5}
	if err := table.Bind(2, a); err == nil {
		t.Error("an empty slot was bound")
	}
	if err := table.Bind(0, a); err != nil {
		t.Error(err)
	}
	if err := table.Bind(0, Host{Node: 2, Epoch: 6}); err == nil {
		t.Error("a slot was bound twice")
	}
	table.Unbind(0)
	if err := table.Bind(0, a); err == nil {
		t.Error("a stale epoch was accepted")
	}
	restored := a
	restored.Incarnation, restored.Epoch = 1, 2
	if err := table.Bind(0, restored); err != nil {
		t.Errorf("the epoch of another incarnation: %v", err)
	}
	table.Unbind(0)
	if err := table.Bind(0, restored); err == nil {
		t.Error("a stale epoch of the new incarnation was accepted")
	}
	a.Epoch = 6
	if err := table.Bind(0, a); err != nil {
		t.Error(err)
	}
	program(func(p *tlp.Packet) { table.Snoop(0, p) }, SlotID(0), 0xfe000000, 1<<40)

	read := &tlp.Packet{Type: tlp.MRd, Length: 4}
	read.SetAddr(0xfe000000)
	if err := table.Bind(1, Host{Node: 1, Domain: "vm8", Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	if _, ok := table.Peer(1, read); ok {
		t.Error("a device of another virtual machine reached its neighbour")
	}
	table.Unbind(1)
	if err := table.Bind(1, Host{Node: 1, Domain: "vm7", Slot: 1, Epoch: 2}); err != nil {
		t.Fatal(err)
	}
	if slot, ok := table.Peer(1, read); !ok || slot != 0 {
		t.Errorf("no short cut between two GPUs of one host: %d %v", slot, ok)
	}
	if _, ok := table.Peer(0, read); ok {
		t.Error("a device is its own peer")
	}
	// Slot 1 has not been enumerated: it must not get what is the host's.
	for _, requester := range []pcie.BDF{0, pcie.NewBDF(0, 0, 3)} {
		if slot, ok := table.Peer(0, &tlp.Packet{Type: tlp.CplD, Requester: requester}); ok {
			t.Errorf("a completion for the root complex went to slot %d", slot)
		}
	}
	if slot, ok := table.Peer(1, &tlp.Packet{Type: tlp.CplD, Requester: SlotID(0)}); !ok || slot != 0 {
		t.Errorf("a completion for the neighbour: slot %d, %v", slot, ok)
	}
}

// Whatever is written into the header, the table answers and the answer is a
// slot whose window holds the address.
func TestHostTableSurvivesAnyProgramming(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		table := NewHostTable(3)
		for slot := range 3 {
			if err := table.Bind(slot, Target{}); err != nil {
				r.Fatal(err)
			}
			table.SetBARs(slot, gpuBARs)
		}
		for range rapid.IntRange(0, 30).Draw(r, "writes") {
			slot := rapid.IntRange(0, 2).Draw(r, "slot")
			register := rapid.SampledFrom([]uint16{4, 0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, 0x30, 0xffc}).Draw(r, "register")
			table.Snoop(slot, cfgWrite(SlotID(slot), register, rapid.Uint32().Draw(r, "value"), rapid.Uint8Range(0, 15).Draw(r, "be")))
		}
		addr, n := rapid.Uint64().Draw(r, "addr"), rapid.Uint64Range(0, 4096).Draw(r, "n")
		slot, ok := table.ByAddress(addr, n)
		if !ok {
			return
		}
		e, _ := table.Entry(slot)
		for i := range pcie.MaxBARs {
			if w, has := e.Window(i); has && w.Contains(addr, n) {
				return
			}
		}
		r.Fatalf("slot %d does not decode %#x", slot, addr)
	})
}
