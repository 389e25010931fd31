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
	table, entries, err := msixTable(acc, f)
	if err != nil {
		return fmt.Errorf("rootcomplex: MSI-X of %v: %w", f.ID, err)
	}
	if len(messages) > entries {
		return fmt.Errorf("rootcomplex: MSI-X of %v: %d vectors of %d asked for", f.ID, len(messages), entries)
	}
	// All vectors are masked while the table is incomplete.
	if err := setMSIX(acc, f, cfgspace.MSIXEnable|cfgspace.MSIXMask, 0); err != nil {
		return err
	}
	for i := range entries {
		at := table + uint64(i)*msixEntry
		if i >= len(messages) {
			if err := mem.MemoryWrite32(at+msixOffControl, msixMasked); err != nil {
				return err
			}
			continue
		}
		for _, w := range []struct {
			off uint64
			v   uint32
		}{
			{msixOffAddr, uint32(messages[i].Addr)},
			{msixOffUpper, uint32(messages[i].Addr >> 32)},
			{msixOffData, messages[i].Data},
			{msixOffControl, 0},
		} {
			if err := mem.MemoryWrite32(at+w.off, w.v); err != nil {
				return err
			}
		}
	}
	// The writes are posted; this read ensures that they have arrived.
	if _, err := mem.MemoryRead32(table + msixOffControl); err != nil {
		return err
	}
	return setMSIX(acc, f, cfgspace.MSIXEnable, cfgspace.MSIXMask)
}

// DisableMSIX switches MSI-X off.
func DisableMSIX(acc ConfigAccess, f *Function) error {
	if f.MSIX == 0 {
		return nil
	}
	return setMSIX(acc, f, 0, cfgspace.MSIXEnable)
}

func msixTable(acc ConfigAccess, f *Function) (addr uint64, entries int, err error) {
	if f.MSIX == 0 {
		return 0, 0, fmt.Errorf("no capability: %w", ErrMalformed)
	}
	control, err := acc.ConfigRead32(f.ID, f.MSIX)
	if err != nil {
		return 0, 0, err
	}
	where, err := acc.ConfigRead32(f.ID, f.MSIX+offMSIXTable)
	if err != nil {
		return 0, 0, err
	}
	if control == allOnes || where == allOnes {
		return 0, 0, ErrGone
	}
	entries = int(control>>msixControlHigh&0x7ff) + 1
	bar, ok := f.BAR(int(where & 7))
	off := uint64(where &^ 7)
	if !ok || !bar.Range.Contains(bar.Range.Base+off, uint64(entries)*msixEntry) {
		return 0, 0, fmt.Errorf("%d entries at BAR %d+%#x: %w", entries, where&7, off, ErrMalformed)
	}
	return bar.Range.Base + off, entries, nil
}

func setMSIX(acc ConfigAccess, f *Function, set, clear uint16) error {
	v, err := acc.ConfigRead32(f.ID, f.MSIX)
	if err != nil {
		return err
	}
	if v == allOnes {
		return fmt.Errorf("rootcomplex: MSI-X of %v: %w", f.ID, ErrGone)
	}
	control := uint16(v>>msixControlHigh)&^clear | set
	return acc.ConfigWrite32(f.ID, f.MSIX, v&0xffff|uint32(control)<<msixControlHigh)
}
