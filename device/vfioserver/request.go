package vfioserver

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// access is a non-posted request of the host that the server carries out.
type access struct {
	gen    uint64
	req    tlp.Packet // its header
	region uint32
	offset uint64
	data   []byte // of a read
	flush  bool   // a zero-length read, of which only the order counts
	err    error

	polled bool          // see connection.tryRead
	began  time.Duration // since connection.start
	took   time.Duration
}

// decode finds the BAR and the offset of a memory request.
func (c *connection) decode(addr uint64, n int) (bar int, offset uint64, ok bool) {
	for i := range c.fn.BARs {
		if w, on := c.fn.Window(i); on && w.Contains(addr, uint64(n)) {
			return i, addr - w.Base, true
		}
	}
	return 0, 0, false
}

func (c *connection) newAccess(p *tlp.Packet, region uint32, offset uint64, n int) *access {
	a := &access{gen: c.gen, req: *p, region: region, offset: offset, data: make([]byte, n)}
	a.req.Data, a.req.Prefix = nil, nil
	return a
}

// memoryRead starts a read of a BAR.
func (c *connection) memoryRead(p *tlp.Packet) {
	addr, n := p.ByteRange()
	bar, offset, ok := c.decode(addr, max(n, 1))
	if !ok {
		c.refuse(p, pcie.UnsupportedRequest)
		return
	}
	a := c.newAccess(p, uint32(bar), offset, n)
	if n == 0 {
		// A zero-length read flushes the writes before it. A read of the vendor
		// ID follows the same way and has no other effect.
		a.flush, a.region, a.offset, a.data = true, vfiouser.RegionConfig, cfgspace.OffVendor, make([]byte, 2)
	}
	if c.irqs.contains(bar, offset, n) {
		c.answer(a)
		return
	}
	c.startRead(a)
	c.endOfInterrupt()
}

// startRead gives a read to the server: at once if no other request is on its way
// there.
func (c *connection) startRead(a *access) {
	if c.requests.isIdle() && c.tryRead(a) {
		return
	}
	c.requests.push(len(a.data), func() {
		done := func(err error) { c.finish(a, err) }
		err := c.client.StartRead(a.region, a.offset, a.data, done)
		if errors.Is(err, vfiouser.ErrQueueFull) {
			ctx, cancel := c.brief()
			defer cancel()
			done(c.client.RegionRead(ctx, a.region, a.offset, a.data))
		}
	})
}

// finish posts an access that the server has carried out or refused.
func (c *connection) finish(a *access, err error) {
	a.err = err
	c.post(arrival{access: a})
}

// memoryWrite posts a write to a BAR, except the parts in the MSI-X structures.
func (c *connection) memoryWrite(p *tlp.Packet) {
	hit := false
	transaction.WriteBytes(p, func(addr uint64, src []byte) pcie.CplStatus {
		bar, offset, ok := c.decode(addr, len(src))
		if !ok {
			return pcie.UnsupportedRequest
		}
		hit = true
		c.vectorsChanged(c.irqs.writeTable(bar, offset, src)) // alone: there may be 2048, and as many writes as the host likes
		for _, part := range c.irqs.outside(bar, offset, len(src)) {
			data := append([]byte(nil), src[part.Addr-offset:][:part.Len]...)
			c.requests.push(len(data), func() {
				_ = c.client.PostWrite(uint32(bar), part.Addr, data) // fails only with the connection
			})
		}
		return pcie.SuccessfulCompletion
	})
	if hit {
		c.endOfInterrupt()
	}
}

// answer queues the completions of a request that the server has carried out.
func (c *connection) answer(a *access) {
	item := outItem{answer: true}
	refused := new(vfiouser.RemoteError)
	switch {
	case errors.As(a.err, &refused):
		transaction.Respond(&item.packet, &a.req, c.fn.ID, pcie.UnsupportedRequest)
	case a.err != nil:
		transaction.Respond(&item.packet, &a.req, c.fn.ID, pcie.CompleterAbort)
	case !a.req.Type.Read():
		transaction.Respond(&item.packet, &a.req, c.fn.ID, pcie.SuccessfulCompletion)
	default:
		switch {
		case a.flush:
			a.data = nil
		case a.req.Type == tlp.MRd:
			c.irqs.overlay(int(a.region), a.offset, a.data)
		default:
			c.irqs.showStatus(a.offset, a.data)
			a.trim()
		}
		item.read = true
		item.data = a.data
		item.base, _ = a.req.ByteRange()
		item.job.Start(&a.req, c.fn.ID, pcie.DefaultRCB, int(c.dma.limits.MaxPayload))
	}
	c.out.push(item)
}

// configRead reads a double word of configuration space, from the server or from
// the registers that the box keeps.
func (c *connection) configRead(p *tlp.Packet) {
	a := c.newAccess(p, vfiouser.RegionConfig, uint64(p.Register), pcie.DW)
	if v, here := c.register(int(p.Register)); here {
		binary.LittleEndian.PutUint32(a.data, v)
		c.answer(a)
		return
	}
	// A configuration read has no side effects, so it reads all four bytes.
	c.startRead(a)
}

// trim reduces the data of a configuration read to the enabled bytes.
func (a *access) trim() {
	from, n := a.req.ByteRange()
	at := int(from % pcie.DW)
	a.data = a.data[at : at+n]
}

// register returns a register that the box keeps. These are the BARs, because not
// every server answers the sizing of firmware, the expansion ROM, which is
// hidden, and the offsets beyond a small configuration space.
func (c *connection) register(at int) (v uint32, here bool) {
	switch {
	case at >= len(c.shadow) || at == cfgspace.OffROM:
		return 0, true
	case at < cfgspace.OffBAR0 || at >= cfgspace.OffBAR0+4*pcie.MaxBARs:
		return 0, false
	}
	i := (at - cfgspace.OffBAR0) / pcie.DW
	if i > 0 && c.fn.BARs[i-1].Wide {
		return uint32(c.fn.BARAddress(i-1) >> 32), true
	}
	if c.fn.BARs[i].Size == 0 {
		return 0, true
	}
	return uint32(c.fn.BARAddress(i)) | c.about.barFlags[i], true
}

// configWrite writes a double word of configuration space.
func (c *connection) configWrite(now time.Duration, p *tlp.Packet) {
	c.fn.Snoop(p)
	c.dma.requester.SetID(c.fn.ID)
	at := int(p.Register)
	a := c.newAccess(p, vfiouser.RegionConfig, uint64(at), 0)
	if at >= len(c.shadow) || at == cfgspace.OffROM || len(p.Data) != pcie.DW {
		c.answer(a)
		return
	}
	if c.startsFLR(p) {
		c.functionReset(now, a)
		return
	}
	parts := enabledParts(p)
	c.requests.push(pcie.DW, func() { c.writeConfig(a, parts) })
	for _, part := range parts {
		copy(c.shadow[part.offset:], part.data)
	}
	// This follows the write, so that the server gets descriptors for interrupts
	// that are enabled.
	c.configured()
}

// writeConfig writes parts of a double word one after the other and posts the
// access with the last answer.
func (c *connection) writeConfig(a *access, parts []configPart) {
	if len(parts) == 0 {
		c.finish(a, nil)
		return
	}
	ctx, cancel := c.brief()
	defer cancel()
	for _, part := range parts[:len(parts)-1] {
		if err := c.client.RegionWrite(ctx, a.region, part.offset, part.data); err != nil {
			c.finish(a, err)
			return
		}
	}
	last := parts[len(parts)-1]
	done := func(err error) { c.finish(a, err) }
	if err := c.client.StartWrite(a.region, last.offset, last.data, done); errors.Is(err, vfiouser.ErrQueueFull) {
		done(c.client.RegionWrite(ctx, a.region, last.offset, last.data))
	}
}

// configPart is a naturally aligned piece of a configuration write.
type configPart struct {
	offset uint64
	data   []byte
}

// enabledParts cuts the enabled bytes of a configuration write into pieces of 1,
// 2 or 4 bytes, the sizes that servers take.
func enabledParts(p *tlp.Packet) []configPart {
	var parts []configPart
	for i := 0; i < pcie.DW; {
		n := 1
		switch be := p.FirstBE >> i; {
		case be&1 == 0:
			i++
			continue
		case i == 0 && be&0xf == 0xf:
			n = 4
		case i%2 == 0 && be&3 == 3:
			n = 2
		}
		parts = append(parts, configPart{uint64(p.Register) + uint64(i), append([]byte(nil), p.Data[i:i+n]...)})
		i += n
	}
	return parts
}

// configured applies the bits of configuration space that concern the box.
func (c *connection) configured() {
	le := binary.LittleEndian
	command := le.Uint16(c.shadow[cfgspace.OffCommand:])
	c.master.Store(command&cfgspace.CmdBusMaster != 0)
	c.interruptsConfigured(command)
}

// startsFLR reports whether a write begins a Function Level Reset (section 6.6.2).
func (c *connection) startsFLR(p *tlp.Packet) bool {
	return c.about.flr && int(p.Register) == c.about.express+cfgspace.OffDevCtl && p.FirstBE&2 != 0 &&
		binary.LittleEndian.Uint16(p.Data)&cfgspace.DevCtlFLR != 0
}

// functionReset resets the function and answers the write that asked for it when
// the server has done so.
func (c *connection) functionReset(now time.Duration, a *access) {
	c.reset(now, device.FunctionLevelReset)
	a.gen, c.unanswered = c.gen, 1
	c.requests.push(0, func() { c.finish(a, nil) })
}
