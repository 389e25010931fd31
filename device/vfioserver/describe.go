package vfioserver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// description is a device as its server describes it.
type description struct {
	info       device.Info
	config     []byte // configuration space after a reset, 256 or 4096 bytes
	barFlags   [pcie.MaxBARs]uint32
	resettable bool // DEVICE_RESET works
	flr        bool
	express    int // offset of the PCI Express capability; 0: none
	msi        int // offset of the MSI capability; 0: none
	msix       cfgspace.MSIXInfo
	hasMSIX    bool
	vectors    [vfiouser.NumIRQs]int // that the server can signal
}

// describe asks a server for the description of its device, which it resets.
func describe(ctx context.Context, c *vfiouser.Client) (d description, err error) {
	info, err := c.DeviceInfo(ctx)
	if err != nil {
		return d, err
	}
	if info.Flags&vfiouser.DeviceFlagPCI == 0 || info.Regions <= vfiouser.RegionConfig {
		return d, errors.New("not a PCI device")
	}
	if d.resettable = info.Flags&vfiouser.DeviceFlagReset != 0; d.resettable {
		if err := c.Reset(ctx); err != nil {
			return d, err
		}
	}
	size, err := c.RegionSize(ctx, vfiouser.RegionConfig)
	if err != nil {
		return d, err
	}
	if size != pcie.ConfigSizePCI && size != pcie.ConfigSize {
		return d, fmt.Errorf("configuration space of %d bytes, want 256 or 4096", size)
	}
	d.config = make([]byte, size)
	if err := c.RegionRead(ctx, vfiouser.RegionConfig, 0, d.config); err != nil {
		return d, err
	}
	le := binary.LittleEndian
	d.info.Vendor, d.info.Device = le.Uint16(d.config), le.Uint16(d.config[cfgspace.OffDevice:])
	if d.info.Vendor == 0xffff || d.config[cfgspace.OffHeaderType]&0x7f != 0 {
		return d, fmt.Errorf("vendor %#04x, header type %d: want an endpoint", d.info.Vendor, d.config[cfgspace.OffHeaderType]&0x7f)
	}
	d.info.Model = fmt.Sprintf("vfio-user device %04x:%04x", d.info.Vendor, d.info.Device)
	if err := d.readBARs(ctx, c); err != nil {
		return d, err
	}
	d.readCapabilities()
	if err := d.readInterrupts(ctx, c, info.IRQs); err != nil {
		return d, err
	}
	return d, nil
}

// readBARs takes the sizes from the regions, because not every server answers the
// sizing of firmware, and the kinds from configuration space.
func (d *description) readBARs(ctx context.Context, c *vfiouser.Client) error {
	for i := 0; i < pcie.MaxBARs; i++ {
		size, err := c.RegionSize(ctx, uint32(i))
		if err != nil {
			return err
		}
		if size == 0 {
			continue
		}
		raw := binary.LittleEndian.Uint32(d.config[cfgspace.OffBAR0+4*i:])
		b := pcie.BAR{Size: size, IO: raw&1 != 0, Wide: raw&7 == 4, Prefetchable: raw&9 == 8}
		limit := uint64(1 << 31)
		if b.Wide {
			limit = 1 << 62
		}
		if bits.OnesCount64(size) != 1 || size < 4 || size > limit || b.Wide && i == pcie.MaxBARs-1 {
			return fmt.Errorf("BAR %d of %#x bytes: want a power of two", i, size)
		}
		d.barFlags[i] = raw & 0xf
		if b.IO {
			d.barFlags[i] = raw & 3
		}
		d.info.BARs[i] = b
		if b.Wide {
			i++
		}
	}
	return nil
}

func (d *description) readCapabilities() {
	le := binary.LittleEndian
	if at := cfgspace.Find(d.config, cfgspace.CapExpress); at != 0 && at+cfgspace.OffDevCtl2+2 <= len(d.config) {
		d.express = at
		d.flr = le.Uint32(d.config[at+cfgspace.OffDevCap:])&cfgspace.DevCapFLR != 0
	}
	if at := cfgspace.Find(d.config, cfgspace.CapMSI); at != 0 && at+4 <= pcie.ConfigSizePCI &&
		at+msiLength(le.Uint16(d.config[at+2:])) <= pcie.ConfigSizePCI {
		d.msi = at
	}
	d.msix, d.hasMSIX = cfgspace.FindMSIX(d.config)
	if at := cfgspace.FindExtended(d.config, cfgspace.ExtSerial); at != 0 && at+12 <= len(d.config) {
		d.info.Serial = fmt.Sprintf("%016x", le.Uint64(d.config[at+4:]))
	}
}

// limits returns the limits of the device's TLPs. They do not depend on Device
// Control, see device.Limited: the box makes the TLPs, the server sends messages
// of any size. A function without the capability has the limits of the network.
func (d *description) limits() device.Limits {
	l := device.NetworkLimits()
	if d.express == 0 {
		return l
	}
	devCap := binary.LittleEndian.Uint32(d.config[d.express+cfgspace.OffDevCap:])
	var devCap2 uint32
	if d.config[d.express+cfgspace.OffExpCaps]&0xf >= 2 { // version 1 ends before it
		devCap2 = binary.LittleEndian.Uint32(d.config[d.express+cfgspace.OffDevCap2:])
	}
	if n, ok := pcie.DecodePayloadSize(uint8(devCap & 7)); ok {
		l.MaxPayload = min(l.MaxPayload, n)
	}
	switch {
	case devCap2&cfgspace.DevCap2TagRequester != 0:
	case devCap&cfgspace.DevCapExtTag != 0:
		l.Tags = min(l.Tags, extendedTags)
	default:
		l.Tags = min(l.Tags, standardTags)
	}
	return l
}

// Numbers of tags without 10-bit tags: those of 8 and of 5 bits (PCI Express Base
// Specification, section 2.2.6.2).
const (
	extendedTags = 256
	standardTags = 32
)

// readInterrupts asks how many vectors the server can signal.
func (d *description) readInterrupts(ctx context.Context, c *vfiouser.Client, indexes uint32) error {
	most := [vfiouser.NumIRQs]int{vfiouser.IRQINTx: 1, vfiouser.IRQMSI: 32}
	if d.hasMSIX {
		most[vfiouser.IRQMSIX] = d.msix.Vectors
	}
	for index := range min(indexes, vfiouser.IRQMSIX+1) {
		info, err := c.IRQInfo(ctx, index)
		if err != nil {
			return err
		}
		d.vectors[index] = min(int(info.Count), most[index])
	}
	if d.config[cfgspace.OffIntPin] == 0 {
		d.vectors[vfiouser.IRQINTx] = 0
	}
	return nil
}

// errNoMessages is for servers that reach memory by mapping it only.
var errNoMessages = errors.New("no DMA by messages: the server needs the memory in its own process, and the memory is on another machine")

// checkDecode refuses QEMU's device server, whose BARs can be read only while
// memory decode is on. That server accepts a mapping without a descriptor and
// never asks for its memory. The test reads the first entry of the MSI-X table,
// which has no side effect. A device without a table passes, and so does a server
// that does not serve the table.
func (d *description) checkDecode(ctx context.Context, c *vfiouser.Client) error {
	bar := d.msix.TableBAR
	if !d.hasMSIX || d.info.BARs[bar].IO || d.info.BARs[bar].Size < uint64(d.msix.TableOffset)+pcie.DW {
		return nil
	}
	off, err := d.tableReadable(ctx, c, 0, 0)
	if off || err != nil {
		return err
	}
	const anywhere = 1 << 31 // a multiple of every size that a 32-bit BAR can have
	on, err := d.tableReadable(ctx, c, anywhere, cfgspace.CmdMemory)
	if _, undo := d.tableReadable(ctx, c, 0, 0); err == nil {
		err = undo
	}
	if on && err == nil {
		return fmt.Errorf("BARs answer only while memory decode is on, as with QEMU's x-vfio-user-server: %w", errNoMessages)
	}
	return err
}

// tableReadable sets a BAR and the Command register and tries to read the MSI-X
// table.
func (d *description) tableReadable(ctx context.Context, c *vfiouser.Client, addr uint32, command byte) (bool, error) {
	var entry [pcie.DW]byte
	at := uint64(cfgspace.OffBAR0 + pcie.DW*d.msix.TableBAR)
	err := errors.Join(
		c.RegionWrite(ctx, vfiouser.RegionConfig, at, binary.LittleEndian.AppendUint32(nil, addr)),
		c.RegionWrite(ctx, vfiouser.RegionConfig, cfgspace.OffCommand, []byte{command, 0}),
	)
	if err != nil {
		return false, err
	}
	err = c.RegionRead(ctx, uint32(d.msix.TableBAR), uint64(d.msix.TableOffset), entry[:])
	if refused := new(vfiouser.RemoteError); errors.As(err, &refused) {
		return false, nil
	}
	return err == nil, err
}

// Address space of the host. Package vfiouser and rust-vmm take any range,
// libvfio-user up to 8 TiB in each of 16 mappings (ENOSPC).
const (
	addressSpace = 1 << 48
	mapPiece     = 8 << 40
)

// mapAll maps the whole address space of the host by messages, or the part from 0
// on that the server takes. The host refuses requests for memory that it lacks.
func mapAll(ctx context.Context, c *vfiouser.Client) error {
	m := vfiouser.DMAMap{Flags: vfiouser.DMAFlagRead | vfiouser.DMAFlagWrite, Size: addressSpace}
	err := c.DMAMap(ctx, m, nil)
	refused := new(vfiouser.RemoteError)
	if !errors.As(err, &refused) {
		return err
	}
	for m.Size = mapPiece; m.Addr < addressSpace; m.Addr += m.Size {
		err := c.DMAMap(ctx, m, nil)
		switch {
		case err == nil:
		case !errors.As(err, &refused):
			return err
		case m.Addr == 0:
			return fmt.Errorf("%w: %w", errNoMessages, err)
		default:
			return nil
		}
	}
	return nil
}
