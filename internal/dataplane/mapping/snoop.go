package mapping

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// Offsets in a Type 0 configuration header (section 7.5.1).
const (
	regCommand  = 0x04
	regFirstBAR = 0x10
	regLastBAR  = 0x24

	commandMemory = 1 << 1 // Memory Space Enable
	commandMaster = 1 << 2 // Bus Master Enable
)

// Function follows what a host programs into one function: its bus and device
// number, its BARs and whether it decodes memory. It learns from the
// configuration requests that pass, as DxPU_PROXY does (paper, section 3.3.1).
type Function struct {
	ID      pcie.BDF
	BARs    [pcie.MaxBARs]pcie.BAR
	value   [pcie.MaxBARs]uint32
	command uint16
}

// Snoop takes note of a configuration write on its way to the function and
// reports whether a window changed.
func (f *Function) Snoop(p *tlp.Packet) (changed bool) {
	if p.Type != tlp.CfgWr0 || len(p.Data) < pcie.DW {
		return false
	}
	before := f.windows()
	if f.ID != p.Target {
		f.ID = p.Target // a function captures its number from every CfgWr0 (section 2.2.6.2)
	}
	value := binary.LittleEndian.Uint32(p.Data)
	switch {
	case p.Register == regCommand:
		f.command = uint16(merge(uint32(f.command), value, p.FirstBE))
	case p.Register >= regFirstBAR && p.Register <= regLastBAR && p.Register%4 == 0:
		i := int(p.Register-regFirstBAR) / 4
		f.value[i] = merge(f.value[i], value, p.FirstBE) & f.writable(i)
	}
	return before != f.windows()
}

// writable is the mask of address bits that BAR register i implements.
func (f *Function) writable(i int) uint32 {
	if i > 0 && f.BARs[i-1].Wide { // upper half
		return uint32(^(f.BARs[i-1].Size - 1) >> 32)
	}
	if f.BARs[i].Size == 0 {
		return 0
	}
	return uint32(^(f.BARs[i].Size - 1))
}

// Register returns what was programmed into BAR register i, without the bits
// that tell its kind.
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
func (f *Function) MemoryEnabled() bool { return f.command&commandMemory != 0 }

// BusMaster reports the Bus Master Enable bit.
func (f *Function) BusMaster() bool { return f.command&commandMaster != 0 }

// Reset forgets what was programmed, as a reset of the function does.
func (f *Function) Reset() {
	f.value = [pcie.MaxBARs]uint32{}
	f.command = 0
}

// Window returns the memory window of BAR i while the function decodes it.
func (f *Function) Window(i int) (Window, bool) {
	if !f.MemoryEnabled() || f.BARs[i].IO || f.BARs[i].Size == 0 {
		return Window{}, false
	}
	return NewWindow(f.BARAddress(i), f.BARs[i].Size)
}

func (f *Function) windows() (w [pcie.MaxBARs]Window) {
	for i := range w {
		w[i], _ = f.Window(i)
	}
	return w
}

// Span returns the lowest base and the highest limit of the windows: the
// Memory Base and Memory Limit columns of the paper's Table 2.
func (f *Function) Span() (span Window, ok bool) {
	for i := range f.BARs {
		w, has := f.Window(i)
		if !has {
			continue
		}
		if !ok {
			span, ok = w, true
			continue
		}
		span.Base, span.Limit = min(span.Base, w.Base), max(span.Limit, w.Limit)
	}
	return span, ok
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
