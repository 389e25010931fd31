package cfgspace

import "github.com/dxpu-project/dxpu/pcie"

// PortType is the Device/Port Type field of the PCI Express capability (section 7.5.3.2).
type PortType uint8

// Port types.
const (
	Endpoint       PortType = 0
	RootPort       PortType = 4
	UpstreamPort   PortType = 5 // of a switch
	DownstreamPort PortType = 6 // of a switch
)

// Slot describes the slot below a root port or a downstream port.
type Slot struct {
	Number uint16 // physical slot number, 13 bits, unique in the chassis
	// HotPlug makes the slot hot-plug capable, with surprise removal allowed,
	// an attention button, indicators, and a power controller.
	HotPlug bool
}

// Express describes the PCI Express capability.
type Express struct {
	Type       PortType
	Generation pcie.Generation // highest link speed; also the current one
	Width      int             // lanes: 1, 2, 4, 8, 12, 16, 32
	PortNumber uint8
	MaxPayload pcie.PayloadSize // Max_Payload_Size Supported
	// MaxReadRequest is the reset value of Max_Read_Request_Size. 0: 512 bytes.
	MaxReadRequest pcie.PayloadSize
	FLR            bool // endpoint: Function Level Reset
	ExtendedTag    bool // 8-bit tags, on after reset
	TenBitTag      bool // 10-bit tags as requester and completer, off after reset
	Atomics        bool // completer of 32- and 64-bit AtomicOps; routing in ports
	Slot           *Slot
	// LinkDown leaves Data Link Layer Link Active clear: an empty slot.
	LinkDown bool
}

// Express adds the PCI Express capability, version 2 (section 7.5.3).
func (b *Builder) Express(e Express) *Builder {
	if !e.valid() {
		b.fail("PCI Express capability: type %d, generation %d, width %d, payload %d, read request %d",
			e.Type, e.Generation, e.Width, e.MaxPayload, e.MaxReadRequest)
		return b
	}
	at := b.capability(CapExpress, expressLength)
	b.s.express = at
	caps := uint16(expressVersion) | uint16(e.Type)<<4
	if e.Slot != nil {
		caps |= ExpSlot
	}
	b.set16(at+OffExpCaps, caps)
	b.expressDevice(at, e)
	b.expressLink(at, e)
	if e.Slot != nil {
		b.expressSlot(at, *e.Slot, !e.LinkDown)
	}
	if e.Type == RootPort {
		b.writable16(at+OffRootCtl, 0x1f)
		b.clearable32(at+OffRootSta, 1<<16)
		b.set16(at+OffRootCap, 1) // RRS software visibility
	}
	return b
}

func (e Express) valid() bool {
	port := e.Type == RootPort || e.Type == DownstreamPort
	switch {
	case e.Type != Endpoint && e.Type != UpstreamPort && !port,
		e.Slot != nil && !port,
		e.Slot != nil && e.Slot.Number >= 1<<13,
		e.Generation < pcie.Gen1 || e.Generation > pcie.Gen6,
		!e.MaxPayload.Valid(),
		e.MaxReadRequest != 0 && !e.MaxReadRequest.Valid():
		return false
	}
	switch e.Width {
	case 1, 2, 4, 8, 12, 16, 32:
		return true
	}
	return false
}

func (b *Builder) expressDevice(at int, e Express) {
	devcap := uint32(e.MaxPayload.Encode()) | DevCapRBER
	ctlMask := uint16(DevCtlCorrectable | DevCtlNonFatal | DevCtlFatal | DevCtlUnsupported | DevCtlRelaxed | DevCtlMPS | DevCtlNoSnoop | DevCtlMRRS)
	mrrs := e.MaxReadRequest
	if mrrs == 0 {
		mrrs = 512
	}
	ctl := DevCtlRelaxed | DevCtlNoSnoop | uint16(mrrs.Encode())<<12
	if e.ExtendedTag {
		devcap |= DevCapExtTag
		ctl |= DevCtlExtTag
		ctlMask |= DevCtlExtTag
	}
	if e.FLR && e.Type == Endpoint {
		devcap |= DevCapFLR
		ctlMask |= DevCtlFLR
	}
	if e.Type == Endpoint {
		devcap |= 7<<6 | 7<<9 // no limit on L0s and L1 latency
	}
	b.set32(at+OffDevCap, devcap)
	b.set16(at+OffDevCtl, ctl)
	b.writable16(at+OffDevCtl, ctlMask)
	b.keepSticky16(at+OffDevCtl, DevCtlMPS) // section 6.6.2: FLR keeps Max_Payload_Size
	b.clearable(at+OffDevSta, devStaClear)

	devcap2, ctl2 := uint32(0), uint16(0)
	if e.Type == Endpoint || e.Type == RootPort {
		devcap2 |= DevCap2TimeoutRanges | DevCap2TimeoutDisable
		ctl2 |= DevCtl2Timeout | DevCtl2TimeoutDisable
	}
	if e.Atomics {
		if e.Type == Endpoint || e.Type == RootPort {
			devcap2 |= DevCap2Atomic32 | DevCap2Atomic64
			ctl2 |= DevCtl2AtomicRequest
		}
		if e.Type != Endpoint {
			devcap2 |= DevCap2AtomicRouting
			ctl2 |= DevCtl2AtomicBlock
		}
	}
	if e.TenBitTag {
		devcap2 |= DevCap2TagCompleter | DevCap2TagRequester
		ctl2 |= DevCtl2TenBitTag
	}
	if e.Type == RootPort || e.Type == DownstreamPort {
		devcap2 |= DevCap2ARIForward
		ctl2 |= DevCtl2ARIForward
	}
	b.set32(at+OffDevCap2, devcap2)
	b.writable16(at+OffDevCtl2, ctl2)
}

func (b *Builder) expressLink(at int, e Express) {
	speed := uint32(e.Generation)
	linkcap := speed | uint32(e.Width)<<4 | uint32(e.PortNumber)<<24 | LinkCapCompliance
	mask := uint16(linkCtlWritable)
	status := uint16(speed) | uint16(e.Width)<<4 | LinkStaSlotClock
	if e.Type == RootPort || e.Type == DownstreamPort {
		linkcap |= LinkCapActive | LinkCapNotify
		if e.Slot != nil && e.Slot.HotPlug {
			linkcap |= LinkCapSurprise
		}
		b.clearable(at+OffLinkSta, linkStaClear)
		if e.LinkDown {
			status = 1 | 1<<4 | LinkStaSlotClock // undefined while the link is down (section 7.5.3.8); here the minimum
		} else {
			status |= LinkStaActive
		}
	} else {
		mask &^= LinkCtlDisable | 1<<10 | 1<<11 // only downstream ports have link disable and the bandwidth interrupts
	}
	b.set32(at+OffLinkCap, linkcap)
	b.writable16(at+OffLinkCtl, mask)
	b.keepSticky16(at+OffLinkCtl, mask)
	b.set16(at+OffLinkSta, status)
	if e.Generation > pcie.Gen1 {
		b.set32(at+OffLinkCap2, 1<<(speed+1)-2)
		b.set16(at+OffLinkCtl2, uint16(speed))
		b.writable16(at+OffLinkCtl2, 0xf)
		b.keepSticky16(at+OffLinkCtl2, 0xf)
	}
}

func (b *Builder) expressSlot(at int, slot Slot, present bool) {
	slotcap := uint32(slot.Number) << 19
	if slot.HotPlug {
		slotcap |= SlotCapAttnButton | SlotCapPowerCtl | SlotCapAttnInd | SlotCapPowerInd | SlotCapSurprise | SlotCapHotPlug
		b.writable16(at+OffSlotCtl, slotCtlWritable)
		b.set16(at+OffSlotCtl, 3<<6|3<<8) // both indicators off
	}
	b.set32(at+OffSlotCap, slotcap)
	b.clearable(at+OffSlotSta, slotStaClear)
	if present {
		b.set16(at+OffSlotSta, SlotStaPresent)
	}
}
