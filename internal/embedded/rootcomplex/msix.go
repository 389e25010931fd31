package rootcomplex

import (
	"fmt"

	"github.com/dxpu-project/dxpu/cfgspace"
)

// MemoryAccess accesses memory space as a CPU does: failed reads return all ones, writes
// are posted. addr is a multiple of 4.
type MemoryAccess interface {
	MemoryRead32(addr uint64) (uint32, error)
	MemoryWrite32(addr uint64, v uint32) error
}

// Message is the memory write by which a device raises an interrupt.
type Message struct {
	Addr uint64
	Data uint32
}

// Layout of an MSI-X table entry (section 7.7.2.7).
const (
	msixEntry       = 16
	msixOffAddr     = 0
	msixOffUpper    = 4
	msixOffData     = 8
	msixOffControl  = 12
	msixMasked      = 1
	offMSIXTable    = 4
	msixControlHigh = 16 // Message Control is the upper half of the first double word
)

// EnableMSIX writes the messages to the first entries of a function's MSI-X table,
// unmasks them, masks the other entries and enables MSI-X.
func EnableMSIX(acc ConfigAccess, mem MemoryAccess, f *Function, messages []Message) error {
	r := &registers{config: acc, memory: mem}
	if r.enableMSIX(f, messages); r.err != nil {
		return fmt.Errorf("rootcomplex: MSI-X of %v: %w", f.ID, r.err)
	}
	return nil
}

func (r *registers) enableMSIX(f *Function, messages []Message) {
	table, entries := r.msixTable(f)
	if len(messages) > entries {
		r.fail(fmt.Errorf("%d vectors of %d asked for", len(messages), entries))
	}
	// All vectors are masked while the table is incomplete.
	r.setMSIX(f, cfgspace.MSIXEnable|cfgspace.MSIXMask, 0)
	for i := range entries {
		at := table + uint64(i)*msixEntry
		if i >= len(messages) {
			r.writeMemory(at+msixOffControl, msixMasked)
			continue
		}
		r.writeMemory(at+msixOffAddr, uint32(messages[i].Addr))
		r.writeMemory(at+msixOffUpper, uint32(messages[i].Addr>>32))
		r.writeMemory(at+msixOffData, messages[i].Data)
		r.writeMemory(at+msixOffControl, 0)
	}
	if r.err == nil { // the writes are posted; this read ensures that they have arrived
		_, r.err = r.memory.MemoryRead32(table + msixOffControl)
	}
	r.setMSIX(f, cfgspace.MSIXEnable, cfgspace.MSIXMask)
}

func (r *registers) writeMemory(addr uint64, v uint32) {
	if r.err == nil {
		r.err = r.memory.MemoryWrite32(addr, v)
	}
}

func (r *registers) msixTable(f *Function) (addr uint64, entries int) {
	if f.MSIX == 0 {
		r.fail(fmt.Errorf("no capability: %w", ErrMalformed))
	}
	control, where := r.read(f, f.MSIX), r.read(f, f.MSIX+offMSIXTable)
	if control == allOnes || where == allOnes {
		r.fail(ErrGone)
		return 0, 0
	}
	entries = int(control>>msixControlHigh&0x7ff) + 1
	bar, ok := f.BAR(int(where & 7))
	off := uint64(where &^ 7)
	if !ok || !bar.Range.Contains(bar.Range.Base+off, uint64(entries)*msixEntry) {
		r.fail(fmt.Errorf("%d entries at BAR %d+%#x: %w", entries, where&7, off, ErrMalformed))
		return 0, 0
	}
	return bar.Range.Base + off, entries
}

func (r *registers) setMSIX(f *Function, set, clear uint16) {
	v := r.read(f, f.MSIX)
	if v == allOnes {
		r.fail(ErrGone)
	}
	control := uint16(v>>msixControlHigh)&^clear | set
	r.write(f, f.MSIX, v&0xffff|uint32(control)<<msixControlHigh)
}
