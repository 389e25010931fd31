package cfgspace

import (
	"github.com/dxpu-project/dxpu/pcie"
)

const pmNoSoftReset = 1 << 3

// PowerManagement adds the Power Management capability, version 3, with D0 and
// D3hot (section 7.5.2). With softReset, D3hot to D0 resets the function.
func (b *Builder) PowerManagement(softReset bool) *Builder {
	at := b.capability(CapPM, pmLength)
	b.s.pm = at
	b.set16(at+OffPMCaps, 3)
	if !softReset {
		b.set16(at+OffPMStatus, pmNoSoftReset)
	}
	b.writable16(at+OffPMStatus, 3)
	return b
}

// msiMaxLength is the length of an MSI capability with 64-bit address and masks.
const msiMaxLength = 24

func msiLength(control uint16) int {
	switch control & (MSI64 | MSIMaskable) {
	case 0:
		return 10
	case MSI64:
		return 14
	case MSIMaskable:
		return 20
	}
	return msiMaxLength
}

// Msi adds the MSI capability with 64-bit addresses and per-vector masks for
// 2^log2Vectors vectors, log2Vectors 0 to 5 (section 7.7.1).
func (b *Builder) Msi(log2Vectors int) *Builder {
	if log2Vectors < 0 || log2Vectors > 5 {
		b.fail("MSI with 2^%d vectors: want 0 to 5", log2Vectors)
		return b
	}
	at := b.capability(CapMSI, msiMaxLength)
	b.s.msi = at
	b.set16(at+2, uint16(log2Vectors)<<1|MSI64|MSIMaskable)
	b.writable16(at+2, MSIEnable|7<<4)
	b.writable32(at+4, 0xfffffffc)
	b.writable32(at+8, 0xffffffff)
	b.writable16(at+12, 0xffff)
	b.writable32(at+16, uint32(uint64(1)<<(1<<log2Vectors)-1))
	return b
}

// Msix adds the MSI-X capability: vectors (1 to 2048) entries of 16 bytes at
// tableOffset of BAR tableBAR, and the pending bits at pbaOffset of pbaBAR; offsets
// are multiples of 8 (section 7.7.2).
func (b *Builder) Msix(vectors, tableBAR int, tableOffset uint32, pbaBAR int, pbaOffset uint32) *Builder {
	if vectors < 1 || vectors > 2048 || tableBAR < 0 || tableBAR > 5 || pbaBAR < 0 || pbaBAR > 5 || tableOffset&7 != 0 || pbaOffset&7 != 0 {
		b.fail("MSI-X with %d vectors at BAR %d+%#x, pending bits at BAR %d+%#x", vectors, tableBAR, tableOffset, pbaBAR, pbaOffset)
		return b
	}
	at := b.capability(CapMSIX, msixLength)
	b.s.msix = at
	b.set16(at+2, uint16(vectors-1))
	b.writable16(at+2, MSIXEnable|MSIXMask)
	b.set32(at+4, tableOffset|uint32(tableBAR))
	b.set32(at+8, pbaOffset|uint32(pbaBAR))
	return b
}

// Vendor adds a vendor-specific capability with body after its three header bytes. masks
// are the bits that software can write, from the first byte of body on.
func (b *Builder) Vendor(body []byte, masks ...byte) *Builder {
	if len(body) > pcie.ConfigSizePCI-0x40-3 || len(masks) > len(body) {
		b.fail("vendor capability of %d bytes, %d masks", len(body), len(masks))
		return b
	}
	at := b.capability(CapVendor, 3+len(body))
	b.s.value[at+2] = byte(3 + len(body))
	copy(b.s.value[at+3:], body)
	b.writable(at+3, masks...)
	return b
}

// AER adds the Advanced Error Reporting extended capability, version 2 (section
// 7.8.4). Its logs and masks are sticky. root adds the registers of a root port.
func (b *Builder) AER(root bool) *Builder {
	n := aerLength
	if root {
		n = aerRootLength
	}
	at := b.extended(ExtAER, 2, n)
	b.s.aer = at
	b.set32(at+OffAERSeverity, aerFatal)
	b.set32(at+OffAERCorMask, AERAdvisory)
	b.clearable32(at+OffAERUncorrectable, aerKnown)
	b.writable32(at+OffAERMask, aerKnown)
	b.writable32(at+OffAERSeverity, aerKnown)
	b.clearable32(at+OffAERCorrectable, aerCorrKnown)
	b.writable32(at+OffAERCorMask, aerCorrKnown)
	for off := OffAERUncorrectable; off < aerLength; off += 4 {
		b.keepSticky32(at+off, 0xffffffff)
	}
	if root {
		b.writable32(at+OffAERRootCommand, 7)
		b.clearable32(at+OffAERRootStatus, 0x7f)
	}
	return b
}

// SerialNumber adds the Device Serial Number extended capability (section 7.9.3).
func (b *Builder) SerialNumber(serial uint64) *Builder {
	le.PutUint64(b.s.value[b.extended(ExtSerial, 1, 12)+4:], serial)
	return b
}

// ACS adds Access Control Services for a downstream port (section 7.7.11) with the
// controls in caps: bits 0 source validation, 1 translation blocking, 2 request
// redirect, 3 completion redirect, 4 upstream forwarding, 6 direct translated. Bit
// 5, egress control, is not supported.
func (b *Builder) ACS(caps uint16) *Builder {
	if caps&^0x5f != 0 {
		b.fail("ACS capabilities %#x", caps)
		return b
	}
	at := b.extended(ExtACS, 1, 8)
	b.set16(at+4, caps)
	b.writable16(at+6, caps)
	return b
}

// ExtendedVendor adds a Vendor-Specific extended capability (section 7.9.5)
// with its own ID, 4-bit revision and body.
func (b *Builder) ExtendedVendor(id uint16, revision uint8, body []byte) *Builder {
	if len(body) > pcie.ConfigSize-pcie.ConfigSizePCI-8 {
		b.fail("vendor-specific extended capability of %d bytes", len(body))
		return b
	}
	n := 8 + len(body)
	at := b.extended(ExtVendor, 1, n)
	b.set32(at+4, uint32(id)|uint32(revision&0xf)<<16|uint32(n)<<20)
	copy(b.s.value[at+8:], body)
	return b
}
