package vfioserver

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// Places of the structures of the function in the random test.
const (
	randomVectors = 70
	randomTable   = 0x100
	randomPending = 0x1000
	randomBAR     = 0x8000 // size and address
)

// randomConnection returns the connection to a server with all kinds of interrupts. Its workers
// do not run.
func randomConnection(t *testing.T) *connection {
	t.Helper()
	space, err := cfgspace.NewEndpoint(cfgspace.Identity{Vendor: 1, Device: 2, InterruptPin: 1}).
		BAR(0, cfgspace.BAR{Kind: cfgspace.Memory32, Size: randomBAR}).
		Express(cfgspace.Express{Generation: pcie.Gen4, Width: 16, MaxPayload: 256, FLR: true}).
		Msi(5).Msix(randomVectors, 0, randomTable, 0, randomPending).Build()
	if err != nil {
		t.Fatal(err)
	}
	var about description
	about.config = space.Bytes()
	about.readCapabilities()
	about.vectors = [vfiouser.NumIRQs]int{vfiouser.IRQINTx: 1, vfiouser.IRQMSI: 32, vfiouser.IRQMSIX: randomVectors}
	about.info.BARs[0] = pcie.BAR{Size: randomBAR}
	c := &connection{
		about: about, log: slog.New(slog.DiscardHandler), fired: map[vectorID]struct{}{},
		requests: newWorker(func() {}), answers: newWorker(func() {}),
	}
	c.dma.init(func(*vfiouser.DMARequest, error) {}, about.limits())
	c.irqs.init(&c.about)
	c.fn.BARs = about.info.BARs
	c.restore()
	return c
}

// interruptModel is the reference: the interrupts that the host should see by the
// specification.
type interruptModel struct {
	config                [256]byte // bytes that the host has written
	table                 [randomVectors * msixEntrySize]byte
	pending               [randomVectors]bool
	msiPending            [32]bool
	raised                bool
	messages              []string // that were sent
	express, msi, msixCap int
}

func (m *interruptModel) reset() {
	m.config = [256]byte{}
	m.table = [len(m.table)]byte{}
	for v := range randomVectors {
		m.table[v*msixEntrySize+msixControl] = 1
	}
	m.pending, m.msiPending, m.raised = [randomVectors]bool{}, [32]bool{}, false
}

func (m *interruptModel) word(at int) uint32 { return binary.LittleEndian.Uint32(m.config[at:]) }

func (m *interruptModel) command() uint32 { return m.word(4) }

func (m *interruptModel) msixOn() bool { return m.word(m.msixCap)>>31&1 != 0 }

func (m *interruptModel) msiOn() bool { return m.word(m.msi)>>16&1 != 0 }

// wire returns the level of INTx.
func (m *interruptModel) wire() bool {
	return m.raised && !m.msixOn() && !m.msiOn() && m.command()&cfgspace.CmdINTxDisable == 0
}

func (m *interruptModel) signal(id vectorID) {
	switch {
	case id.index == vfiouser.IRQINTx:
		m.raised = true
	case id.index == vfiouser.IRQMSI && m.msiOn():
		m.msiPending[id.vector] = true
	case id.index == vfiouser.IRQMSIX && m.msixOn():
		m.pending[id.vector] = true
	}
	m.flush()
}

// flush sends all messages that may be sent.
func (m *interruptModel) flush() {
	if !m.msixOn() {
		m.pending = [randomVectors]bool{}
	}
	if !m.msiOn() {
		m.msiPending = [32]bool{}
	}
	if m.command()&cfgspace.CmdBusMaster == 0 {
		return
	}
	for v, pending := range m.pending {
		e := m.table[v*msixEntrySize:]
		if pending && m.word(m.msixCap)>>30&1 == 0 && e[msixControl]&1 == 0 {
			m.pending[v] = false
			m.send(binary.LittleEndian.Uint64(e)&^3, binary.LittleEndian.Uint32(e[msixData:]))
		}
	}
	enabled := 1 << min(m.word(m.msi)>>20&7, 5)
	for v, pending := range m.msiPending {
		if pending && m.word(m.msi+16)>>v&1 == 0 {
			m.msiPending[v] = false
			if v < enabled {
				data := m.word(m.msi+12) & 0xffff &^ (1<<(m.word(m.msi)>>20&7) - 1)
				m.send(uint64(m.word(m.msi+4))&^3|uint64(m.word(m.msi+8))<<32, data|uint32(v))
			}
		}
	}
}

func (m *interruptModel) send(addr uint64, data uint32) {
	m.messages = append(m.messages, fmt.Sprintf("%x=%x", addr, data))
}

// tester compares the connection with the model.
type tester struct {
	t     *testing.T
	r     *rand.Rand
	c     *connection
	m     interruptModel
	level bool // of INTx at the host
	got   []string
	seed  uint64
}

// config writes bytes of configuration space.
func (x *tester) config(at int, be uint8, v uint32) {
	p := tlp.Packet{Type: tlp.CfgWr0, Target: 0x100, Register: uint16(at), FirstBE: be, Length: 1, Data: binary.LittleEndian.AppendUint32(nil, v)}
	x.c.receive(0, &p)
	if at == x.m.express+cfgspace.OffDevCtl && be&2 != 0 && v&cfgspace.DevCtlFLR != 0 {
		x.m.reset()
		x.m.messages = slices.Clone(x.got) // those that wait are dropped
		x.config(cfgspace.OffBAR0, 0xf, randomBAR)
		return
	}
	for i := range 4 {
		if be>>i&1 != 0 {
			x.m.config[at+i] = p.Data[i]
		}
	}
	x.m.flush()
}

// memory writes to the BAR.
func (x *tester) memory(at, n int) {
	p := tlp.Packet{Type: tlp.MWr}
	p.SetMemory(uint64(randomBAR+at), n)
	p.Data = make([]byte, int(p.Length)*pcie.DW)
	for i := range p.Data {
		p.Data[i] = byte(x.r.Uint32())
	}
	x.c.receive(0, &p)
	if x.m.command()&cfgspace.CmdMemory == 0 {
		return
	}
	for i := range n {
		if off := at + i - randomTable; off >= 0 && off < len(x.m.table) {
			x.m.table[off] = p.Data[at%pcie.DW+i]
		}
	}
	x.m.raised = false
	x.m.flush()
}

// step does one thing that a host or a server may do.
func (x *tester) step() {
	m, r := &x.m, x.r
	switch r.IntN(14) {
	case 0, 1, 2, 3:
		id := vectorID{[]uint32{vfiouser.IRQINTx, vfiouser.IRQMSI, vfiouser.IRQMSIX}[r.IntN(3)], 0}
		if id.index != vfiouser.IRQINTx {
			id.vector = r.IntN(32 + int(id.index-vfiouser.IRQMSI)*(randomVectors-32))
		}
		x.c.interrupt(id)
		m.signal(id)
	case 4, 5:
		x.config(4, 0xf, uint32(r.IntN(2)*cfgspace.CmdBusMaster|cfgspace.CmdMemory*min(r.IntN(4), 1)|r.IntN(2)*cfgspace.CmdINTxDisable))
	case 6:
		x.config(m.msixCap, 0xc, r.Uint32()&r.Uint32())
	case 7:
		x.config(m.msi, 0xc, r.Uint32()&r.Uint32()&0x0071_0000)
	case 8:
		x.config(m.msi+4*r.IntN(5), uint8(r.IntN(16))&^uint8(min(r.IntN(3), 1)), r.Uint32()&r.Uint32())
	case 9, 10, 11:
		v := r.IntN(randomVectors)
		x.memory(randomTable+v*msixEntrySize+r.IntN(msixEntrySize), 1+r.IntN(40))
	case 12:
		x.memory(r.IntN(randomBAR-64), 1+r.IntN(64))
	case 13:
		if r.IntN(4) == 0 {
			x.config(m.express+cfgspace.OffDevCtl, 3, cfgspace.DevCtlFLR)
		}
	}
}

// look compares what the host has received.
func (x *tester) look() {
	full := x.r.IntN(3) == 0
	x.c.transmit(0, nil, func(p *tlp.Packet) bool {
		switch {
		case full:
			return false
		case p.Type == tlp.MWr:
			x.got = append(x.got, fmt.Sprintf("%x=%x", p.Addr, binary.LittleEndian.Uint32(p.Data)))
		case p.Type == tlp.Msg:
			x.level = p.Code == tlp.CodeAssertINTA
		}
		return true
	})
	if full {
		return
	}
	slices.Sort(x.got)
	slices.Sort(x.m.messages)
	if !slices.Equal(x.got, x.m.messages) {
		x.t.Fatalf("seed %d: messages %v, want %v", x.seed, x.got, x.m.messages)
	}
	x.got, x.m.messages = nil, nil
	if x.level != x.m.wire() {
		x.t.Fatalf("seed %d: INTx is asserted at the host: %v, want %v", x.seed, x.level, x.m.wire())
	}
	x.c.requests.jobs, x.c.answers.jobs = nil, nil
}

// Host and server do what they like: the host sees the interrupts of the specification.
func TestRandomInterrupts(t *testing.T) {
	for seed := range uint64(200) {
		x := &tester{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 3)), c: randomConnection(t)}
		x.m.express, x.m.msi, x.m.msixCap = x.c.about.express, x.c.about.msi, x.c.about.msix.Cap
		x.m.reset()
		x.config(cfgspace.OffBAR0, 0xf, randomBAR)
		for range 300 {
			for range 1 + x.r.IntN(3) {
				x.step()
			}
			x.look()
		}
	}
}
