package virtio

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// Layout of the BARs. The virtio structures have a page of BAR 0 each.
const (
	barRegisters  = 0
	barMSIX       = 2
	registersSize = 4 * pcie.PageSize
	msixSize      = pcie.PageSize

	commonAt = 0
	isrAt    = 1 * pcie.PageSize
	deviceAt = 2 * pcie.PageSize
	notifyAt = 3 * pcie.PageSize

	commonSize = 56
	// deviceSize bounds the device configuration, as a vhost-user message does.
	deviceSize = 256
	// notifyStep is notify_off_multiplier.
	notifyStep = 4

	msixPBA = 0x800
)

// Types of virtio's PCI capabilities (section 4.1.4).
const (
	capCommon = 1 + iota
	capNotify
	capISR
	capDevice
	capPCI
)

const (
	vendorID = 0x1af4 // Red Hat, for virtio
	deviceID = 0x1040 // plus the device type
)

// capability returns the body of a virtio capability behind its first three bytes.
func capability(kind uint8, at, size uint32, more ...byte) []byte {
	b := []byte{kind, barRegisters, 0, 0, 0}
	b = binary.LittleEndian.AppendUint32(b, at)
	b = binary.LittleEndian.AppendUint32(b, size)
	return append(b, more...)
}

func newConfig(s *Spec) (*cfgspace.Space, error) {
	return cfgspace.NewEndpoint(cfgspace.Identity{
		Vendor: vendorID, Device: deviceID + s.Kind.ID, Class: s.Kind.Class, Revision: 1,
		SubVendor: vendorID, SubDevice: deviceID + s.Kind.ID,
	}).
		BAR(barRegisters, cfgspace.BAR{Kind: cfgspace.Memory32, Size: registersSize}).
		BAR(barMSIX, cfgspace.BAR{Kind: cfgspace.Memory32, Size: msixSize}).
		PowerManagement(true).
		Msix(s.Queues+1, barMSIX, 0, barMSIX, msixPBA).
		Express(cfgspace.Express{
			Type: cfgspace.Endpoint, Generation: pcie.Gen3, Width: 4, MaxPayload: pcie.MaxPayload,
			FLR: true, ExtendedTag: true, TenBitTag: true,
		}).
		Vendor(capability(capCommon, commonAt, commonSize)).
		Vendor(capability(capNotify, notifyAt, uint32(s.Queues*notifyStep), notifyStep, 0, 0, 0)).
		Vendor(capability(capISR, isrAt, 1)).
		Vendor(capability(capDevice, deviceAt, deviceSize)).
		Vendor(capability(capPCI, 0, 0, 0, 0, 0, 0), windowMasks...).
		SerialNumber(s.Serial).
		Build()
}

// Info implements device.Describer, without model and memory, which the owner knows.
func (d *Device) Info() device.Info {
	i := device.Info{Vendor: vendorID, Device: deviceID + d.spec.Kind.ID}
	i.BARs[barRegisters] = pcie.BAR{Size: registersSize}
	i.BARs[barMSIX] = pcie.BAR{Size: msixSize}
	return i
}

func (d *Device) configRequest(p *tlp.Packet) {
	if p.Target.Function() != 0 {
		d.answers.Status(p, pcie.UnsupportedRequest) // enumeration probes it
		return
	}
	if p.Type == tlp.CfgRd0 {
		value := d.cfg.Read(int(p.Register&^3), pcie.DW)
		if d.windowData(p) {
			value = d.readWindow(value)
		}
		d.answers.Value(p, value)
		return
	}
	if p.EP || len(p.Data) != pcie.DW {
		d.answers.Status(p, pcie.UnsupportedRequest)
		return
	}
	// Every configuration write tells the function its address (PCI Express, section 2.2.6.2).
	d.id = p.Target
	d.reads.req.SetID(d.id)
	switch c := d.cfg.WriteBE(p.Register, p.FirstBE, binary.LittleEndian.Uint32(p.Data)); {
	case c.Has(cfgspace.FLR | cfgspace.SoftReset):
		d.Reset(d.now, device.FunctionLevelReset)
	case c.Has(cfgspace.DeviceControl):
		d.retag()
	}
	if d.windowData(p) {
		d.writeWindow(p.FirstBE)
	}
	d.answers.Status(p, pcie.SuccessfulCompletion)
}

// refuse answers a request that the function does not support.
func (d *Device) refuse(p *tlp.Packet) {
	if p.Type.NonPosted() {
		d.answers.Status(p, pcie.UnsupportedRequest)
	}
}
