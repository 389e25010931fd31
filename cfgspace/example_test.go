package cfgspace_test

import (
	"fmt"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
)

// A function with 64 KiB of registers, interrupts and the PCI Express
// capability, and software that sizes and enables it.
func Example() {
	s, err := cfgspace.NewEndpoint(cfgspace.Identity{Vendor: 0x1234, Device: 0x11e8, Class: 0x120000}).
		BAR(0, cfgspace.BAR{Kind: cfgspace.Memory32, Size: 64 << 10}).
		Msix(16, 0, 0x8000, 0, 0xc000).
		Express(cfgspace.Express{Type: cfgspace.Endpoint, Generation: pcie.Gen4, Width: 16, MaxPayload: 512, FLR: true}).
		Build()
	if err != nil {
		fmt.Println(err)
		return
	}

	// Software writes all ones to the BAR and computes the size from the bits that
	// read as one.
	s.Write(cfgspace.OffBAR0, 4, 0xffffffff)
	size := cfgspace.SizeBAR(cfgspace.Memory32, s.Read(cfgspace.OffBAR0, 4), 0)
	fmt.Printf("BAR 0 has %d KiB\n", size>>10)

	// The Change of a write lists the effects that the function must handle.
	change := s.Write(cfgspace.OffBAR0, 4, 0xfe000000)
	fmt.Println("BAR changed:", change.Has(cfgspace.BARs))
	s.Write(cfgspace.OffCommand, 2, cfgspace.CmdMemory|cfgspace.CmdBusMaster)
	bar, offset, ok := s.Decode(0xfe000010, 4)
	fmt.Printf("a read of 0xfe000010 is for BAR %d, offset %#x: %v\n", bar, offset, ok)
	// Output:
	// BAR 0 has 64 KiB
	// BAR changed: true
	// a read of 0xfe000010 is for BAR 0, offset 0x10: true
}

// Capabilities walks the configuration space of any device, such as the file
// /sys/bus/pci/devices/*/config.
func ExampleCapabilities() {
	s, err := cfgspace.NewEndpoint(cfgspace.Identity{Vendor: 0x1234, Device: 0x11e8}).PowerManagement(false).Msi(2).Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	dump := s.Bytes()
	for id, at := range cfgspace.Capabilities(dump) {
		fmt.Printf("capability %#02x at %#x\n", id, at)
	}
	fmt.Print(cfgspace.Describe(dump))
	// Output:
	// capability 0x01 at 0x40
	// capability 0x05 at 0x48
	// device 1234:11e8 class 000000 rev 00 header 0
	// [40] Power Management: D0
	// [48] MSI: enable 0, vectors 4
}
