package gpu

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// newConfig makes the configuration space of a GPU; sriov is nil unless it is divided.
func newConfig(s Spec, sriov *cfgspace.SRIOV) (*cfgspace.Space, error) {
	pin := uint8(0)
	if s.INTx {
		pin = 1
	}
	b := cfgspace.NewEndpoint(cfgspace.Identity{
		Vendor: reg.VendorID, Device: reg.DeviceID, Class: reg.ClassCode, Revision: reg.Revision,
		SubVendor: reg.SubVendorID, SubDevice: reg.SubDeviceID, InterruptPin: pin,
	}).
		BAR(reg.BARRegisters, cfgspace.BAR{Kind: cfgspace.Memory32, Size: reg.RegistersSize}).
		BAR(reg.BARVRAM, cfgspace.BAR{Kind: cfgspace.Memory64, Prefetchable: true, Size: uint64(s.Aperture)}).
		BAR(reg.BARMSIX, cfgspace.BAR{Kind: cfgspace.Memory32, Size: reg.MSIXSize}).
		PowerManagement(true).
		Msix(s.Vectors, reg.BARMSIX, reg.MSIXTable, reg.BARMSIX, reg.MSIXPBA).
		Express(cfgspace.Express{
			Type: cfgspace.Endpoint, Generation: s.Generation, Width: s.Width,
			MaxPayload: s.MaxPayload, MaxReadRequest: min(s.MaxReadRequest, resetReadRequest),
			FLR: true, ExtendedTag: true, TenBitTag: true,
		}).
		AER(false).
		SerialNumber(s.Serial)
	if sriov != nil {
		b.SRIOV(*sriov)
	}
	cfg, err := b.Build()
	if err != nil {
		return nil, fmt.Errorf("gpu: %w", err)
	}
	return cfg, nil
}

// resetReadRequest is Max_Read_Request_Size after a reset (section 7.5.3.4).
const resetReadRequest = 512

func (g *GPU) configRequest(p *tlp.Packet) {
	if p.Target.Function() != 0 {
		g.queued(p, g.answers.Status(p, pcie.UnsupportedRequest)) // enumeration probes it: not an error
		return
	}
	if p.Type == tlp.CfgRd0 {
		g.queued(p, g.answers.Value(p, g.cfg.Read(int(p.Register&^3), 4)))
		return
	}
	if p.EP || len(p.Data) != pcie.DW {
		g.logError(p, cfgspace.AERPoisoned, true)
		g.queued(p, g.answers.Status(p, pcie.UnsupportedRequest))
		return
	}
	// Every configuration write tells the function its address (section 2.2.6.2).
	g.id = p.Target
	g.req.SetID(g.id)
	g.react(g.cfg.WriteBE(p.Register, p.FirstBE, binary.LittleEndian.Uint32(p.Data)))
	g.queued(p, g.answers.Status(p, pcie.SuccessfulCompletion))
}

// react carries out the effects of a write to configuration space.
func (g *GPU) react(c cfgspace.Change) {
	switch {
	case c.Has(cfgspace.FLR | cfgspace.SoftReset):
		g.Reset(g.now, device.FunctionLevelReset)
	case c.Has(cfgspace.DeviceControl):
		g.retag()
	}
}

// retag follows a change of the tag enables. Software changes them only while no
// request is outstanding (section 7.5.3.4); otherwise the outstanding reads go on with the
// tags that they have.
func (g *GPU) retag() {
	if g.req == nil {
		g.req = transaction.NewRequester(transaction.RequesterConfig{ID: g.id, Tags: g.tags()})
		return
	}
	g.req.SetTags(g.tags())
}

// SetLimits implements device.Limited.
func (g *GPU) SetLimits(l device.Limits) {
	g.limits = &l
	g.retag()
}

// SetSlack implements device.Patient.
func (g *GPU) SetSlack(slack func(deadline, timeout time.Duration) time.Duration) {
	g.slack = transaction.SlackOf(slack)
}

// maxPayload returns the largest payload of a write or completion in bytes.
func (g *GPU) maxPayload() int {
	if g.limits != nil {
		return int(min(g.spec.MaxPayload, g.limits.MaxPayload))
	}
	return int(g.cfg.MaxPayload()) // at most that of spec
}

// readSize returns the largest read request in bytes.
func (g *GPU) readSize() int {
	if g.limits != nil {
		return int(min(g.spec.MaxReadRequest, g.limits.MaxReadRequest))
	}
	return int(min(g.spec.MaxReadRequest, g.cfg.MaxReadRequest()))
}

// tags returns the number of reads that may be outstanding.
func (g *GPU) tags() int {
	if g.limits != nil {
		return min(g.spec.Tags, g.limits.Tags)
	}
	return min(g.spec.Tags, g.cfg.TagLimit())
}

// logError records an error in AER and Device Status and sends the message that
// they enable.
func (g *GPU) logError(p *tlp.Packet, bit uint32, advisory bool) {
	var header []byte
	if p != nil {
		header = p.AppendHeader(g.messages.header[:0])
	}
	g.messages.errors |= errorBit(g.cfg.LogUncorrectable(bit, advisory, header))
}

// queued logs a request for whose completion there was no room.
func (g *GPU) queued(p *tlp.Packet, ok bool) {
	if !ok {
		g.logError(p, cfgspace.AEROverflow, false)
	}
}

// completer describes the function as the sender of completions.
func (g *GPU) completer() transaction.Completer {
	return transaction.Completer{ID: g.id, MaxPayload: g.maxPayload(), Out: &g.out, Buf: g.buf[:]}
}

// refuse handles a request that the function does not support.
func (g *GPU) refuse(p *tlp.Packet) {
	g.regs.count(reg.CountUnsupported, 1)
	g.logError(p, cfgspace.AERUnsupported, p.Type.NonPosted())
	if p.Type.NonPosted() {
		g.queued(p, g.answers.Status(p, pcie.UnsupportedRequest))
	}
}
