package vfioserver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// vectorID names an interrupt vector of the server.
type vectorID struct {
	index  uint32 // vfiouser.IRQINTx, IRQMSI or IRQMSIX
	vector int
}

// interruptState turns the server's event descriptors into interrupts of PCI
// Express. A vfio-user server leaves the MSI-X table to its client, so the table
// and the pending bits are kept here and accesses to them do not reach it.
type interruptState struct {
	about *description

	table       []byte // MSI-X table, as the host reads it
	pending     []byte // MSI-X pending bits
	armed       []bool // MSI-X vectors that have, or are being given, a descriptor
	on, masked  bool   // MSI-X Enable, Function Mask
	msiOn       bool
	msiPending  uint32
	raised      bool // INTx was signalled, and the host has not accessed a BAR since
	asserted    bool // Assert_INTA was sent last
	wireAllowed bool
	owed        bool // an interrupt waits for room in the output

	events events // of the requests worker
}

const (
	msixEntrySize = 16
	msixAddr      = 0
	msixData      = 8
	msixControl   = 12 // bit 0: mask
)

func (s *interruptState) init(about *description) {
	s.about = about
	if about.hasMSIX {
		n := about.msix.Vectors
		s.table = make([]byte, n*msixEntrySize)
		s.pending = make([]byte, (n+63)/64*8)
		s.armed = make([]bool, n)
	}
}

// reset restores the registers that the host sees (section 7.7.2: every vector
// is masked). The requests worker takes the descriptors back.
func (s *interruptState) reset() {
	clear(s.table)
	clear(s.pending)
	clear(s.armed)
	for at := msixControl; at < len(s.table); at += msixEntrySize {
		s.table[at] = 1
	}
	s.on, s.masked, s.msiOn, s.msiPending, s.raised = false, false, false, 0, false
}

// structure is a part of a BAR that the box serves.
type structure struct {
	start uint64
	bytes []byte
}

func (s *structure) end() uint64 { return s.start + uint64(len(s.bytes)) }

// structures returns the structures in a BAR, by offset.
func (s *interruptState) structures(bar int) []structure {
	if !s.about.hasMSIX {
		return nil
	}
	var out []structure
	m := &s.about.msix
	if m.TableBAR == bar {
		out = append(out, structure{uint64(m.TableOffset), s.table})
	}
	if m.PBABAR == bar {
		out = append(out, structure{uint64(m.PBAOffset), s.pending})
	}
	if len(out) == 2 && out[1].start < out[0].start {
		out[0], out[1] = out[1], out[0]
	}
	return out
}

// contains reports whether an access lies within one structure.
func (s *interruptState) contains(bar int, offset uint64, n int) bool {
	inside := func(x structure) bool { return offset >= x.start && offset+uint64(n) <= x.end() }
	return n > 0 && slices.ContainsFunc(s.structures(bar), inside)
}

// overlay replaces the bytes of a read that belong to a structure.
func (s *interruptState) overlay(bar int, offset uint64, data []byte) {
	for _, x := range s.structures(bar) {
		from, to := max(offset, x.start), min(offset+uint64(len(data)), x.end())
		if from < to {
			copy(data[from-offset:to-offset], x.bytes[from-x.start:])
		}
	}
}

// outside returns the parts of an access that lie in no structure, by offset.
// They belong to the server.
func (s *interruptState) outside(bar int, offset uint64, n int) []tlp.Chunk {
	var out []tlp.Chunk
	end := offset + uint64(n)
	for _, x := range s.structures(bar) {
		if to := min(x.start, end); offset < to {
			out = append(out, tlp.Chunk{Addr: offset, Len: int(to - offset)})
		}
		offset = max(offset, min(x.end(), end))
	}
	if offset < end {
		out = append(out, tlp.Chunk{Addr: offset, Len: int(end - offset)})
	}
	return out
}

// writeTable stores the part of a write that lies in the table, and returns the vectors
// first to end-1 to which it belongs. The pending bits are read-only.
func (s *interruptState) writeTable(bar int, offset uint64, src []byte) (first, end int) {
	if !s.about.hasMSIX || s.about.msix.TableBAR != bar {
		return 0, 0
	}
	start := uint64(s.about.msix.TableOffset)
	from, to := max(offset, start), min(offset+uint64(len(src)), start+uint64(len(s.table)))
	if from >= to {
		return 0, 0
	}
	copy(s.table[from-start:to-start], src[from-offset:])
	first, end = int(from-start)/msixEntrySize, int(to-start+msixEntrySize-1)/msixEntrySize
	for v := first; v < end; v++ {
		e := s.table[v*msixEntrySize:]
		e[msixAddr] &^= 3
		e[msixControl] &= 1
		clear(e[msixControl+1 : msixEntrySize])
	}
	return first, end
}

func (s *interruptState) vectorMasked(v int) bool {
	return s.masked || s.table[v*msixEntrySize+msixControl]&1 != 0
}

// interruptsConfigured follows the enable bits of MSI-X, MSI and INTx.
func (c *connection) interruptsConfigured(command uint16) {
	s := &c.irqs
	var on bool
	if c.about.hasMSIX {
		ctl := binary.LittleEndian.Uint16(c.shadow[c.about.msix.Cap+2:])
		on, s.masked = ctl&cfgspace.MSIXEnable != 0, ctl&cfgspace.MSIXMask != 0
	}
	msi, vectors := c.msiVectors()
	wire := !s.on && !s.msiOn
	if on != s.on {
		s.on = on
		clear(s.armed)
		if !on {
			clear(s.pending)
			c.requests.push(0, func() { c.disarm(vfiouser.IRQMSIX) })
		}
	}
	wireNow := !on && !msi
	if wire && !wireNow { // before the other kind is armed, as VMMs do
		c.requests.push(0, func() { c.disarm(vfiouser.IRQINTx) })
	}
	if msi != s.msiOn {
		s.msiOn, s.msiPending = msi, 0
		c.requests.push(0, func() {
			c.disarm(vfiouser.IRQMSI)
			if msi {
				c.arm(vfiouser.IRQMSI, 0, vectors)
			}
		})
	}
	if !wire && wireNow {
		c.requests.push(0, c.armWire)
	}
	s.wireAllowed = wireNow && command&cfgspace.CmdINTxDisable == 0
	c.updateWire()
	c.allChanged()
	c.flushMSI()
}

// allChanged is vectorsChanged for all vectors.
func (c *connection) allChanged() { c.vectorsChanged(0, len(c.irqs.armed)) }

// vectorsChanged gives descriptors to the MSI-X vectors first to end-1 if they have become
// unmasked, and sends their pending interrupts.
func (c *connection) vectorsChanged(first, end int) {
	s := &c.irqs
	if !s.on {
		return
	}
	for v := first; v < min(end, c.about.vectors[vfiouser.IRQMSIX]); v++ {
		if s.vectorMasked(v) {
			continue
		}
		if !s.armed[v] {
			s.armed[v] = true
			c.requests.push(0, func() { c.arm(vfiouser.IRQMSIX, v, 1) })
		}
		if s.pending[v/8]>>(v%8)&1 != 0 {
			c.interrupt(vectorID{vfiouser.IRQMSIX, v})
		}
	}
}

// interrupt takes a signal of the server. A masked vector waits, and every MSI
// and MSI-X vector waits while the function may not master the bus.
func (c *connection) interrupt(id vectorID) {
	s := &c.irqs
	switch {
	case id.index == vfiouser.IRQINTx:
		s.raised = true
		c.updateWire()
	case id.index == vfiouser.IRQMSI && s.msiOn:
		s.msiPending |= 1 << id.vector
		c.flushMSI()
	case id.index == vfiouser.IRQMSIX && s.on:
		v := id.vector
		if s.vectorMasked(v) || !c.master.Load() || c.crowded() {
			s.pending[v/8] |= 1 << (v % 8)
			return
		}
		s.pending[v/8] &^= 1 << (v % 8)
		e := s.table[v*msixEntrySize:]
		c.message(binary.LittleEndian.Uint64(e[msixAddr:]), binary.LittleEndian.Uint32(e[msixData:]))
	}
}

// msiLength is the size of an MSI capability by its Message Control (section 7.7.1).
func msiLength(ctl uint16) int {
	n := 10
	if ctl&cfgspace.MSI64 != 0 {
		n += 4
	}
	if ctl&cfgspace.MSIMaskable != 0 {
		n += 10 // padding, mask bits, pending bits
	}
	return n
}

func (c *connection) msiVectors() (on bool, n int) {
	if c.about.msi == 0 {
		return false, 0
	}
	ctl := binary.LittleEndian.Uint16(c.shadow[c.about.msi+2:])
	n = 1 << min(ctl>>4&7, 5) // Multiple Message Enable
	return ctl&cfgspace.MSIEnable != 0, min(n, c.about.vectors[vfiouser.IRQMSI])
}

// flushMSI sends the MSI vectors that are pending and not masked.
func (c *connection) flushMSI() {
	s := &c.irqs
	on, n := c.msiVectors()
	if !on || !c.master.Load() {
		return
	}
	le, at := binary.LittleEndian, c.about.msi
	ctl := le.Uint16(c.about.config[at+2:]) // read-only bits: the shadow has the written ones
	addr, dataAt := uint64(le.Uint32(c.shadow[at+4:])), at+8
	if ctl&cfgspace.MSI64 != 0 {
		addr |= uint64(le.Uint32(c.shadow[at+8:])) << 32
		dataAt += 4
	}
	var masked uint32
	if ctl&cfgspace.MSIMaskable != 0 {
		masked = le.Uint32(c.shadow[dataAt+4:])
	}
	enabled := uint32(1)<<(le.Uint16(c.shadow[at+2:])>>4&7) - 1 // low bits of the data that name the vector
	for rest := s.msiPending &^ masked; rest != 0; rest &= rest - 1 {
		v := bits.TrailingZeros32(rest)
		if c.crowded() {
			return
		}
		s.msiPending &^= 1 << v
		if v < n {
			c.message(addr, uint32(le.Uint16(c.shadow[dataAt:]))&^enabled|uint32(v))
		}
	}
}

// crowded reports whether an interrupt has to wait for room in the output, and
// notes that it does.
func (c *connection) crowded() bool {
	c.irqs.owed = c.irqs.owed || c.out.crowded()
	return c.out.crowded()
}

// sendOwed queues the interrupts that waited for room, and reports whether any did.
func (c *connection) sendOwed() bool {
	if !c.irqs.owed {
		return false
	}
	c.irqs.owed = false
	c.updateWire()
	c.allChanged()
	c.flushMSI()
	return true
}

// updateWire sends an edge of INTx when its level has changed.
func (c *connection) updateWire() {
	s := &c.irqs
	if on := s.raised && s.wireAllowed; on != s.asserted && !c.crowded() {
		s.asserted = on
		code := uint8(tlp.CodeDeassertINTA)
		if on {
			code = tlp.CodeAssertINTA
		}
		c.out.push(outItem{packet: tlp.Packet{Type: tlp.Msg, DW4: true, Requester: c.fn.ID, Code: code, Routing: tlp.RouteLocal}})
	}
}

// showStatus sets Interrupt Status in the double word with the Status register (section
// 7.5.1.1.4). Servers of libvfio-user do not set it, and Linux' drivers with a
// shared line, such as uio_pci_generic, ask it.
func (s *interruptState) showStatus(at uint64, data []byte) {
	if s.raised && at == cfgspace.OffCommand && len(data) == pcie.DW {
		data[cfgspace.OffStatus-cfgspace.OffCommand] |= cfgspace.StaInterrupt
	}
}

// endOfInterrupt follows each access of the host to a BAR. VFIO has no level for
// INTx, so such an access counts as the handling of the interrupt, as in VMMs: it
// unmasks INTx, and the server signals again if its interrupt is still pending.
func (c *connection) endOfInterrupt() {
	s := &c.irqs
	if !s.raised {
		return
	}
	s.raised = false
	c.updateWire()
	c.requests.push(0, func() {
		if err := c.client.UnmaskINTx(c.ctx); err != nil {
			c.interruptsLost("unmask INTx", err)
		}
	})
}

// interruptsLost follows a request about interrupts that has failed. A server may refuse
// one. If it has not answered in time, an interrupt may never come,
// and a driver would wait for it without end: the device has failed.
func (c *connection) interruptsLost(what string, err error) {
	switch refused := new(vfiouser.RemoteError); {
	case c.ctx.Err() != nil, errors.Is(err, vfiouser.ErrClosed), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		// The end of the connection is reported elsewhere.
	case errors.As(err, &refused):
		c.log.Warn("device server refuses a request, its interrupts are lost", "request", what, "err", err)
	default:
		c.fail(fmt.Sprintf("the device server does not %s: %v", what, err))
	}
}

// The methods below run in the requests worker.

// armWire gives the server an event descriptor for INTx.
func (c *connection) armWire() { c.arm(vfiouser.IRQINTx, 0, c.about.vectors[vfiouser.IRQINTx]) }

// arm gives the server event descriptors for the n vectors from start. It waits longer
// than for others: the host would never learn that its interrupts are lost.
func (c *connection) arm(index uint32, start, n int) {
	if n == 0 {
		return
	}
	files, err := c.irqs.events.create(index, start, n)
	if err != nil {
		c.fail(fmt.Sprintf("no descriptors for the interrupts of the device: %v", err))
		return
	}
	if err := c.client.ArmIRQs(c.ctx, index, uint32(start), files); err != nil {
		c.irqs.events.close(files)
		c.interruptsLost("take event descriptors", err)
		return
	}
	c.irqs.events.keep(index, start, files)
}

// disarm disables the interrupts of an index and closes their descriptors.
func (c *connection) disarm(index uint32) {
	files := c.irqs.events.take(index)
	if len(files) == 0 {
		return
	}
	ctx, cancel := c.brief()
	defer cancel()
	if err := c.client.DisableIRQs(ctx, index); err != nil && c.ctx.Err() == nil {
		c.log.Warn("device server does not disable interrupts", "index", index, "err", err)
	}
	c.irqs.events.close(files)
}
