package cfgspace

import (
	"fmt"

	"github.com/dxpu-project/dxpu/pcie"
)

// Offsets in the Single Root I/O Virtualization extended capability (section 9.3.3).
const (
	OffSRIOVControl  = 0x08 // 2
	OffSRIOVInitial  = 0x0c // 2: InitialVFs
	OffSRIOVTotal    = 0x0e // 2: TotalVFs
	OffSRIOVNum      = 0x10 // 2: NumVFs
	OffSRIOVFirst    = 0x14 // 2: First VF Offset
	OffSRIOVStride   = 0x16 // 2: VF Stride
	OffSRIOVDevice   = 0x1a // 2: VF Device ID
	OffSRIOVPages    = 0x1c // 4: Supported Page Sizes
	OffSRIOVPageSize = 0x20 // 4: System Page Size
	OffSRIOVBAR0     = 0x24 // 4 each
	sriovLength      = 0x40
)

// Bits of SR-IOV Control.
const (
	SRIOVEnable       = 1 << 0 // VF Enable
	SRIOVMemoryEnable = 1 << 3 // VF MSE
)

// sriovPages are the page sizes that every function supports: 4, 8, 64, 256 KiB, 1 and
// 4 MiB (section 9.3.3.12).
const sriovPages = 0x553

// SRIOV describes the virtual functions of a physical function.
type SRIOV struct {
	Total         uint16 // TotalVFs
	First, Stride uint16 // routing IDs: of the first one from the physical function's, and between two
	Device        uint16 // VF Device ID
	BARs          [pcie.MaxBARs]BAR
}

// SRIOV adds the Single Root I/O Virtualization extended capability, version 1, without
// migration.
func (b *Builder) SRIOV(v SRIOV) *Builder {
	if v.Total < 1 || v.First < 1 || v.Total > 1 && v.Stride < 1 {
		b.fail("SR-IOV with %d virtual functions, offset %d, stride %d", v.Total, v.First, v.Stride)
		return b
	}
	at := b.extended(ExtSRIOV, 1, sriovLength)
	b.s.sriov = at
	b.writable16(at+OffSRIOVControl, SRIOVEnable|SRIOVMemoryEnable)
	b.set16(at+OffSRIOVInitial, v.Total)
	b.set16(at+OffSRIOVTotal, v.Total)
	b.writable16(at+OffSRIOVNum, 0xffff)
	b.set16(at+OffSRIOVFirst, v.First)
	b.set16(at+OffSRIOVStride, v.Stride)
	b.set16(at+OffSRIOVDevice, v.Device)
	b.set32(at+OffSRIOVPages, sriovPages)
	b.set32(at+OffSRIOVPageSize, 1)
	b.writable32(at+OffSRIOVPageSize, sriovPages)
	for i, bar := range v.BARs {
		if bar.Kind == NoBAR {
			continue
		}
		if bar.Kind == IO || bar.Kind == Memory64 && i+1 == len(v.BARs) {
			b.fail("VF BAR %d: want memory that fits", i)
			return b
		}
		if err := bar.check(); err != nil {
			b.fail("VF BAR %d: %w", i, err)
			return b
		}
		mask := -bar.Size
		b.set32(at+OffSRIOVBAR0+4*i, bar.flags())
		b.writable32(at+OffSRIOVBAR0+4*i, uint32(mask)&^bar.flagMask())
		if bar.Kind == Memory64 {
			b.writable32(at+OffSRIOVBAR0+4*i+4, uint32(mask>>32))
		}
	}
	return b
}

// SRIOVOffset returns the offset of the SR-IOV capability, or 0.
func (s *Space) SRIOVOffset() int { return s.sriov }

// VirtualFunctions returns how many virtual functions software has enabled: NumVFs, at
// most TotalVFs, while VF Enable is set.
func (s *Space) VirtualFunctions() int {
	if s.sriov == 0 || s.read16(s.sriov+OffSRIOVControl)&SRIOVEnable == 0 {
		return 0
	}
	return int(min(s.read16(s.sriov+OffSRIOVNum), s.read16(s.sriov+OffSRIOVTotal)))
}

// VirtualFunction returns the routing ID of virtual function n, from 0, of a physical
// function (section 9.2.1.2). It may be on a later bus.
func (s *Space) VirtualFunction(physical pcie.BDF, n int) pcie.BDF {
	if s.sriov == 0 {
		return physical
	}
	return physical + pcie.BDF(s.read16(s.sriov+OffSRIOVFirst)) + pcie.BDF(n)*pcie.BDF(s.read16(s.sriov+OffSRIOVStride))
}

// describeSRIOV prints the main registers of the capability at the start of d.
func describeSRIOV(d []byte) string {
	if len(d) < sriovLength {
		return ""
	}
	return fmt.Sprintf(": %d of %d virtual functions, enable %d, offset %d, stride %d, device %04x",
		le.Uint16(d[OffSRIOVNum:]), le.Uint16(d[OffSRIOVTotal:]), le.Uint16(d[OffSRIOVControl:])&SRIOVEnable,
		le.Uint16(d[OffSRIOVFirst:]), le.Uint16(d[OffSRIOVStride:]), le.Uint16(d[OffSRIOVDevice:]))
}
