package mapping

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// Function records the values that a host programs into one function: its bus and
// device number, its BARs and its Command register. It snoops the configuration
// requests on their way, like DxPU_PROXY (paper, section 3.3.1).
type Function struct {
	ID      pcie.BDF
	BARs    [pcie.MaxBARs]pcie.BAR
	value   [pcie.MaxBARs]uint32
	command uint16
}

// Snoop learns from a configuration write on its way to the function. It
// reports whether the write changed anything.
func (f *Function) Snoop(p *tlp.Packet) (changed bool) {
	if p.Type != tlp.CfgWr0 || len(p.Data) < pcie.DW {
		return false
	}
	before := *f
	f.ID = p.Target // a function captures its number from every CfgWr0 (section 2.2.6.2)
	value := binary.LittleEndian.Uint32(p.Data)
	switch {
	case p.Register == cfgspace.OffCommand:
		f.command = uint16(merge(uint32(f.command), value, p.FirstBE))
	case p.Register >= cfgspace.OffBAR0 && p.Register < cfgspace.OffBAR0+pcie.MaxBARs*pcie.DW && p.Register%pcie.DW == 0:
		i := int(p.Register-cfgspace.OffBAR0) / pcie.DW
		f.value[i] = merge(f.value[i], value, p.FirstBE) & f.writable(i)
	}
	return before != *f
}

// port returns the state of a port whose windows are those of the function. It
// covers all function numbers of the device. Before the first configuration write
// the function has no ID: 00:00.0, the zero value, belongs to the root complex.
func (f *Function) port() Port {
	p := Port{Active: true, Master: true}
	if f.ID != 0 {
		p.FirstID, p.LastID = f.ID&^7, f.ID|7
	}
	for i := range f.BARs {
		if w, ok := f.Window(i); ok {
			p.Windows = append(p.Windows, w)
		}
	}
	return p
}

// writable returns the mask of address bits that BAR register i implements.
func (f *Function) writable(i int) uint32 {
	if i > 0 && f.BARs[i-1].Wide { // upper half
		return uint32(^(f.BARs[i-1].Size - 1) >> 32)
	}
	if f.BARs[i].Size == 0 {
		return 0
	}
	return uint32(^(f.BARs[i].Size - 1))
}

// Register returns the value programmed into BAR register i, without the bits
// that encode its kind.
func (f *Function) Register(i int) uint32 { return f.value[i] }

// BARAddress returns the bus address programmed into BAR i.
func (f *Function) BARAddress(i int) uint64 {
	addr := uint64(f.value[i])
	if f.BARs[i].Wide && i+1 < pcie.MaxBARs {
		addr |= uint64(f.value[i+1]) << 32
	}
	return addr
}

// MemoryEnabled reports the Memory Space Enable bit.
func (f *Function) MemoryEnabled() bool { return f.command&cfgspace.CmdMemory != 0 }

// BusMaster reports the Bus Master Enable bit.
func (f *Function) BusMaster() bool { return f.command&cfgspace.CmdBusMaster != 0 }

// Reset clears BARs and Command register, as a reset of the function does.
func (f *Function) Reset() {
	f.value, f.command = [pcie.MaxBARs]uint32{}, 0
}

// Window returns the memory that BAR i decodes. It returns false for a BAR that
// decodes none: it is not a memory BAR, memory is not enabled, or the BAR would
// pass the end of the address space.
func (f *Function) Window(i int) (cfgspace.Window, bool) {
	w := cfgspace.Window{Base: f.BARAddress(i)}
	w.Limit = w.Base + f.BARs[i].Size - 1
	return w, f.MemoryEnabled() && !f.BARs[i].IO && f.BARs[i].Size != 0 && w.Limit >= w.Base
}

// merge replaces the bytes of old that the byte enables select.
func merge(old, value uint32, be uint8) uint32 {
	var mask uint32
	for i := range 4 {
		if be&(1<<i) != 0 {
			mask |= 0xff << (8 * i)
		}
	}
	return old&^mask | value&mask
}
