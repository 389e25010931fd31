package cfgspace_test

import (
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
)

func physical(t *testing.T, v cfgspace.SRIOV) (*cfgspace.Space, error) {
	t.Helper()
	return cfgspace.NewEndpoint(cfgspace.Identity{Vendor: 0x1234, Device: 0xd9b0, Class: 0x120000}).SRIOV(v).Build()
}

// "VF Enable controls the assignment of VFs": none exist before, and NumVFs is bounded by
// TotalVFs.
func TestVirtualFunctions(t *testing.T) {
	bars := [pcie.MaxBARs]cfgspace.BAR{0: {Kind: cfgspace.Memory32, Size: 1 << 16}, 2: {Kind: cfgspace.Memory64, Size: 1 << 20, Prefetchable: true}}
	s, err := physical(t, cfgspace.SRIOV{Total: 16, First: 1, Stride: 2, Device: 0xd9b0, BARs: bars})
	if err != nil {
		t.Fatal(err)
	}
	at := s.SRIOVOffset()
	want := func(n int) {
		t.Helper()
		if got := s.VirtualFunctions(); got != n {
			t.Errorf("%d virtual functions, want %d", got, n)
		}
	}
	s.Write(at+cfgspace.OffSRIOVNum, 2, 4)
	want(0)
	s.Write(at+cfgspace.OffSRIOVControl, 2, cfgspace.SRIOVEnable)
	want(4)
	s.Write(at+cfgspace.OffSRIOVNum, 2, 0xffff)
	want(16)
	s.Write(at+cfgspace.OffSRIOVTotal, 2, 99) // read-only
	want(16)
	if id := s.VirtualFunction(pcie.NewBDF(1, 0, 0), 4); id != pcie.NewBDF(1, 1, 1) {
		t.Errorf("the fifth virtual function is %v", id)
	}
	// Software finds the size of the VF BARs by writing ones.
	s.Write(at+cfgspace.OffSRIOVBAR0, 4, 0xffffffff)
	s.Write(at+cfgspace.OffSRIOVBAR0+8, 4, 0xffffffff)
	if lo, wide := s.Read(at+cfgspace.OffSRIOVBAR0, 4), s.Read(at+cfgspace.OffSRIOVBAR0+8, 4); lo != 0xffff0000 || wide != 0xfff0000c {
		t.Errorf("VF BARs %#x and %#x", lo, wide)
	}
	if d := cfgspace.Describe(s.Bytes()); !strings.Contains(d, "SR-IOV: 65535 of 16 virtual functions, enable 1, offset 1, stride 2, device d9b0") {
		t.Errorf("described as\n%s", d)
	}
	s.Reset(true)
	want(0)
}

func TestSRIOVRefuses(t *testing.T) {
	for name, v := range map[string]cfgspace.SRIOV{
		"none":          {First: 1, Stride: 1},
		"on itself":     {Total: 2, Stride: 1},
		"on each other": {Total: 2, First: 1},
		"I/O":           {Total: 1, First: 1, BARs: [pcie.MaxBARs]cfgspace.BAR{0: {Kind: cfgspace.IO, Size: 16}}},
		"too wide":      {Total: 1, First: 1, BARs: [pcie.MaxBARs]cfgspace.BAR{5: {Kind: cfgspace.Memory64, Size: 1 << 20}}},
		"odd size":      {Total: 1, First: 1, BARs: [pcie.MaxBARs]cfgspace.BAR{0: {Kind: cfgspace.Memory32, Size: 100}}},
	} {
		if _, err := physical(t, v); err == nil {
			t.Errorf("%s: built", name)
		}
	}
	s, err := cfgspace.NewEndpoint(cfgspace.Identity{}).Build()
	if err != nil {
		t.Fatal(err)
	}
	if s.SRIOVOffset() != 0 || s.VirtualFunctions() != 0 || s.VirtualFunction(7, 3) != 7 {
		t.Error("a function without the capability has virtual functions")
	}
}
