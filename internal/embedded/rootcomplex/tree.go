package rootcomplex

import (
	"fmt"
	"strings"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
)

// Range is a range of bus addresses. The zero value is empty.
type Range struct {
	Base, Size uint64
}

// End returns the first address behind the range.
func (r Range) End() uint64 { return r.Base + r.Size }

// Contains reports whether the n bytes at addr lie inside the range.
func (r Range) Contains(addr, n uint64) bool {
	return addr >= r.Base && n <= r.Size && addr-r.Base <= r.Size-n
}

// String prints the range as Linux does, "0xe0000000-0xe00fffff", or "-".
func (r Range) String() string {
	if r.Size == 0 {
		return "-"
	}
	return fmt.Sprintf("%#x-%#x", r.Base, r.End()-1)
}

// BAR is one base address register as enumeration found and assigned it.
type BAR struct {
	Index        int // 0 to 5; a 64-bit BAR also takes Index+1
	Range        Range
	Is64         bool
	Prefetchable bool
}

// Function is one function of the enumerated bus.
type Function struct {
	ID             pcie.BDF
	Vendor, Device uint16
	Class          uint32 // class, subclass and programming interface: 24 bits
	Revision       uint8

	// Bridge functions: the numbers of the buses below, and the windows that
	// are forwarded to them.
	Bridge                 bool
	Secondary, Subordinate uint8
	Window32, Window64     Range

	// HotPlug is set for a downstream port with a hot-plug capable slot.
	HotPlug bool

	// PCIe is the offset of the PCI Express capability and MSIX that of the
	// MSI-X capability, 0 where there is none.
	PCIe, MSIX uint16
	// ExpressType is the Device/Port Type field of the PCI Express
	// Capabilities register (table 7-17).
	ExpressType cfgspace.PortType
	// MPS is the largest payload that the function supports, and payload the
	// one that is set in it.
	MPS     pcie.PayloadSize
	payload pcie.PayloadSize

	BARs     []BAR
	Children []*Function
}

// BAR returns the base address register with this index, if the function
// implements it and enumeration assigned it.
func (f *Function) BAR(index int) (BAR, bool) {
	for _, b := range f.BARs {
		if b.Index == index {
			return b, true
		}
	}
	return BAR{}, false
}

// Walk calls visit for every function below f, depth first, and stops when
// visit returns false.
func (f *Function) Walk(visit func(*Function) bool) bool {
	for _, c := range f.Children {
		if !visit(c) || !c.Walk(visit) {
			return false
		}
	}
	return true
}

// Find returns the function with this Routing ID below f, or nil.
func (f *Function) Find(id pcie.BDF) *Function {
	var found *Function
	f.Walk(func(c *Function) bool {
		if c.ID == id {
			found = c
		}
		return found == nil
	})
	return found
}

// String draws the bus below f in the manner of "lspci -tv": one line for each
// function, with the buses behind a bridge in brackets.
func (f *Function) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "-[0000:%02x]-", f.Secondary)
	draw(&b, f.Children, strings.Repeat(" ", b.Len()))
	return b.String()
}

// draw appends functions to the current line, whose text so far is as wide as indent.
func draw(b *strings.Builder, functions []*Function, indent string) {
	if len(functions) == 0 {
		b.WriteString("\n")
		return
	}
	for i, f := range functions {
		below := indent + "|"
		switch {
		case len(functions) == 1:
			b.WriteString("-")
			below = indent + " "
		case i == len(functions)-1:
			if i > 0 {
				b.WriteString(indent)
			}
			b.WriteString("\\")
			below = indent + " "
		default:
			if i > 0 {
				b.WriteString(indent)
			}
			b.WriteString("+")
		}
		text := fmt.Sprintf("-%02x.%x", f.ID.Device(), f.ID.Function())
		if !f.Bridge {
			fmt.Fprintf(b, "%s  %04x:%04x class %06x%s\n", text, f.Vendor, f.Device, f.Class, f.resources())
			continue
		}
		buses := fmt.Sprintf("-[%02x]--", f.Secondary)
		if f.Subordinate != f.Secondary {
			buses = fmt.Sprintf("-[%02x-%02x]--", f.Secondary, f.Subordinate)
		}
		b.WriteString(text + buses)
		draw(b, f.Children, below+strings.Repeat(" ", len(text)+len(buses)))
	}
}

func (f *Function) resources() string {
	var b strings.Builder
	for _, bar := range f.BARs {
		kind := "32-bit"
		if bar.Is64 {
			kind = "64-bit"
		}
		if bar.Prefetchable {
			kind += " pref"
		}
		fmt.Fprintf(&b, "; BAR%d %s %s", bar.Index, bar.Range, kind)
	}
	return b.String()
}
